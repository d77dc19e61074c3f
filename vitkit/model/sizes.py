"""The only size tables of the project: depths and widths by the parts of model names, of ViTs, iGPTs and ResNets."""

from typing import NamedTuple

from vitkit.model.spatial_attention import SpatialAttention


class Size(NamedTuple):
    depth: int
    width: int
    mlp: int
    heads: int
    swiglu: bool = False


# fmt: off
SIZES = {  #            depth width  mlp  heads swiglu
    "mu":     Size( 2,   32,  128,   2),    # a toy, for tests and first steps
    "Ti":     Size(12,  192,  768,   3),    # DeiT / AugReg
    "S":      Size(12,  384, 1536,   6),
    "B":      Size(12,  768, 3072,  12),    # paper, Table 1
    "L":      Size(24, 1024, 4096,  16),
    "H":      Size(32, 1280, 5120,  16),
    "g":      Size(40, 1408, 6144,  16),    # Zhai et al., Scaling Vision Transformers; I-JEPA's and OpenCLIP's, too
    "G":      Size(48, 1664, 8192,  16),    # OpenCLIP's bigG, too
    "So400m": Size(27, 1152, 4304,  16),    # Alabdulmohsin et al., Getting ViT in Shape; SigLIP
    "g-opt":  Size(40, 1536, 6144,  16),    # SigLIP 2
    "giant2": Size(40, 1536, 4096,  24, True),  # DINOv2's g
    "S+":     Size(12,  384, 1536,   6, True),  # DINOv3 from here
    "H+":     Size(32, 1280, 5120,  20, True),
    "7B":     Size(40, 4096, 8192,  32, True),
}

# of pixels, not of patches; apart, for the width of foreign weights tells a ViT's heads
IGPT_SIZES = {
    "iGPT-mu": Size( 2,   32,  128,   2),    # a toy
    "iGPT-S":  Size(24,  512, 2048,   8),    # Chen et al., Generative Pretraining from Pixels
    "iGPT-M":  Size(36, 1024, 4096,   8),
    "iGPT-L":  Size(48, 1536, 6144,  16),
}
# fmt: on


class Stem(NamedTuple):
    layers: tuple[int, ...]
    patch: int


# (ResNet, number in the name) → units per stage, patch side on the feature map. The number is the total stride, except
# in R+Ti/16: its stem is the ResNet's root alone, stride 4, under 8-pixel patches, so it is really /32 (Google's code).
STEMS = {
    ("R", 16): Stem((), 8),
    ("R26", 32): Stem((2, 2, 2, 2), 1),
    ("R50", 16): Stem((3, 4, 9), 1),  # stage 4 dropped, its units moved to stage 3
    ("R50", 32): Stem((3, 4, 6, 3), 1),
}

RESNETS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}


class AttentionResNet(NamedTuple):
    """A ResNet with attention, as its paper has it: the start of its name, and the options of the attention."""

    prefix: str
    attention: SpatialAttention


# They are also the defaults of `attention="bottleneck"` and the like.
ATTENTION_RESNETS = (
    AttentionResNet("BoT", SpatialAttention(kind="bottleneck", heads=4, stages=1)),
    AttentionResNet("AA-R", SpatialAttention(kind="augmented", heads=8, stages=3)),
    AttentionResNet("SASA-R", SpatialAttention(kind="local", heads=8)),
    AttentionResNet("Axial-R", SpatialAttention(kind="axial", heads=8)),
)
