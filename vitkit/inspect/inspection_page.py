"""Inspect a model on images and write the page: what `vitkit inspect` and `Run.inspect` do."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitkit.data.sources.image_paths import outside_data
from vitkit.errors import ConfigError
from vitkit.inspect.completions import Sampling
from vitkit.inspect.image_set import open_images, refuse_output_among_images
from vitkit.inspect.inspect_folder import refuse_foreign_files
from vitkit.inspect.inspection import Inspection, inspect_model
from vitkit.inspect.page import write_page
from vitkit.inspect.query_token import Token
from vitkit.inspect.summary import as_json
from vitkit.model.build import Model
from vitkit.weights.bundled import local_path


@dataclass(frozen=True)
class InspectionPage:
    path: Path  # of the page
    figures: tuple[Path, ...]
    inspection: Inspection = field(repr=False)

    @property
    def files(self) -> list[Path]:
        return [self.path, *self.figures]

    def record(self) -> dict[str, Any]:
        """Return the measurements as plain data, as `vitkit inspect --json` prints them."""
        return as_json(self.inspection, self.files)


def inspect_images(
    load_model: Callable[[], Model],
    images: Sequence[str | os.PathLike[str]],
    source: str,
    out: Path | None = None,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: Sequence[Token] | None = None,
    sampling: Sampling | None = None,
    log: Callable[[str, str], None] = lambda label, text: None,
) -> InspectionPage:
    """Write the page of a model from `source`; the folder is checked before the model is loaded."""
    names = [os.fspath(image) for image in images]
    if not names:
        raise ConfigError("no images named", try_=f"vitkit inspect {source} photos/")
    folder = _default_folder(source, names) if out is None else out
    refuse_output_among_images(folder, names)
    refuse_foreign_files(folder)
    model = load_model()
    inspection = inspect_model(
        model,
        open_images(model, names),
        layers=layers,
        heads=heads,
        tokens=tokens,
        sampling=sampling,
        log=lambda what: log("inspecting", f"inspecting {what}"),
    )
    page, *figures = write_page(inspection, folder, source)
    return InspectionPage(page, tuple(figures), inspection)


def _default_folder(source: str, images: Sequence[str]) -> Path:
    """Return inspect/ in the run folder; for other weights, in the current directory, outside of the images."""
    path = local_path(source)
    if path is not None and path.is_dir():
        return path / "inspect"
    folder = Path("inspect")
    for image in images:
        folder = outside_data(Path(image), folder)
    return folder
