"""Exported segmentation models, opened again: the same masks as in Python, on odd images and in every runtime."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitkit
from tests.data.mask_images import CLASSES, write_masked_folder
from tests.data.sample_images import encode, oriented, scene
from tests.export.exported_files import DEEP, IMAGES, odd_images, written
from tests.model.kinds import SEGMENTERS, make
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError
from vitkit.export.compare import TOLERANCE
from vitkit.export.compare_masks import GREY_LEVEL_TOLERANCE, _tied, compare_masks
from vitkit.export.exported import ExportedModel, OnnxModel, open_exported
from vitkit.export.mask_graph import upsample_masks
from vitkit.export.metadata import ExportError, read_metadata
from vitkit.export.trace import trace
from vitkit.export.usage import usage
from vitkit.export.write import export, export_int8
from vitkit.predict.inputs import pixels_of
from vitkit.predict.samples import package_samples
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.run_folder import RunFolder

PALETTE = [[7 * number, 255 - number, 13] for number in range(10)]
LABELS = tuple(f"class {number}" for number in range(10))
LARGEST = (300, 400)  # of the training images: 600 x 800 is just not cut into windows


def model(kind: str = "linear") -> Any:
    torch.manual_seed(0)
    made = make(kind)
    chain = Preprocessing(resize="squash", interpolation="bilinear", mean=(0.4,), std=(0.2,))
    made.metadata = replace(
        made.metadata,
        labels=LABELS,
        preprocessing=chain,
        provenance={"task": "segment", "palette": PALETTE, "trained_size": list(LARGEST)},
    )
    return made


def fifty_odd_images() -> dict[str, Any]:
    """Return images of odd sizes, colours and files; none is cut into windows."""
    images = {**IMAGES, **odd_images(), "16 bits": DEEP}
    images |= {f"turned by Exif {turn}": oriented("JPEG", turn, quality=95) for turn in range(1, 9)}
    for height, width in ((1, 2), (2, 1), (3, 500), (500, 3), (8, 8), (31, 33), (299, 401)):
        for mode in ("RGB", "L", "LA"):
            image = Image.fromarray(scene(height, width)).convert(mode)
            images[f"{mode} of {height} x {width}"] = encode(image, "PNG")
    return images


def test_there_are_fifty():
    assert len(fifty_odd_images()) >= 50


@pytest.fixture(scope="module", params=["linear", "queries"])
def segmenter(request: pytest.FixtureRequest) -> ImageSegmenter:
    return ImageSegmenter(model(request.param))


@pytest.fixture(scope="module", params=["pt2", "onnx"])
def file(
    request: pytest.FixtureRequest, segmenter: ImageSegmenter, tmp_path_factory: pytest.TempPathFactory
) -> ExportedModel:
    path = tmp_path_factory.mktemp("exported") / f"model.{request.param}"
    export(segmenter, path, to=request.param, input="float32")
    return open_exported(path)


def assert_same_masks(segmenter: ImageSegmenter, file: ExportedModel, images: list[Any]) -> None:
    """Compare masks and scores with Python's; pixels may differ where two classes have nearly the same score."""
    channels = segmenter.model.config.channels
    pixels = [pixels_of(image, channels=channels) for image in images]
    for one, segmented, (mask, scores) in zip(pixels, segmenter(images), file.masks(pixels), strict=True):
        with torch.inference_mode():
            exact = segmenter.model(segmenter.transform(one)[None])
        tolerance = TOLERANCE * max(float(exact.abs().max()), 1)
        torch.testing.assert_close(torch.from_numpy(scores)[None], exact, atol=tolerance, rtol=0)
        assert mask.dtype == np.uint8
        assert mask.shape == segmented.mask.shape == one.shape[:2]
        best, second = F.interpolate(exact, mask.shape, mode="bilinear")[0].topk(2, dim=0).values.numpy()
        clear = best - second > 2 * tolerance
        np.testing.assert_array_equal(mask[clear], segmented.mask[clear])
        assert (mask == segmented.mask).mean() > 0.999 or mask.size < 1000


def test_fifty_odd_images_get_the_same_masks(segmenter: ImageSegmenter, file: ExportedModel):
    images = [*fifty_odd_images().values()]
    assert_same_masks(segmenter, file, images)
    assert len(np.unique(np.concatenate([segmented.mask.ravel() for segmented in segmenter(images)]))) > 2


def test_a_batch_equals_its_images(segmenter: ImageSegmenter, file: ExportedModel):
    images = [scene(60, 90), scene(60, 90)[::-1].copy(), scene(60, 90)[:, ::-1].copy()]
    for together, (alone, _) in zip(file.masks(images), [file.masks([one])[0] for one in images], strict=True):
        assert (together[0] == alone).mean() > 0.999


