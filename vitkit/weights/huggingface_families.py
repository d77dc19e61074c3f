"""The model types of transformers that vitkit reads and writes, each as its differences from the plain ViT."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitkit.data.preprocessing import Preprocessing
from vitkit.model.allow_list import AllowList, allow
from vitkit.model.config import ViTConfig
from vitkit.model.resize_positions import Interpolation
from vitkit.weights.huggingface_names import DINOV2, DINOV3, VIT, Names

IMAGENET: dict[str, Any] = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "rounding": "transformers",
    "origin": "as published for these weights, there is no preprocessor_config.json",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    model_type: str
    name: str  # its classes are NAMEModel and NAMEForImageClassification
    body: str  # the tensors of a classifier's body begin with it
    names: Names = VIT
    classifier: bool = True  # whether transformers has one
    wide_classifier: bool = False  # it reads the class token and the mean of the patches, side by side
    pooler: bool = False
    class_token: bool = True
    distillation: bool = False
    registers: bool = False
    layer_scale: bool = False
    rotary: bool = False
    mask_token: tuple[int, ...] | None = None  # the dimensions of 1 before the width, where there is such a tensor
    left_out: str | None = None  # the prefix of a pre-training head that is not read
    interpolation: Interpolation = "paper"
    eps: float = 1e-12  # transformers' default, where config.json has none
    # without a preprocessor_config.json; None: what transformers does with a ViT
    preprocessing: Preprocessing | None = None
    known: AllowList = field(repr=False)


def _known(what: str, options: str = "", only: Mapping[str, tuple[Any, ...]] | None = None) -> AllowList:
    """Return the options of a model that a family holds: `options` beside those of all, the others at their default."""
    held = set(
        "depth width mlp heads patch image channels classes pool class_token representation gelu eps dropout "
        f"stochastic_depth positions inject {options}".split()
    )
    plain = set(ViTConfig.__dataclass_fields__) - held
    return allow(
        f"the hf format ({what})",
        vit=" ".join(held),
        plain=" ".join(plain),
        only={
            "gelu": ("tanh", "exact"),
            "pool": ("token",),
            "class_token": (True,),
            "positions": ("1d",),
            "inject": ("stem",),
            **(only or {}),
        },
    )


_DINOV2: dict[str, Any] = {
    "names": DINOV2,
    "wide_classifier": True,
    "layer_scale": True,
    "mask_token": (1,),
    "eps": 1e-6,
    "preprocessing": Preprocessing(resize="crop", crop=224 / 256, interpolation="bicubic", **IMAGENET),
}
_SQUASH = Preprocessing(resize="squash", interpolation="bilinear", **IMAGENET)
_WIDE = {"pool": ("token", "token-gap"), "representation": (None,)}

FAMILIES = (
    Family(model_type="vit", name="ViT", body="vit.", pooler=True, known=_known("ViT")),
    Family(
        model_type="dinov2",
        name="Dinov2",
        body="dinov2.",
        interpolation="bicubic-no-antialias",
        known=_known("DINOv2", "layer_scale swiglu", _WIDE),
        **_DINOV2,
    ),
    Family(
        model_type="dinov2_with_registers",
        name="Dinov2WithRegisters",
        body="dinov2_with_registers.",
        registers=True,
        interpolation="bicubic",
        known=_known("DINOv2 with registers", "layer_scale swiglu registers", _WIDE),
        **_DINOV2,
    ),
    Family(
        model_type="dinov3_vit",
        name="DINOv3ViT",
        body="",
        names=DINOV3,
        classifier=False,
        registers=True,
        layer_scale=True,
        rotary=True,
        mask_token=(1, 1),
        eps=1e-5,
        preprocessing=_SQUASH,
        known=_known(
            "DINOv3",
            "layer_scale swiglu registers rotary rotary_base query_bias key_bias value_bias",
            {"positions": ("none",), "rotary": ("centred",), "representation": (None,), "classes": (0,)},
        ),
    ),
    Family(
        model_type="deit",
        name="DeiT",
        body="deit.",
        pooler=True,
        distillation=True,
        interpolation="bicubic-no-antialias",
        preprocessing=Preprocessing(resize="squash", crop=224 / 256, interpolation="bicubic", **IMAGENET),
        known=_known("DeiT", "distillation", {"distillation": ("token", "heads")}),
    ),
    Family(
        model_type="ijepa",
        name="IJepa",
        body="ijepa.",
        class_token=False,
        interpolation="bicubic-no-antialias",
        preprocessing=_SQUASH,
        known=_known("I-JEPA", "", {"pool": ("gap",), "class_token": (False,), "representation": (None,)}),
    ),
    Family(
        model_type="vit_mae",
        name="ViTMAE",
        body="vit.",
        classifier=False,
        left_out="decoder.",
        interpolation="bicubic-no-antialias",
        preprocessing=_SQUASH,
        known=_known("MAE", "", {"classes": (0,), "representation": (None,)}),
    ),
)
BY_TYPE = {family.model_type: family for family in FAMILIES}


def choose_family(config: ViTConfig, preferred: str | None) -> Family:
    """Return the family that can hold a model: the one that it was read from, the first that can, or else the ViT."""
    order = sorted(FAMILIES, key=lambda family: family.model_type != preferred)
    return next((family for family in order if family.known.reason_to_decline(config) is None), BY_TYPE["vit"])
