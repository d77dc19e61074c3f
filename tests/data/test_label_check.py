"""`vitkit check` names what `vitkit fit` refuses; labels that are no classes are recognised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.sources.sample_sources import png, write_files
from vitkit.cli.main import main
from vitkit.data.label_check import label_warnings
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data

TINY = "--weights none --model mu/4 --image 8 --steps 1 --batch 2 --set schedule.warmup=0 --workers 0".split()


def manifest(root: Path, labels: list[object], splits: list[str] | None = None) -> Path:
    """Write a manifest of as many different images as there are labels."""
    write_files(root, {f"{index}.png": png(index) for index in range(len(labels))})
    rows = [f"{index}.png,{label}" for index, label in enumerate(labels)]
    if splits is not None:
        rows = [f"{row},{split}" for row, split in zip(rows, splits, strict=True)]
    (root / "list.csv").write_text("\n".join(["path,label" + ",split" * (splits is not None), *rows]) + "\n")
    return root / "list.csv"


def folder(root: Path, **classes: int) -> Path:
    names = [f"{name.replace('__', '/')}/{index}.png" for name, count in classes.items() for index in range(count)]
    return write_files(root, {name: png(seed) for seed, name in enumerate(names)})


CASES: dict[str, tuple[Callable[[Path], Path], str]] = {  # the data, the first words of fit's refusal
    "unlabelled": (lambda root: folder(root, **{".": 6}), "has no labels to train on"),
    "one class": (lambda root: folder(root, cat=6), "has training images of one class only, cat"),
    "one class in train": (
        lambda root: folder(root, train__cat=6, test__cat=2, test__dog=2),
        "has training images of one class only, cat",
    ),
    "one image a class": (lambda root: folder(root, a=1, b=1, c=1), "3 images, no two of a class, are too few"),
    "a label for each image": (
        lambda root: manifest(root, [f"IMG{index}" for index in range(12)]),
        "each of the 12 images",
    ),
    "fractions": (lambda root: manifest(root, [0.25, 0.5, 0.75, 1.5]), "are numbers, 0.25 to 1.5, that hardly repeat"),
    "whole numbers": (lambda root: manifest(root, [*range(100, 120)]), "are numbers, 100 to 119, that hardly repeat"),
    "numbers with a test split": (
        lambda root: manifest(root, [*range(20)], ["train"] * 15 + ["test"] * 5),
        "this is regression",
    ),
    "no split to train on": (
        lambda root: folder(root, test__cat=3, test__dog=3),
        "has no split to train on",
    ),
    "train is unlabelled": (
        lambda root: manifest(root, [""] * 4 + ["cat", "dog"], ["train"] * 4 + ["test"] * 2),
        "has no labels to train on",
    ),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(list(words))
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("case", CASES)
def test_check_names_what_fit_refuses(case: str, tmp_path: Path, run):
    make, words = CASES[case]
    source = str(make(tmp_path / "photos"))
    code, _, refusal = run("fit", source, *TINY)
    assert code == 2
    assert words in refusal
    code, text, _ = run("check", source, "--json")
    report = json.loads(text)
    first_line = refusal.splitlines()[0].removeprefix("vitkit fit: ")
    assert report["fit_refuses"] == first_line
    if case == "unlabelled":  # good for vitkit pretrain
        assert (code, report["verdict"]) == (0, "fine for pre-training, no labels to fit")
    else:
        assert (code, report["verdict"]) == (1, "would hurt training")
        assert any(first_line in problem for problem in report["problems"])


def test_what_check_finds_nothing_wrong_with_can_be_fitted(tmp_path: Path, run):
    source = str(folder(tmp_path / "photos", cat=12, dog=12))
    assert run("check", source)[0] == 0
    code, output, _ = run("fit", source, *TINY, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "score" in output


@pytest.mark.parametrize(
    "labels",
    [
        [*range(10)] * 12,  # digits
        [1.0, 2.0, 3.0] * 4,  # whole numbers as pandas writes them
        [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5] * 5,  # stars
        ["cat", "dog"] * 5,
    ],
)
def test_numbers_that_repeat_are_classes(labels: list[object], tmp_path: Path):
    data = open_data(manifest(tmp_path, labels))
    partition(data)
    assert list(label_warnings(data)) == []


def test_many_different_numbers_and_names_are_doubted(tmp_path: Path):
    ages = open_data(manifest(tmp_path / "ages", [age for age in range(20, 60) for _ in range(3)]))
    [warning] = label_warnings(ages)
    assert "40 different numbers, 20 to 59: they are learned as names" in warning
    named = open_data(manifest(tmp_path / "named", ["a", *(f"name {index}" for index in range(20)), "a"]))
    [warning] = label_warnings(named)
    assert "most of the 21 classes of all have a single image: are a, name 0, name 1 and 18 more really" in warning


def test_strong_imbalance_is_a_warning_with_the_setting_that_helps(tmp_path: Path, run):
    data = open_data(folder(tmp_path / "photos", common=30, usual=20, rare=3))
    [warning] = label_warnings(data)
    assert "the largest class has 10 times the images of the smallest (common 30, rare 3)" in warning
    assert "--set balance=0.5" in warning
    assert list(label_warnings(data, balance=0.5)) == []
    assert list(label_warnings(open_data(folder(tmp_path / "even", common=29, rare=3)))) == []
    _, output, _ = run("fit", data.name, *TINY, "--out", str(tmp_path / "run"))
    assert f"warning   {warning}\n" in output
    _, output, _ = run("check", data.name)
    assert warning in output


def test_a_class_per_image_with_a_test_split_of_its_own_can_be_learned(tmp_path: Path):
    """One-shot learning: a single training image of each class, and others to score on."""
    names = [f"class{index}" for index in range(12)]
    data = open_data(manifest(tmp_path, names * 2, ["train"] * 12 + ["test"] * 12))
    assert len(partition(data).train) == 12


def test_an_unlabelled_folder_without_training_split_is_a_problem_for_pretraining(tmp_path: Path, run):
    source = str(write_files(tmp_path / "photos", {f"test/{index}.png": png(index) for index in range(4)}))
    with pytest.raises(DataError):
        partition(open_data(source), objective="masked-patch")
    code, output, _ = run("check", source)
    assert code == 1
    assert "vitkit pretrain refuses these data" in output
