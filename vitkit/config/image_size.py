"""The image size and the patch of a model that is trained from scratch, by the size of the images.

Weights determine the size they were trained at. Without any, 224 px would enlarge small images sixty-four fold and make
3,136 tokens of 4-pixel patches. So the size is the median of the shorter sides, rounded to whole patches:

at most 224 px           the paper's, for pre-training
at least 7 x 7 patches   the paper's coarsest grid (/32 at 224 px); smaller images are enlarged; ResNets: 128 px

Where no model is named, the patch follows as well: the largest of 16, 8, 4 and 2 px with such a grid, so that Ti/16
becomes Ti/8 for 64-pixel images and Ti/4 for those of 28 to 32.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitkit.data.image_sizes import DataSize
from vitkit.model.config import ModelConfig, ViTConfig
from vitkit.model.variants import configure, side_of_name

LARGEST = 224
LARGEST_MASKED = 512  # pixels of the longer side of a model that segments images
LEAST_GRID = 7  # patches along a side
PATCHES = (16, 8, 4, 2)
RESNET_STRIDE, LEAST_RESNET = 32, 128  # pixels; BiT-HyperRule enlarges small images to 128


def fitting_side(model: str | ModelConfig, side: int) -> int:
    """Return the largest side, up to this one, that the patches of a model divide: 378 px of 384 for H/14."""
    built = configure(model) if isinstance(model, str) else model
    return side // built.stride * built.stride if isinstance(built, ViTConfig) else side


class SizeChoice(NamedTuple):
    model: str
    side: int
    reason: str


def choose_size(model: str, options: Mapping[str, Any], data: DataSize | None, *, named: bool) -> SizeChoice:
    """Return the model, the side of its input and the reason; a model that the user `named` keeps its patch."""
    if own := side_of_name(model):
        return SizeChoice(model, own, f"{own} px, as the name of {model} says")
    if data is None:
        return SizeChoice(model, LARGEST, f"{LARGEST} px: no image has a header to take a size from")
    chosen = model if named or "patch" in options else _with_fitting_patch(model, data)
    stride, least = _stride(chosen, options)
    side = min(max(_round(data.short_side, stride), least), max(LARGEST // stride, 1) * stride)
    reason = f"{side} px: the median of the images' shorter sides is {data.short_side} px"
    if "/" in model:
        reason += f", in {side // stride} x {side // stride} patches of {stride} px"
    if chosen != model:
        reason += f", therefore {chosen} and not {model}"
    elif side > _round(data.short_side, stride) and (better := _with_fitting_patch(model, data)) != model:
        reason += f"; images are enlarged for that, and --model {better} would do without"
    return SizeChoice(chosen, side, reason)


class MaskSizeChoice(NamedTuple):
    image: tuple[int, int]
    reason: str


def choose_mask_size(model: str, options: Mapping[str, Any], data: DataSize | None) -> MaskSizeChoice | None:
    """Return the input of a model that segments images, and the reason; None: no size is known."""
    if data is None:
        return None
    stride, least = _stride(model, options)
    height, width = mask_input(stride, (data.height, data.width))
    reason = f"{height} x {width} px: the images' medians are {data.height} x {data.width} px"
    if data.short_side < least and height > data.height and width > data.width:
        reason += "; they are enlarged, for masks are as fine as the patches"
    return MaskSizeChoice((height, width), reason)


def mask_input(stride: int, median: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of the input of a model that segments images of this median size.

    Masks are as fine as the patches, so the input has the images' own size, in whole patches: up to LARGEST_MASKED px
    on the longer side, and enlarged to LEAST_GRID patches on the shorter one. Images are resized to it whatever their
    shape, so its shape is that of most of them.
    """
    scale = min(LARGEST_MASKED / max(median), max(LEAST_GRID * stride / min(median), 1.0))
    height, width = (max(_round(round(side * scale), stride), stride) for side in median)
    return height, width


def _with_fitting_patch(model: str, data: DataSize) -> str:
    """Return a pure ViT with the largest of PATCHES, up to its own, that gives LEAST_GRID; another model as it is."""
    size, _, patch = model.partition("/")
    if "+" in size or not patch.isdigit():
        return model
    smaller = [side for side in PATCHES if side < int(patch)]
    if _round(data.short_side, int(patch)) >= LEAST_GRID * int(patch) or not smaller:
        return model
    return next(
        (f"{size}/{side}" for side in smaller if _round(data.short_side, side) >= LEAST_GRID * side),
        f"{size}/{smaller[-1]}",
    )


def _round(side: int, stride: int) -> int:
    return int(side / stride + 0.5) * stride


def _stride(model: str, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pixels per token of a model along a side, and the least side of its input."""
    patch = options.get("patch") or model.partition("/")[2]
    # a size that any patch divides, also behind a stem: the default one need not be a multiple of it
    size = {"image": int(patch) * 32} if str(patch).isdigit() else {}
    built = configure(model, **options, **size)
    return (built.stride, LEAST_GRID * built.stride) if isinstance(built, ViTConfig) else (RESNET_STRIDE, LEAST_RESNET)
