"""`vitkit probe` as a user meets it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import vitkit
from tests.evaluate.small import as_input, small_model
from vitkit.cli.main import main
from vitkit.data.partition import fingerprint, stratified
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.sources.open import open_data
from vitkit.evaluate.features import Extractor
from vitkit.evaluate.probe import Knn, Linear, gather, pick_method, print_probe
from vitkit.evaluate.probe import probe as probe_features


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(small_model(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Some of fashion: 400 to fit, 200 to score."""
    whole = open_data("fashion")
    arrays = {}
    for name, every in (("train", len(whole.splits["train"]) // 400), ("test", 5)):
        images, labels = pictures(whole.splits[name], every)
        arrays |= {f"x_{name}": images, f"y_{name}": labels}
    np.savez(tmp_path / "some.npz", class_names=np.array(whole.classes), **arrays)
    return tmp_path / "some.npz"


def pictures(split: Split, every: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = range(0, len(split), every)
    return np.stack([split.read(index) for index in chosen]), split.labels[list(chosen)]


def probe(*words: str | Path) -> None:
    main(["probe", *map(str, words), "--device", "cpu", "--workers", "0"])


def found(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict:
    probe(*words, "--json")
    return json.loads(capsys.readouterr().out)


def by_hand(run: Path, split: Split) -> np.ndarray:
    with torch.no_grad():
        images = torch.stack([as_input(split.read(index)) for index in range(len(split))])
        return vitkit.load(run)(images, capture=("representation",))[1]["representation"].double().numpy()


def test_neighbours_on_fashion_equal_scikit_learns(run: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    splits = open_data(data).splits
    theirs = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    theirs.fit(by_hand(run, splits["train"]), splits["train"].labels)
    result = found(capsys, run, data, "--method", "knn")
    assert result["top1"]["value"] == pytest.approx(
        theirs.score(by_hand(run, splits["test"]), splits["test"].labels), abs=0.005
    )
    assert result["top1"]["value"] > 0.25  # random weights tell more than chance
    assert (result["fitted"], result["scored"]) == ({"train": len(splits["train"])}, {"test": 200})
    assert (result["method"], result["neighbours"], result["temperature"]) == ("knn", 20, 0.07)
    assert found(capsys, run, data, "--method", "knn", "--neighbours", "1")["top1"] != result["top1"]


def test_every_method_learns_fashion_and_says_so(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(data.parent)
    for method, words in (("fewshot", "1 shot "), ("knn", "20 neighbours"), ("linear", "logistic regression")):
        probe("run", data.name, "--method", method)
        text = capsys.readouterr().out
        assert words in text
        assert "200 test to score, 10 classes" in text
        assert max(map(len, text.splitlines())) <= 100
    shots = found(capsys, run, data, "--method", "fewshot", "--shots", "1", "25", "--seeds", "2")["shots"]
    assert [one["shots"] for one in shots] == [1, 25]
    assert all(len(one["accuracies"]) == 2 for one in shots)
    assert 0.1 < shots[0]["mean"] < shots[1]["mean"] < 1
    linear = found(capsys, run, data, "--method", "linear")
    assert linear["top1"]["value"] > shots[1]["mean"]  # 400 pictures instead of 250
    assert linear["l2"] in [one["l2"] for one in linear["tried"]]


def test_pictures_are_looked_at_once_for_all_methods(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    looked = []
    real = Extractor._compute
    monkeypatch.setattr(
        Extractor, "_compute", lambda self, split, share: looked.append(len(split)) or real(self, split, share)
    )
    for method in ("knn", "fewshot", "linear"):
        probe(run, data, "--method", method)
    assert len(looked) == 2


def test_features_are_written_out(run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    probe(run, data, "--method", "knn", "--features", tmp_path / "out.npz")
    opened = open_data(data)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        for name, split in opened.splits.items():
            mine = file["split"] == name
            np.testing.assert_allclose(file["features"][mine], by_hand(run, split), atol=1e-5)
            assert file["labels"][mine].tolist() == split.labels.tolist()
            assert file["keys"][mine].tolist() == list(split.keys)
        assert file["class_names"].tolist() == list(opened.classes)


def test_foreign_weights_with_other_classes_and_none_are_probed_alike(
    fixtures: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The head is not asked, and pictures are prepared as is stated for weights that carry no record."""
    result = found(capsys, fixtures / "google_token_weights.npz", data, "--method", "knn")
    assert result["classes"] == list(open_data(data).classes)
    assert "cover 32 x 32, cut 32 x 32 from the centre (bicubic" in result["inputs"][0]
    assert result["inputs"][1] == "scale to 0…1, subtract 0.5, partition by 0.5"
    model = vitkit.load(fixtures / "google_token_weights.npz", classes=0)
    vitkit.save(model, tmp_path / "headless")
    assert found(capsys, tmp_path / "headless", data, "--method", "knn")["top1"] == result["top1"]


def test_another_image_size_reaches_the_model(run: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    one, other = (
        found(capsys, run, data, "--method", "knn", "--neighbours", "1", *image) for image in ((), ("--image", "32"))
    )
    assert one["top1"] != other["top1"]


# Which pictures are fitted, chosen by, scored


def with_splits(*names: str) -> Data:
    """Fashion's test pictures, dealt out."""
    data = open_data("fashion")
    split = data.splits["test"]
    return replace(
        data, splits={name: split.select(np.arange(place, 1000, 3 * len(names))) for place, name in enumerate(names)}
    )


@pytest.mark.parametrize(
    ("there", "method", "fitted", "scored"),
    [
        (("train", "val", "test"), Knn(), ["train"], "test"),
        (("train", "val", "test"), Linear(), ["train", "val"], "test"),
        (("train", "val"), Linear(), ["train"], "val"),
        (("trainval", "test"), Linear(), ["trainval"], "test"),
        (("all",), Knn(), ["train"], "test"),
    ],
)
def test_splits_are_used_for_what_they_are(
    there: tuple[str, ...], method: Knn | Linear, fitted: list[str], scored: str, tmp_path: Path
):
    data = with_splits(*there)
    parts = gather(Extractor(model=small_model(), place=tmp_path), data, method)
    result = probe_features(parts, data, method)
    assert list(result.fitted) == fitted
    assert list(result.scored) == [scored]
    keys = [set(part.keys) for part in parts.by_name().values()]
    assert len(set.union(*keys)) == sum(map(len, keys))
    if there == ("all",):
        assert set.union(*keys) == set(data.splits["all"].keys)
        assert len(keys[1]) == pytest.approx(0.2 * len(data.splits["all"]), abs=5)


def test_what_a_run_set_aside_is_scored_and_never_fitted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    images, labels = pictures(open_data("fashion").splits["test"], 5)
    np.savez(tmp_path / "all.npz", images=images, labels=labels)
    data = open_data(tmp_path / "all.npz")
    record = {"source": "all", "share": 0.4, "seed": 3, "fingerprint": fingerprint(data, "all")}
    (run / "run.json").write_text(json.dumps({"split": record}))
    _, aside = stratified(data.splits["all"].labels, 0.4, 3)
    result = found(capsys, run, tmp_path / "all.npz", "--method", "knn", "--features", tmp_path / "out.npz")
    assert result["scored"] == {"test": len(aside)}
    assert result["fitted"] == {"train": 200 - len(aside)}
    with np.load(tmp_path / "out.npz") as file:
        assert file["keys"][file["split"] == "test"].tolist() == [data.splits["all"].keys[index] for index in aside]


def test_pictures_left_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = with_splits("train", "test")
    parts = gather(Extractor(model=small_model(), place=tmp_path), data, Knn())
    broken = replace(parts, fit=replace(parts.fit, failures={f"{n}.jpg": "is empty" for n in range(7)}))
    print_probe(probe_features(broken, data, Knn()))
    text = capsys.readouterr().out
    assert "0.jpg: is empty" in text
    assert "2 more" in text


def test_no_more_neighbours_are_told_than_voted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = with_splits("train", "test")
    data = replace(data, splits=data.splits | {"train": data.splits["train"].select(np.arange(0, 160, 20))})
    parts = gather(Extractor(model=small_model(), place=tmp_path), data, Knn())
    result = probe_features(parts, data, Knn())
    assert result.neighbours == len(parts.fit) == 8
    theirs = KNeighborsClassifier(8, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    theirs.fit(parts.fit.values.astype(float), parts.fit.labels)
    assert result.top1.value == pytest.approx(theirs.score(parts.test.values.astype(float), parts.test.labels))
    print_probe(result)
    assert "8 neighbours" in capsys.readouterr().out


def test_several_labels_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="several labels"):
        gather(
            Extractor(model=small_model(), place=tmp_path),
            replace(with_splits("train", "test"), multilabel=True),
            Knn(),
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "fashion"], "--method"),
        (["RUN", "fashion", "--method", "svm"], "svm"),
        (["RUN", "fashion", "--method", "knn", "--shots", "5"], "--shots is for --method fewshot, not for knn"),
        (["RUN", "fashion", "--method", "linear", "--neighbours", "5"], "--neighbours is for --method knn"),
        (["RUN", "fashion", "--method", "fewshot", "--shots", "0"], "--shots 0: 1 or more"),
        (["RUN", "fashion", "--method", "fewshot", "--seeds", "0"], "--seeds 0: 1 or more"),
        (["RUN", "fashion", "--method", "knn", "--neighbours", "0"], "--neighbours 0: 1 or more"),
        (["RUN", "fashion", "--method", "knn", "--features", "out.csv"], "a .npz file"),
        (["RUN", "fashion", "--method", "knn", "--features", "nowhere/out.npz"], "a folder that exists"),
        (["RUN", "nowhere/", "--method", "knn"], "nowhere/ does not exist"),
        (["nowhere.npz", "fashion", "--method", "knn"], "nowhere.npz does not exist"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        probe(*(run if word == "RUN" else word for word in words))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_options_that_were_not_given_are_the_methods_defaults():
    assert pick_method("knn", shots=None, neighbours=None) == Knn(neighbours=20)


# The real thing


@pytest.mark.slow
def test_a_real_ti16_tells_pets_apart_by_their_neighbours(shared: Path, capsys: pytest.CaptureFixture[str]):
    """timm's features of the same pictures give 89.07 %."""
    result = found(
        capsys,
        shared / "weights" / "vit_ti16_in1k_timm.safetensors",
        shared / "data" / "pets160.tar",
        "--method",
        "knn",
    )
    assert (result["fitted"], result["scored"]) == ({"trainval": 3680}, {"test": 3669})
    assert result["top1"]["value"] == pytest.approx(0.8907, abs=0.003)
