"""What hurts training is found and named; what does not, is not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.conftest import FIXTURES
from tests.data.images import bombs, encode, oriented, scene
from vitkit.cli.main import main
from vitkit.data.check import Report, check
from vitkit.data.duplicates import near
from vitkit.data.facts import Facts, Memory, find_facts
from vitkit.data.partition import stratified
from vitkit.data.report import print_report
from vitkit.data.sources.open import open_data


def view(seed: int, size: int = 48) -> np.ndarray:
    """A random smooth picture; two seeds look nothing alike."""
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


def look(root: Path) -> Report:
    return check(open_data(root), memory=Memory(root.parent / "facts.sqlite"))


def test_sound_data_has_nothing_that_hurts(photos: Path):
    report = look(photos)
    assert report.problems == []
    assert report.bad == []
    assert report.leaks == []
    assert report.pictures == {"train": 24, "test": 8}
    assert report.per_class["train"] == {"cat": 12, "dog": 12}
    assert report.sizes["median"] == [48, 48]


def test_pictures_that_are_slow_to_read_are_told(photos: Path):
    assert not any("megapixels" in remark for remark in look(photos).remarks)
    large = encode(Image.new("RGB", (4000, 3000)), "JPEG")
    for index in range(33):
        (photos / "train" / "cat" / f"large-{index}.jpg").write_bytes(large)
    [told] = [remark for remark in look(photos).remarks if "megapixels" in remark]
    assert "more than 12 megapixels" in told
    assert "vitkit shard DATA small/ --side 512" in told
    for path in (photos / "train" / "cat").glob("large-*.jpg"):
        path.unlink()
        np.save(path.with_suffix(".npy"), np.zeros((2100, 2000), dtype=np.uint16))  # which no JPEG can hold
    assert not any("megapixels" in remark for remark in look(photos).remarks)


def test_bad_files_are_named_with_their_reasons(photos: Path):
    for name, content in {
        "empty.jpg": b"",
        "text.jpg": b"hello",
        "half.jpg": encode(view(1), "JPEG")[:300],
        "bomb.png": bombs()["png"],
    }.items():
        (photos / "train" / "cat" / name).write_bytes(content)
    (photos / "train" / "cat" / "png.jpg").write_bytes(encode(view(999), "PNG"))
    report = look(photos)
    reasons = {Path(key).name: reason for key, reason in report.bad}
    assert reasons.keys() == {"empty.jpg", "text.jpg", "half.jpg", "bomb.png"}
    assert reasons["empty.jpg"] == "empty file"
    assert "not a picture" in reasons["text.jpg"]
    assert "runcated" in reasons["half.jpg"]
    assert "over the limit" in reasons["bomb.png"]
    assert report.problems == ["4 of 37 pictures cannot be decoded"]


def test_leaks_between_splits_are_found_in_any_coat(photos: Path):
    original = view(500)
    (photos / "train" / "cat" / "same.png").write_bytes(encode(original, "PNG"))
    (photos / "test" / "cat" / "same.bmp").write_bytes(encode(original, "BMP"))
    (photos / "train" / "dog" / "near.png").write_bytes(encode(view(501), "PNG"))
    brighter = np.clip(view(501).astype(int) + 6, 0, 255).astype(np.uint8)
    smaller = Image.fromarray(brighter).resize((40, 40), Image.Resampling.BICUBIC)
    (photos / "test" / "dog" / "near.jpg").write_bytes(encode(smaller, "JPEG", quality=80))
    report = look(photos)
    assert {(Path(one).name, Path(other).name, how) for one, other, how in report.leaks} == {
        ("same.png", "same.bmp", "identical"),
        ("near.png", "near.jpg", "nearly identical"),
    }
    assert any("stand in two splits" in problem for problem in report.problems)


def test_one_picture_under_two_classes_is_a_conflict(photos: Path):
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "train" / "dog" / "copy.png")
    report = look(photos)
    assert len(report.conflicts) == 1
    assert any("under different classes" in problem for problem in report.problems)


def test_copies_within_a_split_are_worth_knowing_but_do_not_hurt(photos: Path):
    shutil.copy(photos / "train" / "cat" / "0.png", photos / "train" / "cat" / "copy.png")
    report = look(photos)
    assert report.problems == []
    assert [tuple(Path(key).name for key in group) for group in report.duplicates] == [("0.png", "copy.png")]


def test_odd_storage_is_counted_and_read(photos: Path):
    folder = photos / "train" / "cat"
    (folder / "cmyk.jpg").write_bytes(encode(Image.fromarray(scene()).convert("CMYK"), "JPEG"))
    (folder / "turned.jpg").write_bytes(oriented("JPEG", 6))
    (folder / "deep.png").write_bytes(encode(np.arange(400, dtype=np.uint16).reshape(20, 20), "PNG"))
    report = look(photos)
    assert report.odd == {"CMYK": 1, "16-bit": 1, "turned upright by Exif": 1}
    assert report.bad == []


def test_classes_that_cannot_be_learned_or_are_few_are_named(photos: Path, capsys: pytest.CaptureFixture[str]):
    for split, count in (("test", 2), ("train", 0)):
        (photos / split / "bird").mkdir()
        for index in range(count):
            (photos / split / "bird" / f"{index}.png").write_bytes(encode(view(700 + index), "PNG"))
    report = look(photos)
    told = "train has no picture of bird, which cannot be learned"
    assert told in report.problems
    assert told not in report.remarks  # the data's own note, once is enough
    print_report(report)
    assert "train: 12 pictures each, 1 class absent" in capsys.readouterr().out


def test_imbalance_is_stated(photos: Path):
    for index in range(12, 140):
        (photos / "train" / "dog" / f"{index}.png").write_bytes(encode(view(1000 + index, 16), "PNG"))
    for index in range(1, 12):
        (photos / "train" / "cat" / f"{index}.png").unlink()
    remarks = " ".join(look(photos).remarks)
    assert "the largest class of train has 140 times the pictures of the smallest" in remarks
    assert "1 class has fewer than 10 pictures in train: cat" in remarks


def test_a_second_look_decodes_nothing(photos: Path, monkeypatch: pytest.MonkeyPatch):
    first = look(photos)
    moved = photos.rename(photos.with_name("moved"))  # content counts, not place
    monkeypatch.setattr("vitkit.data.facts.find_facts", lambda *_: pytest.fail("decoded again"))
    second = look(moved)
    assert second.sizes == first.sizes


def test_a_memory_that_is_damaged_or_nowhere_costs_only_time(photos: Path, tmp_path: Path):
    (tmp_path / "bad.sqlite").write_bytes(b"not a database at all, but long enough to be read as one" * 20)
    for path in (tmp_path / "bad.sqlite", Path("/proc/no/such/place.sqlite")):
        assert check(open_data(photos), memory=Memory(path)).problems == []


def test_different_pictures_are_not_near():
    facts = [find_facts(encode(view(seed), "PNG"), 3) for seed in range(200)]
    assert near(facts, ["train", "test"] * 100) == []


def test_thousands_of_alike_pictures_are_matched_once_each():
    rng = np.random.default_rng(0)
    base = np.asarray(Image.fromarray(view(5)).convert("L").resize((16, 16))).astype(int)
    frames = [np.clip(base + rng.integers(-1, 2, base.shape), 0, 255).astype(np.uint8) for _ in range(3000)]
    facts = [Facts(pixels=str(index), thumbnail=frame.tobytes().hex()) for index, frame in enumerate(frames)]
    pairs = near(facts, ["train"] * 1500 + ["test"] * 1500)
    assert len(pairs) > 1400
    assert len({one for one, _ in pairs}) == len(pairs)
    assert near(facts, ["train"] * 3000) == []


def test_an_interrupted_look_keeps_what_it_learned(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vitkit.data.check.STRETCH", 10)
    memory = Memory(photos.parent / "facts.sqlite")

    def interrupted(items, total, what):
        for count, item in enumerate(items):
            if count == 15:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        check(open_data(photos), memory=memory, progress=interrupted)
    decoded = []
    monkeypatch.setattr("vitkit.data.facts.find_facts", lambda *given: decoded.append(1) or find_facts(*given))
    look(photos)
    assert len(decoded) <= 32 - 10


def test_a_memory_is_kept_while_others_still_add_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As an interruption has it: threads are not through with what they have begun."""
    monkeypatch.setattr("vitkit.data.facts.find_facts", lambda content, channels: Facts(height=1, width=1))
    memory, wanted = Memory(tmp_path / "facts.sqlite"), [str(number).encode() for number in range(4000)]
    with ThreadPoolExecutor(4) as threads:
        looking = [threads.submit(memory.look_up, content, 3) for content in wanted]
        while not all(look.done() for look in looking):
            memory.save()
    memory.save()
    monkeypatch.setattr("vitkit.data.facts.find_facts", lambda *given: pytest.fail("it was known"))
    again = Memory(tmp_path / "facts.sqlite")
    assert all(again.look_up(content, 3).height == 1 for content in wanted)


