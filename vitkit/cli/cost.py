"""The verb `cost`: compute parameters, multiply-adds, memory and training compute of models."""

from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitkit.cli.options import Json, at_least, image_size, option, print_json
from vitkit.errors import ConfigError, SizeError


def cost(
    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL…")],
    image: Annotated[tuple[int, ...], arg(help="image side, or height and width", metavar="PX")] = (224,),
    classes: Annotated[int, arg(help="classes of the head")] = 1000,
    batch: Annotated[int, arg(help="images per step, for the memory of activations")] = 1,
    precision: Annotated[Literal["bf16", "fp32"], arg(help="of activations")] = "bf16",
    images: Annotated[int | None, option("training images, for the compute of a training run", "N")] = None,
    epochs: Annotated[float | None, option("passes over them; default: 1", "N")] = None,
    json: Json = False,
) -> None:
    """Compute what models cost, in closed form: parameters, multiply-adds, training compute and memory.

    vitkit cost B/16 L/16 R50+B/16 R152x2        vitkit cost H/14 --images 303_000_000 --epochs 14
    """
    from vitkit.cost import BYTES
    from vitkit.cost import cost as cost_of
    from vitkit.model.config import ViTConfig
    from vitkit.model.variants import configure

    at_least(1, batch=batch, images=images)
    if epochs is not None and (images is None or not 0 < epochs < float("inf")):
        raise ConfigError(f"--epochs {epochs:g} needs --images, and must be above 0")
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
        result = cost_of(config)
        row: dict[str, Any] = {
            "model": name,
            "parameters": result.parameters,
            "tokens": config.tokens if isinstance(config, ViTConfig) else None,
            "macs": result.macs,
            "activation_bytes": result.activation_bytes(batch, bytes_per_number=BYTES[precision]),
            "state_bytes": result.state_bytes,
        }
        if images is not None:
            row["exaflops"] = result.exaflops(images, epochs)
        rows.append(row)
    if json:
        setup = {"image": list(size), "classes": classes, "batch": batch, "precision": precision}
        print_json("cost", {**setup, "images": images, "epochs": epochs, "models": rows})
    else:
        title = f"{size[0]} x {size[1]} px, {classes} classes"
        _print_costs(rows, title, f"batch {batch}, {precision}", training=images is not None)


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
