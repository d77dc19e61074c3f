"""VTAB as the paper has it (Table 4, B.1.1): 1,000 examples of each task, and the mean accuracy over tasks and groups.

Each task is fine-tuned for 2,500 steps of SGD at 0.01, batch 512, 384 px, on training and validation images together,
which are prepared as BiT prepares them. Whatever stops it, the same command goes on where it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TextIO

from vitkit import messages
from vitkit.config import toml
from vitkit.errors import ConfigError, Interrupted
from vitkit.messages import print_line, say
from vitkit.paper.vtab_methods import OF_THE_TASK, FineTuning, LinearProbe, Scorer
from vitkit.paper.vtab_record import RESULT, check_apart, check_same, locked, read_record, write_record
from vitkit.paper.vtab_scores import TaskScore, VtabScores
from vitkit.paper.vtab_tasks import KNOWN, Task, find_tasks
from vitkit.text import counted
from vitkit.weights.bundled import local_path

Method = Literal["fine-tune", "linear"]
OF_A_PROBE = ("image", "split_seed", "subset_images", "device", "workers")  # settings that it has


def run_vtab(
    folder: Path,
    *,
    weights: str,
    method: Method = "fine-tune",
    settings: Mapping[str, Any] | None = None,
    out: Path | None = None,
    output: TextIO,
    command: str,
) -> VtabScores:
    """Score every task of a folder, or go on with it; `settings` are those of a run that take the place of the paper's.

    After each task, the scores so far are in vtab.json of the folder `out`; its runs are there, too.
    """
    settings = dict(settings or {})
    _check_settings(settings, method, weights)
    tasks = find_tasks(folder)
    weights = _absolute(weights)
    out = result_path(weights, method, out).parent
    check_apart(out, folder, tasks)
    with locked(out):
        before = read_record(out)
        check_same(before, out, weights, method, settings, tasks)
        score: Scorer
        if method == "fine-tune":
            score = FineTuning(weights, settings, tasks, out, output, command)
        else:
            score = LinearProbe(weights, settings, tasks, before["tasks"] if before else ())
        done: list[TaskScore] = []
        scores = VtabScores(weights=weights, method=method, tasks=(), differs=())
        for number, task in enumerate(tasks, start=1):
            _heading(output, f"{number} of {len(tasks)}", f"{task.name}, {task.group}")
            try:
                done.append(score(task))
            except Interrupted as stopped:
                raise Interrupted("stopped and saved; the same command goes on from there", stopped.code) from None
            differs = (*_tasks_differ(tasks), *score.differs(done))
            scores = replace(scores, tasks=tuple(done), differs=differs)
            write_record(out, scores, settings, tasks, complete=number == len(tasks))
    return scores


def result_path(weights: str, method: Method, out: Path | None = None) -> Path:
    """Return the file of the results, without `out` the same one for the same command, so that it can go on."""
    path = local_path(weights)
    name = weights.removeprefix("hf:").replace("/", "-") if path is None else path.stem
    return (out or Path("runs") / f"vtab-{'linear-' if method == 'linear' else ''}{name}") / RESULT


def _absolute(weights: str) -> str:
    path = local_path(weights)
    return weights if path is None or weights == "none" or not path.exists() else str(path.absolute())


def _check_settings(settings: Mapping[str, Any], method: Method, weights: str) -> None:
    toml.check(settings)
    for name in OF_THE_TASK:
        if name in settings:
            raise ConfigError(f"--set {name}: an option of its own or the task decides it", try_=f"leave {name} out")
    if settings.get("choose_lr"):
        raise ConfigError("the paper has one learning rate for all tasks", try_="--lr 0.01, or another number")
    if "epochs" in settings:
        raise ConfigError("the length of VTAB's runs is in steps", try_="--steps 2500, or another number")
    if method == "linear":
        if weights == "none":
            raise ConfigError("a linear probe needs pre-trained weights", try_="--weights RUN")
        for name in sorted(settings.keys() - {*OF_A_PROBE}):
            raise ConfigError(f"{name} is for fine-tuning; a linear probe does not have it", try_=f"leave {name} out")


def _tasks_differ(tasks: Sequence[Task]) -> list[str]:
    known = [task.known for task in tasks if task.known]
    if {*known} == KNOWN.keys() and len(tasks) == len(KNOWN):
        return []
    return [f"{counted(len(tasks), 'task')}, {len({*known})} of them among VTAB's {len(KNOWN)}"]


def _heading(output: TextIO, number: str, text: str) -> None:
    if messages.in_json():
        say(number, text, file=output)
    elif not messages.is_quiet():
        print_line("", file=output)
        print_line(f"── {number}: {text}", file=output)
