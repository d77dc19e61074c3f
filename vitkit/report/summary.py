"""What a run comes to, in sentences and short lists: headline, weakest classes, confusions, problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vitkit.cost import FLOPS_PER_TRAINED_MAC
from vitkit.evaluate.evaluation import ClassScore, Evaluation
from vitkit.report.record import Record
from vitkit.text import counted, interval, percent

NAMED = 12  # pictures or classes named in a sentence before it says how many more there are


@dataclass(frozen=True)
class Confusion:
    """Of two classes; `truth` is the one that is more often taken for the other."""

    truth: str
    answer: str
    count: int
    of: int  # pictures of `truth`
    back: int  # the other way round
    back_of: int


def subject(record: Record) -> str:
    return f"{record.variant} on {record.data_title}"


def result(record: Record) -> str:
    """ "90.9 % top-1 (89.9 – 91.8), 3,669 test pictures, 37 classes"."""
    found = record.evaluation
    if found is not None:
        score = found.headline
        return (
            f"{percent(score.value)} {score_name(found)} ({interval(score.low, score.high)}), "
            f"{counted(found.pictures, f'{found.split} picture')}, {counted(len(found.classes), 'class')}"
        )
    length = f"{counted(record.steps_done, 'step')}" if record.steps_done else "an unknown number of steps"
    how = "pre-trained by masked patch prediction" if record.pretrained else "trained"
    return f"{how} for {length}" + ("" if record.pretrained else ", not evaluated")


def score_name(evaluation: Evaluation) -> str:
    return "mean average precision" if evaluation.multilabel else "top-1"


def weakest_first(evaluation: Evaluation) -> list[ClassScore]:
    """By recall, by average precision where pictures have several labels; classes without pictures come last."""

    def strength(score: ClassScore) -> tuple[bool, float, str]:
        value = score.average_precision if evaluation.multilabel else score.recall
        return value is None, value or 0.0, score.name

    return sorted(evaluation.per_class, key=strength)


def confusions(evaluation: Evaluation, most: int) -> list[Confusion]:
    """Pairs of classes, those most often confused first."""
    counts = np.array(evaluation.confusion or np.zeros((0, 0)), dtype=np.int64)
    both = np.triu(counts + counts.T, 1)
    order = np.argsort(-both, axis=None, kind="stable")[:most]
    pairs = [divmod(int(place), len(counts)) for place in order if both.flat[place]]
    pairs = [(one, other) if counts[one, other] >= counts[other, one] else (other, one) for one, other in pairs]
    pictures, names = counts.sum(axis=1), evaluation.classes
    return [
        Confusion(
            names[one],
            names[other],
            int(counts[one, other]),
            int(pictures[one]),
            int(counts[other, one]),
            int(pictures[other]),
        )
        for one, other in pairs
    ]


def overconfidence(evaluation: Evaluation) -> float | None:
    """Mean confidence less the share of right answers: above 0, the model is too sure of itself."""
    answered = sum(one.pictures for one in evaluation.reliability)
    if not answered:
        return None
    return (
        sum(one.pictures * (one.confidence - one.accuracy) for one in evaluation.reliability if one.pictures) / answered
    )


def training_operations(record: Record) -> float | None:
    """Forward and backward, over all pictures seen."""
    batch = record.told("plan", "batch") or (record.config.batch if record.config else None)
    if record.macs is None or record.steps_done is None or batch is None:
        return None
    return FLOPS_PER_TRAINED_MAC * record.macs * batch * record.steps_done


def problems(record: Record) -> list[str]:
    """Everything that a reader should know before trusting the numbers."""
    found = []
    if record.run and not record.finished:
        found.append(f"The run did not finish; vitkit resume {record.folder} continues it.")
    for row in record.rolled_back:
        found.append(
            f"At step {row['step']:,} training went back to step {row.get('to', '?')}: "
            f"{row.get('what', 'no reason recorded')}."
        )
    broken = {str(row.get("picture")): str(row.get("reason")) for row in record.left_out}
    if broken:
        found.append(f"Training left out {counted(len(broken), 'picture')}: {_pairs(broken.items())}.")
    if record.evaluation is not None:
        found += _of_evaluation(record.evaluation)
    if record.unreadable:
        found.append(f"This folder's {listed(record.unreadable)} could not be read in full.")
    return found


def _of_evaluation(evaluation: Evaluation) -> list[str]:
    found = []
    if evaluation.left_out:
        found.append(
            f"Scoring left out {counted(len(evaluation.left_out), 'picture')}: {_pairs(evaluation.left_out.items())}."
        )
    if evaluation.unlabelled:
        found.append(
            f"{counted(evaluation.unlabelled, 'picture')} of the {evaluation.split} split had no class that "
            f"the model knows, and were not scored."
        )
    if evaluation.missing:
        found.append(
            f"The scored data lack {counted(len(evaluation.missing), 'class')} of the model: "
            f"{listed(evaluation.missing)}."
        )
    if evaluation.extra:
        found.append(
            f"The scored data have {counted(len(evaluation.extra), 'class')} that the model does not know: "
            f"{listed(evaluation.extra)}."
        )
    return found


def listed(names: Iterable[str]) -> str:
    everything = list(names)
    more = f" and {len(everything) - NAMED:,} more" if len(everything) > NAMED else ""
    return ", ".join(everything[:NAMED]) + more


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    return listed(f"{name} ({reason})" for name, reason in items)
