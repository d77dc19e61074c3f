"""Exported files, opened again: the same predictions, all their metadata, and nothing private."""

from __future__ import annotations

import copy
import inspect
import io
import json
import sys
import textwrap
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
from tests.data.sample_images import scene
from tests.export.exported_files import DEEP, IMAGES, assert_same, model, odd_images, written
from tests.model.kinds import ALL_KINDS, make
from vitkit.cli.export import export as verb
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.sources.fashion import CLASSES
from vitkit.errors import ConfigError, WeightsError
from vitkit.export.compare import TOLERANCE, compare_probabilities
from vitkit.export.exported import ExportedModel, OnnxModel, Pt2Model, open_exported
from vitkit.export.metadata import ExportError, build_metadata, read_metadata
from vitkit.export.trace import ExportInput, trace
from vitkit.export.usage import usage
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
    return Classifier(model(rounding="timm"))


@pytest.fixture(scope="module", params=["onnx", "pt2"])
def file(
    request: pytest.FixtureRequest, classifier: Classifier, tmp_path_factory: pytest.TempPathFactory
) -> ExportedModel:
    path = tmp_path_factory.mktemp("exported") / f"model.{request.param}"
    export(classifier, path, to=request.param)
    return open_exported(path)


def test_odd_images_get_the_same_predictions(classifier: Classifier, file: ExportedModel):
    assert_same(classifier, file, [*IMAGES.values(), *IMAGES.values()])  # twice: those of one size go together


def test_the_file_carries_classes_preprocessing_and_where_it_comes_from(classifier: Classifier, file: ExportedModel):
    record = read_metadata(file.path)
    assert record["labels"] == list(CLASSES)
    assert Preprocessing.from_record(record["preprocessing"]) == classifier.transform.preprocessing
    assert (record["variant"], record["vitkit"]) == ("mu/8", vitkit.__version__)
    assert (record["input"], record["image"], record["multilabel"]) == ("uint8", (32, 32), False)
    assert "(batch, height, width, 3) uint8 on 0 to 255, red green blue" in record["feed"]
    if isinstance(file, OnnxModel):  # as those see it who have onnxruntime and nothing else
        assert file.session.get_modelmeta().description == record["feed"]


