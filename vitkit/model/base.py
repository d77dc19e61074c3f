"""The base class of all models: named intermediates on request, a replaceable head, metadata that travels along.

Shapes: B batch, C channels, K classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar, overload

import torch
from torch import Tensor, nn

from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import SizeError
from vitkit.model.capture import Seen, keep, match_names
from vitkit.model.config import ModelConfig, parse_size
from vitkit.model.heads import Head
from vitkit.model.options import PositionTransfer, check_count
from vitkit.model.resize_positions import Interpolation


class Provenance(TypedDict, total=False):
    """The keys of a record of provenance that are read back; it may have any others."""

    multilabel: bool
    thresholds: list[float]
    naming: str
    license: str
    logit_scale: float
    logit_bias: float
    before: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The information that belongs to weights besides tensors."""

    labels: tuple[str, ...] | None = None  # class names, in the order of the logits
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    provenance: Mapping[str, Any] = field(default_factory=dict)  # where the weights come from
    interpolation: Interpolation = "paper"  # how the code that they come from resizes a table of positions

    @property
    def multilabel(self) -> bool:
        """Return whether each class is predicted on its own: cat yes, dog yes."""
        return bool(self.provenance.get("multilabel"))

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Return the probability from which each class of a multi-label model is predicted; None: from 0.5 on."""
        values = self.provenance.get("thresholds") if self.multilabel else None
        return tuple(map(float, values)) if values and self.labels and len(values) == len(self.labels) else None


class Preparation(NamedTuple):
    """Tensors that a model takes from training images before the first step, a palette for instance."""

    tensors: dict[str, Tensor]  # by their names in the state dict
    description: str


Config = TypeVar("Config", bound=ModelConfig)


class ImageModel(nn.Module, Generic[Config]):
    """images (B, C, height, width), preprocessed floats → logits (B, K).

    `model(images, capture=("block3/attention", "representation"))` returns the logits and a dict of the captured
    tensors; names may hold wildcards ("block*/attention"), `model.captures` lists them. Without captures, the model
    computes and keeps nothing but the logits.
    """

    config: Config
    head: Head

    kind: ClassVar[str]  # "a ResNet": as messages name models of this class
    recomputable: ClassVar[bool] = False  # whether `blocks` can be computed again in the backward pass
    generates: ClassVar[bool] = False  # whether it draws images
    sampled_images: ClassVar[int] = 0  # training images that `prepare` asks for; 0: it takes nothing from them

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.metadata = Metadata()

    @property
    def captures(self) -> tuple[str, ...]:
        """The names that `capture=` accepts, in the order of computation."""
        raise NotImplementedError

    @property
    def layers(self) -> tuple[str, ...]:
        """The captures that `pool_layer` makes features of, from the bottom: the output of each of `blocks`."""
        raise NotImplementedError

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The repeated layers, from the bottom: a Transformer's blocks, a ResNet's stages."""
        raise NotImplementedError

    @property
    def unused_by_logits(self) -> tuple[nn.Module, ...]:
        """The modules that the logits do not depend on; training by labels freezes them."""
        return ()

    def pool_image(self, images: Tensor, seen: Seen) -> Tensor:
        """images → the pooled vector that the head starts from."""
        raise NotImplementedError

    def pool_layer(self, layer: str, value: Tensor) -> Tensor:
        """Return the features (B, V) of a captured layer, as a probe reads them."""
        raise NotImplementedError

    def prepare(self, images: Tensor, seed: int) -> Preparation:
        """Return what the model takes from preprocessed training images (n, C, height, width)."""
        return Preparation({}, "")

    def resize(
        self,
        image: int | tuple[int, int],
        interpolation: Interpolation | None = None,
        positions: PositionTransfer = "interpolate",
    ) -> None:
        """Change the image size. Learned positions are interpolated in 2-D (section 3.2), or as `positions` says.

        Without an `interpolation`, the filter is that of the code that the weights come from, `metadata.interpolation`.
        """
        raise NotImplementedError

    @overload
    def __call__(self, images: Tensor) -> Tensor: ...

    @overload
    def __call__(self, images: Tensor, capture: Iterable[str]) -> tuple[Tensor, dict[str, Tensor]]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def forward(self, images: Tensor, capture: Iterable[str] = ()) -> Tensor | tuple[Tensor, Seen]:
        self.check_images(images)
        seen: Seen = dict.fromkeys(match_names(capture, self.captures)) if capture else {}
        representation = self.head.represent(self.pool_image(images, seen))
        keep(seen, "representation", representation)
        logits = self.head(representation)
        return (logits, seen) if capture else logits

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of the images that the model takes."""
        return next(self.parameters()).dtype

    def replace_head(self, classes: int) -> None:
        """Replace the whole head with a zero-initialised linear layer, as fine-tuning does (section 3.2)."""
        check_count("classes", classes, least=0)
        reference = next(self.parameters())
        self.head = Head(width=self.representation_width, classes=classes).to(reference)
        self.config = replace(self.config, classes=classes)
        self.metadata = replace(self.metadata, labels=None)

    @property
    def representation_width(self) -> int:
        """Width of the pooled vector, before any pre-training layer."""
        raise NotImplementedError

    def _reconfigure(self, *, image: int | tuple[int, int]) -> None:
        config: Any = self.config  # of a kind with an image of its own; a segmenter's is its backbone's
        self.config = replace(config, image=parse_size(image))

    def check_images(self, images: Tensor) -> None:
        if images.ndim != 4:
            raise SizeError(f"images have the shape {tuple(images.shape)}", expected="(batch, channels, height, width)")
        if images.shape[1] != self.config.channels:
            raise SizeError(
                f"images have {images.shape[1]} channels, the model takes {self.config.channels}",
                found=f"the shape {tuple(images.shape)}, read as (batch, channels, height, width)",
            )
        if not images.is_floating_point():
            raise SizeError(
                f"images are {images.dtype}; the model takes preprocessed floats",
                try_="images / 127.5 - 1 for uint8 images and weights that expect [-1, 1]",
            )

    def check_size(self, images: Tensor) -> None:
        """Raise a SizeError for images of another size than the model's positions are for."""
        height, width = self.config.image
        if images.shape[2] != height or images.shape[3] != width:
            raise SizeError(
                f"images are {images.shape[2]} x {images.shape[3]}, the model is for {height} x {width}",
                try_="model.resize((height, width)) or vitkit.load(…, image=(height, width)), "
                "which interpolate the positions",
            )
