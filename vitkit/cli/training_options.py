"""The verbs that train: fit, pretrain, resume, and the demo that shows them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Json, Label, image_size, option, print_json
from vitkit.errors import ConfigError

Data = Annotated[Positional[str | None], option("a folder, .zip, manifest, shards, arrays, hf:NAME, fashion", "DATA")]
Model = Annotated[str | None, option("its name, such as Ti/16, B/16, R50+B/16, R50x1", "NAME")]
Image = Annotated[tuple[int, ...] | None, option("image side, or height and width", "PX")]
Steps = Annotated[int | None, option("length of the run", "N")]
Epochs = Annotated[float | None, option("length of the run in passes over the pictures", "N")]
Batch = Annotated[int | None, option("pictures per step, over all processes", "N")]
Rate = Annotated[str | None, option("learning rate; auto: the best of the recipe's on a dev split", "RATE|auto")]
Recipe = Annotated[str | None, option("settings by name, such as pets_transfer; else by the data's size", "NAME")]
Out = Annotated[Path | None, option("the run folder to make; else a new one under runs/", "DIR")]
File = Annotated[Path | None, option("settings in TOML; of a run folder, its config.toml", "FILE")]
Set = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    arg(name="set", help="any other setting, such as schedule.warmup=100", metavar="KEY=VALUE…", help_behavior_hint=""),
]
Seed = Annotated[int | None, option("of everything random; 0 unless said", "N")]
Device = Annotated[str | None, option("auto, cuda, cuda:1, cpu or mps", "NAME")]
Precision = Annotated[Literal["auto", "bf16", "fp32"] | None, option("of the arithmetic", "auto|bf16|fp32")]
Workers = Annotated[int | None, option("processes that read pictures", "N")]
Track = Annotated[
    tuple[tuple[Literal["tensorboard", "wandb"], ...], ...],
    tyro.conf.UseAppendAction,
    option("also log there", "tensorboard|wandb"),
]


def fit(
    data: Data = None,
    *,
    model: Model = None,
    weights: Annotated[
        str,
        option("where to start: the model's public weights unless said; none: from nothing", "hf:OWNER/NAME|PATH|none"),
    ] = "",
    image: Image = None,
    steps: Steps = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    recipe: Recipe = None,
    out: Out = None,
    config: File = None,
    set_: Set = (),
    label: Label = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    workers: Workers = None,
    track: Track = (),
    json: Json = False,
) -> None:
    """A classifier of your pictures: trained, scored on unseen ones, with a report.

    vitkit fit photos/

    vitkit fit photos/ --model B/16 --image 384 --lr auto --out runs/photos

    torchrun --nproc-per-node=8 -m vitkit fit shards/ --recipe imagenet_transfer
    """
    _begin(
        {
            "data": data,
            "model": model,
            "weights": weights,
            "image": image,
            "steps": steps,
            "epochs": epochs,
            "batch": batch,
            "recipe": recipe,
            "out": out and str(out),
            "label": label,
            "seed": seed,
            "device": device,
            "precision": precision,
            "workers": workers,
            "track": sum(track, ()) or None,
            **_rate(lr),
        },
        config,
        sum(set_, ()),
        json,
    )


def pretrain(
    data: Data = None,
    *,
    objective: Annotated[
        Literal["labels", "masked-patch"] | None,
        option(
            "learn from labels, or from the pictures alone, which it is unless the recipe says otherwise",
            "labels|masked-patch",
        ),
    ] = None,
    model: Model = None,
    weights: Annotated[str, option("where to start; from nothing unless said", "hf:OWNER/NAME|PATH")] = "",
    image: Image = None,
    steps: Steps = None,
    epochs: Epochs = None,
    batch: Batch = None,
    lr: Rate = None,
    recipe: Recipe = None,
    out: Out = None,
    config: File = None,
    set_: Set = (),
    label: Label = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    workers: Workers = None,
    track: Track = (),
    json: Json = False,
) -> None:
    """A model to fine-tune later: from labels, or from pictures alone, patches masked.

    vitkit pretrain photos/ --out runs/pre

    then: vitkit fit labelled/ --weights runs/pre
    """
    _begin(
        {
            "data": data,
            "objective": objective,
            "model": model,
            "weights": weights,
            "image": image,
            "steps": steps,
            "epochs": epochs,
            "batch": batch,
            "recipe": recipe,
            "out": out and str(out),
            "label": label,
            "seed": seed,
            "device": device,
            "precision": precision,
            "workers": workers,
            "track": sum(track, ()) or None,
            **_rate(lr),
        },
        config,
        sum(set_, ()),
        json,
        pretraining=True,
    )


def resume(
    run: Annotated[Positional[Path], arg(metavar="RUN", help="the folder of a run that was stopped")],
    device: Device = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """A run that was stopped or killed goes on from its last checkpoint, exactly.

    vitkit resume runs/photos
    """
    from vitkit.run import resume as resume_run

    talk = sys.stderr if json else sys.stdout
    _finished(resume_run(run, talk, device=device, workers=workers), json)


def demo(
    out: Annotated[Path | None, option("the folder to make; else a new one, runs/demo", "DIR")] = None,
    json: Json = False,
) -> None:
    """The whole story in two minutes: check, pre-training, fitting, scoring, a report, on pictures inside the package.

    vitkit demo
    """
    from vitkit.demo import demo as show

    _finished(show(out, sys.stderr if json else sys.stdout) / "classifier", json)


def _begin(
    flags: dict[str, Any], file: Path | None, words: tuple[str, ...], json: bool, pretraining: bool = False
) -> None:
    """The file under the flags, the flags under --set: the later word counts."""
    from vitkit.config import toml

    given = {name: value for name, value in flags.items() if value not in (None, "")}
    if "image" in given:
        given["image"] = image_size(given["image"])
    if given.get("weights") == "None":  # Python's word for it
        given["weights"] = "none"
    over: dict[str, Any] = {"weights": "none"} if pretraining else {}
    if file is not None:
        over = toml.merge(over, toml.read_for_another(file))
    said = toml.merge(given, toml.assignments(words))
    over = toml.merge(over, said)
    if pretraining and not over.get("recipe"):
        over.setdefault("objective", "masked-patch")
    toml.check(over)  # before what takes seconds to import

    from vitkit import run

    command = shlex.join(["vitkit", *sys.argv[1:]])
    _finished(run.start(over, said, sys.stderr if json else sys.stdout, command), json)


def _rate(lr: str | None) -> dict[str, Any]:
    if lr is None:
        return {}
    if lr == "auto":
        return {"choose_lr": True}
    try:
        return {"lr": float(lr), "choose_lr": False}
    except ValueError:
        raise ConfigError(f"--lr {lr} is no learning rate", try_="a number, or auto") from None


def _finished(run: Path, as_json: bool) -> None:
    from vitkit.run_folder import EVALUATION

    if not as_json or os.environ.get("RANK", "0") != "0":
        return
    scored = run / EVALUATION
    print_json(
        {
            "run": str(run),
            "report": str(run / "report.html"),
            "evaluation": json.loads(scored.read_text(encoding="utf-8")) if scored.is_file() else None,
        }
    )
