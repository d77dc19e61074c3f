"""The verb that looks inside a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from vitkit.cli.options import Device, Json, Run, image_size, option, outside, print_json
from vitkit.errors import ConfigError


def inspect(
    run: Run,
    images: Annotated[Positional[tuple[str, ...]], option("pictures, or folders of them", "IMAGES…")],
    out: Annotated[Path | None, option("the folder to write; else inspect/ in the run folder, or here", "DIR")] = None,
    image: Annotated[
        tuple[int, ...] | None, option("image side, or height and width; the model's own unless said", "PX")
    ] = None,
    layer: Annotated[
        tuple[int, ...] | None,
        option("layers whose attention is shown, counted from 0; else all, or 12 evenly spread ones", "N"),
    ] = None,
    head: Annotated[tuple[int, ...] | None, option("heads, counted from 0; else all", "N")] = None,
    token: Annotated[
        tuple[str, ...] | None,
        option(
            "whose attention is shown: the class token, the mean of all patches, or single patches, counted from 0; "
            "else what the head reads",
            "class|mean|ROW COLUMN",
        ),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """A look inside a model: what it attends to and how far away, where it thinks patches are, its first filters.

    vitkit inspect runs/pets photos/        vitkit inspect ViT-B_16.npz cat.jpg --token 7 7 --layer 0 11
    """
    size = None if image is None else image_size(image)
    tokens = _tokens_asked(token)
    if not images:
        raise ConfigError("no pictures named", try_=f"vitkit inspect {run} photos/")

    from vitkit.devices import pick_device
    from vitkit.inspect.album import refuse_others
    from vitkit.inspect.findings import look_inside
    from vitkit.inspect.page import write_page
    from vitkit.inspect.pictures import open_gallery, refuse_among
    from vitkit.inspect.summary import as_json, print_findings
    from vitkit.predict.inputs import refuse_urls
    from vitkit.weights.load import load

    refuse_urls(images)
    folder = out or Path(run) / "inspect"
    if out is None and not Path(run).is_dir():
        folder = Path("inspect")
        for source in images:
            folder = outside(Path(source), folder)
    refuse_among(folder, images)
    refuse_others(folder)
    model = load(run, image=size).to(pick_device(device))
    found = look_inside(
        model,
        open_gallery(model, images),
        layers=layer,
        heads=head,
        tokens=tokens,
        say=lambda what: print(f"looking    {what}", file=sys.stderr),
    )
    files = write_page(found, folder, run)
    if json:
        print_json(as_json(found, files))
    else:
        print_findings(found, files)


def _tokens_asked(words: tuple[str, ...] | None) -> list[Any] | None:
    """ "class", "mean", or numbers in pairs, a row and a column each."""
    if words is None:
        return None
    if words in (("class",), ("mean",)):
        return [words[0]]
    if not words or len(words) % 2 or not all(word.isdecimal() for word in words):
        raise ConfigError(f"--token {' '.join(words)}: class, mean, or the row and column of each patch is needed")
    return [(int(row), int(column)) for row, column in zip(words[::2], words[1::2], strict=True)]
