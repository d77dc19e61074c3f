"""A folder of shards while it is written: which tar files are complete, who writes, and the index at the end.

Each tar file appears whole, under its name, and after it a part file with its piece of the index. The part file's name
has the digest of the plan: so a listing tells which tar files are complete, and of what. `index.json` comes last, when
every tar file has its part. A kill at any moment leaves a folder that the same command continues, and the finished
bytes tell nothing of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import PATIENCE, lock, replacing, write_text
from vitkit.data.mapped_npz import Blocks, map_npz, write_npz
from vitkit.data.shard_plan import PlannedShard, ShardPlan
from vitkit.data.shard_tar import TarWriter
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.sources.shards import (
    INDEX,
    INDEX_ARRAYS,
    LABEL_NUMBERS,
    LABEL_OFFSETS,
    LABELS,
    PARTIAL_INDEX,
    SPARSE_VERSION,
    VERSION,
)
from vitkit.data.sparse_labels import SparseLabels
from vitkit.job_shard import JobShard
from vitkit.regular_file import open_regular
from vitkit.stored_json import read_json
from vitkit.temporary_names import is_temporary, remove_abandoned
from vitkit.text import few

_TAR = re.compile(r"[a-z]+-\d{6,}\.tar")
_PART = re.compile(r"[a-z]+-\d{6,}\.(?P<digest>[0-9a-f]{16})\.part")
_LOCK = re.compile(r"shard-\d+-of-\d+\.lock")
_EARLIER = ".partial"  # at the end of names that an earlier version wrote and did not finish
FINISHING = 3600.0  # seconds in which an index of any size is written
DOWNSCALED, BYTES = "downscaled", "bytes"  # numbers of a tar file in its part of the index


class _Plan(TypedDict):
    plan: str


class ShardFolder:
    """The folder that a plan is written to."""

    def __init__(self, path: Path, plan: ShardPlan) -> None:
        self.path, self.plan = path, plan

    @contextlib.contextmanager
    def opened(self, job: JobShard | None) -> Iterator[None]:
        """Hold the folder against other processes with the same share of the job; nothing else is overwritten."""
        with contextlib.ExitStack() as held:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                names = os.listdir(self.path)
                if not self.is_finished():
                    self._check_ours(names)
                    own = PARTIAL_INDEX if job is None else f"shard-{job.index}-of-{job.count}.lock"
                    (self.path / PARTIAL_INDEX).touch()
                    held.enter_context(self._locked(own))
                    if job is None:  # all of the rest: nobody else may be at work
                        for name in filter(_LOCK.fullmatch, os.listdir(self.path)):
                            held.enter_context(self._locked(name))
                    self._remove_earlier(names)
            except OSError as error:
                raise self._not_writable(error) from error
            yield

    def is_finished(self) -> bool:
        """Return whether the folder has the index of this plan: then all of its shards are there."""
        try:
            return read_json(self.path / INDEX, _Plan, error=DataError)["plan"] == self.plan.digest
        except (FileNotFoundError, DataError):  # another index, or one without a plan
            return False

    def missing(self) -> list[PlannedShard]:
        """Return the tar files that are not complete."""
        try:
            names = set(os.listdir(self.path))
        except OSError as error:
            raise self._not_writable(error) from error
        return [shard for shard in self.plan.shards if {shard.name, self._part_name(shard)} - names]

    def write(self, shard: PlannedShard, threads: int) -> Generator[int]:
        """Write a tar file and its part of the index, and yield the images that have been written."""
        data, images = self.plan.data, range(shard.first, shard.stop)
        with replacing(self.path / shard.name, DataError) as temporary:
            writer = TarWriter(temporary)
            try:
                yield from writer.write(data, data.splits[shard.split], images, self.plan.side, threads)
            finally:
                writer.close()
            size = temporary.stat().st_size
        numbers = {DOWNSCALED: np.array([writer.downscaled]), BYTES: np.array([size])}
        with replacing(self.path / self._part_name(shard), DataError) as temporary, temporary.open("wb") as file:
            write_npz(file, {**writer.index_arrays(), **numbers})

    def finish(self) -> int:
        """Put the parts of the index together, remove them, and return how many images were downscaled."""
        data = self.plan.data
        parts = {shard: self._read_part(shard) for shard in self.plan.shards}
        downscaled = sum(int(part[DOWNSCALED][0]) for part in parts.values())
        arrays: dict[str, Blocks | NDArray[Any]] = {}
        splits: dict[str, Any] = {}
        for name, split in data.splits.items():
            shards = self.plan.of_split(name)
            members = _index_arrays(split, shards, [parts[shard] for shard in shards])
            arrays |= {f"{name}.{member}": array for member, array in members.items()}
            records = [{"name": shard.name, "bytes": int(parts[shard][BYTES][0])} for shard in shards]
            splits[name] = {"count": len(split), "shards": records}
        index = {
            "version": SPARSE_VERSION if data.multilabel else VERSION,
            "source": data.name,
            "kind": data.kind,
            "classes": list(data.classes),
            "multilabel": data.multilabel,
            "splits": splits,
            **({"side": self.plan.side} if downscaled else {}),
            "plan": self.plan.digest,
        }
        with replacing(self.path / INDEX_ARRAYS, DataError) as temporary, temporary.open("wb") as file:
            write_npz(file, arrays)
        write_text(self.path / INDEX, json.dumps(index, indent=1, ensure_ascii=False) + "\n", DataError)
        self.tidy()
        return downscaled

    def finish_once(self) -> int | None:
        """Finish, or wait until another process that has found the last tar file complete has done so."""
        with self._locked(PARTIAL_INDEX, patience=FINISHING):
            if not self.is_finished():
                return self.finish()
            self.tidy()
            return None

    def tidy(self) -> None:
        """Remove what is needed only while shards are written."""
        for name in os.listdir(self.path):
            if name == PARTIAL_INDEX or _PART.fullmatch(name) or _LOCK.fullmatch(name):
                (self.path / name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Leave an empty folder empty where not one tar file has been completed."""
        with contextlib.suppress(OSError):
            if not any(map(_PART.fullmatch, os.listdir(self.path))):
                self.tidy()
                remove_abandoned(self.path)

    def _part_name(self, shard: PlannedShard) -> str:
        return f"{shard.name.removesuffix('.tar')}.{self.plan.digest}.part"

    def _read_part(self, shard: PlannedShard) -> dict[str, NDArray[Any]]:
        """Return a tar file's part of the index; both are checked, for the folder may have been copied."""
        path = self.path / self._part_name(shard)
        try:
            part = map_npz(path)
            if len(part["offset"]) != len(shard):
                raise ValueError(f"{len(part['offset']):,} images, not {len(shard):,}")
            size, expected = (self.path / shard.name).stat().st_size, int(part[BYTES][0])
            if size != expected:
                raise ValueError(f"{shard.name} has {size:,} bytes, not {expected:,}")
        except Exception as error:  # damaged bytes can fail anywhere
            raise DataError(
                f"{path} cannot be used: {error}", try_="remove it and run the same command again, which continues"
            ) from error
        return part

    @contextlib.contextmanager
    def _locked(self, name: str, patience: float | None = None) -> Iterator[None]:
        file: IO[str] = open_regular(self.path / name, "a")
        with file:
            if not lock(file, PATIENCE if patience is None else patience):
                share = "" if name == PARTIAL_INDEX else f" ({name.removesuffix('.lock')})"
                raise DataError(
                    f"{self.path} is being written by another process{share}.", try_="another folder, or wait for it"
                )
            yield

    def _check_ours(self, names: Sequence[str]) -> None:
        """Raise if the folder has files that are not those of an interrupted `vitkit shard` of the same plan."""
        others = [digest["digest"] for name in names if (digest := _PART.fullmatch(name))]
        if PARTIAL_INDEX in names and not set(others) <= {self.plan.digest}:
            raise DataError(
                f"{self.path} holds part of the shards of other data, or of other settings.",
                try_="the command that began them, another folder, or empty this one",
            )
        # temporary files may outlive all else of a call whose process was killed
        ours = _is_ours if PARTIAL_INDEX in names else is_temporary
        foreign = sorted(name for name in names if not ours(name))
        if foreign:
            raise DataError(f"{self.path} is not empty.", found=few(foreign), try_="another folder, or empty this one")

    def _remove_earlier(self, names: Sequence[str]) -> None:
        for name in names:
            if name.endswith(_EARLIER) and name != PARTIAL_INDEX:
                (self.path / name).unlink(missing_ok=True)

    def _not_writable(self, error: OSError) -> DataError:
        return DataError(f"{self.path} cannot be written to: {error.strerror or error}.")


