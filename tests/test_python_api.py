"""The verbs in Python: `vitkit.Run` gives what the command line gives, takes images in any form, and never exits."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

import vitkit
from tests.docs.stand_ins import SMALL, SMALL_MODEL, train, write_images
from vitkit.cli.main import main
from vitkit.data.check_report import report_as_json

ROOT = Path(vitkit.__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with photos/ and runs/photos, which no test changes."""
    root = tmp_path_factory.mktemp("python")
    write_images(root / "photos", 0)
    train(root / "photos", root / "runs/photos")
    return root


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(folder: Path) -> vitkit.Run:
    return vitkit.Run(folder / "runs/photos")


def printed_json(words: list[Any], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out)


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def shared(printed: dict[str, Any], returned: dict[str, Any]) -> dict[str, Any]:
    """Return what both have in common; the command line adds its verb, the version and the failures."""
    return {name: value for name, value in printed.items() if name in returned}


def representation(run: vitkit.Run, image: Any) -> np.ndarray:
    with torch.no_grad():
        _, seen = run.model(vitkit.preprocess(run.model)(image)[None], capture=("representation",))
    return seen["representation"][0].numpy()


def test_evaluate_and_probe_return_what_the_verbs_print(
    run: vitkit.Run, folder: Path, capsys: pytest.CaptureFixture[str]
):
    data = folder / "photos"
    scores = as_json(asdict(run.evaluate(data)))
    assert scores == shared(printed_json(["evaluate", run, data], capsys), scores)
    assert run.evaluation.top1 == run.evaluate(data).top1
    knn = as_json(asdict(run.probe(data)))
    assert knn == shared(printed_json(["probe", run, data, "--method", "knn"], capsys), knn)
    few = as_json(asdict(run.probe(data, "fewshot", shots=[1, 2], seeds=2)))
    options = ["--method", "fewshot", "--shots", 1, 2, "--seeds", 2]
    assert few == shared(printed_json(["probe", run, data, *options], capsys), few)


