"""The memory of features stays within its bounds, whoever else uses it, and never costs an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.evaluate.small import small_model, some_fashion
from vitkit.evaluate import memory
from vitkit.evaluate.features import Extractor
from vitkit.evaluate.memory import recall, remember

KNOWN = np.ones(100, bool)


def name(number: int) -> str:
    return f"{number:032x}.npz"


def values(number: int) -> np.ndarray:
    return np.full((100, 25), number, np.float32)  # 10,000 bytes


def keep(folder: Path, number: int, most: int = 10**9, age: float = 0) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "MOST", most)
        remember(folder / name(number), values(number), KNOWN)
    if age:
        used(folder / name(number), age)
    return folder / name(number)


def used(path: Path, age: float) -> None:
    """So many seconds ago."""
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path):
    for number in range(5):
        keep(tmp_path, number, age=100 - number)
    assert recall(tmp_path / name(0), 100)[0] is not None  # and so the last used of the five
    keep(tmp_path, 9, most=35_000)
    assert there(tmp_path) == {name(4), name(0), name(9)}


def test_the_folder_never_holds_more_than_it_may(tmp_path: Path):
    for number in range(30):
        keep(tmp_path, number, most=55_000)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 55_000
    assert len(there(tmp_path)) == 5


def test_the_newest_stays_even_where_it_alone_is_too_large(tmp_path: Path):
    keep(tmp_path, 1, age=50)
    path = keep(tmp_path, 2, most=1000)
    assert there(tmp_path) == {path.name}
    np.testing.assert_array_equal(recall(path, 100)[0], values(2))


def test_other_peoples_files_are_neither_counted_nor_removed(tmp_path: Path):
    theirs = ["notes.npz", "0.npz", f"{name(1)}.bak", f"x{name(1)}", f".{name(1)}.fresh"]
    for one in theirs:
        (tmp_path / one).write_bytes(bytes(100_000))
        used(tmp_path / one, 1000)
    (tmp_path / "folder").mkdir()
    for number in range(3):
        keep(tmp_path, number, most=40_000)
    assert there(tmp_path) == {*theirs, "folder", *map(name, range(3))}


def test_what_a_killed_process_left_half_written_goes_after_a_day(tmp_path: Path):
    for one, age in ((f".{name(1)}.killed", 2 * 86_400), (f".{name(1)}.writing", 60)):
        (tmp_path / one).write_bytes(b"half")
        used(tmp_path / one, age)
    keep(tmp_path, 2)
    assert there(tmp_path) == {f".{name(1)}.writing", name(2)}


def test_a_file_that_vanishes_while_it_is_looked_at_is_missed_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between listing and looking, and between looking and removing, another process takes it away."""
    for number in range(4):
        keep(tmp_path, number, age=100 - number)
    real = os.scandir

    class Entries:
        def __init__(self, path: str):
            with real(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name)

        def __enter__(self) -> list[os.DirEntry]:
            self.entries[1].stat()  # which an entry remembers
            for number in (0, 1):
                (tmp_path / name(number)).unlink()
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(memory.os, "scandir", Entries)
    keep(tmp_path, 9, most=25_000)
    assert name(9) in there(tmp_path)
    assert len(there(tmp_path)) <= 3


def test_a_file_that_vanishes_while_it_is_read_is_computed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = keep(tmp_path, 1)
    real = np.load

    def gone(file: Path, **options: object):
        path.unlink(missing_ok=True)
        return real(file, **options)

    monkeypatch.setattr(memory.np, "load", gone)
    found, known = recall(path, 100)
    assert found is None
    assert not known.any()


def test_several_processes_may_fill_it_at_once(tmp_path: Path):
    """Each writes and recalls its own and the others' files in a folder that has room for three."""
    script = """if True:
        import sys
        import numpy as np
        from pathlib import Path
        from vitkit.evaluate import memory
        memory.MOST = 35_000
        folder, me = Path(sys.argv[1]), int(sys.argv[2])
        for turn in range(60):
            number = (turn * 7 + me) % 9
            path = folder / f"{number:032x}.npz"
            found, known = memory.recall(path, 100)
            assert found is None or (found == number).all()
            memory.remember(path, np.full((100, 25), number, np.float32), np.ones(100, bool))
    """
    running = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(me)]) for me in range(3)]
    assert [one.wait(120) for one in running] == [0, 0, 0]
    keep(tmp_path, 0, most=35_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 35_000


def test_an_extractor_keeps_within_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "MOST", 20_000)  # fashion's 50 pictures take 7 kB
    extract, split = Extractor(model=small_model(), place=tmp_path), some_fashion(20).splits["test"]
    for start in range(5):
        extract(split.select(np.roll(np.arange(50), start)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert len(there(tmp_path)) == 2


@pytest.mark.parametrize("how", [KeyboardInterrupt, MemoryError])
def test_whoever_is_stopped_goes_on_from_there(how: type[BaseException], tmp_path: Path):
    split = some_fashion(20).splits["test"]
    shown: list[int] = []

    def stopping(items, total, what):
        for number, item in enumerate(items):
            if what == "features" and number == 3:
                raise how
            yield item

    def counting(items, total, what):
        for item in items:
            if what == "features":
                shown.append(len(item.images))
            yield item

    model = small_model().train()
    with pytest.raises(how):
        Extractor(model=model, place=tmp_path, batch=10, progress=stopping)(split)
    assert model.training
    found = Extractor(model=small_model(), place=tmp_path, batch=10, progress=counting)(split)
    assert sum(shown) == 20  # 30 of 50 were done
    whole = Extractor(model=small_model(), place=tmp_path / "elsewhere")(split)
    np.testing.assert_allclose(found.values, whole.values, atol=1e-6)
