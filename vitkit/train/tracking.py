"""Experiment trackers: TensorBoard and Weights & Biases get the values of metrics.jsonl with --track."""

import importlib.util
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from vitkit.errors import ConfigError


def check_installed(names: Iterable[str]) -> None:
    """Raise if a tracker's package is missing, before anything long such as a learning rate search begins."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"--track {name} needs the package {name}, which is not installed",
                try_=f'pip install {name}, or "vitkit[track]"',
            )


class _Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class Trackers:
    """The trackers of a run; `step` is the one it resumes from: later ones are logged once more."""

    def __init__(self, names: Iterable[str], folder: Path, settings: Mapping[str, Any], *, step: int = 0):
        kinds: dict[str, Callable[[], _Tracker]] = {
            "tensorboard": lambda: _TensorBoard(folder, step),
            "wandb": lambda: _WandB(folder, settings),
        }
        self.trackers = [kinds[name]() for name in names]

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        scalars = {f"{kind}/{name}": float(value) for name, value in values.items() if isinstance(value, (int, float))}
        for tracker in self.trackers:
            tracker.log(step, scalars)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()


class _TensorBoard:
    def __init__(self, folder: Path, step: int):
        check_installed(["tensorboard"])
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _WandB:
    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        check_installed(["wandb"])
        import wandb

        try:
            self.run = wandb.init(
                dir=folder, name=folder.name, id=_run_id(folder), resume="allow", config=dict(settings)
            )
        except wandb.Error as error:
            raise ConfigError(f"--track wandb: {error}", try_="wandb login, or WANDB_MODE=offline") from error
        self.run.define_metric("*", step_metric="step")  # W&B's own step cannot go back, which a resumed run's does

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({"step": step, **values})

    def close(self) -> None:
        self.run.finish()


def _run_id(folder: Path) -> str:
    """Return the id of the run: the same after resuming, another for a new run in a folder of the same name."""
    file = folder / ".wandb-id"
    if not file.exists():
        file.write_text(uuid.uuid4().hex, encoding="utf-8")
    return file.read_text(encoding="utf-8")
