"""The batches of a pass, loaded into host memory by another thread before the pass asks for them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Generator, Iterator

from vitkit.data.batch import Batch
from vitkit.data.split_dataset import SplitDataset

log = logging.getLogger("vitkit")


class InputsAhead:
    """Batches that one thread loads and another takes, in their order and as they come.

    Nothing depends on them: where loading fails or is cancelled, `take` ends early, and the rest is loaded as usual.
    """

    def __init__(self, dataset: SplitDataset):
        self.dataset = dataset  # kept alive: the id of its store is a key
        self.complete = False  # all batches have been taken
        self._loaded: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._over = self._cancelled = self._finished = False

    def load(self, batches: Generator[Batch, None, None]) -> None:
        """Load the batches in the thread that calls this."""
        try:
            with contextlib.closing(batches):
                for batch in batches:
                    with self._changed:
                        if self._cancelled:
                            return
                        self._loaded.append(batch)
                        self._changed.notify_all()
            self._finished = True
        except Exception as error:  # the pass itself will name what is wrong
            log.debug("inputs were not loaded ahead: %s", error)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def cancel(self) -> None:
        """End the loading after the batches that are being decoded."""
        with self._changed:
            self._cancelled = True

    def take(self) -> Iterator[Batch]:
        """Yield the batches once; where loading ended early, `complete` stays False."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._loaded or self._over)
                if not self._loaded:
                    self.complete = self._finished
                    return
                batch = self._loaded.popleft()
            yield batch