def test_the_file_carries_classes_colours_and_preprocessing(segmenter: ImageSegmenter, file: ExportedModel):
    record = read_metadata(file.path)
    assert (record["task"], record["labels"], [*map(list, record["palette"])]) == ("segment", list(LABELS), PALETTE)
    assert Preprocessing.from_record(record["preprocessing"]) == segmenter.transform.preprocessing
    assert "more than 480,000 pixels, which vitkit cuts into windows of 300 x 400, is squashed" in record["feed"]
    assert "multilabel" not in record
    if isinstance(file, OnnxModel):
        content = onnx.load(file.path)
        onnx.checker.check_model(content, full_check=True)
        shapes = {
            value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in content.graph.output
        }
        assert shapes["masks"] == ["batch", "height", "width"]
        assert shapes["scores"] == ["batch", 10, *segmenter.model.config.score_grid]
        assert content.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
        assert {entry.domain for entry in content.opset_import} == {""}


def test_an_image_that_vitkit_cuts_is_squashed_as_a_whole(segmenter: ImageSegmenter, file: ExportedModel):
    pixels = scene(601, 801)
    assert segmenter(pixels).windows > 1
    scores = segmenter.compute.scores(segmenter.transform(pixels)[None])[0]
    expected = segmenter.compute.of_scores(scores, (601, 801)).mask
    assert (file.masks([pixels])[0][0] == expected).mean() > 0.999


def test_the_comparison_counts_pixels(segmenter: ImageSegmenter, file: ExportedModel):
    record = json.loads(file.path.with_name(f"{file.path.name}.json").read_text())["comparison"]
    assert (record["images"], record["sizes"]) == (70, 7)
    assert record["share"] == record["same"] / record["pixels"] > 0.999
    assert record["agree"] == record["pixels"]
    assert record["largest"] <= TOLERANCE * max(record["score"], 1)
    assert record["data"] == "fashion, inside the package"


