"""`vitkit check`: problems of the data are found and named, and sound data have none."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import FIXTURES
from tests.data.sample_images import bombs, encode, oriented, scene
from vitkit.cli.main import main
from vitkit.data.check import DataReport, check
from vitkit.data.check_report import print_report
from vitkit.data.image_info import ImageInfo, ImageInfoCache, read_image_info
from vitkit.data.sources.open import open_data


def view(seed: int, size: int = 48) -> np.ndarray:
    """Return a random smooth image; two seeds look nothing alike."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    seed = 0
    for split, count in (("train", 12), ("test", 4)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                (root / split / name / f"{index}.png").write_bytes(encode(view(seed), "PNG"))
                seed += 1
    return root


def check_folder(root: Path) -> DataReport:
    return check(open_data(root), cache=ImageInfoCache(root.parent / "facts.sqlite"))


def test_sound_data_have_no_problems(photos: Path):
    report = check_folder(photos)
    assert report.problems == []
    assert report.bad == []
    assert report.leaks == []
    assert report.images == {"train": 24, "test": 8}
    assert report.per_class["train"] == {"cat": 12, "dog": 12}
    assert report.sizes["median"] == [48, 48]


def test_large_images_that_slow_training_down_are_reported(photos: Path):
    assert not any("megapixels" in remark for remark in check_folder(photos).remarks)
    large = encode(Image.new("RGB", (4000, 3000)), "JPEG")
    for index in range(33):
        (photos / "train" / "cat" / f"large-{index}.jpg").write_bytes(large)
    [remark] = [remark for remark in check_folder(photos).remarks if "megapixels" in remark]
    assert "more than 12 megapixels" in remark
    assert "vitkit shard DATA small/ --side 512" in remark
    for path in (photos / "train" / "cat").glob("large-*.jpg"):
        path.unlink()
        np.save(path.with_suffix(".npy"), np.zeros((2100, 2000), dtype=np.uint16))  # which no JPEG can hold
    assert not any("megapixels" in remark for remark in check_folder(photos).remarks)


def test_bad_files_are_named_with_their_reasons(photos: Path):
    for name, content in {
        "empty.jpg": b"",
        "text.jpg": b"hello",
        "half.jpg": encode(view(1), "JPEG")[:300],
        "bomb.png": bombs()["png"],
    }.items():
        (photos / "train" / "cat" / name).write_bytes(content)
    (photos / "train" / "cat" / "png.jpg").write_bytes(encode(view(999), "PNG"))
    report = check_folder(photos)
    reasons = {Path(key).name: reason for key, reason in report.bad}
    assert reasons.keys() == {"empty.jpg", "text.jpg", "half.jpg", "bomb.png"}
    assert reasons["empty.jpg"] == "empty file"
    assert "not an image" in reasons["text.jpg"]
    assert "runcated" in reasons["half.jpg"]
    assert "over the limit" in reasons["bomb.png"]
    assert report.problems == ["4 of 37 images cannot be decoded"]


def test_leaks_between_splits_are_found_in_any_format(photos: Path):
    original = view(500)
    (photos / "train" / "cat" / "same.png").write_bytes(encode(original, "PNG"))
    (photos / "test" / "cat" / "same.bmp").write_bytes(encode(original, "BMP"))
    (photos / "train" / "dog" / "near.png").write_bytes(encode(view(501), "PNG"))
    brighter = np.clip(view(501).astype(int) + 6, 0, 255).astype(np.uint8)
    smaller = Image.fromarray(brighter).resize((40, 40), Image.Resampling.BICUBIC)
    (photos / "test" / "dog" / "near.jpg").write_bytes(encode(smaller, "JPEG", quality=80))
    report = check_folder(photos)
    assert {(Path(one).name, Path(other).name, how) for one, other, how in report.leaks} == {
        ("same.png", "same.bmp", "identical"),
        ("near.png", "near.jpg", "nearly identical"),
    }
    assert any("in two splits" in problem for problem in report.problems)


def test_one_image_in_two_classes_is_a_conflict(photos: Path):
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "train" / "dog" / "copy.png")
    report = check_folder(photos)
    assert len(report.conflicts) == 1
    assert any("a copy with another label" in problem for problem in report.problems)


def test_duplicates_within_a_split_are_a_remark_not_a_problem(photos: Path):
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "train" / "cat" / "copy.png")
    report = check_folder(photos)
    assert report.problems == []
    assert [tuple(Path(key).name for key in group) for group in report.duplicates] == [("0.png", "copy.png")]


def test_unusual_storage_modes_are_counted_and_decoded(photos: Path):
    folder = photos / "train" / "cat"
    (folder / "cmyk.jpg").write_bytes(encode(Image.fromarray(scene()).convert("CMYK"), "JPEG"))
    (folder / "turned.jpg").write_bytes(oriented("JPEG", 6))
    (folder / "deep.png").write_bytes(encode(np.arange(400, dtype=np.uint16).reshape(20, 20), "PNG"))
    report = check_folder(photos)
    assert report.odd == {"CMYK": 1, "16-bit": 1, "turned upright by Exif": 1}
    assert report.bad == []


