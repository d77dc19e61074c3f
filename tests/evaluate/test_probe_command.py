"""The command `vitkit probe` from arguments to output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import vitkit
from tests.evaluate.small_model import as_input, small_model
from vitkit.cli.main import main
from vitkit.compute.features import FeatureExtractor
from vitkit.data.partition import fingerprint, stratified
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.open import open_data
from vitkit.evaluate.printing import print_probe
from vitkit.evaluate.probe import Knn, Linear, extract_features, pick_method
from vitkit.evaluate.probe import probe as probe_features


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(small_model(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write 400 images of fashion to fit and 200 to score."""
    complete = open_data("fashion")
    arrays = {}
    for name, every in (("train", len(complete.splits["train"]) // 400), ("test", 5)):
        images, labels = read_images(complete.splits[name], every)
        arrays |= {f"x_{name}": images, f"y_{name}": labels}
    np.savez(tmp_path / "some.npz", class_names=np.array(complete.classes), **arrays)
    return tmp_path / "some.npz"


def read_images(split: Split, every: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = range(0, len(split), every)
    return np.stack([split.read(index) for index in chosen]), split.labels[list(chosen)]


def probe(*arguments: str | Path) -> None:
    main(["probe", *map(str, arguments), "--device", "cpu", "--workers", "0"])


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict:
    probe(*arguments, "--json")
    return json.loads(capsys.readouterr().out)


def by_hand(run: Path, split: Split) -> np.ndarray:
    with torch.no_grad():
        images = torch.stack([as_input(split.read(index)) for index in range(len(split))])
        return vitkit.load(run)(images, capture=("representation",))[1]["representation"].double().numpy()


def test_neighbours_on_fashion_equal_scikit_learns(run: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    splits = open_data(data).splits
    theirs = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    theirs.fit(by_hand(run, splits["train"]), splits["train"].labels)
    result = json_of(capsys, run, data, "--method", "knn")
    assert result["top1"]["value"] == pytest.approx(
        theirs.score(by_hand(run, splits["test"]), splits["test"].labels), abs=0.005
    )
    assert result["top1"]["value"] > 0.25  # random weights are better than chance
    assert (result["fitted"], result["scored"]) == ({"train": len(splits["train"])}, {"test": 200})
    assert (result["method"], result["neighbours"], result["temperature"]) == ("knn", 20, 0.07)
    assert json_of(capsys, run, data, "--method", "knn", "--neighbours", "1")["top1"] != result["top1"]


def test_every_method_classifies_fashion_and_prints_its_scores(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(data.parent)
    for method, description in (("fewshot", "1 shot "), ("knn", "20 neighbours"), ("linear", "logistic regression")):
        probe("run", data.name, "--method", method)
        text = capsys.readouterr().out
        assert description in text
        assert "200 test to score, 10 classes" in text
        assert max(map(len, text.splitlines())) <= 100
    shots = json_of(capsys, run, data, "--method", "fewshot", "--shots", "1", "25", "--seeds", "2")["shots"]
    assert [score["shots"] for score in shots] == [1, 25]
    assert all(len(score["accuracies"]) == 2 for score in shots)
    assert 0.1 < shots[0]["mean"] < shots[1]["mean"] < 1
    linear = json_of(capsys, run, data, "--method", "linear")
    assert linear["top1"]["value"] > shots[1]["mean"]  # 400 images instead of 250
    assert linear["l2"] in [trial["l2"] for trial in linear["tried"]]


def test_features_are_computed_once_for_all_methods(run: Path, data: Path, monkeypatch: pytest.MonkeyPatch):
    computed = []
    real = FeatureExtractor._compute
    monkeypatch.setattr(
        FeatureExtractor, "_compute", lambda self, split, share: computed.append(len(split)) or real(self, split, share)
    )
    for method in ("knn", "fewshot", "linear"):
        probe(run, data, "--method", method)
    assert len(computed) == 2


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


def test_foreign_weights_with_a_head_and_without_are_probed_alike(
    fixtures: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The head is not used, and weights without a record have the preprocessing of their format."""
    result = json_of(capsys, fixtures / "google_token_weights.npz", data, "--method", "knn")
    assert result["classes"] == list(open_data(data).classes)
    assert result["inputs"][0] == "resized to 32 x 32 px, whatever the shape (bilinear, antialiased)"
    assert result["inputs"][1] == "scaled to 0…1, mean 0.5, std 0.5"
    model = vitkit.load(fixtures / "google_token_weights.npz", classes=0)
    vitkit.save(model, tmp_path / "headless")
    assert json_of(capsys, tmp_path / "headless", data, "--method", "knn")["top1"] == result["top1"]


def test_another_image_size_reaches_the_model(run: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    one, other = (
        json_of(capsys, run, data, "--method", "knn", "--neighbours", "1", *image) for image in ((), ("--image", "32"))
    )
    assert one["top1"] != other["top1"]


# Which images are fitted, chosen by, scored


def with_splits(*names: str) -> Data:
    """Distribute fashion's test images over splits."""
    data = open_data("fashion")
    split = data.splits["test"]
    return replace(
        data, splits={name: split.select(np.arange(start, 1000, 3 * len(names))) for start, name in enumerate(names)}
    )


@pytest.mark.parametrize(
    ("splits", "method", "fitted", "scored"),
    [
        (("train", "val", "test"), Knn(), ["train"], "test"),
        (("train", "val", "test"), Linear(), ["train", "val"], "test"),
        (("train", "val"), Linear(), ["train"], "val"),
        (("trainval", "test"), Linear(), ["trainval"], "test"),
        (("all",), Knn(), ["train"], "test"),
    ],
)
def test_each_split_has_its_purpose(
    splits: tuple[str, ...], method: Knn | Linear, fitted: list[str], scored: str, tmp_path: Path
):
    data = with_splits(*splits)
    features = extract_features(FeatureExtractor(model=small_model(), cache_folder=tmp_path), data, method)
    result = probe_features(features, data, method)
    assert list(result.fitted) == fitted
    assert list(result.scored) == [scored]
    keys = [set(split.keys) for split in features.by_name().values()]
    assert len(set.union(*keys)) == sum(map(len, keys))
    if splits == ("all",):
        assert set.union(*keys) == set(data.splits["all"].keys)
        assert len(keys[1]) == pytest.approx(0.2 * len(data.splits["all"]), abs=5)


def test_images_that_a_run_held_out_are_scored_and_never_fitted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    images, labels = read_images(open_data("fashion").splits["test"], 5)
    np.savez(tmp_path / "all.npz", images=images, labels=labels)
    data = open_data(tmp_path / "all.npz")
    record = {"source": "all", "share": 0.4, "seed": 3, "fingerprint": fingerprint(data, "all")}
    (run / "run.json").write_text(json.dumps({"split": record}))
    _, held_out = stratified(data.splits["all"].labels, 0.4, 3)
    result = json_of(capsys, run, tmp_path / "all.npz", "--method", "knn", "--features", tmp_path / "out.npz")
    assert result["scored"] == {"test": len(held_out)}
    assert result["fitted"] == {"train": 200 - len(held_out)}
    with np.load(tmp_path / "out.npz") as file:
        assert file["keys"][file["split"] == "test"].tolist() == [data.splits["all"].keys[index] for index in held_out]


def test_skipped_images_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = with_splits("train", "test")
    features = extract_features(FeatureExtractor(model=small_model(), cache_folder=tmp_path), data, Knn())
    broken = replace(features, fit=replace(features.fit, failures={f"{n}.jpg": "is empty" for n in range(7)}))
    print_probe(probe_features(broken, data, Knn()))
    text = capsys.readouterr().out
    assert "0.jpg: is empty" in text
    assert "2 more" in text


def test_the_printed_neighbours_are_those_that_voted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = with_splits("train", "test")
    data = replace(data, splits=data.splits | {"train": data.splits["train"].select(np.arange(0, 160, 20))})
    features = extract_features(FeatureExtractor(model=small_model(), cache_folder=tmp_path), data, Knn())
    result = probe_features(features, data, Knn())
    assert result.neighbours == len(features.fit) == 8
    theirs = KNeighborsClassifier(8, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    theirs.fit(features.fit.values.astype(float), features.fit.labels)
    assert result.top1.value == pytest.approx(theirs.score(features.test.values.astype(float), features.test.labels))
    print_probe(result)
    assert "8 neighbours" in capsys.readouterr().out


def test_several_labels_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="several labels"):
        extract_features(
            FeatureExtractor(model=small_model(), cache_folder=tmp_path),
            replace(with_splits("train", "test"), multilabel=True),
            Knn(),
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "fashion", "--method", "svm"], "svm"),
        (["RUN", "fashion", "--method", "knn", "--shots", "5"], "--shots is for --method fewshot, not for knn"),
        (["RUN", "fashion", "--method", "linear", "--neighbours", "5"], "--neighbours is for --method knn"),
        (["RUN", "fashion", "--method", "fewshot", "--shots", "0"], "--shots 0: 1 or more"),
        (["RUN", "fashion", "--method", "fewshot", "--seeds", "0"], "--seeds 0: 1 or more"),
        (["RUN", "fashion", "--method", "knn", "--neighbours", "0"], "--neighbours 0: 1 or more"),
        (["RUN", "fashion", "--method", "knn", "--features", "out.csv"], "a .npz file"),
        (["RUN", "fashion", "--method", "knn", "--features", "nowhere/out.npz"], "a folder that exists"),
        (["RUN", "fashion", "--method", "linear", "--layer", "last"], "--layer last must be all, or layer numbers"),
        (["RUN", "nowhere/", "--method", "knn"], "nowhere/ does not exist"),
        (["nowhere.npz", "fashion", "--method", "knn"], "nowhere.npz does not exist"),
    ],
)
def test_a_user_error_is_a_message_and_exit_code_2(
    arguments: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        probe(*(run if word == "RUN" else word for word in arguments))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_options_that_are_none_have_the_methods_defaults():
    assert pick_method("knn", shots=None, neighbours=None) == Knn(neighbours=20)


# Real weights and photos


@pytest.mark.slow
def test_a_real_ti16_classifies_pets_by_their_neighbours(shared: Path, capsys: pytest.CaptureFixture[str]):
    """timm's features of the same images give 89.07 %."""
    result = json_of(
        capsys,
        shared / "weights" / "vit_ti16_in1k_timm.safetensors",
        shared / "data" / "pets160.tar",
        "--method",
        "knn",
    )
    assert (result["fitted"], result["scored"]) == ({"trainval": 3680}, {"test": 3669})
    assert result["top1"]["value"] == pytest.approx(0.8907, abs=0.003)
