"""A run keeps its decoded images in memory or decodes them each time: the choice, its limits, and resumed runs."""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.sample_images import encode, scene
from tests.train.runs import (
    Command,
    assert_same_end,
    command_line,
    error_of,
    last_step,
    losses,
    resume,
    same_tensors,
    toy,
    train_run,
    weights,
)
from vitkit import devices
from vitkit.config.schema import Augmentation
from vitkit.data.image_cache import fill_cache
from vitkit.data.loader import MAX_THREADS, Loader
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform
from vitkit.run_folder import RunFolder
from vitkit.train import cache as cache_module
from vitkit.train import inputs
from vitkit.train.cache import CacheChoice, SharedCaches, choose_cache
from vitkit.train.distributed import Processes

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = Processes(torch.device("cpu"))
SETTINGS: dict[str, Any] = {"image": (8, 8), "channels": 3, "batch": 4, "micro": 4, "steps": 18, "save_every": 4}
BYTES = 24 * 3 * 16 * 27  # of 24 images of 24 x 40 pixels at twice the model's input, short side 16


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write 24 training images of three times the size of the model's input, and two to test on."""
    for index in range(26):
        folder = tmp_path / "photos" / ("test" if index > 23 else "train") / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:02d}.png").write_bytes(encode(np.roll(scene(24, 40), 3 * index, axis=1), "PNG"))
    return tmp_path / "photos"


