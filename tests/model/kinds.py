"""One small model of every kind, and random weights that no symmetry hides behind."""

from __future__ import annotations

import pytest
import torch

import vitkit
from vitkit.model.build import Model

# id → name, options; each at an image size that keeps it quick
KINDS = {
    "token": ("mu/8", {"image": 32}),
    "non-square, one channel": ("mu/8", {"image": (16, 40), "channels": 1}),
    "five channels": ("mu/8", {"image": 32, "channels": 5}),
    "gap": ("mu/8", {"image": 32, "pool": "gap"}),
    "gap-norm": ("mu/8", {"image": 32, "pool": "gap-norm"}),
    "gap-norm with class token": ("mu/8", {"image": 32, "pool": "gap-norm", "class_token": True}),
    "attention pool": ("mu/8", {"image": 32, "pool": "attention"}),
    "representation": ("mu/8", {"image": 32, "representation": 24}),
    "no head": ("mu/8", {"image": 32, "classes": 0}),
    "no positions": ("mu/8", {"image": 32, "positions": "none"}),
    "1d every": ("mu/8", {"image": 32, "inject": "every"}),
    "1d shared": ("mu/8", {"image": 32, "inject": "shared"}),
    "2d": ("mu/8", {"image": (16, 40), "positions": "2d"}),
    "2d every, gap": ("mu/8", {"image": (16, 40), "positions": "2d", "inject": "every", "pool": "gap"}),
    "2d shared": ("mu/8", {"image": (16, 40), "positions": "2d", "inject": "shared"}),
    "relative": ("mu/8", {"image": (16, 40), "positions": "relative"}),
    "relative shared, gap": ("mu/8", {"image": 32, "positions": "relative", "inject": "shared", "pool": "gap"}),
    "relative-2d, gap": ("mu/8", {"image": (16, 40), "positions": "relative-2d", "pool": "gap"}),
    "relative-2d alone, gap": (
        "mu/8",
        {"image": (16, 40), "positions": "relative-2d", "content": False, "pool": "gap"},
    ),
    "relative by quadratic-general shared, attention pool": (
        "mu/8",
        {"image": (16, 40), "positions": "quadratic-general", "inject": "shared", "pool": "attention"},
    ),
    "relative by quadratic alone, gap": (
        "mu/8",
        {"image": 32, "positions": "quadratic", "content": False, "pool": "gap", "heads": 3, "norm": "post"},
    ),
    "sincos": ("mu/8", {"image": (16, 40), "positions": "sincos"}),
    "sincos shared": ("mu/8", {"image": (16, 40), "positions": "sincos", "inject": "shared"}),
    "sincos1d": ("mu/8", {"image": (16, 40), "positions": "sincos1d"}),
    "sincos1d shared, gap": ("mu/8", {"image": 32, "positions": "sincos1d", "inject": "shared", "pool": "gap"}),
    "inducing points, two seeds": (
        "mu/8",
        {"image": (16, 40), "positions": "none", "induced": 3, "pool": "seeds", "seeds": 2, "layer_scale": 0.1},
    ),
    "inducing points, one seed, post-norm": (
        "mu/8",
        {"image": 32, "induced": 4, "pool": "seeds", "norm": "post", "class_token": True},
    ),
    "three seeds": ("mu/8", {"image": 32, "pool": "seeds", "seeds": 3}),
    "post-norm": ("mu/8", {"image": 32, "norm": "post"}),
    "axial": ("mu/8", {"image": (16, 40), "axial": True, "pool": "gap"}),
    "exact GELU": ("mu/8", {"image": 32, "gelu": "exact"}),
    "quick GELU": ("mu/8", {"image": 32, "gelu": "quick"}),
    "SwiGLU": ("mu/8", {"image": 32, "swiglu": True, "mlp": 48}),
    "SwiGLU, attention pool": ("mu/8", {"image": 32, "swiglu": True, "pool": "attention"}),
    "LayerScale": ("mu/8", {"image": 32, "layer_scale": 0.1}),
    "LayerScale, post-norm": ("mu/8", {"image": 32, "layer_scale": 0.1, "norm": "post"}),
    "registers": ("mu/8", {"image": (16, 40), "registers": 3}),
    "registers, 2d every, gap": (
        "mu/8",
        {"image": 32, "registers": 2, "positions": "2d", "inject": "every", "pool": "gap"},
    ),
    "no class position": ("mu/8", {"image": 32, "class_position": False, "layer_scale": 1e-4}),
    "distillation token": ("mu/8", {"image": 32, "distillation": "token"}),
    "distillation heads": ("mu/8", {"image": (16, 40), "distillation": "heads", "gelu": "exact"}),
    "token-gap": ("mu/8", {"image": 32, "pool": "token-gap", "registers": 2}),
    "no key bias": ("mu/8", {"image": 32, "key_bias": False}),
    "no biases of q, k, v": ("mu/8", {"image": 32, "query_bias": False, "key_bias": False, "value_bias": False}),
    "projection": ("mu/8", {"image": 32, "projection": 20}),
    "cosine logits": ("mu/8", {"image": 32, "normalise": True}),
    "cosine logits, attention pool": ("mu/8", {"image": 32, "pool": "attention", "normalise": True}),
    "rotary, index, interleaved": (
        "mu/8",
        {"image": (16, 40), "rotary": "index", "rotary_base": 10_000.0, "rotary_layout": "interleaved"},
    ),
    "rotary, gap": ("mu/8", {"image": 32, "rotary": "centred", "positions": "none", "pool": "gap"}),
    "like CLIP": (
        "mu/8",
        {
            "image": 32,
            "ln_pre": True,
            "patch_bias": False,
            "gelu": "quick",
            "eps": 1e-5,
            "projection": 24,
        },
    ),
    "like DINOv3": (
        "mu/8",
        {
            "image": (16, 40),
            "positions": "none",
            "rotary": "centred",
            "registers": 4,
            "layer_scale": 1.0,
            "key_bias": False,
            "gelu": "exact",
            "eps": 1e-5,
        },
    ),
    "root hybrid": ("R+mu/16", {"image": (64, 96)}),
    "hybrid": ("R26+mu/32", {"image": 64, "stem": {"width": 32}}),
    "ResNet": ("R50x1", {"image": 64, "body": {"width": 32, "layers": (1, 2, 1, 1)}}),
}

