"""Run folders as training leaves them, and a parser of the page that is written from them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.data.sources.dataset import PackedStrings, Split
from vitkit.evaluate.evaluation import ClassScore, Estimate, Evaluation, Mistake, ReliabilityBin
from vitkit.model.base import Metadata
from vitkit.model.build import create
from vitkit.weights.native import record_of

HOSTILE = (
    "<script>alert(1)</script>",
    "\"quotes\" & 'more'",
    "{{ 7 * 7 }}",
    "$\\frac{a$",
    "bell\x07 and \udcff",
    "خيول عربية",
    "고양이",
    "a" * 120,
    "a_very/long-name.with_many_parts_that_has_no_space_in_it_at_all",
)
PLAIN = ("bird", "cat", "dog")
SIDE = 16


class RandomImages:
    """Images of 24 x 32 pixels, all different."""

    def read(self, row: int) -> np.ndarray:
        return np.random.default_rng(row).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def make_split(classes: tuple[str, ...], count: int = 40) -> Split:
    labels = np.arange(count) % len(classes)
    keys = PackedStrings(f"test/{classes[label]}/{row}.jpg" for row, label in enumerate(labels))
    return Split(keys, labels, RandomImages(), np.arange(count))


def make_evaluation(classes: tuple[str, ...], split: Split, **changes: Any) -> Evaluation:
    """Return an evaluation in which every eleventh prediction is the next class."""
    truths = split.labels
    predictions = np.where(np.arange(len(split)) % 11 == 0, (truths + 1) % len(classes), truths)
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (truths, predictions), 1)
    recall, precision = counts.diagonal() / counts.sum(axis=1), counts.diagonal() / counts.sum(axis=0)
    accuracy = float((predictions == truths).mean())
    wrong = np.flatnonzero(predictions != truths)
    fields: dict[str, Any] = {
        "data": "photos",
        "split": "test",
        "images": len(split),
        "classes": classes,
        "multilabel": False,
        "left_out": {},
        "unlabelled": 0,
        "missing": (),
        "extra": (),
        "loss": 0.5,
        "top1": Estimate(value=accuracy, low=accuracy - 0.0512, high=accuracy + 0.0498),
        "macro_f1": Estimate(value=0.6123, low=0.55, high=0.67),
        "balanced_accuracy": Estimate(value=0.6234, low=0.56, high=0.68),
        "calibration_error": 0.0456,
        "reliability": (
            ReliabilityBin(low=0.0, high=0.5, images=10, confidence=0.4, accuracy=0.5),
            ReliabilityBin(low=0.5, high=0.75, images=0, confidence=0.0, accuracy=0.0),
            ReliabilityBin(low=0.75, high=1.0, images=30, confidence=0.9, accuracy=0.7),
        ),
        "per_class": tuple(
            ClassScore(
                name=name,
                images=int(counts[row].sum()),
                recall=float(recall[row]),
                precision=float(precision[row]),
                f1=0.5,
            )
            for row, name in enumerate(classes)
        ),
        "confusion": tuple(map(tuple, counts.tolist())),
        "mistakes": tuple(
            Mistake(
                key=split.keys[int(index)],
                index=int(index),
                truth=classes[truths[index]],
                answer=classes[predictions[index]],
                confidence=0.93,
                of_truth=0.04,
            )
            for index in wrong
        ),
    }
    return Evaluation(**fields | changes)


def make_metrics(steps: int = 60) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        rows.append({"kind": "step", "step": step, "loss": 2 / step, "lr": 0.01, "norm": 1.2, "accuracy": 0.5})
        if step % 20 == 0:
            rows.append({"kind": "score", "step": step, "loss": 1.9, "top1": 0.41})
            rows.append({"kind": "speed", "step": step, "seconds": 12.3, "images_per_second": 412.0, "data_wait": 0.03})
    return rows


def make_run(folder: Path, classes: tuple[str, ...] = PLAIN, **changes: Any) -> dict[str, Any]:
    run = {
        "command": "vitkit fit photos --epochs 3",
        "started": "2026-11-15T12:00:00+00:00",
        "finished": "2026-11-15T12:02:03+00:00",
        "seconds": 123.4,
        "versions": {"vitkit": "0.1.0", "torch": "2.13.0"},
        "machine": "2 CPU cores, x86_64",
        "device": "cpu",
        "precision": "fp32",
        "processes": 1,
        "data": {
            "name": "photos",
            "kind": "class folders",
            "classes": len(classes),
            "pictures": {"train": 4800, "test": 40},
            "fingerprint": "0123abcd",
            "notes": ["two empty folders"],
            "counts": {"train": {name: 100 + index for index, name in enumerate(classes)}},
        },
        "plan": {"steps": 60, "epochs": 60 * 512 / 4320, "batch": 512, "micro": 256, "accumulate": 2, "processes": 1},
        "recipe_reason": "few images",
        "decisions": [["data", "photos: 4,800 train"], ["recipe", "small: 60 steps"]],
        "split": None,
        "learning_rates": [{"lr": 0.003, "top1": 0.87}, {"lr": 0.01, "top1": 0.91}],
        "parameters": 27_000,
        "macs": 1_570_000,
        "objective": "labels",
    }
    return run | changes


def write_run(
    folder: Path,
    classes: tuple[str, ...] = PLAIN,
    *,
    evaluation: Evaluation | None = None,
    metrics: list[dict[str, Any]] | None = None,
    config: Fit | None = None,
    **changes: Any,
) -> Path:
    folder.mkdir(exist_ok=True)
    model = create("mu/4", classes=len(classes), image=SIDE)
    model.metadata = Metadata(labels=classes)
    config = config or Fit(data="photos", model="mu/4", image=(SIDE, SIDE), weights="none", steps=60, lr=0.01)
    (folder / "config.toml").write_text(toml.write(config), encoding="utf-8")
    (folder / "model.json").write_text(json.dumps(record_of(model)), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(make_run(folder, classes, **changes)), encoding="utf-8")
    lines = [json.dumps(row) for row in (make_metrics() if metrics is None else metrics)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if evaluation is not None:
        (folder / "evaluation.json").write_text(json.dumps(asdict(evaluation)), encoding="utf-8")
    return folder


VOID = {"meta", "link", "img", "br", "wbr", "hr", "input"}


@dataclass
class ParsedPage(HTMLParser):
    """Elements with their attributes, the text of each kind of element, and wrong nesting."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    @classmethod
    def read(cls, path: Path) -> ParsedPage:
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        page.close()
        page.wrong += page.open
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.handle_data(" ")
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        """The text of the body with single spaces."""
        return " ".join(" ".join(self.texts["body"]).split())
