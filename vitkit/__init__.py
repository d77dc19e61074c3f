"""vitkit: the Vision Transformer as real software.

model = vitkit.create("B/16", classes=37)              a model of the paper, untrained
model = vitkit.load("weights.npz", image=384)          weights of Google's, timm's, Hugging Face's or our own
vitkit.save(model, "out.npz", format="google")
see = vitkit.preprocess(model)                         what the model takes of a picture: see("cat.jpg")
run = vitkit.fit("photos/", epochs=5)                  a classifier of your pictures, as `vitkit fit` makes it
classifier = vitkit.Classifier("runs/pets")            a trained one, asked: classifier("cat.jpg").label
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from vitkit.model.build import create
    from vitkit.predict.classifier import Classifier
    from vitkit.predict.preprocess import preprocess
    from vitkit.run import fit
    from vitkit.weights.load import load
    from vitkit.weights.save import save

__version__ = "0.1.0"
__all__ = ["Classifier", "VitkitError", "create", "fit", "load", "preprocess", "save"]

# torch takes seconds to import, so it waits until a name that needs it is used.
_HOME = {
    "Classifier": "vitkit.predict.classifier",
    "create": "vitkit.model.build",
    "fit": "vitkit.run",
    "load": "vitkit.weights.load",
    "preprocess": "vitkit.predict.preprocess",
    "save": "vitkit.weights.save",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