def test_a_picture_that_failed_is_tried_again(photos: Path, monkeypatch: pytest.MonkeyPatch):
    (photos / "train" / "cat" / "phone.heic").write_bytes((FIXTURES / "scene.heic").read_bytes())
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    assert "vitkit[formats]" in look(photos).bad[0][1]
    monkeypatch.undo()
    pytest.importorskip("pi_heif")
    assert look(photos).bad == []


@pytest.mark.parametrize(("change", "code"), [("nothing", 0), ("a bad file", 1), ("no folder", 2)])
def test_the_exit_code_says_how_it_stands(
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
        assert report["pictures"]["test"] == 8
        assert (report["verdict"] == "fine") == (code == 0)


def test_the_sheet_never_joins_the_data_and_never_costs_the_report(
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


def test_a_sheet_has_an_ending_that_it_is_known_by_again(photos: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(photos), "--sheet", str(photos.parent / "sheet.webp")])
    assert "one that ends in .png or .jpg" in capsys.readouterr().err


def test_the_report_outlives_a_picture_that_pillow_refuses(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(photos.parent)
    Path("check.png").write_bytes(bombs()["png"])
    main(["check", "photos"])
    assert "not a sheet of check's; it stays as it is" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_a_sheet_takes_the_place_of_a_sheet_and_of_nothing_else(
    ending: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(photos.parent)
    mine, theirs = Path(f"mine.{ending}"), Path(f"sheet.{ending}")
    mine.write_bytes(encode(view(1), {"png": "PNG", "jpg": "JPEG"}[ending]))
    before = mine.read_bytes()
    with pytest.raises(SystemExit, match="2"):
        main(["check", "photos", "--sheet", str(mine)])
    assert "not a sheet of check's; it stays as it is" in capsys.readouterr().err
    Path("check.png").write_bytes(before)
    main(["check", "photos"])
    assert "not a sheet of check's; it stays as it is" in capsys.readouterr().out
    assert mine.read_bytes() == Path("check.png").read_bytes() == before
    for _ in range(2):
        main(["check", "photos", "--sheet", str(theirs)])
        assert f"sheet      {theirs}\n" in capsys.readouterr().out


def test_the_report_reads_well_and_the_sheet_shows_each_class(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "cache"))
    sheet = photos.parent / "sheet.png"
    main(["check", str(photos), "--sheet", str(sheet), "--image", "32", "48", "--resize", "letterbox"])
    text = capsys.readouterr().out
    assert "24 train, 8 test" in text
    assert "nothing here would hurt training" in text
    picture = np.asarray(Image.open(sheet).convert("RGB"))
    first_tile = Image.open(sheet).convert("RGB").crop((16, 86, 112, 182))
    assert len(first_tile.getcolors(10_000)) > 200  # a picture is there, not a blank
    assert picture.shape[1] >= 520


def listed(photos: Path, header: str, **cells: str) -> str:
    """A manifest of the pictures in train; `cells` are what stands for each class."""
    rows = "".join(f"train/{name}/{index}.png,{cell}\n" for name, cell in cells.items() for index in range(12))
    (photos / "list.csv").write_text(f"{header}\n{rows}")
    return str(photos / "list.csv")


@pytest.fixture
def told(photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos.parent / "cache"))

    def run(*words: str) -> str:
        main(["check", *words, "--sheet", str(photos.parent / "sheet.png")])
        return capsys.readouterr().out

    return run


def test_without_labels_the_verdict_is_of_pretraining_alone(photos: Path, told: Callable[..., str]):
    source = listed(photos, "filename,breed", cat="Korat", dog="Corgi")
    text = told(source)
    assert "manifest, unlabelled\n" in text
    assert "--label COLUMN takes another of its columns: breed" in text
    assert "nothing here would hurt pre-training; there are no labels to fit" in text
    assert json.loads(told(source, "--json"))["verdict"] == "fine for pre-training, no labels to fit"


def test_a_column_of_labels_is_named(photos: Path, told: Callable[..., str]):
    text = told(listed(photos, "filename,breed", cat="Korat", dog="Corgi"), "--label", "breed")
    assert "manifest, 2 classes\n" in text
    assert "all: 12 pictures each" in text
    assert "nothing here would hurt training" in text


def test_several_labels_to_a_picture_are_called_multi_label(photos: Path, told: Callable[..., str]):
    source = listed(photos, "path,tags", cat="small|quiet", dog="small")
    assert "2 classes, multi-label" in told(source)
    assert json.loads(told(source, "--json"))["multilabel"] is True
    assert "multi-label" not in told(listed(photos, "path,label", cat="cat", dog="dog"))


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), share=st.floats(0.05, 0.5), seed=st.integers(0, 3))
def test_a_stratified_split_takes_each_class_in_proportion(counts: list[int], share: float, seed: int):
    labels = np.repeat(np.arange(len(counts)), counts)
    rest, part = stratified(labels, share, seed)
    assert sorted([*rest, *part]) == list(range(len(labels)))
    for label, count in enumerate(counts):
        taken = (labels[part] == label).sum()
        assert abs(taken - share * count) <= 1
        assert 1 <= taken <= count - 1 or count == 1
    again = stratified(labels, share, seed)
    assert np.array_equal(part, again[1])


def test_a_stratified_split_of_multi_labels_keeps_rare_ones_on_both_sides():
    labels = np.zeros((100, 3), bool)
    labels[:, 0] = True
    labels[:10, 1] = True
    labels[:4, 2] = True
    rest, part = stratified(labels, 0.25, 0)
    assert labels[part].sum(axis=0).tolist() == [len(part), labels[part, 1].sum(), 1]
    assert labels[rest, 2].sum() == 3
