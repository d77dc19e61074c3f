"""Mask queries against transformers' EoMT: forward pass, matching, losses and gradients on the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("scipy")
from transformers import EomtConfig, EomtForUniversalSegmentation
from transformers.models.eomt.modeling_eomt import dice_loss as reference_dice
from transformers.models.eomt.modeling_eomt import pair_wise_dice_loss, pair_wise_sigmoid_cross_entropy_loss
from transformers.models.eomt.modeling_eomt import sigmoid_cross_entropy_loss as reference_cross_entropy

from tests.model.kinds import randomise
from vitkit.data.masks.ignore import IGNORE
from vitkit.model.mask_queries import QueryPrediction
from vitkit.model.segmenter import Segmenter
from vitkit.model.variants import configure
from vitkit.train.objectives.mask_losses import dice_loss, point_cross_entropy, set_loss
from vitkit.train.objectives.mask_matching import CLASS_WEIGHT, DICE_WEIGHT, MASK_WEIGHT, match, pair_costs
from vitkit.train.objectives.mask_points import neighbours, sample_logits

CLOSE = 1e-5  # of numbers around 1 to 100 in float32, whose sums have another order
CLASSES, QUERIES, BLOCKS = 5, 7, 2


def pair(patch: int = 16, image: int = 64, points: int = 256) -> tuple[Segmenter, EomtForUniversalSegmentation]:
    """Return our model and transformers', with the same random weights."""
    torch.manual_seed(0)
    upscalings = {8: 1, 16: 2, 32: 3}[patch]
    theirs = EomtForUniversalSegmentation(
        EomtConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=image,
            patch_size=patch,
            layerscale_value=0.5,
            num_blocks=BLOCKS,
            num_queries=QUERIES,
            num_register_tokens=3,
            num_upscale_blocks=upscalings,
            train_num_points=points,
            num_labels=CLASSES,
            attn_implementation="eager",
        )
    )
    randomise(theirs)
    config = configure(
        f"mu/{patch}+queries",
        classes=CLASSES,
        image=image,
        depth=3,
        queries=QUERIES,
        query_blocks=BLOCKS,
        registers=3,
        layer_scale=0.5,
        class_position=False,
        gelu="exact",
    )
    ours = Segmenter(config)  # type: ignore[arg-type]
    ours.load_state_dict(renamed(theirs.state_dict(), ours))
    return ours, theirs


def renamed(theirs: dict[str, Tensor], ours: Segmenter) -> dict[str, Tensor]:
    """Return transformers' tensors (weights or their gradients) under our names."""
    state = {
        "backbone.class_token": theirs["embeddings.cls_token"][0],
        "backbone.register_tokens": theirs["embeddings.register_tokens"][0],
        "backbone.patches.project.weight": theirs["embeddings.patch_embeddings.projection.weight"].flatten(1),
        "backbone.patches.project.bias": theirs["embeddings.patch_embeddings.projection.bias"],
        "backbone.encoder.positions.0.table": theirs["embeddings.position_embeddings.weight"],
        "head.queries": theirs["query.weight"],
    }
    for kind in ("weight", "bias"):
        state[f"backbone.encoder.norm.{kind}"] = theirs[f"layernorm.{kind}"]
        state[f"head.logits.{kind}"] = theirs[f"class_predictor.{kind}"]
        for index, layer in ((0, "fc1"), (2, "fc2"), (4, "fc3")):
            state[f"head.mask_mlp.{index}.{kind}"] = theirs[f"mask_head.{layer}.{kind}"]
        for index in range(len(ours.head.upscale)):
            block = f"upscale_block.block.{index}"
            state[f"head.upscale.{index}.transposed.{kind}"] = theirs[f"{block}.conv1.{kind}"]
            state[f"head.upscale.{index}.norm.{kind}"] = theirs[f"{block}.layernorm2d.{kind}"]
            state[f"head.upscale.{index}.depthwise.weight"] = theirs[f"{block}.conv2.weight"]
        for index in range(ours.config.depth):
            block, layer = f"backbone.encoder.blocks.{index}", f"layers.{index}"
            parts = [theirs[f"{layer}.attention.{part}_proj.{kind}"] for part in "qkv"]
            state[f"{block}.attention.qkv.{kind}"] = torch.cat(parts)
            state[f"{block}.attention.out.{kind}"] = theirs[f"{layer}.attention.out_proj.{kind}"]
            for name, theirs_name in (("attention_norm", "norm1"), ("mlp_norm", "norm2")):
                state[f"{block}.{name}.{kind}"] = theirs[f"{layer}.{theirs_name}.{kind}"]
            state[f"{block}.mlp.up.{kind}"] = theirs[f"{layer}.mlp.fc1.{kind}"]
            state[f"{block}.mlp.down.{kind}"] = theirs[f"{layer}.mlp.fc2.{kind}"]
            state[f"{block}.attention_scale.gamma"] = theirs[f"{layer}.layer_scale1.lambda1"]
            state[f"{block}.mlp_scale.gamma"] = theirs[f"{layer}.layer_scale2.lambda1"]
    return state


