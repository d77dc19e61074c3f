"""`evaluate --map`: classes of the data that stand for several of the model's, by ObjectNet's protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitkit
from tests.evaluate.small_model import as_input, small_model, some_fashion
from vitkit.cli.main import main
from vitkit.data.sources.dataset import PackedStrings
from vitkit.data.sources.fashion import CLASSES
from vitkit.evaluate.mapped_scores import score_mapped
from vitkit.evaluate.scores import ScoredImages

# data class → classes of the model; sandals and boots have no match, trousers and dresses are predictions elsewhere
GROUPS = {"tops": ["t-shirt or top", "pullover", "shirt"], "over": ["coat"], "shoes": ["sneaker"], "bags": ["bag"]}
FOLDERS = {
    "t-shirt or top": "tops",
    "pullover": "tops",
    "shirt": "tops",
    "coat": "over",
    "sneaker": "shoes",
    "bag": "bags",
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of coarse classes, "other" among them, made of fashion's images."""
    data, folder = some_fashion(5), tmp_path_factory.mktemp("objects")
    split = data.splits["test"]
    for index in range(len(split)):
        name = FOLDERS.get(data.classes[split.labels[index]], "other")
        (folder / name).mkdir(exist_ok=True)
        Image.fromarray(np.squeeze(split.read(index))).save(folder / name / f"{index}.png")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(small_model(), tmp_path / "run")
    return tmp_path / "run"


def evaluate(*arguments: str | Path) -> None:
    main(["evaluate", *map(str, arguments), "--device", "cpu", "--workers", "0"])


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


FILES = {
    "lists": ("map.json", GROUPS),
    "ObjectNet's texts": ("map.json", {name: "; ".join(targets) for name, targets in GROUPS.items()}),
    "other spellings": ("map.json", {"Tops": "T_shirt or top; Pullover; shirt, a synonym", "over": "coat",
                                     "shoes": "sneaker", "bags": "bag"}),
    "numbers": ("map.json", {name: [CLASSES.index(one) for one in targets] for name, targets in GROUPS.items()}),
    "no match, empty": ("map.json", {**GROUPS, "other": []}),
    "CSV": ("map.csv", "class,model_class\n" + "".join(f"{n},{t}\n" for n, ts in GROUPS.items() for t in ts)),
    "CSV with numbers": ("map.csv", "class,model_class\r\n" + "".join(
        f"{n},{CLASSES.index(t)}\r\n" for n, ts in GROUPS.items() for t in ts)),
}  # fmt: skip


