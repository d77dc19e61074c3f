"""The images of a job that have no prediction: how many, which first, and whether they are too many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vitkit.data.failures import advised_max_failed, allowed_failures
from vitkit.text import counted, percent, printable

KEPT = 100  # failures that are listed; the rows have all of them


@dataclass
class Failures:
    images: int  # of the job
    failed: int = 0
    first: list[dict[str, str | None]] = field(default_factory=list)

    def add(self, image: str | None, error: str | None) -> None:
        """Count an image, unless its error is None."""
        if error is not None:
            self.failed += 1
            if len(self.first) < KEPT:
                self.first.append({"image": image, "error": error})

    def add_all(self, names: Sequence[str], errors: Mapping[int, str]) -> None:
        """Count the images of a block; `errors` has the rows of those that failed."""
        for row in sorted(errors):
            self.add(names[row], errors[row])

    def too_many(self, max_failed: float) -> bool:
        return self.failed > allowed_failures(self.images, max_failed)

    def describe(self, max_failed: float) -> str:
        """Return the last line of a job with failures: how many, the first one, and how to allow them."""
        image, error = self.first[0]["image"], (self.first[0]["error"] or "").removesuffix(".")
        share = self.failed / self.images
        advice = f"; --max-failed {advised_max_failed(share):g} allows them" if self.too_many(max_failed) else ""
        return (
            f"{self.failed:,} of {counted(self.images, 'image')} failed ({percent(share)}); "
            f"first: {printable(image or 'an image')}: {error}{advice}"
        )
