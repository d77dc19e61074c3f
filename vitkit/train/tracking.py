"""metrics.jsonl is always written; TensorBoard and Weights & Biases see the same lines when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from vitkit.errors import ConfigError


class _Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class Trackers:
    def __init__(self, names: Iterable[str], folder: Path, settings: Mapping[str, Any]):
        kinds: dict[str, Callable[[Path, Mapping[str, Any]], _Tracker]] = {"tensorboard": _TensorBoard, "wandb": _WandB}
        self.trackers = [kinds[name](folder, settings) for name in names]

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        numbers = {f"{kind}/{name}": float(value) for name, value in values.items() if isinstance(value, (int, float))}
        for tracker in self.trackers:
            tracker.log(step, numbers)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()


class _TensorBoard:
    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _WandB:
    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb") from error
        # the folder's name is the run's, so that a resumed run goes on in the same one
        self.run = wandb.init(dir=folder, name=folder.name, id=folder.name, resume="allow", config=dict(settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


def _missing(name: str) -> ConfigError:
    return ConfigError(f"--track {name} needs a package that is not installed", try_='pip install "vitkit[track]"')
