"""Build a model with fresh weights from a name or a configuration."""

import copy
from typing import Any

from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.model.resnet import ResNet
from vitkit.model.variants import configure
from vitkit.model.vit import VisionTransformer

Model = VisionTransformer | ResNet


def create(name: str, *, classes: int = 1000, image: int | tuple[int, int] = 224, **options: Any) -> Model:
    """Return an untrained model of the paper by its name: `create("B/16", classes=37, image=(224, 320))`.

    Names: Ti S B L H g G (and a toy, mu) with any patch side, "S/16"; hybrids, "R50+B/16", where the number is the
    total stride; BiT ResNets, "R50x1". Options, with the paper's choice first:

        channels          3
        positions         "1d", "2d", "relative", "none" (Table 8), or fixed: "sincos" of x and y (big_vision's
                          sincos2d), "sincos1d" along the line of tokens (Vaswani et al.)
        inject            "stem", "every" layer its own, or one "shared" by every layer (Table 8)
        pool              "token", "gap" (normalise, then average), "gap-norm" (average, then normalise), "attention"
        class_token       True with pool="token", else False
        representation    None, or the width of the pre-training head's tanh layer
        norm              "pre" or "post"
        axial             False, or True for attention along rows, then columns (D.6)
        gelu              "tanh" (Google) or "exact" (timm, Hugging Face)
        dropout           0.0: after dense layers except qkv, and after adding positions
        stochastic_depth  0.0: rate of the last layer
        depth width mlp heads patch stem eps    override the named sizes; a hybrid's stem, and the body of a ResNet, as
                                                a table of what differs: body={"layers": (2, 2, 2, 2), "width": 32}

    `classes=0` leaves the logits out; the model then returns its representation.
    """
    return build(configure(name, classes=classes, image=image, **options))


def build(config: ModelConfig) -> Model:
    return VisionTransformer(config) if isinstance(config, ViTConfig) else ResNet(config)


def shared_copy(model: Model) -> Model:
    """Return a copy of the model's modules that shares its parameters and buffers."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
