"""The training loop against a plain loop in torch, bit for bit; early stopping, roll-back, other data and models."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vitkit
from tests.data.sample_images import encode, scene
from tests.train.runs import (
    FASHION,
    command_line,
    last_step,
    losses,
    metric_lines,
    poison,
    same_tensors,
    states,
    toy,
    train_run,
    weights,
)
from vitkit.cli.main import main
from vitkit.config.schema import SGD, AdamW, Augmentation, Fit, Schedule
from vitkit.data.augment import Augment, augment, mix
from vitkit.data.loader import Loader
from vitkit.data.partition import Partition
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform
from vitkit.errors import ConfigError
from vitkit.kernels.fuse import fuse
from vitkit.model.build import Model
from vitkit.run_folder import RunFolder
from vitkit.train import inputs, trainer
from vitkit.train.distributed import Processes
from vitkit.train.prefetch import micro_batch_seed

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, WARMUP, ACCUMULATE, LR, CLIP, DROPOUT, SEED = 20, 4, 2, 3e-3, 0.5, 0.1, 3
AUGMENT = Augment(randaugment=(2, 9), mixup=0.2)
ADAMW = AdamW(weight_decay=0.1)


def full_config(out: Path, **settings: Any) -> Fit:
    """Settings with crop, flip, RandAugment, mixup, dropout, accumulation, clipping, warm-up and weight decay."""
    return toy(
        out,
        **{
            "steps": STEPS,
            "seed": SEED,
            "lr": LR,
            "clip": CLIP,
            "dropout": DROPOUT,
            "optimizer": ADAMW,
            "schedule": Schedule(warmup=WARMUP),
            "augment": Augmentation(crop=(0.3, 1.0), randaugment=(2, 9), mixup=0.2),
            **settings,
        },
    )


@dataclass
class PlainResult:
    losses: list[float]
    weights: dict[str, Tensor]
    average: dict[str, Tensor]


def plain_loop(
    kind: type[torch.optim.Optimizer],
    *,
    decay: float,
    data: Data = FASHION,
    steps: int = STEPS,
    skipped: Iterable[int] = (),
    scales: dict[str, float] | None = None,
    average: float = 0.0,
    accumulate: int = ACCUMULATE,
    loss: dict[str, Any] | None = None,
    **options: Any,
) -> PlainResult:
    """Train as in a tutorial: batches, loss, backward, clip, step. `scales` are learning rates by name prefix."""
    torch.manual_seed(SEED)
    model = vitkit.create("mu/4", image=28, channels=1, classes=10, dropout=DROPOUT).train()
    fuse(model, class_token_only=True)  # as a run does: another order of sums would differ in the last bits
    groups = [
        {
            "params": [parameter],
            "weight_decay": decay if name.endswith("weight") and parameter.ndim > 1 else 0.0,
            "scale": next((scale for start, scale in (scales or {}).items() if name.startswith(start)), 1.0),
        }
        for name, parameter in model.named_parameters()
    ]
    optimizer = kind(groups, lr=LR, **options)
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    dataset = SplitDataset(
        split=data.splits["train"], transform=TrainTransform(image=(28, 28), crop=(0.3, 1.0)), channels=1, seed=SEED
    )
    batches, step_losses = iter(Loader(dataset, batch_size=16 // accumulate)), []
    for step in range(steps):
        terms = []
        for number in range(step * accumulate, (step + 1) * accumulate):
            batch = next(batches)
            pixels = augment(batch.images, batch.indices, AUGMENT, seed=SEED, epoch=batch.epochs.numpy())
            targets = F.one_hot(batch.labels, 10).float()
            pixels, targets = mix(pixels, targets, AUGMENT, seed=SEED, step=number, rank=0)
            torch.manual_seed(micro_batch_seed(SEED, number, 0))
            terms.append(F.cross_entropy(model((pixels - 0.5) / 0.5), targets, **(loss or {})))
            if step not in skipped:
                (terms[-1] / accumulate).backward()
        if step in skipped:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        progress = max(step - WARMUP, 0) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = LR * (min((step + 1) / WARMUP, 1) * 0.5 * (1 + math.cos(math.pi * progress)))
            group["lr"] *= group["scale"]
        optimizer.step()
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            shadow[name].lerp_(parameter.detach(), (1 - average) / (1 - average ** (len(step_losses) + 1)))
        step_losses.append(torch.stack([term.detach() for term in terms]).mean().item())
    return PlainResult(step_losses, model.state_dict(), shadow)


# The first twenty steps


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (AdamW(weight_decay=0.1), {"kind": torch.optim.AdamW, "decay": 0.1}),
        (SGD(momentum=0.9, weight_decay=1e-3), {"kind": torch.optim.SGD, "decay": 1e-3, "momentum": 0.9}),
    ],
    ids=["AdamW", "SGD"],
)
def test_losses_and_weights_are_those_of_a_plain_loop(ours: Any, theirs: dict[str, Any], tmp_path: Path):
    run = train_run(full_config(tmp_path / "run", optimizer=ours))
    expected = plain_loop(**theirs)
    assert losses(run) == expected.losses
    assert len(set(expected.losses)) == STEPS
    assert same_tensors(weights(run), expected.weights)


def test_label_smoothing_and_class_balance_reach_the_loss(tmp_path: Path):
    """300 images of one class, 30 of each other, weighted by 57 / count: the average over 570 labels is 1."""
    train = FASHION.splits["train"]
    rare = train.select(
        np.concatenate([np.flatnonzero(train.labels == label)[: 30 if label else 300] for label in range(10)])
    )
    data = replace(FASHION, splits={**FASHION.splits, "train": rare})
    run = train_run(full_config(tmp_path / "run", label_smoothing=0.1, balance=1.0), data)
    weight = torch.tensor([570 / 10 / 300] + [570 / 10 / 30] * 9)
    expected = plain_loop(torch.optim.AdamW, decay=0.1, data=data, loss={"label_smoothing": 0.1, "weight": weight})
    assert losses(run) == pytest.approx(expected.losses, abs=1e-6)


def test_layer_decay_reaches_the_optimizer(tmp_path: Path):
    run = train_run(full_config(tmp_path / "run", layer_decay=0.5))
    scales = {
        "encoder.blocks.1": 0.5,
        "encoder.blocks.0": 0.25,
        "patches": 0.125,
        "class_token": 0.125,
        "encoder.positions": 0.125,
    }
    assert losses(run) == plain_loop(torch.optim.AdamW, decay=0.1, scales=scales).losses


def test_the_saved_model_has_the_ema_weights_where_there_are_any(tmp_path: Path):
    run = train_run(full_config(tmp_path / "run", average=0.9))
    expected = plain_loop(torch.optim.AdamW, decay=0.1, average=0.9)
    assert losses(run) == expected.losses
    assert same_tensors(weights(run), expected.average)
    assert not same_tensors(weights(run), expected.weights)


def test_frozen_weights_stay_bit_for_bit(tmp_path: Path):
    run = weights(train_run(full_config(tmp_path / "run", freeze=1, average=0.9, optimizer=ADAMW, steps=8)))
    torch.manual_seed(SEED)
    start = vitkit.create("mu/4", image=28, channels=1, classes=10).state_dict()
    moved = {name for name in start if not torch.equal(start[name], run[name])}
    assert moved == {name for name in start if name.startswith(("encoder.blocks.1.", "encoder.norm.", "head."))}


# Early stopping


def fake_scores(monkeypatch: pytest.MonkeyPatch, scores: Iterable[float]) -> None:
    remaining = iter(scores)
    monkeypatch.setattr(
        trainer,
        "build_validation",
        lambda *arguments, **options: lambda: {"score": next(remaining), "loss": 0.0, "top1": 0.0},
    )


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_early_stopping_keeps_the_best_step(average: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_scores(monkeypatch, [0.1, 0.4, 0.3, 0.4])
    config = full_config(tmp_path / "run", patience=2, dev=0.1, score_every=3, save_every=2, average=average)
    run = train_run(config)
    assert len(losses(run)) == 12
    data = replace(FASHION, splits={"train": trainer.partition(FASHION, **config.partition).train})
    expected = plain_loop(torch.optim.AdamW, decay=0.1, data=data, steps=6, average=average)
    assert same_tensors(weights(run), expected.average if average else expected.weights)


@pytest.mark.parametrize("damaged", ["shard", "record", "gone"])
def test_a_damaged_best_checkpoint_is_told_and_the_last_step_is_kept(
    damaged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    checkpoints = tmp_path / "run/checkpoints"

    def scores() -> Iterator[float]:
        yield from (0.1, 0.4, 0.3)
        best = checkpoints / "step-00000006"
        if damaged == "gone":
            shutil.rmtree(best)
        else:
            (path,) = best.glob("*.safetensors" if damaged == "shard" else "record.json")
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        yield 0.3

    fake_scores(monkeypatch, scores())
    told: list[tuple[str, str]] = []
    config = full_config(tmp_path / "run", patience=2, dev=0.1, score_every=3, save_every=2)
    run = train_run(config, print_line=lambda label, text: told.append((label, text)))
    (warning,) = [text for label, text in told if label == "warning"]
    assert f"{checkpoints / 'step-00000006'}, the checkpoint with the best score, is damaged" in warning
    assert "the weights of the last step, 12, are kept instead" in warning
    record = RunFolder(run).record()
    assert (record["kept_step"], record["lost_best"]) == (12, warning)
    data = replace(FASHION, splits={"train": trainer.partition(FASHION, **config.partition).train})
    expected = plain_loop(torch.optim.AdamW, decay=0.1, data=data, steps=12, average=0.0)
    assert same_tensors(weights(run), expected.weights)


def test_a_run_that_improves_until_the_end_is_not_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_scores(monkeypatch, [0.1, 0.2, 0.2, 0.3])
    run = train_run(full_config(tmp_path / "run", patience=2, dev=0.1, score_every=5))
    assert len(losses(run)) == STEPS
    final = {
        name.removeprefix("weights.model."): tensor
        for name, tensor in states(run)["step-00000020"].items()
        if name.startswith("weights.")
    }
    assert same_tensors(weights(run), final)


def test_patience_without_validation_images_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"patience = 2(.|\n)*--set dev=0\.1"):
        train_run(full_config(tmp_path / "run", patience=2))


def test_validation_scores_are_those_of_plain_counting(tmp_path: Path):
    config = full_config(tmp_path / "run", dev=0.02, steps=6, score_every=6)
    run = train_run(config)
    dev = trainer.partition(FASHION, **config.partition).validation
    assert dev is not None
    model = vitkit.load(run).eval()
    pixels = torch.stack([torch.from_numpy(dev.read(index)).permute(2, 0, 1) for index in range(len(dev))])
    with torch.no_grad():
        logits = model((pixels / 255 - 0.5) / 0.5)
    labels = torch.from_numpy(dev.labels)
    (score,) = metric_lines(run, "score")
    assert score["top1"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    assert score["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)


# Losses that are not finite


@pytest.mark.parametrize(("bad", "back"), [(2, 0), (11, 10), (19, 15)])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_whose_loss_is_not_finite_is_rolled_back_and_skipped(
    bad: int,
    back: int,
    kind: type[torch.optim.Optimizer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    poison(monkeypatch, SEED, [bad * ACCUMULATE + 1])
    decay = 0.1 if kind is torch.optim.AdamW else 0.0
    options = {} if decay else {"momentum": 0.9}
    run = train_run(full_config(tmp_path / "run", save_every=5, average=0.9, optimizer=ADAMW if decay else SGD()))
    assert metric_lines(run, "rolled-back") == [
        {"kind": "rolled-back", "step": bad + 1, "to": back, "what": "loss is nan"}
    ]
    assert f"the loss is nan at step {bad + 1}: rolled back to step {back}" in capsys.readouterr().err
    assert [line["step"] for line in metric_lines(run, "step")] == [step for step in range(1, 21) if step != bad + 1]
    expected = plain_loop(kind, decay=decay, average=0.9, skipped=[bad], **options)
    assert losses(run) == expected.losses
    assert same_tensors(weights(run), expected.average)


def test_several_non_finite_steps_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    poison(monkeypatch, SEED, [14, 21, 36])
    run = train_run(full_config(tmp_path / "run", save_every=5))
    assert [(line["step"], line["to"]) for line in metric_lines(run, "rolled-back")] == [(8, 5), (11, 10), (19, 15)]
    assert losses(run) == plain_loop(torch.optim.AdamW, decay=0.1, skipped=[7, 10, 18]).losses


def test_a_run_that_diverges_is_an_error_and_keeps_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    poison(monkeypatch, SEED, range(14, 40))
    command = command_line(out, steps=20, seed=SEED, save_every=5, lr=0.02)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "training diverges" in message
    assert "a lower --lr (it was 0.02)" in message
    assert not (out / "model.json").exists()
    monkeypatch.setattr(inputs, "augment", augment)
    main(["resume", str(out)])
    assert [line["step"] for line in metric_lines(out, "step")][-1] == 20
    assert (out / "model.json").exists()


# Other data, other models


def test_a_model_pretrained_without_labels_is_fine_tuned_with_labels(tmp_path: Path):
    for index in range(12):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{index}.png").write_bytes(encode(np.roll(scene(20, 30), index, axis=1), "PNG"))
    before, after = tmp_path / "before", tmp_path / "after"
    main(
        [
            "pretrain",
            str(tmp_path / "photos"),
            "--model",
            "mu/4",
            "--image",
            "16",
            "--steps",
            "4",
            "--batch",
            "8",
            "--workers",
            "0",
            "--out",
            str(before),
        ]
    )
    assert len(losses(before)) == 4
    main(
        [
            "fit",
            "fashion",
            "--weights",
            str(before),
            "--image",
            "24",
            "--steps",
            "3",
            "--batch",
            "8",
            "--workers",
            "0",
            "--out",
            str(after),
            "--set",
            "freeze=-1",
        ]
    )
    start, end = vitkit.load(before, image=24).state_dict(), vitkit.load(after)
    assert end.config.image == (24, 24)
    assert end.config.classes == 10
    assert end.metadata.labels == FASHION.classes
    for name, tensor in end.state_dict().items():
        assert name.startswith("head.") or torch.equal(tensor, start[name])
    # with a zero-initialised head all ten classes are equally likely
    assert losses(after)[0] == pytest.approx(math.log(10), abs=1e-4)


def test_multi_label_data_can_be_trained_on(tmp_path: Path):
    rows = ["path,labels"]
    for index in range(24):
        (tmp_path / f"{index}.png").write_bytes(encode(np.roll(scene(16, 16), index, axis=1), "PNG"))
        rows.append(f"{index}.png,{' '.join(('a', 'b', 'c')[: 1 + index % 3])}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    data = open_data(tmp_path / "list.csv")
    assert data.multilabel
    out = tmp_path / "run"
    main(command_line(out, data=str(tmp_path / "list.csv"), steps=6, image=16, channels=3, dev=0.2, score_every=3))
    # with a zero-initialised head each of three classes has probability 1/2
    assert losses(out)[0] == pytest.approx(3 * math.log(2), abs=0.05)
    assert len(metric_lines(out, "score")) == 2
    assert vitkit.load(out).config.classes == 3


@pytest.mark.parametrize(("model", "image"), [("R50x1", 32), ("R+Ti/16", 32)])
def test_resnets_and_hybrids_train_with_the_same_command(model: str, image: int, tmp_path: Path):
    main(
        command_line(
            tmp_path / "run",
            model=model,
            image=image,
            steps=2,
            batch=4,
            micro=4,
            save_every=9,
            schedule__warmup=0,
            optimizer__kind="sgd",
            lr=0.3,
        )
    )
    assert last_step(tmp_path / "run") == 2
    assert all(map(math.isfinite, losses(tmp_path / "run")))
    torch.manual_seed(0)
    start = vitkit.create(model, image=image, channels=1, classes=10).state_dict()
    run = weights(tmp_path / "run")
    moved = [name for name in start if not torch.equal(start[name], run[name])]
    assert len(moved) > 0.9 * len(start)


def test_what_is_done_meanwhile_begins_once_in_a_thread_after_the_first_step(tmp_path: Path):
    began: list[str] = []

    def meanwhile(model: Model, splits: Partition) -> None:
        assert (model.config.classes, len(splits.train) > 0) == (10, True)
        began.append(threading.current_thread().name)

    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    processes = Processes(torch.device("cpu"))
    trainer.train(toy(run.path, steps=3), FASHION, run, processes, lambda *_: None, meanwhile=meanwhile)
    run.close()
    for thread in threading.enumerate():
        if thread.name == "vitkit-meanwhile":
            thread.join(60)
    assert began == ["vitkit-meanwhile"]
