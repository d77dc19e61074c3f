"""The feature cache stays within its size with any number of processes, and never costs a result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.evaluate.small_model import small_model, some_fashion
from vitkit.compute import feature_cache
from vitkit.compute.feature_cache import read_cache, write_cache
from vitkit.compute.features import FeatureExtractor

KNOWN = np.ones(100, bool)


def name(number: int) -> str:
    return f"{number:032x}.npz"


def values(number: int) -> np.ndarray:
    return np.full((100, 25), number, np.float32)  # 10,000 bytes


def cache(folder: Path, number: int, max_bytes: int = 10**9, age: float = 0) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_cache, "MAX_BYTES", max_bytes)
        write_cache(folder / name(number), values(number), KNOWN)
    if age:
        set_age(folder / name(number), age)
    return folder / name(number)


def set_age(path: Path, age: float) -> None:
    """Move the last use of a file so many seconds back."""
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_least_recently_used_file_is_evicted_first(tmp_path: Path):
    for number in range(5):
        cache(tmp_path, number, age=100 - number)
    assert read_cache(tmp_path / name(0), 100)[0] is not None  # which makes it the most recently used
    cache(tmp_path, 9, max_bytes=35_000)
    assert names_in(tmp_path) == {name(4), name(0), name(9)}


def test_the_folder_never_exceeds_its_size(tmp_path: Path):
    for number in range(30):
        cache(tmp_path, number, max_bytes=55_000)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 55_000
    assert len(names_in(tmp_path)) == 5


def test_the_newest_file_stays_even_if_it_alone_is_too_large(tmp_path: Path):
    cache(tmp_path, 1, age=50)
    path = cache(tmp_path, 2, max_bytes=1000)
    assert names_in(tmp_path) == {path.name}
    np.testing.assert_array_equal(read_cache(path, 100)[0], values(2))


def test_other_files_are_neither_counted_nor_removed(tmp_path: Path):
    theirs = ["notes.npz", "0.npz", f"{name(1)}.bak", f"x{name(1)}", f".{name(1)}.fresh"]
    for one in theirs:
        (tmp_path / one).write_bytes(bytes(100_000))
        set_age(tmp_path / one, 1000)
    (tmp_path / "folder").mkdir()
    for number in range(3):
        cache(tmp_path, number, max_bytes=40_000)
    assert names_in(tmp_path) == {*theirs, "folder", *map(name, range(3))}


def test_half_written_files_of_killed_processes_are_removed_after_a_day(tmp_path: Path):
    for one, age in ((f".{name(1)}.killed", 2 * 86_400), (f".{name(1)}.writing", 60)):
        (tmp_path / one).write_bytes(b"half")
        set_age(tmp_path / one, age)
    cache(tmp_path, 2)
    assert names_in(tmp_path) == {f".{name(1)}.writing", name(2)}


def test_a_file_that_vanishes_during_eviction_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process removes files between listing and stat, and between stat and removal."""
    for number in range(4):
        cache(tmp_path, number, age=100 - number)
    real = os.scandir

    class Entries:
        def __init__(self, path: str):
            with real(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name)

        def __enter__(self) -> list[os.DirEntry]:
            self.entries[1].stat()  # which the entry caches
            for number in (0, 1):
                (tmp_path / name(number)).unlink()
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(feature_cache.os, "scandir", Entries)
    cache(tmp_path, 9, max_bytes=25_000)
    assert name(9) in names_in(tmp_path)
    assert len(names_in(tmp_path)) <= 3


def test_a_file_that_vanishes_while_it_is_read_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = cache(tmp_path, 1)
    real = np.load

    def load_removed(file: Path, **options: object):
        path.unlink(missing_ok=True)
        return real(file, **options)

    monkeypatch.setattr(feature_cache.np, "load", load_removed)
    cached, known = read_cache(path, 100)
    assert cached is None
    assert not known.any()


def test_several_processes_may_write_at_once(tmp_path: Path):
    """Each process writes and reads its own and the others' files in a folder that has room for three."""
    script = """if True:
        import sys
        import numpy as np
        from pathlib import Path
        from vitkit.compute import feature_cache
        feature_cache.MAX_BYTES = 35_000
        folder, process = Path(sys.argv[1]), int(sys.argv[2])
        for turn in range(60):
            number = (turn * 7 + process) % 9
            path = folder / f"{number:032x}.npz"
            cached, known = feature_cache.read_cache(path, 100)
            assert cached is None or (cached == number).all()
            feature_cache.write_cache(path, np.full((100, 25), number, np.float32), np.ones(100, bool))
    """
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(process)]) for process in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    cache(tmp_path, 0, max_bytes=35_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 35_000


def test_an_extractor_keeps_the_cache_within_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_cache, "MAX_BYTES", 20_000)  # fashion's 50 images take 7 kB
    extract, split = FeatureExtractor(model=small_model(), cache_folder=tmp_path), some_fashion(20).splits["test"]
    for start in range(5):
        extract(split.select(np.roll(np.arange(50), start)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert len(names_in(tmp_path)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_extraction_continues_where_it_stopped(error: type[BaseException], tmp_path: Path):
    split = some_fashion(20).splits["test"]
    shown: list[int] = []

    def stopping(items, total, what, images_in=None):
        for number, item in enumerate(items):
            if what == "features" and number == 3:
                raise error
            yield item

    def counting(items, total, what, images_in=None):
        for item in items:
            if what == "features":
                shown.append(len(item.images))
            yield item

    model = small_model().train()
    with pytest.raises(error):
        FeatureExtractor(model=model, cache_folder=tmp_path, batch=10, progress=stopping)(split)
    assert model.training
    features = FeatureExtractor(model=small_model(), cache_folder=tmp_path, batch=10, progress=counting)(split)
    assert sum(shown) == 20  # 30 of 50 were done
    complete = FeatureExtractor(model=small_model(), cache_folder=tmp_path / "elsewhere")(split)
    # batches of other sizes sum in another order: 16 float32 roundings of a sum over width, in each layer
    rounding = 16 * np.finfo(np.float32).eps * (model.config.depth * model.config.width) ** 0.5
    np.testing.assert_allclose(features.values, complete.values, atol=rounding * np.abs(complete.values).max())