def labels_of(targets: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the binary masks and the classes of each image, as transformers takes them."""
    classes = [image.unique() for image in targets]
    classes = [found[found != IGNORE].long() for found in classes]
    return [(image == found[:, None, None]).float() for image, found in zip(targets, classes, strict=True)], classes


def blobs(images: int, side: int, seed: int = 1) -> Tensor:
    """Return masks of connected regions, in which not every image has every class."""
    coarse = torch.randint(0, CLASSES, (images, 4, 4), generator=torch.Generator().manual_seed(seed))
    coarse[0][coarse[0] == 2] = 1
    return coarse.repeat_interleave(side // 4, 1).repeat_interleave(side // 4, 2).to(torch.uint8)


@pytest.fixture
def same_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same random numbers for each row of a shape: one call for a batch equals a call for each image."""

    def rand(*shape: int, device: Any = None) -> Tensor:
        generator = torch.Generator().manual_seed(sum(shape[1:]))
        return original(*shape[1:], generator=generator).expand(*shape).clone()

    original: Callable[..., Tensor] = torch.rand
    monkeypatch.setattr(torch, "rand", rand)


@pytest.mark.parametrize(("patch", "image"), [(8, 32), (16, 64), (32, 128)])
def test_a_forward_pass_gives_the_logits_of_transformers(patch: int, image: int):
    ours, theirs = pair(patch, image)
    ours.double().eval()  # all but their softmax, which is in float32
    theirs.double().eval().attn_mask_probs.zero_()  # a plain ViT, as at the end of its training
    images = torch.randn(2, 3, image, image, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs(images)
        scores, seen = ours(images, capture=("class_logits", "mask_logits", "encoded"))
    torch.testing.assert_close(seen["class_logits"], expected.class_queries_logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(seen["mask_logits"], expected.masks_queries_logits, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(seen["encoded"], expected.last_hidden_state, atol=1e-6, rtol=1e-6)
    classes = expected.class_queries_logits.softmax(dim=-1)[..., :-1]  # as its image processor does
    combined = torch.einsum("bqc,bqhw->bchw", classes, expected.masks_queries_logits.sigmoid())
    torch.testing.assert_close(scores, combined, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("probabilities", [(1.0, 1.0), (0.5, 0.0)])
@pytest.mark.usefixtures("same_points")
def test_the_loss_of_training_and_its_gradients_are_those_of_transformers(probabilities: tuple[float, float]):
    ours, theirs = pair()
    ours.train()
    theirs.train().attn_mask_probs.copy_(torch.tensor(probabilities))
    images, targets = torch.randn(3, 3, 64, 64), blobs(3, 64)
    masks, classes = labels_of(targets)
    expected = theirs(images, mask_labels=masks, class_labels=classes).loss
    expected.backward()
    loss, _ = set_loss(ours.predictions(images, torch.tensor(probabilities)), targets)
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=0, rtol=CLOSE)
    grads = {name: tensor.grad for name, tensor in theirs.named_parameters()}
    mine = dict(ours.named_parameters())
    for name, grad in renamed(grads, ours).items():  # type: ignore[arg-type]
        scale = grad.abs().max()
        torch.testing.assert_close(mine[name].grad / scale, grad / scale, atol=2e-5, rtol=0, msg=name)


@pytest.mark.usefixtures("same_points")
def test_matching_is_that_of_transformers():
    _, theirs = pair(points=128)
    targets = blobs(4, 32)
    masks, classes = labels_of(targets)
    prediction = QueryPrediction(torch.randn(4, QUERIES, CLASSES + 1), 3 * torch.randn(4, QUERIES, 16, 16))
    expected = theirs.criterion.matcher(prediction.masks, prediction.classes, masks, classes)
    found = match(prediction, targets, 128)
    for image, (queries, indices) in enumerate(expected):
        own = found.images == image
        assert found.queries[own].tolist() == queries.tolist()
        assert found.classes[own].tolist() == classes[image][indices].tolist()


def test_costs_and_losses_are_those_of_transformers_on_the_same_points():
    targets, points = blobs(1, 32), torch.rand(1, 200, 2)
    masks, (present,) = labels_of(targets)
    prediction = QueryPrediction(torch.randn(1, QUERIES, CLASSES + 1), 4 * torch.randn(1, QUERIES, 16, 16))
    logits = sample_logits(prediction.masks, points)[0]
    wanted = sample_logits(masks[0][:, None], points.expand(len(present), -1, -1))[:, 0]
    around = neighbours(targets, torch.zeros(len(present), dtype=torch.long), points.expand(len(present), -1, -1))
    torch.testing.assert_close(around.membership(present), wanted, atol=CLOSE, rtol=0)
    ones = torch.ones_like(wanted)
    costs = pair_costs(prediction, neighbours(targets, torch.tensor([0]), points), points, CLASSES)[0][:, present]
    expected = (
        MASK_WEIGHT * pair_wise_sigmoid_cross_entropy_loss(logits, wanted)
        + DICE_WEIGHT * pair_wise_dice_loss(logits, wanted)
        - CLASS_WEIGHT * prediction.classes[0].softmax(dim=-1)[:, present]
    )
    torch.testing.assert_close(costs, expected, atol=CLOSE, rtol=CLOSE)
    matched = logits[: len(present)]
    ours = point_cross_entropy(matched, wanted, ones).sum(), dice_loss(matched, wanted, ones).sum()
    theirs = reference_cross_entropy(matched, wanted, 1), reference_dice(matched, wanted, 1)
    torch.testing.assert_close(ours, theirs, atol=CLOSE, rtol=CLOSE)
