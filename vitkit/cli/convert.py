"""The verb `convert`: write weights in the format of another library."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Json, option, print_json
from vitkit.errors import ConfigError
from vitkit.messages import print_line


def convert(
    source: Annotated[
        Positional[str], arg(metavar="IN", help="a weights file, a folder, a run, hf:OWNER/NAME or ti16")
    ],
    out: Annotated[Positional[Path], arg(metavar="OUT", help="the file (.npz, .safetensors) or folder to write")],
    to: Annotated[Literal["vitkit", "google", "timm", "hf"], arg(help="the format to write")],
    grid: Annotated[
        tuple[int, int] | None, option("rows and columns, where the position grid is not square", "ROWS COLUMNS")
    ] = None,
    heads: Annotated[int | None, option("attention heads, where the weights do not determine them", "N")] = None,
    gelu: Annotated[
        Literal["quick", "exact", "tanh"] | None,
        option("the GELU, where CLIP's weights come without configuration", "NAME"),
    ] = None,
    text_embeddings: Annotated[
        Path | None, option("names and vectors that become the head, for zero-shot classification", "FILE.npz")
    ] = None,
    lossy: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="write even if the format cannot hold every setting exactly")
    ] = False,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace OUT if it exists")] = False,
    json: Json = False,
) -> None:
    """Convert weights between formats: Google's npz, timm, Hugging Face, vitkit's own.

    vitkit convert ViT-B_16.npz b16/ --to timm        vitkit convert hf:google/vit-base-patch16-224 b16.npz --to google
    """
    if to == "google" and out.suffix != ".npz":
        raise ConfigError(f"Google's format is one .npz file; {out} does not end in .npz.", try_=f"{out}.npz")
    if out.exists() and not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists already; nothing was written.", try_="another name, or --overwrite")

    from vitkit.model.variants import name_of
    from vitkit.weights.load import load
    from vitkit.weights.save import save

    model = load(source, grid=grid, heads=heads, gelu=gelu, text_embeddings=text_embeddings)
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
        print_json("convert", summary)
    else:
        height, width = model.config.image
        print_line(
            f"read     {source}: {summary['variant'] or 'custom sizes'}, {summary['parameters']:,} parameters, "
            f"{height} x {width} px, {model.config.classes} classes"
        )
        print_line(f"written  {out} ({to})")
