"""Data that several runs of one process share: opened, searched for copies and recorded once."""

from collections.abc import Callable
from typing import Any

from vitkit.config.schema import Fit
from vitkit.data.contents import ContentsRecord
from vitkit.data.groups import KeptTogether
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data
from vitkit.data.task import Task
from vitkit.train.cache import ImagesInMemory


class SharedData:
    """Remembers data sets and what was found out about them; a run of its own starts with an empty one.

    images   what they keep in memory of their decoded images
    """

    def __init__(self, images: ImagesInMemory | None = None) -> None:
        self.images = images or ImagesInMemory()
        self._results: dict[tuple[Any, ...], Any] = {}
        self._kept_alive: list[Data] = []  # their ids are keys, and must not be given to others

    def open(self, source: str, *, label: str | None = None, group: str | None = None, task: Task = "classify") -> Data:
        return self._once(
            ("open", source, label, group, task), lambda: open_data(source, label=label, group=group, task=task)
        )

    def kept_together(self, config: Fit, data: Data, find: Callable[[], KeptTogether]) -> KeptTogether:
        return self._once(self._key("together", config, data), find)

    def contents(self, config: Fit, data: Data, read: Callable[[], ContentsRecord]) -> ContentsRecord:
        return self._once(self._key("contents", config, data), read)

    def _key(self, result: str, config: Fit, data: Data) -> tuple[Any, ...]:
        self._kept_alive.append(data)
        return (result, id(data), config.objective, config.duplicates)

    def _once(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        if key not in self._results:
            self._results[key] = compute()
        return self._results[key]
