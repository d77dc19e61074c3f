"""The verb `bench`: measure the speed of training and inference on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.model_options import ModelSettings, image_sizes, require_models
from vitkit.cli.options import Device, Json, at_least, option, print_json
from vitkit.errors import ConfigError
from vitkit.weights.bundled import local_path

if TYPE_CHECKING:
    import torch

    from vitkit.bench.measure import Row
    from vitkit.model.build import Model

COLUMNS = "{:<9}  {:<15} {:>5} {:>10} {:>9} {:>7} {:>9} {:>7}"
BATCH_COLUMNS = "{:<9}  {:<15} {:>13} {:>10} {:>10}"


def bench(
    models: Annotated[
        Positional[tuple[str, ...]],
        arg(
            metavar="MODEL…",
            help="names such as B/16, also with options of their own, Ti/8,axial=true,pool=gap; run folders or weights",
            help_behavior_hint="",
        ),
    ] = (),
    image: Annotated[
        tuple[tuple[int, ...], ...],
        tyro.conf.UseAppendAction,
        option(
            "image side, or height and width; once more for each further size; default: the weights' own, or 224", "PX"
        ),
    ] = (),
    set_: ModelSettings = (),
    batch: Annotated[int | None, option("images at a time; default: what suits the device", "N")] = None,
    largest_batch: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="find the largest batch that fits, by trying, beside its estimate; on a CPU, the estimate alone"),
    ] = False,
    what: Annotated[
        tuple[Literal["training", "inference", "latency"], ...],
        option("what to measure; default: all of it", "WHAT…"),
    ] = (),
    device: Device = "auto",
    precision: Annotated[
        Literal["auto", "bf16", "fp32", "fp8"], arg(help="auto: the fastest that the device supports")
    ] = "auto",
    compile: Annotated[
        Literal["auto", "yes", "no"], arg(help="with torch.compile; auto: on a GPU, to measure speed")
    ] = "auto",
    json: Json = False,
) -> None:
    """Measure the speed of training and inference, and its share of this machine's ceiling, a large matrix product.
    All operations of the model count, including those of the last block that no output depends on and that are skipped.

    vitkit bench B/16        vitkit bench runs/photos --what latency        vitkit bench L/16 --image 384 --batch 64

    vitkit bench B/16 L/16 --image 224 --image 384 --largest-batch
    """
    at_least(1, batch=batch)
    require_models("bench", models)
    sizes: Sequence[tuple[int, int] | None] = image_sizes(image) or [None]
    if largest_batch and (batch is not None or "latency" in what):
        raise ConfigError("--largest-batch finds the batch, of training and of inference", try_="without --batch")

    import torch

    from vitkit.bench.measure import plan
    from vitkit.compute.inference import supported_precisions
    from vitkit.devices import describe_device, pick_device

    chosen = pick_device(device)
    compiled = compile == "yes" or (compile == "auto" and chosen.type == "cuda" and not largest_batch)
    if largest_batch:
        what = what or (("training", "inference") if precision != "fp8" else ("inference",))
    settings = sum(set_, ())
    built = [(name, _build_or_load(name, size, settings)) for name in models for size in sizes]
    rows = [
        plan(
            model,
            chosen,
            what=what,
            precision=precision,
            batch=1 if largest_batch else batch,
            compiled=compiled,
        )
        for _, model in built
    ]
    abouts = [_about(name, model) for name, model in built]
    machine: dict[str, Any] = {"device": describe_device(chosen, torch.get_num_threads()), "torch": torch.__version__}
    if not json:
        if len(built) == 1:
            print(_describe(abouts[0]))
        if settings:
            print(f"set      {' '.join(settings)}")
        print(f"device   {machine['device']}, torch {machine['torch']}")
    ceiling: float | None = None
    if not largest_batch:
        from vitkit.bench.ceiling import measure_ceiling

        peak = measure_ceiling(chosen, "bf16" if "bf16" in supported_precisions(chosen) else "fp32")
        machine["ceiling"] = {"precision": peak.precision, "side": peak.side, "flops_per_second": peak.flops}
        ceiling = peak.flops
        if not json:
            print(f"ceiling  {peak.description}")
    results = []
    for (_, model), about, planned in zip(built, abouts, rows, strict=True):
        if not json:
            print("\n" + (f"{_describe(about)}\n" if len(built) > 1 else "") + _heads(largest_batch), flush=True)
        measured = [_measure(model, row, chosen, ceiling, quiet=json) for row in planned]
        results.append({**about, "rows": measured})
    if json:
        # of one model, its keys stand beside those of the machine, too, as in version 0.1
        print_json(
            "bench", {**(results[0] if len(results) == 1 else {}), "set": settings, **machine, "models": results}
        )


def _measure(model: Model, row: Row, device: torch.device, ceiling: float | None, *, quiet: bool) -> dict[str, Any]:
    """Measure a row, print it and return its record; without a ceiling, the largest batch is what is measured."""
    from vitkit.bench.largest_batch import MOST, largest_batch
    from vitkit.bench.measure import measure

    if ceiling is None:
        found = largest_batch(model, row, device)
        if not quiet:
            tried = "not tried" if found.largest_batch is None else f"{found.largest_batch:,}"
            memory = f"{found.memory_bytes / 2**30:.1f} GiB"
            estimate = f"{found.estimate:,}" + " or more" * (found.estimate >= MOST)
            print(BATCH_COLUMNS.format(row.what, row.description, tried, estimate, memory), flush=True)
        return found.record()
    record = measure(model, row, device).record(ceiling)
    setup = {"what": row.what, "precision": row.precision, "compiled": row.compiled, "graph": row.graph}
    if not quiet:
        _print_row(row.description, {**setup, **record})
    return {**setup, **record}


def _build_or_load(model: str, size: tuple[int, int] | None, settings: tuple[str, ...]) -> Model:
    from vitkit.bench.work import with_random_logits
    from vitkit.config.model_options import configure_variant

    path, (name, *_) = local_path(model), model.split(",")
    # no variant is named like a path; the value of an option may have a dot: mu/4,dropout=0.1
    is_variant = not Path(name).suffix and not name.startswith(("/", ".", "~"))
    if path and is_variant and not path.exists():
        return with_random_logits(configure_variant(model, settings, size, 1000))
    if settings:
        raise ConfigError(f"--set is for models without weights, and {model} has some", try_="the name of a model")

    from vitkit.weights.load import load

    loaded = load(model, image=size)
    if not loaded.config.classes:
        loaded.replace_head(1000)
    return loaded


def _about(name: str, model: Model) -> dict[str, Any]:
    from vitkit.bench.work import flops
    from vitkit.cost import cost

    config = model.config
    return {
        "model": name,
        "image": list(config.image),
        "classes": config.classes,
        "parameters": cost(config).parameters,
        "flops": {mode: flops(config, mode) for mode in ("training", "inference")},
    }


def _describe(about: dict[str, Any]) -> str:
    (height, width), flops = about["image"], about["flops"]["inference"] / 1e9
    return (
        f"model    {about['model']} at {height} x {width} px, {about['parameters'] / 1e6:,.1f}M parameters, "
        f"{f'{flops:,.1f}' if flops >= 1 else f'{flops:.3g}'} GFLOPs an image"
    )


def _heads(largest_batch: bool) -> str:
    if largest_batch:
        return BATCH_COLUMNS.format("", "precision", "largest batch", "estimate", "memory")
    return COLUMNS.format("", "precision", "batch", "images/s", "ms", "ceiling", "peak", "compile")


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
