"""The verb `probe`: measure the frozen features of a model."""

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from vitkit.cli import options
from vitkit.cli.preprocessing_options import NO_OVERRIDES, Overrides
from vitkit.errors import ConfigError, Interrupted


def probe(
    run: options.Run,
    data: options.Data,
    method: Annotated[
        Literal["fewshot", "knn", "linear"],
        arg(help="the paper's least squares on a few images of each class; nearest neighbours; a linear layer"),
    ] = "knn",
    shots: Annotated[
        tuple[int, ...] | None, options.option("fewshot: images of each class; default: 1 5 10 25", "N")
    ] = None,
    seeds: Annotated[int | None, options.option("fewshot: random draws of them; default: 3", "N")] = None,
    neighbours: Annotated[int | None, options.option("knn: images that vote; default: 20", "N")] = None,
    layer: Annotated[
        tuple[str, ...] | None,
        options.option("linear: probe each of these layers, counted from 0, and draw the curve over depth", "all|N"),
    ] = None,
    out: Annotated[
        Path | None,
        options.option("--layer: the curve's file; default: layers.png in the run folder, or here", "FILE.png|svg"),
    ] = None,
    image: options.ImageSize = None,
    preprocessing: Overrides = NO_OVERRIDES,
    label: options.Label = None,
    features: Annotated[
        Path | None, options.option("write features, labels, keys and class names to this file", "FILE.npz")
    ] = None,
    batch: options.InferenceBatch = None,
    device: options.Device = "auto",
    precision: options.InferencePrecision = "fp32",
    workers: options.Workers = None,
    max_failed: options.MaxFailed = 0.01,
    json: options.Json = False,
) -> None:
    """Probe the frozen features of a model on new data: few-shot, nearest neighbours, a linear probe, of every layer.

    vitkit probe runs/pre photos/ --method linear        vitkit probe ViT-B_16.npz photos/ --method fewshot --shots 5
    """
    options.at_least(1, batch=batch, neighbours=neighbours, seeds=seeds)
    options.at_least(0, workers=workers)
    options.check_max_failed(max_failed)
    if shots is not None and (not shots or min(shots) < 1):
        raise ConfigError(f"--shots {' '.join(map(str, shots))}: 1 or more is needed")
    if features is not None and (features.suffix != ".npz" or not features.parent.is_dir()):
        raise ConfigError(f"--features {features}: the name of a .npz file in a folder that exists is needed")
    layers = _parse_layers(layer)
    if out is not None and (layers is None or out.suffix not in (".png", ".svg") or not out.parent.is_dir()):
        needed = "--layer all, whose curve it is" if layers is None else "a .png or .svg in a folder that exists"
        raise ConfigError(f"--out {out}: {needed} is needed")
    size = None if image is None else options.image_size(image)
    preprocessing.check()

    from dataclasses import asdict

    from vitkit.evaluate.printing import print_probe
    from vitkit.messages import print_line
    from vitkit.progress import show_progress
    from vitkit.python_api import Run

    asked = Run(run, image=size, preprocessing=asdict(preprocessing), device=device, progress=show_progress)
    try:
        with options.advise_max_failed():
            result = asked.probe(
                data,
                method,
                shots=shots,
                seeds=seeds,
                neighbours=neighbours,
                layers=layers,
                label=label,
                features=features,
                precision=precision,
                batch=batch,
                workers=workers,
                max_failed=max_failed,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            "the features computed so far are cached; the same command continues from there", 130
        ) from None
    curve = None
    if len(result.layers) > 1:
        from vitkit.evaluate.layer_probe import save_curve

        curve = save_curve(result, out or _default_curve(run))
    if json:
        content = {**asdict(result), **options.failures_as_json(result.left_out)}
        options.print_json("probe", {**content, **({"curve": str(curve)} if curve else {})})
        return
    print_probe(result)
    if curve is not None:
        print_line(f"{'curve':<11} {curve}")


def _parse_layers(layer: tuple[str, ...] | None) -> Any:
    """Parse "all", or the numbers of layers."""
    if layer is None or layer == ("all",):
        return layer and "all"
    if not layer or not all(number.isdecimal() for number in layer):
        raise ConfigError(f"--layer {' '.join(layer)} must be all, or layer numbers such as 0 3")
    return [int(number) for number in layer]


def _default_curve(run: str) -> Path:
    """Return layers.png in the run folder; for other weights, in the current directory."""
    from vitkit.weights.bundled import local_path

    path = local_path(run)
    return (path if path is not None and path.is_dir() else Path()) / "layers.png"
