"""The verbs. A verb is a function: its signature is its options, its docstring its help.

Nothing heavy is imported until a verb runs, so that help and mistakes answer at once.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro
from tyro.conf import Positional, arg

from vitkit.errors import ConfigError, Interrupted, VitkitError, did_you_mean

if TYPE_CHECKING:
    from vitkit.model.config import ModelConfig


def _option(help: str, metavar: str) -> Any:
    """An option whose default is the recipe's or the run's own, and so not worth printing."""
    return arg(help=help, metavar=metavar, help_behavior_hint="")


def cost(
    models: Annotated[Positional[tuple[str, ...]], arg(metavar="MODEL…")],
    image: Annotated[tuple[int, ...], arg(help="image side, or height and width", metavar="PX")] = (224,),
    classes: Annotated[int, arg(help="classes of the head")] = 1000,
    batch: Annotated[int, arg(help="images per step, for the memory of activations")] = 1,
    precision: Annotated[Literal["bf16", "fp32"], arg(help="of activations")] = "bf16",
    images: Annotated[int | None, arg(help="training images, for the compute of a training run")] = None,
    epochs: Annotated[float | None, arg(help="passes over them; 1 unless said")] = None,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
) -> None:
    """What models cost: parameters, multiply-adds, training compute and memory, in closed form.

    vitkit cost B/16 L/16 R50+B/16 R152x2        vitkit cost H/14 --images 303_000_000 --epochs 14
    """
    from vitkit.cost import cost as cost_of
    from vitkit.model.variants import configure

    _at_least(1, batch=batch, images=images)
    if epochs is not None and (images is None or not 0 < epochs < float("inf")):
        raise ConfigError(f"--epochs {epochs:g} needs --images, and to be above 0")
    epochs = 1.0 if epochs is None else epochs
    if not models:
        raise ConfigError("no model named", try_="vitkit cost B/16")
    size = _image(image)
    rows = []
    for name in models:
        config = configure(name, image=size, classes=classes)
        found = cost_of(config)
        row: dict[str, Any] = {
            "model": name, "parameters": found.parameters, "tokens": _tokens(config), "macs": found.macs,
            "activation_bytes": found.activation_bytes(batch, bytes_per_number=2 if precision == "bf16" else 4),
            "state_bytes": found.state_bytes,
        }
        if images is not None:
            row["exaflops"] = found.exaflops(images, epochs)
        rows.append(row)
    if json:
        _print_json({"image": list(size), "classes": classes, "batch": batch, "precision": precision,
                     "images": images, "epochs": epochs, "models": rows})
    else:
        _print_costs(rows, f"{size[0]} x {size[1]} px, {classes} classes", f"batch {batch}, {precision}",
                     training=images is not None)


def convert(
    source: Annotated[Positional[str], arg(metavar="IN", help="a weights file, a folder, a run, or hf:OWNER/NAME")],
    out: Annotated[Positional[Path], arg(metavar="OUT", help="the file (.npz, .safetensors) or folder to write")],
    to: Annotated[Literal["vitkit", "google", "timm", "hf"], arg(help="the format to write")],
    grid: Annotated[tuple[int, int] | None, arg(help="rows and columns, where positions are not square",
                                                metavar="ROWS COLUMNS")] = None,
    heads: Annotated[int | None, arg(help="attention heads, where the weights do not tell")] = None,
    lossy: Annotated[bool, tyro.conf.FlagCreatePairsOff,
                     arg(help="write even if the format reads it back a little otherwise")] = False,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace OUT if it exists")] = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
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
        "in": source, "variant": name_of(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()), "image": list(model.config.image),
        "classes": model.config.classes, "out": str(out), "to": to,
    }
    if json:
        _print_json(summary)
    else:
        height, width = model.config.image
        print(f"read     {source}: {summary['variant'] or 'sizes of its own'}, {summary['parameters']:,} parameters, "
              f"{height} x {width} px, {model.config.classes} classes")
        print(f"written  {out} ({to})")


def evaluate(
    run: Annotated[Positional[str], arg(metavar="RUN", help="a run folder, a weights file or hf:OWNER/NAME")],
    data: Annotated[Positional[str], arg(metavar="DATA", help="a folder, manifest, shards, arrays, hf:NAME, fashion")],
    split: Annotated[str | None, arg(help="test where there is one, else val, unless said", metavar="NAME")] = None,
    labels: Annotated[Path | None, arg(help="class names of weights that carry none: one on each line, in the order of "
                                            "the logits", metavar="FILE")] = None,
    label: Annotated[str | None, arg(help="the column of labels, where data have several", metavar="COLUMN")] = None,
    real: Annotated[Path | None, arg(help="ImageNet-ReaL's real.json, to score against it too", metavar="FILE")] = None,
    image: Annotated[tuple[int, ...] | None, arg(help="image side, or height and width; the model's own unless said",
                                                 metavar="PX")] = None,
    batch: Annotated[int, arg(help="pictures at a time")] = 64,
    device: Annotated[str, arg(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    precision: Annotated[Literal["fp32", "bf16"], arg(help="of the forward pass")] = "fp32",
    workers: Annotated[int | None, arg(help="processes that decode pictures; as many as the device is worth, "
                                            "unless said", metavar="N")] = None,
    out: Annotated[Path | None, arg(help="write the findings here as well", metavar="FILE.json")] = None,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
) -> None:
    """How good a model is on data: accuracy with intervals, class by class, calibration, the worst mistakes.

    vitkit evaluate runs/pets photos/        vitkit evaluate hf:google/vit-base-patch16-224 imagenet/ --real real.json
    """
    _at_least(1, batch=batch)
    _at_least(0, workers=workers)
    if out is not None and (out.suffix != ".json" or not out.parent.is_dir()):
        raise ConfigError(f"--out {out}: the name of a .json file in a folder that exists is needed")
    size = None if image is None else _image(image)

    from dataclasses import replace

    from vitkit.atomic import write_text
    from vitkit.data.sources.open import open_data
    from vitkit.evaluate.classify import evaluate as evaluate_model
    from vitkit.evaluate.matching import read_labels
    from vitkit.evaluate.show import print_evaluation
    from vitkit.evaluate.unseen import unseen
    from vitkit.progress import progress
    from vitkit.train.devices import pick_device, pick_readers
    from vitkit.weights.load import load

    chosen = pick_device(device)
    opened = unseen(run, open_data(data, label=label), split)
    model = load(run, image=size)
    if labels is not None:
        model.metadata = replace(model.metadata, labels=read_labels(labels, model.config.classes))
    found = evaluate_model(model, opened, split, device=chosen, precision=precision, batch=batch,
                           workers=pick_readers(workers, chosen, 1), real=real, watch=progress)
    if out is not None:
        write_text(out, found.to_json() + "\n", ConfigError)
    if json:
        print(found.to_json())
    else:
        print_evaluation(found)


def probe(
    run: Annotated[Positional[str], arg(metavar="RUN", help="a run folder, a weights file or hf:OWNER/NAME")],
    data: Annotated[Positional[str], arg(metavar="DATA", help="a folder, manifest, shards, arrays, hf:NAME, fashion")],
    method: Annotated[Literal["fewshot", "knn", "linear"], arg(help="the paper's least squares on a few pictures of "
                                                                    "each class; nearest neighbours; a linear layer")],
    shots: Annotated[tuple[int, ...] | None, _option("fewshot: pictures of each class; 1 5 10 25 unless said",
                                                     "N")] = None,
    seeds: Annotated[int | None, _option("fewshot: draws of them; 3 unless said", "N")] = None,
    neighbours: Annotated[int | None, _option("knn: pictures that vote; 20 unless said", "N")] = None,
    image: Annotated[tuple[int, ...] | None, _option("image side, or height and width; the model's own unless said",
                                                     "PX")] = None,
    label: Annotated[str | None, _option("the column of labels, where data have several", "COLUMN")] = None,
    features: Annotated[Path | None, _option("write features, labels, keys and class names here", "FILE.npz")] = None,
    batch: Annotated[int, arg(help="pictures at a time")] = 64,
    device: Annotated[str, arg(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    precision: Annotated[Literal["fp32", "bf16"], arg(help="of the forward pass")] = "fp32",
    workers: Annotated[int | None, _option("processes that decode pictures; as many as the device is worth, "
                                           "unless said", "N")] = None,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
) -> None:
    """How much a frozen model knows of data it was not trained for: few-shot, nearest neighbours, a linear probe.

    vitkit probe runs/pre photos/ --method linear        vitkit probe ViT-B_16.npz photos/ --method fewshot --shots 5
    """
    _at_least(1, batch=batch, neighbours=neighbours, seeds=seeds)
    _at_least(0, workers=workers)
    if shots is not None and (not shots or min(shots) < 1):
        raise ConfigError(f"--shots {' '.join(map(str, shots))}: 1 or more is needed")
    if features is not None and (features.suffix != ".npz" or not features.parent.is_dir()):
        raise ConfigError(f"--features {features}: the name of a .npz file in a folder that exists is needed")
    size = None if image is None else _image(image)

    from vitkit.data.sources.open import open_data
    from vitkit.evaluate.features import Extractor, write_features
    from vitkit.evaluate.probe import apart, gather, pick_method, print_probe
    from vitkit.evaluate.probe import probe as probe_features
    from vitkit.progress import progress
    from vitkit.train.devices import pick_device, pick_readers
    from vitkit.weights.load import load

    learner = pick_method(method, shots=shots, seeds=seeds, neighbours=neighbours)
    chosen = pick_device(device)
    opened = apart(run, open_data(data, label=label))
    extract = Extractor(model=load(run, image=size), device=chosen, precision=precision, batch=batch,
                        workers=pick_readers(workers, chosen, 1), watch=progress)
    parts = gather(extract, opened, learner)
    if features is not None:
        write_features(features, parts.by_name(), opened.classes)
    found = probe_features(parts, opened, learner)
    if json:
        print(found.to_json())
    else:
        print_probe(found)


def inspect(
    run: Annotated[Positional[str], arg(metavar="RUN", help="a run folder, a weights file or hf:OWNER/NAME")],
    images: Annotated[Positional[tuple[str, ...]], _option("pictures, or folders of them", "IMAGES…")],
    out: Annotated[Path | None, _option("the folder to write; else inspect/ in the run folder, or here", "DIR")] = None,
    image: Annotated[tuple[int, ...] | None, _option("image side, or height and width; the model's own unless said",
                                                     "PX")] = None,
    layer: Annotated[tuple[int, ...] | None, _option("layers whose attention is shown, counted from 0; else all, or "
                                                     "12 evenly spread ones", "N")] = None,
    head: Annotated[tuple[int, ...] | None, _option("heads, counted from 0; else all", "N")] = None,
    token: Annotated[tuple[str, ...] | None, _option(
        "whose attention is shown: the class token, the mean of all patches, or single patches, counted from 0; else "
        "what the head reads", "class|mean|ROW COLUMN")] = None,
    device: Annotated[str, arg(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
) -> None:
    """A look inside a model: what it attends to and how far away, where it thinks patches are, its first filters.

    vitkit inspect runs/pets photos/        vitkit inspect ViT-B_16.npz cat.jpg --token 7 7 --layer 0 11
    """
    size = None if image is None else _image(image)
    tokens = _tokens_asked(token)
    if not images:
        raise ConfigError("no pictures named", try_=f"vitkit inspect {run} photos/")

    from vitkit.inspect.findings import look_inside
    from vitkit.inspect.page import write_page
    from vitkit.inspect.pictures import open_gallery
    from vitkit.inspect.summary import as_json, print_findings
    from vitkit.train.devices import pick_device
    from vitkit.weights.load import load

    folder = out or Path(run) / "inspect"
    if out is None and not Path(run).is_dir():
        folder = Path("inspect")
        for source in images:
            folder = _outside(Path(source), folder)
    model = load(run, image=size).to(pick_device(device))
    found = look_inside(model, open_gallery(model, images), layers=layer, heads=head, tokens=tokens,
                        say=lambda what: print(f"looking    {what}", file=sys.stderr))
    files = write_page(found, folder, run)
    if json:
        _print_json(as_json(found, files))
    else:
        print_findings(found, files)


def check(
    data: Annotated[Positional[str], arg(metavar="DATA", help="a folder, manifest, shards, arrays, hf:NAME, fashion")],
    image: Annotated[tuple[int, ...], arg(help="image side, or height and width, for the contact sheet",
                                          metavar="PX")] = (224,),
    resize: Annotated[Literal["crop", "squash", "letterbox"], arg(help="how pictures will be fitted")] = "crop",
    channels: Annotated[int, arg(help="3 is RGB, 1 grey, other numbers the bands of .npy or TIFF files")] = 3,
    sheet: Annotated[Path | None, arg(help="where the contact sheet of what a model will see goes; check.png, outside "
                                           "of the data, unless said")] = None,
    workers: Annotated[int, arg(help="pictures decoded at a time")] = 4,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
) -> None:
    """A look at all the data before training: bad files, copies, leaks between splits, classes, sizes.

    Exit code 0 when nothing would hurt training, 1 when something would, 2 when the source cannot be read.
    """
    from vitkit.data.check import check as check_data
    from vitkit.data.report import contact_sheet, print_report, report_as_json
    from vitkit.data.sources.open import open_data
    from vitkit.progress import progress

    _at_least(1, channels=channels, workers=workers)
    size = _image(image)
    opened = open_data(data)
    target = _outside(Path(data), Path("check.png")) if sheet is None else sheet
    report = check_data(opened, channels=channels, workers=workers, watch=progress)
    try:
        contact_sheet(opened, report, size, resize, channels).save(target)
        drawn = str(target)
    except (OSError, ValueError) as error:  # the report does not depend on it
        drawn = f"could not be written to {target}: {error}"
    if json:
        _print_json({**report_as_json(report), "sheet": drawn})
    else:
        print_report(report)
        print(f"sheet      {drawn}")
    if report.problems:
        sys.exit(1)


def shard(
    data: Annotated[Positional[str], arg(metavar="DATA", help="a folder, manifest, arrays, hf:NAME or fashion")],
    folder: Annotated[Positional[Path], arg(metavar="DIR", help="the folder to write")],
    megabytes: Annotated[int, arg(help="size of a shard")] = 256,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")] = False,
) -> None:
    """Pictures into tar files of one size, with an index for random access; webdataset's naming.

    vitkit shard photos/ shards/        then, anywhere: vitkit check shards/
    """
    from vitkit.data.shards import write_shards
    from vitkit.data.sources.open import open_data
    from vitkit.progress import progress

    _at_least(1, megabytes=megabytes)
    opened = open_data(data)
    write_shards(opened, folder, megabytes=megabytes, progress=progress)
    written = sorted(path.name for path in folder.glob("*.tar"))
    pictures = {name: len(split) for name, split in opened.splits.items()}
    if json:
        _print_json({"data": data, "folder": str(folder), "pictures": pictures, "shards": written})
    else:
        print(f"read     {data}: {opened.kind}, " + ", ".join(f"{count:,} {name}" for name, count in pictures.items()))
        print(f"written  {folder}: {len(written)} shards")


_Data = Annotated[Positional[str | None], _option("a folder, manifest, shards, arrays, hf:NAME, fashion", "DATA")]
_Model = Annotated[str | None, _option("its name, such as Ti/16, B/16, R50+B/16, R50x1", "NAME")]
_Image = Annotated[tuple[int, ...] | None, _option("image side, or height and width", "PX")]
_Steps = Annotated[int | None, _option("length of the run", "N")]
_Epochs = Annotated[float | None, _option("length of the run in passes over the pictures", "N")]
_Batch = Annotated[int | None, _option("pictures per step, over all processes", "N")]
_Rate = Annotated[str | None, _option("learning rate; auto: the best of the recipe's on a dev split", "RATE|auto")]
_Recipe = Annotated[str | None, _option("settings by name, such as pets_transfer; else by the data's size", "NAME")]
_Out = Annotated[Path | None, _option("the run folder to make; else a new one under runs/", "DIR")]
_File = Annotated[Path | None, _option("settings in TOML; of a run folder, its config.toml", "FILE")]
_Set = Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, arg(
    name="set", help="any other setting, such as schedule.warmup=100", metavar="KEY=VALUE…", help_behavior_hint="")]
_Label = Annotated[str | None, _option("the column that holds the classes, in a manifest or hf: set", "COLUMN")]
_Seed = Annotated[int | None, _option("of everything random; 0 unless said", "N")]
_Device = Annotated[str | None, _option("auto, cuda, cuda:1, cpu or mps", "NAME")]
_Precision = Annotated[Literal["auto", "bf16", "fp32"] | None, _option("of the arithmetic", "auto|bf16|fp32")]
_Workers = Annotated[int | None, _option("processes that read pictures", "N")]
_Track = Annotated[tuple[tuple[Literal["tensorboard", "wandb"], ...], ...], tyro.conf.UseAppendAction,
                   _option("also log there", "tensorboard|wandb")]
_Json = Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON")]


def fit(
    data: _Data = None, *, model: _Model = None,
    weights: Annotated[str, _option("where to start: the model's public weights unless said; none: from nothing",
                                    "hf:OWNER/NAME|PATH|none")] = "",
    image: _Image = None, steps: _Steps = None, epochs: _Epochs = None, batch: _Batch = None, lr: _Rate = None,
    recipe: _Recipe = None, out: _Out = None, config: _File = None, set_: _Set = (), label: _Label = None,
    seed: _Seed = None, device: _Device = None, precision: _Precision = None, workers: _Workers = None,
    track: _Track = (), json: _Json = False,
) -> None:
    """A classifier of your pictures: trained, scored on unseen ones, with a report.

    vitkit fit photos/

    vitkit fit photos/ --model B/16 --image 384 --lr auto --out runs/photos

    torchrun --nproc-per-node=8 -m vitkit fit shards/ --recipe imagenet_transfer
    """
    _begin({"data": data, "model": model, "weights": weights, "image": image, "steps": steps, "epochs": epochs,
            "batch": batch, "recipe": recipe, "out": out and str(out), "label": label, "seed": seed, "device": device,
            "precision": precision, "workers": workers, "track": sum(track, ()) or None, **_rate(lr)}, config,
           sum(set_, ()), json)


def pretrain(
    data: _Data = None, *,
    objective: Annotated[Literal["labels", "masked-patch"] | None, _option(
        "learn from labels, or from the pictures alone, which it is unless the recipe says otherwise",
        "labels|masked-patch")] = None,
    model: _Model = None,
    weights: Annotated[str, _option("where to start; from nothing unless said", "hf:OWNER/NAME|PATH")] = "",
    image: _Image = None, steps: _Steps = None, epochs: _Epochs = None, batch: _Batch = None, lr: _Rate = None,
    recipe: _Recipe = None, out: _Out = None, config: _File = None, set_: _Set = (), label: _Label = None,
    seed: _Seed = None, device: _Device = None, precision: _Precision = None, workers: _Workers = None,
    track: _Track = (), json: _Json = False,
) -> None:
    """A model to fine-tune later: from labels, or from pictures alone, patches masked.

    vitkit pretrain photos/ --out runs/pre

    then: vitkit fit labelled/ --weights runs/pre
    """
    _begin({"data": data, "objective": objective, "model": model, "weights": weights, "image": image, "steps": steps,
            "epochs": epochs, "batch": batch, "recipe": recipe, "out": out and str(out), "label": label, "seed": seed,
            "device": device, "precision": precision, "workers": workers, "track": sum(track, ()) or None, **_rate(lr)},
           config, sum(set_, ()), json, pretraining=True)


def resume(
    run: Annotated[Positional[Path], arg(metavar="RUN", help="the folder of a run that was stopped")],
    device: _Device = None, workers: _Workers = None, json: _Json = False,
) -> None:
    """A run that was stopped or killed goes on from its last checkpoint, exactly.

    vitkit resume runs/photos
    """
    from vitkit.fit import resume as resume_run

    talk = sys.stderr if json else sys.stdout
    _finished(resume_run(run, talk, device=device, workers=workers), json)


def demo(
    out: Annotated[Path | None, _option("the folder to make; else a new one, runs/demo", "DIR")] = None,
    json: _Json = False,
) -> None:
    """The whole story in two minutes: check, pre-training, fitting, scoring, a report, on pictures inside the package.

    vitkit demo
    """
    from vitkit.demo import demo as show

    _finished(show(out, sys.stderr if json else sys.stdout) / "classifier", json)


def _begin(flags: dict[str, Any], file: Path | None, words: tuple[str, ...], json: bool,
           pretraining: bool = False) -> None:
    """The file under the flags, the flags under --set: the later word counts."""
    from vitkit import settings

    given = {name: value for name, value in flags.items() if value not in (None, "")}
    if "image" in given:
        given["image"] = _image(given["image"])
    if given.get("weights") == "None":  # Python's word for it
        given["weights"] = "none"
    over: dict[str, Any] = {"weights": "none"} if pretraining else {}
    if file is not None:
        over = settings.merge(over, settings.read(file))
    over = settings.merge(settings.merge(over, given), settings.assignments(words))
    if pretraining and not over.get("recipe"):
        over.setdefault("objective", "masked-patch")
    settings.check(over)

    from vitkit import fit as runs
    from vitkit.train.tracking import check_installed

    config, data, reason = runs.resolve(over)
    check_installed(config.track)
    _finished(runs.begin(config, data, reason, sys.stderr if json else sys.stdout), json)


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
    from vitkit.train.folder import EVALUATION

    if not as_json or os.environ.get("RANK", "0") != "0":
        return
    scored = run / EVALUATION
    _print_json({"run": str(run), "report": str(run / "report.html"),
                 "evaluation": json.loads(scored.read_text(encoding="utf-8")) if scored.is_file() else None})


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "check": check, "fit": fit, "pretrain": pretrain, "resume": resume, "evaluate": evaluate, "probe": probe,
    "inspect": inspect, "shard": shard, "cost": cost, "convert": convert,
}


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; a user's mistake is a message on stderr and exit code 2, never a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    verb, rest = (words[0], words[1:]) if words else ("--help", [])
    if verb in ("-h", "--help", "help"):
        print(_help())
        return
    if verb == "--version":
        from vitkit import __version__

        print(f"vitkit {__version__}")
        return
    if verb not in VERBS:
        _fail(f"vitkit: there is no verb {verb!r}{did_you_mean(verb, VERBS)}\n  verbs  {', '.join(VERBS)}")
    logging.basicConfig(format="note     %(message)s", level=logging.WARNING)
    try:
        tyro.cli(VERBS[verb], prog=f"vitkit {verb}", args=rest, use_underscores=False)
    except VitkitError as error:
        _fail(f"vitkit {verb}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except Interrupted as stopped:
        print(f"vitkit {verb}: {stopped}", file=sys.stderr)
        sys.exit(stopped.code)
    except BrokenPipeError:  # the reader has seen enough: vitkit check … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _help() -> str:
    lines = [textwrap.fill((function.__doc__ or "").splitlines()[0], 80, initial_indent=f"  {verb:<9} ",
                           subsequent_indent=" " * 12) for verb, function in VERBS.items()]
    return "\n".join([
        "vitkit: the Vision Transformer as real software.", "", "usage: vitkit VERB …      vitkit VERB --help", "",
        *lines, "", "  --version",
    ])


def _fail(message: str) -> NoReturn:
    """Under torchrun most mistakes are found by every process; the first tells it, the others say that they agree."""
    rank = os.environ.get("RANK", "0")
    print(message if rank == "0" else f"process {rank}: {message.splitlines()[0]}", file=sys.stderr)
    sys.exit(2)


def _outside(data: Path, file: Path) -> Path:
    """A picture written into a folder of pictures would be one of them at the next look."""
    folder = data.resolve()
    return folder.parent / file if data.is_dir() and file.resolve().is_relative_to(folder) else file


def _image(sides: tuple[int, ...]) -> tuple[int, int]:
    if len(sides) not in (1, 2):
        raise ConfigError(f"--image takes a side, or height and width; found {len(sides)} numbers")
    if min(sides) < 1:
        raise ConfigError(f"--image {' '.join(map(str, sides))}: 1 or more is needed")
    return sides[0], sides[-1]


def _tokens_asked(words: tuple[str, ...] | None) -> list[Any] | None:
    """"class", "mean", or numbers in pairs, a row and a column each."""
    if words is None:
        return None
    if words in (("class",), ("mean",)):
        return [words[0]]
    if not words or len(words) % 2 or not all(word.isdecimal() for word in words):
        raise ConfigError(f"--token {' '.join(words)}: class, mean, or the row and column of each patch is needed")
    return [(int(row), int(column)) for row, column in zip(words[::2], words[1::2], strict=True)]


def _at_least(least: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < least:
            raise ConfigError(f"--{name} {value}: {least} or more is needed")


def _tokens(config: ModelConfig) -> int | None:
    from vitkit.model.config import ViTConfig

    return config.tokens if isinstance(config, ViTConfig) else None


def _print_costs(rows: list[dict[str, Any]], title: str, memory: str, *, training: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    columns = {"model": "model", "parameters": "parameters", "tokens": "tokens", "macs": "GMACs",
               "activation_bytes": "activations", "state_bytes": "state", "exaflops": "exaFLOPs"}
    shown = [name for name in columns if name in rows[0]]
    for name in shown:
        table.add_column(columns[name], justify="left" if name == "model" else "right", no_wrap=True)
    for row in rows:
        texts = {"model": row["model"], "parameters": f"{row['parameters']:,}", "tokens": str(row["tokens"] or "–"),
                 "macs": f"{row['macs'] / 1e9:,.2f}", "activation_bytes": _gib(row["activation_bytes"]),
                 "state_bytes": _gib(row["state_bytes"]), "exaflops": f"{row.get('exaflops', 0):,.4g}"}
        table.add_row(*(texts[name] for name in shown))
    console = Console(highlight=False)
    console.print(title)
    console.print(table)
    console.print(f"GMACs: one image forward. activations: {memory}, no checkpointing.")
    console.print("state: fp32 weights, gradients and Adam moments." + " exaFLOPs: the training run." * training)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=2))
