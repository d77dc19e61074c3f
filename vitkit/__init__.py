"""vitkit: the Vision Transformer as real software.

model = vitkit.create("B/16", classes=37)              a model of the paper, untrained
model = vitkit.load("weights.npz", image=384)          weights of Google, timm, Hugging Face or vitkit
vitkit.save(model, "out.npz", format="google")
preprocess = vitkit.preprocess(model)                  an image as the model takes it: preprocess("cat.jpg")
vitkit.check("photos/").problems                       what would hurt training
run = vitkit.fit("photos/", epochs=5)                  a classifier of your images, as `vitkit fit` trains it
run = vitkit.Run("runs/photos")                        the verbs as methods: run.predict("cat.jpg")[0].label
classifier = vitkit.Classifier("runs/photos")          a trained model as a function: classifier("cat.jpg").label
segmenter = vitkit.ImageSegmenter("runs/streets")      one that segments: segmenter("street.jpg").mask
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from vitkit.model.build import create
    from vitkit.predict.classifier import Classifier
    from vitkit.predict.inputs import preprocess
    from vitkit.predict.segmentation import ImageSegmenter
    from vitkit.python_api import Run, check, fit
    from vitkit.weights.load import load
    from vitkit.weights.save import save

__version__ = "0.1.0"
__all__ = [
    "Classifier",
    "ImageSegmenter",
    "Run",
    "VitkitError",
    "check",
    "create",
    "fit",
    "load",
    "preprocess",
    "save",
]

# torch takes seconds to import, so the modules are imported when one of these names is used.
_MODULES = {
    "Classifier": "vitkit.predict.classifier",
    "ImageSegmenter": "vitkit.predict.segmentation",
    "Run": "vitkit.python_api",
    "check": "vitkit.python_api",
    "create": "vitkit.model.build",
    "fit": "vitkit.python_api",
    "load": "vitkit.weights.load",
    "preprocess": "vitkit.predict.inputs",
    "save": "vitkit.weights.save",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'vitkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
