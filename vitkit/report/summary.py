"""The results of a run in sentences and short lists: headline, weakest classes, confusions, problems."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vitkit.cost import FLOPS_PER_TRAINED_MAC
from vitkit.evaluate.evaluation import ClassScore, Evaluation
from vitkit.evaluate.rare_classes import recall_warning
from vitkit.report.run_data import RunData
from vitkit.report.segmentation_sections import segmentation_headline, segmentation_problems
from vitkit.text import counted, few, interval, percent

NAMED = 12  # images or classes that a sentence names before it says how many more there are


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes that are confused; images of `truth` are more often classified as `prediction` than the reverse."""

    truth: str
    prediction: str
    count: int
    truth_images: int
    reverse_count: int
    prediction_images: int


def title(run: RunData) -> str:
    return f"{run.variant} on {run.data_title}"


def headline(run: RunData) -> str:
    """Return "90.9 % top-1 (89.9 – 91.8), 3,669 test images, 37 classes; all weights were fine-tuned"."""
    evaluation, trained = run.evaluation, f"; {run.trained_weights}" if run.trained_weights else ""
    if evaluation is not None:
        score = evaluation.headline
        return (
            f"{percent(score.value)} {score_name(evaluation)} ({interval(score.low, score.high)}), "
            f"{counted(evaluation.images, f'{evaluation.split} image')}, {counted(len(evaluation.classes), 'class')}"
            f"{_without_leaked(evaluation)}{trained}"
        )
    if run.segmentation is not None:
        return segmentation_headline(run.segmentation) + trained
    if run.lookup("head"):
        return f"{run.trained_weights}; not evaluated"
    length = f"{counted(run.steps_done, 'step')}" if run.steps_done else "an unknown number of steps"
    if run.pretrained:
        return f"pre-trained by {run.objective_title} for {length}"
    return f"trained for {length}, not evaluated"


def _without_leaked(evaluation: Evaluation) -> str:
    """Return the score on the images that have no copy among the training images, where some have one."""
    if evaluation.leaked is None:
        return ""
    score = evaluation.leaked.headline
    if score is None:
        return "; all of them are copies of training images or of their groups"
    others = f"the {evaluation.leaked.others:,} that training has not seen"
    return f"; {percent(score.value)} ({interval(score.low, score.high)}) on {others}"


def score_name(evaluation: Evaluation) -> str:
    return "mean average precision" if evaluation.multilabel else "top-1"


def weakest_first(evaluation: Evaluation) -> list[ClassScore]:
    """Sort classes by recall, or by average precision if multi-label; classes without images come last."""

    def strength(score: ClassScore) -> tuple[bool, float, str]:
        value = _strength(evaluation, score)
        return value is None, value or 0.0, score.name

    return sorted(evaluation.per_class, key=strength)


def weak_classes(evaluation: Evaluation) -> list[ClassScore]:
    """Return the classes whose recall, or average precision if multi-label, is below 100 %, the weakest first."""
    scores = weakest_first(evaluation)
    return [score for score in scores if (value := _strength(evaluation, score)) is not None and value < 1]


def _strength(evaluation: Evaluation, score: ClassScore) -> float | None:
    return score.average_precision if evaluation.multilabel else score.recall


def most_confused(evaluation: Evaluation, most: int) -> list[ConfusedPair]:
    """Return pairs of classes, those most often confused first."""
    counts = np.array(evaluation.confusion or np.zeros((0, 0)), dtype=np.int64)
    both = np.triu(counts + counts.T, 1)
    order = np.argsort(-both, axis=None, kind="stable")[:most]
    pairs = [divmod(int(index), len(counts)) for index in order if both.flat[index]]
    pairs = [(a, b) if counts[a, b] >= counts[b, a] else (b, a) for a, b in pairs]
    images, names = counts.sum(axis=1), evaluation.classes
    return [
        ConfusedPair(names[a], names[b], int(counts[a, b]), int(images[a]), int(counts[b, a]), int(images[b]))
        for a, b in pairs
    ]


def overconfidence(evaluation: Evaluation) -> float | None:
    """Return mean confidence minus accuracy: above 0, the model is overconfident."""
    bins = [one for one in evaluation.reliability if one.images]
    if not bins:
        return None
    return sum(one.images * (one.confidence - one.accuracy) for one in bins) / sum(one.images for one in bins)


def training_flops(run: RunData) -> float | None:
    """Return the FLOPs of forward and backward over all training steps."""
    batch = run.lookup("plan", "batch") or (run.config.batch if run.config else None)
    if run.macs is None or run.steps_done is None or batch is None:
        return None
    return FLOPS_PER_TRAINED_MAC * run.macs * batch * run.steps_done


def problems(run: RunData) -> list[str]:
    """Return everything that one should know before trusting the scores."""
    sentences = []
    if run.run_json and not run.finished:
        sentences.append(f"The run did not finish; vitkit resume {run.folder} continues it.")
    for row in run.rollbacks:
        sentences.append(
            f"At step {row['step']:,} training was rolled back to step {row.get('to', '?')}: "
            f"{row.get('what', 'no reason recorded')}."
        )
    skipped = {str(row.get("image", row.get("picture"))): str(row.get("reason")) for row in run.skipped_images}
    if skipped:
        sentences.append(f"Training skipped {counted(len(skipped), 'image')}: {_with_reasons(skipped)}.")
    if run.config is not None and run.config.balance and run.config.priors == "balanced" and not run.pretrained:
        sentences.append(
            f"The loss gave rare classes more weight (balance {run.config.balance:g}), and probabilities follow it: "
            "they assume other shares of the classes than the data have, and those of rare classes may be too high."
        )
    if run.evaluation is not None:
        counts = run.lookup("trained_counts") or {}
        warning = recall_warning(run.evaluation, counts, run.config.balance if run.config else None)
        sentences += [warning] if warning else []
        if run.evaluation.multilabel and all(score.threshold is None for score in run.evaluation.per_class):
            sentences.append(
                "A label is predicted above a probability of 50 %: no threshold was chosen for each class."
            )
        sentences += _evaluation_problems(run.evaluation)
    if run.segmentation is not None:
        sentences += segmentation_problems(run.segmentation)
    if run.unreadable_files:
        sentences.append(f"This folder's {few(run.unreadable_files, NAMED)} could not be read in full.")
    return sentences


def _evaluation_problems(evaluation: Evaluation) -> list[str]:
    sentences = []
    if evaluation.leaked is not None:
        sentences.append(
            f"Of the {counted(evaluation.images, 'scored image')}, {evaluation.leaked.sentence()}. Trust the score on "
            "the others, and remove the copies from one of the splits."
        )
    if evaluation.left_out:
        sentences.append(
            f"Scoring skipped {counted(len(evaluation.left_out), 'image')}: {_with_reasons(evaluation.left_out)}."
        )
    if evaluation.unlabelled:
        sentences.append(
            f"{counted(evaluation.unlabelled, 'image')} of the {evaluation.split} split had no class that "
            f"the model knows, and were not scored."
        )
    if evaluation.missing:
        sentences.append(
            f"The scored data lack {counted(len(evaluation.missing), 'class')} of the model: "
            f"{few(evaluation.missing, NAMED)}."
        )
    if evaluation.extra:
        sentences.append(
            f"The scored data have {counted(len(evaluation.extra), 'class')} that the model does not know: "
            f"{few(evaluation.extra, NAMED)}."
        )
    return sentences


def _with_reasons(skipped: Mapping[str, str]) -> str:
    return few([f"{name} ({reason})" for name, reason in skipped.items()], NAMED)
