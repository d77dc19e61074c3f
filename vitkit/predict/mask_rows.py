"""A row for each segmented image: what it shows, where its mask is, and its annotations; as a block of a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from vitkit.errors import ConfigError
from vitkit.predict.segmentation import SegmentedImage
from vitkit.stored_json import conform


@dataclass(frozen=True, kw_only=True)
class MaskRow:
    """One image: its size, the shares of its classes, and where or how its mask is stored."""

    image: str
    error: str | None = None
    mask: str | None = None  # the file, in the output folder
    height: int = 0
    width: int = 0
    windows: int = 1  # that a large image was cut into
    shares: dict[str, float]  # of pixels: class → share, the largest first
    annotations: tuple[dict[str, Any], ...] = ()  # COCO's, without ids

    @property
    def errors(self) -> Mapping[int, str]:
        return {} if self.error is None else {0: self.error}

    def __len__(self) -> int:
        return 1

    def select(self, first: int, stop: int) -> Self:
        return self

    def stored(self) -> Mapping[str, Any]:
        return {"images": 1, "row": asdict(self)}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> MaskRow:
        row: MaskRow = conform(stored.get("row"), cls, "a row", error=ConfigError)
        return row

    @classmethod
    def of(
        cls, segmented: SegmentedImage, mask: str | None = None, annotations: Sequence[dict[str, Any]] = ()
    ) -> MaskRow:
        name = segmented.name or ""
        if segmented.error is not None:
            return cls(image=name, error=segmented.error, shares={})
        height, width = segmented.mask.shape
        return cls(
            image=name,
            mask=mask,
            height=height,
            width=width,
            windows=segmented.windows,
            shares=segmented.shares,
            annotations=tuple(annotations),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the row as programs read it: the classes in the order of their shares."""
        where = {} if self.mask is None else {"mask": self.mask}
        return {
            "image": self.image,
            **where,
            "error": self.error,
            "height": self.height,
            "width": self.width,
            "windows": self.windows,
            "classes": [{"label": name, "share": round(share, 6)} for name, share in self.shares.items()],
        }
