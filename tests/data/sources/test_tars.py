"""Tar files that others wrote: Python's tarfile here, webdataset's conventions."""

from __future__ import annotations

import io
import json
import tarfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sources.sample_sources import png, write_files
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data


def packed(path: Path, members: dict[str, bytes], mode: str = "w", **options: int) -> Path:
    with tarfile.open(path, mode, **options) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def error_of(source: object) -> str:
    with pytest.raises(DataError) as error:
        open_data(source)
    return str(error.value)


def with_sidecars(ending: str, labels: list[str]) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    for number, label in enumerate(labels):
        members |= {f"k{number}.png": png(number), f"k{number}.{ending}": label.encode()}
    return members


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    ("ending", "labels", "classes"),
    [
        ("cls", ["1", "10", "2", "1"], ("1", "2", "10")),
        ("cls", ["dog", "cat\n", "dog", "ant"], ("ant", "cat", "dog")),
        (
            "json",
            ['{"label": "dog"}', '{"label": 7}', '{"cls": "cat"}', '{"label": null, "cls": 3}'],
            ("3", "7", "cat", "dog"),
        ),
        ("txt", ["dog", "cat", "dog", "cat"], ("cat", "dog")),
    ],
)
def test_labels_are_read_from_sidecar_files(
    ending: str, labels: list[str], classes: tuple, format: int, tmp_path: Path
):
    data = open_data(packed(tmp_path / "a.tar", with_sidecars(ending, labels), format=format))
    part = data.splits["all"]
    assert (data.kind, data.classes) == ("shards", classes)
    named = [
        str(next(filter(None, json.loads(label).values()))) if ending == "json" else label.strip() for label in labels
    ]
    assert [data.classes[label] for label in part.labels] == named
    assert [part.read(index) for index in range(4)] == [png(number) for number in range(4)]
    assert part.keys[1] == "a.tar/k1.png"


@pytest.mark.parametrize("ending", ["cls", "json", "txt"])
def test_labels_in_either_unicode_form_are_one_class(ending: str, tmp_path: Path):
    words = [unicodedata.normalize(form, name) for form in ("NFC", "NFD") for name in ("Übung", "고양이")]
    texts = [json.dumps({"label": word}) if ending == "json" else word for word in words]
    data = open_data(packed(tmp_path / "a.tar", with_sidecars(ending, texts)))
    assert data.classes == ("Übung", "고양이")
    assert data.splits["all"].labels.tolist() == [0, 1, 0, 1]


def test_captions_are_not_read_as_classes(tmp_path: Path):
    data = open_data(packed(tmp_path / "a.tar", with_sidecars("txt", ["a cat on a mat", "a dog", "two birds"])))
    assert data.classes == ()
    assert any("captions, not classes" in note for note in data.notes)


def test_splits_are_recognised_in_tar_file_names(tmp_path: Path):
    packed(tmp_path / "pets-train-0001.tar", with_sidecars("cls", ["cat", "dog"]))
    packed(tmp_path / "pets-train-0000.tar", with_sidecars("cls", ["dog", "dog"]))
    packed(tmp_path / "pets-val-0000.tar", with_sidecars("cls", ["cat"]))
    data = open_data(tmp_path)
    assert {name: part.labels.tolist() for name, part in data.splits.items()} == {"train": [1, 1, 0, 1], "val": [0]}


def test_folders_inside_a_tar_file_read_like_folders(tmp_path: Path):
    long = "n" * 200
    data = open_data(
        packed(
            tmp_path / "pets.tar",
            {
                "./test/dog/1.png": png(1),
                "./trainval/dog/2.png": png(2),
                f"./trainval/cat/{long}.png": png(3),
                "./trainval/cat/._x.png": b"",
                "./readme.md": b"",
            },
        )
    )
    assert data.classes == ("cat", "dog")
    assert {name: list(part.keys) for name, part in data.splits.items()} == {
        "trainval": [f"pets.tar/trainval/cat/{long}.png", "pets.tar/trainval/dog/2.png"],
        "test": ["pets.tar/test/dog/1.png"],
    }
    assert data.splits["trainval"].read(0) == png(3)
    assert "not images, skipped: 1 .md file" in data.notes


