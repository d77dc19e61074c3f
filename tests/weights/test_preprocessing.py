"""Preprocessing is that of the code that weights come from: timm's and transformers' own transforms, to the pixel."""

from __future__ import annotations

import json
import tarfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vitkit
from tests.fixtures.make_preprocessing import SIDES, STRIDE, TIMM, TRANSFORMERS, pattern, transformers_processor
from vitkit.data.geometry import geometry
from vitkit.data.preprocessing import Preprocessing, Rounding
from vitkit.data.transforms import EvalTransform
from vitkit.export.graph import resize_batch
from vitkit.predict.classifier import Classifier
from vitkit.weights import timm_write
from vitkit.weights.formats import Checkpoint
from vitkit.weights.huggingface_preprocessing import preprocessing_of
from vitkit.weights.timm_preprocessing import preprocessing_of as timm_preprocessing_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
# Geometry and bytes are the same; but Pillow's weights are whole numbers of 22 bits, and those of torchvision's tensors
# of 16, so that sums which end beside one half of a grey level are rounded to another neighbour,
# once in each pass.
PASSES = 2
TIES = {
    "timm": 0.01,
    "transformers-pil": 0.02,
    "transformers-torchvision": 0.05,
}  # the share of pixels for which they do


@pytest.fixture(scope="module")
def pixels() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "preprocessing.npz") as file:
        assert json.loads(str(file["settings"])) == {"timm": TIMM, "transformers": TRANSFORMERS}
        return {name: file[name] for name in file.files if "/" in name}


def from_timm(settings: dict[str, Any]) -> EvalTransform:
    """Return the transform of a folder of timm's with this pretrained_cfg."""
    with torch.device("meta"):
        config = vitkit.create("mu/16", image=tuple(settings.get("input_size", (3, 224, 224)))[1:]).config
    checkpoint = Checkpoint(origin="here", tensors={}, config={"architecture": "vit", "pretrained_cfg": settings})
    return EvalTransform(
        image=config.image, preprocessing=timm_preprocessing_of(checkpoint, settings, config, imagenet=False)
    )


def from_transformers(settings: dict[str, Any]) -> EvalTransform:
    side = 192 if "192" in json.dumps(settings) else 224
    return EvalTransform(image=(side, side), preprocessing=preprocessing_of(settings, 3))


def assert_same_pixels(transform: EvalTransform, sides: tuple[int, int], theirs: np.ndarray, library: str) -> None:
    graph = resize_batch(torch.from_numpy(pattern(*sides))[None], transform.image, transform.preprocessing)[0]
    for ours in (transform.resize_only(pattern(*sides)), graph):
        found = ours.permute(1, 2, 0)[:: STRIDE[0], :: STRIDE[1]].numpy()
        assert (found == found.round()).all()
        apart = np.abs(found - theirs.astype(np.float32))
        assert (apart > 0).mean() <= TIES[library]
        assert apart.max() <= PASSES


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("name", TIMM)
def test_pixels_are_those_of_timms_transform(name: str, sides: tuple[int, int], pixels: dict[str, np.ndarray]):
    assert_same_pixels(from_timm(TIMM[name]), sides, pixels[f"timm/{name}/{sides[0]}x{sides[1]}"], "timm")


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_pixels_are_those_of_transformers(
    name: str, sides: tuple[int, int], backend: str, pixels: dict[str, np.ndarray]
):
    library = f"transformers-{backend}"
    theirs = pixels[f"{library}/{name}/{sides[0]}x{sides[1]}"]
    assert_same_pixels(from_transformers(TRANSFORMERS[name]), sides, theirs, library)


