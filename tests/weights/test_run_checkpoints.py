"""Runs that are not finished, and asked all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import vitkit
from tests.train.runs import rewound, same, states, toy, trained, weights
from vitkit.data.sources.open import open_data

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(toy(tmp_path_factory.mktemp("whole") / "run", steps=9, save_every=3, lr=0.01, average=0.9))


@pytest.fixture
def unfinished(whole: Path, tmp_path: Path) -> Path:
    """As it was after step 6."""
    return rewound(whole, tmp_path / "run")


def test_the_last_checkpoint_is_the_model_that_came_of_it(whole: Path):
    """Averages are, of the weights that a step leaves."""
    assert same(dict(vitkit.load(whole / "checkpoints").state_dict()), weights(whole))


def test_a_run_answers_with_its_latest_checkpoint_and_says_so(unfinished: Path, caplog: pytest.LogCaptureFixture):
    model = vitkit.load(unfinished)
    [told] = [record.message for record in caplog.records if record.name == "vitkit"]
    assert told == f"{unfinished}: a run that is not finished; these are its weights after step 6"
    stored = states(unfinished)["step-00000006"]
    assert {name for name in stored if name.startswith("average.")} == {
        f"average.model.{name}" for name, _ in model.named_parameters()
    }
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, stored[f"average.model.{name}"])
    assert model.metadata.labels == open_data("fashion").classes


def test_one_checkpoint_of_many_can_be_asked_under_any_name(unfinished: Path, whole: Path):
    named = shutil.copytree(whole / "checkpoints" / "step-00000009", unfinished / "checkpoints" / "the best")
    assert same(dict(vitkit.load(named).state_dict()), weights(whole))
    assert not same(dict(vitkit.load(unfinished).state_dict()), weights(whole))


def test_a_checkpoint_that_cannot_be_read_is_named(unfinished: Path):
    [shard] = (unfinished / "checkpoints" / "step-00000006").glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:1000])
    with pytest.raises(vitkit.VitkitError, match="step-00000006 cannot be read"):
        vitkit.load(unfinished)
