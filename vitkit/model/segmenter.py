"""A segmenter: a Vision Transformer whose patch tokens, or queries beside them, give every pixel a class.

Shapes: B batch, C channels, T tokens, N = h·w patches, Q queries, D width, K classes, h' x w' grid of scores.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import ConfigError
from vitkit.model.base import ImageModel
from vitkit.model.capture import Seen, keep, match_names
from vitkit.model.config import parse_size
from vitkit.model.linear_segmentation import LinearSegmentation
from vitkit.model.mask_queries import MaskQueries, QueryPrediction, attend_to_masks
from vitkit.model.options import PositionTransfer, check_count
from vitkit.model.resize_positions import Interpolation
from vitkit.model.segmenter_config import (
    SegmentationHead,
    SegmenterConfig,
    segmentation_backbone,
    with_backbone_options,
)
from vitkit.model.vit import VisionTransformer


class Segmenter(ImageModel[SegmenterConfig]):
    """images (B, C, height, width), preprocessed floats → scores of classes (B, K, h', w').

    Scores of the linear head are logits; those of queries are sums of probabilities. An image's mask is the argmax of
    the scores, upsampled bilinearly to its size. Captures are those of the backbone; in the last `query_blocks` blocks
    and in "encoded", the queries stand in front of the tokens.
    """

    kind = "a segmenter"
    recomputable = True

    head: Any  # LinearSegmentation or MaskQueries

    def __init__(self, config: SegmenterConfig):
        super().__init__(config)
        self.backbone = VisionTransformer(config.backbone)
        self.head = MaskQueries(config) if config.head == "queries" else LinearSegmentation(config)

    @property
    def captures(self) -> tuple[str, ...]:
        of_backbone = tuple(name for name in self.backbone.captures if name != "representation")
        return (*of_backbone, "class_logits", "mask_logits") if self.config.head == "queries" else of_backbone

    @property
    def layers(self) -> tuple[str, ...]:
        return self.backbone.layers

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.backbone.blocks

    @property
    def representation_width(self) -> int:
        return self.config.width

    def forward(self, images: Tensor, capture: Iterable[str] = ()) -> Tensor | tuple[Tensor, Seen]:
        self.check_images(images)
        seen: Seen = dict.fromkeys(match_names(capture, self.captures)) if capture else {}
        x, _ = self._encode(images, seen)
        if self.config.head == "queries":
            prediction = self.head(x, self.config.grid)
            keep(seen, "class_logits", prediction.classes)
            keep(seen, "mask_logits", prediction.masks)
            scores = prediction.scores()
        else:
            scores = self.head(self._patches(x), self.config.grid)
        return (scores, seen) if capture else scores

    def predictions(self, images: Tensor, mask_probability: Tensor) -> list[QueryPrediction]:
        """Return what the queries say before each block that they are in, and at the end, as training supervises them.

        `mask_probability` (query_blocks,) is the probability with which a query sees its own mask only.
        """
        self.check_images(images)
        x, earlier = self._encode(images, {}, mask_probability)
        return [*earlier, self.head(x, self.config.grid)]

    def log_probabilities(self, scores: Tensor) -> Tensor:
        """Return the log-probabilities of classes (B, K, …) for scores of this model, upsampled or not."""
        if self.config.head == "linear":
            return scores.log_softmax(dim=1)
        total = scores.sum(dim=1, keepdim=True)
        tiny = torch.finfo(scores.dtype).tiny
        return scores.clamp_min(tiny).log() - total.clamp_min(tiny).log()

    def pool_image(self, images: Tensor, seen: Seen) -> Tensor:
        return self._patches(self._encode(images, seen)[0]).mean(dim=1)  # (B, D)

    def pool_layer(self, layer: str, value: Tensor) -> Tensor:
        """Return the mean of the patches of a layer, normed."""
        return self._patches(self.backbone.encoder.norm(value)).mean(dim=1)

    def _encode(
        self, images: Tensor, seen: Seen, mask_probability: Tensor | None = None
    ) -> tuple[Tensor, list[QueryPrediction]]:
        """Return the encoded tokens (B, Q + T, D) or (B, T, D), and with masked attention the earlier predictions."""
        config, encoder = self.config, self.backbone.encoder
        x = encoder.start(self.backbone.tokens(self.backbone.embed(images, seen)), seen)
        for layer in range(config.joined_at):
            x = encoder.block(x, layer, seen)
        predictions, mask = [], None
        x = self.head.join(x) if config.head == "queries" else x
        for layer in range(config.joined_at, config.depth):
            if mask_probability is not None:
                prediction = self.head(encoder.norm(x), config.grid)
                probability = mask_probability[layer - config.joined_at]
                special = config.special_tokens
                mask = attend_to_masks(prediction.masks, probability, grid=config.grid, special=special)
                predictions.append(prediction)
            x = encoder.block(x, layer, seen, config.queries, mask)
        return encoder.finish(x, seen), predictions

    def _patches(self, x: Tensor) -> Tensor:
        return x[:, -self.config.patches :]

    def resize(
        self,
        image: int | tuple[int, int],
        interpolation: Interpolation | None = None,
        positions: PositionTransfer = "interpolate",
    ) -> None:
        self.backbone.resize(image, interpolation or self.metadata.interpolation, positions)
        self._reconfigure(image=image)

    def _reconfigure(self, *, image: int | tuple[int, int]) -> None:
        self.config = with_backbone_options(self.config, {"image": parse_size(image)})

    def replace_head(self, classes: int) -> None:
        """Replace the layer of class logits with a zero-initialised one; queries and their masks stay."""
        if classes == 0:
            raise ConfigError(f"{self.kind} has no answer without classes", try_="the weights of a classifier")
        check_count("classes", classes, least=1)
        self.config = replace(self.config, classes=classes)
        self.head.replace_classes(self.config)
        self.head.to(next(self.backbone.parameters()))
        self.metadata = replace(self.metadata, labels=None)

    def check_images(self, images: Tensor) -> None:
        super().check_images(images)
        self.check_size(images)


def segmenter_from(
    backbone: VisionTransformer,
    *,
    head: SegmentationHead,
    classes: int,
    queries: int = 100,
    query_blocks: int = 4,
) -> Segmenter:
    """Return a segmenter with the weights of a ViT, without what followed its tokens, and with a new head.

    The head is drawn from torch's generator. Of a ViT that normalises after pooling, that norm becomes the encoder's.
    """
    config = SegmenterConfig(
        backbone=segmentation_backbone(backbone.config),
        head=head,
        classes=classes,
        queries=queries,
        query_blocks=query_blocks,
    )
    segmenter = Segmenter(config)
    named = {name.replace("pool.norm.", "encoder.norm."): tensor for name, tensor in backbone.state_dict().items()}
    state = segmenter.backbone.state_dict()
    segmenter.backbone.load_state_dict({name: named[name] for name in state})
    segmenter.metadata = replace(backbone.metadata, labels=None)
    return segmenter.to(next(backbone.parameters())).train(backbone.training)
