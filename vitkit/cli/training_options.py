"""The options that `fit` and `pretrain` share, and how they become the settings of a run."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Json, Label, image_size, option, print_json
from vitkit.errors import ConfigError
from vitkit.launcher import process_rank

Data = Annotated[Positional[str | None], option("a folder, .zip, manifest, shards, arrays, hf:NAME, fashion", "DATA")]
Model = Annotated[str | None, option("its name, such as Ti/16, B/16, R50+B/16, R50x1", "NAME")]
Device = Annotated[str | None, option("auto, cuda, cuda:1, cpu or mps", "NAME")]
Workers = Annotated[int | None, option("data workers; default: by cores", "N")]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of `fit` and `pretrain` after those that differ, in the order of --help."""

    image: Annotated[
        tuple[int, ...] | None,
        option("image side, or height and width; default: that of the weights; with --weights none, by the data", "PX"),
    ] = None
    steps: Annotated[int | None, option("length of the run", "N")] = None
    epochs: Annotated[float | None, option("length of the run in passes over the images", "N")] = None
    batch: Annotated[int | None, option("images per step, over all processes", "N")] = None
    lr: Annotated[
        str | None, option("learning rate; auto: the best of the recipe's on a validation split", "RATE|auto")
    ] = None
    recipe: Annotated[
        str | None, option("settings by name, such as pets_transfer; default: by the size of the data", "NAME")
    ] = None
    out: Annotated[Path | None, option("the run folder to create; default: a new one under runs/", "DIR")] = None
    resume: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="continue the run in --out, if it has these settings; start it if there is none"),
    ] = False
    config: Annotated[Path | None, option("settings in TOML, or a run folder for its config.toml", "FILE")] = None
    set_: Annotated[
        tuple[tuple[str, ...], ...],
        tyro.conf.UseAppendAction,
        arg(
            name="set",
            help="any other setting, such as schedule.warmup=100; `vitkit list settings` has all of them",
            metavar="KEY=VALUE…",
            help_behavior_hint="",
        ),
    ] = ()
    label: Label = None
    seed: Annotated[int | None, option("of all randomness; default: 0", "N")] = None
    device: Device = None
    precision: Annotated[Literal["auto", "bf16", "fp32"] | None, option("of the arithmetic", "auto|bf16|fp32")] = None
    workers: Workers = None
    track: Annotated[
        tuple[tuple[Literal["tensorboard", "wandb"], ...], ...],
        tyro.conf.UseAppendAction,
        option("also log to these", "tensorboard|wandb"),
    ] = ()
    json: Json = False


SharedOptions = Annotated[TrainingOptions, arg(name="", help="")]  # name="": options without a prefix


def start_training(options: TrainingOptions, *, pretraining: bool = False, **flags: str | None) -> None:
    """Run a training with the file's settings, overridden by the flags, overridden by --set."""
    from vitkit.config import toml

    explicit = _flag_settings(options, flags)
    settings: dict[str, Any] = {"weights": "none"} if pretraining else {}
    if options.config is not None:
        settings = toml.merge(settings, toml.read_for_new_run(options.config))
    explicit = toml.merge(explicit, toml.assignments(sum(options.set_, ())))
    settings = toml.merge(settings, explicit)
    if pretraining and not settings.get("recipe"):
        settings.setdefault("objective", "masked-patch")
    toml.check(settings)  # before the imports, which take seconds

    from vitkit import run

    command = shlex.join(["vitkit", *sys.argv[1:]])
    verb = "pretrain" if pretraining else "fit"
    output = log_stream(options.json)
    path = run.start_run(settings, explicit, output, command, pretraining=pretraining, resume=options.resume)
    print_result(verb, path, options.json)


def _flag_settings(options: TrainingOptions, flags: dict[str, str | None]) -> dict[str, Any]:
    """Return the flags that were set on the command line, by the names of their settings."""
    values = {**flags, **vars(options)}
    for name in ("config", "set_", "json", "lr", "resume"):
        del values[name]
    values.update(_rate(options.lr), out=options.out and str(options.out), track=sum(options.track, ()))
    settings = {name: value for name, value in values.items() if value not in (None, "", ())}
    if options.image is not None:
        settings["image"] = image_size(options.image)
    if settings.get("weights") == "None":  # as Python spells it
        settings["weights"] = "none"
    return settings


def _rate(lr: str | None) -> dict[str, Any]:
    if lr is None:
        return {}
    if lr == "auto":
        return {"choose_lr": True}
    try:
        return {"lr": float(lr), "choose_lr": False}
    except ValueError:
        raise ConfigError(f"--lr {lr} is no learning rate", try_="a number, or auto") from None


def log_stream(as_json: bool) -> TextIO:
    """Return the stream for log lines: stderr where stdout is for JSON."""
    return sys.stderr if as_json else sys.stdout


def print_result(verb: str, run: Path, as_json: bool) -> None:
    """Print the run folder, the report and the evaluation as JSON, where asked for and on rank zero."""
    from vitkit.evaluate.evaluation import MOST_BYTES
    from vitkit.run_folder import EVALUATION
    from vitkit.stored_json import read_json

    if not as_json or process_rank() != 0:
        return
    evaluation = run / EVALUATION
    print_json(
        verb,
        {
            "run": str(run),
            "report": str(run / "report.html"),
            "evaluation": read_json(evaluation, dict[str, Any], most=MOST_BYTES) if evaluation.is_file() else None,
        },
    )
