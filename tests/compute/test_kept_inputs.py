"""Inputs that a pass over a split has kept give the logits of inputs that are loaded again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from tests.data.sample_images import encode, scene
from vitkit import devices
from vitkit.compute import kept_inputs, split_logits
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.split_logits import collect_logits, load_inputs_ahead
from vitkit.config.schema import Fit
from vitkit.data import sample
from vitkit.data.batch import Batch
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.run import prepare_scoring


@pytest.fixture
def split(tmp_path: Path) -> Split:
    """Write 150 images, one of them broken: two parts and a rest."""
    for index in range(150):
        path = tmp_path / "photos" / "ab"[index % 2] / f"{index:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            encode(np.roll(scene(12, 16), index, axis=1), "PNG") if index != 70 else b"broken"
        )  # row 35: class by class
    return open_data(tmp_path / "photos").splits["all"]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the images that are decoded."""
    counted: list[int] = []
    decode = sample.decode

    def counting(*arguments: object, **options: object) -> np.ndarray:
        counted.append(1)
        return decode(*arguments, **options)

    monkeypatch.setattr(sample, "decode", counting)
    return counted


@pytest.mark.parametrize("workers", [0, 2])
def test_a_second_pass_gives_the_same_logits_without_decoding(split: Split, workers: int, decoded: list[int]):
    torch.manual_seed(0)
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    torch.nn.init.normal_(model.head.logits.weight)
    loaded = collect_logits(model, split, batch=64, workers=workers, max_failed=0.1)
    first = collect_logits(model, split, batch=64, workers=workers, max_failed=0.1, kept=kept)
    decoded.clear()
    again = collect_logits(model, split, batch=128, workers=workers, max_failed=0.1, kept=kept)
    assert not decoded
    for result in (first, again):
        torch.testing.assert_close(result.logits, loaded.logits, rtol=1e-5, atol=1e-6)  # the sums of a batch of 128
        assert torch.equal(result.labels, loaded.labels)
        assert torch.equal(result.indices, loaded.indices)
        assert result.failures.keys() == loaded.failures.keys() == {35}


def test_another_split_or_model_input_is_loaded(split: Split, decoded: list[int]):
    kept = KeptInputs()
    small, large = (vitkit.create("mu/8", classes=2, image=side) for side in (16, 24))
    whole, half = split.select(range(60)), split.select(range(30))
    for model, images, loads in ((small, whole, 60), (small, half, 30), (large, whole, 60), (small, whole, 0)):
        decoded.clear()
        collect_logits(model, images, kept=kept)
        assert len(decoded) == loads


def test_inputs_that_do_not_fit_are_loaded_each_time(split: Split, decoded: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "available_memory", lambda: 10 * 100 * 3 * 16 * 16 * 4)  # a tenth: for 100 images
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    for images, loads in ((140, 140), (140, 140), (60, 60), (60, 0), (50, 50), (50, 50)):
        decoded.clear()
        result = split_logits.collect_logits(model, split.select(range(images)), max_failed=0.1, kept=kept)
        assert len(decoded) == loads
        assert len(result.indices) == images - 1


def test_inputs_that_were_loaded_ahead_give_the_same_logits_once(
    split: Split, decoded: list[int], caplog: pytest.LogCaptureFixture
):
    torch.manual_seed(0)
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    torch.nn.init.normal_(model.head.logits.weight)
    loaded = collect_logits(model, split, max_failed=0.1)
    load_inputs_ahead(model, split, device=torch.device("cpu"), threads=2, kept=kept)
    decoded.clear()
    caplog.clear()
    ahead = collect_logits(model, split, max_failed=0.1, kept=kept)
    assert not decoded
    assert torch.equal(ahead.logits, loaded.logits)
    assert torch.equal(ahead.labels, loaded.labels)
    assert ahead.failures == loaded.failures
    assert "070.png" in caplog.text  # a failure is named when it counts
    strict = KeptInputs()
    load_inputs_ahead(model, split, device=torch.device("cpu"), threads=2, kept=strict)
    with pytest.raises(DataError, match="could not be decoded"):
        collect_logits(model, split, max_failed=0, kept=strict)


def test_a_pass_waits_for_inputs_that_are_being_loaded(split: Split, decoded: list[int]):
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    begun, go_on = threading.Event(), threading.Event()
    load = kept.load_ahead

    def slow(dataset: SplitDataset, device: torch.device, share: tuple[int, int, int], batches: Iterable[Batch]):
        def waiting() -> Iterator[Batch]:
            begun.set()
            assert go_on.wait(60)
            yield from batches

        load(dataset, device, share, waiting())

    kept.load_ahead = slow  # type: ignore[method-assign]
    options = {"device": torch.device("cpu"), "threads": 1, "kept": kept}
    threading.Thread(target=lambda: load_inputs_ahead(model, split, **options), daemon=True).start()
    assert begun.wait(60)
    threading.Timer(0.2, go_on.set).start()
    result = collect_logits(model, split, max_failed=0.1, kept=kept)
    assert len(result.logits) == 149
    assert len(decoded) == 150


@pytest.mark.parametrize("ending", ["fails", "is cancelled"])
def test_a_pass_loads_what_was_not_loaded_ahead(split: Split, ending: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    torch.nn.init.normal_(model.head.logits.weight)
    plain = collect_logits(model, split, max_failed=0.1)
    load = split_logits.sequential_batches

    def ends_early(*arguments: Any, **options: Any) -> Iterator[Batch]:
        for number, batch in enumerate(load(*arguments, **options)):
            if number == 2 and ending == "fails":
                raise MemoryError
            if number == 2:
                kept.cancel_ahead()
            yield batch

    monkeypatch.setattr(split_logits, "sequential_batches", ends_early)
    load_inputs_ahead(model, split, device=torch.device("cpu"), threads=2, kept=kept)
    monkeypatch.setattr(split_logits, "sequential_batches", load)
    result = collect_logits(model, split, max_failed=0.1, kept=kept)
    assert torch.equal(result.logits, plain.logits)
    assert torch.equal(result.indices, plain.indices)


def test_a_split_of_many_images_is_left_to_the_pass(split: Split, decoded: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_inputs, "MOST_AHEAD", 149)
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    load_inputs_ahead(model, split, device=torch.device("cpu"), threads=1, kept=kept)
    assert not decoded


def test_inputs_that_do_not_fit_are_not_loaded_ahead(split: Split, decoded: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "available_memory", lambda: 10 * 149 * 3 * 16 * 16 * 4)
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    load_inputs_ahead(model, split, device=torch.device("cpu"), threads=1, kept=kept)
    assert not decoded


def test_a_run_loads_the_images_of_its_final_score_while_steps_are_computed(
    tmp_path: Path, split: Split, decoded: list[int]
):
    config = Fit(data=str(tmp_path / "photos"), device="cpu")
    splits = partition(open_data(tmp_path / "photos"), **config.partition)
    model, kept = vitkit.create("mu/8", classes=2, image=16), KeptInputs()
    prepare_scoring(config, kept, model, splits)
    assert splits.test is not None
    assert len(decoded) == len(splits.test)
    decoded.clear()
    collect_logits(model, splits.test, kept=kept)
    assert not decoded