def _is_ours(name: str) -> bool:
    kinds: tuple[Callable[[str], object], ...] = (_TAR.fullmatch, _PART.fullmatch, _LOCK.fullmatch, is_temporary)
    return name in (PARTIAL_INDEX, INDEX_ARRAYS) or name.endswith(_EARLIER) or any(kind(name) for kind in kinds)


def _index_arrays(
    split: Split, shards: Sequence[PlannedShard], parts: Sequence[dict[str, NDArray[Any]]]
) -> dict[str, Blocks | NDArray[Any]]:
    """Return the arrays of a split, block by block: 100 million images do not have to fit into memory."""

    def of_parts(name: str) -> Iterator[NDArray[Any]]:
        return (part[name] for part in parts)

    def stops() -> Iterator[NDArray[np.int64]]:
        start = 0
        for text, own in split.keys.blocks():
            yield own + start
            start += len(text)

    count = len(split)
    labels: dict[str, Blocks | NDArray[Any]] = (
        {LABEL_OFFSETS: split.labels.offsets, LABEL_NUMBERS: split.labels.numbers}
        if isinstance(split.labels, SparseLabels)
        else {LABELS: split.labels}
    )
    numbers = (np.full(len(shard), shard.number, np.int32) for shard in shards)
    length = sum(len(text) for text, _ in split.keys.blocks())
    return {
        "shard": Blocks(np.int32, count, numbers),
        "offset": Blocks(np.int64, count, of_parts("offset")),
        "size": Blocks(np.int64, count, of_parts("size")),
        "pixels": Blocks(np.bool_, count, of_parts("pixels")),
        **labels,
        "key_text": Blocks(np.uint8, length, (text for text, _ in split.keys.blocks())),
        "key_stops": Blocks(np.int64, count, stops()),
        **({} if split.groups is None else {"groups": split.groups}),
    }
