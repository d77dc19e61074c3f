"""The verb `bench`: measure the speed of training and inference on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitkit.cli.options import Device, Json, at_least, image_size, option, print_json

if TYPE_CHECKING:
    from vitkit.model.build import Model

COLUMNS = "{:<9}  {:<15} {:>5} {:>10} {:>9} {:>7} {:>9} {:>7}"


def bench(
    model: Annotated[Positional[str], arg(metavar="MODEL", help="a name such as B/16, or a run folder or weights")],
    image: Annotated[
        tuple[int, ...], option("image side, or height and width; default: the weights' own, or 224", "PX")
    ] = (),
    batch: Annotated[int | None, option("images at a time; default: what suits the device", "N")] = None,
    what: Annotated[
        tuple[Literal["training", "inference", "latency"], ...],
        option("what to measure; default: all of it", "WHAT…"),
    ] = (),
    device: Device = "auto",
    precision: Annotated[
        Literal["auto", "bf16", "fp32", "fp8"], arg(help="auto: the fastest that the device supports")
    ] = "auto",
    compile: Annotated[Literal["auto", "yes", "no"], arg(help="with torch.compile; auto: on a GPU")] = "auto",
    json: Json = False,
) -> None:
    """Measure the speed of training and inference, and its share of this machine's ceiling, a large matrix product.
    All operations of the model count, including those of the last block that no output depends on and that are skipped.

    vitkit bench B/16        vitkit bench runs/photos --what latency        vitkit bench L/16 --image 384 --batch 64
    """
    at_least(1, batch=batch)
    size = image_size(image) if image else None

    import torch

    from vitkit.bench.ceiling import measure_ceiling
    from vitkit.bench.measure import measure, plan
    from vitkit.bench.work import flops
    from vitkit.compute.inference import supported_precisions
    from vitkit.cost import cost
    from vitkit.devices import describe_device, pick_device

    chosen = pick_device(device)
    compiled = compile == "yes" or (compile == "auto" and chosen.type == "cuda")
    built = _build_or_load(model, size)
    rows = plan(built, chosen, what=what, precision=precision, batch=batch, compiled=compiled)
    ceiling = measure_ceiling(chosen, "bf16" if "bf16" in supported_precisions(chosen) else "fp32")
    config, parameters = built.config, cost(built.config).parameters
    about = {
        "model": model,
        "image": list(config.image),
        "classes": config.classes,
        "parameters": parameters,
        "flops": {mode: flops(config, mode) for mode in ("training", "inference")},
        "device": describe_device(chosen, torch.get_num_threads()),
        "torch": torch.__version__,
        "ceiling": {"precision": ceiling.precision, "side": ceiling.side, "flops_per_second": ceiling.flops},
    }
    if not json:
        _print_about(about, ceiling.description)
    results = []
    for row in rows:
        record = measure(built, row, chosen).record(ceiling.flops)
        setup = {"what": row.what, "precision": row.precision, "compiled": row.compiled, "graph": row.graph}
        results.append({**setup, **record})
        if not json:
            _print_row(row.description, results[-1])
    if json:
        print_json("bench", {**about, "rows": results})


def _build_or_load(model: str, size: tuple[int, int] | None) -> Model:
    from vitkit.bench.work import untrained_model

    path = Path(model)
    is_path = model.startswith(("hf:", "/", ".", "~")) or path.suffix  # no variant is named like this
    if not is_path and not path.exists():
        return untrained_model(model, image=size or 224)

    from vitkit.weights.load import load

    loaded = load(model, image=size)
    if not loaded.config.classes:
        loaded.replace_head(1000)
    return loaded


def _print_about(about: dict[str, Any], ceiling: str) -> None:
    (height, width), flops = about["image"], about["flops"]["inference"] / 1e9
    print(
        f"model    {about['model']} at {height} x {width} px, {about['parameters'] / 1e6:,.1f}M parameters, "
        f"{f'{flops:,.1f}' if flops >= 1 else f'{flops:.3g}'} GFLOPs an image"
    )
    print(f"device   {about['device']}, torch {about['torch']}")
    print(f"ceiling  {ceiling}")
    print("\n" + COLUMNS.format("", "precision", "batch", "images/s", "ms", "ceiling", "peak", "compile"), flush=True)


def _print_row(description: str, row: dict[str, Any]) -> None:
    rate, compiling, peak = row["images_per_second"], row["compile_seconds"], row["peak_bytes"]
    print(
        COLUMNS.format(
            row["what"],
            description,
            f"{row['batch']:,}",
            f"{rate:,.{0 if rate >= 100 else 1}f}",
            f"{row['milliseconds']:,.2f}",
            f"{row['share_of_ceiling']:.2f}",
            f"{peak / 2**30:.1f} GiB" if peak is not None else "–",
            f"{compiling:.0f} s" if compiling is not None else "–",
        ),
        flush=True,
    )
