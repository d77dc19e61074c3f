"""The paper's CNN: the BiT ResNet baseline and the hybrid's stem, with group norm and weight standardisation.

Shapes: B batch, C channels, h x w feature map.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import ConfigError, SizeError
from vitkit.model.base import ImageModel
from vitkit.model.capture import Seen, keep
from vitkit.model.config import ResNetConfig, parse_size
from vitkit.model.conv_config import ConvConfig
from vitkit.model.feature_map_attention import FeatureMapAttention
from vitkit.model.heads import Head
from vitkit.model.initialise import lecun_normal_
from vitkit.model.options import GROUPS, PositionTransfer
from vitkit.model.resize_positions import DONE, Interpolation
from vitkit.model.spatial_layer import attention_grid, build_spatial


def standardise(weight: Tensor, config: ConvConfig) -> Tensor:
    """Standardise each output channel's kernel to zero mean and unit deviation, in float32 at least."""
    weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, unbiased=False)
    if config.standardise_on == "std":
        return (weight - mean) / (variance.sqrt() + config.standardise_eps)
    return (weight - mean) / (variance + config.standardise_eps).sqrt()


class StandardisedConv(nn.Module):
    """A weight-standardised convolution: the hybrid pads as TensorFlow's SAME does, BiT alike on all sides."""

    def __init__(self, config: ConvConfig, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__()
        self.config, self.kernel, self.stride = config, kernel, stride
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))
        lecun_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = standardise(self.weight, self.config).to(x.dtype)
        if self.config.preactivation or self.stride == 1:  # at stride 1, SAME pads all sides alike too
            return F.conv2d(x, weight, stride=self.stride, padding=(self.kernel - 1) // 2)
        return F.conv2d(pad_same(x, self.kernel, self.stride), weight, stride=self.stride)


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad as TensorFlow's SAME: ceil(side / stride) outputs, the odd pixel of padding at the end."""
    totals = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
    (top, bottom), (left, right) = [(total // 2, total - total // 2) for total in totals]
    return F.pad(x, (left, right, top, bottom)) if any(totals) else x


class Unit(nn.Module):
    """A bottleneck: 1x1, 3x3 (with the stride) or attention, 1x1; a shortcut, projected where shapes differ."""

    def __init__(self, config: ConvConfig, inputs: int, *, stage: int, stride: int, image: tuple[int, int]):
        super().__init__()
        middle = config.width * 2**stage
        outputs = 4 * middle
        self.preactivation = config.preactivation
        self.conv1 = StandardisedConv(config, inputs, middle, 1)
        self.stage, self.stride = stage, stride
        self.conv2 = build_spatial(
            config, stage, stride, image, lambda channels: StandardisedConv(config, middle, channels, 3, stride)
        )
        self.conv3 = StandardisedConv(config, middle, outputs, 1)
        normed = (inputs, middle, middle) if config.preactivation else (middle, middle, outputs)
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(GROUPS, width, eps=config.norm_eps) for width in normed)
        self.project: StandardisedConv | None = None
        self.project_norm: nn.GroupNorm | None = None
        if stride != 1 or inputs != outputs:
            self.project = StandardisedConv(config, inputs, outputs, 1, stride)
            if not config.preactivation:
                self.project_norm = nn.GroupNorm(GROUPS, outputs, eps=config.norm_eps)
        if not config.preactivation:
            nn.init.zeros_(self.norm3.weight)  # a post-activation unit starts as its shortcut

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:
        return self._preactivated(x, seen, name) if self.preactivation else self._postactivated(x, seen, name)

    def _spatial(self, x: Tensor, seen: Seen, name: str) -> Tensor:
        layer = self.conv2
        mixed: Tensor = layer(x, seen, name) if isinstance(layer, FeatureMapAttention) else layer(x)
        return mixed

    def _preactivated(self, x: Tensor, seen: Seen, name: str) -> Tensor:
        activated = self.norm1(x).relu()
        shortcut = x if self.project is None else self.project(activated)
        y = self.norm2(self.conv1(activated)).relu()
        y = self.norm3(self._spatial(y, seen, name)).relu()
        return shortcut + self.conv3(y)

    def _postactivated(self, x: Tensor, seen: Seen, name: str) -> Tensor:
        shortcut = x
        if self.project is not None and self.project_norm is not None:
            shortcut = self.project_norm(self.project(x))
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self._spatial(y, seen, name)).relu()
        return (shortcut + self.norm3(self.conv3(y))).relu()


class Stage(nn.Sequential):
    """Units that work on maps of the same size, but for the stride of the first."""

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:  # type: ignore[override]
        for number, unit in enumerate(self):
            x = unit(x, seen, f"{name}/unit{number}")
        return x


class ConvBody(nn.Module):
    """Root (stride 4) and stages: (B, C, height, width) → (B, channels_out, height / stride, width / stride)."""

    stages: Any  # a ModuleList forgets the type of what it holds

    def __init__(self, config: ConvConfig, channels: int, image: tuple[int, int]):
        super().__init__()
        self.config = config
        self.root = StandardisedConv(config, channels, config.width, 7, 2)
        self.root_norm = None if config.preactivation else nn.GroupNorm(GROUPS, config.width, eps=config.norm_eps)
        stages, inputs = [], config.width
        for stage, units in enumerate(config.layers):
            blocks = []
            for unit in range(units):
                stride = 2 if stage > 0 and unit == 0 else 1
                blocks.append(Unit(config, inputs, stage=stage, stride=stride, image=image))
                inputs = 4 * config.width * 2**stage
            stages.append(Stage(*blocks))
        self.stages = nn.ModuleList(stages)
        self.norm = nn.GroupNorm(GROUPS, inputs, eps=config.norm_eps) if config.preactivation else None

    @property
    def captures(self) -> tuple[str, ...]:
        names = ["root"]
        for index, stage in enumerate(self.stages):
            for number, unit in enumerate(stage):
                suffixes = getattr(unit.conv2, "captures", ())
                names += [f"stage{index}/unit{number}/{suffix}" for suffix in suffixes]
            names.append(f"stage{index}")
        return tuple(names)

    def attention_layers(self) -> list[tuple[Unit, FeatureMapAttention]]:
        units = (unit for unit in self.modules() if isinstance(unit, Unit))
        return [(unit, unit.conv2) for unit in units if isinstance(unit.conv2, FeatureMapAttention)]

    def resize(self, image: tuple[int, int], interpolation: Interpolation, *, fresh: bool) -> None:
        """Change the map that attention runs over to that of another image size."""
        for unit, attention in self.attention_layers():
            grid = attention_grid(self.config, unit.stage, unit.stride, image)
            attention.resize(grid, interpolation, fresh=fresh)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        x = self.root(x)
        if self.root_norm is not None:
            x = F.max_pool2d(pad_same(self.root_norm(x).relu(), 3, 2), 3, 2)
        else:
            # BiT pads with zeros, which beat negative values: not the same as max_pool2d(padding=1).
            x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        keep(seen, "root", x)
        for index, stage in enumerate(self.stages):
            x = stage(x, seen, f"stage{index}")
            keep(seen, f"stage{index}", x)
        return x if self.norm is None else self.norm(x).relu()


class ResNet(ImageModel[ResNetConfig]):
    """BiT: a pre-activation ResNet v2 as a classifier for images of any size, and ResNets with attention."""

    kind = "a ResNet"

    def __init__(self, config: ResNetConfig):
        super().__init__(config)
        self.body = ConvBody(config.body, config.channels, config.image)
        self.head = Head(width=config.body.channels_out, classes=config.classes)

    @property
    def captures(self) -> tuple[str, ...]:
        return (*self.body.captures, "features", "representation")

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(f"stage{index}" for index in range(len(self.body.stages)))

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return tuple(self.body.stages)

    @property
    def representation_width(self) -> int:
        return self.config.body.channels_out

    def pool_image(self, images: Tensor, seen: Seen) -> Tensor:
        features = self.body(images, seen)  # (B, C, h, w)
        keep(seen, "features", features)
        return features.mean(dim=(2, 3))  # (B, C)

    def pool_layer(self, layer: str, value: Tensor) -> Tensor:
        """Return the mean over the map of a stage (B, C, h, w)."""
        return value.mean(dim=(2, 3))

    def check_images(self, images: Tensor) -> None:
        super().check_images(images)
        if self.config.body.attention:
            self.check_size(images)

    def resize(
        self,
        image: int | tuple[int, int],
        interpolation: Interpolation | None = None,
        positions: PositionTransfer = "interpolate",
    ) -> None:
        if positions != "interpolate" and not self.config.body.attention:
            raise ConfigError(f"a ResNet has no positions that could be {DONE[positions]}")
        size = parse_size(image)
        if positions == "keep" and size != self.config.image:
            raise SizeError("the offsets of attention between pixels belong to an image size, so they cannot be kept")
        # a table of offsets along one side is a line: interpolated in 2-D or stretched in 1-D, it is the same
        self.body.resize(size, interpolation or self.metadata.interpolation, fresh=positions == "fresh")
        self._reconfigure(image=size)
