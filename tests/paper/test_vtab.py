"""`vitkit paper vtab` on three small tasks: the protocol by hand gives the same numbers, and so does a killed run."""

from __future__ import annotations

import io
import json
import shutil
import signal
import statistics
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import vitkit
from tests.cli.test_json import documented
from tests.paper.vtab_tasks_of_our_own import PLAIN, SMALL, make_tasks
from tests.train.runs import Command, last_step
from vitkit.cli.main import main
from vitkit.compute.features import FeatureExtractor
from vitkit.config.resolve import resolve
from vitkit.config.schema import SGD, Augmentation, Schedule
from vitkit.data.sources.open import open_data
from vitkit.paper.vtab_methods import FineTuning
from vitkit.paper.vtab_tasks import find_tasks
from vitkit.run_folder import RunFolder

NAMES = ["colours", "textures", "location"]  # by their groups


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tasks(tmp_path_factory.mktemp("vtab") / "tasks")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "pre"
    vitkit.save(vitkit.create("mu/4", image=16, classes=5), path)
    return path


@pytest.fixture(scope="module")
def finished(tasks: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the command, uninterrupted."""
    out = tmp_path_factory.mktemp("out") / "vtab"
    main(words(tasks, weights, out))
    return out


def words(tasks: Path, weights: Path, out: Path, *more: str) -> list[str]:
    return ["paper", "vtab", str(tasks), "--weights", str(weights), "--out", str(out), *SMALL, *PLAIN, *more]


def result(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "vtab.json").read_text())
    return content


def by_hand(name: str, tasks: Path, weights: Path, out: Path, **augment: object) -> float:
    """Fine-tune on one task with `vitkit.fit`, and count the correct answers without vitkit's scores."""
    data = {"colours": "natural/colours", "textures": "specialized/textures.npz", "location": "location"}[name]
    run = vitkit.fit(
        tasks / data,
        weights=str(weights),
        recipe="vtab_transfer",
        image=24,
        resize="squash",
        steps=12,
        batch=16,
        lr=0.05,
        schedule={"warmup": 2},
        augment={"crop": False, **augment},
        train_on_val=True,
        subset_images=40,
        precision="fp32",
        device="cpu",
        workers=0,
        out=str(out / name),
    )
    opened = open_data(tasks / data)
    test = opened.splits["test"]
    pixels = [test.read(index) for index in range(len(test))]
    answers = run.predict([image if isinstance(image, np.ndarray) else bytes(image) for image in pixels])
    correct = [answer.label == opened.classes[label] for answer, label in zip(answers, test.labels, strict=True)]
    return sum(correct) / len(correct)


def test_the_numbers_by_hand_and_by_the_command_agree(finished: Path, tasks: Path, weights: Path, tmp_path: Path):
    content = result(finished)
    scores = {score["task"]: score for score in content["tasks"]}
    assert [*scores] == NAMES
    expected = {
        "colours": by_hand("colours", tasks, weights, tmp_path, precrop=28),
        "textures": by_hand("textures", tasks, weights, tmp_path, precrop=28),
        "location": by_hand("location", tasks, weights, tmp_path, flip=False),
    }
    assert {name: score["top1"]["value"] for name, score in scores.items()} == pytest.approx(expected, abs=1e-9)
    assert content["mean"] == pytest.approx(statistics.mean(expected.values()))
    groups = {"natural": expected["colours"], "specialized": expected["textures"], "structured": expected["location"]}
    assert content["groups"] == pytest.approx(groups)
    assert [score["trained"] for score in content["tasks"]] == [40, 40, 40]
    assert [score["scored"] for score in content["tasks"]] == [60, 60, 60]
    assert content["complete"]


def test_a_task_of_location_is_neither_cropped_nor_flipped(finished: Path):
    augment = {name: tomllib.loads((finished / name / "config.toml").read_text())["augment"] for name in NAMES}
    assert [(augment[name]["flip"], augment[name].get("precrop")) for name in NAMES] == [
        (True, 28),
        (True, 28),
        (False, None),
    ]
    assert [augment[name]["crop"] for name in NAMES] == [False] * 3
    scores = {score["task"]: (score["crop"], score["flip"]) for score in result(finished)["tasks"]}
    assert scores == {"colours": (True, True), "textures": (True, True), "location": (False, False)}


def test_what_is_not_as_in_the_paper_is_said(finished: Path):
    differs = result(finished)["differs"]
    assert "3 tasks, 0 of them among VTAB's 19" in differs
    for line in ("steps: 2500 → 12", "batch: 512 → 16", "lr: 0.01 → 0.05", "image: [384, 384] → [24, 24]"):
        assert line in differs
    assert any("training examples, not 1,000" in line for line in differs)
    assert not any(line.startswith(("augment", "schedule", "optimizer", "clip", "resize")) for line in differs)


def test_a_killed_command_goes_on_with_the_task_where_it_was(
    finished: Path, tasks: Path, weights: Path, tmp_path: Path
):
    """Killed with -9 in a step of the first task, before its score is written, as the second begins, in its report."""
    out, line = tmp_path / "out", words(tasks, weights, tmp_path / "out", "save_every=3")
    command = Command(line, tmp_path / "step")
    assert command.kill_once(lambda: last_step(out / "colours") >= 7), command.output
    assert not (out / "colours/evaluation.json").exists()
    for dies_at in ("vitkit.paper.vtab:write_record", "vitkit.run:_write_record", "vitkit.run_score:write_report"):
        command = Command(line, tmp_path / dies_at, dies_at=dies_at)
        assert command.wait() == -signal.SIGKILL, command.output
        if dies_at.endswith("vtab:write_record"):
            assert "resumed" in command.output  # in the middle of the first task
            assert not (out / "vtab.json").exists()
    assert not result(out)["complete"]
    command = Command(line, tmp_path / "last")
    assert command.wait() == 0, command.output
    assert "colours is finished" in command.output
    ours, theirs = result(out), result(finished)
    for score in (*ours["tasks"], *theirs["tasks"]):
        score.pop("run")
    assert ours["tasks"] == theirs["tasks"]
    assert (ours["mean"], ours["groups"], ours["differs"]) == (theirs["mean"], theirs["groups"], theirs["differs"])
    for name in NAMES:
        one, other = (vitkit.load(folder / name).state_dict() for folder in (out, finished))
        assert all(torch.equal(one[key], other[key]) for key in other)


def test_the_same_command_again_changes_nothing_and_prints_the_table(
    finished: Path, tasks: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    before = (finished / "vtab.json").read_text()
    main(words(tasks, weights, finished))
    assert (finished / "vtab.json").read_text() == before
    table = capsys.readouterr().out.split("── 3 of 3: location, structured")[1].splitlines()
    content = result(finished)
    (header,) = [line for line in table if line.startswith("task")]
    assert header.split() == "task group classes trained scored top-1 95 % interval".split()
    for score in content["tasks"]:
        (line,) = [line for line in table if line.startswith(f"{score['task']} ")]
        assert f"{100 * score['top1']['value']:.1f} %".replace("100.0", "100") in line
    assert any(line.startswith("all") and "mean of 3 tasks" in line for line in table)


@pytest.mark.parametrize("recorded", ["absolute", "relative"])  # earlier versions wrote paths as they were spelled
def test_the_folder_may_be_spelled_differently_when_the_command_goes_on(
    recorded: str, finished: Path, tasks: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tasks.parent)
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    content = result(out)
    if recorded == "relative":
        for described in content["described"].values():
            described["data"] = str(Path(described["data"]).relative_to(tasks.parent))
        (out / "vtab.json").write_text(json.dumps(content))
    main(words(Path("tasks/../tasks"), weights, out))
    assert result(out)["tasks"][0]["top1"] == content["tasks"][0]["top1"]
    assert result(out)["described"] == result(finished)["described"]


def test_json_has_the_scores_and_nothing_else_is_on_stdout(
    finished: Path, tasks: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    main(words(tasks, weights, finished, "--json"))
    printed = json.loads(capsys.readouterr().out)
    assert printed["experiment"] == "vtab"
    assert printed["verb"] == "paper"
    assert printed.keys() - {"verb", "vitkit"} == documented()["paper vtab"]
    assert printed["tasks"] == result(finished)["tasks"]
    assert printed["mean"] == result(finished)["mean"]


def test_a_run_that_was_killed_before_its_first_step_begins_again(
    finished: Path, tasks: Path, weights: Path, tmp_path: Path
):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "textures")
    (out / "textures").mkdir()
    shutil.copy(finished / "textures/config.toml", out / "textures")  # run.json was not yet written
    main(words(tasks, weights, out))
    assert [score["top1"] for score in result(out)["tasks"]] == [score["top1"] for score in result(finished)["tasks"]]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", ["fine-tune", "linear"])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("tasks", "is"),
        ("tasks/natural/colours", "lies in"),
        ("tasks/results", "lies in"),
        (".", "contains"),
        ("link", "is"),
        ("far", "is"),
    ],
)
def test_results_are_never_among_the_data(
    out: str, message: str, method: str, tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(tasks / "natural/colours", tmp_path / "tasks/dtd")  # directly in it: a run would be tasks/dtd, too
    shutil.copytree(tasks / "natural/colours", tmp_path / "tasks/natural/colours")
    shutil.copytree(tasks / "natural/colours", tmp_path / "far")
    (tmp_path / "tasks/vtab.toml").write_text('[far]\ngroup = "natural"\ndata = "../far"\n')
    (tmp_path / "link").symlink_to(tmp_path / "tasks")
    before = files(tmp_path)
    line = words(tmp_path / "tasks", weights, tmp_path / out)
    if method == "linear":
        line = [*line[: line.index("--image")], "--method", "linear"]
    with pytest.raises(SystemExit, match="2"):
        main(line)
    assert files(tmp_path) == before
    assert f"{tmp_path / out}, {message} {tmp_path}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["photo.jpg", "checkpoints/photo.jpg", "config.toml/photo.jpg"])
def test_files_of_the_user_in_place_of_a_run_are_kept_and_found_before_any_training(
    name: str, tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    photo = tmp_path / "out/location" / name  # the last task
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"a photo")
    if name == "photo.jpg":
        (photo.parent / "config.toml").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        main(words(tasks, weights, tmp_path / "out"))
    assert photo.read_bytes() == b"a photo"
    assert "is not empty; a run needs a folder of its own" in capsys.readouterr().err
    assert not (tmp_path / "out/colours").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--steps", "13"], "steps: 12 → 13"),
        (["--method", "linear"], "method: fine-tune → linear"),
        (["--set", "clip=2"], "clip: the paper's → 2"),
    ],
)
def test_other_settings_in_the_same_folder_are_an_error(
    change: list[str], message: str, finished: Path, tasks: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    plain = words(tasks, weights, finished)
    if "linear" in change:
        plain = ["paper", "vtab", str(tasks), "--weights", str(weights), "--out", str(finished)]
    with pytest.raises(SystemExit, match="2"):
        main([*plain, *change])
    error = capsys.readouterr().err
    assert "was begun with other settings" in error
    assert message in error


def test_a_changed_rule_of_a_task_is_an_error(
    finished: Path, tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out, text = Path(shutil.copytree(finished, tmp_path / "out")), (tasks / "vtab.toml").read_text()
    (tasks / "vtab.toml").write_text(text.replace("flip = false", "flip = true"))
    try:
        with pytest.raises(SystemExit, match="2"):
            main(words(tasks, weights, out))
    finally:
        (tasks / "vtab.toml").write_text(text)
    assert "flip of location: False → True" in capsys.readouterr().err


def test_a_folder_in_use_is_an_error(finished: Path, tasks: Path, weights: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder(finished)
    folder.lock()
    try:
        with pytest.raises(SystemExit, match="2"):
            main(words(tasks, weights, finished))
    finally:
        folder.close()
    assert "is in use by another process" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["fine-tune", "linear"])
def test_without_a_labelled_test_split_val_is_scored_or_images_are_held_out(
    method: str, tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = tasks / "natural/colours"
    for split in ("train", "val"):
        shutil.copytree(source / split, tmp_path / "tasks/natural/birds" / split)
    shutil.copytree(tmp_path / "tasks/natural/birds", tmp_path / "tasks/natural/bugs")
    (tmp_path / "tasks/natural/bugs/test").mkdir()
    for number, path in enumerate(sorted((source / "test").rglob("*.png"))):  # without class folders: no labels
        shutil.copy(path, tmp_path / f"tasks/natural/bugs/test/{number}.png")
    shutil.copytree(source / "train", tmp_path / "tasks/natural/cells")
    line = words(tmp_path / "tasks", weights, tmp_path / "out", "--json")
    if method == "linear":
        line = [*line[: line.index("--image")], "--method", "linear", "--workers", "0", "--set", "subset_images=40"]
        line.append("--json")
    main(line)
    printed = json.loads(capsys.readouterr().out)
    counts = {score["task"]: (score["trained"], score["scored"]) for score in printed["tasks"]}
    assert counts["birds"] == counts["bugs"] == (40, 10)
    assert sum(counts["cells"]) == 40
    assert "no test split with labels, so val was scored and not trained on: birds, bugs" in printed["differs"]
    assert "no test split, so some of the images were held out to be scored: cells" in printed["differs"]
    assert not any(line.startswith("train_on_val") for line in printed["differs"])


# The linear probe


def test_the_linear_probe_is_that_of_scikit_learn_and_is_resumed(
    tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    line = [
        "paper",
        "vtab",
        str(tasks),
        "--weights",
        str(weights),
        "--method",
        "linear",
        "--out",
        str(tmp_path / "out"),
    ]
    line += ["--image", "24", "--device", "cpu", "--workers", "0", "--json"]
    main(line)
    printed = json.loads(capsys.readouterr().out)
    extract = FeatureExtractor(model=vitkit.load(weights, image=24), cache_folder=tmp_path / "features")
    for data, score in zip(("natural/colours", "specialized/textures.npz", "location"), printed["tasks"], strict=True):
        assert (score["trained"], score["scored"]) == (50, 60)  # of train and val together
        train, val, test = (extract(open_data(tasks / data).splits[name]) for name in ("train", "val", "test"))
        values, labels = np.concatenate([train.values, val.values]), np.concatenate([train.labels, val.labels])
        scale = StandardScaler().fit(values.astype(float))
        theirs = LogisticRegression(C=1 / (50 * score["l2"]), max_iter=5000, tol=1e-8)
        theirs.fit(scale.transform(values.astype(float)), labels)
        expected = theirs.score(scale.transform(test.values.astype(float)), test.labels)
        assert score["top1"]["value"] == pytest.approx(expected, abs=1.5 / 60)  # an image on the boundary
    # one task is lost, as if the command had been killed in it: the others are not computed again
    content = result(tmp_path / "out")
    content["tasks"], content["complete"] = content["tasks"][:2], False
    content["tasks"][0]["top1"]["value"] = 0.123  # would be another, if it were
    (tmp_path / "out/vtab.json").write_text(json.dumps(content))
    main(line)
    again = json.loads(capsys.readouterr().out)
    assert again["tasks"][0]["top1"]["value"] == 0.123
    assert again["tasks"][1:] == printed["tasks"][1:]


@pytest.mark.parametrize("content", ["{", "[]", '{"weights": 3}', '{"tasks": [{"task": "colours"}]}'])
def test_a_damaged_file_of_results_is_an_error_in_words(
    content: str, tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "vtab.json").write_text(content)
    with pytest.raises(SystemExit, match="2"):
        main(words(tasks, weights, tmp_path))
    assert "vtab.json" in capsys.readouterr().err


def test_a_mistake_in_the_last_task_is_found_before_the_first_is_trained(
    tasks: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(tasks, tmp_path / "tasks")
    (tmp_path / "tasks/structured").mkdir()
    np.savez(tmp_path / "tasks/structured/zebra.npz", x_train=np.zeros((4, 8, 8), np.uint8))  # no labels
    with pytest.raises(SystemExit, match="2"):
        main(words(tmp_path / "tasks", weights, tmp_path / "out"))
    assert "zebra.npz" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == []


@pytest.mark.parametrize(("model", "side", "precrop"), [("B/16", 384, 448), ("H/14", 378, 441), ("R50x1", 384, 448)])
def test_without_options_the_settings_are_those_of_table_4_and_of_bit(
    model: str, side: int, precrop: int, tasks: Path, tmp_path: Path
):
    found = find_tasks(tasks)
    protocol = FineTuning("none", {"model": model}, found, tmp_path, io.StringIO(), "")
    for task in found:
        config, data, _ = resolve(protocol.settings_of(task), {})
        assert (config.steps, config.lr, config.batch, config.clip) == (2_500, 0.01, 512, 1.0)
        assert config.optimizer == SGD(momentum=0.9, weight_decay=0.0)
        assert config.schedule == Schedule(kind="cosine", warmup=500)
        assert (config.image, config.resize, config.subset_images) == ((side, side), "squash", 1_000)
        assert config.augment == Augmentation(crop=None, precrop=precrop if task.crop else None, flip=task.flip)
        assert len(data.splits["train"]) == 50  # of train and val together