def test_an_archive_next_to_its_unpacked_images_is_ignored(tmp_path: Path):
    packed(tmp_path / "pets.tar", with_sidecars("cls", ["1", "2"]))
    write_files(tmp_path, {"cat/1.png": png(1), "dog/1.png": png(2)})
    data = open_data(tmp_path)
    assert (data.kind, data.classes) == ("class folders", ("cat", "dog"))
    assert "not images, skipped: 1 .tar file" in data.notes


def test_links_are_skipped_and_noted(tmp_path: Path):
    packed(tmp_path / "a.tar", {"a/1.png": png(1), "b/1.png": png(2)})
    with tarfile.open(tmp_path / "a.tar", "a") as tar:
        entry = tarfile.TarInfo("b/passwd.png")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(entry)
    data = open_data(tmp_path / "a.tar")
    assert len(data.splits["all"]) == 2
    assert any("b/passwd.png is a link" in note for note in data.notes)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.bin": b"1"}, "1 .bin file"),
        ({}, "no files"),
        ({"a.png": b"", "a.json": b"{"}, "a.json is not JSON"),
        ({"a.png": b"", "a.json": b'{"label": [1]}'}, "neither text nor an integer"),
        ({"a.left.png": b"", "a.right.png": b"", "a.cls": b"1"}, "more than one image"),
    ],
)
def test_unusable_tar_files_are_an_error_that_says_why(members: dict[str, bytes], message: str, tmp_path: Path):
    assert message in error_of(packed(tmp_path / "a.tar", members))


def test_compressed_tar_files_are_an_error(tmp_path: Path):
    assert "is compressed" in error_of(packed(tmp_path / "a.tar.gz", with_sidecars("cls", ["1"]), "w:gz"))
    assert "is compressed" in error_of(packed(tmp_path / "a.tar", with_sidecars("cls", ["1"]), "w:xz"))


def test_a_file_that_is_not_a_tar_file_is_an_error(tmp_path: Path):
    for content in (b"", b"hello", bytes(100), b"x" * 2_000):
        (tmp_path / "a.tar").write_bytes(content)
        assert str(tmp_path) in error_of(tmp_path / "a.tar")


@given(share=st.floats(0.01, 0.99))
def test_a_truncated_file_is_an_error_or_noted(tmp_path_factory, share: float):
    folder = tmp_path_factory.mktemp("cut")
    content = packed(
        folder / "a.tar", with_sidecars("cls", ["cat", "dog", "cat"]), format=tarfile.USTAR_FORMAT
    ).read_bytes()
    stripped = content.rstrip(b"\0")
    (folder / "a.tar").write_bytes(stripped[: int(len(stripped) * share)])
    try:
        message = " ".join(open_data(folder / "a.tar").notes)
    except DataError as error:
        message = str(error)
    assert "is incomplete" in message or "is damaged" in message or "it may be truncated" in message


def test_a_damaged_header_in_the_middle_is_an_error(tmp_path: Path):
    path = packed(tmp_path / "a.tar", with_sidecars("cls", ["cat", "dog", "cat"]), format=tarfile.USTAR_FORMAT)
    content = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        start = tar.getmember("k1.png").offset
    content[start + 150] ^= 0xFF  # in the checksum
    path.write_bytes(content)
    assert f"is damaged {start:,} bytes from its start" in error_of(path)


def test_pets160_opens_without_unpacking(shared: Path):
    data = open_data(shared / "data" / "pets160.tar")
    assert len(data.classes) == 37
    assert {name: len(part) for name, part in data.splits.items()} == {"trainval": 3680, "test": 3669}


@pytest.mark.parametrize("path", ["/1.png", "/cat/1.png", "../cat/1.png", "cat/../1.png", "C:/cat/1.png", "cat//1.png"])
def test_a_path_that_is_not_inside_the_archive_is_refused_by_name(path: str, tmp_path: Path):
    assert path in error_of(packed(tmp_path / "a.tar", {"dog/2.png": png(2), path: png(1)}))
