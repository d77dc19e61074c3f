"""evaluation.json of a run folder: that of a classifier, or that of a segmentation model."""

from pathlib import Path

from vitkit.errors import ConfigError, VitkitError
from vitkit.evaluate.evaluation import MOST_BYTES, Evaluation
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation, is_segmentation
from vitkit.stored_json import read_bytes


def read_evaluations(path: Path, unreadable: list[str]) -> tuple[Evaluation | None, SegmentationEvaluation | None]:
    """Return the record as what it is; a run has one of them, or none. A damaged file joins the unreadable ones."""
    if not path.is_file():
        return None, None
    try:
        content = read_bytes(path, error=ConfigError, most=MOST_BYTES)
        if is_segmentation(content):
            return None, SegmentationEvaluation.from_json(content, str(path))
        return Evaluation.from_json(content, str(path)), None
    except (OSError, VitkitError):
        unreadable.append(path.name)
        return None, None
