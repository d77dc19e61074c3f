"""The verb `cost`: compute parameters, multiply-adds, memory and training compute of models."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import arg

from vitkit.cli.model_options import ImageSizes, Models, ModelSettings, image_sizes, require_models
from vitkit.cli.options import Json, at_least, option, print_json
from vitkit.errors import ConfigError

COLUMNS = {
    "model": "model",
    "image": "px",
    "parameters": "parameters",
    "tokens": "tokens",
    "macs": "GMACs",
    "activation_bytes": "activations",
    "state_bytes": "state",
    "largest_batch": "batch",
    "exaflops": "exaFLOPs",
}

WIDEST = 1000  # columns: a terminal may wrap lines, but no cell is cut


def cost(
    models: Models = (),
    image: ImageSizes = (),
    set_: ModelSettings = (),
    classes: Annotated[int, arg(help="classes of the head")] = 1000,
    batch: Annotated[int, arg(help="images per step, for the memory of activations")] = 1,
    precision: Annotated[Literal["bf16", "fp32"], arg(help="of activations")] = "bf16",
    memory: Annotated[float | None, option("GiB of a device, for the largest batch that fits", "GIB")] = None,
    images: Annotated[int | None, option("training images, for the compute of a training run", "N")] = None,
    epochs: Annotated[float | None, option("passes over them; default: 1", "N")] = None,
    table6: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="the paper's Table 6, its pre-training compute, beside ours")
    ] = False,
    json: Json = False,
) -> None:
    """Compute what models cost, in closed form: parameters, multiply-adds, training compute and memory.

    vitkit cost B/16 L/16 R50+B/16 R152x2        vitkit cost H/14 --images 303_000_000 --epochs 14

    vitkit cost Ti/8 Ti/8,axial=true,pool=gap Ti/8,depth=24 --image 64 --image 96        vitkit cost --table6
    """
    if table6:
        if image or set_ or any(value is not None for value in (memory, images, epochs)):
            raise ConfigError("--table6 is the paper's: models at 224 px on its own images", try_="only --json with it")
        _table6(models, json)
        return
    at_least(1, batch=batch, images=images)
    if memory is not None and not 0 < memory < float("inf"):
        raise ConfigError(f"--memory {memory:g}: more than 0 GiB are needed")
    if epochs is not None and (images is None or not 0 < epochs < float("inf")):
        raise ConfigError(f"--epochs {epochs:g} needs --images, and must be above 0")
    epochs = 1.0 if epochs is None else epochs
    require_models("cost", models)
    sizes: Sequence[tuple[int, int] | None] = image_sizes(image) or [None]
    settings = sum(set_, ())
    rows = [
        _row(name, size, settings, classes, batch, precision, memory, images, epochs)
        for name in models
        for size in sizes
    ]
    if json:
        common = rows[0]["image"] if all(row["image"] == rows[0]["image"] for row in rows) else None
        setup: dict[str, Any] = {"image": common, "set": settings}
        setup |= {
            "classes": classes,
            "batch": batch,
            "precision": precision,
            "memory": memory,
            "images": images,
            "epochs": epochs,
        }
        print_json("cost", {**setup, "models": rows})
    else:
        several = any(row["image"] != rows[0]["image"] for row in rows)
        shown = "" if several else "{} x {} px, ".format(*rows[0]["image"])
        title = ", ".join([f"{shown}{classes} classes", *settings])
        _print_costs(rows, title, f"batch {batch}, {precision}", several=several)


def _row(
    name: str,
    size: tuple[int, int] | None,
    settings: tuple[str, ...],
    classes: int,
    batch: int,
    precision: str,
    memory: float | None,
    images: int | None,
    epochs: float,
) -> dict[str, Any]:
    from vitkit.config.model_options import configure_variant
    from vitkit.cost import BYTES
    from vitkit.cost import cost as cost_of
    from vitkit.model.config import TokenConfig

    config = configure_variant(name, settings, size, classes)
    result = cost_of(config)
    row: dict[str, Any] = {
        "model": name,
        "image": list(config.image),
        "parameters": result.parameters,
        "tokens": config.tokens if isinstance(config, TokenConfig) else None,
        "macs": result.macs,
        "padding_macs": result.padding_macs,
        "activation_bytes": result.activation_bytes(batch, bytes_per_number=BYTES[precision]),
        "state_bytes": result.state_bytes,
    }
    if memory is not None:
        row["largest_batch"] = result.largest_batch(memory * 2**30, bytes_per_number=BYTES[precision])
    if images is not None:
        row["exaflops"] = result.exaflops(images, epochs)
    return row


def _print_costs(rows: list[dict[str, Any]], title: str, memory: str, *, several: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitkit.messages import print_line
    from vitkit.text import binary_size

    table = Table(box=None, pad_edge=False)
    shown = [name for name in COLUMNS if name in rows[0] and (several or name != "image")]
    for name in shown:
        table.add_column(COLUMNS[name], justify="left" if name == "model" else "right", no_wrap=True)
    for row in rows:
        height, width = row["image"]
        texts = {
            "model": row["model"],
            "image": f"{height}" if height == width else f"{height} x {width}",
            "parameters": f"{row['parameters']:,}",
            "tokens": str(row["tokens"] or "–"),
            "macs": f"{row['macs'] / 1e9:,.2f}",
            "activation_bytes": binary_size(row["activation_bytes"], 2),
            "state_bytes": binary_size(row["state_bytes"], 2),
            "largest_batch": f"{row.get('largest_batch', 0):,}",
            "exaflops": f"{row.get('exaflops', 0):,.4g}",
        }
        table.add_row(*(texts[name] for name in shown))
    print_line(title)
    Console(highlight=False, width=WIDEST).print(table)
    notes = ["GMACs: one image forward, products with padding zeros included"]
    notes += [f"activations: {memory}, no checkpointing", "state: fp32 weights, gradients and Adam moments"]
    notes += ["batch: the largest training step that fits"] * ("largest_batch" in rows[0])
    notes += ["exaFLOPs: the training run"] * ("exaflops" in rows[0])
    for note in notes:
        print_line(note)


def _table6(models: tuple[str, ...], json: bool) -> None:
    from dataclasses import asdict

    from vitkit.table6 import JFT_IMAGES, compare

    rows = [row for row in compare() if not models or row.model in models]
    if not rows:
        raise ConfigError(f"Table 6 has no {' or '.join(models)}", try_="vitkit cost --table6")
    if json:
        content = [{**asdict(row), "ratio": row.ratio, "ratio_with_padding": row.ratio_with_padding} for row in rows]
        print_json("cost", {"images": JFT_IMAGES, "table6": content})
        return

    from rich.console import Console
    from rich.table import Table

    from vitkit.messages import print_line

    table = Table(box=None, pad_edge=False)
    for name in ("model", "epochs", "Table 6", "ours", "ratio", "with padding", "ratio"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for row in rows:
        ours, padded = (f"{value:,.1f}" for value in (row.exaflops, row.with_padding))
        ratios = f"{row.ratio:.3f}", f"{row.ratio_with_padding:.3f}"
        mark = "*" if row.remark else ""
        table.add_row(row.model + mark, str(row.epochs), f"{row.paper:,}", ours, ratios[0], padded, ratios[1])
    print_line("Pre-training on 303 million images at 224 px, in exaFLOPs:")
    print_line("six for each multiply-add of a forward pass")
    Console(highlight=False, width=WIDEST).print(table)
    print_line("ours: without products with the zeros that pad convolutions, as XLA counts")
    print_line("with padding: all products, as torch's FlopCounterMode counts")
    for row in rows:
        if row.remark:
            print_line(f"* {row.model}: {row.remark}")