@pytest.mark.parametrize("rounding", ["timm", "transformers"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_graph_gives_the_same_bytes_as_evaluation_and_rounds_no_deeper_image(dtype: torch.dtype, rounding: Rounding):
    transform = EvalTransform(image=(56, 56), preprocessing=Preprocessing(crop=0.9, rounding=rounding))
    image = pattern(97, 163)
    graph = resize_batch(torch.from_numpy(image).to(dtype)[None], (56, 56), transform.preprocessing)[0]
    torch.testing.assert_close(graph, transform.resize_only(image), rtol=0, atol=0)
    deep = image.astype(np.float32) * np.float32(0.99)
    both = torch.stack([torch.from_numpy(deep), torch.from_numpy(image).float()])  # each image on its own
    graph = resize_batch(both, (56, 56), transform.preprocessing)
    torch.testing.assert_close(graph[0], transform.resize_only(deep), rtol=0, atol=2e-3)
    torch.testing.assert_close(graph[1], transform.resize_only(image), rtol=0, atol=0)
    assert (graph[0] != graph[0].round()).any()


@pytest.mark.parametrize("sides", [(97, 163), (61, 40)])  # whose passes every Pillow takes in one order
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_models_input_is_that_of_the_transformers_installed_here(name: str, sides: tuple[int, int]):
    transform = from_transformers(TRANSFORMERS[name])
    processor = transformers_processor(TRANSFORMERS[name], "pil")
    theirs = processor(Image.fromarray(pattern(*sides)))["pixel_values"][0]
    grey_level = 1 / 255 / min(transform.preprocessing.std)
    apart = np.abs(transform(pattern(*sides)).numpy() - theirs) / grey_level
    assert apart.max() < PASSES + 0.01
    assert (apart > 0.01).mean() <= TIES["transformers-pil"]


def test_the_sizes_are_those_of_the_plain_reference():
    """224 / 0.9 is 248.9: timm resizes to 248, and vitkit's records of earlier versions to 249."""
    before = Preprocessing.from_record({"resize": "crop", "crop": 0.9, "interpolation": "bicubic"})
    assert geometry((375, 500), (224, 224), before).size == (249, 332)
    assert geometry((375, 500), (224, 224), before).offset == (12, 54)
    ours = geometry((375, 500), (224, 224), Preprocessing(crop=0.9, rounding="timm"))
    assert (ours.size, ours.offset) == ((248, 330), (12, 53))
    odd = geometry((100, 101), (224, 224), Preprocessing(crop=0.9, rounding="timm"))
    assert (odd.size, odd.offset) == ((248, 250), (12, 13))


def test_records_without_the_field_are_named_as_before_in_caches_and_journals():
    record = {"resize": "crop", "crop": 0.9, "interpolation": "bicubic", "mean": [0.5], "std": [0.5]}
    assert repr(Preprocessing.from_record(record)) == (
        "Preprocessing(resize='crop', crop=0.9, interpolation='bicubic', mean=(0.5,), std=(0.5,))"
    )
    assert "rounding='timm'" in repr(Preprocessing(rounding="timm"))
    changed = Preprocessing(rounding="timm", origin="somebody")
    assert Preprocessing.from_record(json.loads(json.dumps(asdict(changed)))).origin == "somebody"


@pytest.mark.parametrize(("image", "crop", "size"), [(224, 0.9, 248), (384, 1.0, 384)])
def test_a_file_of_timms_alone_has_the_crop_of_timms_defaults_and_says_so(image, crop, size, tmp_path: Path):
    model = vitkit.create("mu/16", classes=2, image=image)
    save_file(
        {name: tensor.contiguous() for name, tensor in timm_write.tensors_of(model).items()}, tmp_path / "a.safetensors"
    )
    loaded = vitkit.load(tmp_path / "a.safetensors", heads=model.config.heads)
    assert loaded.metadata.preprocessing.crop == crop
    line = Classifier(loaded).transform.description
    assert line.startswith(f"short side to {size} px (bicubic, antialiased), centre crop {image} x {image}")
    assert line.endswith("timm's default for ViTs, the file does not say")


@pytest.mark.parametrize("rounding", ["vitkit", "timm", "transformers"])
@pytest.mark.parametrize("format", ["timm", "hf"])
def test_every_format_keeps_the_rounding_and_tells_its_own_library_the_same_size(format, rounding, tmp_path: Path):
    model = vitkit.create("mu/16", classes=2, image=224)
    model.metadata = replace(model.metadata, preprocessing=Preprocessing(crop=0.9, rounding=rounding))
    vitkit.save(model, tmp_path / "out", format=format)
    assert vitkit.load(tmp_path / "out").metadata.preprocessing == model.metadata.preprocessing
    expected = 248 if rounding == "timm" else 249
    if format == "timm":
        config = json.loads((tmp_path / "out" / "config.json").read_text())["pretrained_cfg"]
        assert int(224 / config["crop_pct"]) == expected
    else:
        assert json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())["size"] == {
            "shortest_edge": expected
        }


@pytest.mark.slow  # a minute
def test_a_thousand_photos_are_answered_as_by_timms_own_pipeline(shared: Path, tmp_path: Path):
    with np.load(FIXTURES / "timm_answers.npz") as file:
        names, indices, logits = file["names"].tolist(), file["indices"], file["logits"]
    with tarfile.open(shared / "data" / "pets160.tar") as archive:
        archive.extractall(tmp_path, members=[archive.getmember(name) for name in names], filter="data")
    classifier = Classifier(shared / "weights" / "vit_ti16_in1k_timm.safetensors")
    predictions = classifier([tmp_path / name for name in names])
    ours = np.array([prediction.probabilities.argmax() for prediction in predictions])
    same = ours == indices[:, 0]
    assert same.sum() >= 999
    margins = logits[~same, 0] - logits[~same, 1]
    assert (margins < 0.1).all()  # timm itself could not tell these apart
