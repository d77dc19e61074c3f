"""A model as one graph: images in, probabilities or masks out, preprocessing inside.

Shapes: B images, C channels, K classes, h' x w' grid of scores, h x w image.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from vitkit.compute.onnx_session import trace_program
from vitkit.errors import ConfigError
from vitkit.export.graph import resize_batch
from vitkit.export.mask_graph import upsample_masks
from vitkit.kernels.fuse import fuse
from vitkit.model.build import shared_copy
from vitkit.predict.classifier import Classifier
from vitkit.predict.segmentation import ImageSegmenter

Predictor = Classifier | ImageSegmenter

# uint8    images (B, height, width, C) of bytes, of any size
# float32  the same on 0 to 255 in floats: what images deeper than 8 bits decode to
# tensor   (B, C, height, width) of the model's own size, preprocessed by the caller
ExportInput = Literal["uint8", "float32", "tensor"]
# names of the graph's input and outputs
IMAGES, PROBABILITIES, LOGITS, MASKS, SCORES = "images", "probabilities", "logits", "masks", "scores"
ExportTask = Literal["classify", "segment"]
OUTPUTS: dict[ExportTask, tuple[str, str]] = {"classify": (PROBABILITIES, LOGITS), "segment": (MASKS, SCORES)}


class TracedClassifier(nn.Module):
    """A classifier's model between its preprocessing and its softmax or sigmoid; it shares the weights."""

    def __init__(self, classifier: Classifier, input: ExportInput):
        super().__init__()
        self.model, self.transform, self.multilabel = (
            shared_copy(classifier.model),
            classifier.transform,
            classifier.multilabel,
        )
        fuse(self.model, class_token_only=True)
        self.input = input

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and logits, (B, K) each."""
        if self.input != "tensor":
            images = self.transform.normalise(resize_batch(images, self.transform.image, self.transform.preprocessing))
        logits = self.model(images)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=-1), logits


class TracedSegmenter(nn.Module):
    """A segmenter's model between its preprocessing and the masks; it shares the weights."""

    def __init__(self, segmenter: ImageSegmenter, input: ExportInput):
        super().__init__()
        self.model, self.transform = shared_copy(segmenter.model), segmenter.transform
        fuse(self.model)
        self.input = input

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return masks (B, h, w) and class scores (B, K, h', w'); masks of tensors are of the model's size."""
        size = images.shape[2], images.shape[3]
        if self.input != "tensor":
            size = images.shape[1], images.shape[2]
            images = self.transform.normalise(resize_batch(images, self.transform.image, self.transform.preprocessing))
        scores = self.model(images).float()
        return upsample_masks(scores, size), scores


def trace(predictor: Predictor, input: ExportInput) -> ExportedProgram:
    """Trace a model for any batch size and, unless it takes tensors, for images of any size."""
    if predictor.device.type != "cpu":
        kind = type(predictor).__name__
        raise ConfigError(f"a model on {predictor.device} cannot be exported", try_=f'{kind}(…, device="cpu")')
    channels, image = predictor.model.config.channels, predictor.transform.image
    example = (
        torch.zeros(2, channels, *image)
        if input == "tensor"
        else torch.zeros(2, 53, 61, channels, dtype=torch.uint8 if input == "uint8" else torch.float32)
    )
    predictor.model.eval()
    graph = (
        TracedClassifier(predictor, input) if isinstance(predictor, Classifier) else TracedSegmenter(predictor, input)
    )
    program = trace_program(graph, example, dynamic_dimensions(input))
    _remove_sources(program)
    return program


def dynamic_dimensions(input: ExportInput) -> tuple[str, ...]:
    return ("batch",) if input == "tensor" else ("batch", "height", "width")


def _remove_sources(program: ExportedProgram) -> None:
    """Remove the lines of code, with paths of this machine, that each operation would carry along."""
    for module in program.graph_module.modules():
        graph: Any = getattr(module, "graph", None)
        for node in graph.nodes if graph is not None else ():
            for key in ("stack_trace", "source_fn_stack", "from_node"):
                node.meta.pop(key, None)
