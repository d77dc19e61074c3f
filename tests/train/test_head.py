"""A head on frozen features: the optimum that scikit-learn finds, in a model that is otherwise unchanged."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import binary_cross_entropy_with_logits

import vitkit
from tests.evaluate.small_model import small_model
from tests.evaluate.test_linear import blobs
from tests.train.runs import Command, error_of, resume
from vitkit.cli.main import main
from vitkit.compute.features import FeatureExtractor
from vitkit.config.resolve import resolve
from vitkit.config.schema import Fit
from vitkit.config.size_recipes import medium_transfer
from vitkit.config.transfer_recipes import pets_transfer
from vitkit.data.sources.open import open_data
from vitkit.data.sparse_labels import SparseLabels
from vitkit.errors import ConfigError
from vitkit.train.head import decide_start, fit_head
from vitkit.train.logistic_regression import fit_logistic_regression, positive_cells, sum_of_sigmoid_losses
from vitkit.train.objectives.labels import class_weights


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a small grey model with a head for other classes."""
    vitkit.save(small_model(("ankle boot", "bag")), tmp_path / "weights")
    return tmp_path / "weights"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of 24 images of each of three classes of fashion."""
    split = open_data("fashion").splits["train"]
    for name in ("trouser", "sneaker", "bag"):
        rows = [row for row, key in enumerate(split.keys) if key.split("/")[1] == name][:24]
        (tmp_path / "photos" / name).mkdir(parents=True)
        for row in rows:
            Image.fromarray(split.read(row)[:, :, 0]).save(tmp_path / "photos" / name / f"{row}.png")
    return tmp_path / "photos"


def test_the_layer_gives_the_logits_of_the_regression():
    values, labels = blobs(300, 1)
    queries, _ = blobs(50, 2)
    fitted = fit_logistic_regression(values, labels + 1, 0.01)  # there is no image of the first class
    weight, bias = fitted.linear_layer(6)
    logits = torch.from_numpy(queries).double() @ weight.T + bias
    np.testing.assert_allclose(logits[:, 1:5], fitted.logits(queries), atol=1e-9)
    assert set(logits.argmax(1).tolist()) <= {1, 2, 3, 4}


def test_class_weights_equal_scikit_learns():
    values, labels = blobs(400, 1)
    kept = (labels > 0) | (np.arange(len(labels)) % 8 == 0)  # the first class is rare
    values, labels = values[kept], labels[kept]
    weights = class_weights(labels, 4, balance=1.0)
    assert weights is not None
    scale = StandardScaler().fit(values.astype(float))
    theirs = LogisticRegression(
        C=1 / (len(values) * 0.01), class_weight=dict(enumerate(weights.tolist())), tol=1e-10, max_iter=10_000
    ).fit(scale.transform(values.astype(float)), labels)
    ours = fit_logistic_regression(values, labels, 0.01, class_weights=weights)
    np.testing.assert_allclose(
        ours.logits(values).softmax(1).numpy(), theirs.predict_proba(scale.transform(values.astype(float))), atol=1e-3
    )


def test_several_labels_are_one_regression_each():
    values, labels = blobs(300, 1)
    targets = np.stack([labels == 0, (labels == 0) | (labels == 1)], axis=1).astype(np.float32)
    sparse = SparseLabels.from_dense(targets)
    ours = fit_logistic_regression(values, sparse, 0.01).logits(values).sigmoid().numpy()
    scale = StandardScaler().fit(values.astype(float))
    for column in range(2):
        theirs = LogisticRegression(C=1 / (len(values) * 0.01), tol=1e-10, max_iter=10_000).fit(
            scale.transform(values.astype(float)), targets[:, column]
        )
        expected = theirs.predict_proba(scale.transform(values.astype(float)))[:, 1]
        np.testing.assert_allclose(ours[:, column], expected, atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_sum_of_sigmoid_losses_equals_torchs_over_dense_targets(seed: int, weighted: bool):
    random = np.random.default_rng(seed)
    table = random.random((7, 5)) < 0.3
    logits = torch.from_numpy(random.normal(size=table.shape) * random.choice([1, 100])).requires_grad_()
    weights = torch.from_numpy(random.random(5) + 0.1) if weighted else None
    positive = torch.from_numpy(positive_cells(SparseLabels.from_dense(table), np.arange(5)))
    ours = sum_of_sigmoid_losses(logits, positive, weights)
    theirs = binary_cross_entropy_with_logits(
        logits, torch.from_numpy(table).double(), pos_weight=weights, reduction="sum"
    )
    # differences of sums that cancel: a few roundings of the largest logit
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ours, theirs)), rtol=1e-12, atol=1e-12
    )


def test_the_l2_with_the_lowest_loss_on_held_out_images_is_taken():
    split = open_data("fashion").splits["train"].select(np.arange(0, 6000, 30))
    model = small_model()
    fitted = fit_head(FeatureExtractor(model=model), split, Fit())
    fitted.apply_to(model)
    features = FeatureExtractor(model=model)(split)
    scale = StandardScaler().fit(features.values.astype(float))
    theirs = LogisticRegression(C=1 / (len(split) * fitted.l2), tol=1e-8, max_iter=10_000).fit(
        scale.transform(features.values.astype(float)), features.labels
    )
    ours = (torch.from_numpy(features.values) @ fitted.weight.T + fitted.bias).argmax(1).numpy()
    agreeing = (ours == theirs.predict(scale.transform(features.values.astype(float)))).mean()
    assert agreeing >= 0.99
    assert fitted.images == 200


def test_only_the_head_changes_and_everything_says_so(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    main(["fit", str(photos), "--weights", str(weights), "--device", "cpu", "--out", str(run)])
    printed = capsys.readouterr().out
    assert "all weights but the head's are frozen" in printed
    assert "input     short side to 28 px (bicubic, antialiased), centre crop 28 x 28; scaled to 0…1" in printed
    assert re.search(r"next +vitkit fit .* --set start=full --out .*run-full +# fine-tune all weights, about", printed)
    before, after = (load_file(folder / "model.safetensors") for folder in (weights, run))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.logits.weight", "head.logits.bias"}
    assert json.loads((run / "evaluation.json").read_text())["top1"]["value"] > 0.5  # of three classes
    assert json.loads((run / "model.json").read_text())["provenance"]["trained"] == "head"
    assert 'start = "head"' in (run / "config.toml").read_text()
    assert "only the head was trained, on frozen features" in (run / "README.md").read_text()
    report = (run / "report.html").read_text()
    assert "only the head was trained, on frozen features" in report[report.index("<h1>") : report.index("</h1>")]


def test_fine_tuning_says_so_too(photos: Path, weights: Path, tmp_path: Path):
    run = tmp_path / "run"
    main(["fit", str(photos), "--weights", str(weights), "--steps", "2", "--out", str(run)])
    assert json.loads((run / "model.json").read_text())["provenance"]["trained"] == "all"
    report = (run / "report.html").read_text()
    assert "all weights were fine-tuned" in report[report.index("<h1>") : report.index("</h1>")]


def test_a_run_that_was_killed_is_resumed_to_the_same_head(photos: Path, weights: Path, tmp_path: Path):
    def command(out: Path) -> list[str]:
        return ["fit", str(photos), "--weights", str(weights), "--set", "start=head", "--out", str(out)]

    assert Command(command(tmp_path / "whole"), tmp_path / "log").wait() == 0
    killed = Command(command(tmp_path / "run"), tmp_path / "log", dies_at="vitkit.train.head:save")
    assert killed.wait() == -signal.SIGKILL, killed.output
    resume(tmp_path / "run", tmp_path / "log")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_device_decides_where_nothing_is_asked_for():
    chosen = replace(medium_transfer(), weights="ti16")
    assert decide_start(chosen, torch.device("cpu")).start == "head"
    assert decide_start(chosen, torch.device("cuda")).start == "full"
    assert decide_start(replace(chosen, start="head"), torch.device("cuda")).start == "head"
    assert decide_start(replace(chosen, start="full"), torch.device("cpu")).start == "full"
    assert decide_start(replace(chosen, weights="none"), torch.device("cpu")).start == "full"
    assert decide_start(replace(pets_transfer(), weights="ti16"), torch.device("cpu")).start == "full"


@pytest.mark.parametrize("setting", [{"epochs": 3}, {"lr": 0.01}, {"augment": {"mixup": 0.2}}, {"freeze": 2}])
def test_who_sets_how_to_train_wants_training(setting: dict, photos: Path, weights: Path):
    settings = {"data": str(photos), "weights": str(weights)}
    assert resolve(settings)[0].start == "auto"
    assert resolve({**settings, "balance": 0.5, "seed": 1})[0].start == "auto"
    assert resolve({**settings, **setting})[0].start == "full"
    with pytest.raises(ConfigError, match=f"{next(iter(setting))} would change nothing here: it is for start = full"):
        resolve({**settings, **setting, "start": "head"})


def test_settings_of_training_in_a_file_count_too(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "training.toml").write_text("steps = 2\n")
    fit = ["fit", str(photos), "--weights", str(weights), "--device", "cpu"]
    main([*fit, "--config", str(tmp_path / "training.toml"), "--out", str(tmp_path / "trained")])
    printed = capsys.readouterr().out
    assert 'start = "full"' in (tmp_path / "trained/config.toml").read_text()
    assert "all weights are trained, which is slow on a CPU; --set start=head" in printed
    (tmp_path / "rates.toml").write_text("choose_lr = true\nsteps = 2\nlr_candidates = [0.001]\n")
    main([*fit, "--config", str(tmp_path / "rates.toml"), "--out", str(tmp_path / "chosen")])
    assert "chosen    learning rate 0.001" in capsys.readouterr().out


def test_the_command_that_the_end_of_a_run_offers_fine_tunes_with_the_same_settings(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "it's a run"
    main(["fit", str(photos), "--weights", str(weights), "--set", "balance=0.5", "--seed", "3", "--out", str(run)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "fine-tune all weights" in line]
    words = shlex.split(line.removeprefix("next").partition("  #")[0])
    assert words[:2] == ["vitkit", "fit"]
    main([*words[1:], "--steps", "2"])
    settings = (tmp_path / "it's a run-full/config.toml").read_text()
    assert [text in settings for text in ("seed = 3", "balance = 0.5", 'start = "full"')] == [True] * 3


def test_one_image_of_each_class_is_enough(tmp_path: Path, weights: Path):
    for split, count in (("train", 1), ("test", 3)):
        for label in range(12):
            (tmp_path / "shots" / split / str(label)).mkdir(parents=True)
            for number in range(count):
                noise = np.random.default_rng([label, number, count]).integers(0, 256, (28, 28), np.uint8)
                Image.fromarray(noise).save(tmp_path / "shots" / split / str(label) / f"{number}.png")
    assert vitkit.check(tmp_path / "shots").ok
    run = vitkit.fit(tmp_path / "shots", weights=str(weights), start="head", out=tmp_path / "run")
    assert run.metrics()[-1]["accuracy"] is None
    assert run.evaluation is not None
    assert run.evaluation.images == 36


def test_skipped_images_are_in_the_report(photos: Path, weights: Path, tmp_path: Path):
    (photos / "bag" / "broken.png").write_bytes(b"not an image")
    run = vitkit.fit(photos, weights=str(weights), start="head", max_failed=0.1, out=tmp_path / "run")
    skipped = [line["image"] for line in run.metrics() if line["kind"] == "left-out"]
    evaluated = [*run.evaluation.left_out] if run.evaluation else []
    assert [Path(name).name for name in skipped + evaluated] == ["broken.png"]
    assert "broken.png" in run.report.read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_says_that_the_features_are_kept(
    number: int,
    code: int,
    photos: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def interrupted(*arguments: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr("vitkit.train.head.fit_head", interrupted)
    arguments = ["fit", str(photos), "--weights", str(weights), "--set", "start=head", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == code
    assert "the features computed so far are cached, and the same command continues" in capsys.readouterr().err
    monkeypatch.undo()
    main(arguments)
    assert (tmp_path / "run/model.safetensors").is_file()


def test_a_head_needs_pre_trained_weights(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["fit", str(photos), "--weights", "none", "--set", "start=head", "--out", str(tmp_path / "run")]
    assert "it needs pre-trained weights, and weights = none" in error_of(capsys, *arguments)
    assert not (tmp_path / "run").exists()
