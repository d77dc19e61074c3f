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
            "default: what the head reads, of a causal iGPT the pixel in the middle, too",
            "class|mean|ROW COLUMN",
        ),
    ] = None,
    samples: Annotated[int | None, option("iGPT: completions of each image's lower half; default: 4", "N")] = None,
    temperature: Annotated[
        float | None, option("iGPT: of the colours that are drawn; 0: the likeliest; default: 1", "T")
    ] = None,
    top_k: Annotated[int | None, option("iGPT: draw from so many likeliest colours; default: all", "K")] = None,
    seed: Annotated[int | None, option("iGPT: of the draws; default: 0", "N")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Look inside a model: attention rollout and distance, position embeddings, its first filters; iGPT's completions.

    vitkit inspect runs/pets photos/        vitkit inspect ViT-B_16.npz cat.jpg --token 7 7 --layer 0 11
    """
    size = None if image is None else image_size(image)
    tokens = _parse_tokens(token)
    drawn = {"samples": samples, "temperature": temperature, "top_k": top_k, "seed": seed}
    sampling = {name: value for name, value in drawn.items() if value is not None}

    from vitkit.inspect.summary import print_summary
    from vitkit.python_api import Run

    page = Run(run, image=size, device=device, log=progress_line).inspect(
        images, out, layers=layer, heads=head, tokens=tokens, sampling=sampling or None
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
