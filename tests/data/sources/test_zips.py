"""Zip files of common tools, and broken ones."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.data.sources.sample_sources import misread_by_threads, png, sample_files, write_files
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(DataError) as error:
        open_data(path)
    return str(error.value)


def test_macos_system_files_are_skipped_and_other_files_are_noted(tmp_path: Path):
    members = {
        "photos/": b"",
        "photos/cat/1.png": png(1),
        "photos/dog/2.png": png(2),
        "photos/dog/notes.txt": b"-",
        "photos/.DS_Store": b"-",
        "__MACOSX/photos/cat/._1.png": b"-",
    }
    data = open_data(packed(tmp_path / "a.zip", members))
    assert (data.kind, data.classes, list(data.splits)) == ("zip file", ("cat", "dog"), ["all"])
    split = data.splits["all"]
    assert list(split.keys) == ["a.zip/photos/cat/1.png", "a.zip/photos/dog/2.png"]
    assert [split.read(0), split.read(1)] == [png(1), png(2)]
    assert any("1 .txt file" in note for note in data.notes)


@pytest.mark.skipif(shutil.which("zip") is None, reason="needs Info-ZIP")
def test_info_zip_files_are_read_and_encrypted_ones_are_an_error(tmp_path: Path):
    write_files(tmp_path / "photos", sample_files())
    for name, options in (("plain.zip", []), ("locked.zip", ["-P", "secret"])):
        subprocess.run(["zip", "-qr", *options, str(tmp_path / name), "."], cwd=tmp_path / "photos", check=True)
    data = open_data(tmp_path / "plain.zip")
    assert {
        key.removeprefix("plain.zip/"): split.read(row)
        for split in data.splits.values()
        for row, key in enumerate(split.keys)
    } == sample_files()
    assert "encrypted with a password" in error_of(tmp_path / "locked.zip")


def test_an_encrypted_zip_file_is_an_error(tmp_path: Path):
    content = bytearray(packed(tmp_path / "a.zip", {"cat/1.png": png(1), "dog/2.png": png(2)}).read_bytes())
    for start, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        content[content.index(start) + place] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert "encrypted with a password" in error_of(tmp_path / "a.zip")


def test_utf_8_names_without_the_flag_are_read(tmp_path: Path):
    path = packed(tmp_path / "a.zip", {"cat/1.png": png(1), "##bung/2.png": png(2)})
    path.write_bytes(path.read_bytes().replace(b"##bung", "übung".encode()))
    assert open_data(path).classes == ("cat", "übung")


def test_backslashes_from_windows_separate_folders(tmp_path: Path):
    members = {f"photos\\{name}\\{number}.png": png(number) for name in ("cat", "dog") for number in range(2)}
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo("x")
            info.filename = name  # set here, because ZipInfo() replaces backslashes on some systems
            archive.writestr(info, content)
    assert b"photos\\cat\\1.png" in (tmp_path / "a.zip").read_bytes()
    assert open_data(tmp_path / "a.zip").classes == ("cat", "dog")


def test_two_members_of_one_name_are_both_read(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for seed, name in enumerate(["cat/1.png", "dog/1.png"]):
            archive.writestr(name, png(seed))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("cat/1.png", png(2))
    split = open_data(tmp_path / "a.zip").splits["all"]
    assert sorted(split.read(row) for row in range(3)) == sorted(map(png, range(3)))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 and no more"])
def test_a_file_that_is_not_a_zip_file_is_an_error(content: bytes, tmp_path: Path):
    (tmp_path / "a.zip").write_bytes(content)
    assert "is not a zip file, or is incomplete" in error_of(tmp_path / "a.zip")


def test_unsupported_compression_is_an_error(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("cat/1.png", png(1))
    assert "uses an unsupported compression method" in error_of(tmp_path / "a.zip")


def test_bytes_before_the_zip_file_do_not_matter(tmp_path: Path):
    """A self-extracting archive has a program there."""
    path = packed(tmp_path / "a.zip", {"cat/1.png": png(1), "dog/2.png": png(2)})
    path.write_bytes(b"MZ and a program" + path.read_bytes())
    split = open_data(path).splits["all"]
    assert [split.read(0), split.read(1)] == [png(1), png(2)]


def test_zip_files_without_images_and_truncated_ones_are_an_error(tmp_path: Path):
    assert "1 .tar file" in error_of(packed(tmp_path / "a.zip", {"photos.tar": b"-"}))
    content = packed(tmp_path / "b.zip", sample_files()).read_bytes()
    (tmp_path / "b.zip").write_bytes(content[:-100])
    assert "is incomplete" in error_of(tmp_path / "b.zip")


def test_a_damaged_image_is_named_and_the_others_are_read(tmp_path: Path):
    path = packed(tmp_path / "a.zip", {"cat/1.png": png(1), "dog/2.png": png(2)})
    content = bytearray(path.read_bytes())
    content[60] ^= 255  # inside the first one
    path.write_bytes(content)
    split = open_data(path).splits["all"]
    with pytest.raises(DataError, match=r"a\.zip/cat/1\.png cannot be read: a\.zip is damaged at this file"):
        split.read(0)
    assert split.read(1) == png(2)


def test_reading_is_thread_safe(tmp_path: Path):
    members = {f"{'ab'[number % 2]}/{number:02d}.png": png(number) for number in range(20)}
    split = open_data(packed(tmp_path / "a.zip", members)).splits["all"]
    assert not misread_by_threads(split, [members[key.removeprefix("a.zip/")] for key in split.keys])


MISPLACED = ["/1.png", "/cat/1.png", "../cat/1.png", "cat/../1.png", "C:/cat/1.png", "C:\\cat\\1.png", "cat//1.png"]


@pytest.mark.parametrize("path", [*MISPLACED, "cat/./1.png", "//host/cat/1.png"])
def test_a_path_that_is_not_inside_the_archive_is_refused_by_name(path: str, tmp_path: Path):
    members = {"dog/2.png": png(2), path: png(1)}
    assert path.replace("\\", "/") in error_of(packed(tmp_path / "a.zip", members))


def test_a_leading_dot_and_folders_of_dots_are_no_such_paths(tmp_path: Path):
    data = open_data(packed(tmp_path / "b.zip", {"dog/2.png": png(2), "./cat/1..png": png(1), "./": b"", "cat//": b""}))
    assert data.classes == ("cat", "dog")
