"""Segmentation beside peers of the same cost: vitkit's two heads, SegFormer and a U-Net, over seeds, in one run.

    python benchmarks/segmentation.py DATA [--image 352 480] [--epochs 100] [--batch 16] [--seeds 0 1 2]
                                      [--weights ti16] [--arms linear queries segformer unet] [--rates 3e-4 1e-3]
                                      [--device auto] [--json FILE]

DATA has masks, as `vitkit fit` takes them. The arms of vitkit are ordinary runs from the weights. The peers start from
nothing, for no weights of theirs come with a package: transformers' SegFormer-B0 and a plain U-Net, as wide as has the
multiply-adds of Ti/16 with a linear head. They get the same batches in the same order, augmented the same, the same
number of steps, AdamW with the better of two rates (on validation images, after a third of the steps), and the same
scoring. One rate with --rates leaves that choice out.
A difference to the arms of vitkit is therefore that of architecture and weights together; `--weights none` trains the
arms of vitkit from scratch, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peers_of_segmentation import unet_of_cost
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import SegformerConfig, SegformerForSemanticSegmentation

import vitkit
from vitkit.compute.segment import ComputeMask, exact_scores
from vitkit.config.recipes import recipe
from vitkit.config.schema import Fit
from vitkit.config.toml import assignments, merge
from vitkit.data.loader import Loader
from vitkit.data.masked_transforms import MaskedTrainTransform
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.partition import Partition, partition
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.devices import cores, pick_device
from vitkit.evaluate.segmentation import predicted_masks
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.evaluate.segmentation_scores import MaskCounts, score_masks
from vitkit.train.cache import choose_cache
from vitkit.train.distributed import Processes
from vitkit.train.inputs import MaskInputs
from vitkit.train.training_transform import canvas_size

OURS, PEERS = ("linear", "queries"), ("segformer", "unet")


@dataclass(frozen=True, kw_only=True)
class Result:
    arm: str
    seed: int
    mean_iou: float
    pixel_accuracy: float
    seconds: float  # of training and scoring
    gmacs: float
    parameters: int
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--image", type=int, nargs=2, default=(352, 480))
    parser.add_argument("--epochs", type=float, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--rates", type=float, nargs="+", default=(3e-4, 1e-3), help="of AdamW, for the peers")
    parser.add_argument("--weights", default="ti16")
    parser.add_argument("--arms", nargs="+", choices=(*OURS, *PEERS), default=(*OURS, *PEERS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=max(cores() - 1, 1))
    parser.add_argument("--set", nargs="*", default=[], help="other settings of vitkit's arms, such as lr=0.001")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: list[Result] = []
    for arm in options.arms:
        train = fit_arm if arm in OURS else PeerArm(arm, options)
        for seed in options.seeds:
            results.append(train(arm, seed, options) if arm in OURS else train(seed))
            print_row(results[-1])
            if options.json:
                options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print_table(results)


def fit_arm(arm: str, seed: int, options: argparse.Namespace) -> Result:
    """Run `vitkit fit` and read its score."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        settings: dict[str, Any] = {
            "weights": options.weights,
            "image": tuple(options.image),
            "epochs": options.epochs,
            "batch": options.batch,
            "seed": seed,
            "task": "segment",
            "segment": {"head": arm},
            "device": options.device,
            "workers": options.workers,
            "out": str(Path(folder) / "run"),
            **({"model": "Ti/16"} if options.weights == "none" else {}),
        }
        settings = merge(settings, assignments(tuple(options.set)))
        run = vitkit.fit(options.data, **settings)
        evaluation = SegmentationEvaluation.read(run.path / "evaluation.json")
        model = vitkit.load(run.path)
    return Result(
        arm=arm,
        seed=seed,
        mean_iou=evaluation.mean_iou.value,
        pixel_accuracy=evaluation.pixel_accuracy.value,
        seconds=round(time.perf_counter() - began, 1),
        gmacs=multiply_adds(model, options.image) / 1e9,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        rate=settings.get("lr", recipe("small_segmentation").lr),
    )


