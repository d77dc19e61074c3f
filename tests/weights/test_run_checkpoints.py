"""Models are loaded from the checkpoints of incomplete runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import vitkit
from tests.train.runs import rewind, same_tensors, states, toy, train_run, weights
from vitkit.data.sources.open import open_data


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_run(toy(tmp_path_factory.mktemp("complete") / "run", steps=9, save_every=3, lr=0.01, average=0.9))


@pytest.fixture
def incomplete(complete: Path, tmp_path: Path) -> Path:
    """Return the run as it was after step 6."""
    return rewind(complete, tmp_path / "run")


def test_the_last_checkpoint_holds_the_final_model(complete: Path):
    assert same_tensors(dict(vitkit.load(complete / "checkpoints").state_dict()), weights(complete))


def test_an_incomplete_run_loads_its_latest_checkpoint_with_a_warning(
    incomplete: Path, caplog: pytest.LogCaptureFixture
):
    model = vitkit.load(incomplete)
    [message] = [record.message for record in caplog.records if record.name == "vitkit"]
    assert message == f"{incomplete} is an incomplete run; its latest checkpoint is loaded, step 6"
    stored = states(incomplete)["step-00000006"]
    assert {name for name in stored if name.startswith("average.")} == {
        f"average.model.{name}" for name, _ in model.named_parameters()
    }
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[f"average.model.{name}"])
    assert model.metadata.labels == open_data("fashion").classes


def test_a_checkpoint_folder_can_be_loaded_under_any_name(incomplete: Path, complete: Path):
    named = shutil.copytree(complete / "checkpoints" / "step-00000009", incomplete / "checkpoints" / "the best")
    assert same_tensors(dict(vitkit.load(named).state_dict()), weights(complete))
    assert not same_tensors(dict(vitkit.load(incomplete).state_dict()), weights(complete))


def test_a_checkpoint_that_cannot_be_read_is_named(incomplete: Path):
    [shard] = (incomplete / "checkpoints" / "step-00000006").glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(vitkit.VitkitError, match="step-00000006 cannot be read"):
        vitkit.load(incomplete)
