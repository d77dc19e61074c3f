"""The verbs of models as such: what they cost, and their weights in other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Json, at_least, image_size, option, print_json
from vitkit.errors import ConfigError, SizeError

if TYPE_CHECKING:
    from vitkit.model.config import ModelConfig


def cost(
    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL…")],
    image: Annotated[tuple[int, ...], arg(help="image side, or height and width", metavar="PX")] = (224,),
    classes: Annotated[int, arg(help="classes of the head")] = 1000,
    batch: Annotated[int, arg(help="images per step, for the memory of activations")] = 1,
    precision: Annotated[Literal["bf16", "fp32"], arg(help="of activations")] = "bf16",
    images: Annotated[int | None, option("training images, for the compute of a training run", "N")] = None,
    epochs: Annotated[float | None, option("passes over them; 1 unless said", "N")] = None,
    json: Json = False,
) -> None:
    """What models cost: parameters, multiply-adds, training compute and memory, in closed form.

    vitkit cost B/16 L/16 R50+B/16 R152x2        vitkit cost H/14 --images 303_000_000 --epochs 14
    """
    from vitkit.cost import BYTES
    from vitkit.cost import cost as cost_of
    from vitkit.model.variants import configure

    at_least(1, batch=batch, images=images)
    if epochs is not None and (images is None or not 0 < epochs < float("inf")):
        raise ConfigError(f"--epochs {epochs:g} needs --images, and to be above 0")
    epochs = 1.0 if epochs is None else epochs
    if not models:
        raise ConfigError("no model named", try_="vitkit cost B/16")
    size = image_size(image)
    rows = []
    for name in models:
        try:
            config = configure(name, image=size, classes=classes)
        except SizeError as error:
            raise ConfigError(f"{name}: {error}") from error
        found = cost_of(config)
        row: dict[str, Any] = {
            "model": name,
            "parameters": found.parameters,
            "tokens": _tokens(config),
            "macs": found.macs,
            "activation_bytes": found.activation_bytes(batch, bytes_per_number=BYTES[precision]),
            "state_bytes": found.state_bytes,
        }
        if images is not None:
            row["exaflops"] = found.exaflops(images, epochs)
        rows.append(row)
    if json:
        print_json(
            {
                "image": list(size),
                "classes": classes,
                "batch": batch,
                "precision": precision,
                "images": images,
                "epochs": epochs,
                "models": rows,
            }
        )
    else:
        _print_costs(
            rows,
            f"{size[0]} x {size[1]} px, {classes} classes",
            f"batch {batch}, {precision}",
            training=images is not None,
        )


def convert(
    source: Annotated[Positional[str], arg(metavar="IN", help="a weights file, a folder, a run, or hf:OWNER/NAME")],
    out: Annotated[Positional[Path], arg(metavar="OUT", help="the file (.npz, .safetensors) or folder to write")],
    to: Annotated[Literal["vitkit", "google", "timm", "hf"], arg(help="the format to write")],
    grid: Annotated[
        tuple[int, int] | None, option("rows and columns, where positions are not square", "ROWS COLUMNS")
    ] = None,
    heads: Annotated[int | None, option("attention heads, where the weights do not tell", "N")] = None,
    lossy: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="write even if the format reads it back a little otherwise")
    ] = False,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace OUT if it exists")] = False,
    json: Json = False,
) -> None:
    """Weights from one library's format into another's: Google's npz, timm, Hugging Face, vitkit's own.

    vitkit convert ViT-B_16.npz b16/ --to timm        vitkit convert hf:google/vit-base-patch16-224 b16.npz --to google
    """
    if to == "google" and out.suffix != ".npz":
        raise ConfigError(f"Google's format is one .npz file; {out} is named otherwise.", try_=f"{out}.npz")
    if out.exists() and not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists already; nothing was written.", try_="another name, or --overwrite")

    from vitkit.model.variants import name_of
    from vitkit.weights.load import load
    from vitkit.weights.save import save

    model = load(source, grid=grid, heads=heads)
    save(model, out, format=to, lossy=lossy)
    summary = {
        "in": source,
        "variant": name_of(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "image": list(model.config.image),
        "classes": model.config.classes,
        "out": str(out),
        "to": to,
    }
    if json:
        print_json(summary)
    else:
        height, width = model.config.image
        print(
            f"read     {source}: {summary['variant'] or 'sizes of its own'}, {summary['parameters']:,} parameters, "
            f"{height} x {width} px, {model.config.classes} classes"
        )
        print(f"written  {out} ({to})")


def _tokens(config: ModelConfig) -> int | None:
    from vitkit.model.config import ViTConfig

    return config.tokens if isinstance(config, ViTConfig) else None


def _print_costs(rows: list[dict[str, Any]], title: str, memory: str, *, training: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitkit.text import binary_size

    table = Table(box=None, pad_edge=False)
    columns = {
        "model": "model",
        "parameters": "parameters",
        "tokens": "tokens",
        "macs": "GMACs",
        "activation_bytes": "activations",
        "state_bytes": "state",
        "exaflops": "exaFLOPs",
    }
    shown = [name for name in columns if name in rows[0]]
    for name in shown:
        table.add_column(columns[name], justify="left" if name == "model" else "right", no_wrap=True)
    for row in rows:
        texts = {
            "model": row["model"],
            "parameters": f"{row['parameters']:,}",
            "tokens": str(row["tokens"] or "–"),
            "macs": f"{row['macs'] / 1e9:,.2f}",
            "activation_bytes": binary_size(row["activation_bytes"], 2),
            "state_bytes": binary_size(row["state_bytes"], 2),
            "exaflops": f"{row.get('exaflops', 0):,.4g}",
        }
        table.add_row(*(texts[name] for name in shown))
    console = Console(highlight=False)
    console.print(title)
    console.print(table)
    console.print(f"GMACs: one image forward. activations: {memory}, no checkpointing.")
    console.print("state: fp32 weights, gradients and Adam moments." + " exaFLOPs: the training run." * training)
