"""Options that came after the paper, against the code that they come from (transformers), and against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import vitkit
from tests.model.kinds import images_for, make, randomise
from vitkit.errors import ConfigError
from vitkit.model.rotary import quarter_turn, rotary_angles
from vitkit.model.vit import VisionTransformer

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8, "image_size": 32}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def copy_linear(ours: nn.Linear, *theirs: nn.Linear) -> None:
    ours.weight.copy_(torch.cat([layer.weight.flatten(1) for layer in theirs]))
    biases = [layer.bias for layer in theirs if layer.bias is not None]
    assert (ours.bias is None) == (not biases)
    if biases:
        ours.bias.copy_(torch.cat(biases))


def copy_norms(*pairs: tuple[nn.Module, nn.Module]) -> None:
    for ours, theirs in pairs:
        assert ours.eps == theirs.eps
        ours.load_state_dict(theirs.state_dict())


def randomised(theirs: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        parameter.data.copy_(torch.randn_like(parameter) * 0.2)
    return theirs.eval()


@torch.no_grad()
def like_dinov3(theirs: DINOv3ViTModel, image: tuple[int, int], **options: object) -> VisionTransformer:
    model = vitkit.create(
        "mu/8",
        image=image,
        classes=0,
        positions="none",
        rotary="centred",
        registers=4,
        layer_scale=1.0,
        key_bias=False,
        eps=1e-5,
        **options,
    ).eval()
    copy_linear(model.patches.project, theirs.embeddings.patch_embeddings)
    model.class_token.copy_(theirs.embeddings.cls_token[0])
    model.register_tokens.copy_(theirs.embeddings.register_tokens[0])
    for ours, block in zip(model.encoder.blocks, part(theirs, "layer", "model.layer"), strict=True):
        attention = block.attention
        copy_linear(ours.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy_linear(ours.attention.out, attention.o_proj)
        ours.attention_scale.gamma.copy_(block.layer_scale1.lambda1)
        ours.mlp_scale.gamma.copy_(block.layer_scale2.lambda1)
        copy_norms((ours.attention_norm, block.norm1), (ours.mlp_norm, block.norm2))
        if model.config.swiglu:
            copy_linear(ours.mlp.gate_up, block.mlp.gate_proj, block.mlp.up_proj)
        else:
            copy_linear(ours.mlp.up, block.mlp.up_proj)
        copy_linear(ours.mlp.down, block.mlp.down_proj)
    copy_norms((model.encoder.norm, theirs.norm))
    return model


@pytest.mark.parametrize("gated", [False, True])
def test_rotary_positions_registers_layer_scale_and_swiglu_are_dinov3s_at_any_size(gated: bool):
    config = DINOv3ViTConfig(
        **SIZE,
        intermediate_size=48,
        num_register_tokens=4,
        use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu",
    )
    theirs = randomised(DINOv3ViTModel(config))
    ours = like_dinov3(theirs, (32, 32), mlp=48, **({"swiglu": True} if gated else {"gelu": "exact"}))
    for image in ((32, 32), (48, 24), (8, 64)):
        ours.resize(image)
        images = images_for(ours)
        with torch.no_grad():
            expected = theirs(images).last_hidden_state
            _, seen = ours(images, capture=("encoded",))
        torch.testing.assert_close(seen["encoded"], expected, **CLOSE)


@torch.no_grad()
def copy_blocks(model: VisionTransformer, layers: nn.ModuleList) -> None:
    """Copy the blocks of CLIP and SigLIP."""
    for ours, block in zip(model.encoder.blocks, layers, strict=True):
        attention = block.self_attn
        copy_linear(ours.attention.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        copy_linear(ours.attention.out, attention.out_proj)
        copy_norms((ours.attention_norm, block.layer_norm1), (ours.mlp_norm, block.layer_norm2))
        copy_linear(ours.mlp.up, block.mlp.fc1)
        copy_linear(ours.mlp.down, block.mlp.fc2)


def test_ln_pre_quick_gelu_and_projection_are_clips():
    theirs = randomised(
        CLIPVisionModelWithProjection(CLIPVisionConfig(**SIZE, intermediate_size=48, projection_dim=20))
    )
    options = {"ln_pre": True, "patch_bias": False, "gelu": "quick", "projection": 20, "eps": 1e-5}
    ours = vitkit.create("mu/8", image=32, classes=0, mlp=48, **options).eval()
    tower = theirs.vision_model
    with torch.no_grad():
        copy_linear(ours.patches.project, tower.embeddings.patch_embedding)
        ours.class_token.copy_(tower.embeddings.class_embedding[None])
        ours.encoder.positions[0].table.copy_(tower.embeddings.position_embedding.weight)
        copy_norms((ours.encoder.ln_pre, tower.pre_layrnorm), (ours.encoder.norm, tower.post_layernorm))
        copy_blocks(ours, tower.encoder.layers)
        ours.projection.weight.copy_(theirs.visual_projection.weight)
        images = images_for(ours)
        torch.testing.assert_close(ours(images), theirs(images).image_embeds, **CLOSE)
        _, seen = ours(images, capture=("pooled",))
        torch.testing.assert_close(seen["pooled"], tower(images).pooler_output, **CLOSE)


def test_the_attention_pool_is_siglips():
    theirs = randomised(SiglipVisionModel(SiglipVisionConfig(**SIZE, intermediate_size=48)))
    ours = vitkit.create("mu/8", image=32, classes=0, mlp=48, pool="attention").eval()
    tower = getattr(theirs, "vision_model", theirs)
    head = tower.head
    with torch.no_grad():
        copy_linear(ours.patches.project, tower.embeddings.patch_embedding)
        ours.encoder.positions[0].table.copy_(tower.embeddings.position_embedding.weight)
        copy_norms((ours.encoder.norm, tower.post_layernorm), (ours.pool.mlp_norm, head.layernorm))
        copy_blocks(ours, tower.encoder.layers)
        ours.pool.probe.copy_(head.probe[0])
        for layer, rows in ((ours.pool.query, slice(0, 32)), (ours.pool.key_value, slice(32, 96))):
            layer.weight.copy_(head.attention.in_proj_weight[rows])
            layer.bias.copy_(head.attention.in_proj_bias[rows])
        copy_linear(ours.pool.out, head.attention.out_proj)
        copy_linear(ours.pool.mlp.up, head.mlp.fc1)
        copy_linear(ours.pool.mlp.down, head.mlp.fc2)
        images = images_for(ours)
        torch.testing.assert_close(ours(images), theirs(images).pooler_output, **CLOSE)


def part(module: nn.Module, *paths: str) -> nn.Module:
    """Return the first of these parts that a module has: names differ between versions of transformers."""
    names = dict(module.named_modules())
    return next(names[path] for path in paths if path in names)


@torch.no_grad()
def copy_vit_blocks(model: VisionTransformer, layers: nn.ModuleList) -> None:
    """Copy the blocks of DeiT and DINOv2."""
    for ours, block in zip(model.encoder.blocks, layers, strict=True):
        projections = [
            part(block, f"attention.attention.{name}", f"attention.{short}_proj")
            for name, short in (("query", "q"), ("key", "k"), ("value", "v"))
        ]
        copy_linear(ours.attention.qkv, *projections)
        copy_linear(ours.attention.out, part(block, "attention.output.dense", "attention.o_proj"))
        copy_norms(
            (ours.attention_norm, part(block, "layernorm_before", "norm1")),
            (ours.mlp_norm, part(block, "layernorm_after", "norm2")),
        )
        copy_linear(ours.mlp.up, part(block, "intermediate.dense", "mlp.fc1"))
        copy_linear(ours.mlp.down, part(block, "output.dense", "mlp.fc2"))
        if model.config.layer_scale is not None:
            ours.attention_scale.gamma.copy_(block.layer_scale1.lambda1)
            ours.mlp_scale.gamma.copy_(block.layer_scale2.lambda1)


def test_the_distillation_token_and_the_mean_of_two_heads_are_deits():
    theirs = randomised(
        DeiTForImageClassificationWithTeacher(
            DeiTConfig(**SIZE, intermediate_size=48, num_labels=7, layer_norm_eps=1e-6)
        )
    )
    ours = vitkit.create("mu/8", image=32, classes=7, mlp=48, distillation="heads", gelu="exact").eval()
    embeddings = theirs.deit.embeddings
    with torch.no_grad():
        copy_linear(ours.patches.project, embeddings.patch_embeddings.projection)
        ours.class_token.copy_(embeddings.cls_token[0])
        ours.distillation_token.copy_(embeddings.distillation_token[0])
        ours.encoder.positions[0].table.copy_(embeddings.position_embeddings[0])
        copy_vit_blocks(ours, part(theirs.deit, "encoder.layer", "layers", "encoder.layers"))
        copy_norms((ours.encoder.norm, theirs.deit.layernorm))
        ours.head.logits.class_token.load_state_dict(theirs.cls_classifier.state_dict())
        ours.head.logits.distillation_token.load_state_dict(theirs.distillation_classifier.state_dict())
        images = images_for(ours)
        torch.testing.assert_close(ours(images), theirs(images).logits, **CLOSE)


def test_class_token_beside_the_mean_of_patches_without_registers_is_dinov2s_classifier():
    config = Dinov2WithRegistersConfig(**SIZE, mlp_ratio=2, num_labels=7, num_register_tokens=3)
    theirs = randomised(Dinov2WithRegistersForImageClassification(config))
    options = {"pool": "token-gap", "registers": 3, "layer_scale": 1.0, "gelu": "exact"}
    ours = vitkit.create("mu/8", image=32, classes=7, mlp=64, **options).eval()
    body = theirs.dinov2_with_registers
    with torch.no_grad():
        copy_linear(ours.patches.project, body.embeddings.patch_embeddings.projection)
        ours.class_token.copy_(body.embeddings.cls_token[0])
        ours.register_tokens.copy_(body.embeddings.register_tokens[0])
        ours.encoder.positions[0].table.copy_(body.embeddings.position_embeddings[0])
        copy_vit_blocks(ours, part(body, "encoder.layer", "layers", "encoder.layers"))
        copy_norms((ours.encoder.norm, body.layernorm))
        copy_linear(ours.head.logits, theirs.classifier)
        images = images_for(ours)
        torch.testing.assert_close(ours(images), theirs(images).logits, **CLOSE)


# Rotary positions


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    pairs=st.integers(1, 4),
    layout=st.sampled_from(["half", "interleaved"]),
    coordinates=st.sampled_from(["centred", "index"]),
    seed=st.integers(0, 100),
)
def test_turned_products_depend_on_the_displacement_only(rows, columns, pairs, layout, coordinates, seed):
    depth = 4 * pairs
    angles = rotary_angles((rows, columns), depth, coordinates, 50.0).double()  # (N, d/2)
    assert angles.shape == (rows * columns, depth // 2)
    rng = np.random.default_rng(seed)
    query, key = (torch.from_numpy(rng.normal(size=depth)) for _ in range(2))
    tables = angles.repeat(1, 2) if layout == "half" else angles.repeat_interleave(2, dim=1)

    def turned(x: Tensor) -> Tensor:
        return x * tables.cos() + quarter_turn(x, layout) * tables.sin()  # (N, d)

    scores = (turned(query) @ turned(key).T).reshape(rows, columns, rows, columns)
    torch.testing.assert_close(scores[:-1, :-1, :-1, :-1], scores[1:, 1:, 1:, 1:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(turned(query).norm(dim=1), query.norm().expand(rows * columns), atol=1e-5, rtol=1e-5)


def test_rotary_tables_are_no_weights_and_survive_loading(tmp_path):
    model = make("like DINOv3")
    assert not [name for name in model.state_dict() if "rotary" in name]
    images = images_for(model)
    vitkit.save(model, tmp_path / "model")
    again = vitkit.load(tmp_path / "model")
    assert torch.equal(again(images), model(images))
    again.resize((32, 24))
    fresh = vitkit.create("mu/8", image=(32, 24), positions="none", rotary="centred")
    torch.testing.assert_close(again.encoder.rotary.cos, fresh.encoder.rotary.cos)


# Heads


def test_replacing_two_heads_leaves_one_layer_that_reads_both_tokens():
    model = make("distillation heads")
    model.replace_head(5)
    assert model.config.distillation == "token"
    assert model.head.logits.weight.shape == (5, 2 * model.config.width)
    twin = randomise(vitkit.create("mu/8", image=(16, 40), classes=5, distillation="token", gelu="exact"))
    assert list(twin.state_dict()) == list(model.state_dict())
    assert torch.equal(model(images_for(model)), torch.zeros(2, 5))


def test_replacing_the_head_keeps_the_projection():
    model = make("projection")
    before = model.projection.weight.clone()
    model.replace_head(5)
    assert torch.equal(model.projection.weight, before)
    assert model.head.logits.weight.shape == (5, 20)


def test_replacing_cosine_logits_leaves_a_linear_layer():
    model = make("cosine logits")
    images = images_for(model)
    torch.testing.assert_close(
        model.head(7 * torch.eye(4, 32)), model.head(torch.eye(4, 32)), **CLOSE
    )  # the length of a representation is not seen
    removed = make("cosine logits")
    removed.replace_head(0)
    assert removed(images).shape == (2, 32)
    model.replace_head(5)
    assert not model.config.normalise
    assert type(model.head.logits) is nn.Linear
    assert torch.equal(model(images), torch.zeros(2, 5))


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"registers": -1}, "registers=-1 must be a whole number"),
        ({"registers": True}, "registers=True must be a whole number"),
        ({"layer_scale": 0}, "layer_scale=0 must be a number above 0"),
        ({"layer_scale": "small"}, "layer_scale='small' must be a number"),
        ({"projection": 0}, "projection=0"),
        ({"swiglu": 1}, "swiglu=1 must be true or false"),
        ({"key_bias": None}, "key_bias=None must be true or false"),
        ({"rotary": "polar"}, "rotary='polar' is not known"),
        ({"rotary_base": 10.0}, "rotary_base=10.0 has no effect with rotary='none'"),
        ({"rotary_layout": "interleaved"}, "rotary_layout='interleaved' has no effect"),
        ({"rotary": "index", "heads": 16}, "no multiple of 4"),
        ({"rotary": "centred", "positions": "relative"}, "rotary='centred' with relative positions is not built"),
        ({"rotary": "index", "axial": True, "pool": "gap"}, "axial attention with rotary positions"),
        ({"registers": 2, "positions": "relative"}, "registers=2 with relative positions"),
        ({"registers": 2, "axial": True, "pool": "gap"}, "registers are in neither"),
        ({"class_position": False, "positions": "none"}, "positions='none' adds none"),
        ({"class_position": False, "pool": "gap"}, "this model has none"),
        ({"distillation": "token", "pool": "gap"}, "read beside the class token"),
        ({"distillation": "token", "positions": "relative"}, "distillation='token' with relative positions"),
        ({"distillation": "heads", "representation": 8}, "read the tokens themselves"),
        ({"distillation": "heads", "projection": 8}, "read the tokens themselves"),
        ({"swiglu": True, "gelu": "exact"}, "has no effect with swiglu"),
        ({"normalise": 1}, "normalise=1 must be true or false"),
        ({"normalise": True, "classes": 0}, "classes=0 has none"),
        ({"normalise": True, "distillation": "heads"}, "read the tokens themselves"),
        ({"pool": "token-gap", "class_token": False}, "reads the class token"),
    ],
)
def test_options_that_do_not_apply_are_refused_with_a_reason(options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        vitkit.create("mu/8", image=32, **options)
