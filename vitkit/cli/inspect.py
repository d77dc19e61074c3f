"""The verb `inspect`: show attention, embeddings and filters of a model."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from vitkit.cli.options import Device, ImageSize, Json, failures_as_json, image_size, option, print_json
from vitkit.cli.options import Run as RunName
from vitkit.errors import ConfigError
from vitkit.messages import progress_line
from vitkit.storage.urls import redacted


def inspect(
    run: RunName,
    images: Annotated[Positional[tuple[str, ...]], option("images, or folders of them", "IMAGES…")],
    out: Annotated[
        Path | None, option("the folder to write; default: inspect/ in the run folder, or here", "DIR")
    ] = None,
    image: ImageSize = None,
    layer: Annotated[
        tuple[int, ...] | None,
        option("layers whose attention is shown, counted from 0; default: all, or 12 evenly spaced ones", "N"),
    ] = None,
    head: Annotated[tuple[int, ...] | None, option("heads, counted from 0; default: all", "N")] = None,
    token: Annotated[
        tuple[str, ...] | None,
        option(
            "whose attention is shown: the class token, the mean of all patches, or single patches, counted from 0; "
            "default: what the head reads",
            "class|mean|ROW COLUMN",
        ),
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Look inside a model: attention rollout and distance, position embeddings, its first filters.

    vitkit inspect runs/pets photos/        vitkit inspect ViT-B_16.npz cat.jpg --token 7 7 --layer 0 11
    """
    size = None if image is None else image_size(image)
    tokens = _parse_tokens(token)

    from vitkit.inspect.summary import print_summary
    from vitkit.python_api import Run

    page = Run(run, image=size, device=device, log=progress_line).inspect(
        images, out, layers=layer, heads=head, tokens=tokens
    )
    if json:
        skipped = failures_as_json(page.inspection.image_set.skipped)
        print_json("inspect", {"run": redacted(run), **page.record(), **skipped})
    else:
        print_summary(page.inspection, page.files)


def _parse_tokens(tokens: tuple[str, ...] | None) -> list[Any] | None:
    """Parse "class", "mean", or the row and column of each patch."""
    if tokens is None:
        return None
    if tokens in (("class",), ("mean",)):
        return [tokens[0]]
    if not tokens or len(tokens) % 2 or not all(token.isdecimal() for token in tokens):
        raise ConfigError(f"--token {' '.join(tokens)}: class, mean, or the row and column of each patch is needed")
    return [(int(row), int(column)) for row, column in zip(tokens[::2], tokens[1::2], strict=True)]
