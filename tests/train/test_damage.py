"""A flipped bit in a checkpoint is noticed, and the run resumes from the checkpoint before it, to the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitkit
from tests.train.runs import same_tensors, toy, train_run, weights
from vitkit.devices import pick_device
from vitkit.run_folder import RunError
from vitkit.train.checkpoint import intact_checkpoint
from vitkit.train.distributed import Processes
from vitkit.weights.run_checkpoints import damage, read_record

SETTINGS = {"steps": 6, "save_every": 2, "lr": 0.01, "average": 0.9}
LATEST, BEFORE = "step-00000006", "step-00000004"
FILES = ("shard-00001-model-00001-of-00001.safetensors", "record.json")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that has its checkpoints of steps 4 and 6."""
    return train_run(toy(tmp_path_factory.mktemp("complete") / "run", **SETTINGS))


@pytest.fixture
def run(complete: Path, tmp_path: Path) -> Path:
    """Return the run as it was when it was killed after its last step."""
    copy = shutil.copytree(complete, tmp_path / "run")
    for name in ("model.json", "model.safetensors"):
        (copy / name).unlink()
    return copy


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def resume(run: Path) -> list[str]:
    """Resume a run and return its warnings."""
    lines: list[tuple[str, str]] = []
    train_run(toy(run, **SETTINGS), print_line=lambda name, text: lines.append((name, text)))
    return [text for name, text in lines if name == "warning"]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_named_and_the_checkpoint_before_leads_to_the_same_weights(
    name: str, run: Path, complete: Path
):
    flip(run / "checkpoints" / LATEST / name, 8 * 99 + 1)
    [warning] = resume(run)
    assert f"{LATEST} is damaged" in warning
    assert name in warning
    assert same_tensors(weights(run), weights(complete))


def test_an_intact_checkpoint_is_used_without_a_warning(run: Path, complete: Path):
    assert resume(run) == []
    assert same_tensors(weights(run), weights(complete))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(FILES), bit=st.integers(0, 2**30))
def test_no_flipped_bit_of_a_checkpoint_goes_unnoticed_unless_it_changes_nothing(name: str, bit: int, run: Path):
    path = run / "checkpoints" / LATEST / name
    before, record = path.read_bytes(), read_record(path.parent)
    flip(path, bit)
    chosen, warnings = intact_checkpoint(run / "checkpoints", Processes(pick_device("cpu")))
    if chosen.name == LATEST:  # the name of the checksum, or a letter of 1e-5
        assert name == "record.json"
        now = read_record(path.parent)
        assert {key: now[key] for key in record if key != "crc32"} == {  # type: ignore[literal-required]
            key: value for key, value in record.items() if key != "crc32"
        }
    else:
        assert (chosen.name, len(warnings)) == (BEFORE, 1)
    path.write_bytes(before)


def test_without_an_intact_checkpoint_nothing_is_trained(run: Path):
    for step in (LATEST, BEFORE):
        flip(run / "checkpoints" / step / FILES[0], 10_000)
    with pytest.raises(RunError, match=r"no checkpoint in .* is as it was written") as error:
        resume(run)
    assert LATEST in str(error.value)
    assert BEFORE in str(error.value)
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == [BEFORE, LATEST]


def test_a_missing_and_a_strange_shard_are_damage(run: Path):
    checkpoint = run / "checkpoints" / LATEST
    record, shard = read_record(checkpoint), checkpoint / FILES[0]
    shutil.copy(shard, checkpoint / "shard-00002-model-00001-of-00001.safetensors")
    assert "shard-00002-model-00001-of-00001.safetensors is no file of this checkpoint" in damage(checkpoint, record)
    shard.unlink()
    assert damage(checkpoint, record) == f"{FILES[0]} cannot be read: No such file or directory"


def test_a_changed_description_of_the_model_is_damage(run: Path):
    description = run / "checkpoints" / "model.json"
    description.write_text(description.read_text().replace('"dropout": 0.0', '"dropout": 0.1'))
    with pytest.raises(RunError, match=r"model\.json is not as it was written"):
        resume(run)


def test_a_checkpoint_of_an_earlier_version_has_no_checksums_and_is_used(run: Path, complete: Path):
    path = run / "checkpoints" / LATEST / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in record.items() if name not in ("files", "crc32")}))
    assert resume(run) == []
    assert same_tensors(weights(run), weights(complete))


def test_the_model_of_a_damaged_checkpoint_is_not_loaded(run: Path):
    flip(run / "checkpoints" / LATEST / FILES[0], 10_000)
    with pytest.raises(vitkit.VitkitError, match=f"{LATEST} cannot be read: it is damaged, {FILES[0]}"):
        vitkit.load(run)


def test_ranks_share_the_files_that_they_verify(run: Path):
    checkpoint = run / "checkpoints" / LATEST
    record = read_record(checkpoint)
    flip(checkpoint / FILES[0], 10_000)
    found = [damage(checkpoint, record, rank, 3) for rank in range(3)]
    assert sorted(found) == ["", "", f"{FILES[0]} is not as it was written"]
