"""Exported files, opened again: the same answers, all that belongs to them, and nothing that should not travel."""

from __future__ import annotations

import copy
import io
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import vitkit
from tests.data.images import oriented, scene
from tests.export.exports import DEEP, PICTURES, assert_same, model, written
from tests.model.kinds import KINDS, make
from vitkit.cli.export import export as verb
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.fashion import CLASSES
from vitkit.errors import ConfigError, WeightsError
from vitkit.export.compare import TOLERANCE, judge
from vitkit.export.exported import Exported, open_exported
from vitkit.export.metadata import describe, read_metadata, usage
from vitkit.export.onnx_file import ExportError, OnnxModel
from vitkit.export.pt2 import Program
from vitkit.export.trace import Input, trace
from vitkit.export.write import Format, export
from vitkit.predict.classifier import Classifier
from vitkit.predict.inputs import pixels_of
from vitkit.predict.samples import find_samples
from vitkit.run_folder import RunFolder

SLOW = pytest.mark.slow
FORMATS = ["pt2", pytest.param("onnx", marks=SLOW)]  # torch takes seconds for each .onnx file


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(model())


@pytest.fixture(scope="module", params=["onnx", "pt2"])
def file(request: pytest.FixtureRequest, classifier: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("exported") / f"model.{request.param}"
    export(classifier, path, to=request.param)
    return open_exported(path)


def test_odd_pictures_get_the_same_answers(classifier: Classifier, file: Exported):
    assert_same(classifier, file, [*PICTURES.values(), *PICTURES.values()])  # twice: those of one size go together


def test_the_file_carries_classes_preprocessing_and_where_it_comes_from(classifier: Classifier, file: Exported):
    record = read_metadata(file.path)
    assert record["labels"] == list(CLASSES)
    assert Preprocessing.from_record(record["preprocessing"]) == classifier.exact.preprocessing
    assert (record["variant"], record["vitkit"]) == ("mu/8", vitkit.__version__)
    assert (record["input"], record["image"], record["multilabel"]) == ("uint8", [32, 32], False)
    assert "(batch, height, width, 3) uint8 on 0 to 255, red green blue" in record["feed"]
    if isinstance(file, OnnxModel):  # as those see it who have onnxruntime and nothing else
        assert file.session.get_modelmeta().description == record["feed"]


def ask(lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """As someone would who has the file and a picture beside it, and not vitkit."""
    monkeypatch.chdir(folder)
    there: dict = {}
    exec("\n".join(lines), there)
    assert there["probabilities"].shape == there["logits"].shape
    return np.asarray(there["probabilities"].detach() if hasattr(there["logits"], "detach") else there["probabilities"])


def test_the_lines_that_come_with_a_file_ask_it(
    classifier: Classifier, file: Exported, monkeypatch: pytest.MonkeyPatch
):
    record = json.loads(file.path.with_name(f"{file.path.name}.json").read_text())
    (file.path.parent / "picture.jpg").write_bytes(oriented("JPEG", 6, quality=95))
    told = ask(record["ask"], file.path.parent, monkeypatch)
    np.testing.assert_allclose(told[0], classifier(file.path.parent / "picture.jpg").probabilities, atol=TOLERANCE)
    assert len(record["ask"]) == 3
    assert record["takes"].startswith("(batch, height, width, 3) uint8")
    assert f"(batch, {len(CLASSES)}) each" in record["gives"]


@pytest.mark.parametrize(
    ("kind", "input"),
    [
        ("token", "float32"),
        ("token", "tensor"),
        ("five channels", "uint8"),
        ("non-square, one channel", "uint8"),
        ("non-square, one channel", "float32"),
    ],
)
def test_there_are_lines_for_every_input(kind: str, input: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    classifier = Classifier(model(kind) if kind != "five channels" else make(kind))
    channels = classifier.model.config.channels
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, channels), dtype=np.uint8)
    if channels in (1, 3):
        Image.fromarray(pixels.squeeze()).save(tmp_path / "picture.jpg", quality=95)
        pixels = pixels_of(tmp_path / "picture.jpg", channels=channels)
    file = written(classifier, tmp_path / "model.pt2", input)
    np.save(tmp_path / "picture.npy", classifier.see(pixels).numpy() if input == "tensor" else pixels)
    told = ask(usage("model.pt2", file.metadata)["ask"], tmp_path, monkeypatch)
    np.testing.assert_allclose(told[0], classifier(pixels).probabilities, atol=TOLERANCE)


def test_the_lines_in_the_verbs_help_are_those_that_are_printed(file: Exported):
    documented = [line.strip() for line in (verb.__doc__ or "").splitlines()]
    lines = usage(file.path.name, file.metadata)["ask"]
    assert {*(lines if isinstance(file, OnnxModel) else lines[1:])} <= {*documented}


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "weights"])
def test_who_gives_an_exported_file_for_weights_hears_what_it_is(
    file: Exported, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / name  # whatever it is called
    path.write_bytes(file.path.read_bytes())
    for words in (["predict", str(path), "cat.jpg"], ["serve", str(path)]):
        (tmp_path / "cat.jpg").write_bytes(b"")
        with pytest.raises(SystemExit) as stopped:
            main([word.replace("cat.jpg", str(tmp_path / "cat.jpg")) for word in words])
        assert stopped.value.code == 2
        told = capsys.readouterr().err
        assert f"{path} is an exported model, a program for other runtimes" in told
        assert "the run folder or the weights file that it was exported from" in told
    vitkit.save(model(), tmp_path)
    with pytest.raises(WeightsError, match=f"try  {tmp_path}, the run folder that it lies in"):
        vitkit.load(path)


def test_no_path_of_this_machine_travels_along(file: Exported):
    content = file.path.read_bytes()
    if isinstance(file, Program):
        with zipfile.ZipFile(file.path) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
    for path in (Path(vitkit.__file__).parent, Path(torch.__file__).parent, Path.home()):
        assert str(path).encode() not in content


def test_the_comparison_lies_beside_the_file(file: Exported):
    record = json.loads(file.path.with_name(f"{file.path.name}.json").read_text())
    found = record["comparison"]
    assert found["same"] == found["pictures"] == 64 + 6
    assert found["sizes"] == 7
    assert found["largest"] <= found["tolerance"] == TOLERANCE
    assert found["data"] == "fashion, inside the package"


def test_the_onnx_file_is_what_it_says(file: Exported):
    if not isinstance(file, OnnxModel):
        pytest.skip("about the other format")
    content = onnx.load(file.path)
    onnx.checker.check_model(content, full_check=True)
    [given] = content.graph.input
    sizes = [size.dim_param or size.dim_value for size in given.type.tensor_type.shape.dim]
    assert (given.name, sizes) == ("pictures", ["batch", "height", "width", 3])
    assert given.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [value.name for value in content.graph.output] == ["probabilities", "logits"]
    assert {entry.domain for entry in content.opset_import} == {""}  # nothing that only one runtime knows


def test_a_program_holds_no_pickle_and_one_that_does_is_not_opened(classifier: Classifier, tmp_path: Path):
    path = tmp_path / "model.pt2"
    program = trace(classifier, "tensor")
    torch.export.save(program, path, extra_files={"vitkit.json": json.dumps(describe(classifier, "tensor", "float32"))})
    with pytest.raises(WeightsError, match="could run code"):
        Program(path)
    written(classifier, path, "tensor", program)
    with zipfile.ZipFile(path) as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    assert not any(content[:2] == b"\x80\x02" or content[:2] == b"PK" for content in contents)


class Mine:
    """What a stranger would have run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Mine, "ran", True)

    ran = False


@pytest.mark.parametrize(
    "name",
    [
        "serialized_state_dict.pt",  # of torch 2.7's layout, which torch falls back to
        "archive/DATA/SAMPLE_INPUTS/MODEL.PT",  # and torch finds names whatever their case
        "archive/data/constants/custom_obj_0",
        "archive/data/aotinductor/model/a.so",
    ],
)
def test_a_program_with_more_in_it_than_was_exported_is_not_opened(classifier: Classifier, name: str, tmp_path: Path):
    path = tmp_path / "model.pt2"
    written(classifier, path, "tensor")
    code = io.BytesIO()
    torch.save({"weight": Mine()}, code)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, code.getvalue())
    with pytest.raises(WeightsError, match="could run code"):
        Program(path)
    assert not Mine.ran


@pytest.mark.slow  # among others, test_same.py asks files of both formats about 16 bits
@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_pictures_of_16_bits_go_in_as_floats(classifier: Classifier, format: str, tmp_path: Path):
    file = written(classifier, tmp_path / f"model.{format}", "float32")
    assert_same(classifier, file, [DEEP, *PICTURES.values()])


def test_a_file_for_bytes_says_how_to_ask_it_about_16_bits(file: Exported):
    with pytest.raises(ConfigError, match="--input float32"):
        file.probabilities([pixels_of(DEEP)])


@pytest.mark.parametrize("format", FORMATS)
def test_a_tensor_goes_in_preprocessed(classifier: Classifier, format: str, tmp_path: Path):
    file = written(classifier, tmp_path / f"model.{format}", "tensor")
    assert_same(classifier, file, [*PICTURES.values()])
    seen = torch.stack([classifier.see(picture) for picture in PICTURES.values()])
    np.testing.assert_allclose(file.run(seen.numpy()), classifier.probabilities(seen), atol=1e-5)


def test_several_labels_have_a_probability_each(tmp_path: Path):
    made = model(resize="letterbox", interpolation="bilinear")
    made.metadata = replace(made.metadata, provenance={"multilabel": True})
    classifier = Classifier(made)
    file = written(classifier, tmp_path / "model.pt2")
    assert_same(classifier, file, [*PICTURES.values()])
    assert file.metadata["multilabel"]
    assert not np.allclose(file.probabilities([scene()]).sum(), 1)


@pytest.mark.parametrize(
    ("kind", "format", "input"),
    [
        *(
            (kind, "pt2", "tensor") for kind in ("axial", "relative", "attention pool", "root hybrid")
        ),  # the quickest way
        *(
            pytest.param(kind, format, "uint8", marks=SLOW)
            for kind in KINDS
            if kind != "no head"
            for format in ("onnx", "pt2")
        ),
    ],
)
def test_models_of_every_kind(kind: str, format: str, input: Input, tmp_path: Path):
    classifier = Classifier(model(kind, resize="squash"))
    channels = classifier.model.config.channels
    bands = np.concatenate([scene(50, 70), scene(50, 70)[:, ::-1]], axis=2)
    pictures = [bands[:, :, :channels], bands[:31, :, :channels], bands[:1, :1, :channels]]
    assert_same(classifier, written(classifier, tmp_path / f"model.{format}", input), pictures)


def test_the_model_itself_is_traced_and_stays_as_it_was(classifier: Classifier, tmp_path: Path):
    before = {name: tensor.clone() for name, tensor in classifier.model.state_dict().items()}
    addresses = {tensor.data_ptr() for tensor in classifier.model.parameters()}
    program = trace(classifier, "tensor")
    assert {tensor.data_ptr() for tensor in program.state_dict.values()} == addresses
    for name, tensor in classifier.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_dropout_is_off():
    made = vitkit.create("mu/8", classes=10, image=32, dropout=0.5, stochastic_depth=0.5)
    torch.nn.init.normal_(made.head.logits.weight)
    classifier = Classifier(made)
    made.train()
    seen = torch.rand(4, 3, 32, 32)
    told = trace(classifier, "tensor").module()(seen)[0]
    made.eval()
    np.testing.assert_allclose(told.detach(), classifier.probabilities(seen), atol=1e-6)


# what can go wrong


def test_a_file_that_answers_otherwise_is_not_kept_and_the_one_before_it_stays(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = Classifier(copy.deepcopy(classifier.model))
    with torch.no_grad():
        other.model.head.logits.bias[0] += 0.01
    monkeypatch.setattr("vitkit.export.write.trace", lambda _, input: trace(other, input))
    path = tmp_path / "model.pt2"
    path.write_text("earlier")
    with pytest.raises(ConfigError, match="exists already"):
        export(classifier, path, to="pt2")
    with pytest.raises(ExportError, match="does not answer as the model does"):
        export(classifier, path, to="pt2", input="tensor", overwrite=True)
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_onnx_without_its_packages_says_what_to_install(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r'pip install "vitkit\[export\]"'):
        export(classifier, tmp_path / "model.onnx")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 no zip"])
def test_files_that_are_no_exports_are_named(content: bytes, tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for ask in (read_metadata, open_exported, Program, OnnxModel):
        with pytest.raises(WeightsError, match=r"model\.onnx"):
            ask(path)


def test_the_classes_that_are_likeliest_may_differ_only_where_they_tie():
    def of(*rows: tuple[float, ...]) -> np.ndarray:
        return np.array(rows, np.float32)

    none = np.array([-1])
    tie = judge(of((0.5, 0.49995)), of((0.49995, 0.5)), none, "", 1)
    assert (tie.same, tie.agree, tie.equal) == (0, 1, True)
    other = judge(of((0.51, 0.49)), of((0.49, 0.51)), none, "", 1)
    assert (other.agree, other.equal) == (0, False)
    assert not judge(of((0.51, 0.49)), of((np.nan, 0.49)), none, "", 1).equal


def test_of_several_labels_one_that_is_lost_is_another_answer():
    truth, told = np.array([[0.9, 0.6]], np.float32), np.array([[0.9, 0.4]], np.float32)
    assert judge(truth, told, np.array([-1]), "", 1).drop == 0
    assert judge(truth, told, np.array([-1]), "", 1, multilabel=True).drop == 100


def test_a_loss_of_as_much_as_is_allowed_is_allowed():
    def answers(right: int) -> np.ndarray:
        return np.repeat(np.array([[0.9, 0.1], [0.1, 0.9]], np.float32), [right, 200 - right], axis=0)

    assert judge(answers(183), answers(182), np.zeros(200, np.int64), "", 1).drop == 0.5  # 91.5 % to 91 %


# the verb


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder as a fit leaves it, untrained."""
    folder = RunFolder(tmp_path / "run")
    made = model("non-square, one channel")
    vitkit.save(made, folder.path)
    folder.write_config(Fit(data="fashion", model="mu/8", channels=1, image=(16, 40)))
    folder.add_to_record(data={})
    return folder.path


@pytest.mark.parametrize("format", FORMATS)
def test_the_verb_compares_on_the_runs_own_data(run: Path, format: Format, capfd: pytest.CaptureFixture[str]):
    verb(str(run), format)
    told = capfd.readouterr()
    assert (run / f"model.{format}").is_file()
    assert told.out.startswith(f"written    {run / f'model.{format}'}")
    assert "70 of 70 answers the same" in told.out
    assert "fashion, test" in told.out
    assert "ask it     import numpy, " in told.out
    assert "takes      (batch, height, width, 1) uint8" in told.out
    assert told.err.startswith("exporting ")
    assert told.err.count("\n") == 1  # nothing of what exporters tell about themselves


def test_it_is_said_where_pictures_come_from_when_the_runs_are_gone(run: Path, tmp_path: Path):
    folder = RunFolder(run)
    folder.write_config(replace(folder.config(), data=str(tmp_path / "gone")))
    samples = find_samples(str(run), vitkit.load(run))
    assert samples.words.startswith("fashion, inside the package; the run's own data cannot be used: ")
    assert not samples.labelled


def test_options_that_cannot_be_followed_are_refused(run: Path, tmp_path: Path):
    folder = tmp_path / "folder.pt2"
    folder.mkdir()
    for words, options in {
        "--max-drop and --pictures are for --int8": {"to": "onnx", "max_drop": 1.0},
        "int8 is for onnx": {"to": "pt2", "int8": True},
        "ends in .onnx": {"to": "onnx", "out": tmp_path / "model.pt2"},
        "0 or more": {"to": "onnx", "int8": True, "max_drop": -1.0},
        "cannot be written: File name too long": {"to": "pt2", "out": tmp_path / f"{'long' * 80}.pt2"},
        "is a folder": {"to": "pt2", "out": folder},
    }.items():
        with pytest.raises(vitkit.VitkitError, match=words):
            verb(str(run), **options)  # type: ignore[arg-type]
