"""Regularisation where the paper puts it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vitkit
from tests.model.kinds import images_for
from vitkit.model.drop_path import drop_path


def test_dropout_follows_every_dense_layer_but_qkv_and_the_positions():
    model = vitkit.create("mu/8", image=32, dropout=0.5).train()
    order: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Dropout):
            module.register_forward_hook(lambda *_, name=name: order.append(name.rpartition(".")[2]))
    model(images_for(model))
    block = ["qkv", "out", "dropout", "up", "dropout", "down", "dropout"]
    assert order == ["project", "dropout", *block, *block, "logits"]


def test_dropout_is_off_in_evaluation():
    model = vitkit.create("mu/8", image=32, dropout=0.5, stochastic_depth=0.5).eval()
    images = images_for(model)
    assert torch.equal(model(images), model(images))


def test_stochastic_depth_rises_linearly_to_its_rate():
    model = vitkit.create("mu/8", image=32, depth=5, stochastic_depth=0.2)
    assert [block.drop for block in model.encoder.blocks] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_a_dropped_branch_is_dropped_whole_and_the_mean_is_kept():
    branch = torch.ones(20_000, 3, 2)
    dropped = drop_path(branch, 0.3, training=True)
    values = dropped.flatten(1)
    assert (values == values[:, :1]).all()  # all of an image or none of it
    assert (values[:, 0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert drop_path(branch, 0.3, training=False) is branch


def test_the_lines_of_an_image_are_dropped_together():
    dropped = drop_path(torch.ones(1000 * 4, 3, 2), 0.5, training=True, lines=4).unflatten(0, (1000, 4)).flatten(1)
    assert (dropped == dropped[:, :1]).all()
    assert 0.4 < (dropped[:, 0] == 0).float().mean() < 0.6


def test_capturing_during_training_changes_nothing():
    model = vitkit.create("mu/8", image=(16, 40), pool="gap", axial=True, dropout=0.3, stochastic_depth=0.3).train()
    images = images_for(model)
    torch.manual_seed(1)
    plain = model(images)
    torch.manual_seed(1)
    assert torch.equal(model(images, capture=("*",))[0], plain)
