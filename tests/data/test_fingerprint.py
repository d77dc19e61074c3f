"""Fingerprints are remembered: by content for files that were moved, by path and time for files that were not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.data.sample_images import encode
from tests.data.test_duplicates import photo
from vitkit.data.fingerprint import FingerprintCache, Fingerprints, read_fingerprints
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in range(12):
        path = tmp_path / "photos" / ("cat", "dog")[seed % 2] / f"{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(seed), "JPEG"))
    return tmp_path / "photos"


def fingerprints(data: Data, cache: Path, **options: object) -> Fingerprints:
    return read_fingerprints(list(data.splits.values()), cache=FingerprintCache(cache), **options)  # type: ignore[arg-type]


def assert_equal(one: Fingerprints, other: Fingerprints) -> None:
    assert np.array_equal(one.contents, other.contents)
    assert np.array_equal(one.thumbnails, other.thumbnails)


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_a_second_time_no_file_is_read(kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = open_data(folder)
    if kind == "shards":
        write_shards(data, tmp_path / "shards")
        data = open_data(tmp_path / "shards")
    first = fingerprints(data, tmp_path / "cache.sqlite")
    assert first.readable.all()
    assert first.decoded.all()
    store = type(data.splits["all"].store)
    monkeypatch.setattr(store, "read", lambda *_: pytest.fail("read again"))
    assert_equal(fingerprints(data, tmp_path / "cache.sqlite"), first)


def test_a_moved_folder_is_read_but_not_decoded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = fingerprints(open_data(folder), tmp_path / "cache.sqlite")
    moved = folder.rename(tmp_path / "moved")
    monkeypatch.setattr("vitkit.data.fingerprint.thumbnail", lambda *_: pytest.fail("decoded again"))
    assert_equal(fingerprints(open_data(moved), tmp_path / "cache.sqlite"), first)


def test_a_changed_file_is_read_again(folder: Path, tmp_path: Path):
    first = fingerprints(open_data(folder), tmp_path / "cache.sqlite")
    path = folder / "cat" / "0.jpg"
    status = path.stat()
    path.write_bytes(encode(photo(99), "JPEG"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    second = fingerprints(open_data(folder), tmp_path / "cache.sqlite")
    assert (first.contents != second.contents).any(axis=1).tolist() == [True] + [False] * 11


def test_damaged_files_and_damaged_caches_do_not_stop_it(folder: Path, tmp_path: Path):
    (folder / "cat" / "0.jpg").write_bytes(b"no image")
    (tmp_path / "bad.sqlite").write_bytes(b"not a database at all, but long enough to be read as one" * 20)
    for cache in (tmp_path / "bad.sqlite", Path("/proc/no/such/place.sqlite")):
        result = fingerprints(open_data(folder), cache)
        assert result.readable.all()
        assert result.decoded.tolist() == [False] + [True] * 11


def test_ranks_read_a_share_each_and_have_all(folder: Path, tmp_path: Path):
    data, world_size = open_data(folder), 3
    alone = fingerprints(data, tmp_path / "alone.sqlite")
    values: list[object] = [None] * world_size
    barrier = threading.Barrier(world_size)
    results: dict[int, Fingerprints] = {}

    def one(rank: int) -> None:
        def gather(value: object) -> list[object]:
            values[rank] = value
            barrier.wait()
            return values

        results[rank] = fingerprints(data, tmp_path / f"{rank}.sqlite", rank=rank, world_size=world_size, gather=gather)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(world_size):
        assert_equal(results[rank], alone)
