"""The command `vitkit evaluate` from arguments to output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from PIL import Image

import vitkit
from tests.evaluate.small_model import as_input, small_model, some_fashion
from tests.report.run_folders import make_evaluation, make_split
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.data.partition import fingerprint, partition, stratified
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.fashion import CLASSES
from vitkit.data.sources.open import open_data
from vitkit.data.sparse_labels import SparseLabels
from vitkit.evaluate.evaluation import ClassScore, Evaluation
from vitkit.evaluate.printing import print_evaluation, weakest_classes
from vitkit.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(small_model(), tmp_path / "run")
    return tmp_path / "run"


def arrays(path: Path, data: Data, split: str = "test", **more: np.ndarray) -> Path:
    """Write a few of fashion's images to an array file without splits."""
    chosen = data.splits[split]
    np.savez(
        path,
        images=np.stack([chosen.read(index) for index in range(len(chosen))]),
        labels=chosen.labels,
        class_names=np.array(data.classes),
        **more,
    )
    return path


def evaluate(*arguments: str | Path) -> None:
    main(["evaluate", *map(str, arguments), "--device", "cpu", "--workers", "0"])


def test_the_scores_are_printed(run: Path, capsys: pytest.CaptureFixture[str]):
    evaluate(run, "fashion")
    text = capsys.readouterr().out
    assert "fashion, test: 1,000 images, 10 classes" in text
    assert max(map(len, text.splitlines())) <= 100
    model, split = vitkit.load(run), open_data("fashion").splits["test"]
    with torch.no_grad():
        predictions = model(torch.stack([as_input(split.read(index)) for index in range(1000)])).argmax(1)
    truth = [CLASSES.index(key.split("/")[1]) for key in split.keys]
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip() and not line.startswith(" ")}
    assert f"{100 * sk.accuracy_score(truth, predictions):.1f} %" in rows["top-1"]
    assert f"{100 * sk.f1_score(truth, predictions, average='macro'):.1f} %" in rows["macro-F1"]
    recalls = sk.recall_score(truth, predictions, average=None)
    assert CLASSES[recalls.argmin()] in rows["weakest"]
    assert f"{100 * recalls.min():.1f} %, 100 images" in rows["weakest"]
    wrong = sk.confusion_matrix(truth, predictions) * (1 - np.eye(10, dtype=int))
    one, other = np.unravel_index(wrong.argmax(), wrong.shape)
    assert f"{CLASSES[one]} taken for {CLASSES[other]} {wrong.max()} times" in rows["confused"]