def test_classes_without_training_images_are_named(photos: Path, capsys: pytest.CaptureFixture[str]):
    for split, count in (("test", 2), ("train", 0)):
        (photos / split / "bird").mkdir()
        for index in range(count):
            (photos / split / "bird" / f"{index}.png").write_bytes(encode(view(700 + index), "PNG"))
    report = check_folder(photos)
    problem = "train has no image of bird, which cannot be learned"
    assert problem in report.problems
    assert problem not in report.remarks  # the data's own note, once is enough
    print_report(report)
    assert "train: 12 images each, 1 class absent" in capsys.readouterr().out


def test_imbalance_is_reported(photos: Path):
    for index in range(12, 140):
        (photos / "train" / "dog" / f"{index}.png").write_bytes(encode(view(1000 + index, 16), "PNG"))
    for index in range(1, 12):
        (photos / "train" / "cat" / f"{index}.png").unlink()
    remarks = " ".join(check_folder(photos).remarks)
    assert "the largest class of train has 140 times the images of the smallest" in remarks
    assert "1 class has fewer than 10 images in train: cat" in remarks


def test_a_second_check_decodes_nothing(photos: Path, monkeypatch: pytest.MonkeyPatch):
    first = check_folder(photos)
    moved = photos.rename(photos.with_name("moved"))  # the cache is keyed by content, not path
    monkeypatch.setattr("vitkit.data.image_info.read_image_info", lambda *_: pytest.fail("decoded again"))
    second = check_folder(moved)
    assert second.sizes == first.sizes


def test_a_damaged_or_unwritable_cache_does_not_change_the_result(photos: Path, tmp_path: Path):
    (tmp_path / "bad.sqlite").write_bytes(b"not a database at all, but long enough to be read as one" * 20)
    for path in (tmp_path / "bad.sqlite", Path("/proc/no/such/place.sqlite")):
        assert check(open_data(photos), cache=ImageInfoCache(path)).problems == []


def test_copies_within_a_folder_without_splits_are_named(photos: Path, capsys: pytest.CaptureFixture[str]):
    folder = photos / "train"
    shutil.copy(folder / "cat" / "0.png", folder / "cat" / "copy.png")
    smaller = Image.fromarray(view(12)).resize((36, 36), Image.Resampling.BICUBIC)  # of dog/0.png
    (folder / "dog" / "small.jpg").write_bytes(encode(smaller, "JPEG", quality=85))
    report = check_folder(folder)
    assert report.problems == []
    assert report.duplicates == [("cat/0.png", "cat/copy.png")]
    assert report.near_duplicates == [("dog/0.png", "dog/small.jpg")]
    print_report(report)
    printed = capsys.readouterr().out
    assert "dog/0.png = dog/small.jpg (nearly identical)" in printed
    assert "1 image is identical to others in their split; fit keeps copies on one side" in printed


def test_an_interrupted_check_keeps_its_cache(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vitkit.data.check.CHUNK", 10)
    cache = ImageInfoCache(photos.parent / "facts.sqlite")

    def interrupted(items, total, what):
        for count, item in enumerate(items):
            if count == 15:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        check(open_data(photos), cache=cache, progress=interrupted)
    decoded = []
    monkeypatch.setattr(
        "vitkit.data.image_info.read_image_info", lambda *args: decoded.append(1) or read_image_info(*args)
    )
    check_folder(photos)
    assert len(decoded) <= 32 - 10


def test_the_cache_is_saved_while_threads_add_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """After an interruption, threads may still be working."""
    monkeypatch.setattr(
        "vitkit.data.image_info.read_image_info", lambda content, channels: ImageInfo(height=1, width=1)
    )
    cache, contents = ImageInfoCache(tmp_path / "facts.sqlite"), [str(number).encode() for number in range(4000)]
    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(cache.lookup, content, 3) for content in contents]
        while not all(future.done() for future in futures):
            cache.save()
    cache.save()
    monkeypatch.setattr("vitkit.data.image_info.read_image_info", lambda *args: pytest.fail("decoded again"))
    reopened = ImageInfoCache(tmp_path / "facts.sqlite")
    assert all(reopened.lookup(content, 3).height == 1 for content in contents)


def test_a_failed_image_is_decoded_again_by_the_next_check(photos: Path, monkeypatch: pytest.MonkeyPatch):
    (photos / "train" / "cat" / "phone.heic").write_bytes((FIXTURES / "scene.heic").read_bytes())
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    assert "vitkit[formats]" in check_folder(photos).bad[0][1]
    monkeypatch.undo()
    pytest.importorskip("pi_heif")
    assert check_folder(photos).bad == []


