"""Classes that a model never recognises, and what helps: a warning for the terminal, the report and the model card."""

from collections.abc import Mapping

from vitkit.evaluate.evaluation import ClassScore, Evaluation
from vitkit.text import counted, few

SHOWN = 5  # classes by name
NO_IMAGES = "A class with 0 in training was not learned at all: add images of it, or train on a subset that has some."


def never_recognised(evaluation: Evaluation) -> list[ClassScore]:
    """Return the classes with scored images and a recall of 0, those with the most images first."""
    missed = [score for score in evaluation.per_class if score.images and score.recall == 0]
    return sorted(missed, key=lambda score: -score.images)


def recall_warning(evaluation: Evaluation, counts: Mapping[str, int], balance: float | None) -> str:
    """Return a warning about classes with 0 % recall and the setting that helps, or "" without any.

    `counts` are the training images of each class, empty if not known; `balance` is the run's, None if not known.
    """
    missed = never_recognised(evaluation)
    if not missed:
        return ""
    names = [
        f"{score.name} (0 of {score.images:,}" + (f"; {counts[score.name]:,} in training)" if counts else ")")
        for score in missed
        if not counts or score.name in counts
    ]
    head = f"{counted(len(missed), 'class')} of {len(evaluation.classes):,} had a recall of 0 %"
    if not names:
        return f"{head}."
    known = [score.name for score in missed if score.name in counts]
    absent = any(counts[name] == 0 for name in known)
    average = sum(counts.values()) / max(len(counts), 1)
    rare = not counts or any(0 < counts[name] < average for name in known)
    advice = [NO_IMAGES] if absent else []
    if not counts or any(counts[name] for name in known):
        advice.append(_advice(rare, balance, "The others" if absent else "They"))
    return f"{head}: {few(names, SHOWN)}. {' '.join(advice)}"


def _advice(rare: bool, balance: float | None, they: str) -> str:
    if not rare:
        return f"{they} are not rare in training: try a longer run or --lr auto, and check their labels."
    if balance is None:
        return "If they were rare in training, fit again with --set balance=0.5, or 1, or with more images of them."
    if balance == 0:
        return "--set balance=0.5, or 1, gives rare classes more weight in training; more images of them help most."
    if balance < 1:
        return f"balance is {balance:g}: --set balance=1 gives rare classes more weight; more images of them help most."
    return "Rare classes already weigh as much as others (balance): they need more images, or a larger model."
