"""Parameter groups: weight decay, layer-wise learning rates, frozen layers, and what a step does to each tensor."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import vitkit
from tests.model.kinds import KINDS, make
from vitkit.config.schema import SGD, Adam, AdamW, Fit, Masked, Optimizer
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.labels import Labels
from vitkit.train.objectives.masked_patch import MaskedPatch
from vitkit.train.optimizer import build_optimizer, describe, freeze, set_lr

BLOCK_KERNELS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")


def outline(kind: str) -> Model:
    """Return a model on the meta device: most tests need names and shapes only, and a ResNet is large."""
    name, options = KINDS[kind]
    with torch.device("meta"):
        return vitkit.create(name, **{"classes": 10, **options})


def learn(model: Model) -> Labels:
    return Labels(model, multilabel=False, smoothing=0.0, weights=None)


def groups_by_name(objective: Objective, optimizer: torch.optim.Optimizer) -> dict[str, dict]:
    """Return the group of each parameter by name; a parameter in two groups fails."""
    names = {id(parameter): name for name, parameter in objective.named_parameters()}
    pairs = [(names[id(parameter)], group) for group in optimizer.param_groups for parameter in group["params"]]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def decayed(objective: Objective, config: Fit) -> set[str]:
    groups = groups_by_name(objective, build_optimizer(objective, config, fused=False))
    assert set(groups) == {name for name, parameter in objective.named_parameters() if parameter.requires_grad}
    assert {group["weight_decay"] for group in groups.values()} <= {0.0, config.optimizer.weight_decay}
    return {name.removeprefix("model.") for name, group in groups.items() if group["weight_decay"]}


# Decay groups


def test_weight_decay_is_for_kernels_only():
    kernels = {
        "patches.project",
        "head.logits",
        *(f"encoder.blocks.{i}.{layer}" for i in (0, 1) for layer in BLOCK_KERNELS),
    }
    names = decayed(learn(outline("token")), Fit(optimizer=AdamW(weight_decay=0.1)))
    assert names == {f"{kernel}.weight" for kernel in kernels}


def test_the_attention_pool_decays_its_layers_and_not_its_probe():
    names = decayed(learn(outline("attention pool")), Fit(optimizer=SGD(weight_decay=0.1)))
    assert {name for name in names if name.startswith("pool.")} == {
        f"pool.{layer}.weight" for layer in ("query", "key_value", "out", "mlp.up", "mlp.down")
    }


def test_a_mask_token_does_not_decay_and_the_prediction_layer_does():
    names = decayed(MaskedPatch(outline("token"), Masked()), Fit(optimizer=Adam(weight_decay=0.1)))
    assert "guess.weight" in names
    assert not {"mask_token", "guess.bias", "class_token", "head.logits.weight"} & names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer_decay", [1.0, 0.75])
def test_every_trainable_tensor_is_in_one_group_and_decays_if_it_is_a_kernel(kind: str, layer_decay: float):
    model = outline(kind)
    names = decayed(learn(model), Fit(optimizer=Adam(weight_decay=0.1), layer_decay=layer_decay))
    # found by module type, not by parameter name
    kernels = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "PartlyBiasedLinear", "StandardisedConv", "CosineLogits")
    }
    assert names == kernels


def test_tensors_with_the_same_settings_share_a_group():
    objective = learn(outline("token"))
    for config, count in (
        (Fit(), 1),
        (Fit(optimizer=SGD(weight_decay=0.1)), 2),
        (Fit(layer_decay=0.5), 4),
        (Fit(optimizer=SGD(weight_decay=0.1), layer_decay=0.5), 8),
    ):
        groups = build_optimizer(objective, config, fused=False).param_groups
        assert len(groups) == len({group["name"] for group in groups}) == count


# Layers


def test_layer_wise_rates_of_a_small_model_by_hand():
    objective = learn(vitkit.create("mu/8", image=32, classes=10, depth=3, representation=24))
    groups = groups_by_name(objective, build_optimizer(objective, Fit(lr=8.0, layer_decay=0.5), fused=False))
    expected = {
        "model.patches.project.weight": 0.5,
        "model.patches.project.bias": 0.5,
        "model.class_token": 0.5,
        "model.encoder.positions.0.table": 0.5,
        "model.encoder.blocks.0.attention.qkv.weight": 1.0,
        "model.encoder.blocks.0.mlp_norm.bias": 1.0,
        "model.encoder.blocks.1.mlp.up.weight": 2.0,
        "model.encoder.blocks.2.mlp.down.bias": 4.0,
        "model.encoder.norm.weight": 8.0,
        "model.head.representation.weight": 8.0,
        "model.head.logits.bias": 8.0,
    }
    assert {name: groups[name]["lr"] for name in expected} == expected


def beit_scale(name: str, depth: int, decay: float) -> float:
    """BEiT's get_num_layer_for_vit and LayerDecayValueAssigner, which timm took over."""
    if name in ("cls_token", "mask_token", "pos_embed") or name.startswith("patch_embed"):
        layer = 0
    elif name.startswith("blocks"):
        layer = int(name.split(".")[1]) + 1
    else:
        layer = depth + 1
    return decay ** (depth + 1 - layer)


