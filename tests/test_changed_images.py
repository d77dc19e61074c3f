"""A resumed run notices images whose content has changed under the same name, whatever kind of source they are in."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.test_run import COLOURS, TINY, image_bytes
from vitkit.cli.main import main
from vitkit.data import contents
from vitkit.data.contents import Compared, Reading, changed_images, contents_record
from vitkit.data.sources.open import open_data

EACH = 5
CHANGED = ("bee", 3)


def images(changed: bool) -> Iterator[tuple[str, int, bytes]]:
    for name, channel in COLOURS.items():
        for index in range(EACH):
            other = changed and (name, index) == CHANGED
            yield name, index, image_bytes(10 * index + channel + 1000 * other, channel)


def write_folder(root: Path, changed: bool) -> Path:
    for name, index, content in images(changed):
        path = root / "photos" / name / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    return root / "photos"


def write_manifest(root: Path, changed: bool) -> Path:
    folder = write_folder(root, changed)
    rows = [f"{folder.name}/{name}/{index}.png,{name}" for name, index, _ in images(changed)]
    (root / "photos.csv").write_text("\n".join(["path,label", *rows]))
    return root / "photos.csv"


def write_zip(root: Path, changed: bool) -> Path:
    with zipfile.ZipFile(root / "photos.zip", "w") as archive:
        for name, index, content in images(changed):
            archive.writestr(f"{name}/{index}.png", content)
    return root / "photos.zip"


def write_tar(root: Path, changed: bool) -> Path:
    with tarfile.open(root / "photos.tar", "w") as archive:
        for name, index, content in images(changed):
            member = tarfile.TarInfo(f"{name}/{index}.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return root / "photos.tar"


def write_shards(root: Path, changed: bool) -> Path:
    for path in (root / "shards").glob("*"):
        path.unlink()
    main(["shard", str(write_folder(root, changed)), str(root / "shards")])
    return root / "shards"


def write_arrays(root: Path, changed: bool) -> Path:
    pixels = [np.asarray(Image.open(io.BytesIO(content))) for _, _, content in images(changed)]
    np.savez(root / "photos.npz", images=np.stack(pixels), labels=np.repeat(np.arange(len(COLOURS)), EACH))
    return root / "photos.npz"


def write_hub(root: Path, changed: bool) -> str:
    datasets = pytest.importorskip("datasets", reason="needs the extra hub")
    rows = [*images(changed)]
    table = {"image": [{"bytes": content, "path": None} for _, _, content in rows], "label": [row[0] for row in rows]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(COLOURS))})
    shutil.rmtree(root / "hub", ignore_errors=True)
    datasets.Dataset.from_dict(table, features=features).save_to_disk(root / "hub")
    return f"hf:{root / 'hub'}"


SOURCES: dict[str, Callable[[Path, bool], Path | str]] = {
    "folder": write_folder,
    "manifest": write_manifest,
    "zip": write_zip,
    "tar": write_tar,
    "shards": write_shards,
    "npz": write_arrays,
    "hub": write_hub,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_changed_image_stops_a_resumed_run_with_the_way_out(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    data = SOURCES[kind](tmp_path, False)
    main(["fit", str(data), "--out", str(run), *TINY, "--set", "steps=1"])
    (run / "report.html").unlink()  # as if it had been killed before its end
    before = (run / "run.json").read_bytes()
    SOURCES[kind](tmp_path, True)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["resume", str(run)])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "the content of 1 image has changed, under the same name" in message
    assert "restore these images, or start a new run" in message
    assert (run / "run.json").read_bytes() == before
    if kind != "folder":
        return
    write_folder(tmp_path, False)  # restored: new times, the same bytes
    main(["resume", str(run)])
    assert "a change that keeps both is not seen" in capsys.readouterr().out
    assert (run / "report.html").is_file()


def test_the_user_may_go_on_with_changed_images(tmp_path: Path):
    run = tmp_path / "run"
    main(["fit", str(write_folder(tmp_path, False)), "--out", str(run), *TINY, "--set", "steps=1"])
    (run / "report.html").unlink()
    write_folder(tmp_path, True)
    record = json.loads((run / "run.json").read_text())
    del record["data"]["contents"]  # as the message says, and as a run of an earlier version is
    (run / "run.json").write_text(json.dumps(record))
    main(["resume", str(run)])
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("compared", ["bytes", "sample"])
@pytest.mark.parametrize("kind", SOURCES)
def test_exactly_the_changed_image_is_named(kind: str, compared: Compared, tmp_path: Path):
    before = open_data(str(SOURCES[kind](tmp_path, False)))
    [split] = before.splits
    record = contents_record(before, [split], compared, Reading())
    assert changed_images(before, record, Reading()) == []
    after = open_data(str(SOURCES[kind](tmp_path, True)))
    row = [(name, index) for name, index, _ in images(False)].index(CHANGED)
    assert changed_images(after, record, Reading()) == [after.splits[split].keys[row]]


def test_copied_files_with_other_times_are_unchanged(tmp_path: Path):
    data = open_data(str(write_folder(tmp_path, False)))
    record = contents_record(data, ["all"], "bytes", Reading())
    for path in (tmp_path / "photos").rglob("*.png"):
        os.utime(path, (1, 1))
    assert changed_images(data, record, Reading()) == []


def test_ranks_that_share_the_reading_get_the_record_of_one(tmp_path: Path):
    data = open_data(str(write_folder(tmp_path, False)))
    shares: dict[int, np.ndarray] = {}

    class Shared(Exception):
        """The rank has shared what it read; the other rank comes next."""

    def share(rank: int, part: np.ndarray) -> list[np.ndarray]:
        shares[rank] = part
        raise Shared

    for rank in (0, 1):
        with pytest.raises(Shared):
            contents_record(data, ["all"], "sample", Reading(1, rank, 2, partial(share, rank)))
    together = Reading(1, 0, 2, lambda part: [shares[0], shares[1]])
    assert contents_record(data, ["all"], "sample", together) == contents_record(data, ["all"], "sample", Reading())


def test_of_many_images_a_row_covers_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contents, "MOST_ROWS", 4)
    before = open_data(str(write_folder(tmp_path, False)))
    record = contents_record(before, ["all"], "sample", Reading())
    after = open_data(str(write_folder(tmp_path, True)))
    [name] = changed_images(after, record, Reading())
    keys = list(after.splits["all"].keys)
    assert keys.index(name) <= keys.index("bee/3.png") < keys.index(name) + 4


def test_of_very_many_images_the_first_of_each_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contents, "MOST_ROWS", 4)
    assert contents.pick_compared(contents.MOST_SAMPLED + 1, hashed=False) == "few"
    data = open_data(str(write_folder(tmp_path, False)))
    keys, count = list(data.splits["all"].keys), len(data.splits["all"])
    record = contents_record(data, ["all"], "few", Reading())
    chosen = [row * count // 4 for row in range(4)]  # evenly spread
    for index, key in enumerate(keys):
        path = tmp_path / "photos" / key
        original = path.read_bytes()
        path.write_bytes(original + b"more")
        assert changed_images(data, record, Reading()) == ([key] if index in chosen else [])
        path.write_bytes(original)
