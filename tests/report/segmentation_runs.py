"""Run folders of segmentation models as training leaves them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.report.run_folders import write_run
from vitkit.config.schema import Fit
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.masks.palette import default_palette
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.dataset import PackedStrings, Split
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.evaluate.segmentation_scores import MaskCounts
from vitkit.evaluate.segmentation_summary import summarise_masks
from vitkit.model.base import Metadata
from vitkit.model.build import create
from vitkit.weights.native import record_of

STREET = ("sky", "road", "car")
HEIGHT, WIDTH = 24, 40


class StripedImages:
    """Images whose brightness says the class of each pixel, and their masks, of which the top row is ignored."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def read(self, row: int) -> np.ndarray:
        return np.repeat(self.levels(row)[:, :, None], 3, axis=2).astype(np.uint8)

    def read_mask(self, row: int, size: tuple[int, int]) -> np.ndarray:
        assert size == (HEIGHT, WIDTH)
        mask = self.levels(row).astype(np.uint8)
        mask[0] = IGNORE
        return mask

    def levels(self, row: int) -> np.ndarray:
        columns = (np.arange(WIDTH) + row) * self.classes // WIDTH % self.classes
        return np.broadcast_to(columns, (HEIGHT, WIDTH)).copy()


def make_mask_split(classes: int, count: int = 12) -> Split:
    images = StripedImages(classes)
    keys = PackedStrings(f"test/{row:02}.png" for row in range(count))
    return Split(keys, np.zeros(count, np.int64), images, np.arange(count), masks=images)


def predict_mask(pixels: np.ndarray) -> np.ndarray:
    """Return the mask of a striped image, wrong in the last rows: the more, the later its stripes begin."""
    mask = pixels[:, :, 0].copy()
    wrong = 1 + int(mask[0, 0]) * 3
    mask[-wrong:, : WIDTH // 2] = mask[-wrong:, WIDTH // 2 :]
    return mask


def evaluate_split(split: Split, classes: tuple[str, ...], **changes: Any) -> SegmentationEvaluation:
    counts = MaskCounts(len(classes))
    for index in range(len(split)):
        pixels = split.read(index)
        assert isinstance(pixels, np.ndarray)
        counts.add(index, predict_mask(pixels), split.read_mask(index, (HEIGHT, WIDTH)))
    fields: dict[str, Any] = {
        "data": "streets",
        "split": "test",
        "classes": classes,
        "palette": default_palette(len(classes)),
        "left_out": {},
        "unlabelled": 0,
        **summarise_masks(counts, classes, split.keys, split.leaked),
    }
    return SegmentationEvaluation(**fields | changes)


def make_mask_metrics() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, 61):
        rows.append({"kind": "step", "step": step, "loss": 2 / step, "lr": 0.01, "norm": 1.2, "pixel_accuracy": 0.7})
        if step % 20 == 0:
            rows.append({"kind": "score", "step": step, "loss": 1.9, "mean_iou": 0.41, "pixel_accuracy": 0.6})
    return rows


def write_mask_run(
    folder: Path, evaluation: SegmentationEvaluation | None, classes: tuple[str, ...] = STREET, **changes: Any
) -> Path:
    config = Fit(data="streets", model="mu/4", image=(16, 16), weights="none", steps=60, lr=0.01, objective="segment")
    data = {"name": "streets", "kind": "images and masks", "pictures": {"train": 4800, "test": 12}}
    changes = {"objective": "segment", "learning_rates": [{"lr": 0.01, "mean_iou": 0.41}], "data": data, **changes}
    write_run(folder, classes, metrics=make_mask_metrics(), config=config, **changes)
    model = create("mu/4+linear", classes=len(classes), image=16)
    model.metadata = Metadata(labels=classes, preprocessing=replace(Preprocessing(), resize="squash"))
    (folder / "model.json").write_text(json.dumps(record_of(model)), encoding="utf-8")
    if evaluation is not None:
        (folder / "evaluation.json").write_text(evaluation.to_json(), encoding="utf-8")
    return folder