@pytest.mark.parametrize("form", FILES)
def test_scores_equal_a_plain_loop_by_the_protocol(
    form: str, run: Path, objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name, content = FILES[form]
    evaluate(run, objects, "--map", write(tmp_path / name, content), "--json")
    result = json.loads(capsys.readouterr().out)
    model, correct, top5, elsewhere, truths, predictions, loss = vitkit.load(run), 0, 0, 0, [], [], 0.0
    for path in sorted(objects.glob("*/*.png")):
        if path.parent.name == "other":
            continue
        with torch.no_grad():
            logits = model(as_input(np.array(Image.open(path))[:, :, None])[None])[0]
        ranked = [CLASSES[index] for index in logits.argsort(descending=True)]
        mine = GROUPS[path.parent.name]
        correct += ranked[0] in mine
        top5 += any(one in mine for one in ranked[:5])
        answer = next((group for group, members in GROUPS.items() if ranked[0] in members), "none")
        elsewhere += answer == "none"
        truths.append(path.parent.name)
        predictions.append(answer)
        loss -= float(logits.double().softmax(0)[[CLASSES.index(one) for one in mine]].sum().log())
    images = len(truths)
    assert 0 < correct < top5 <= images
    assert 0 < elsewhere < images
    assert result["images"] == images
    assert result["unlabelled"] == len(list(objects.glob("other/*")))
    assert result["extra"] == ["other"]
    assert result["classes"] == sorted(GROUPS)
    assert result["top1"]["value"] == correct / images
    assert result["top1"]["low"] < correct / images < result["top1"]["high"]
    assert result["top5"]["value"] == top5 / images
    assert result["loss"] == pytest.approx(loss / images, rel=1e-4)
    assert result["mapped"] == {"file": name, "model_classes": 6, "of": 10, "elsewhere": elsewhere}
    names = sorted(GROUPS)
    f1 = sk.f1_score(truths, predictions, labels=names, average="macro")
    assert result["macro_f1"]["value"] == pytest.approx(f1)
    recalls = sk.recall_score(truths, predictions, labels=names, average=None)
    assert result["balanced_accuracy"]["value"] == pytest.approx(recalls.mean())
    assert [row["recall"] for row in result["per_class"]] == pytest.approx(list(recalls))
    matrix = sk.confusion_matrix(truths, predictions, labels=names)
    assert np.array_equal(result["confusion"], matrix)
    assert {row["answer"] for row in result["mistakes"]} <= set(CLASSES)


def test_the_scores_and_what_is_left_out_are_printed(run: Path, objects: Path, tmp_path: Path, capsys):
    evaluate(run, objects, "--map", write(tmp_path / "map.json", GROUPS))
    text = capsys.readouterr().out
    assert "map.json: 6 classes of the model's 10 stand for them" in text
    assert "1 class only in the data: other" in text
    assert f"{len(list(objects.glob('other/*')))} images without a class of the model" in text
    assert "top-1" in text
    assert "95 % interval" in text


def test_a_class_of_the_map_that_the_data_lack_is_told(run: Path, objects: Path, tmp_path: Path, caplog):
    evaluate(run, objects, "--map", write(tmp_path / "map.json", {**GROUPS, "helicopter": "dress"}))
    assert "map.json names 1 class that the data lack: helicopter" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("map.json", {"tops": "pulover"}, "map.json: the model has no class pulover; did you mean pullover?"),
        ("map.json", {"topps": "shirt"}, "has no class topps; did you mean tops?"),
        ("map.json", {"tops": 10}, "class number 10, but the model has 0 to 9"),
        ("map.json", {"tops": True}, "map.json is damaged"),
        ("map.json", {"tops": ["shirt"], "over": ["shirt"]}, "shirt of the model is in over and in tops"),
        ("map.json", {"Tops": "shirt", "tops": "coat"}, "has tops twice"),
        ("map.json", {"helicopter": "shirt"}, "maps no class of"),
        ("map.json", ["tops"], "map.json is damaged"),
        ("map.json", "{", "is not JSON"),
        ("map.csv", "tops,shirt\n", "does not begin with the columns"),
        ("map.csv", "class,model_class\ntops\n", "line 2: 1 value"),
        ("missing.json", None, "missing.json cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_a_message(
    name: str, content: Any, message: str, run: Path, objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / name
    if content is not None:
        write(path, content)
    with pytest.raises(SystemExit, match="2"):
        evaluate(run, objects, "--map", path)
    assert message in " ".join(capsys.readouterr().err.split())


def test_two_classes_of_one_name_are_named_by_number(objects: Path, tmp_path: Path, capsys):
    labels = tuple("crane" if name in ("coat", "bag") else name for name in CLASSES)
    model = small_model()
    model.metadata = replace(model.metadata, labels=labels)
    vitkit.save(model, tmp_path / "cranes")
    with pytest.raises(SystemExit, match="2"):
        evaluate(tmp_path / "cranes", objects, "--map", write(tmp_path / "map.json", {"over": "crane"}))
    numbers = sorted((CLASSES.index("coat"), CLASSES.index("bag")))
    assert f"their numbers instead: {numbers[0]}, {numbers[1]}" in capsys.readouterr().err


def test_a_map_and_real_exclude_each_other(run: Path, objects: Path, tmp_path: Path, capsys):
    with pytest.raises(SystemExit, match="2"):
        evaluate(run, objects, "--map", tmp_path / "a.json", "--real", tmp_path / "b.json")
    assert "--real and --map" in capsys.readouterr().err


@given(data=st.data(), classes=st.integers(1, 8), mapped=st.integers(1, 4), images=st.integers(1, 30))
def test_top_1_and_top_5_equal_sets_of_predictions(data: st.DataObject, classes: int, mapped: int, images: int):
    """Ties go to the lower class, as in argmax; a mapped class may be none of the model's best five."""
    mapped = min(mapped, classes)
    spare = data.draw(st.lists(st.integers(-1, mapped - 1), min_size=classes - mapped, max_size=classes - mapped))
    targets = np.array([*range(mapped), *spare])
    values = st.lists(st.integers(-2, 2), min_size=classes, max_size=classes)
    logits = torch.tensor(data.draw(st.lists(values, min_size=images, max_size=images)), dtype=torch.float32)
    labels = torch.tensor(data.draw(st.lists(st.integers(0, mapped - 1), min_size=images, max_size=images)))
    names = PackedStrings(map(str, range(images)))
    scored = ScoredImages(tuple("abcd"[:mapped]), names, np.arange(images))
    result = score_mapped(scored, logits, labels, targets, None)
    hits = [0, 0]
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        ranked = sorted(range(classes), key=lambda index: (-row[index], index))
        hits[0] += targets[ranked[0]] == label
        hits[1] += any(targets[index] == label for index in ranked[:5])
    assert result["top1"].value == hits[0] / images
    assert (result["top5"].value if classes > 5 else hits[1] / images) == hits[1] / images
