"""The scores of a VTAB: each task, the mean of each group and of all tasks, as JSON and as a table."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from vitkit.evaluate.evaluation import Estimate
from vitkit.paper.vtab_tasks import GROUPS, Group
from vitkit.text import counted, percent


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    task: str
    group: Group
    classes: int
    trained: int  # images
    scored: int  # images of the test split
    top1: Estimate
    crop: bool  # whether images were cropped at random in training
    flip: bool
    run: str | None = None  # the folder of its run; None: a linear probe
    l2: float | None = None  # chosen by a linear probe


@dataclass(frozen=True, kw_only=True)
class VtabScores:
    weights: str
    method: str
    tasks: tuple[TaskScore, ...]
    differs: tuple[str, ...]  # what is not as in the paper, in words

    @property
    def groups(self) -> dict[str, float]:
        """The mean of each group that has tasks."""
        scores = {group: [task.top1.value for task in self.tasks if task.group == group] for group in GROUPS}
        return {group: fmean(values) for group, values in scores.items() if values}

    @property
    def mean(self) -> float:
        """The mean over tasks, which all have the same weight: the paper's figure."""
        return fmean(task.top1.value for task in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "groups": self.groups, **asdict(self)}

    def table(self) -> Iterator[str]:
        """Yield the lines of the table."""
        rows = [
            (
                task.task,
                task.group,
                f"{task.classes:,}",
                f"{task.trained:,}",
                f"{task.scored:,}",
                percent(task.top1.value),
                f"{100 * task.top1.low:.1f} to {100 * task.top1.high:.1f}",
            )
            for task in self.tasks
        ]
        yield from _columns([("task", "group", "classes", "trained", "scored", "top-1", "95 % interval"), *rows])
        yield ""
        for group, value in self.groups.items():
            tasks = sum(task.group == group for task in self.tasks)
            yield f"{group:<12} {percent(value):>8}   mean of {counted(tasks, 'task')}"
        yield f"{'all':<12} {percent(self.mean):>8}   mean of {counted(len(self.tasks), 'task')}"
        if self.differs:
            yield ""
            yield "not as in the paper"
        for difference in self.differs:
            yield f"  {difference}"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            text.ljust(width) if number < 2 else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