def test_json_and_the_file_are_the_evaluation(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = arrays(tmp_path / "a.npz", some_fashion(20))
    evaluate(run, data, "--json", "--out", tmp_path / "evaluation.json")
    printed = capsys.readouterr().out
    assert Evaluation.from_json(printed) == Evaluation.from_json((tmp_path / "evaluation.json").read_text())
    assert json.loads(printed)["images"] == 50


def test_classes_of_one_side_only_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    vitkit.save(small_model((*CLASSES[:8], "hat")), tmp_path / "run")
    evaluate(tmp_path / "run", arrays(tmp_path / "a.npz", some_fashion(20)))
    text = capsys.readouterr().out
    assert "1 class only in the model: hat" in text
    assert "2 classes only in the data: ankle boot, bag" in text
    assert "10 images without a class of the model" in text


def test_multilabel_scores_and_skipped_images_are_printed(capsys: pytest.CaptureFixture[str]):
    from vitkit.evaluate.classify import evaluate as evaluate_model

    data = some_fashion(20)
    split = data.splits["test"]
    table = SparseLabels.from_indices(split.labels, 10)
    evaluation = evaluate_model(
        small_model(), replace(data, splits={"test": replace(split, labels=table)}, multilabel=True)
    )
    print_evaluation(replace(evaluation, left_out={f"{number}.jpg": "is empty" for number in range(7)}))
    text = capsys.readouterr().out
    assert "mean AP" in text
    assert "average precision" in text
    assert "0.jpg: is empty" in text
    assert "2 more" in text


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("weak", [0, 2, 9])
def test_the_weakest_classes_are_below_100_percent(weak: int, multilabel: bool):
    shares = [0.5 + index / 100 if index < weak else 1.0 for index in range(12)]
    scores = tuple(
        ClassScore(
            name=f"c{index}",
            images=100,
            recall=1.0 if multilabel else share,
            precision=0.9,
            f1=0.9,
            average_precision=share if multilabel else None,
        )
        for index, share in enumerate(shares)
    )
    evaluation = make_evaluation(
        tuple(score.name for score in scores),
        make_split(tuple(f"c{index}" for index in range(12))),
        per_class=scores,
        multilabel=multilabel,
    )
    rows, metric = weakest_classes(evaluation), "average precision" if multilabel else "recall"
    if weak:
        assert [row.split()[0] for row in rows] == [f"c{index}" for index in range(min(weak, 5))]
        assert rows[0] == f"c0  {metric}  50.0 %, 100 images"
    else:
        assert rows == [f"none; the {metric} of every class is 100 %"]


@pytest.mark.parametrize("form", ["google", "timm", "hf"])
def test_labels_names_the_classes_of_foreign_weights(
    form: str, fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    weights = fixtures / "google_token_weights.npz"
    if form != "google":
        main(["convert", str(weights), str(tmp_path / form), "--to", form, "--lossy"])
        weights = tmp_path / form
    data, names = arrays(tmp_path / "a.npz", some_fashion(20)), tmp_path / "names.txt"
    with pytest.raises(SystemExit, match="2"):
        evaluate(weights, data)
    assert "--labels FILE" in capsys.readouterr().err
    scores = []
    for order in (CLASSES, CLASSES[::-1]):
        names.write_text("\n".join(order) + "\n", encoding="utf-8")
        evaluate(weights, data, "--labels", names, "--json")
        evaluation = Evaluation.from_json(capsys.readouterr().out)
        assert evaluation.classes == order
        scores.append(np.array(evaluation.confusion))
    # only the names changed: the same predictions, counted for the mirrored labels
    assert scores[0].sum(0).tolist() == scores[1].sum(0).tolist()
    assert scores[0][::-1].tolist() == scores[1].tolist()


def test_another_image_size_reaches_the_model(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = arrays(tmp_path / "a.npz", some_fashion(100))
    evaluate(run, data, "--image", "32", "--json")
    larger = Evaluation.from_json(capsys.readouterr().out)
    evaluate(run, data, "--json")
    assert larger.loss != Evaluation.from_json(capsys.readouterr().out).loss


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "fashion", "--split", "val"], "fashion has no split val"),
        (["RUN", "fashion", "--batch", "0"], "--batch 0: 1 or more"),
        (["RUN", "fashion", "--out", "scores.txt"], "a .json file"),
        (["RUN", "fashion", "--out", "nowhere/scores.json"], "a folder that exists"),
        (["RUN", "fashion", "--label", "age"], "has no columns"),
        (["RUN", "fashion", "--labels", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["RUN", "fashion", "--labels", "FEW"], "names 2 classes; the model has 10"),
        (["RUN", "fashion", "--labels", "GAP"], "gap.txt: line 2 is empty"),
        (["RUN", "fashion", "--real", "nowhere.json"], "ImageNet's 1000 classes"),
        (["RUN", "nowhere/"], "nowhere/ does not exist"),
        (["nowhere.npz", "fashion"], "nowhere.npz does not exist"),
    ],
)
def test_a_user_error_is_a_message_and_exit_code_2(
    arguments: list[str], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "few.txt").write_text("cat\ndog\n")
    (tmp_path / "gap.txt").write_text("cat\n\n" + "\n".join(CLASSES[2:]))
    paths = {"RUN": run, "FEW": tmp_path / "few.txt", "GAP": tmp_path / "gap.txt"}
    with pytest.raises(SystemExit) as stopped:
        evaluate(*(paths.get(word, word) for word in arguments))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


# Images that the run held out


