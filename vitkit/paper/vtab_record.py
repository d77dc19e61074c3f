"""The folder of a VTAB: vtab.json, which says what was asked for and holds the scores so far, and a lock."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from vitkit.atomic import lock, write_text
from vitkit.data.sources.hub import PREFIX
from vitkit.errors import ConfigError
from vitkit.paper.vtab_scores import TaskScore, VtabScores
from vitkit.paper.vtab_tasks import Task, absolute_data
from vitkit.regular_file import open_regular
from vitkit.run_folder import LOCK, RunError
from vitkit.stored_json import read_json
from vitkit.text import few

RESULT = "vtab.json"
# settings that may change when the same command goes on
OF_THE_MACHINE = ("device", "workers", "precision", "micro", "compile", "recompute", "cuda_graph", "parallel", "track")


class VtabRecord(TypedDict):
    """The content of vtab.json as far as it is read back."""

    weights: str
    method: str
    settings: dict[str, Any]
    described: dict[str, dict[str, Any]]
    tasks: list[TaskScore]


def check_apart(out: Path, folder: Path, tasks: Sequence[Task]) -> None:
    """Raise an error if results would be among the tasks or their images, or those among the results."""
    results = out.resolve()
    for data in (str(folder), *(task.data for task in tasks if not task.data.startswith(PREFIX))):
        images = Path(data).resolve()
        if results.is_relative_to(images) or images.is_relative_to(results):
            where = "is" if images == results else "lies in" if results.is_relative_to(images) else "contains"
            raise ConfigError(
                f"the folder of the results, {out}, {where} {data}, which holds data; nothing was changed.",
                try_="--out a folder apart from the tasks",
            )


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Make the folder and keep other processes out of it."""
    with contextlib.ExitStack() as opened:
        try:
            out.mkdir(parents=True, exist_ok=True)
            file = opened.enter_context(open_regular(out / LOCK, "a"))
        except OSError as error:
            raise RunError(
                f"{out} cannot be written: {error.strerror}.", try_="--out a folder you can write"
            ) from error
        if not lock(file):
            raise RunError(f"{out} is in use by another process.", try_="wait for it, or stop it")
        yield


def read_record(out: Path) -> VtabRecord | None:
    """Return what was asked for before, and the scores so far; None for a new folder."""
    try:
        record: VtabRecord = read_json(out / RESULT, VtabRecord, error=RunError)
        return record
    except FileNotFoundError:
        return None


def write_record(
    out: Path, scores: VtabScores, settings: Mapping[str, Any], tasks: Sequence[Task], *, complete: bool
) -> None:
    described = {task.name: _describe(task) for task in tasks}
    content = {**scores.to_dict(), "settings": _comparable(settings), "described": described, "complete": complete}
    write_text(out / RESULT, json.dumps(content, indent=2) + "\n", RunError)


def check_same(
    before: VtabRecord | None,
    out: Path,
    weights: str,
    method: str,
    settings: Mapping[str, Any],
    tasks: Sequence[Task],
) -> None:
    """Raise an error if the folder was begun with other weights, settings or tasks; new tasks may be added."""
    if before is None:
        own = {RESULT, *(task.name for task in tasks)}
        others = sorted(
            entry.name for entry in out.iterdir() if not entry.name.startswith(".") and entry.name not in own
        )
        if others:
            raise RunError(f"{out} holds other files.", found=few(others), try_="--out another folder")
        return
    pairs: list[tuple[str, Any, Any]] = [("weights", before["weights"], weights)]
    pairs.append(("method", before["method"], method))
    now = _comparable(settings)
    for name in sorted(before["settings"].keys() | now.keys()):
        pairs.append((name, before["settings"].get(name, "the paper's"), now.get(name, "the paper's")))
    for task in tasks:
        described = _describe(task)
        old = {**before["described"].get(task.name, described)}
        if isinstance(old.get("data"), str):  # earlier versions wrote paths as they were spelled
            old["data"] = absolute_data(old["data"])
        pairs += [(f"{key} of {task.name}", old.get(key), described[key]) for key in described]
    if changed := [f"{name}: {old} → {new}" for name, old, new in pairs if old != new]:
        raise RunError(f"{out} was begun with other settings.", changed=changed, try_="--out another folder")


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as JSON gives them back, without those of the machine."""
    content: dict[str, Any] = json.loads(json.dumps({**settings}))
    return {name: value for name, value in content.items() if name not in OF_THE_MACHINE}


def _describe(task: Task) -> dict[str, Any]:
    return {"data": task.data, "crop": task.crop, "flip": task.flip, "label": task.label}
