"""Small stand-ins for what the documentation names (photos/, runs/photos, ViT-B_16.npz), and smaller commands.

A command of the documentation runs as it stands, with three changes: training takes SMALL's settings, so that it is a
matter of seconds; MODELS takes the place of large models where their speed is measured; and photos/ that of DOWNLOADED.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitkit
from tests.data.mask_images import write_masked_folder
from tests.predict.small_segmenter import small_segmenter
from vitkit.data.decode import decode
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.fashion import open_fashion
from vitkit.data.sources.open import open_data
from vitkit.run import start_run

CLASSES = ("cat", "dog", "owl")
EACH = 6
SMALL: dict[str, Any] = {"steps": 2, "batch": 4, "image": 32, "workers": 0, "device": "cpu"}
SMALL_MODEL: dict[str, Any] = {"model": "mu/4", "weights": "none"}  # for a run that names no weights to start from
NO_WARMUP = {"schedule": {"warmup": 0}}  # that of some recipes is longer than these runs
SMALL_IGPT: dict[str, Any] = {"model": "iGPT-mu/8", "image": 8}
MODELS = {"B/16": "mu/4", "L/16": "mu/4"}
DOWNLOADED = ("hf:cifar10", "cifar10.npz")  # data sets that a reader has from elsewhere


def write_images(folder: Path, first: int) -> None:
    """Write real images, of three classes of Fashion-MNIST, in colour and of several sizes."""
    split = open_fashion().splits["test"]
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for index, row in enumerate(np.flatnonzero(split.labels == number)[first : first + EACH]):
            image = Image.fromarray(decode(split.read(int(row)))).resize((40 + 2 * index, 36))
            image.save(folder / name / f"{index}.jpg")


def make_template(root: Path) -> Path:
    """Make everything that the documentation names, once; each example runs in a copy of it."""
    write_images(root / "photos", 0)
    write_images(root / "more_photos", 50)
    for name in ("pets", "labelled"):
        shutil.copytree(root / "photos", root / name)
    for name in ("natural/birds", "specialized/cells"):
        shutil.copytree(root / "photos", root / "tasks" / name)
    shutil.copytree(root / "more_photos" / "cat", root / "new")
    shutil.copy(root / "photos/cat/0.jpg", root / "cat.jpg")
    shutil.copy(root / "photos/dog/0.jpg", root / "dog.jpg")
    shutil.copy(root / "photos/dog/0.jpg", root / "image.jpg")
    write_objects(root)
    (root / "settings.toml").write_text("seed = 3\n[augment]\nmixup = 0.1\n")
    (root / "rates.toml").write_text(
        'seeds = 1\n[settings]\ndata = "photos"\nweights = "none"\nmodel = "mu/4"\nimage = 32\nsteps = 2\nbatch = 4\n'
        "workers = 0\nschedule = { warmup = 0 }\n[axes]\nlr = [0.001, 0.003]\n"
    )
    write_shards(open_data(root / "photos"), root / "shards")
    train(root / "photos", root / "runs/photos")
    train(root / "photos", root / "runs/pre", objective="masked-patch")
    train(root / "photos", root / "runs/igpt", objective="next-pixel", **SMALL_IGPT, options={"colours": 16})
    between = {"positions": "quadratic", "content": False, "pool": "gap"}
    train(root / "photos", root / "runs/two-by-two", options=between)
    points = {"positions": "none", "induced": 4, "pool": "seeds"}
    train(root / "photos", root / "runs/set", options=points)
    vitkit.save(small_segmenter(), root / "runs/streets")
    write_masked_folder(root / "streets", 4, classes=("sky", "road", "car"))
    shutil.copy(root / "photos/owl/0.jpg", root / "street.jpg")
    for name in ("pets", "3", "7"):
        shutil.copytree(root / "runs/photos", root / "runs" / name)
    tiny = vitkit.create("Ti/16", classes=10)  # B/16's layers, grid and input in less memory
    vitkit.save(tiny, root / "ViT-B_16.npz", format="google", lossy=True)
    vitkit.save(tiny, root / "timm", format="timm", lossy=True)
    shutil.move(root / "timm/model.safetensors", root / "vit_ti16_in1k_timm.safetensors")
    shutil.rmtree(root / "timm")
    return root


def write_objects(root: Path) -> None:
    """Write images of other classes with a map of them, and numbered ones without classes, with ReaL's file."""
    for name, source in (("banana", "cat"), ("alarm_clock", "dog")):
        shutil.copytree(root / "photos" / source, root / "objectnet/images" / name)
    (root / "mappings").mkdir()
    names = {"Banana": "banana", "Alarm clock": "analog clock; digital clock"}
    (root / "mappings/objectnet_to_imagenet_1k.json").write_text(json.dumps(names))
    (root / "ILSVRC2012_img_val").mkdir()
    for number in range(1, 4):
        shutil.copy(root / "photos/cat/0.jpg", root / f"ILSVRC2012_img_val/ILSVRC2012_val_{number:08d}.JPEG")
    (root / "real.json").write_text("[[1], [], [2, 3]]")