def run_lines(lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Image.Image:
    """Run lines as somebody would who has the file and an image, but not vitkit, and open the mask."""
    monkeypatch.chdir(folder)
    exec("\n".join(lines), {})
    return Image.open("mask.png")


def test_the_usage_lines_of_a_file_write_the_mask(
    segmenter: ImageSegmenter, file: ExportedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    record = json.loads(file.path.with_name(f"{file.path.name}.json").read_text())
    for content in (odd_images()["rotated.jpg"], odd_images()["transparent.png"]):
        (file.path.parent / "image.jpg").write_bytes(content)
        expected = segmenter(content)
        capsys.readouterr()
        mask = run_lines(record["ask"], file.path.parent, monkeypatch)
        assert (np.asarray(mask) == expected.mask).mean() > 0.999
        assert mask.getpalette()[: 3 * len(PALETTE)] == [value for colour in PALETTE for value in colour]
        printed = capsys.readouterr().out.splitlines()
        name, share = next(iter(expected.shares.items()))
        assert printed[0] == f"{share:.1%}  {name}"
    assert record["takes"].startswith("(batch, height, width, 3) float32")
    assert record["gives"].startswith("masks, (batch, height, width) uint8, of the images' own size")


@pytest.mark.parametrize(
    ("kind", "format", "input"),
    [
        ("linear, one channel", "pt2", "uint8"),
        ("queries in all blocks", "pt2", "tensor"),
        *(
            pytest.param(kind, format, "uint8", marks=pytest.mark.slow)
            for kind in SEGMENTERS
            for format in ("onnx", "pt2")
        ),
    ],
)
def test_segmenters_of_every_kind(
    kind: str, format: str, input: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    segmenter = ImageSegmenter(model(kind))
    channels = segmenter.model.config.channels
    file = written(segmenter, tmp_path / f"model.{format}", input)
    if input != "tensor":
        assert_same_masks(segmenter, file, [scene(50, 70)[..., :channels], scene(1, 9)[..., :channels]])
    pixels = scene(*segmenter.model.config.image)[..., :channels]
    np.save(tmp_path / "image.npy", segmenter.transform(pixels).numpy() if input == "tensor" else pixels)
    Image.fromarray(pixels.squeeze()).save(tmp_path / "image.jpg", "PNG")
    mask = np.asarray(run_lines(usage(f"model.{format}", file.metadata)["ask"], tmp_path, monkeypatch))
    assert (mask == segmenter(pixels).mask).mean() > 0.999


def test_masks_of_tensors_are_of_the_models_size_and_are_compared(tmp_path: Path):
    segmenter = ImageSegmenter(model())
    made = export(segmenter, tmp_path / "model.pt2", to="pt2", input="tensor")
    assert made.comparison.equal
    assert made.comparison.pixels == 70 * 16 * 40
    assert "uint8, 16 x 40: the number" in made.record()["gives"]


# the arithmetic


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 11), st.integers(1, 3), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_upsampled_masks_are_those_of_interpolate(height: int, width: int, classes: int, batch: int, cells: int):
    scores = torch.randn(batch, classes, cells, cells + 1, generator=torch.Generator().manual_seed(height))
    theirs = F.interpolate(scores, (height, width), mode="bilinear", align_corners=False)
    ours = upsample_masks(scores, (height, width))
    assert ours.dtype == torch.uint8
    chosen = theirs.gather(1, ours.long()[:, None])[:, 0]
    torch.testing.assert_close(chosen, theirs.amax(1), atol=1e-5, rtol=0)


def test_of_equal_scores_the_lower_class_wins():
    scores = torch.zeros(1, 11, 2, 2)
    assert upsample_masks(scores, (5, 7)).max() == 0
    scores[:, [5, 6, 9]] = 1
    assert set(upsample_masks(scores, (5, 7)).unique().tolist()) == {5}


def test_a_tie_agrees_and_another_class_does_not():
    scores = torch.tensor([1.0, 1.0 - 1e-6, 0.5])[:, None, None].expand(3, 2, 2)
    expected, other = np.zeros((4, 4), np.uint8), np.full((4, 4), 1, np.uint8)
    assert _tied(scores, expected, other, 1e-4).all()
    assert not _tied(scores, expected, other + 1, 1e-4).any()
    assert not _tied(scores, expected, other + 2, 1e-4).any()  # no class of the model


def test_where_grey_levels_are_rounded_one_more_or_less_is_allowed(tmp_path: Path):
    made = model()
    chain = replace(made.metadata.preprocessing, rounding="timm")
    made.metadata = replace(made.metadata, preprocessing=chain)
    for input, tolerance in (("uint8", GREY_LEVEL_TOLERANCE), ("tensor", TOLERANCE)):
        exported = export(ImageSegmenter(made), tmp_path / f"{input}.pt2", to="pt2", input=input)  # type: ignore[arg-type]
        assert exported.comparison.record()["tolerance"] == tolerance


# what can go wrong


class Shifted:
    """An exported file whose masks are those of the class before, as one that disagrees would give."""

    metadata = {"input": "uint8"}  # noqa: RUF012

    def masks(self, images: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        ours = ImageSegmenter(model())
        return [
            ((ours(one).mask + 1) % 10, ours.compute.scores(ours.transform(one)[None])[0].numpy()) for one in images
        ]


def test_masks_that_disagree_are_not_equal_although_scores_are():
    ours = ImageSegmenter(model())
    comparison = compare_masks(ours, Shifted(), package_samples(ours.model).spread(3))  # type: ignore[arg-type]
    assert comparison.largest == 0
    assert comparison.same == 0
    assert not comparison.equal


def test_a_file_that_disagrees_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ours, other = ImageSegmenter(model()), ImageSegmenter(copy.deepcopy(model()))
    with torch.no_grad():
        other.model.head.logits.bias[0] += 0.01
    monkeypatch.setattr("vitkit.export.write.trace", lambda _, input: trace(other, input))
    with pytest.raises(ExportError, match=r"does not predict as the model does(.|\n)*same class at each pixel"):
        export(ours, tmp_path / "model.pt2", to="pt2", input="tensor")
    assert list(tmp_path.iterdir()) == []


def test_int8_and_crops_are_declined_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match="--int8 is for classifiers"):
        export_int8(ImageSegmenter(model()), tmp_path / "model.onnx")
    vitkit.save(model(), tmp_path / "run")
    with pytest.raises(ConfigError, match="masks need whole images"):
        vitkit.Run(tmp_path / "run", preprocessing={"resize": "crop"}).export(to="pt2")


def test_the_verb_prints_the_comparison_and_writes_it_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    vitkit.save(model(), tmp_path / "run")
    main(["export", str(tmp_path / "run"), "--to", "pt2"])
    printed = capsys.readouterr().out
    assert "pixels the same, scores up to" in printed
    assert "(70 images of 7 sizes; fashion, inside the package)" in printed
    main(["export", str(tmp_path / "run"), "--to", "pt2", "--overwrite", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["comparison"]["share"] > 0.999
    assert record["int8"] is None


def test_the_verb_compares_on_the_runs_own_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_masked_folder(tmp_path / "shapes", 5)
    made = vitkit.create("mu/8+linear", classes=3, image=32)
    chain = Preprocessing(resize="squash")
    made.metadata = replace(made.metadata, labels=CLASSES, preprocessing=chain)
    folder = RunFolder(tmp_path / "run")
    vitkit.save(made, folder.path)
    folder.write_config(Fit(data=str(tmp_path / "shapes"), model="mu/8", image=(32, 32), objective="segment"))
    folder.add_to_record(data={})
    main(["export", str(folder.path), "--to", "pt2", "--input", "tensor"])
    assert f"(11 images of 7 sizes; {tmp_path / 'shapes'}, val)" in capsys.readouterr().out
