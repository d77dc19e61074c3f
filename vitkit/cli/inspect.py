"""The verb `inspect`: show attention, embeddings and filters of a model."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from vitkit.cli.options import (
    Device,
    ImageSize,
    Json,
    Run,
    failures_as_json,
    image_size,
    option,
    outside_data,
    print_json,
)
from vitkit.errors import ConfigError
from vitkit.messages import progress_line
from vitkit.weights.bundled import local_path


def inspect(
    run: Run,
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
    if not images:
        raise ConfigError("no images named", try_=f"vitkit inspect {run} photos/")

    from vitkit.devices import pick_device
    from vitkit.inspect.image_set import open_images, refuse_output_among_images
    from vitkit.inspect.inspection import inspect_model
    from vitkit.inspect.output_folder import refuse_foreign_files
    from vitkit.inspect.page import write_page
    from vitkit.inspect.summary import as_json, print_summary
    from vitkit.predict.inputs import refuse_urls
    from vitkit.weights.load import load

    refuse_urls(images)
    path = local_path(run)
    in_run_folder = path is not None and path.is_dir()
    folder = out or (path / "inspect" if path and in_run_folder else Path("inspect"))
    if out is None and not in_run_folder:
        for source in images:
            folder = outside_data(Path(source), folder)
    refuse_output_among_images(folder, images)
    refuse_foreign_files(folder)
    model = load(run, image=size).to(pick_device(device))
    inspection = inspect_model(
        model,
        open_images(model, images),
        layers=layer,
        heads=head,
        tokens=tokens,
        log=lambda what: progress_line("inspecting", f"inspecting {what}"),
    )
    files = write_page(inspection, folder, run)
    if json:
        skipped = failures_as_json(inspection.image_set.skipped)
        print_json("inspect", {"run": run, **as_json(inspection, files), **skipped})
    else:
        print_summary(inspection, files)


def _parse_tokens(tokens: tuple[str, ...] | None) -> list[Any] | None:
    """Parse "class", "mean", or the row and column of each patch."""
    if tokens is None:
        return None
    if tokens in (("class",), ("mean",)):
        return [tokens[0]]
    if not tokens or len(tokens) % 2 or not all(token.isdecimal() for token in tokens):
        raise ConfigError(f"--token {' '.join(tokens)}: class, mean, or the row and column of each patch is needed")
    return [(int(row), int(column)) for row, column in zip(tokens[::2], tokens[1::2], strict=True)]
