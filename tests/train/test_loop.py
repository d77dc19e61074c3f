"""The loop against plain loops over torch alone: the same losses and weights, bit for bit; and what it does in need."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import vitkit
from tests.data.images import encode, scene
from tests.train.runs import FASHION, lines, losses, poison, same, states, steps_of, toy, trained, weights, words
from vitkit.cli.main import main
from vitkit.config.schema import SGD, AdamW, Augmentation, Fit, Schedule
from vitkit.data.augment import Augment, augment, mix
from vitkit.data.loader import Loader, Reader
from vitkit.data.sources.base import Data
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import Fast
from vitkit.errors import ConfigError
from vitkit.train import loop, trainer
from vitkit.train.loop import address

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, WARMUP, PASSES, RATE, CLIP, DROPOUT, SEED = 20, 4, 2, 3e-3, 0.5, 0.1, 3
HOW = Augment(randaugment=(2, 9), mixup=0.2)
ADAMW = AdamW(weight_decay=0.1)


def full(out: Path, **settings: Any) -> Fit:
    """Crop, flip, RandAugment, mixup, dropout, accumulation, clipping, warm-up and weight decay."""
    return toy(
        out,
        **{
            "steps": STEPS,
            "seed": SEED,
            "lr": RATE,
            "clip": CLIP,
            "dropout": DROPOUT,
            "optimizer": ADAMW,
            "schedule": Schedule(warmup=WARMUP),
            "augment": Augmentation(crop=(0.3, 1.0), randaugment=(2, 9), mixup=0.2),
            **settings,
        },
    )


@dataclass
class Plain:
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
    passes: int = PASSES,
    loss: dict[str, Any] | None = None,
    **options: Any,
) -> Plain:
    """What every tutorial has: batches, loss, backward, clip, step. `scales`: rates by the start of a name."""
    torch.manual_seed(SEED)
    model = vitkit.create("mu/4", image=28, channels=1, classes=10, dropout=DROPOUT).train()
    groups = [
        {
            "params": [parameter],
            "weight_decay": decay if name.endswith("weight") and parameter.ndim > 1 else 0.0,
            "scale": next((scale for start, scale in (scales or {}).items() if name.startswith(start)), 1.0),
        }
        for name, parameter in model.named_parameters()
    ]
    optimizer = kind(groups, lr=RATE, **options)
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    reader = Reader(split=data.splits["train"], transform=Fast(image=(28, 28), crop=(0.3, 1.0)), channels=1, seed=SEED)
    batches, found = iter(Loader(reader, batch=16 // passes)), []
    for step in range(steps):
        parts = []
        for number in range(step * passes, (step + 1) * passes):
            batch = next(batches)
            pictures = augment(batch.images, batch.indices, HOW, seed=SEED, epoch=batch.epochs.numpy())
            targets = F.one_hot(batch.labels, 10).float()
            pictures, targets = mix(pictures, targets, HOW, seed=SEED, step=number, rank=0)
            torch.manual_seed(address(SEED, number, 0))
            parts.append(F.cross_entropy(model((pictures - 0.5) / 0.5), targets, **(loss or {})))
            if step not in skipped:
                (parts[-1] / passes).backward()
        if step in skipped:
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        progress = max(step - WARMUP, 0) / (STEPS - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (min((step + 1) / WARMUP, 1) * 0.5 * (1 + math.cos(math.pi * progress)))
            group["lr"] *= group["scale"]
        optimizer.step()
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            shadow[name].lerp_(parameter.detach(), 1 - min(average, (1 + step) / (10 + step)))
        found.append(torch.stack([part.detach() for part in parts]).mean().item())
    return Plain(found, model.state_dict(), shadow)


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
    found = trained(full(tmp_path / "run", optimizer=ours))
    expected = plain_loop(**theirs)
    assert losses(found) == expected.losses
    assert len(set(expected.losses)) == STEPS
    assert same(weights(found), expected.weights)


def test_smoothing_and_balance_reach_the_loss(tmp_path: Path):
    """300 pictures of one class, 30 of each other, weighted by 57 / count: the average over 570 labels is 1."""
    train = FASHION.splits["train"]
    rare = train.select(
        np.concatenate([np.flatnonzero(train.labels == label)[: 30 if label else 300] for label in range(10)])
    )
    data = replace(FASHION, splits={**FASHION.splits, "train": rare})
    found = trained(full(tmp_path / "run", label_smoothing=0.1, balance=1.0), data)
    weight = torch.tensor([570 / 10 / 300] + [570 / 10 / 30] * 9)
    expected = plain_loop(torch.optim.AdamW, decay=0.1, data=data, loss={"label_smoothing": 0.1, "weight": weight})
    assert losses(found) == pytest.approx(expected.losses, abs=1e-6)


def test_layer_decay_reaches_the_optimizer(tmp_path: Path):
    found = trained(full(tmp_path / "run", layer_decay=0.5))
    scales = {
        "encoder.blocks.1": 0.5,
        "encoder.blocks.0": 0.25,
        "patches": 0.125,
        "class_token": 0.125,
        "encoder.positions": 0.125,
    }
    assert losses(found) == plain_loop(torch.optim.AdamW, decay=0.1, scales=scales).losses


def test_what_is_kept_is_the_average_where_there_is_one(tmp_path: Path):
    found = trained(full(tmp_path / "run", average=0.9))
    expected = plain_loop(torch.optim.AdamW, decay=0.1, average=0.9)
    assert losses(found) == expected.losses
    assert same(weights(found), expected.average)
    assert not same(weights(found), expected.weights)


def test_what_is_frozen_stays_bit_for_bit(tmp_path: Path):
    found = weights(trained(full(tmp_path / "run", freeze=1, average=0.9, optimizer=ADAMW, steps=8)))
    torch.manual_seed(SEED)
    start = vitkit.create("mu/4", image=28, channels=1, classes=10).state_dict()
    moved = {name for name in start if not torch.equal(start[name], found[name])}
    assert moved == {name for name in start if name.startswith(("encoder.blocks.1.", "encoder.norm.", "head."))}


# Early stopping


def script(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    answers = iter(scores)
    monkeypatch.setattr(
        trainer, "_look", lambda *rest, **more: lambda: {"score": next(answers), "loss": 0.0, "top1": 0.0}
    )


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_early_stopping_keeps_the_best_step(average: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script(monkeypatch, [0.1, 0.4, 0.3, 0.4])
    config = full(tmp_path / "run", patience=2, dev=0.1, score_every=3, save_every=2, average=average)
    found = trained(config)
    assert len(losses(found)) == 12
    data = replace(FASHION, splits={"train": trainer.partition(FASHION, **config.partition).train})
    expected = plain_loop(torch.optim.AdamW, decay=0.1, data=data, steps=6, average=average)
    assert same(weights(found), expected.average if average else expected.weights)


def test_a_run_that_gets_better_until_the_end_is_not_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    script(monkeypatch, [0.1, 0.2, 0.2, 0.3])
    found = trained(full(tmp_path / "run", patience=2, dev=0.1, score_every=5))
    assert len(losses(found)) == STEPS
    final = {
        name.removeprefix("weights.model."): tensor
        for name, tensor in states(found)["step-00000020"].items()
        if name.startswith("weights.")
    }
    assert same(weights(found), final)


def test_patience_without_pictures_to_look_at_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"patience = 2(.|\n)*--set dev=0\.1"):
        trained(full(tmp_path / "run", patience=2))


def test_looks_at_the_dev_pictures_are_those_of_plain_counting(tmp_path: Path):
    config = full(tmp_path / "run", dev=0.02, steps=6, score_every=6)
    found = trained(config)
    dev = trainer.partition(FASHION, **config.partition).validation
    assert dev is not None
    model = vitkit.load(found).eval()
    pixels = torch.stack([torch.from_numpy(dev.read(index)).permute(2, 0, 1) for index in range(len(dev))])
    with torch.no_grad():
        logits = model((pixels / 255 - 0.5) / 0.5)
    labels = torch.from_numpy(dev.labels)
    (look,) = lines(found, "score")
    assert look["top1"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    assert look["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-5)


# Losses that are no number


@pytest.mark.parametrize(("bad", "back"), [(2, 0), (11, 10), (19, 15)])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_whose_loss_is_no_number_is_left_out(
    bad: int,
    back: int,
    kind: type[torch.optim.Optimizer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    poison(monkeypatch, SEED, [bad * PASSES + 1])
    decay = 0.1 if kind is torch.optim.AdamW else 0.0
    options = {} if decay else {"momentum": 0.9}
    found = trained(full(tmp_path / "run", save_every=5, average=0.9, optimizer=ADAMW if decay else SGD()))
    assert lines(found, "rolled-back") == [{"kind": "rolled-back", "step": bad + 1, "to": back, "what": "loss is nan"}]
    assert f"the loss is nan at step {bad + 1}: back to step {back}" in capsys.readouterr().err
    assert [line["step"] for line in lines(found, "step")] == [step for step in range(1, 21) if step != bad + 1]
    expected = plain_loop(kind, decay=decay, average=0.9, skipped=[bad], **options)
    assert losses(found) == expected.losses
    assert same(weights(found), expected.average)


def test_several_bad_steps_are_left_out_one_after_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    poison(monkeypatch, SEED, [14, 21, 36])
    found = trained(full(tmp_path / "run", save_every=5))
    assert [(line["step"], line["to"]) for line in lines(found, "rolled-back")] == [(8, 5), (11, 10), (19, 15)]
    assert losses(found) == plain_loop(torch.optim.AdamW, decay=0.1, skipped=[7, 10, 18]).losses


def test_a_run_that_diverges_says_so_and_keeps_what_was_good(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "run"
    poison(monkeypatch, SEED, range(14, 40))
    command = words(out, steps=20, seed=SEED, save_every=5, lr=0.02)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "this run diverges" in message
    assert "a lower --lr (it was 0.02)" in message
    assert not (out / "model.json").exists()
    monkeypatch.setattr(loop, "augment", augment)
    main(["resume", str(out)])
    assert [line["step"] for line in lines(out, "step")][-1] == 20
    assert (out / "model.json").exists()


# Other data, other models


def test_pictures_without_labels_teach_a_model_that_labels_then_finish(tmp_path: Path):
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
    # a zero head knows nothing: all ten classes alike
    assert losses(after)[0] == pytest.approx(math.log(10), abs=1e-4)


def test_pictures_with_several_labels_train(tmp_path: Path):
    rows = ["path,labels"]
    for index in range(24):
        (tmp_path / f"{index}.png").write_bytes(encode(np.roll(scene(16, 16), index, axis=1), "PNG"))
        rows.append(f"{index}.png,{' '.join(('a', 'b', 'c')[: 1 + index % 3])}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    data = open_data(tmp_path / "list.csv")
    assert data.multilabel
    out = tmp_path / "run"
    main(words(out, data=str(tmp_path / "list.csv"), steps=6, image=16, channels=3, dev=0.2, score_every=3))
    # a zero head is as unsure of each of three classes as it can be
    assert losses(out)[0] == pytest.approx(3 * math.log(2), abs=0.05)
    assert len(lines(out, "score")) == 2
    assert vitkit.load(out).config.classes == 3


@pytest.mark.parametrize(("model", "image"), [("R50x1", 32), ("R+Ti/16", 32)])
def test_resnets_and_hybrids_train_by_the_same_command(model: str, image: int, tmp_path: Path):
    main(
        words(
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
    assert steps_of(tmp_path / "run") == 2
    assert all(map(math.isfinite, losses(tmp_path / "run")))
    torch.manual_seed(0)
    start = vitkit.create(model, image=image, channels=1, classes=10).state_dict()
    found = weights(tmp_path / "run")
    moved = [name for name in start if not torch.equal(start[name], found[name])]
    assert len(moved) > 0.9 * len(start)