@pytest.mark.parametrize(("change", "code"), [("nothing", 0), ("a bad file", 1), ("no folder", 2)])
def test_the_exit_code_is_that_of_the_verdict(
    photos: Path, change: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "cache"))
    if change == "a bad file":
        (photos / "train" / "cat" / "bad.jpg").write_bytes(b"bad")
    source = photos if change != "no folder" else photos / "nowhere"
    sheet = photos.parent / "sheet.png"
    if code:
        with pytest.raises(SystemExit) as stopped:
            main(["check", str(source), "--sheet", str(sheet), "--json"])
        assert stopped.value.code == code
    else:
        main(["check", str(source), "--sheet", str(sheet), "--json"])
    assert sheet.exists() == (code != 2)
    if code != 2:
        report = json.loads(capsys.readouterr().out)
        assert report["images"]["test"] == 8
        assert (report["verdict"] == "fine") == (code == 0)


def test_the_contact_sheet_is_written_outside_the_data_and_may_fail(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "cache"))
    monkeypatch.chdir(photos)
    main(["check", "."])
    assert (photos.parent / "check.png").exists()
    assert not (photos / "check.png").exists()
    capsys.readouterr()
    main(["check", ".", "--sheet", "/proc/no/such/sheet.png"])
    text = capsys.readouterr().out
    assert "24 train, 8 test" in text
    assert "could not be written" in text


def test_a_contact_sheet_has_to_be_png_or_jpeg(photos: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(photos), "--sheet", str(photos.parent / "sheet.webp")])
    assert "a name that ends in .png or .jpg" in capsys.readouterr().err


def test_the_report_is_printed_even_if_check_png_is_a_decompression_bomb(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(photos.parent)
    Path("check.png").write_bytes(bombs()["png"])
    main(["check", "photos"])
    assert "is not a contact sheet of vitkit check; it stays as it is" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_contact_sheet_overwrites_only_contact_sheets(
    ending: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(photos.parent)
    mine, theirs = Path(f"mine.{ending}"), Path(f"sheet.{ending}")
    mine.write_bytes(encode(view(1), {"png": "PNG", "jpg": "JPEG"}[ending]))
    before = mine.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        main(["check", "photos", "--sheet", str(mine)])
    assert "is not a contact sheet of vitkit check; it stays as it is" in capsys.readouterr().err
    Path("check.png").write_bytes(before)
    main(["check", "photos"])
    assert "is not a contact sheet of vitkit check; it stays as it is" in capsys.readouterr().out
    assert mine.read_bytes() == Path("check.png").read_bytes() == before
    for _ in range(2):
        main(["check", "photos", "--sheet", str(theirs)])
        assert f"sheet      {theirs}\n" in capsys.readouterr().out


def test_the_report_is_printed_and_the_contact_sheet_shows_each_class(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "cache"))
    sheet = photos.parent / "sheet.png"
    main(["check", str(photos), "--sheet", str(sheet), "--image", "32", "48", "--resize", "letterbox"])
    text = capsys.readouterr().out
    assert "24 train, 8 test" in text
    assert "nothing here would hurt training" in text
    image = np.asarray(Image.open(sheet).convert("RGB"))
    first_tile = Image.open(sheet).convert("RGB").crop((16, 86, 112, 182))
    assert len(first_tile.getcolors(10_000)) > 200  # an image, not a blank tile
    assert image.shape[1] >= 520


def listed(photos: Path, header: str, **cells: str) -> str:
    """Write a manifest of the images in train; `cells` are the label of each class."""
    rows = "".join(f"train/{name}/{index}.png,{cell}\n" for name, cell in cells.items() for index in range(12))
    (photos / "list.csv").write_text(f"{header}\n{rows}")
    return str(photos / "list.csv")


@pytest.fixture
def run_check(photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "cache"))

    def run(*arguments: str) -> str:
        main(["check", *arguments, "--sheet", str(photos.parent / "sheet.png")])
        return capsys.readouterr().out

    return run


def test_without_labels_the_verdict_is_about_pretraining(photos: Path, run_check: Callable[..., str]):
    source = listed(photos, "filename,breed", cat="Korat", dog="Corgi")
    text = run_check(source)
    assert "manifest, unlabelled\n" in text
    assert "--label COLUMN uses another column: breed" in text
    assert "nothing here would hurt pre-training; there are no labels to fit" in text
    assert json.loads(run_check(source, "--json"))["verdict"] == "fine for pre-training, no labels to fit"


def test_the_label_column_can_be_named(photos: Path, run_check: Callable[..., str]):
    text = run_check(listed(photos, "filename,breed", cat="Korat", dog="Corgi"), "--label", "breed")
    assert "manifest, 2 classes\n" in text
    assert "all: 12 images each" in text
    assert "nothing here would hurt training" in text


def test_several_labels_per_image_are_reported_as_multi_label(photos: Path, run_check: Callable[..., str]):
    source = listed(photos, "path,tags", cat="small|quiet", dog="small")
    assert "2 classes, multi-label" in run_check(source)
    assert json.loads(run_check(source, "--json"))["multilabel"] is True
    assert "multi-label" not in run_check(listed(photos, "path,label", cat="cat", dog="dog"))
