"""One artefact, the same answer everywhere: Classifier, the command line, ONNX, pt2 and HTTP are asked the same."""

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
from tests.predict.coloured import colour_model, odd_pictures, real_pictures
from tests.serve.small import in_process
from vitkit.cli.main import main
from vitkit.export.exported import open_exported
from vitkit.predict.inputs import pixels_of
from vitkit.serve.model_pool import Service

Probabilities = dict[str, NDArray[np.float32]]  # of each picture, by its path

COUNT = 200
WITHIN = 1e-4


class Answers:
    """What each way says to the same pictures."""

    def __init__(self, run: Path, pictures: list[Path], address: str, capsys: pytest.CaptureFixture[str]):
        self.run, self.pictures, self.address, self.capsys = run, pictures, address, capsys
        self.classes = len(vitkit.Classifier(run).labels)

    def classifier(self) -> Probabilities:
        told = vitkit.Classifier(self.run)(self.pictures)
        return {prediction.name: prediction.probabilities for prediction in told}  # type: ignore[misc]

    def command_line(self) -> Probabilities:
        main(
            [
                "predict",
                str(self.run),
                *map(str, self.pictures),
                "--json",
                "--top",
                str(self.classes),
                "--device",
                "cpu",
            ]
        )
        rows = [json.loads(line) for line in self.capsys.readouterr().out.splitlines()]
        return {row["picture"]: self._in_order(row["answers"]) for row in rows}

    def exported(self, to: str) -> Probabilities:
        # float32 takes the 16-bit pictures as well; what it computes is the same
        main(["export", str(self.run), "--to", to, "--input", "float32", "--overwrite", "--json"])
        out, err = self.capsys.readouterr()
        assert err.count("\n") == 1, err  # nothing of what exporters tell about themselves
        file = open_exported(json.loads(out)["file"])
        told = file.probabilities([pixels_of(path) for path in self.pictures])
        return dict(zip(map(str, self.pictures), told, strict=True))

    def form(self) -> Probabilities:
        return self._asked(lambda paths: {"files": [("pictures", (path.name, path.read_bytes())) for path in paths]})

    def base64(self) -> Probabilities:
        return self._asked(
            lambda paths: {"json": {"pictures": [base64.b64encode(path.read_bytes()).decode() for path in paths]}}
        )

    def _asked(self, content: Any) -> Probabilities:
        told: Probabilities = {}
        with httpx.Client(base_url=self.address, timeout=120) as client:
            for start in range(0, len(self.pictures), 40):
                part = self.pictures[start : start + 40]
                answer = client.post("/v1/predict", params={"top": self.classes}, **content(part))
                assert answer.status_code == 200, answer.text
                for path, prediction in zip(part, answer.json()["predictions"], strict=True):
                    assert prediction["error"] is None, (path, prediction)
                    told[str(path)] = self._in_order(prediction["answers"])
        return told

    def _in_order(self, answers: list[dict[str, Any]]) -> NDArray[np.float32]:
        row = np.full(self.classes, np.nan, np.float32)
        for answer in answers:
            row[answer["index"]] = answer["probability"]
        return row


def pets(folder: Path, shared: Path) -> list[Path]:
    """Photos of every breed."""
    import tarfile

    with tarfile.open(shared / "data" / "pets160.tar") as tar:
        members = [member for member in tar.getmembers() if member.isfile() and member.name.startswith("test/")]
        members = [members[index] for index in np.linspace(0, len(members) - 1, COUNT).astype(int)]
        for member in members:
            tar.extract(member, folder, filter="data")
    return [folder / member.name for member in members]


@pytest.fixture(params=["inside the package", pytest.param("pets", marks=pytest.mark.slow)])
def asked(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Answers]:
    run, photos = tmp_path / "run", tmp_path / "photos"
    photos.mkdir()
    if request.param == "pets":
        shared = request.getfixturevalue("shared")
        vitkit.save(vitkit.load(shared / "weights" / "vit_ti16_in1k_timm.safetensors"), run)
        pictures = pets(photos, shared)
    else:
        vitkit.save(colour_model(crop=0.9), run)
        pictures = real_pictures(photos, COUNT)
    for name, content in odd_pictures().items():
        pictures.append(photos / name)
        pictures[-1].write_bytes(content)
    with Service({"run": vitkit.Classifier(run)}) as service, in_process(service) as (address, _, _):
        yield Answers(run, pictures, address, capsys)


def test_the_same_pictures_have_the_same_answers_everywhere(asked: Answers):
    truth = asked.classifier()
    assert len(truth) == COUNT + len(odd_pictures())
    assert len({int(row.argmax()) for row in truth.values()}) >= 5, "a model that says the same to all shows nothing"
    ways = {
        "command line": asked.command_line(),
        "ONNX": asked.exported("onnx"),
        "pt2": asked.exported("pt2"),
        "HTTP, a form": asked.form(),
        "HTTP, base64": asked.base64(),
    }
    for way, told in ways.items():
        assert told.keys() == truth.keys()
        for name, row in told.items():
            assert row.argmax() == truth[name].argmax(), (way, name)
            np.testing.assert_allclose(row, truth[name], atol=WITHIN, rtol=0, err_msg=f"{way}, {name}")
