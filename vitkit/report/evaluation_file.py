"""evaluation.json of a run folder: that of a classifier, or that of a segmentation model."""

from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation, read_evaluation


def read_evaluations(path: Path, unreadable: list[str]) -> tuple[Evaluation | None, SegmentationEvaluation | None]:
    """Return the record as what it is; a run has one of them, or none. A damaged file joins the unreadable ones."""
    if not path.is_file():
        return None, None
    try:
        evaluation = read_evaluation(path)
    except (OSError, VitkitError):
        unreadable.append(path.name)
        return None, None
    return (None, evaluation) if isinstance(evaluation, SegmentationEvaluation) else (evaluation, None)
