"""Segmentation runs: killed and resumed bit for bit, on two processes as on one, in bf16 as in fp32."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.data.mask_images import CLASSES, IGNORED, write_masked_folder
from tests.train.runs import (
    LONG,
    Command,
    assert_same_end,
    command_line,
    last_step,
    losses,
    metric_lines,
    resume,
    torchrun,
    weights,
)
from vitkit.cli.main import main
from vitkit.config.schema import Fit, Segment
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError
from vitkit.evaluate.segmentation import evaluate_masks
from vitkit.train.initial_model import initial_model

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 12
HEADS = {"linear": {"segment__head": "linear"}, "queries": {"segment__head": "queries", "segment__queries": 6}}
SETTINGS: dict[str, Any] = {
    "model": "mu/8",
    "image": (48, 64),
    "channels": 3,
    "recipe": "small_segmentation",
    "batch": 8,
    "micro": 4,
    "epochs": False,
    "steps": STEPS,
    "save_every": 2,
    "score_every": 4,
    "average": 0.9,
    "dropout": 0.1,
    "lr": 0.001,
}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_masked_folder(tmp_path_factory.mktemp("shapes"), 12)


def arguments(out: Path, shapes: Path, head: str, **settings: Any) -> list[str]:
    queries = {"segment__query_blocks": 1} if head == "queries" else {}
    return command_line(out, data=str(shapes), **{**SETTINGS, **HEADS[head], **queries, **settings})


@pytest.fixture(scope="module", params=HEADS)
def finished(
    request: pytest.FixtureRequest, shapes: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    started = Command(arguments(folder / "run", shapes, request.param), folder / "log")
    assert started.wait() == 0, started.output
    return request.param, folder / "run"


def test_a_run_ends_with_a_score_of_masks(finished: tuple[str, Path], shapes: Path):
    head, run = finished
    record = json.loads((run / "evaluation.json").read_text())
    assert record["task"] == "segment"
    assert record["classes"] == list(CLASSES)
    model = vitkit.load(run)
    assert model.config.head == head
    again = evaluate_masks(model, open_data(shapes, task="segment"))
    assert again.mean_iou.value == record["mean_iou"]["value"]
    assert again.images == 12
    assert [line["step"] for line in metric_lines(run, "score")] == [4, 8, 12]
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_kills_change_nothing(workers: int, finished: tuple[str, Path], shapes: Path, tmp_path: Path):
    head, expected = finished
    run = tmp_path / "run"
    for number, step in enumerate((2, 5, 9)):
        command = ["resume", str(run)] if number else arguments(run, shapes, head, workers=workers)
        started = Command(command, tmp_path / "log")
        assert started.kill_once(lambda step=step: last_step(run) >= step), started.output
    resume(run, tmp_path / "log")
    assert_same_end(run, expected)


def manifest_of(shapes: Path, folder: Path) -> Path:
    """Write a manifest in another folder, with the file of class names beside it."""
    shutil.copy(shapes / "classes.txt", folder)
    masks = sorted((shapes / "masks").rglob("*.png"))
    rows = [f"{shapes}/images/{mask.parent.name}/{mask.stem}.jpg,{mask},{mask.parent.name}" for mask in masks]
    (folder / "list.csv").write_text("\n".join(["image,mask,split", *rows]) + "\n")
    return folder / "list.csv"


@pytest.mark.parametrize("finished", ["linear"], indirect=True)
@pytest.mark.parametrize("source", ["zip file", "manifest"])
def test_a_run_on_another_source_ends_as_that_on_the_folder(
    source: str, finished: tuple[str, Path], shapes: Path, tmp_path: Path
):
    head, expected = finished
    packed = Path(shutil.make_archive(str(tmp_path / "shapes"), "zip", shapes))
    data, run = packed if source == "zip file" else manifest_of(shapes, tmp_path), tmp_path / "run"
    started = Command(arguments(run, data, head, workers=2), tmp_path / "log")
    assert started.kill_once(lambda: last_step(run) >= 5), started.output
    resume(run, tmp_path / "log")
    assert_same_end(run, expected)


def test_a_signal_saves_and_a_resumed_run_is_the_same(finished: tuple[str, Path], shapes: Path, tmp_path: Path):
    head, expected = finished
    run = tmp_path / "run"
    started = Command(arguments(run, shapes, head, save_every=100), tmp_path / "log")
    deadline = time.monotonic() + LONG
    while last_step(run) < 3:
        assert started.process.is_alive(), started.output
        assert time.monotonic() < deadline, started.output
        time.sleep(0.005)
    os.kill(started.process.pid, signal.SIGTERM)
    assert started.wait() == 143, started.output
    resume(run, tmp_path / "log")
    assert metric_lines(run) == metric_lines(expected)


@pytest.mark.parametrize("head", ["linear", pytest.param("queries", marks=pytest.mark.slow)])
@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_give_the_losses_of_one(head: str, parallel: str, shapes: Path, tmp_path: Path):
    """Without dropout, which each rank draws for itself; queries draw points, too, so that theirs are only near.

    Batch normalisation is over the ranks: a batch of 8 on one process, and of 4 on each of two.
    """
    plain: dict[str, Any] = {"dropout": 0.0, "steps": 6}
    one, two = tmp_path / "one", tmp_path / "two"
    started = Command(arguments(one, shapes, head, **plain, micro=8), tmp_path / "log")
    assert started.wait() == 0, started.output
    done = torchrun(*arguments(two, shapes, head, **plain, parallel=parallel))
    assert done.returncode == 0, done.stderr
    tolerance = 1e-5 if head == "linear" else 0.5
    assert losses(two) == pytest.approx(losses(one), rel=0, abs=tolerance)
    scores = [[line["mean_iou"] for line in metric_lines(run, "score")] for run in (one, two)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4 if head == "linear" else 0.2)


@pytest.mark.parametrize("head", ["linear", pytest.param("queries", marks=pytest.mark.slow)])
def test_bf16_gives_about_the_losses_of_fp32(head: str, shapes: Path, tmp_path: Path):
    runs = {}
    for precision in ("fp32", "bf16"):
        runs[precision] = tmp_path / precision
        started = Command(arguments(runs[precision], shapes, head, precision=precision, dropout=0.0), tmp_path / "log")
        assert started.wait() == 0, started.output
    # the first losses are those of the same weights; later ones drift apart, as bf16 rounds
    assert losses(runs["bf16"])[:3] == pytest.approx(losses(runs["fp32"])[:3], rel=0.03)
    assert all(tensor.dtype == torch.float32 for tensor in weights(runs["bf16"]).values() if tensor.is_floating_point())


def test_a_segmenter_starts_from_another_one(finished: tuple[str, Path], shapes: Path, tmp_path: Path):
    """The head is kept where the classes are the same."""
    head, run = finished
    settings = {"weights": str(run), "model": f"mu/8+{head}", "steps": 1}
    started = Command(arguments(tmp_path / "next", shapes, head, **settings), tmp_path / "log")
    assert started.wait() == 0, started.output
    assert "head kept" in started.output
    assert json.loads((tmp_path / "next" / "evaluation.json").read_text())["mean_iou"]["value"] > 0.2


def test_validation_masks_that_ignore_every_pixel_are_named_as_the_reason(tmp_path: Path):
    data = write_masked_folder(tmp_path / "data", 4, splits=("train", "val", "test"))
    for path in (data / "masks" / "val").iterdir():
        Image.fromarray(np.full((48, 64), IGNORE, np.uint8)).save(path)
    settings: dict[str, Any] = {"model": "mu/8", "weights": "none", "image": (48, 64), "steps": 1, "epochs": None}
    with pytest.raises(DataError, match="no pixel of the validation images has a class"):
        vitkit.fit(data, out=tmp_path / "run", **settings)


def test_the_head_is_a_setting_and_no_part_of_the_name_of_a_model(shapes: Path, tmp_path: Path):
    settings: dict[str, Any] = {"weights": "none", "image": (48, 64), "steps": 1, "epochs": None}
    with pytest.raises(ConfigError) as error:
        vitkit.fit(shapes, out=tmp_path / "run", model="mu/8+queries", **settings)
    assert "--model mu/8 --set segment.head=queries" in str(error.value)


def test_queries_in_one_block_are_described():
    config = Fit(model="mu/8", weights="none", image=(48, 64), objective="segment")
    queries = replace(config, segment=Segment(head="queries", queries=1, query_blocks=1))
    description = initial_model(queries, CLASSES, multilabel=False)[1]
    assert description.endswith("1 mask query in the last block for 3 classes, new")


def test_named_weights_get_an_input_of_the_images_shape_and_a_segmenter_keeps_its_own(shapes: Path, tmp_path: Path):
    """As the default weights do: an input as large as that of the weights, 224 x 224 px, would lose the shape."""
    vitkit.save(vitkit.create("mu/4", classes=2, image=32), tmp_path / "pretrained")
    settings: dict[str, Any] = {"steps": 1, "epochs": None}
    first = vitkit.fit(shapes, out=tmp_path / "first", weights=str(tmp_path / "pretrained"), **settings)
    assert first.model.config.image == (48, 64)
    larger = write_masked_folder(tmp_path / "larger", 3, size=(96, 96))
    second = vitkit.fit(larger, out=tmp_path / "second", weights=str(first.path), **settings)
    assert second.model.config.image == (48, 64)
    asked = vitkit.fit(shapes, out=tmp_path / "third", weights=str(tmp_path / "pretrained"), image=(16, 24), **settings)
    assert asked.model.config.image == (16, 24)


def test_a_head_on_frozen_features_is_asked_for_by_freeze(shapes: Path, tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        vitkit.fit(shapes, out=tmp_path / "run", weights="ti16", start="head")
    assert "freeze=-1" in str(error.value)


def test_a_changed_mask_stops_a_resumed_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = write_masked_folder(tmp_path / "data", 4, splits=("train", "val", "test"))
    settings: dict[str, Any] = {"model": "mu/8", "weights": "none", "image": (48, 64), "steps": 1, "epochs": None}
    run = vitkit.fit(data, out=tmp_path / "run", **settings)
    (run.path / "report.html").unlink()  # as if it had been killed before its end
    mask = data / "masks" / "train" / "001.png"
    Image.fromarray(np.roll(np.asarray(Image.open(mask)), 5, axis=0)).save(mask)
    with pytest.raises(SystemExit) as stopped:
        main(["resume", str(run.path)])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "the content of 1 image or its mask has changed, under the same name" in message
    assert "restore these images or masks" in message


def test_a_run_that_cannot_be_scored_says_where_its_model_is(tmp_path: Path):
    """Masks that ignore every pixel leave nothing to score."""
    folder = write_masked_folder(tmp_path / "shapes", 8, splits=("train", "test"))
    for path in (folder / "masks" / "test").glob("*.png"):
        Image.fromarray(np.full((48, 64), IGNORED, np.uint8)).save(path)
    started = Command(arguments(tmp_path / "run", folder, "linear", steps=1), tmp_path / "log")
    assert started.wait() == 2
    assert "nothing to score" in started.output
    assert f"the trained model, in {tmp_path / 'run'}" in " ".join(started.output.split())
    assert (tmp_path / "run" / "model.safetensors").is_file()