def test_layer_wise_rates_are_beits():
    objective = learn(vitkit.create("Ti/16", image=32, classes=10))
    groups = groups_by_name(objective, build_optimizer(objective, Fit(layer_decay=0.65), fused=False))
    renamed = {"class_token": "cls_token", "encoder.positions.0.table": "pos_embed"}
    for name, group in groups.items():
        own = name.removeprefix("model.")
        theirs = renamed.get(own, own.replace("patches.", "patch_embed.").replace("encoder.blocks.", "blocks."))
        assert group["lr_scale"] == pytest.approx(beit_scale(theirs, 12, 0.65)), name


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("hybrid", {"stem.root.weight": 3, "stem.stages.3.1.conv2.weight": 3, "encoder.blocks.1.mlp.up.bias": 1}),
        (
            "ResNet",
            {
                "body.root.weight": 5,
                "body.stages.0.0.conv1.weight": 4,
                "body.stages.3.0.norm1.bias": 1,
                "body.norm.weight": 0,
                "head.logits.weight": 0,
            },
        ),
        ("1d every", {"encoder.positions.0.table": 2, "encoder.positions.1.table": 1, "patches.project.weight": 3}),
        ("1d shared", {"encoder.positions.0.table": 3}),
        ("axial", {"encoder.blocks.0.column.mlp.up.weight": 2, "encoder.blocks.0.row.mlp.up.weight": 2}),
        ("attention pool", {"pool.probe": 0, "pool.query.weight": 0}),
    ],
)
def test_the_layers_above_a_tensor_are_counted_in_every_kind_of_model(kind: str, expected: dict[str, int]):
    objective = learn(outline(kind))
    groups = groups_by_name(objective, build_optimizer(objective, Fit(layer_decay=0.5), fused=False))
    assert {name: groups[f"model.{name}"]["lr_scale"] for name in expected} == {
        name: 0.5**above for name, above in expected.items()
    }


def test_parameters_of_the_objective_have_the_full_learning_rate():
    objective = MaskedPatch(outline("token"), Masked())
    groups = groups_by_name(objective, build_optimizer(objective, Fit(layer_decay=0.5), fused=False))
    assert {groups[name]["lr_scale"] for name in ("mask_token", "guess.weight", "guess.bias")} == {1.0}


def test_setting_the_learning_rate_keeps_the_layer_scales():
    objective = learn(outline("token"))
    optimizer = build_optimizer(objective, Fit(layer_decay=0.5), fused=False)
    set_lr(optimizer, 0.8)
    groups = groups_by_name(objective, optimizer)
    assert groups["model.class_token"]["lr"] == pytest.approx(0.1)
    assert groups["model.head.logits.bias"]["lr"] == pytest.approx(0.8)


# Steps


def three_steps(settings: Optimizer) -> tuple[list[np.ndarray], list[list[np.ndarray]], list[np.ndarray]]:
    """Return a kernel and a bias before three steps, their gradients, and both afterwards."""
    objective = learn(make("token")).double()
    optimizer = build_optimizer(objective, Fit(lr=0.1, optimizer=settings), fused=False)
    head = objective.model.head.logits
    before, gradients = [p.detach().numpy().copy() for p in (head.weight, head.bias)], []
    for step in range(3):
        for seed, parameter in enumerate((head.weight, head.bias)):
            generator = torch.Generator().manual_seed(10 * step + seed)
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        gradients.append([p.grad.numpy().copy() for p in (head.weight, head.bias)])
        optimizer.step()
    return before, gradients, [p.detach().numpy() for p in (head.weight, head.bias)]


@pytest.mark.parametrize(
    "settings", [Adam(weight_decay=0.3), AdamW(weight_decay=0.3), AdamW(betas=(0.8, 0.95), eps=1e-3)]
)
def test_adam_adds_weight_decay_to_the_gradient_and_adamw_to_the_weight(settings: Adam):
    before, gradients, after = three_steps(settings)
    (beta1, beta2), lr = settings.betas, 0.1
    for index, decay in ((0, settings.weight_decay), (1, 0.0)):
        weight, first, second = before[index], 0.0, 0.0
        for step in range(3):
            gradient = gradients[step][index]
            if isinstance(settings, AdamW):
                weight = weight - lr * decay * weight
            else:
                gradient = gradient + decay * weight
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            mean, spread = first / (1 - beta1 ** (step + 1)), second / (1 - beta2 ** (step + 1))
            weight = weight - lr * mean / (np.sqrt(spread) + settings.eps)
        np.testing.assert_allclose(after[index], weight, rtol=1e-10)