# beside KINDS, whose tests are about Transformers and BiT
RESNETS_WITH_ATTENTION = {
    "bottleneck attention": ("BoT50", {"image": 32, "body": {"width": 32, "layers": (1, 2)}}),
    "augmented convolution": ("AA-R50", {"image": (48, 64), "body": {"width": 32, "layers": (1, 2)}}),
    "local attention": (
        "SASA-R50",
        {"image": (48, 64), "body": {"width": 32, "layers": (1, 1), "attention": {"window": 3}}},
    ),
    "axial ResNet": ("Axial-R50", {"image": (48, 64), "body": {"width": 32, "layers": (1, 1)}}),
    "local attention, pre-activation": (
        "R50x1",
        {"image": 32, "body": {"width": 32, "layers": (1, 2), "attention": {"kind": "local", "heads": 4, "stages": 1}}},
    ),
}
ALL_KINDS = {**KINDS, **RESNETS_WITH_ATTENTION}
# beside both, whose tests are about one answer for an image
SEGMENTERS = {
    "linear": ("mu/8+linear", {"image": (16, 40)}),
    "linear, axial": ("mu/8+linear", {"image": (16, 40), "axial": True, "pool": "gap"}),
    "linear, post-norm, relative": ("mu/8+linear", {"image": 32, "norm": "post", "positions": "relative"}),
    "linear, one channel": ("mu/8+linear", {"image": 32, "channels": 1, "pool": "gap", "swiglu": True}),
    "linear, hybrid": ("R+mu/16+linear", {"image": (64, 96)}),
    "queries": ("mu/8+queries", {"image": (16, 40), "queries": 7, "query_blocks": 1}),
    "queries in all blocks": ("mu/16+queries", {"image": (64, 32), "queries": 5, "query_blocks": 2}),
    "queries, post-norm, every": (
        "mu/8+queries",
        {"image": 32, "queries": 6, "query_blocks": 2, "norm": "post", "inject": "every", "distillation": "token"},
    ),
    "queries like DINOv3": (
        "mu/8+queries",
        {
            "image": (16, 40),
            "queries": 9,
            "query_blocks": 1,
            "positions": "none",
            "rotary": "centred",
            "registers": 4,
            "layer_scale": 1.0,
            "key_bias": False,
            "gelu": "exact",
        },
    ),
}
# attention that is no SelfAttention: fast paths and relevance decline it
OTHER_ATTENTION = [kind for kind in KINDS if "alone" in kind or "inducing" in kind]

# Each has a module or a branch that the others have not. Costly tests run these by default, `make test-slow` all.
DISTINCT = (
    "token",
    "attention pool",
    "no head",
    "relative",
    "relative-2d, gap",
    "relative by quadratic alone, gap",
    "inducing points, two seeds",
    "post-norm",
    "axial",
    "SwiGLU",
    "LayerScale",
    "distillation heads",
    "rotary, gap",
    "like DINOv3",
    "hybrid",
    "ResNet",
)
DISTINCT_FIRST = [kind if kind in DISTINCT else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]

POSITIONS = [
    kind for kind in KINDS if any(word in kind for word in ("token", "positions", "1d", "2d", "relative", "sincos"))
]


def make(kind: str) -> Model:
    name, options = {**ALL_KINDS, **SEGMENTERS}[kind]
    return randomise(vitkit.create(name, **{"classes": 10, **options}).eval())


def randomise(model: Model) -> Model:
    """Every parameter random, zeros and ones included: a part that is skipped or swapped then shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def images_for(model: Model, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, model.config.channels, *model.config.image)