def run_lines(lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Run lines as somebody would who has the file and an image, but not vitkit."""
    monkeypatch.chdir(folder)
    namespace: dict = {}
    exec("\n".join(lines), namespace)
    assert namespace["probabilities"].shape == namespace["logits"].shape
    return namespace["probabilities"]


def test_the_usage_lines_of_a_file_predict_as_vitkit_does_on_odd_images(
    classifier: Classifier, file: ExportedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    record = json.loads(file.path.with_name(f"{file.path.name}.json").read_text())
    path = file.path.parent / "image.jpg"
    for name, content in odd_images().items():
        path.write_bytes(content)
        expected = classifier(path)
        capsys.readouterr()
        probabilities = run_lines(record["ask"], file.path.parent, monkeypatch)
        # the lines round 16 bits to bytes, half a grey level of 255; all else is the same
        tolerance = 0.02 if name == "16 bits.png" else TOLERANCE
        np.testing.assert_allclose(probabilities[0], expected.probabilities, atol=tolerance, err_msg=name)
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == min(5, len(CLASSES))
        assert printed[0] == f"{probabilities[0].max():.1%}  {expected.label}"
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
def test_there_are_usage_lines_for_every_input(
    kind: str, input: ExportInput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    classifier = Classifier(model(kind) if kind != "five channels" else make(kind))
    channels = classifier.model.config.channels
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, channels), dtype=np.uint8)
    if channels in (1, 3):
        Image.fromarray(pixels.squeeze()).save(tmp_path / "image.jpg", quality=95)
        pixels = pixels_of(tmp_path / "image.jpg", channels=channels)
    file = written(classifier, tmp_path / "model.pt2", input)
    np.save(tmp_path / "image.npy", classifier.preprocess(pixels).numpy() if input == "tensor" else pixels)
    probabilities = run_lines(usage("model.pt2", file.metadata)["ask"], tmp_path, monkeypatch)
    np.testing.assert_allclose(probabilities[0], classifier(pixels).probabilities, atol=TOLERANCE)


def test_the_usage_lines_in_the_help_are_those_that_are_printed(file: ExportedModel):
    documented = inspect.cleandoc(verb.__doc__ or "")
    lines = usage(file.path.name, file.metadata)["ask"]
    if not isinstance(file, OnnxModel):  # the help has those that differ
        lines = lines[lines.index('pixels = pixels.astype("uint8")') + 1 : lines.index(_LAST)]
    assert textwrap.indent("\n".join(lines), "    ") in documented


_LAST = "for index in probabilities[0].argsort()[::-1][:5]:"


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "weights"])
def test_loading_an_exported_file_as_weights_explains_what_it_is(
    file: ExportedModel, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / name  # whatever it is called
    path.write_bytes(file.path.read_bytes())
    for arguments in (["predict", str(path), "cat.jpg"], ["serve", str(path)]):
        (tmp_path / "cat.jpg").write_bytes(b"")
        with pytest.raises(SystemExit) as stopped:
            main([argument.replace("cat.jpg", str(tmp_path / "cat.jpg")) for argument in arguments])
        assert stopped.value.code == 2
        captured = capsys.readouterr().err
        assert f"{path} is an exported model, a program for other runtimes" in captured
        assert "the run folder or the weights file that it was exported from" in captured
    vitkit.save(model(), tmp_path)
    with pytest.raises(WeightsError, match=f"try  {tmp_path}, the run folder that holds it"):
        vitkit.load(path)


def test_a_file_contains_no_path_of_this_machine(file: ExportedModel):
    content = file.path.read_bytes()
    if isinstance(file, Pt2Model):
        with zipfile.ZipFile(file.path) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
    for path in (Path(vitkit.__file__).parent, Path(torch.__file__).parent, Path.home()):
        assert str(path).encode() not in content


def test_the_comparison_is_written_next_to_the_file(file: ExportedModel):
    record = json.loads(file.path.with_name(f"{file.path.name}.json").read_text())
    comparison = record["comparison"]
    assert comparison["same"] == comparison["images"] == 64 + 6
    assert comparison["sizes"] == 7
    assert comparison["largest"] <= comparison["tolerance"] == TOLERANCE
    assert comparison["data"] == "fashion, inside the package"


def test_the_onnx_file_is_valid_and_has_named_inputs_and_outputs(file: ExportedModel):
    if not isinstance(file, OnnxModel):
        pytest.skip("about the other format")
    content = onnx.load(file.path)
    onnx.checker.check_model(content, full_check=True)
    [graph_input] = content.graph.input
    sizes = [size.dim_param or size.dim_value for size in graph_input.type.tensor_type.shape.dim]
    assert (graph_input.name, sizes) == ("images", ["batch", "height", "width", 3])
    assert graph_input.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [value.name for value in content.graph.output] == ["probabilities", "logits"]
    assert {entry.domain for entry in content.opset_import} == {""}  # nothing that only one runtime knows


def test_a_file_with_the_input_name_of_older_versions_still_opens(file: ExportedModel, tmp_path: Path):
    if not isinstance(file, OnnxModel):
        pytest.skip("programs are called by position")
    content = onnx.load(file.path)
    content.graph.input[0].name = "pictures"
    for node in content.graph.node:
        for index, name in enumerate(node.input):
            if name == "images":
                node.input[index] = "pictures"
    onnx.save(content, tmp_path / "old.onnx")
    pixels = [scene(40, 50)]
    np.testing.assert_array_equal(
        open_exported(tmp_path / "old.onnx").probabilities(pixels), file.probabilities(pixels)
    )


def test_a_program_holds_no_pickle_and_one_that_does_is_not_opened(classifier: Classifier, tmp_path: Path):
    path = tmp_path / "model.pt2"
    program = trace(classifier, "tensor")
    torch.export.save(
        program, path, extra_files={"vitkit.json": json.dumps(build_metadata(classifier, "tensor", "float32"))}
    )
    with pytest.raises(WeightsError, match="could run code"):
        Pt2Model(path)
    written(classifier, path, "tensor", program)
    with zipfile.ZipFile(path) as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    assert not any(content[:2] == b"\x80\x02" or content[:2] == b"PK" for content in contents)


class Mine:
    """Code that a stranger put into a file."""

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
        Pt2Model(path)
    assert not Mine.ran


@pytest.mark.slow  # among others, test_same.py asks files of both formats about 16 bits
@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_images_of_16_bits_are_given_as_floats(classifier: Classifier, format: str, tmp_path: Path):
    file = written(classifier, tmp_path / f"model.{format}", "float32")
    assert_same(classifier, file, [DEEP, *IMAGES.values()])


def test_a_uint8_file_says_how_to_export_for_16_bits(file: ExportedModel):
    with pytest.raises(ConfigError, match="--input float32"):
        file.probabilities([pixels_of(DEEP)])


@pytest.mark.parametrize("format", FORMATS)
def test_tensor_input_is_preprocessed_by_the_caller(classifier: Classifier, format: str, tmp_path: Path):
    file = written(classifier, tmp_path / f"model.{format}", "tensor")
    assert_same(classifier, file, [*IMAGES.values()])
    preprocessed = torch.stack([classifier.preprocess(image) for image in IMAGES.values()])
    np.testing.assert_allclose(file.run(preprocessed.numpy())[0], classifier.probabilities(preprocessed), atol=1e-5)


def test_several_labels_have_a_probability_each(tmp_path: Path):
    made = model(resize="letterbox", interpolation="bilinear")
    made.metadata = replace(made.metadata, provenance={"multilabel": True})
    classifier = Classifier(made)
    file = written(classifier, tmp_path / "model.pt2")
    assert_same(classifier, file, [*IMAGES.values()])
    assert file.metadata["multilabel"]
    assert not np.allclose(file.probabilities([scene()]).sum(), 1)


@pytest.mark.parametrize(
    ("kind", "format", "input"),
    [
        *(
            (kind, "pt2", "tensor") for kind in ("axial", "relative", "attention pool", "root hybrid")
        ),  # the fastest to export
        *(
            pytest.param(kind, format, "uint8", marks=SLOW)
            for kind in ALL_KINDS
            if kind != "no head"
            for format in ("onnx", "pt2")
        ),
    ],
)
def test_models_of_every_kind(kind: str, format: str, input: ExportInput, tmp_path: Path):
    classifier = Classifier(model(kind, resize="squash"))
    channels = classifier.model.config.channels
    bands = np.concatenate([scene(50, 70), scene(50, 70)[:, ::-1]], axis=2)
    images = [bands[:, :, :channels], bands[:31, :, :channels], bands[:1, :1, :channels]]
    assert_same(classifier, written(classifier, tmp_path / f"model.{format}", input), images)


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
    preprocessed = torch.rand(4, 3, 32, 32)
    probabilities = trace(classifier, "tensor").module()(preprocessed)[0]
    made.eval()
    np.testing.assert_allclose(probabilities.detach(), classifier.probabilities(preprocessed), atol=1e-6)


# what can go wrong


def test_a_file_that_disagrees_is_not_kept_and_the_old_one_stays(
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
    with pytest.raises(ExportError, match="does not predict as the model does"):
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
def test_files_that_vitkit_did_not_export_are_refused_by_name(content: bytes, tmp_path: Path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for ask in (read_metadata, open_exported, Pt2Model, OnnxModel):
        with pytest.raises(WeightsError, match=r"model\.onnx"):
            ask(path)


def test_the_most_likely_class_may_differ_only_in_a_tie():
    def of(*rows: tuple[float, ...]) -> np.ndarray:
        return np.array(rows, np.float32)

    none = np.array([-1])
    tie = compare_probabilities(of((0.5, 0.49995)), of((0.49995, 0.5)), none, "", 1)
    assert (tie.same, tie.agree, tie.equal) == (0, 1, True)
    other = compare_probabilities(of((0.51, 0.49)), of((0.49, 0.51)), none, "", 1)
    assert (other.agree, other.equal) == (0, False)
    assert not compare_probabilities(of((0.51, 0.49)), of((np.nan, 0.49)), none, "", 1).equal


def test_with_several_labels_a_lost_one_is_a_different_prediction():
    exact, exported = np.array([[0.9, 0.6]], np.float32), np.array([[0.9, 0.4]], np.float32)
    assert compare_probabilities(exact, exported, np.array([-1]), "", 1).drop == 0
    assert compare_probabilities(exact, exported, np.array([-1]), "", 1, thresholds=(0.5, 0.5)).drop == 100
    assert compare_probabilities(exact, exported, np.array([-1]), "", 1, thresholds=(0.5, 0.3)).drop == 0


def test_a_loss_equal_to_the_limit_is_allowed():
    def answers(right: int) -> np.ndarray:
        return np.repeat(np.array([[0.9, 0.1], [0.1, 0.9]], np.float32), [right, 200 - right], axis=0)

    assert (
        compare_probabilities(answers(183), answers(182), np.zeros(200, np.int64), "", 1).drop == 0.5
    )  # 91.5 % to 91 %


# the verb


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run folder as `vitkit fit` leaves it, untrained."""
    folder = RunFolder(tmp_path / "run")
    made = model("non-square, one channel")
    vitkit.save(made, folder.path)
    folder.write_config(Fit(data="fashion", model="mu/8", channels=1, image=(16, 40)))
    folder.add_to_record(data={})
    return folder.path


@pytest.mark.parametrize("format", FORMATS)
def test_the_verb_compares_on_the_runs_own_data(run: Path, format: Format, capfd: pytest.CaptureFixture[str]):
    verb(str(run), format)
    captured = capfd.readouterr()
    assert (run / f"model.{format}").is_file()
    assert captured.out.startswith(f"written    {run / f'model.{format}'}")
    assert "70 of 70 predictions the same" in captured.out
    assert "fashion, test" in captured.out
    assert "input      resized to cover 18 x 46 px (bicubic, antialiased), centre crop 16 x 40; " in captured.out
    assert "takes      (batch, height, width, 1) uint8" in captured.out
    assert captured.err.startswith("exporting ")
    assert captured.err.count("\n") == 1  # nothing of what exporters tell about themselves


def test_the_lines_that_the_verb_prints_run_as_they_stand_and_overrides_are_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    vitkit.save(model(rounding="timm"), "run")
    main("export run --to pt2 --out model.pt2 --crop 0.7 --mean 0.4 --interpolation bilinear".split())
    printed = capsys.readouterr().out
    assert "input      short side to 45 px (bilinear, antialiased), centre crop 32 x 32; scaled to" in printed
    assert "0…1, mean 0.4, std (0.2, 0.3, 0.25); crop, interpolation, mean as requested\n" in printed
    assert read_metadata("model.pt2")["preprocessing"]["crop"] == 0.7
    Path("image.jpg").write_bytes(odd_images()["transparent.png"])
    probabilities = run_lines(printed.split("need no vitkit:\n\n")[1].splitlines(), tmp_path, monkeypatch)
    changed = vitkit.load("run")
    chain = replace(changed.metadata.preprocessing, crop=0.7, mean=(0.4,) * 3, interpolation="bilinear")
    changed.metadata = replace(changed.metadata, preprocessing=chain)
    np.testing.assert_allclose(probabilities[0], Classifier(changed)("image.jpg").probabilities, atol=TOLERANCE)
    assert capsys.readouterr().out.splitlines()[0].endswith(f"  {Classifier(changed)('image.jpg').label}")


def test_the_description_says_why_the_runs_own_images_are_not_used(run: Path, tmp_path: Path):
    folder = RunFolder(run)
    folder.write_config(replace(folder.config(), data=str(tmp_path / "gone")))
    samples = find_samples(str(run), vitkit.load(run))
    assert samples.description.startswith("fashion, inside the package; the run's own data cannot be used: ")
    assert not samples.labelled


def test_options_that_do_not_apply_are_refused(run: Path, tmp_path: Path):
    folder = tmp_path / "folder.pt2"
    folder.mkdir()
    for message, options in {
        "--max-drop and --images are for --int8": {"to": "onnx", "max_drop": 1.0},
        "--int8 needs --to onnx": {"to": "pt2", "int8": True},
        "ends in .onnx": {"to": "onnx", "out": tmp_path / "model.pt2"},
        "0 or more": {"to": "onnx", "int8": True, "max_drop": -1.0},
        "cannot be written: File name too long": {"to": "pt2", "out": tmp_path / f"{'long' * 80}.pt2"},
        "is a folder": {"to": "pt2", "out": folder},
    }.items():
        with pytest.raises(vitkit.VitkitError, match=message):
            verb(str(run), **options)  # type: ignore[arg-type]
