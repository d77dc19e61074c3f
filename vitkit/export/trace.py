"""A classifier as one graph: pictures in, probabilities out, preprocessing inside.

Shapes: B pictures, C channels, K classes.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitkit.errors import ConfigError
from vitkit.export.graph import frame
from vitkit.predict.classifier import Classifier

# uint8    pictures (B, height, width, C) of bytes, of any size
# float32  the same on 0 to 255 in floats: what pictures deeper than 8 bits decode to
# tensor   (B, C, height, width) of the model's own size, preprocessed by the caller
Input = Literal["uint8", "float32", "tensor"]
PICTURES, PROBABILITIES, LOGITS = "pictures", "probabilities", "logits"  # names of what goes in and comes out


class Whole(nn.Module):
    """The classifier's own model between its preprocessing and its last step; nothing is copied."""

    def __init__(self, classifier: Classifier, input: Input):
        super().__init__()
        self.model, self.exact, self.multilabel = classifier.model, classifier.exact, classifier.multilabel
        self.input = input

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """→ probabilities and logits, (B, K) each."""
        seen = (
            pictures
            if self.input == "tensor"
            else self.exact.normalise(frame(pictures, self.exact.image, self.exact.preprocessing))
        )
        logits = self.model(seen)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=-1), logits


def trace(classifier: Classifier, input: Input) -> ExportedProgram:
    """torch.export's program, on the CPU and without gradients, for any batch, and any size of raw pictures."""
    if classifier.device.type != "cpu":
        raise ConfigError(f"a model on {classifier.device} cannot be exported", try_='Classifier(…, device="cpu")')
    channels, image = classifier.model.config.channels, classifier.exact.image
    # sizes of the example mean nothing, but 1 would be taken for a promise
    example = (
        torch.zeros(2, channels, *image)
        if input == "tensor"
        else torch.zeros(2, 53, 61, channels, dtype=torch.uint8 if input == "uint8" else torch.float32)
    )
    names = ("batch",) if input == "tensor" else ("batch", "height", "width")
    sizes = {place: Dim(name, min=1) for place, name in enumerate(names)}
    classifier.model.eval()
    with torch.no_grad(), quietly():
        program = torch.export.export(
            Whole(classifier, input), (example,), dynamic_shapes={PICTURES: sizes}, strict=False
        )
    _forget_sources(program)
    return program


def _forget_sources(program: ExportedProgram) -> None:
    """Lines of code, with the paths of this machine, that would travel along with each operation."""
    for module in program.graph_module.modules():
        graph: Any = getattr(module, "graph", None)
        for node in graph.nodes if graph is not None else ():
            for key in ("stack_trace", "source_fn_stack", "from_node"):
                node.meta.pop(key, None)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Exporters tell of their own deprecations and of packages that are not there; none of it is the user's to mend."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
