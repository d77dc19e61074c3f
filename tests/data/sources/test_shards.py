"""Shards as Python's own tarfile reads them, and as vitkit reads them back."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.sample_images import encode, oriented, scene
from tests.data.sources.sample_sources import misread_by_threads, png, sample_files, write_files
from vitkit.data import downscale, shard_tar
from vitkit.data.decode import decode
from vitkit.data.partition import fingerprint
from vitkit.data.shard_plan import _cuts
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.dataset import Data, DataError, PackedStrings, Split, nfc
from vitkit.data.sources.open import open_data
from vitkit.data.sources.tars import open_tars
from vitkit.data.sparse_labels import SparseLabels
from vitkit.job_shard import JobShard
from vitkit.progress import Progress, show_progress


@pytest.fixture
def folders(tmp_path: Path) -> Data:
    return open_data(write_files(tmp_path / "photos", sample_files()))


def npy(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def error_of(source: object) -> str:
    with pytest.raises(DataError) as error:
        open_data(source)
    return str(error.value)


def test_tarfile_reads_the_shards_at_the_offsets_of_the_index(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "index.json",
        "index.npz",
        "test-000000.tar",
        "train-000000.tar",
    ]
    shards = open_data(tmp_path / "out")
    for split, part in folders.splits.items():
        with tarfile.open(tmp_path / "out" / f"{split}-000000.tar") as tar:
            for index in range(len(part)):
                member, label = tar.getmember(f"{index:09d}.png"), tar.extractfile(f"{index:09d}.cls")
                assert tar.extractfile(member).read() == part.read(index) == shards.splits[split].read(index)
                assert int(label.read()) == part.labels[index]
                assert member.offset_data == shards.splits[split].store.offset[index]


def test_shards_give_the_original_data(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    shards = open_data(tmp_path / "out")
    assert (shards.kind, shards.classes, shards.multilabel) == ("shards", folders.classes, False)
    assert list(shards.splits) == list(folders.splits)
    for split, part in folders.splits.items():
        assert list(shards.splits[split].keys) == list(part.keys)
        np.testing.assert_array_equal(shards.splits[split].labels, part.labels)
        chosen = shards.splits[split].select([len(part) - 1, 0])
        assert [chosen.read(0), chosen.read(1)] == [part.read(len(part) - 1), part.read(0)]


def test_shards_have_the_given_size_and_more_files_than_handles_are_read(tmp_path: Path):
    photos = write_files(
        tmp_path / "photos", {f"{number % 2}/{number}.png": png(number, (8, 8)) for number in range(70)}
    )
    data = open_data(photos)
    write_shards(data, tmp_path / "out", megabytes=0, progress=show_progress)
    assert len(list((tmp_path / "out").glob("all-*.tar"))) == 70
    part = open_data(tmp_path / "out").splits["all"]
    for index in (*range(70), *range(70)):
        assert part.read(index) == data.splits["all"].read(index)
    assert len(part.store.local.files) <= 64


def test_arrays_and_multi_labels_survive_a_round_trip(tmp_path: Path):
    pixels = np.random.default_rng(0).normal(size=(3, 4, 5, 2)).astype(np.float32)
    table = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]], dtype=bool)
    np.savez(tmp_path / "a.npz", x=pixels, y=table, classes=["x", "y", "z"])
    write_shards(open_data(tmp_path / "a.npz"), tmp_path / "out")
    data = open_data(tmp_path / "out")
    assert (data.multilabel, data.classes) == (True, ("x", "y", "z"))
    np.testing.assert_array_equal(data.splits["all"].labels.dense(), table)
    for index in range(3):
        np.testing.assert_array_equal(data.splits["all"].read(index), pixels[index])
    with tarfile.open(tmp_path / "out" / "all-000000.tar") as tar:
        np.testing.assert_array_equal(np.load(io.BytesIO(tar.extractfile("000000001.npy").read())), pixels[1])
        assert json.load(tar.extractfile("000000000.json")) == {"labels": ["x", "y"]}


def several_labels(folder: Path) -> tuple[Path, np.ndarray]:
    """Return shards of five images, and their labels as a table."""
    table = np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0]], dtype=bool)
    np.savez(folder / "a.npz", x=np.zeros((5, 2, 2), np.uint8), y=table, classes=["x", "y", "z"])
    write_shards(open_data(folder / "a.npz"), folder / "out")
    return folder / "out", table


def test_the_index_of_multi_label_shards_has_scipys_csr_arrays(tmp_path: Path):
    shards, table = several_labels(tmp_path)
    expected = scipy.sparse.csr_matrix(table)
    with np.load(shards / "index.npz") as arrays:
        np.testing.assert_array_equal(arrays["all.label_offsets"], expected.indptr)
        np.testing.assert_array_equal(arrays["all.label_numbers"], expected.indices)
        assert "all.labels" not in arrays
    assert json.loads((shards / "index.json").read_text())["version"] == 2


def test_the_dense_table_of_older_multi_label_shards_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards, table = several_labels(tmp_path)
    new = open_data(shards)
    with np.load(shards / "index.npz") as arrays:
        kept = {name: array for name, array in arrays.items() if "label_" not in name}
    (shards / "index.npz").unlink()  # it is mapped, and must not be changed in place
    np.savez_compressed(shards / "index.npz", **kept, **{"all.labels": table})
    index = json.loads((shards / "index.json").read_text())
    (shards / "index.json").write_text(json.dumps({**index, "version": 1}))
    monkeypatch.setattr("vitkit.data.sources.shards.DENSE_BLOCK", 4)  # a row at a time
    old = open_data(shards)
    assert old.splits["all"].labels == new.splits["all"].labels
    np.testing.assert_array_equal(old.splits["all"].labels.dense(), table)
    np.savez_compressed(shards / "index.npz", **kept, **{"all.labels": table[:, :2]})
    assert "damaged: ValueError: labels of shape (5, 2)" in error_of(shards)


@pytest.mark.parametrize(
    ("name", "values"), [("label_numbers", [9]), ("label_offsets", [0]), ("label_offsets", [5, 4])]
)
def test_damaged_labels_of_multi_label_shards_are_an_error(name: str, values: list[int], tmp_path: Path):
    shards, _ = several_labels(tmp_path)
    with np.load(shards / "index.npz") as arrays:
        kept = dict(arrays)
    np.savez_compressed(shards / "index.npz", **{**kept, f"all.{name}": np.array(values)})
    assert "the index of these shards is damaged" in error_of(shards)


def test_multi_label_shards_without_their_index_keep_their_labels(tmp_path: Path):
    shards, table = several_labels(tmp_path)
    for name in ("index.json", "index.npz"):
        (shards / name).unlink()
    data = open_data(shards)
    assert (data.multilabel, data.classes) == (True, ("x", "y", "z"))
    np.testing.assert_array_equal(data.splits["all"].labels.dense(), table)


def test_large_images_are_downscaled_and_others_stay(tmp_path: Path):
    high_bit = encode(Image.fromarray(np.full((300, 400), 40_000, dtype=np.uint16)), "PNG")
    files = {
        "a/photo.jpg": encode(scene(300, 400), "JPEG"),
        "a/drawing.png": encode(scene(400, 300), "PNG"),
        "a/flat.webp": encode(scene(300, 400), "WEBP"),
        "b/small.jpg": encode(scene(100, 900), "JPEG"),
        "a/whole.webp": encode(scene(300, 400), "WEBP", lossless=True),
        "a/plain.ppm": encode(scene(300, 400), "PPM"),
        "a/wide.jpg": encode(scene(110, 64_000), "JPEG"),
        "b/array.npy": npy(scene(300, 400)),
        "b/deep.png": high_bit,
        "b/broken.jpg": encode(scene(300, 400), "JPEG")[:2000],
        "b/grey.jpg": encode(Image.fromarray(scene(300, 400)).convert("L"), "JPEG"),
    }
    folders = open_data(write_files(tmp_path / "photos", files))
    assert write_shards(folders, tmp_path / "out", side=100, workers=2).downscaled == 7
    data = open_data(tmp_path / "out")
    part = data.splits["all"]
    written = {key: part.read(index) for index, key in enumerate(part.keys)}
    assert list(part.keys) == list(folders.splits["all"].keys)
    np.testing.assert_array_equal(part.labels, folders.splits["all"].labels)
    assert {key for key in files if written[key] == files[key]} == {
        "b/small.jpg",
        "b/deep.png",
        "b/broken.jpg",
        "b/array.npy",
    }
    for key, kind, size in (
        ("a/photo.jpg", "JPEG", (133, 100)),
        ("a/drawing.png", "PNG", (100, 133)),
        ("a/flat.webp", "JPEG", (133, 100)),
        ("b/grey.jpg", "JPEG", (133, 100)),
        ("a/whole.webp", "PNG", (133, 100)),
        ("a/plain.ppm", "PNG", (133, 100)),
        ("a/wide.jpg", "JPEG", (58182, 100)),
    ):
        with Image.open(io.BytesIO(written[key])) as small, Image.open(io.BytesIO(files[key])) as large:
            assert (small.format, small.size, small.mode) == (kind, size, large.mode)
            # grey levels, for JPEGs keep a quarter of the colours
            levels = (
                np.asarray(one.convert("L"), dtype=np.float32)
                for one in (small, large.resize(size, Image.Resampling.BICUBIC))
            )
            assert np.abs(next(levels) - next(levels)).mean() < 1.5
    assert any("shorter sides of 100 pixels" in note for note in data.notes)
    with tarfile.open(tmp_path / "out" / "all-000000.tar") as tar:  # named for what is inside
        endings = {member.name.partition(".")[2] for member in tar if not member.name.endswith(".cls")}
    assert endings == {"jpg", "png", "npy"}


def test_an_image_too_long_for_jpeg_becomes_a_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(downscale, "MAX_JPEG_SIDE", 120)
    folders = open_data(write_files(tmp_path / "photos", {"a/wide.jpg": encode(scene(100, 400), "JPEG")}))
    write_shards(folders, tmp_path / "out", side=50)
    with Image.open(io.BytesIO(open_data(tmp_path / "out").splits["all"].read(0))) as small:
        assert (small.format, small.size) == ("PNG", (200, 50))


def test_a_downscaled_image_is_upright(tmp_path: Path):
    folders = open_data(write_files(tmp_path / "photos", {"a/turned.jpg": oriented("JPEG", 6, quality=95)}))  # 24 x 40
    write_shards(folders, tmp_path / "out", side=12)
    [content] = [open_data(tmp_path / "out").splits["all"].read(0)]
    decoded = decode(content)
    assert decoded.shape == (12, 20, 3)
    expected = np.asarray(Image.fromarray(scene()).resize((20, 12), Image.Resampling.BICUBIC), dtype=np.float32)
    assert np.abs(decoded - expected).mean() < 6


@pytest.mark.parametrize(
    ("column", "labels", "merged"),
    [
        ("label", ("a", "b", "c", "b"), [1, 1, 0, 1]),
        ("labels", ("a", "b", "c", "a|c"), [[False, True], [False, True], [True, False], [True, True]]),
    ],
)
def test_equivalent_unicode_names_in_an_index_are_one_class(
    column: str, labels: tuple[str, ...], merged: list, tmp_path: Path
):
    """Old shards have a class for each form."""
    write_files(tmp_path, {f"{number}.png": png(number) for number in range(4)})
    rows = "".join(f"{number}.png,{label}\n" for number, label in enumerate(labels))
    (tmp_path / "list.csv").write_text(f"path,{column}\n{rows}")
    write_shards(open_data(tmp_path / "list.csv"), tmp_path / "out")
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    index["classes"] = [unicodedata.normalize("NFC", "고양이"), unicodedata.normalize("NFD", "고양이"), "개"]
    (tmp_path / "out" / "index.json").write_text(json.dumps(index))
    data = open_data(tmp_path / "out")
    assert data.classes == ("개", "고양이")
    found = data.splits["all"].labels
    assert (found.dense() if data.multilabel else found).tolist() == merged
    assert [data.splits["all"].read(number) for number in range(4)] == [png(number) for number in range(4)]


def test_unlabelled_images_and_unusual_keys_survive_a_round_trip(tmp_path: Path):
    names = ["a.b.c.png", "ümläut 🐈.png", "n" * 250 + ".png"]
    photos = write_files(tmp_path / "photos", {name: png(seed) for seed, name in enumerate(names)})
    write_shards(open_data(photos), tmp_path / "out")
    part = open_data(tmp_path / "out").splits["all"]
    assert {part.keys[index]: part.read(index) for index in range(3)} == {
        name: png(seed) for seed, name in enumerate(names)
    }
    assert part.labels.tolist() == [-1] * 3


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_any_number_of_processes_and_machines_gives_the_same_files(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "one", megabytes=0, workers=1)
    write_shards(folders, tmp_path / "five", megabytes=0, workers=5)
    assert len(list((tmp_path / "one").glob("*.tar"))) == 12
    for index in (2, 0, 1):
        assert not (tmp_path / "machines" / "index.json").exists()
        job = JobShard(index, 3)
        written = write_shards(folders, tmp_path / "machines", megabytes=0, workers=1, job=job)
    assert written.finished
    assert contents_of(tmp_path / "one") == contents_of(tmp_path / "five") == contents_of(tmp_path / "machines")
    again = write_shards(folders, tmp_path / "machines", megabytes=0, job=JobShard(0, 3))  # requeued
    assert again.finished
    assert contents_of(tmp_path / "one") == contents_of(tmp_path / "machines")


def test_a_share_names_what_is_missing_and_the_command_for_all_writes_it(folders: Data, tmp_path: Path):
    written = write_shards(folders, tmp_path / "out", megabytes=0, workers=1, job=JobShard(1, 2))
    assert written.missing == tuple(f"train-{number:06d}.tar" for number in range(6))
    assert "writing was interrupted" in error_of(tmp_path / "out")
    (tmp_path / "out" / "train-000007.tar").unlink()  # its part of the index is not enough
    assert write_shards(folders, tmp_path / "out", megabytes=0, workers=1).before == 5
    write_shards(folders, tmp_path / "whole", megabytes=0)
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")


def test_shards_of_other_data_or_settings_are_not_mixed(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out", megabytes=0, workers=1, job=JobShard(0, 2))
    other = replace(folders, splits={**folders.splits, "train": folders.splits["train"].select([2, 1, 0])})
    for data, options in (
        (folders, {"megabytes": 1}),
        (folders, {"megabytes": 0, "side": 4}),
        (other, {"megabytes": 0}),
    ):
        with pytest.raises(DataError, match="part of the shards of other data, or of other settings"):
            write_shards(data, tmp_path / "out", **options)


def test_all_may_not_be_written_while_a_share_is(folders: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def meanwhile(items, total, what):
        for item in items:
            with pytest.raises(DataError, match=r"being written by another process \(shard-1-of-2\)"):
                write_shards(folders, tmp_path / "out", megabytes=0)
            yield item
            break

    monkeypatch.setattr("vitkit.data.shard_folder.PATIENCE", 0.05)
    write_shards(folders, tmp_path / "out", megabytes=0, workers=1, job=JobShard(1, 2), progress=meanwhile)


def test_an_unreadable_image_is_named_from_any_process_and_the_rest_continues(tmp_path: Path):
    photos = write_files(tmp_path / "photos", {f"{number % 2}/{number}.png": png(number) for number in range(8)})
    data = open_data(photos)
    (photos / "1/7.png").rename(tmp_path / "7.png")
    with pytest.raises(DataError, match=r"1/7.png cannot be read: No such file(.|\n)*then .*the same command again: "):
        write_shards(data, tmp_path / "out", megabytes=0, workers=2)
    (tmp_path / "7.png").rename(photos / "1/7.png")
    assert write_shards(data, tmp_path / "out", megabytes=0, workers=2).finished
    assert len(list((tmp_path / "out").glob("all-*.tar"))) == 8


KILLED = """
import os, signal, sys
from vitkit.data import shard_tar
from vitkit.data.partition import fingerprint
from vitkit.data.shard_plan import _cuts
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.open import open_data

