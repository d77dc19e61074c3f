"""Segmenters: the tokens are those of the plain ViT, queries join without disturbing positions, everything travels."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import vitkit
from tests.model.kinds import KINDS, SEGMENTERS, images_for, make, randomise
from vitkit.compute.embedding_model import embedding_model
from vitkit.compute.inference import for_inference
from vitkit.errors import ConfigError, VitkitError
from vitkit.kernels.fuse import FusedBlock, fuse
from vitkit.model.attention import attention_weights, split_heads
from vitkit.model.base import Metadata
from vitkit.model.batch_norm import BatchNorm
from vitkit.model.config import from_dict, to_dict
from vitkit.model.mask_queries import attend_to_masks
from vitkit.model.segmenter import Segmenter, segmenter_from
from vitkit.model.variants import configure, name_of
from vitkit.predict.embedder import Embedder
from vitkit.train.activation_checkpointing import set_recompute
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import freeze, layer_index

WITH_QUERIES = [kind for kind in SEGMENTERS if "queries" in kind]
EPS = torch.finfo(torch.float64).eps


@given(
    patch=st.sampled_from([1, 2, 3, 4, 7, 8, 14, 16, 20, 32, 33]),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    classes=st.integers(1, 6),
    head=st.sampled_from(["linear", "queries"]),
    batch=st.integers(1, 2),
)
def test_scores_have_a_grid_of_about_four_pixels_with_queries_and_of_patches_without(
    patch: int, rows: int, columns: int, classes: int, head: str, batch: int
):
    options = {"queries": 3, "query_blocks": 1} if head == "queries" else {}
    image = (patch * rows, patch * columns)
    model = vitkit.create(f"mu/{patch}+{head}", classes=classes, image=image, **options).eval()
    scores = model(images_for(model, batch))
    times = scores.shape[2] // rows
    assert scores.shape == (batch, classes, rows * times, columns * times)
    assert model.config.score_grid == scores.shape[2:]
    if head == "linear":
        assert times == 1
    else:  # EoMT: max(1, floor(log2(patch)) - 2) doublings, 4 pixels for a power of two from 8 on
        assert times == 2 ** max(1, len(f"{patch:b}") - 3)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ResNet"])
@pytest.mark.parametrize("head", ["linear", "queries"])
def test_a_segmenter_has_the_tokens_of_the_vit_that_it_is_made_from(kind: str, head: Any):
    vit = make(kind)
    refused = vit.config.axial or vit.config.induced or vit.config.positions.startswith(("relative", "quadratic"))
    options: dict[str, Any] = {"head": head, "classes": 5, "queries": 4, "query_blocks": 1}
    if head == "queries" and refused:
        with pytest.raises(ConfigError, match="mask queries attend to all tokens"):
            segmenter_from(vit, **options)
        return
    vit.metadata = Metadata(labels=tuple("abcdefghij"), provenance={"license": "MIT"})
    segmenter = segmenter_from(vit, **options)
    images = images_for(vit)
    until = "encoded" if head == "linear" else f"block{vit.config.depth - 2}"
    _, expected = vit(images, capture=(until,))
    scores, seen = segmenter(images, capture=(until,))
    tokens = expected[until]
    if until == "encoded" and vit.config.pool == "gap-norm":  # which norms after pooling
        tokens = vit.pool.norm(tokens)
    assert_close(seen[until], tokens)
    assert scores.shape[1] == 5
    assert segmenter.metadata == Metadata(provenance={"license": "MIT"})
    if head == "linear":
        assert not scores.any()  # zero-initialised


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_captures_are_what_they_are_named(kind: str):
    model = make(kind)
    images = images_for(model)
    scores, seen = model(images, capture=("*",))
    assert tuple(seen) == model.captures
    assert_close(scores, model(images))
    for name, value in seen.items():
        if name.endswith("attention"):
            assert_close(value.sum(-1), torch.ones(value.shape[:-1]))
    config = model.config
    queried = config.queries if config.head == "queries" else 0
    assert seen["encoded"].shape == (2, queried + config.tokens, config.width)
    assert seen["tokens"].shape[1] == config.tokens
    if queried:
        last = seen[f"block{config.depth - 1}/attention"]
        assert last.shape[1:] == (config.heads, queried + config.tokens, queried + config.tokens)
        classes, masks = seen["class_logits"].softmax(-1)[..., :-1], seen["mask_logits"].sigmoid()
        assert_close(scores, (classes.mT @ masks.flatten(2)).unflatten(2, config.score_grid))


def test_rotary_positions_turn_patches_and_neither_queries_nor_special_tokens():
    model = make("queries like DINOv3")
    images = images_for(model)
    _, seen = model(images, capture=("block0", "block1/attention"))
    encoder, config = model.backbone.encoder, model.config
    block = encoder.blocks[1]
    x = block.attention_norm(model.head.join(seen["block0"]))
    query, key, _ = split_heads(block.attention.qkv(x), config.heads)
    front = config.queries + config.special_tokens
    turned = [torch.cat([part[:, :, :front], encoder.rotary.turn(part[:, :, front:])], dim=2) for part in (query, key)]
    assert_close(seen["block1/attention"], attention_weights(*turned))


def test_positions_of_every_layer_are_added_to_tokens_and_not_to_queries():
    model = make("queries, post-norm, every")
    images = images_for(model)
    before = model(images, capture=("block0",))[1]["block0"]
    with torch.no_grad():
        model.head.queries.add_(1.0)
        model.backbone.encoder.positions[1].table.zero_()
    inputs = []
    model.backbone.encoder.blocks[1].register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    _, seen = model(images, capture=("block0",))
    assert_close(inputs[0], seen["block0"])  # without a position, the input of the next block is the block's output
    assert not torch.allclose(before, seen["block0"])


def test_queries_see_the_patches_of_their_masks_only():
    masks = torch.full((1, 2, 4, 4), -1.0)
    masks[0, 0, :2, :2] = 1.0  # the first of 2 x 2 patches
    added = attend_to_masks(masks, torch.tensor(1.0), grid=(2, 2), special=1)
    assert added.shape == (1, 1, 7, 7)
    hidden = added[0, 0] == -torch.inf
    assert hidden[0].tolist() == [False] * 4 + [True] * 3  # two queries, the special token, its own patch
    assert hidden[1].tolist() == [False] * 3 + [True] * 4  # an empty mask leaves queries and special tokens
    assert not hidden[2:].any()
    assert added[~added.isinf()].eq(0).all()
    assert not attend_to_masks(masks, torch.tensor(0.0), grid=(2, 2), special=1).any()


@pytest.mark.parametrize("kind", WITH_QUERIES)
def test_without_masked_attention_training_predicts_what_inference_does(kind: str):
    model = make(kind)
    images = images_for(model)
    blocks = model.config.query_blocks
    predictions = model.predictions(images, torch.zeros(blocks))
    assert len(predictions) == blocks + 1
    assert_close(predictions[-1].scores(), model(images))
    masked = model.predictions(images, torch.ones(blocks))
    assert_close(masked[0].masks, predictions[0].masks)
    assert not torch.allclose(masked[-1].masks, predictions[-1].masks)


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_a_fused_segmenter_has_the_scores_gradients_and_names_of_the_plain_one(kind: str):
    model = make(kind).double()
    fused = copy.deepcopy(model)
    assert fuse(fused, class_token_only=True) is None
    if not model.config.axial:
        assert all(isinstance(block, FusedBlock) and not block.class_token_only for block in fused.blocks)
    assert list(fused.state_dict()) == list(model.state_dict())
    images = images_for(model).double()
    for masked in (False, True)[: 1 + (model.config.head == "queries")]:
        outputs = []
        for one in (fused, model):
            predictions = one.predictions(images, torch.ones(one.config.query_blocks)) if masked else [one(images)]
            tensors = [tensor for prediction in predictions for tensor in (prediction if masked else [prediction])]
            outputs.append(torch.cat([tensor.flatten() for tensor in tensors]))
        assert_close(*outputs, atol=1e4 * EPS, rtol=1e4 * EPS)
        gradients = [
            torch.autograd.grad(output.square().sum(), list(one.parameters()))
            for output, one in zip(outputs, (fused, model), strict=True)
        ]
        for ours, theirs in zip(*gradients, strict=True):
            assert_close(ours, theirs, atol=1e5 * EPS * max(float(theirs.abs().max()), 1.0), rtol=1e5 * EPS)


@pytest.mark.parametrize("kind", ["linear", "queries", "queries like DINOv3"])
def test_compiles_as_one_graph(kind: str):
    model = make(kind)
    images = images_for(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "queries", "queries, post-norm, every", "queries like DINOv3"])
def test_exports_with_any_batch(kind: str):
    model = make(kind)
    program = torch.export.export(model, (images_for(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    images = images_for(model, batch=3)
    assert_close(program.module()(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_saved_and_loaded_it_is_the_same_to_the_bit(kind: str, tmp_path: Path):
    model = make(kind)
    model(images_for(model))
    model.metadata = Metadata(labels=tuple("abcdefghij"), provenance={"task": "segment", "palette": [[0, 0, 0]] * 10})
    vitkit.save(model, tmp_path / "run")
    loaded = vitkit.load(tmp_path / "run")
    assert isinstance(loaded, Segmenter)
    assert (loaded.config, loaded.metadata) == (model.config, model.metadata)
    images = images_for(model)
    assert torch.equal(loaded(images), model(images))
    vitkit.save(loaded, tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()
    assert from_dict(to_dict(model.config)) == model.config


@pytest.mark.parametrize("kind", ["linear", "queries", "queries like DINOv3"])
def test_loading_takes_another_image_size_and_other_classes(kind: str, tmp_path: Path):
    model = make(kind)
    vitkit.save(model, tmp_path)
    image = (32, 48)
    loaded = vitkit.load(tmp_path, image=image, classes=3)
    assert loaded.config.image == loaded.backbone.config.image == image
    assert loaded(torch.randn(1, 3, *image)).shape == (1, 3, *loaded.config.score_grid)
    assert not loaded.head.logits.weight.any()
    by_hand = copy.deepcopy(model.backbone)
    by_hand.resize(image)
    images = torch.randn(1, 3, *image)
    _, expected = by_hand(images, capture=("block0",))
    assert_close(loaded(images, capture=("block0",))[1]["block0"], expected["block0"])
    if model.config.head == "queries":
        assert torch.equal(loaded.head.queries, model.head.queries)
        assert torch.equal(loaded.head.mask_mlp[0].weight, model.head.mask_mlp[0].weight)


@pytest.mark.parametrize("name", ["Ti/16+linear", "R50+B/16+queries", "S+/16+linear", "L/14+queries"])
def test_a_name_leads_to_a_config_that_has_the_name(name: str):
    config = configure(name, classes=7, image=(448, 224))
    assert name_of(config) == name
    assert (config.classes, config.image) == (7, (448, 224))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("R50x1+linear", {}, "there is no model"),
        ("iGPT-S/32+queries", {}, "has no patch tokens"),
        ("Ti/16+quires", {}, "there is no model"),
        ("Ti/16+queries", {"query_blocks": 13}, "12 blocks"),
        ("Ti/16+queries", {"queries": 10**6}, "more than a model can have"),
        ("Ti/16+queries", {"queries": 0}, "1 or more"),
        ("Ti/16+linear", {"classes": 0}, "1 or more"),
        ("Ti/16+queries", {"axial": True, "pool": "gap"}, "rows and columns"),
        ("Ti/16+linear", {"quiries": 3}, "has no option 'quiries'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(name: str, options: dict[str, Any], message: str):
    with pytest.raises(VitkitError, match=message):
        vitkit.create(name, **options)


@pytest.mark.parametrize("format", ["google", "timm", "hf"])
def test_other_formats_decline_a_segmenter_by_name(format: Any, tmp_path: Path):
    with pytest.raises(VitkitError, match=r"segmenter|SegmenterConfig"):
        vitkit.save(make("linear"), tmp_path / ("out.npz" if format == "google" else "out"), format=format)


def test_verbs_of_whole_images_decline_a_segmenter_by_name():
    model = make("linear")
    plain: dict[str, Any] = {"multilabel": False, "smoothing": 0.0, "weights": None}
    for use in (vitkit.Classifier, Embedder, embedding_model, lambda one: Labels(one, **plain)):
        with pytest.raises(VitkitError, match="is a segmenter"):
            use(model)


@pytest.mark.parametrize("kind", ["linear", "queries"])
def test_bf16_inference_is_close_to_fp32(kind: str):
    model = make(kind)
    images = images_for(model)
    with torch.inference_mode():
        exact, rounded = model(images), for_inference(model, "bf16")(images)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).norm() < 0.05 * exact.norm()  # bf16 rounds to 2^-8, a few layers deep


@pytest.mark.parametrize("kind", ["linear", "queries"])
def test_activation_checkpointing_changes_no_gradient(kind: str):
    model = make(kind).train()
    images = images_for(model)

    def gradients() -> tuple[torch.Tensor, ...]:
        model.load_state_dict(state)
        torch.manual_seed(0)
        if kind == "linear":
            loss = model(images).square().sum()
        else:
            loss = sum(one.masks.square().sum() for one in model.predictions(images, torch.full((1,), 0.5)))
            loss = loss + model(images).square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    state = copy.deepcopy(model.state_dict())
    plain = gradients()
    set_recompute(model, True)
    for ours, expected in zip(gradients(), plain, strict=True):
        assert_close(ours, expected)


def test_layers_are_those_of_the_backbone_and_the_head_is_above_them():
    model = make("queries")
    depth = model.config.depth
    layers = {name: layer_index(name, model) for name, _ in model.named_parameters()}
    assert layers["backbone.patches.project.weight"] == layers["backbone.encoder.positions.0.table"] == 0
    assert layers["backbone.encoder.blocks.1.mlp.up.weight"] == 2
    assert {layer for name, layer in layers.items() if name.startswith("head.")} == {depth + 1}
    frozen = freeze(model, -1)
    assert frozen == [name for name, _ in model.named_parameters() if name.startswith("backbone.")]


@given(batch=st.integers(1, 4), tokens=st.integers(2, 9), width=st.integers(1, 5), seed=st.integers(0, 99))
def test_batch_normalisation_is_torchs(batch: int, tokens: int, width: int, seed: int):
    torch.manual_seed(seed)
    ours = randomise(BatchNorm(width))  # type: ignore[arg-type]
    x = 3 * torch.randn(batch, tokens, width) + 1
    mean, var = torch.zeros(width), torch.ones(width)
    expected = F.batch_norm(x.flatten(0, 1), mean, var, ours.weight, ours.bias, training=True, momentum=0.1)
    assert_close(ours(x).flatten(0, 1), expected, atol=1e-4, rtol=1e-4)
    assert_close(ours.running_mean, mean)
    count = batch * tokens  # torch's running variance is that of a sample
    assert_close((ours.running_var - 0.9) * count / (count - 1), var - 0.9, atol=1e-5, rtol=1e-4)
    ours.eval()
    expected = F.batch_norm(x.flatten(0, 1), ours.running_mean, ours.running_var, ours.weight, ours.bias)
    assert_close(ours(x).flatten(0, 1), expected, atol=1e-4, rtol=1e-4)