def test_sgd_has_momentum_and_adds_weight_decay_to_the_gradient():
    before, gradients, after = three_steps(SGD(momentum=0.7, weight_decay=0.3))
    for index, decay in ((0, 0.3), (1, 0.0)):
        weight, velocity = before[index], 0.0
        for step in range(3):
            velocity = 0.7 * velocity + gradients[step][index] + decay * weight
            weight = weight - 0.1 * velocity
        np.testing.assert_allclose(after[index], weight, rtol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("settings", [SGD(weight_decay=0.1), Adam(weight_decay=0.1), AdamW(weight_decay=0.1)])
def test_fused_steps_on_a_gpu_equal_plain_ones(settings: Optimizer):
    plain = learn(make("token"))
    fused = copy.deepcopy(plain).cuda()
    for objective, fast in ((plain, False), (fused, True)):
        optimizer = build_optimizer(objective, Fit(optimizer=settings, layer_decay=0.8), fused=fast)
        for step in range(3):
            for seed, parameter in enumerate(objective.parameters()):
                generator = torch.Generator().manual_seed(1000 * step + seed)
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
            optimizer.step()
    for ours, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-4)


# Freezing


def trained(model: Model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_freezing_a_block_freezes_all_below_it():
    model = outline("token")
    everything = trained(model)
    frozen = freeze(model, 1)
    assert set(frozen) == everything - trained(model)
    assert set(frozen) == {
        name
        for name in everything
        if name.startswith(("patches.", "class_token", "encoder.positions.", "encoder.blocks.0."))
    }


def test_freezing_all_blocks_leaves_what_is_above_them():
    model = outline("gap")
    freeze(model, 2)
    assert trained(model) == {"encoder.norm.weight", "encoder.norm.bias", "head.logits.weight", "head.logits.bias"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no head"])
def test_freezing_minus_one_trains_the_head_only(kind: str):
    model = outline(kind)
    freeze(model, -1)
    assert trained(model) == {name for name, _ in model.named_parameters() if name.startswith("head.")}


def test_a_resnet_freezes_its_root_and_stages():
    model = outline("ResNet")
    assert {name.split(".")[1] for name in freeze(model, 2)} == {"root", "stages"}
    assert {tuple(name.split(".")[:3]) for name in trained(model) if "stages" in name} == {
        ("body", "stages", "2"),
        ("body", "stages", "3"),
    }
    assert {"body.norm.weight", "head.logits.weight"} < trained(model)


def test_a_hybrid_freezes_its_stem_with_the_first_block():
    model = outline("root hybrid")
    assert "stem.root.weight" in freeze(model, 1)


def test_position_tables_of_later_blocks_stay_trainable():
    model = outline("1d every")
    freeze(model, 1)
    assert not model.encoder.positions[0].table.requires_grad
    assert model.encoder.positions[1].table.requires_grad


def test_freezing_nothing_does_nothing():
    model = outline("token")
    assert freeze(model, 0) == []
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("kind", "expected"), [("token", "2 blocks"), ("ResNet", "4 stages")])
def test_freezing_more_blocks_than_there_are_is_an_error(kind: str, expected: str):
    model = outline(kind)
    with pytest.raises(ConfigError, match=f"freeze = 5, but the model has {expected}"):
        freeze(model, 5)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_frozen_tensors_are_in_no_group_and_stay_bit_for_bit():
    objective = learn(make("token"))
    frozen = freeze(objective.model, 1)
    before = copy.deepcopy(objective.model.state_dict())
    optimizer = build_optimizer(objective, Fit(optimizer=AdamW(weight_decay=0.1)), fused=False)
    assert set(groups_by_name(objective, optimizer)) == {f"model.{name}" for name in trained(objective.model)}
    loss, _ = objective(torch.rand(2, 3, 32, 32), torch.eye(10)[:2])
    loss.backward()
    optimizer.step()
    changed = {name for name, value in objective.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == set(before) - set(frozen)


# Description


def test_the_description_counts_what_decays():
    objective = learn(outline("token"))
    # kernels: patches 192 x 32, two blocks of 32 x 96 + 32 x 32 + 2 x 32 x 128, head 32 x 10
    assert describe(build_optimizer(objective, Fit(optimizer=SGD(weight_decay=0.1)), fused=False)) == (
        "sgd: 10 kernels with weight decay 0.1 (31.0k parameters), 22 other tensors without"
    )
    assert describe(build_optimizer(objective, Fit(optimizer=AdamW(), layer_decay=0.5), fused=False)) == (
        "adamw: 32 tensors (32.6k parameters), no weight decay; the lowest layer has 0.125 of the learning rate"
    )