images, victim, parent = int(sys.argv[3]), sys.argv[4], os.getpid()
add, count = shard_tar.TarWriter._add, 0

def add_and_die(*arguments):
    global count
    count += 1
    if count == images:
        os.kill(parent if victim == "parent" else os.getpid(), signal.SIGKILL)
    add(*arguments)

shard_tar.TarWriter._add = add_and_die
write_shards(open_data(sys.argv[1]), sys.argv[2], megabytes=0, workers=2)
"""


def killed(source: Path, out: Path, images: int, victim: str) -> subprocess.CompletedProcess[str]:
    """Write shards in two processes, one of which kills itself or the one above when it comes to such an image."""
    command = [sys.executable, "-c", KILLED, str(source), str(out), str(images), victim]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_continued(source: Path, out: Path, whole: Path) -> None:
    deadline = time.monotonic() + 20  # workers of a killed process end at their next image
    while not write_when_free(source, out):
        assert time.monotonic() < deadline
    assert contents_of(out) == contents_of(whole)


def write_when_free(source: Path, out: Path) -> bool:
    with contextlib.suppress(DataError):  # it is being written by another process
        return write_shards(open_data(source), out, megabytes=0, workers=2).finished
    return False


def test_parallel_writing_that_was_killed_is_continued_to_the_same_bytes(tmp_path: Path):
    photos = write_files(tmp_path / "photos", {f"{number % 2}/{number}.png": png(number) for number in range(24)})
    write_shards(open_data(photos), tmp_path / "whole", megabytes=0, workers=1)
    ended = killed(photos, tmp_path / "out", 5, "parent")
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / "index.json").exists()
    assert_continued(photos, tmp_path / "out", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", "worker"])
def test_writing_that_is_killed_again_and_again_ends_with_the_same_bytes(victim: str, tmp_path: Path):
    photos = write_files(tmp_path / "photos", {f"{number % 2}/{number}.png": png(number) for number in range(96)})
    write_shards(open_data(photos), tmp_path / "whole", megabytes=0, workers=1)
    for images in (1, 2, 3, 4, 5):
        ended = killed(photos, tmp_path / "out", images, victim)
        if victim == "worker":
            assert ended.returncode == 1
            assert "a process that writes shards has died" in ended.stderr
        else:
            # the workers of a killed process may go on for a moment, and complete what is left
            assert ended.returncode == -signal.SIGKILL or (images > 1 and ended.returncode == 0)
    assert_continued(photos, tmp_path / "out", tmp_path / "whole")


def test_the_same_data_gives_the_same_files(folders: Data, tmp_path: Path):
    for name in "ab":
        write_shards(folders, tmp_path / name)
    for path in (tmp_path / "a").glob("*.tar"):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_reading_is_thread_safe(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    part, truth = open_data(tmp_path / "out").splits["train"], folders.splits["train"]
    assert not misread_by_threads(part, [truth.read(index) for index in range(len(truth))])


def interrupt_after(images: int) -> Progress:
    def interrupt(items: Iterable[None], total: int, what: str) -> Iterator[None]:
        for index, item in enumerate(items):
            if index == images:
                raise KeyboardInterrupt
            yield item

    return interrupt


def test_interrupted_writing_leaves_no_files_where_no_shard_is_complete(folders: Data, tmp_path: Path):
    for side in (None, 4):
        with pytest.raises(KeyboardInterrupt):
            write_shards(folders, tmp_path / "out", side=side, workers=1, progress=interrupt_after(0))
        assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_interrupted_writing_is_continued_and_complete_shards_are_not_written_again(
    workers: int, folders: Data, tmp_path: Path
):
    write_shards(folders, tmp_path / "whole", megabytes=0)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write_shards(folders, out, megabytes=0, workers=workers, progress=interrupt_after(6))
    assert "writing was interrupted" in error_of(out)
    complete = {
        path.stem.partition(".")[0]: (out / f"{path.stem.partition('.')[0]}.tar") for path in out.glob("*.part")
    }
    times = {path: path.stat().st_mtime_ns for path in complete.values()}
    assert 0 < len(times) < 12 or workers > 1  # others may have been faster
    written = write_shards(folders, out, megabytes=0, workers=workers)
    assert (written.before, written.missing) == (len(times), ())
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert contents_of(out) == contents_of(tmp_path / "whole")


def test_killed_writing_is_reported_and_can_be_repeated(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    (tmp_path / "out" / "index.json").rename(tmp_path / "out" / "index.json.partial")  # killed before the last step
    assert "writing was interrupted" in error_of(tmp_path / "out")
    write_shards(folders, tmp_path / "out")
    assert open_data(tmp_path / "out").classes == folders.classes


def test_a_folder_that_another_process_writes_is_rejected(
    folders: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vitkit.data.shard_folder.PATIENCE", 0.05)
    errors = []

    def meanwhile(items, total, what):
        for item in items:
            with pytest.raises(DataError, match="being written by another process") as refused:
                write_shards(folders, tmp_path / "shards")
            errors.append(refused)
            yield item

    write_shards(folders, tmp_path / "shards", progress=meanwhile)
    assert errors
    shards = open_data(tmp_path / "shards")
    assert {name: len(split) for name, split in shards.splits.items()} == {
        name: len(split) for name, split in folders.splits.items()
    }


def test_nothing_is_overwritten(folders: Data, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match="is not empty"):
        write_shards(folders, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_truncated_and_missing_shards_are_an_error(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    shard = tmp_path / "out" / "train-000000.tar"
    content = shard.read_bytes()
    part = open_data(tmp_path / "out").splits["train"]
    shard.write_bytes(content[:600])
    assert "train-000000.tar is incomplete" in error_of(tmp_path / "out")
    with pytest.raises(DataError, match=r"train/übung/1.png cannot be read: train-000000.tar ends before"):
        part.read(len(part) - 1)
    shard.unlink()
    assert "train-000000.tar is missing" in error_of(tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(version=3),
        lambda index: index.update(splits=3),
        lambda index: index.update(classes=["cat"]),
        lambda index: index["splits"]["train"].update(count=2),
        lambda index: index["splits"]["train"]["shards"][0].update(name="../secret.tar"),
        lambda index: index["splits"].update(holdout=index["splits"].pop("test")),
        lambda index: index.pop("multilabel"),
    ],
)
def test_a_damaged_index_is_an_error(change, folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    path = tmp_path / "out" / "index.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))
    assert str(tmp_path) in error_of(tmp_path / "out")


@pytest.mark.parametrize("lost", ["index.json", "index.npz"])
def test_half_an_index_is_an_error_and_classes_do_not_become_numbers(lost: str, folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    (tmp_path / "out" / lost).unlink()
    assert "the index of these shards is damaged" in error_of(tmp_path / "out")


def test_a_split_is_pickled_without_its_open_files(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    part = open_data(tmp_path / "out").splits["train"]
    part.read(0)
    assert pickle.loads(pickle.dumps(part)).read(3) == part.read(3)


def test_shards_without_their_index_are_read_as_webdataset_files(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    data = open_tars("out", str(tmp_path / "out"), sorted(path.name for path in (tmp_path / "out").glob("*.tar")))
    for split, part in folders.splits.items():
        loaded = data.splits[split]
        assert [loaded.read(index) for index in range(len(part))] == [part.read(index) for index in range(len(part))]
        assert [data.classes[label] for label in loaded.labels] == [str(label) for label in part.labels]


NAMES = st.text(
    st.characters(exclude_characters="/\0"), min_size=1, max_size=12
)  # surrogates, too: bytes of file names


@st.composite
def described(draw: st.DrawFn) -> Data:
    """Draw data of a few images with any names, labels and groups; the images are empty arrays of one pixel."""
    classes = tuple(sorted({nfc(name) for name in draw(st.sets(st.text("abü汉", min_size=1, max_size=3), min_size=1))}))
    multilabel, grouped, splits = draw(st.booleans()), draw(st.booleans()), {}
    for name in draw(st.sampled_from([("all",), ("train", "test")])):
        keys = draw(st.lists(NAMES, min_size=1, max_size=9))
        numbers = st.integers(0, len(classes) - 1)
        labels = (
            SparseLabels.from_rows(draw(st.tuples(*[st.sets(numbers) for _ in keys])), len(classes))
            if multilabel
            else np.array(draw(st.tuples(*[st.just(-1) | numbers for _ in keys])), np.int64)
        )
        groups = np.array(draw(st.tuples(*[st.integers(0, 5) for _ in keys]))) if grouped else None
        store = Pixels(len(keys))
        splits[name] = Split(PackedStrings(keys), labels, store, np.arange(len(keys)), groups)
    return Data("drawn", "arrays", classes, splits, (), multilabel)


class Pixels:
    def __init__(self, count: int) -> None:
        self.count = count

    def read(self, row: int) -> np.ndarray:
        return np.full((1, 1, 1), row, np.uint8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=described())
def test_an_index_and_the_compressed_one_of_earlier_versions_give_what_was_written(data: Data):
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder) / "new"
        write_shards(data, new, workers=1)
        old = Path(folder) / "old"
        shutil.copytree(new, old)
        with np.load(new / "index.npz") as arrays:  # numpy reads what vitkit maps
            members = dict(arrays)
        # as earlier versions wrote it: compressed, and all integers of 64 bits
        members = {name: a.astype(np.int64) if name.endswith("shard") else a for name, a in members.items()}
        (old / "index.npz").unlink()
        np.savez_compressed(old / "index.npz", **members)
        for read in (open_data(new), open_data(old)):
            assert (read.classes, read.multilabel, list(read.splits)) == (data.classes, data.multilabel, [*data.splits])
            for name, split in data.splits.items():
                part = read.splits[name]
                assert list(part.keys) == list(split.keys)
                if isinstance(split.labels, SparseLabels):
                    assert part.labels == split.labels
                else:
                    np.testing.assert_array_equal(part.labels, split.labels)
                assert (part.groups is None) == (split.groups is None)
                if split.groups is not None:
                    np.testing.assert_array_equal(part.groups, split.groups)
                assert [int(part.read(row)[0, 0, 0]) for row in range(len(part))] == list(range(len(split)))
                assert fingerprint(read, name) == fingerprint(data, name)


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=60), limit=st.integers(0, 20_000), data=st.data())
def test_tar_files_are_cut_where_the_next_image_would_pass_the_limit(sizes: list[int], limit: int, data):
    labels = np.array(data.draw(st.tuples(*[st.just(0) | st.just(1024) for _ in sizes])), np.int64)
    cuts = [0]
    position = 0  # as a writer goes that sees one image after another
    for index, size in enumerate(sizes):
        if index > cuts[-1] and position + size > limit:
            cuts.append(index)
            position = 0
        position += 512 + -(-size // 512) * 512 + int(labels[index])
    assert _cuts(np.array(sizes), lambda block: labels[block], limit) == [*cuts, len(sizes)]


def test_the_index_is_mapped_and_numbers_begin_where_a_processor_reads_them_at_once(folders: Data, tmp_path: Path):
    write_shards(folders, tmp_path / "out")
    part = open_data(tmp_path / "out").splits["train"]
    for array in (part.labels, part.store.offset, part.store.size, part.keys.stops, part.keys.text):
        assert not array.flags.owndata
        assert not array.flags.writeable  # pages of the file
        assert array.ctypes.data % 64 == 0


def test_a_full_disk_is_an_error_and_the_same_command_continues(folders: Data, tmp_path: Path, monkeypatch):
    write_shards(folders, tmp_path / "whole", megabytes=0)
    add, written = shard_tar.TarWriter._add, []

    def add_until_full(*arguments):
        if len(written) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(add(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(shard_tar.TarWriter, "_add", add_until_full)
        with pytest.raises(DataError, match=r"No space left on device(.|\n)*the same command again: 5 of 12 tar files"):
            write_shards(folders, tmp_path / "out", megabytes=0, workers=1)
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".vitkit")]
    assert write_shards(folders, tmp_path / "out", megabytes=0).before == 5
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "whole")
