"""Build a model with fresh weights from a name or a configuration."""

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitkit.errors import ConfigError
from vitkit.model.config import ModelConfig, ResNetConfig
from vitkit.model.igpt import ImageGPT
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.resnet import ResNet
from vitkit.model.segmenter import Segmenter
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.variants import configure
from vitkit.model.vit import VisionTransformer

Model = VisionTransformer | ResNet | ImageGPT | Segmenter
TokenModel = VisionTransformer | ImageGPT | Segmenter  # that read a grid of tokens, as their TokenConfig says


def create(name: str, *, classes: int = 1000, image: int | tuple[int, int] | None = None, **options: Any) -> Model:
    """Return an untrained model of the paper by its name: `create("B/16", classes=37, image=(224, 320))`.

    Names: Ti S B L H g G, So400m g-opt (SigLIP), giant2 (DINOv2), S+ H+ 7B (DINOv3) and a toy, mu, with any patch side,
    "S/16"; hybrids, "R50+B/16", where the number is the total stride; BiT ResNets, "R50x1"; ResNets with
    attention, "BoT50" (BoTNet), "AA-R50" (attention-augmented convolution), "SASA-R50" (local attention), "Axial-R50";
    "iGPT-S/32", S, M or L and the side of its images; for segmentation, the name of a Vision Transformer and its head,
    "Ti/16+linear" or "Ti/16+queries". The options of the last two come last. `image` is 224 by default, an iGPT's the
    side in its name. Options, with the paper's choice first:

        channels          3
        positions         "1d", "2d", "relative", "none" (Table 8), or fixed: "sincos" of x and y (big_vision's
                          sincos2d), "sincos1d" along the line of tokens (Vaswani et al.); by rows and columns between
                          patches: "relative-2d" (Ramachandran et al.), "quadratic", a Gaussian around an offset of the
                          head, "quadratic-general", an ellipse (Cordonnier et al.)
        inject            "stem", "every" layer its own, or one "shared" by every layer (Table 8)
        rotary            "none", or rotary positions on queries and keys of patches, beside or without `positions`:
                          "centred" coordinates, from -1 to 1 over the image (DINOv3), or the "index" of row and column
        rotary_base       100.0: the longest period of the angles, almost, in units of the shortest
        rotary_layout     "half": the pair of number i is i + d/2 of d (rotate-half); "interleaved": 2i and 2i + 1
        pool              "token", "gap" (normalise, then average), "gap-norm" (average, then normalise), "token-gap"
                          (class token and average side by side, DINOv2's classifiers), "attention" (SigLIP), "seeds"
                          (the Set Transformer's PMA)
        seeds             1: learned seeds of pool="seeds", whose vectors stand side by side
        class_token       True with pool="token" or "token-gap", else False
        class_position    True, or False: positions are for patches only (DeiT-III)
        distillation      "none"; DeiT's distillation token: "token" (one head reads it and the class token side by
                          side) or "heads" (each has its own, and the mean of their logits counts)
        registers         0: number of register tokens, which have no positions (DINOv2, DINOv3)
        representation    None, or the width of the pre-training head's tanh layer
        projection        None, or the width of a linear layer without bias after pooling (CLIP)
        normalise         False, or True: logits see the representation at length 1 (zero-shot classification)
        norm              "pre" or "post"
        ln_pre            False, or True for a LayerNorm before the first block (CLIP)
        axial             False, or True for attention along rows, then columns (D.6)
        content           True, or False for attention by positions alone, whose heads mix whole tokens (Cordonnier et
                          al.); with the positions between patches
        induced           0, or the number of inducing points of each layer: tokens attend to them, and they to all
                          tokens (Set Transformer)
        query_bias key_bias value_bias    True, or False for a projection without bias (DINOv3: no key bias)
        swiglu            False, or True for a gated MLP (DINOv2's g, DINOv3's S+, H+, 7B, whose names say so)
        gelu              "tanh" (Google), "exact" (timm, Hugging Face) or "quick" (OpenAI's CLIP)
        layer_scale       None, or the initial value of LayerScale's factors
        patch_bias        True, or False for a patch embedding without bias (CLIP)
        dropout           0.0: after dense layers except qkv, and after adding positions
        stochastic_depth  0.0: rate of the last layer
        depth width mlp heads patch stem eps    override the named sizes; a hybrid's stem, and the body of a ResNet, as
                                                a table of what differs: body={"layers": (2, 2, 2, 2), "width": 32}

    Options of a ResNet's body: layers, width, preactivation, and attention in place of its 3x3 convolutions, as a kind
    ("bottleneck", "augmented", "local", "axial") or as a table: kind, heads, stages (so many of the last ones), window
    (of local attention), key_share value_share least_key pool (of augmented convolutions).

    Options of an iGPT:
        colours           512: the palette, which training from scratch fits to its images
        causal            True, or False for the BERT-style model, in which a pixel sees all others
        channels dropout depth width mlp heads eps    as above

    Options of a segmenter, beside those of its Vision Transformer that are not about pooling:
        queries           100: of the head "queries" (EoMT)
        query_blocks      4: the last blocks, which the queries join

    `classes=0` leaves the logits out; the model then returns its representation.
    """
    return build(configure(name, classes=classes, image=image, **options))


def build(config: ModelConfig) -> Model:
    if isinstance(config, IGPTConfig):
        return ImageGPT(config)
    if isinstance(config, SegmenterConfig):
        return Segmenter(config)
    return ResNet(config) if isinstance(config, ResNetConfig) else VisionTransformer(config)


def transformer_of(model: Model) -> VisionTransformer | None:
    """Return the Vision Transformer that a model is, or whose tokens a segmenter reads; None for other models."""
    backbone = model.backbone if isinstance(model, Segmenter) else model
    return backbone if isinstance(backbone, VisionTransformer) else None


def check_of_images(model: Model, what: str) -> None:
    """Raise a ConfigError for a segmenter, whose answers are about pixels; `what` is asked for of whole images."""
    if isinstance(model, Segmenter):
        raise ConfigError(
            f"{what} is asked for, and this is {model.kind}, which gives every pixel a class",
            try_="the weights of a classifier, such as those that the segmenter started from",
        )


def build_on_meta(config: ModelConfig) -> Model:
    """Return a model on the meta device: names and shapes of its tensors, without memory for their values."""
    with torch.device("meta"), _WithoutRandomValues():
        return build(config)


class _WithoutRandomValues(TorchFunctionMode):
    """Draw no random values for tensors without memory, for which torch would import its compiler: seconds."""

    drawing = (torch.nn.init.normal_, Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.clamp_)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        arguments = kwargs or {}
        if func in self.drawing:
            return args[0] if args else arguments["tensor"]
        return func(*args, **arguments)


def shared_copy(model: Model) -> Model:
    """Return a copy of the model's modules that shares its parameters and buffers."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
