"""Open a trained model for what it was trained for: classes of images, or a class for every pixel."""

from __future__ import annotations

from vitkit.errors import ConfigError
from vitkit.model.segmenter import Segmenter
from vitkit.predict.classifier import Classifier, check_has_classes
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.weights.load import load


def open_predictor(source: str, *, device: str, fast: bool = False) -> Classifier | ImageSegmenter:
    """Return the model of a run folder, a weights file, hf:OWNER/NAME or "ti16", ready for images."""
    model = load(source)
    if isinstance(model, Segmenter):
        if fast:
            raise ConfigError(
                f"--fast is for models that classify images; {source} gives masks", try_="the same without --fast"
            )
        return ImageSegmenter(model, device=device)
    check_has_classes(model, source)
    classifier = Classifier(model, device=device)
    if fast:
        from vitkit.predict.samples import find_samples  # opens data of all kinds

        classifier.use_fast_engine(find_samples(source, classifier.model))
    return classifier