@pytest.fixture
def partitioned(run: Path, tmp_path: Path) -> Path:
    """Write data without splits, and the record of a run that held out a fifth of them."""
    path = arrays(tmp_path / "all.npz", some_fashion(10))
    record = {"source": "all", "share": 0.2, "seed": 3, "fingerprint": fingerprint(open_data(path), "all")}
    (run / "run.json").write_text(json.dumps({"split": record}))
    return path


def test_only_images_that_the_run_held_out_are_scored(
    run: Path, partitioned: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    split = open_data(partitioned).splits["all"]
    _, held_out = stratified(split.labels, 0.2, 3)
    with torch.no_grad():
        predictions = vitkit.load(run)(torch.stack([as_input(split.read(index)) for index in held_out])).argmax(1)
    names = open_data(partitioned).classes
    truth = [CLASSES.index(names[label]) for label in split.labels[held_out]]
    for weights in (run, run / "model.safetensors"):
        evaluate(weights, partitioned, "--json")
        evaluation = Evaluation.from_json(capsys.readouterr().out)
        assert evaluation.images == len(held_out) == 20
        assert (
            np.array(evaluation.confusion).tolist()
            == sk.confusion_matrix(truth, predictions, labels=range(10)).tolist()
        )
    assert "scoring the 20 images" in caplog.text


def test_a_split_named_by_the_user_is_scored_with_a_warning(
    run: Path, partitioned: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    evaluate(run, partitioned, "--split", "all", "--json")
    assert Evaluation.from_json(capsys.readouterr().out).images == 100
    assert "was trained on most of these images" in caplog.text


def test_all_images_of_other_data_are_scored(
    run: Path, partitioned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    evaluate(run, arrays(tmp_path / "other.npz", some_fashion(20)), "--json")
    assert Evaluation.from_json(capsys.readouterr().out).images == 50
    assert caplog.text == ""  # they are not what the run was trained on


def test_a_test_split_is_scored_regardless_of_held_out_images(
    run: Path, partitioned: Path, caplog: pytest.LogCaptureFixture
):
    evaluate(run, "fashion")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("trained", "arguments", "overlap"),
    [
        ("photos", ["photos/train"], 20),
        ("photos", ["photos/test"], 0),
        ("photos", ["../*/photos/train"], 20),
        ("photos", ["link/train"], 20),
        ("photos/train", ["photos", "--split", "train"], 16),
        ("photos/train", ["photos"], 0),
    ],
)
def test_training_images_are_recognised_through_a_parent_or_child_folder(
    trained: str,
    arguments: list[str],
    overlap: int,
    run: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    images = some_fashion(10).splits["test"]
    for index, label in enumerate(images.labels[:30].tolist()):
        folder = Path("photos") / ("test" if index % 3 == 2 else "train") / CLASSES[label % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.squeeze(images.read(index))).save(folder / f"{index}.png")
    config = Fit(data=str(tmp_path / trained), test=0.2)
    RunFolder(run).write_config(config)
    data = open_data(tmp_path / trained)
    (run / "run.json").write_text(json.dumps({"split": partition(data, **config.partition).held_out}))
    Path("link").symlink_to("photos")
    evaluate(run, arguments[0].replace("*", tmp_path.name), *arguments[1:])
    assert ("was trained on" in caplog.text) == bool(overlap)
    if overlap:
        assert f"was trained on {overlap} of these 20 images" in caplog.text


def test_a_run_with_settings_of_another_version_is_scored(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (run / "config.toml").write_text('data = "elsewhere"\nno_such_setting = 3\n')
    (run / "run.json").write_text("{}")
    evaluate(run, "fashion", "--json")
    assert Evaluation.from_json(capsys.readouterr().out).images == 1000


def test_a_damaged_record_is_an_error(run: Path, partitioned: Path, capsys: pytest.CaptureFixture[str]):
    (run / "run.json").write_text('{"split": {"source": "all"}}')
    with pytest.raises(SystemExit, match="2"):
        evaluate(run, partitioned)
    assert "run.json is damaged: split.fingerprint is missing" in capsys.readouterr().err
