"""Whatever stands in the files that vitkit reads back, the answer is the content or one of vitkit's own errors."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import vitkit
from tests.damaged_json import damaged
from tests.test_run import TINY, write_photos
from vitkit.cli.main import main
from vitkit.config import toml
from vitkit.data.groups import restore
from vitkit.data.sources.open import open_data
from vitkit.devices import pick_device
from vitkit.errors import VitkitError
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.held_out import data_to_score
from vitkit.report.page import write_report
from vitkit.run_folder import RunFolder
from vitkit.run_schema import DataRecord, RunJson
from vitkit.train.checkpoint import TrainState, intact_checkpoint, keep_only
from vitkit.train.distributed import Processes
from vitkit.train.initial_model import restored_model
from vitkit.weights.run_checkpoints import CheckpointRecord, complete_checkpoints, read_record


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", 6)


@pytest.fixture(scope="module")
def original(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("original") / "run"
    main(["fit", str(photos), "--out", str(run), *TINY, "--set", "save_every=1"])
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def read_weights(run: Path) -> None:
    vitkit.load(run)


def read_repr(run: Path) -> None:
    assert "run" in repr(vitkit.Run(run))


def read_settings(run: Path) -> None:
    RunFolder(run).config()
    toml.from_tables(toml.read_for_new_run(run))


def read_run_json(run: Path) -> None:
    record, data = RunFolder(run).record(), open_data(toml.read(run)["data"])
    restore(data, record.get("together"))
    data_to_score(str(run), data, None)
    toml.read_for_new_run(run)


def read_metrics(run: Path) -> None:
    RunFolder(run).truncate_metrics(2)


def read_evaluation(run: Path) -> None:
    Evaluation.read(run / "evaluation.json")


def read_state(run: Path) -> None:
    TrainState.from_record(read_record(complete_checkpoints(run / "checkpoints")[-1]))


def read_description(run: Path) -> None:
    restored_model(run / "checkpoints/step-00000003", "none")


READERS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "model.json": (read_weights, read_repr),
    "run.json": (read_run_json,),
    "config.toml": (read_settings,),
    "metrics.jsonl": (read_metrics,),
    "evaluation.json": (read_evaluation, read_repr),
    "checkpoints/step-00000003/record.json": (read_state,),
    "checkpoints/model.json": (read_description,),
}


def damage(draw: st.DataObject, original: Path, run: Path, name: str) -> None:
    """Write a damaged copy of one file of the original run."""
    text = (original / name).read_text()
    if name.endswith(".toml"):
        content = draw.draw(damaged(tomllib.loads(text)))
        with contextlib.suppress(TypeError, AttributeError, ValueError):  # TOML has no null, and tables only
            text = tomli_w.dumps(content)
        (run / name).write_bytes(text.encode("utf-8", "replace"))
    elif name.endswith(".jsonl"):
        rows = draw.draw(damaged([json.loads(line) for line in text.splitlines()]))
        (run / name).write_text("".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows])))
    else:
        (run / name).write_text(json.dumps(draw.draw(damaged(json.loads(text)))))


@pytest.mark.parametrize("name", READERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_damaged_file_of_a_run_gives_its_content_or_an_error_of_ours(
    name: str, original: Path, run: Path, draw: st.DataObject
):
    damage(draw, original, run, name)
    for read in READERS[name]:
        with contextlib.suppress(VitkitError):
            read(run)


@pytest.mark.parametrize("name", ["model.json", "run.json", "config.toml", "metrics.jsonl", "evaluation.json"])
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_the_report_of_a_run_with_a_damaged_file_is_still_written(
    name: str, original: Path, run: Path, draw: st.DataObject
):
    damage(draw, original, run, name)
    assert write_report(run, None, None).stat().st_size > 1000


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def edited(run: Path, name: str, **entries: Any) -> None:
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({**content, **entries}))


def with_sizes(run: Path, **sizes: Any) -> None:
    """Claim other sizes in model.json and in the header of model.safetensors, as a hostile author would."""
    record = json.loads((run / "model.json").read_text())
    record["model"] |= sizes
    (run / "model.json").write_text(json.dumps(record))
    tensors = load_file(run / "model.safetensors")
    save_file(tensors, run / "model.safetensors", metadata={"format": "pt", "vitkit": json.dumps(record)})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"depth": 10**9}, "depth=1000000000 is more than a model can have"),
        ({"width": 10**9}, "width=1000000000 is more than a model can have"),
        ({"depth": 4000}, "a model of 4,000 layers, but there are"),
        ({"width": 2**20, "mlp": 2**20}, "do not match the model that they describe"),
        ({"depth": "12"}, "depth should be an integer"),
        ({"classes": 10**400}, "should be an integer of 64 bits"),
    ],
)
def test_sizes_that_the_tensors_do_not_have_are_refused_before_anything_is_built(
    sizes: dict[str, Any], message: str, run: Path
):
    with_sizes(run, **sizes)
    with pytest.raises(VitkitError, match=re.escape(message)):
        vitkit.load(run)


@pytest.mark.parametrize("sizes", [{"width": 2**20, "mlp": 2**20}, {"depth": 4000}, {"depth": 10**9}])
def test_a_resumed_run_compares_its_sizes_with_the_checkpoint_first(sizes: dict[str, Any], run: Path):
    record = json.loads((run / "checkpoints/model.json").read_text())
    edited(run, "checkpoints/model.json", model={**record["model"], **sizes})
    with pytest.raises(VitkitError, match=re.escape("checkpoints/model.json")):
        restored_model(run / "checkpoints/step-00000003", "none")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([None, "bee", "cow"], "labels[0] should be text, not null"),
        ([["ant"], "bee", "cow"], "labels[0] should be text, not ['ant']"),
        (["ant", "bee", "bee"], "names 1 class twice"),
        ("ant", "labels should be a list, not 'ant'"),
        (["ant", "bee"], "names 2 classes, but the model has 3"),
    ],
)
def test_labels_that_are_no_class_names_are_refused(labels: Any, message: str, run: Path):
    edited(run, "model.json", labels=labels)
    with pytest.raises(VitkitError, match=re.escape(message)):
        vitkit.load(run)


def test_imagenets_class_names_of_which_two_are_equal_still_load(run: Path):
    model = vitkit.load(run)
    model.metadata = replace(model.metadata, labels=("crane", "crane", "bee"), provenance={"format": "hf"})
    vitkit.save(model, run / "converted")
    assert vitkit.load(run / "converted").metadata.labels == ("crane", "crane", "bee")


@pytest.mark.parametrize("name", [*READERS])
def test_a_file_of_200_000_brackets_is_one_error(name: str, run: Path):
    brackets = nested(200_000)
    (run / name).write_text(f"data = {brackets}\n" if name.endswith(".toml") else f"{brackets}\n")
    with pytest.raises(VitkitError, match=r"nested|damaged"):
        READERS[name][0](run)


@pytest.mark.parametrize("text", ["null", "3", '"text"', "[]", '{"step": []}', '{"step": 7}'])
def test_valid_json_of_another_shape_is_an_error_that_names_the_file(text: str, run: Path):
    for name in ("run.json", "metrics.jsonl", "checkpoints/step-00000003/record.json"):
        if name == "run.json" and text.startswith("{"):
            continue  # a key that run.json does not have is kept
        (run / name).write_text(text + "\n")
        with pytest.raises(VitkitError, match=re.escape(str(run / name))):
            READERS[name][0](run)
        if name == "metrics.jsonl":
            assert (run / name).read_text() == text + "\n"  # nothing is lost


def test_a_folder_that_only_looks_like_a_checkpoint_is_left_alone(run: Path):
    other = shutil.copytree(run / "checkpoints/step-00000003", run / "checkpoints/step-abc")
    assert [path.name for path in complete_checkpoints(run / "checkpoints")] == ["step-00000002", "step-00000003"]
    keep_only(run / "checkpoints", [3])
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-00000003", "step-abc"]
    assert (other / "record.json").is_file()
    _, [warning] = intact_checkpoint(run / "checkpoints", Processes(pick_device("cpu")))
    assert warning == f"{other} has no name of a checkpoint; it is left alone"


def test_keys_that_a_newer_version_may_add_are_no_error_where_they_change_nothing(run: Path):
    edited(run, "run.json", weather="fair")
    edited(run, "evaluation.json", weather="fair")
    edited(run, "model.json", weather="fair")
    assert RunFolder(run).record()["weather"] == "fair"
    read_evaluation(run)
    vitkit.load(run)
    with_sizes(run, experts=True)
    with pytest.raises(VitkitError, match="no option 'experts'"):  # ignoring it would compute something else
        vitkit.load(run)


def test_every_key_of_a_real_run_is_in_the_declared_type(run: Path):
    record = json.loads((run / "run.json").read_text())
    assert record.keys() <= RunJson.__annotations__.keys()
    assert record["data"].keys() <= DataRecord.__annotations__.keys()
    state = json.loads((run / "checkpoints/step-00000003/record.json").read_text())
    assert state.keys() <= CheckpointRecord.__annotations__.keys()


def test_a_checkpoint_record_without_its_step_is_damaged(tmp_path: Path):
    checkpoint = tmp_path / "step-00000006"
    checkpoint.mkdir()
    (checkpoint / "record.json").write_text(json.dumps({"stap": 6, "best": 0.5}))
    with pytest.raises(VitkitError, match="step"):
        read_record(checkpoint)
