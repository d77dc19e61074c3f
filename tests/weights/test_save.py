"""Saving gives the same bytes every time and refuses models with options or tensors that a format does not know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitkit
from tests.model.kinds import make, randomise
from vitkit.errors import WeightsError
from vitkit.model.base import Metadata
from vitkit.model.config import ViTConfig
from vitkit.model.conv_config import ConvConfig
from vitkit.weights import native

# It writes one model in every format; the names of classes need escapes in JSON.
SCRIPT = """
import sys, vitkit
from pathlib import Path
folder = Path(sys.argv[2])
model = vitkit.load(sys.argv[1])
vitkit.save(model, folder / "native")
vitkit.save(model, folder / "alone.safetensors")
vitkit.save(model, folder / "timm", format="timm")
vitkit.save(model, folder / "hf", format="hf")
vitkit.save(model, folder / "google.npz", format="google")
"""
LABELS = ("plain", 'quo"te', "back\\slash", "Käfer", "ねこ", "tab\t", "line\n", "\x01", "\x7f", "🐈")


def test_ten_writes_give_the_same_bytes(tmp_path: Path):
    """safetensors' Rust map has a new random order for every file, so one process would show it too."""
    model = make("token")
    model.metadata = Metadata(labels=LABELS, provenance={"trained": "by a test"})
    contents = set()
    for _ in range(10):
        vitkit.save(model, tmp_path / "out.safetensors")
        contents.add((tmp_path / "out.safetensors").read_bytes())
    assert len(contents) == 1


@pytest.mark.slow
def test_ten_processes_write_the_same_bytes(tmp_path: Path):
    model = make("token")
    model.metadata = Metadata(labels=LABELS, provenance={"trained": "by a test"})
    vitkit.save(model, tmp_path / "model")
    folders = [tmp_path / f"process-{seed}" for seed in range(10)]
    for pair in zip(folders[::2], folders[1::2], strict=True):
        running = []
        for folder in pair:
            folder.mkdir()
            environment = {**os.environ, "PYTHONHASHSEED": str(folders.index(folder)), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), str(folder)]
            running.append(subprocess.Popen(command, env=environment))
        assert [process.wait(120) for process in running] == [0, 0]
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    ]
    assert len(contents[0]) == 9
    for content in contents[1:]:
        assert content == contents[0]
    for name, value in load_file(folders[0] / "native" / "model.safetensors").items():
        assert torch.equal(value, model.state_dict()[name])
    assert vitkit.load(folders[0] / "alone.safetensors").metadata == model.metadata


@pytest.mark.parametrize("kind", ["token", "root hybrid", "ResNet"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sorting_the_metadata_changes_nothing_else_in_a_safetensors_file(kind: str, dtype: torch.dtype, tmp_path: Path):
    model = make(kind).to(dtype)
    if model.config.classes:
        model.metadata = Metadata(labels=LABELS[: model.config.classes] or None)
    save_file(native.tensors_of(model), tmp_path / "theirs.safetensors", metadata=native.header_of(model))
    vitkit.save(model, tmp_path / "ours.safetensors")
    ours, theirs = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("ours", "theirs"))
    length = int.from_bytes(ours[:8], "little")
    assert ours[:8] == theirs[:8]
    assert length % 8 == 0  # the tensors begin on a multiple of eight bytes
    assert ours[8 + length :] == theirs[8 + length :]
    header = json.loads(ours[8 : 8 + length])
    assert header == json.loads(theirs[8 : 8 + length])
    assert list(header["__metadata__"]) == ["format", "vitkit"]
    with safe_open(tmp_path / "ours.safetensors", framework="pt") as file:
        assert file.metadata() == native.header_of(model)


@dataclass(frozen=True, kw_only=True)
class ConfigWithExperts(ViTConfig):
    experts: int = 4


@dataclass(frozen=True, kw_only=True)
class ConvConfigWithDilation(ConvConfig):
    dilation: int = 2


@pytest.mark.parametrize("format", ["google", "timm", "hf"])
def test_an_option_that_a_format_does_not_know_is_refused_by_name(format: str, tmp_path: Path):
    model = make("token")
    path = tmp_path / ("out.npz" if format == "google" else "out")
    vitkit.save(model, path, format=format)
    model.config = ConfigWithExperts(**vars(model.config))
    with pytest.raises(WeightsError, match=f"the {format} format does not know the option experts"):
        vitkit.save(
            model, tmp_path / "other.npz" if format == "google" else tmp_path / "other", format=format, lossy=True
        )
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("format", ["google", "timm", "hf"])
def test_an_option_of_the_stem_that_a_format_does_not_know_is_refused_by_name(format: str, tmp_path: Path):
    model = randomise(vitkit.create("R26+S/32", classes=3, image=64))
    model.config = replace(model.config, stem=ConvConfigWithDilation(**vars(model.config.stem)))
    with pytest.raises(WeightsError, match=f"the {format} format does not know the option dilation"):
        vitkit.save(model, tmp_path / ("out.npz" if format == "google" else "out"), format=format, lossy=True)


@pytest.mark.parametrize("format", ["vitkit", "google", "timm", "hf"])
def test_a_tensor_that_a_format_has_no_name_for_is_refused_and_nothing_is_written(format: str, tmp_path: Path):
    model = make("token")
    path = tmp_path / ("out.npz" if format == "google" else "out")
    vitkit.save(model, path, format=format)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    model.encoder.blocks[0].layer_scale = torch.nn.Parameter(torch.ones(model.config.width))
    with pytest.raises(WeightsError, match=r"no names for 1 of .*[\s\S]*encoder.blocks.0.layer_scale"):
        vitkit.save(model, path, format=format)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_every_option_is_kept_in_our_own_format(tmp_path: Path):
    model = make("token")
    vitkit.save(model, tmp_path)
    record = json.loads((tmp_path / "model.json").read_text())["model"]
    assert record.keys() == {"kind", *vars(model.config)}
    (tmp_path / "model.json").unlink()
    model.config = ConfigWithExperts(**vars(model.config))
    vitkit.save(model, tmp_path)
    with pytest.raises(WeightsError, match="has no option 'experts'"):
        vitkit.load(tmp_path)