class PeerArm:
    """A peer, trained from scratch by a plain loop on the batches that vitkit trains on."""

    def __init__(self, arm: str, options: argparse.Namespace):
        self.arm, self.options = arm, options
        self.device = pick_device(options.device)
        self.data: Data = open_data(options.data, task="segment")
        self.config: Fit = recipe("small_segmentation")
        self.splits: Partition = partition(self.data, objective="segment")
        self.rate: float | None = None
        canvas = canvas_size(self.splits.train, tuple(options.image), self.config.augment.scale[1])
        self.cache = choose_cache(  # as vitkit's arms have it
            "auto",
            self.splits.train,
            MaskedTrainTransform(image=canvas),
            3,
            Processes(self.device),
            epochs=options.epochs,
            is_new=True,
        )

    def __call__(self, seed: int) -> Result:
        if self.rate is None:
            self.rate = self._choose_rate()
        began = time.perf_counter()
        model, test = self._train(self.rate, seed, self.options.epochs), self.splits.test
        assert test is not None
        counts = self._score(model, test)
        scores = score_masks(counts)
        return Result(
            arm=self.arm,
            seed=seed,
            mean_iou=scores.mean_iou.value,
            pixel_accuracy=scores.pixel_accuracy.value,
            seconds=round(time.perf_counter() - began, 1),
            gmacs=multiply_adds(model, self.options.image) / 1e9,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            rate=self.rate,
        )

    def _choose_rate(self) -> float:
        """Return the rate with the better score on validation images, or the lower one where there are none."""
        split, rates = self.splits.validation, tuple(self.options.rates)
        if split is None or len(rates) == 1:
            return rates[0]
        epochs = self.options.epochs / 3
        scores = {rate: score_masks(self._score(self._train(rate, 0, epochs), split)).mean_iou.value for rate in rates}
        print(f"{self.arm}: validation mean IoU by rate {scores}", file=sys.stderr, flush=True)
        return max(scores, key=scores.__getitem__)

    def _train(self, rate: float, seed: int, epochs: float) -> nn.Module:
        torch.manual_seed(seed)
        size = (self.options.image[0], self.options.image[1])
        model = build_peer(self.arm, len(self.data.classes), size).to(self.device)
        steps = math.ceil(epochs * len(self.splits.train) / self.options.batch)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05)
        warmup = 0.05 * steps
        model.train()
        for step, (pixels, masks) in zip(range(steps), self._batches(seed), strict=False):
            factor = min((step + 1) / warmup, 1) * (1 + math.cos(math.pi * step / steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                scores = model((pixels - 0.5) / 0.5)
            upsampled = F.interpolate(scores.float(), masks.shape[1:], mode="bilinear")
            loss = F.cross_entropy(upsampled, masks.long(), ignore_index=IGNORE)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model.eval()

    def _batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the pixels and masks of vitkit's own steps, on the device."""
        size = (self.options.image[0], self.options.image[1])
        dataset = SplitDataset(
            split=self.splits.train, transform=self.cache.transform, cache=self.cache.cache, seed=seed
        )
        inputs = MaskInputs(self.config, size)
        loader = Loader(dataset, batch_size=self.options.batch, workers=self.options.workers)
        for number, batch in enumerate(loader):
            yield inputs(number, batch.to(self.device))

    def _score(self, model: nn.Module, split: Split) -> MaskCounts:
        half = (0.5, 0.5, 0.5)
        preprocessing = Preprocessing(mean=half, std=half, resize="squash", crop=1.0)
        compute = ComputeMask(
            scores=exact_scores(model, self.device),
            transform=EvalTransform(image=(self.options.image[0], self.options.image[1]), preprocessing=preprocessing),
        )
        counts = MaskCounts(len(self.data.classes))
        for one in predicted_masks(compute, split, split.rows_with_labels(), 3, 16, self.options.workers):
            if not one.failure:
                counts.add(one.index, one.mask, one.target)
        return counts


class Segformer(nn.Module):
    """SegFormer-B0 of transformers, as a function of images to class scores."""

    def __init__(self, classes: int):
        super().__init__()
        self.model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.model(images).logits
        return scores


def build_peer(arm: str, classes: int, size: tuple[int, int]) -> nn.Module:
    if arm == "segformer":
        return Segformer(classes)
    like = vitkit.create("Ti/16+linear", classes=classes, image=size)
    return unet_of_cost(classes, size, multiply_adds(like, size), multiply_adds)


def multiply_adds(model: nn.Module, size: tuple[int, int]) -> float:
    """Count those of one image by torch's own counter, which counts two operations for each."""
    device = next(model.parameters()).device
    training = model.training
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, *size, device=device))
    model.train(training)
    return counter.get_total_flops() / 2


def print_row(result: Result) -> None:
    print(
        f"{result.arm:10} seed {result.seed}: mean IoU {result.mean_iou:.2%}, pixels {result.pixel_accuracy:.2%}, "
        f"{result.seconds:.0f} s, {result.gmacs:.2f} GMACs, {result.parameters / 1e6:.1f}M parameters, "
        f"rate {result.rate:g}",
        flush=True,
    )


def print_table(results: list[Result]) -> None:
    print("\n| arm | mean IoU, over seeds | pixel accuracy | seconds | GMACs | parameters |")
    print("| --- | --- | --- | --- | --- | --- |")
    for arm in dict.fromkeys(result.arm for result in results):
        own = [result for result in results if result.arm == arm]
        ious = [100 * result.mean_iou for result in own]
        spread = f" ± {statistics.stdev(ious):.2f}" if len(ious) > 1 else ""
        pixels = statistics.mean(result.pixel_accuracy for result in own)
        seconds = statistics.median(result.seconds for result in own)
        print(
            f"| {arm} | {statistics.mean(ious):.2f}{spread} | {pixels:.2%} | {seconds:.0f} | {own[0].gmacs:.2f} | "
            f"{own[0].parameters / 1e6:.1f}M |"
        )


if __name__ == "__main__":
    main()