def train(data: Path, out: Path, **settings: Any) -> None:
    with open("/dev/null", "w") as output:
        explicit = {**SMALL, **SMALL_MODEL, **NO_WARMUP, **settings, "out": str(out)}
        start_run({**explicit, "data": str(data)}, explicit, output, "vitkit fit")


def smaller(words: list[str]) -> list[str]:
    """Return a command of a verb with settings for a test of seconds; everything else of it stays."""
    verb, *rest = words
    if verb == "bench":
        rest = [MODELS.get(word, word) for word in rest]
        while "--image" in rest:
            rest = replace_option(rest, "image", None)
        rest += ["--image", "32"]
        return [verb, *(rest if "--largest-batch" in rest else replace_option(rest, "batch", 2))]
    if verb == "paper" and "vtab" in rest:
        trains = "linear" not in rest
        settings = {name: value for name, value in SMALL.items() if trains or name in ("device", "workers")}
        for name, value in settings.items():
            rest = replace_option(rest, name, value)
        return [verb, *rest]
    if verb not in ("fit", "pretrain"):
        return words
    rest = ["photos" if word in DOWNLOADED else word for word in rest]
    settings = SMALL if "--weights" in rest else {**SMALL, **SMALL_MODEL}
    if any("igpt" in word.lower() for word in rest):
        settings = {**settings, "image": SMALL_IGPT["image"]}
        if "--weights" not in rest:
            settings = {**settings, **SMALL_IGPT}
    if verb == "pretrain":
        settings = {name: value for name, value in settings.items() if name != "weights"}
    rest = replace_option(rest, "epochs", None)
    for name, value in settings.items():
        rest = replace_option(rest, name, value)
    return [verb, *rest, "--set", "schedule.warmup=0"]


def replace_option(words: list[str], name: str, value: object) -> list[str]:
    """Return the words with another value of an option; None removes it."""
    if f"--{name}" in words:
        index = words.index(f"--{name}")
        end = index + 2
        while name == "image" and end < len(words) and words[end].isdigit():  # a height, then a width
            end += 1
        words = [*words[:index], *words[end:]]
    return words if value is None else [*words, f"--{name}", str(value)]


def prepare(words: list[str]) -> None:
    """Put the sandbox into the state that a command is for: a new folder for a run, or a stopped run to resume."""
    if "--out" in words:
        out = Path(words[words.index("--out") + 1])
        shutil.rmtree(out, ignore_errors=True)
    if words[0] == "shard":
        shutil.rmtree(words[2], ignore_errors=True)
    if words[0] == "resume":
        for name in ("model.safetensors", "model.json", "report.html"):  # as if killed while it was scored
            (Path(words[1]) / name).unlink()
