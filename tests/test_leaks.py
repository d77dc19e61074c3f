"""Scores on copies of training images: vitkit's own splits have none, and those of a user are scored without them."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.sample_images import encode
from tests.data.test_duplicates import photo
from vitkit.cli.main import main
from vitkit.data.groups import restore
from vitkit.data.partition import partition
from vitkit.data.sources.open import open_data
from vitkit.run_folder import RunFolder

TINY = ("--weights", "none", "--model", "mu/4", "--image", "16", "--steps", "2", "--batch", "4", "--workers", "0")
CLASSES = ("cat", "dog")


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, seed: int) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(encode(photo(seed, 80, 70), "JPEG"))


def read(path: str) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def evaluate(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main(["evaluate", *arguments, "--workers", "0", "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def copied() -> str:
    """Write 20 photos, each with a copy under another name."""
    for seed in range(20):
        write(f"photos/{CLASSES[seed % 2]}/{seed}.jpg", seed)
        shutil.copy(f"photos/{CLASSES[seed % 2]}/{seed}.jpg", f"photos/{CLASSES[seed % 2]}/{seed} (copy).jpg")
    return "photos"


@pytest.fixture
def leaking() -> str:
    """Write train and test folders; of 8 test images, 4 are training images and 1 is a mirrored one."""
    for seed in range(12):
        write(f"photos/train/{CLASSES[seed % 2]}/{seed}.jpg", seed)
    for seed in (0, 1, 2, 3, 20, 21, 22):
        write(f"photos/test/{CLASSES[seed % 2]}/{seed}.jpg", seed)
    mirrored = photo(4, 80, 70).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    Path("photos/test/cat/mirrored.png").write_bytes(encode(mirrored, "PNG"))
    return "photos"


def test_the_images_of_a_held_out_score_have_no_copy_in_training(copied: str, capsys: pytest.CaptureFixture[str]):
    main(["fit", copied, *TINY, "--set", "dev=0.25", "--out", "run"])
    printed = capsys.readouterr().out
    assert "copies    20 images are copies of others (20 identical); copies stay on one side of every split" in printed
    assert "on 8 images not used in training" in printed
    run = RunFolder(Path("run"))
    kept = restore(open_data(copied), run.record()["together"]).data
    splits = partition(kept, **run.config().partition)
    sides = [splits.train, splits.validation, splits.test]
    names = [{key.split("/")[1].removesuffix(".jpg").removesuffix(" (copy)") for key in side.keys} for side in sides]
    assert list(map(len, names)) == [side_images // 2 for side_images in map(len, sides)]
    assert not names[0] & names[1] | names[0] & names[2] | names[1] & names[2]
    first = read("run/evaluation.json")
    assert first["leaked"] is None
    again = evaluate("run", copied, capsys=capsys)  # without a fingerprint of any image
    assert again["images"] == 8
    assert again["top1"] == first["top1"]
    assert again["loss"] == pytest.approx(first["loss"])


def test_a_resumed_run_has_the_split_it_was_started_with(
    copied: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    main(["fit", copied, *TINY, "--out", "run"])
    first = read("run/evaluation.json")
    Path("run/report.html").unlink()
    monkeypatch.setattr("vitkit.run_dataset.keep_together", lambda *_, **__: pytest.fail("searched again"))
    capsys.readouterr()
    main(["resume", "run"])
    assert "20 images are copies of others" in capsys.readouterr().out
    assert read("run/evaluation.json")["loss"] == first["loss"]


def test_copies_in_the_test_folder_of_a_user_are_warned_about_and_scored_apart(
    leaking: str, capsys: pytest.CaptureFixture[str]
):
    main(["fit", leaking, *TINY, "--out", "run"])
    printed = capsys.readouterr().out
    copies = "5 are copies of training images (4 identical, 1 nearly identical)"
    assert f"warning   of 8 test images, {copies}: a score on them says little" in printed
    assert f"on 8 images, of which {copies}; " in printed
    assert "not used in training" not in printed
    evaluation = read("run/evaluation.json")
    leaked = evaluation["leaked"]
    assert (evaluation["images"], leaked["identical"], leaked["nearly_identical"], leaked["others"]) == (8, 4, 1, 3)
    for name in ("report.html", "README.md"):
        page = Path("run", name).read_text(encoding="utf-8")
        assert copies in page.replace("\\", "")
        assert f"{100 * leaked['top1']['value']:.1f} %".replace("100.0", "100") in page
        assert f"{100 * evaluation['top1']['value']:.1f} %".replace("100.0", "100") in page
    assert evaluate("run", leaking, capsys=capsys)["leaked"] == leaked
    # the score without leaked images is that of a folder that has only the others
    for name in ("cat/0.jpg", "cat/2.jpg", "dog/1.jpg", "dog/3.jpg", "cat/mirrored.png"):
        Path("photos/test", name).unlink()
    others = evaluate("run", leaking, capsys=capsys)
    assert others["images"] == 3
    assert others["leaked"] is None
    assert others["top1"] == leaked["top1"]
    assert others["macro_f1"]["value"] == pytest.approx(leaked["macro_f1"]["value"])


def test_a_test_folder_of_training_leave_out_masks_has_no_other_score(capsys: pytest.CaptureFixture[str]):
    for seed in range(8):
        for split in ("train", "test"):
            write(f"photos/{split}/{CLASSES[seed % 2]}/{seed}.jpg", seed)
    main(["fit", "photos", *TINY, "--out", "run"])
    assert "8 are copies of training images (8 identical); no other image could be scored" in capsys.readouterr().out
    assert read("run/evaluation.json")["leaked"]["top1"] is None
    assert "all of them are copies of training images" in Path("run/report.html").read_text(encoding="utf-8")


def test_where_copies_are_ignored_the_score_does_not_claim_that_there_are_none(
    copied: str, capsys: pytest.CaptureFixture[str]
):
    main(["fit", copied, *TINY, "--set", "duplicates=ignore", "--out", "run"])
    printed = capsys.readouterr().out
    assert "copies    not looked for (duplicates = ignore)" in printed
    assert "on 8 images; copies of training images may be among them" in printed


def test_groups_of_the_user_are_held_out_as_a_whole(capsys: pytest.CaptureFixture[str]):
    for seed in range(24):
        write(f"photos/{CLASSES[seed % 2]}/patient{seed // 2 % 6}_{seed}.jpg", seed)
    main(["fit", "photos", *TINY, "--set", r"group=(patient\d+)", "--out", "run"])
    assert r"6 groups of 4 images by (patient\d+), each on one side of every split" in capsys.readouterr().out
    run = RunFolder(Path("run"))
    splits = partition(restore(open_data("photos"), run.record()["together"]).data, **run.config().partition)
    patients = [{key.split("patient")[1][0] for key in side.keys} for side in (splits.train, splits.test)]
    assert patients[0] | patients[1] == set("012345")
    assert not patients[0] & patients[1]


@pytest.mark.parametrize("command", [("fit",), ("pretrain",)])
def test_a_group_that_changes_nothing_is_an_error(
    command: tuple[str, ...], copied: str, capsys: pytest.CaptureFixture[str]
):
    pattern = "nobody" if command == ("fit",) else "cat"
    with pytest.raises(SystemExit, match="2"):
        main([*command, copied, "--model", "mu/4", "--image", "16", "--set", f"group={pattern}", *TINY[:2]])
    message = capsys.readouterr().err
    assert ("matches no image of photos" if command == ("fit",) else "group would change nothing here") in message


def test_a_probe_keeps_copies_together_and_warns_about_leaks(
    leaking: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    main(["fit", leaking, *TINY, "--out", "run"])
    with caplog.at_level(logging.WARNING, "vitkit"):
        main(["probe", "run", leaking, "--method", "linear", "--workers", "0"])
    assert "of 8 test images, 5 are copies of training images" in caplog.text


def test_the_images_by_which_a_linear_probe_chooses_are_no_copies():
    from vitkit.compute.features import Features
    from vitkit.data.sources.dataset import PackedStrings
    from vitkit.evaluate.linear import hold_out_dev

    labels, groups = np.repeat([0, 1], 20), np.arange(40) // 2
    features = Features(np.zeros((40, 3), np.float32), labels, PackedStrings(map(str, range(40))), groups=groups)
    fit, dev = hold_out_dev(features)
    assert len(dev) == 8
    assert not {int(key) // 2 for key in fit.keys} & {int(key) // 2 for key in dev.keys}