def test_check_returns_what_the_verb_prints(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    report = vitkit.check(folder / "photos", sheet="sheet.png")
    assert report.ok
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 100
    found = as_json(report_as_json(report))
    assert found == shared(printed_json(["check", folder / "photos"], capsys), found)
    shutil.copytree(folder / "photos", "broken")
    Path("broken/cat/0.jpg").write_bytes(b"no image")
    report = vitkit.check("broken")
    assert not report.ok
    assert [name for name, _ in report.bad] == ["cat/0.jpg"]


def test_predict_takes_images_in_any_form_and_keeps_their_order(run: vitkit.Run, folder: Path, tmp_path: Path):
    photo, text = folder / "photos/cat/0.jpg", tmp_path / "text.jpg"
    text.write_text("no image")
    with Image.open(photo) as opened:
        pixels = np.asarray(opened)
        forms = [photo, str(photo), photo.read_bytes(), io.BytesIO(photo.read_bytes()), opened.copy(), pixels]
    expected = vitkit.Classifier(run)(photo).probabilities
    predictions = run.predict([*forms, tmp_path / "missing.jpg", text, folder / "photos/dog"])
    # simplejpeg and Pillow may round a pixel of a JPEG differently
    for prediction in predictions[: len(forms)]:
        np.testing.assert_allclose(prediction.probabilities, expected, atol=1e-3)
    missing, broken, *dogs = predictions[len(forms) :]
    assert "No such file" in missing.error
    assert "not an image" in broken.error
    assert [Path(prediction.name) for prediction in dogs] == sorted((folder / "photos/dog").iterdir())
    assert run.predict([]) == []


def test_predict_returns_the_rows_of_the_verb(run: vitkit.Run, folder: Path, capsys: pytest.CaptureFixture[str]):
    predictions = run.predict(f"{folder}/photos/*/[0-3].jpg")
    capsys.readouterr()
    main(["predict", str(run), f"{folder}/photos/*/[0-3].jpg", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 12
    assert [as_json(prediction.record(5)) for prediction in predictions] == rows


def test_embeddings_are_the_representation_of_each_image_in_order(run: vitkit.Run, folder: Path):
    paths = sorted((folder / "photos").glob("*/*.jpg"))
    features = run.embed(paths)
    assert features.dtype == np.float32
    # a row of a batch and a single image are summed in another order
    tolerance = 1e-5
    np.testing.assert_allclose(features, [representation(run, path) for path in paths], atol=tolerance, rtol=tolerance)
    np.testing.assert_array_equal(run.embed(folder / "photos"), features)
    np.testing.assert_array_equal(run.embed(paths, workers=1), features)
    with Image.open(paths[0]) as image:
        mixed = run.embed([image.copy(), paths[0].read_bytes(), paths[1]])
    np.testing.assert_allclose(mixed[2], features[1], atol=tolerance, rtol=tolerance)
    assert mixed.shape == (3, features.shape[1])
    classifier = vitkit.Classifier(run)
    np.testing.assert_array_equal(classifier.embed(paths), features)
    assert classifier.embed(paths[0]).shape == (1, features.shape[1])
    head = LogisticRegression(max_iter=5000, C=1e6).fit(features, [path.parent.name for path in paths])
    assert set(head.predict(features)) <= {"cat", "dog", "owl"}


def test_preprocessing_can_be_overridden_for_every_method(run: vitkit.Run, folder: Path):
    photo = folder / "photos/dog/3.jpg"
    other = vitkit.Run(run, preprocessing={"resize": "squash", "mean": [0.4], "std": [0.3]})
    with Image.open(photo) as image:
        pixels = np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC), np.float32) / 255
    expected = torch.from_numpy((pixels - 0.4) / 0.3).permute(2, 0, 1)
    # Pillow rounds to a grey level in each of its two passes, and a JPEG decoder may differ from another by one
    torch.testing.assert_close(vitkit.preprocess(other.model)(photo), expected, atol=3 / 255 / 0.3, rtol=0)
    np.testing.assert_allclose(other.embed(photo)[0], representation(other, photo), atol=1e-5)
    assert not np.allclose(other.embed(photo), run.embed(photo), atol=1e-3)
    assert run.model.metadata.preprocessing.resize == "crop"


def test_an_unreadable_image_is_named_where_features_are_asked_for(run: vitkit.Run, folder: Path, tmp_path: Path):
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(vitkit.VitkitError, match=r"2 of 3 images cannot be read(.|\n)*missing\.jpg(.|\n)*text\.jpg"):
        run.embed([folder / "photos/cat/0.jpg", tmp_path / "missing.jpg", tmp_path / "text.jpg"])
    with pytest.raises(vitkit.VitkitError, match="no images"):
        run.embed([])


def test_weights_without_classes_have_features_but_no_predictions(folder: Path, tmp_path: Path):
    vitkit.save(vitkit.create("mu/4", classes=0, image=32), tmp_path / "pre")
    run = vitkit.Run(tmp_path / "pre")
    assert run.embed(folder / "photos").shape == (18, run.model.config.width)
    assert "0 classes" in repr(run)
    with pytest.raises(vitkit.VitkitError, match="has no classes to predict"):
        run.predict(folder / "photos/cat/0.jpg")
    with pytest.raises(vitkit.VitkitError, match="not a run folder, so it has no record"):
        run.metrics()


def test_inspect_and_export_write_files_and_return_their_measurements(run: vitkit.Run, folder: Path, tmp_path: Path):
    page = run.inspect([folder / "photos/cat/0.jpg"], tmp_path / "inside", layers=[0], tokens=[(1, 2)])
    assert page.path == tmp_path / "inside/inspect.html"
    assert (tmp_path / "inside/attention-1-1-2.png") in page.figures
    assert as_json(page.record())["images"] == 1
    exported = run.export(tmp_path / "model.pt2")
    assert exported.path.stat().st_size == exported.bytes
    assert exported.comparison.same == exported.comparison.images
    ours = run.predict(folder / "photos/cat/0.jpg")[0].probabilities
    with Image.open(folder / "photos/cat/0.jpg") as image:
        pixels = torch.from_numpy(np.array(image))[None]
    theirs, _ = torch.export.load(exported.path).module()(pixels)
    np.testing.assert_allclose(theirs[0].detach(), ours, atol=1e-3)
    with pytest.raises(vitkit.VitkitError, match="exists already"):
        run.export(tmp_path / "model.pt2")


def test_the_record_of_a_run_is_plain_data(run: vitkit.Run, folder: Path):
    assert run.report.is_file()
    assert run.config["model"] == "mu/4"
    assert [line["step"] for line in run.metrics() if line["kind"] == "step"] == [1, 2]
    assert run.labels == ("cat", "dog", "owl")
    assert repr(run) == (
        f"Run('{folder}/runs/photos', mu/4 at 32 px, 3 classes, "
        f"{run.evaluation.top1.value:.1%} top-1 on {run.evaluation.images} images)"
    )
    assert repr(vitkit.Run(folder / "runs/photos/model.safetensors")).endswith("images)")
    assert run / "report.html" == run.report


def test_a_stopped_run_resumes_to_the_same_weights(run: vitkit.Run, folder: Path, tmp_path: Path):
    shutil.copytree(folder / "runs/photos", tmp_path / "stopped")
    for name in ("model.safetensors", "model.json", "report.html"):
        (tmp_path / "stopped" / name).unlink()
    stopped = vitkit.Run(tmp_path / "stopped")
    assert repr(stopped) == f"Run('{tmp_path}/stopped', incomplete)"
    checkpoint = stopped.model  # of its latest checkpoint
    assert stopped.resume() is stopped
    assert stopped.report.is_file()
    assert stopped.model is not checkpoint
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(stopped.model.state_dict()[name], tensor)


def test_only_training_prints(run: vitkit.Run, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    vitkit.check(folder / "photos")
    run.evaluate(folder / "photos")
    run.predict(folder / "photos")
    run.embed(folder / "photos")
    run.probe(folder / "photos")
    run.inspect(folder / "photos", tmp_path / "inside")
    assert capfd.readouterr().out == ""
    other = vitkit.fit(folder / "photos", **{**SMALL, **SMALL_MODEL, "weights": run}, out=tmp_path / "other")
    assert "score " in capfd.readouterr().out
    assert other.config["weights"] == str(run)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run, data: vitkit.Run(f"{run}s"), "does not exist; did you mean photos"),
        (lambda run, data: vitkit.Run("B/16"), "B/16 is the name of a model"),
        (lambda run, data: vitkit.Run(run, device="tpu"), "tpu"),
        (lambda run, data: vitkit.Run(run, labels=["a"]).predict(data), "1 class names for a model of 3 classes"),
        (
            lambda run, data: vitkit.Run(run, preprocessing={"crops": 0.9}),
            "preprocessing has no 'crops'; did you mean crop",
        ),
        (lambda run, data: vitkit.Run(run, preprocessing={"crop": 9}).predict(data), "crop=9 is a share"),
        (lambda run, data: vitkit.check("nowhere"), "nowhere does not exist"),
        (lambda run, data: run.evaluate("nowhere"), "nowhere does not exist"),
        (lambda run, data: run.evaluate(data, batch=0), "batch=0 must be a whole number, 1 or more"),
        (lambda run, data: run.evaluate(data, precision="fp9"), "precision='fp9' is not known"),
        (lambda run, data: run.predict(data, workers=-1), "workers=-1 must be a whole number, 0 or more"),
        (lambda run, data: run.predict(3), "an image cannot be of the type int"),
        (lambda run, data: run.predict([data, 3]), "an image cannot be of the type int"),
        (lambda run, data: run.probe(data, "kn"), "method='kn' is not known; did you mean knn"),
        (lambda run, data: run.probe(data, "fewshot", shots=[0]), "shots=0 must be a whole number, 1 or more"),
        (lambda run, data: run.inspect([]), "no images named"),
        (lambda run, data: run.export("model.txt"), r"a name that ends in \.onnx is needed"),
        (lambda run, data: run.export("model.pt2", int8=True), "int8 needs --to onnx"),
    ],
)
def test_a_mistake_is_an_error_with_advice(call: Any, message: str, run: vitkit.Run, folder: Path):
    with pytest.raises(vitkit.VitkitError, match=message):
        call(run, folder / "photos")


def test_importing_vitkit_imports_nothing_heavy():
    script = "import sys, vitkit; dir(vitkit); print({'torch', 'numpy', 'PIL'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "set()"


def test_every_exported_name_exists_and_no_module_has_its_name():
    for name in vitkit.__all__:
        assert callable(getattr(vitkit, name))
        assert not (ROOT / f"{name}.py").exists()
        assert not (ROOT / name).is_dir()
