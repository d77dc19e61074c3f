"""The options of other tools, and what they are called here: an unknown option gets the name that it has in vitkit."""

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

from tyro.conf import Positional

_Word = Positional[str]
_POSITIONAL = get_args(_Word)[1]

# our option: what timm, transformers, ultralytics, torchvision's and big_vision's scripts call it
OPTIONS = {
    "batch": "batch-size bs batchsize per-device-train-batch-size total-batch-size",
    "lr": "learning-rate lr0 base-lr blr",
    "image": "imgsz img-size image-size img input-size resolution crop-size",
    "epochs": "num-epochs num-train-epochs n-epochs max-epochs",
    "steps": "max-steps total-steps num-steps max-iters iterations",
    "workers": "num-workers dataloader-num-workers",
    "weights": "pretrained checkpoint ckpt finetune fine-tune model-path pretrained-weights init-checkpoint",
    "model": "arch architecture model-name variant backbone",
    "out": "output output-dir out-dir save-dir project logdir log-dir workdir",
    "device": "gpu gpus cuda accelerator",
    "precision": "amp fp16 half bf16 mixed-precision dtype",
    "track": "logger report-to log-wandb wandb tensorboard",
    "seed": "random-state random-seed manual-seed",
    "resume": "auto-resume resume-from-checkpoint resume-training continue continue-training exist-ok",
    "config": "cfg conf yaml hparams",
    "json": "as-json output-format",
    "top": "topk top-k k",
    "to": "format target",
    "normalise": "normalize l2 l2-normalize normalize-embeddings",
    "pool": "pooling global-pool",
    "shard": "shard-id shard-index shards num-shards process-id world-size rank",
    "engine": "backend distributed distributed-executor-backend executor",
}
# our setting, for --set: the same
SETTINGS = {
    "schedule.kind": "lr-scheduler scheduler sched lr-scheduler-type lr-schedule cos-lr",
    "schedule.warmup": "warmup-steps warmup-epochs warmup-ratio warmup-iters",
    "optimizer.kind": "optimizer opt optim",
    "optimizer.weight_decay": "wd",
    "augment.randaugment": "aa auto-augment autoaugment rand-augment",
    "augment.mixup": "mixup-alpha",
    "augment.cutmix": "cutmix-alpha",
    "augment.erase": "reprob random-erase random-erasing erasing",
    "augment.flip": "hflip fliplr",
    "label_smoothing": "smoothing",
    "average": "ema model-ema ema-decay model-ema-decay polyak",
    "clip": "clip-grad grad-clip max-grad-norm gradient-clip-val",
    "stochastic_depth": "drop-path drop-path-rate",
    "micro": "micro-batch micro-batch-size",
    "recompute": "grad-checkpointing gradient-checkpointing activation-checkpointing",
    "patience": "early-stopping early-stop",
    "balance": "class-weights class-weight",
    "split_seed": "split-seed",
}
# our word without dashes: the same
WORDS = {
    "data": "data data-dir data-path dataset dataset-name train-dir data-root root source",
    "run": "run model weights checkpoint ckpt pretrained model-path resume",
    "images": "images image input inputs source img file",
}


def unknown_option(verb: str, function: Callable[..., None], words: Iterable[str]) -> str | None:
    """Return an error for the first option of another tool, or setting without --set, with its name here."""
    options, positionals = option_names(function)
    for word in words:
        if word == "--":
            return None
        name = word.removeprefix("--").partition("=")[0].lower().replace("_", "-")
        if not word.startswith("--") or name in options or name.removeprefix("no-") in options:
            continue
        if suggestion := _suggestion(verb, name, options, positionals):
            return f"there is no option {word.partition('=')[0]}; did you mean {suggestion}?"
    return None


def option_names(function: Callable[..., None]) -> tuple[set[str], set[str]]:
    """Return the names of a verb's options, such as max-failed and set, and of its words without dashes."""
    options, positionals = {"help"}, set()
    for name, kind in get_type_hints(function, include_extras=True).items():
        if name == "return":
            continue
        if _POSITIONAL in get_args(kind):
            positionals.add(name)
        elif is_dataclass(inner := get_args(kind)[0] if get_args(kind) else kind):
            options |= {item.name for item in fields(inner)}
        else:
            options.add(name)
    return {name.strip("_").replace("_", "-") for name in options}, positionals


def _suggestion(verb: str, name: str, options: set[str], positionals: set[str]) -> str:
    for ours, theirs in OPTIONS.items():
        if name in theirs.split() and ours in options:
            return f"--{ours}"
    for ours, theirs in WORDS.items():
        if name in theirs.split() and ours in positionals:
            return f"vitkit {verb} {ours.upper()}, without an option"
    return _setting(name) if "recipe" in options else ""  # --set of other verbs has options of the model


def _setting(name: str) -> str:
    for ours, theirs in SETTINGS.items():
        if name in theirs.split():
            return f"--set {ours}=…"
    from vitkit.config.listing import list_settings

    settings = [setting.name for setting in list_settings()]
    exact = [ours for ours in settings if name.replace("-", "_") in (ours, ours.rpartition(".")[2])]
    return f"--set {exact[0]}=…" if exact else ""
