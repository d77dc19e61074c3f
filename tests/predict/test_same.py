"""Classifier, the command line, ONNX, pt2 and HTTP give the same predictions for the same images."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

import vitkit
from tests.predict.small_model import odd_images, real_images, small_model
from vitkit.cli.main import main
from vitkit.export.compare import TOLERANCE
from vitkit.export.exported import open_exported
from vitkit.predict.inputs import pixels_of

running_server = pytest.importorskip("tests.serve.servers", reason="needs vitkit[serve]").running_server
ModelPool = pytest.importorskip("vitkit.serve.model_pool", reason="needs vitkit[serve]").ModelPool

Probabilities = dict[str, NDArray[np.float32]]  # of each image, by its path

COUNT = 200


class Interfaces:
    """The probabilities of each interface for the same images."""

    def __init__(self, run: Path, images: list[Path], address: str, capsys: pytest.CaptureFixture[str]):
        self.run, self.images, self.address, self.capsys = run, images, address, capsys
        self.classes = len(vitkit.Classifier(run).labels)

    def classifier(self) -> Probabilities:
        results = vitkit.Classifier(self.run)(self.images)
        return {prediction.name: prediction.probabilities for prediction in results}  # type: ignore[misc]

    def command_line(self) -> Probabilities:
        main(
            [
                "predict",
                str(self.run),
                *map(str, self.images),
                "--json",
                "--top",
                str(self.classes),
                "--device",
                "cpu",
            ]
        )
        rows = [json.loads(line) for line in self.capsys.readouterr().out.splitlines()]
        return {row["image"]: self._in_order(row["answers"]) for row in rows}

    def exported(self, to: str) -> Probabilities:
        # float32 takes the 16-bit images as well; what it computes is the same
        main(["export", str(self.run), "--to", to, "--input", "float32", "--overwrite", "--json"])
        out, err = self.capsys.readouterr()
        assert err.count("\n") == 1, err  # nothing of what exporters tell about themselves
        file = open_exported(json.loads(out)["file"])
        results = file.probabilities([pixels_of(path) for path in self.images])
        return dict(zip(map(str, self.images), results, strict=True))

    def form(self) -> Probabilities:
        return self._asked(lambda paths: {"files": [("images", (path.name, path.read_bytes())) for path in paths]})

    def base64(self) -> Probabilities:
        return self._asked(
            lambda paths: {"json": {"images": [base64.b64encode(path.read_bytes()).decode() for path in paths]}}
        )

    def _asked(self, content: Any) -> Probabilities:
        results: Probabilities = {}
        with httpx.Client(base_url=self.address, timeout=120) as client:
            for start in range(0, len(self.images), 40):
                part = self.images[start : start + 40]
                answer = client.post("/v1/predict", params={"top": self.classes}, **content(part))
                assert answer.status_code == 200, answer.text
                for path, prediction in zip(part, answer.json()["predictions"], strict=True):
                    assert prediction["error"] is None, (path, prediction)
                    results[str(path)] = self._in_order(prediction["answers"])
        return results

    def _in_order(self, answers: list[dict[str, Any]]) -> NDArray[np.float32]:
        row = np.full(self.classes, np.nan, np.float32)
        for answer in answers:
            row[answer["index"]] = answer["probability"]
        return row


def pets(folder: Path, shared: Path) -> list[Path]:
    """Extract photos of every breed."""
    import tarfile

    with tarfile.open(shared / "data" / "pets160.tar") as tar:
        members = [member for member in tar.getmembers() if member.isfile() and member.name.startswith("test/")]
        members = [members[index] for index in np.linspace(0, len(members) - 1, COUNT).astype(int)]
        for member in members:
            tar.extract(member, folder, filter="data")
    return [folder / member.name for member in members]


@pytest.fixture(params=["inside the package", pytest.param("pets", marks=pytest.mark.slow)])
def interfaces(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Interfaces]:
    run, photos = tmp_path / "run", tmp_path / "photos"
    photos.mkdir()
    if request.param == "pets":
        shared = request.getfixturevalue("shared")
        vitkit.save(vitkit.load("ti16"), run)
        images = pets(photos, shared)
    else:
        vitkit.save(small_model(crop=0.9), run)
        images = real_images(photos, COUNT)
    for name, content in odd_images().items():
        images.append(photos / name)
        images[-1].write_bytes(content)
    with ModelPool({"run": vitkit.Classifier(run)}) as service, running_server(service) as (address, _, _):
        yield Interfaces(run, images, address, capsys)


def test_the_same_images_have_the_same_predictions_everywhere(interfaces: Interfaces):
    exact = interfaces.classifier()
    assert len(exact) == COUNT + len(odd_images())
    assert len({int(row.argmax()) for row in exact.values()}) >= 5, "a model with one prediction for all shows nothing"
    for interface, results in {
        "command line": interfaces.command_line(),
        "ONNX": interfaces.exported("onnx"),
        "pt2": interfaces.exported("pt2"),
        "HTTP, a form": interfaces.form(),
        "HTTP, base64": interfaces.base64(),
    }.items():
        assert results.keys() == exact.keys()
        for name, row in results.items():
            assert row.argmax() == exact[name].argmax(), (interface, name)
            np.testing.assert_allclose(row, exact[name], atol=TOLERANCE, rtol=0, err_msg=f"{interface}, {name}")
