"""Progress counts images, whatever the items are, and names its rate."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.evaluate.small_model import small_model, some_fashion
from vitkit import progress
from vitkit.compute.features import FeatureExtractor
from vitkit.compute.split_logits import collect_logits
from vitkit.data.sources.dataset import Split
from vitkit.export.compare import compare
from vitkit.predict.classifier import Classifier
from vitkit.predict.samples import Samples


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the clock of the progress on."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_lines_count_the_images_of_batches(clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]):
    for _ in progress.show_progress(["a" * 64] * 57 + ["b" * 21], 3669, "evaluating", len):
        clock(0.32)
    lines = capsys.readouterr().err.splitlines()
    # 32 batches in 10.24 s
    assert lines == ["evaluating  2,048 of 3,669 images, 200 images/s, 8 s left"]


def test_items_are_images_if_nothing_else_is_said(clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]):
    for _ in progress.show_progress(range(3), 3, "decoding"):
        clock(8)
    assert capsys.readouterr().err == "decoding  2 of 3 images, 0.12 images/s, 8 s left\n"


def test_rates_of_thousands_are_written_out(clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]):
    for _ in progress.show_progress([123_450], 1_000_000, "features", int):
        clock(10)
    assert "123,450 of 1,000,000 images, 12,345 images/s, 71 s left" in capsys.readouterr().err


def test_batches_without_images_so_far_have_no_rate(clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]):
    for _ in progress.show_progress([0, 0, 5], 5, "evaluating", int):
        clock(11)
    assert capsys.readouterr().err == "evaluating  5 of 5 images, 0.15 images/s, 0 s left\n"


def test_a_terminal_shows_the_number_of_images(monkeypatch: pytest.MonkeyPatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    assert [*progress.show_progress([1000, 500], 1500, "evaluating", int)] == [1000, 500]
    assert "1,500 of 1,500 images" in terminal.getvalue()


class Counter:
    """A progress that adds up the images."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}

    def __call__(
        self, items: Iterable[Any], total: int, what: str, images_in: Any = progress.one_image
    ) -> Iterator[Any]:
        done = 0
        for item in items:
            yield item
            done += images_in(item)
        self.counts[what] = done, total


class WithBrokenImages:
    def __init__(self, split: Split) -> None:
        self.split = split

    def read(self, row: int) -> Any:
        return b"not an image" if row in (0, 1, 2, 33) else self.split.read(row)


def test_evaluation_and_features_count_every_image_also_broken_ones(tmp_path: Path):
    split = some_fashion(20).splits["test"]  # 50 images
    broken = replace(split, store=WithBrokenImages(split), rows=np.arange(len(split)))
    counter = Counter()
    collect_logits(small_model(), broken, batch=3, max_failed=1.0, progress=counter)
    assert counter.counts == {"evaluating": (50, 50)}
    collect_logits(small_model(), split, batch=7, rank=1, world_size=3, progress=counter)
    FeatureExtractor(model=small_model(), cache_folder=tmp_path, batch=16, max_failed=1.0, progress=counter)(broken)
    assert counter.counts == {"evaluating": (17, 17), "reading": (50, 50), "features": (50, 50)}


def test_a_comparison_counts_its_images(tmp_path: Path):
    vitkit.save(small_model(), tmp_path / "run")
    classifier, counter = Classifier(tmp_path / "run"), Counter()

    class Same:
        def probabilities(self, images: list[Any]) -> Any:
            return np.stack([classifier(image).probabilities for image in images])

    compare(classifier, Same(), Samples("fashion", some_fashion(20).splits["test"], 1), counter)
    assert counter.counts == {"comparing": (50, 50)}
