"""Broken, foreign and hostile files give one clear error; nothing is executed or changed."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import vitkit
from tests.conftest import FIXTURES
from tests.model.kinds import images_for, make
from vitkit.errors import SizeError, VitkitError, WeightsError
from vitkit.weights import timm_write
from vitkit.weights.files import open_checkpoint


@pytest.fixture
def tensors(fixtures: Path) -> dict[str, torch.Tensor]:
    return load_file(fixtures / "timm_token_weights.safetensors")


def error_of(path: Path, **options: object) -> str:
    with pytest.raises(VitkitError) as error:
        vitkit.load(path, **{"heads": 3, **options})
    return str(error.value)


def test_missing_extra_and_misshapen_tensors_are_all_named_with_their_shapes(tensors: dict, tmp_path: Path):
    del tensors["blocks.1.attn.proj.bias"]
    tensors["blocks.0.adapter.gamma"] = torch.ones(48)
    tensors["blocks.0.mlp.fc2.weight"] = torch.ones(48, 95)
    save_file(tensors, tmp_path / "bad.safetensors")
    message = error_of(tmp_path / "bad.safetensors")
    assert "missing   blocks.1.attn.proj.bias, expected (48,)" in message
    assert "extra     blocks.0.adapter.gamma, found (48,)" in message
    assert "misshapen blocks.0.mlp.fc2.weight, expected (48, 96), found (48, 95)" in message


def test_a_missing_tensor_that_sizes_are_inferred_from_is_named(tensors: dict, tmp_path: Path):
    del tensors["blocks.0.mlp.fc1.weight"]
    save_file(tensors, tmp_path / "bad.safetensors")
    assert "lacks blocks.0.mlp.fc1.weight" in error_of(tmp_path / "bad.safetensors")


def test_a_native_file_missing_a_tensor_is_refused(tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "run")
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    del tensors["head.logits.bias"]
    save_file(tensors, tmp_path / "run" / "model.safetensors")
    assert "missing   head.logits.bias, expected (10,)" in error_of(tmp_path / "run")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused(suffix: str, share: float, tmp_path: Path):
    path = complete_file(tmp_path, suffix)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert str(path) in error_of(path)


@given(data=st.data())
@settings(max_examples=100)
def test_damaged_files_load_or_give_a_clear_error(tmp_path_factory, data: st.DataObject):
    """A flipped byte changes the values of a tensor or raises a VitkitError, never another exception."""
    folder = tmp_path_factory.getbasetemp()
    suffix = data.draw(st.sampled_from([".safetensors", ".npz", ".pth"]))
    path = folder / f"complete{suffix}"
    if not path.exists():
        complete_file(folder, suffix)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        edge = data.draw(st.booleans())  # at the edges: headers and directories
        spread = min(len(content), 3000) if edge else len(content)
        index = data.draw(st.integers(0, spread - 1))
        content[index if data.draw(st.booleans()) else -1 - index] = data.draw(st.integers(0, 255))
    damaged = folder / f"damaged{suffix}"
    damaged.write_bytes(content)
    with contextlib.suppress(VitkitError):
        vitkit.load(damaged, heads=3)


def test_positions_for_no_patch_are_an_error_that_names_the_file(tmp_path: Path):
    tensors = dict(open_checkpoint(FIXTURES / "google_hybrid_weights.npz").tensors)
    tensors["Transformer/posembed_input/pos_embedding"] = torch.zeros(1, 1, 1)  # for the class token alone
    save_file(tensors, tmp_path / "changed.safetensors")
    assert "changed.safetensors has positions for 0 patches" in error_of(tmp_path / "changed.safetensors")


@given(data=st.data())
@settings(max_examples=100)
def test_any_missing_or_reshaped_tensor_is_an_error_that_names_the_file(tmp_path_factory, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(FIXTURES.glob("*_weights.*"))))
    tensors = dict(open_checkpoint(path).tensors)
    name = data.draw(st.sampled_from(sorted(tensors)))
    value = tensors.pop(name)
    shape = data.draw(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=4)))
    if shape is not None and tuple(shape) != tuple(value.shape):
        tensors[name] = torch.zeros(shape)
    damaged = tmp_path_factory.getbasetemp() / "changed.safetensors"
    save_file(tensors, damaged)
    assert str(damaged) in error_of(damaged, heads=3 if "timm" in path.name else None)


def complete_file(folder: Path, suffix: str) -> Path:
    path = folder / f"complete{suffix}"
    if suffix == ".npz":
        path.write_bytes((FIXTURES / "google_token_weights.npz").read_bytes())
    elif suffix == ".safetensors":
        path.write_bytes((FIXTURES / "timm_token_weights.safetensors").read_bytes())
    else:
        torch.save(load_file(FIXTURES / "timm_token_weights.safetensors"), path)
    return path


@pytest.mark.parametrize(
    "write",
    [
        lambda path, marker: torch.save({"model": marker}, path),
        lambda path, marker: torch.save({"model": marker}, path, _use_new_zipfile_serialization=False),
        lambda path, marker: path.write_bytes(pickle.dumps({"model": marker})),
        lambda path, marker: np.savez(path.open("wb"), **{"embedding/kernel": np.array([marker], dtype=object)}),
    ],
    ids=["torch zip", "torch legacy", "plain pickle", "npz object array"],
)
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_with_code_in_it_is_never_executed(write, tmp_path: Path):
    executed = tmp_path / "executed"

    class Marker:
        def __reduce__(self) -> tuple:
            return Path.touch, (executed,)

    write(tmp_path / "weights.pth", Marker())
    error_of(tmp_path / "weights.pth")
    assert not executed.exists()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "epoch": 3},
        lambda state: {"state_dict": state},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    ],
    ids=["bare", "model", "state_dict", "DataParallel", "compiled"],
)
def test_state_dicts_as_trainers_save_them_are_read(wrap, tensors: dict, tmp_path: Path):
    torch.save(wrap(tensors), tmp_path / "weights.pth")
    model = vitkit.load(tmp_path / "weights.pth", heads=3)
    reference = vitkit.load(FIXTURES / "timm_token_weights.safetensors", heads=3)
    images = images_for(model)
    assert torch.equal(model(images), reference(images))


def test_the_content_decides_not_the_name(fixtures: Path, tmp_path: Path):
    path = tmp_path / "misnamed.pth"
    path.write_bytes((fixtures / "google_token_weights.npz").read_bytes())
    assert vitkit.load(path).config.width == 48


def test_a_header_length_that_reads_as_pk_is_not_taken_for_an_archive(tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    longer = int.from_bytes(b"PK", "little")
    assert length <= longer
    padded = longer.to_bytes(8, "little") + content[8 : 8 + length].ljust(longer) + content[8 + length :]
    (tmp_path / "padded.safetensors").write_bytes(padded)
    images = images_for(make("token"))
    assert torch.equal(
        vitkit.load(tmp_path / "padded.safetensors")(images), vitkit.load(tmp_path / "model.safetensors")(images)
    )


def test_half_precision_weights_become_float32(tensors: dict, tmp_path: Path):
    save_file({name: value.half() for name, value in tensors.items()}, tmp_path / "half.safetensors")
    model = vitkit.load(tmp_path / "half.safetensors", heads=3)
    assert {value.dtype for value in model.parameters()} == {torch.float32}


def test_a_model_in_several_shards_is_read(tmp_path: Path):
    import json

    model = make("token")
    vitkit.save(model, tmp_path, format="hf")
    tensors = load_file(tmp_path / "model.safetensors")
    names = sorted(tensors)
    (tmp_path / "model.safetensors").unlink()
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, shard in shards.items():
        save_file({name: tensors[name] for name in shard}, tmp_path / file)
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    images = images_for(model)
    assert torch.equal(vitkit.load(tmp_path)(images), model(images))


def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../secret.safetensors"}}')
    assert "points outside its folder" in error_of(tmp_path)


def test_a_grid_that_is_not_square_has_to_be_passed(tmp_path: Path):
    model = make("non-square, one channel")  # 2 x 5 patches
    vitkit.save(model, tmp_path / "out.npz", format="google")
    with pytest.raises(SizeError, match=r"10 patches, which is not a square grid[\s\S]*\(2, 5\)"):
        vitkit.load(tmp_path / "out.npz")
    with pytest.raises(SizeError, match="not for 3 x 4 = 12"):
        vitkit.load(tmp_path / "out.npz", grid=(3, 4))
    images = images_for(model)
    assert torch.equal(vitkit.load(tmp_path / "out.npz", grid=(2, 5))(images), model(images))


def test_an_unknown_architecture_is_refused(tmp_path: Path):
    save_file({"conv1.weight": torch.ones(3), "fc.bias": torch.ones(2)}, tmp_path / "resnet.safetensors")
    message = error_of(tmp_path / "resnet.safetensors")
    assert "2 tensors in a format that vitkit does not know" in message
    assert "conv1.weight, fc.bias" in message


@pytest.mark.parametrize("content", [b"", b"a text file", b"\x89PNG\r\n\x1a\n" + bytes(9), b"PK\x03\x04rest"])
def test_a_file_without_weights_is_refused(content: bytes, tmp_path: Path):
    path = tmp_path / "weights.npz"
    path.write_bytes(content)
    assert str(path) in error_of(path)


def test_a_path_that_does_not_exist_shows_the_other_files_in_its_folder(tmp_path: Path):
    for name in ("vit.npz", *(f"another-{number}" for number in range(20))):
        (tmp_path / name).touch()
    message = error_of(tmp_path / "vot.npz")
    assert "vot.npz does not exist; did you mean vit.npz?" in message
    assert "another-0" in message
    assert "and 13 more" in message
    assert "does not exist." in error_of(tmp_path / "something else")


def test_a_models_name_points_to_its_public_weights():
    with pytest.raises(WeightsError, match=r"vitkit.load\('hf:timm/vit_base_patch16_224.augreg_in21k'\)"):
        vitkit.load("B/16")


def test_an_empty_folder_is_an_error_that_lists_the_expected_files(tmp_path: Path):
    message = error_of(tmp_path)
    assert "looked for" in message
    assert "model.safetensors" in message


def test_a_record_that_does_not_match_its_weights_is_refused(tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "run")
    record = (tmp_path / "run" / "model.json").read_text()
    for bad, message in [
        (record.replace('"depth": 2', '"depth": 3'), "describes another model"),
        (record.replace('"version": 1', '"version": 99'), "version 99"),
        (record.replace('"labels": null', '"labels": ["a"]'), "names 1 classes"),
        (record.replace('"crop": 1.0', '"crop": 7'), "crop=7"),
        (record[:50], "is not JSON"),
        ("[1]", "it should be an object, not [1]"),
    ]:
        (tmp_path / "run" / "model.json").write_text(bad)
        assert message in error_of(tmp_path / "run")


def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    vitkit.save(make("token"), tmp_path / "w.npz", format="google")
    before = (tmp_path / "w.npz").read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(WeightsError, match="No space left on device"):
        vitkit.save(make("gap"), tmp_path / "w.npz", format="google")
    assert (tmp_path / "w.npz").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.npz"]


def test_a_loaded_model_outlives_its_file(tmp_path: Path):
    model = make("token")
    vitkit.save(model, tmp_path / "a.safetensors")
    loaded, images = vitkit.load(tmp_path / "a.safetensors"), images_for(model)
    with (tmp_path / "a.safetensors").open("r+b") as file:  # in place: a memory-mapped view would change with the file
        content = file.read()
        file.seek(0)
        file.write(bytes(len(content)))
        file.truncate(10)
    assert torch.equal(loaded(images), model(images))


def test_a_record_that_belongs_to_other_weights_is_refused(tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "a")
    vitkit.save(make("exact GELU"), tmp_path / "b")
    (tmp_path / "a" / "model.safetensors").write_bytes((tmp_path / "b" / "model.safetensors").read_bytes())
    assert "model.json describes another model" in error_of(tmp_path / "a", heads=None)


def test_overwriting_weights_removes_the_json_files_of_the_old_ones(tmp_path: Path):
    vitkit.save(make("token"), tmp_path, format="hf")
    vitkit.save(make("gap"), tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    vitkit.save(make("exact GELU"), tmp_path / "model.safetensors")
    assert vitkit.load(tmp_path).config.gelu == "exact"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 7}, "has heads 2, not 7"),
        ({"heads": 0}, "heads=0 must be"),
        ({"grid": (9, 9)}, "has grid (4, 4), not"),
        ({"grid": 4.5}, "is no size"),
        ({"classes": -1}, "classes=-1 must be"),
        ({"image": "48"}, "is no size"),
        ({"interpolation": "cubic"}, "interpolation='cubic' is not known"),
    ],
)
def test_arguments_that_do_not_fit_are_never_ignored(options: dict, message: str, tmp_path: Path):
    vitkit.save(make("token"), tmp_path / "run")
    assert message in error_of(tmp_path / "run", **{"heads": None, **options})


def test_a_compiled_model_is_saved_as_the_model_inside(tmp_path: Path):
    model = make("token")
    vitkit.save(torch.compile(model, backend="eager"), tmp_path / "run")
    assert vitkit.load(tmp_path / "run").config == model.config


def test_timm_rules_name_every_tensor_once():
    model = make("gap-norm")
    assert len(timm_write.tensors_of(model)) == len(model.state_dict())