def choose(data: Data, requested: Any, *, is_new: bool = True, epochs: float = 3, side: int = 8) -> CacheChoice:
    transform = TrainTransform(image=(side, side))
    return choose_cache(requested, data.splits["train"], transform, 3, CPU, epochs=epochs, is_new=is_new)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the machine have so many bytes of free memory."""
    monkeypatch.setattr(devices, "available_memory", lambda: size)


def test_images_that_fit_are_kept_and_the_choice_is_said_with_its_size(photos: Path, monkeypatch: pytest.MonkeyPatch):
    free(monkeypatch, 2**30)
    choice = choose(open_data(photos), "auto")
    assert choice.memory == "ram"
    assert choice.cache is not None
    assert choice.cache.pixels.numel() == BYTES
    assert "24 images in host memory, 0 MiB (at most 50% of the free 1.0 GiB may be used)" in choice.description


def test_half_of_the_free_memory_is_the_limit(photos: Path, monkeypatch: pytest.MonkeyPatch):
    data = open_data(photos)
    free(monkeypatch, 2 * BYTES)
    assert choose(data, "auto").memory == "ram"
    free(monkeypatch, 2 * BYTES - 2)
    for requested in ("auto", "ram"):
        choice = choose(data, requested)
        assert (choice.memory, choice.cache) == ("no", None)
        assert choice.transform.shrink is None
        assert "about 0 MiB in host memory, and at most 50% of the free 0 MiB may be used" in choice.description
        assert "decoded in each epoch" in choice.description


def test_processes_of_a_host_share_its_memory(photos: Path, monkeypatch: pytest.MonkeyPatch):
    data = open_data(photos)
    free(monkeypatch, 4 * BYTES)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose(data, "ram").memory == "ram"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert choose(data, "ram").memory == "no"


def test_images_larger_than_the_sample_said_end_the_filling(photos: Path, monkeypatch: pytest.MonkeyPatch):
    free(monkeypatch, 2 * BYTES - 2)
    monkeypatch.setattr(cache_module, "estimate_bytes", lambda *arguments: BYTES // 2)
    choice = choose(open_data(photos), "auto")
    assert (choice.memory, choice.cache) == ("no", None)


def test_a_short_run_decodes_its_images_as_it_goes(photos: Path):
    choice = choose(open_data(photos), "auto", epochs=1.5)
    assert choice.memory == "no"
    assert "fewer than 2 epochs" in choice.description
    assert choose(open_data(photos), "ram", epochs=1.5).memory == "ram"


def test_a_gpu_cache_without_a_gpu_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    message = error_of(capsys, *command_line(tmp_path / "run", steps=2, cache="gpu"))
    assert "cache = gpu: this run computes on cpu" in message
    assert "--set cache=ram" in message


def test_a_run_with_a_cache_is_the_run_without_where_images_keep_their_size(photos: Path, tmp_path: Path):
    augmentation = Augmentation(randaugment=(2, 9), mixup=0.2)
    settings = {**SETTINGS, "data": str(photos), "image": (12, 12), "augment": augmentation}
    data = open_data(photos)
    one = train_run(toy(tmp_path / "no", **settings, cache="no"), data)
    for workers in (0, 2):
        other = train_run(toy(tmp_path / f"ram{workers}", **settings, cache="ram", workers=workers), data)
        assert losses(other) == losses(one)
        assert same_tensors(weights(other), weights(one))


@pytest.mark.parametrize("memory", [2**30, 10])
def test_a_resumed_run_has_the_pixels_that_it_began_with(
    memory: int, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Also where its images no longer fit into memory, and also where nobody asked for a cache."""
    data, settings = open_data(photos), {**SETTINGS, "data": str(photos)}
    expected = train_run(toy(tmp_path / "uninterrupted", **settings, cache="auto"), data)
    assert RunFolder(expected).config().cache == "ram"
    without = train_run(toy(tmp_path / "without", **settings, cache="no"), data)
    assert losses(without) != losses(expected)  # the images are stored at two thirds of their size
    augment, calls = inputs.augment, []

    def deadly(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 10:
            raise MemoryError
        return augment(*arguments, **options)

    monkeypatch.setattr(inputs, "augment", deadly)
    with pytest.raises(MemoryError):
        train_run(toy(tmp_path / "run", **settings, cache="auto"), data)
    free(monkeypatch, memory)
    lines: dict[str, str] = {}
    train_run(RunFolder(tmp_path / "run").config(), data, lines.__setitem__)
    assert ("none" in lines["cache"]) == (memory == 10)
    assert_same_end(tmp_path / "run", expected)


def test_a_run_of_a_version_without_caches_decodes_as_it_did(photos: Path, monkeypatch: pytest.MonkeyPatch):
    free(monkeypatch, 2**30)
    choice = choose(open_data(photos), "auto", is_new=False)
    assert (choice.memory, choice.transform.shrink) == ("no", None)


def test_a_killed_run_with_a_cache_resumes_to_the_same_bits(photos: Path, tmp_path: Path):
    settings = {**SETTINGS, "image": 8, "data": str(photos), "workers": 2, "augment__mixup": 0.2, "cache": "ram"}
    started = Command(command_line(tmp_path / "uninterrupted", **settings), tmp_path / "log")
    assert started.wait() == 0, started.output
    run = tmp_path / "run"
    for number, step in enumerate((3, 9)):
        arguments = ["resume", str(run)] if number else command_line(run, **settings)
        started = Command(arguments, tmp_path / "log", dies_at="vitkit.train.inputs:augment", after=step + 1)
        assert started.wait() == -signal.SIGKILL, started.output
    resume(run, tmp_path / "log")
    assert last_step(run) == 18
    assert_same_end(run, tmp_path / "uninterrupted")


@pytest.mark.gpu
def test_a_cache_on_a_gpu_gives_the_losses_of_one_in_host_memory(photos: Path, tmp_path: Path):
    data, settings = open_data(photos), {**SETTINGS, "data": str(photos), "device": "cuda"}
    on_gpu = train_run(toy(tmp_path / "gpu", **settings, cache="gpu"), data)
    assert RunFolder(on_gpu).config().cache == "gpu"
    assert losses(on_gpu) == losses(train_run(toy(tmp_path / "ram", **settings, cache="ram"), data))


def test_runs_on_the_same_images_share_what_is_kept_and_others_do_not(photos: Path):
    data, shared = open_data(photos), SharedCaches()
    split, transform = data.splits["train"], TrainTransform(image=(8, 8))

    def chosen(images: Split, transform: TrainTransform = transform) -> CacheChoice:
        return choose_cache("auto", images, transform, 3, CPU, epochs=3, is_new=True, shared=shared)

    first, again = chosen(split), chosen(split.select(range(24)), replace(transform, flip=False, crop=(0.5, 1.0)))
    assert again.cache is first.cache
    assert again.description == "24 images in host memory, 0 MiB, as in an earlier run"
    assert chosen(split.select(range(23))).cache is not first.cache
    assert chosen(split, replace(transform, image=(9, 9))).cache is not first.cache
    assert chosen(open_data(photos).splits["train"]).cache is not first.cache


def test_processes_crop_a_cache_as_the_main_process_does(photos: Path):
    split, transform = open_data(photos).splits["train"], TrainTransform(image=(8, 8), shrink=16)
    cache = fill_cache(split, transform, 3, budget=2**20, threads=1)
    dataset = SplitDataset(split=split, transform=transform, cache=cache)
    batches = []
    for workers in (0, 1, MAX_THREADS + 1):
        with closing(iter(Loader(dataset, 5, workers=workers))) as loaded:
            batches.append([next(loaded).images for _ in range(7)])
    assert all(torch.equal(one, other) for own in batches[1:] for one, other in zip(own, batches[0], strict=True))
