"""The verb that measures: how fast a model trains and answers on this machine."""

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
        tuple[int, ...], option("image side, or height and width; the weights' own or 224 unless said", "PX")
    ] = (),
    batch: Annotated[int | None, option("pictures at a time; what suits the device unless said", "N")] = None,
    what: Annotated[
        tuple[Literal["training", "inference", "latency"], ...],
        option("what to measure; all of it unless said", "WHAT…"),
    ] = (),
    device: Device = "auto",
    precision: Annotated[Literal["auto", "bf16", "fp32", "fp8"], arg(help="auto: what the device is fast at")] = "auto",
    compile: Annotated[Literal["auto", "yes", "no"], arg(help="by torch.compile; auto: on a GPU")] = "auto",
    json: Json = False,
) -> None:
    """How fast a model trains and answers here, and how near that is to what the machine can do. All operations of the
    model count, also those of the last block that reach no answer and are left out, beside a large matrix product's.

    vitkit bench B/16        vitkit bench runs/photos --what latency        vitkit bench L/16 --image 384 --batch 64
    """
    at_least(1, batch=batch)
    size = image_size(image) if image else None

    import torch

    from vitkit.bench.ceiling import measure_ceiling
    from vitkit.bench.measure import measure, plan
    from vitkit.bench.work import flops
    from vitkit.compute.inference import numbers_here
    from vitkit.cost import cost
    from vitkit.devices import describe_device, pick_device

    chosen = pick_device(device)
    compiled = compile == "yes" or (compile == "auto" and chosen.type == "cuda")
    subject = _open(model, size)
    rows = plan(subject, chosen, what=what, precision=precision, batch=batch, compiled=compiled)
    ceiling = measure_ceiling(chosen, "bf16" if "bf16" in numbers_here(chosen) else "fp32")
    config, parameters = subject.config, cost(subject.config).parameters
    about = {
        "model": model,
        "image": list(config.image),
        "classes": config.classes,
        "parameters": parameters,
        "flops": {one: flops(config, one) for one in ("training", "inference")},
        "device": describe_device(chosen, torch.get_num_threads()),
        "torch": torch.__version__,
        "ceiling": {"numbers": ceiling.numbers, "side": ceiling.side, "flops_per_second": ceiling.flops},
    }
    if not json:
        _print_about(about, ceiling.words)
    found = []
    for row in rows:
        record = measure(subject, row, chosen).record(ceiling.flops)
        found.append({"what": row.what, "numbers": row.numbers, "compiled": row.compiled, "graph": row.graph, **record})
        if not json:
            _print_row(row.words, found[-1])
    if json:
        print_json({**about, "rows": found})


def _open(model: str, size: tuple[int, int] | None) -> Model:
    from vitkit.bench.work import untrained

    place = Path(model)
    named = model.startswith(("hf:", "/", ".", "~")) or place.suffix  # as files and folders are, and variants never
    if not named and not place.exists():
        return untrained(model, image=size or 224)

    from vitkit.weights.load import load

    found = load(model, image=size)
    if not found.config.classes:
        found.replace_head(1000)
    return found


def _print_about(about: dict[str, Any], ceiling: str) -> None:
    (height, width), flops = about["image"], about["flops"]["inference"] / 1e9
    print(
        f"model    {about['model']} at {height} x {width} px, {about['parameters'] / 1e6:,.1f}M parameters, "
        f"{f'{flops:,.1f}' if flops >= 1 else f'{flops:.3g}'} GFLOPs a picture"
    )
    print(f"device   {about['device']}, torch {about['torch']}")
    print(f"ceiling  {ceiling}")
    print("\n" + COLUMNS.format("", "numbers", "batch", "pictures/s", "ms", "ceiling", "peak", "compile"), flush=True)


def _print_row(words: str, row: dict[str, Any]) -> None:
    rate, compiling, peak = row["pictures_per_second"], row["compile_seconds"], row["peak_bytes"]
    print(
        COLUMNS.format(
            row["what"],
            words,
            f"{row['batch']:,}",
            f"{rate:,.{0 if rate >= 100 else 1}f}",
            f"{row['milliseconds']:,.2f}",
            f"{row['share_of_ceiling']:.2f}",
            f"{peak / 2**30:.1f} GiB" if peak is not None else "–",
            f"{compiling:.0f} s" if compiling is not None else "–",
        ),
        flush=True,
    )
