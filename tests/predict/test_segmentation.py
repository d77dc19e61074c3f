"""`ImageSegmenter`: masks at the size of the image, whatever the image is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitkit
from tests.data.sample_images import encode, scene
from tests.predict.small_model import odd_images, small_model
from tests.predict.small_segmenter import CLASSES, PALETTE, small_segmenter
from vitkit.data.decode import decode
from vitkit.data.masks.palette import default_palette, stored_palette
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.predict.segmentation import ImageSegmenter


def by_hand(content: bytes | np.ndarray) -> np.ndarray:
    """Return the mask as the definition says: scores upsampled by torch to the image's size, and the best class."""
    model = small_segmenter()
    pixels = decode(content)
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    with torch.no_grad():
        scores = model(transform(pixels)[None])
    upsampled = F.interpolate(scores, pixels.shape[:2], mode="bilinear", align_corners=False)
    return upsampled[0].argmax(0).byte().numpy()


def agreement(mask: np.ndarray, other: np.ndarray) -> float:
    """Return the share of equal pixels: rounding may decide between two classes of the same score."""
    assert mask.shape == other.shape
    return float((mask == other).mean())


@pytest.mark.parametrize("name", odd_images())
def test_odd_images_have_masks_of_their_own_upright_size(name: str):
    content = odd_images()[name]
    segmented = ImageSegmenter(small_segmenter())(content)
    assert agreement(segmented.mask, by_hand(content)) > 0.999


def test_a_list_gives_a_list_in_order_with_errors_in_their_place(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(encode(scene(20, 30), "PNG"))
    images = [tmp_path / "a.png", b"broken", scene(31, 17), tmp_path / "missing.png"]
    first, second, third, fourth = ImageSegmenter(small_segmenter())(images)
    assert (first.mask.shape, first.name) == ((20, 30), str(tmp_path / "a.png"))
    assert second.error == "not an image in any supported format"
    assert third.mask.shape == (31, 17)
    assert fourth.error == "No such file or directory"
    with pytest.raises(DecodeError, match="No such file"):
        _ = fourth.shares


def test_batches_are_filled_across_images():
    images = [scene(20 + number, 30) for number in range(37)]
    segmenter = ImageSegmenter(small_segmenter())
    for image, segmented in zip(images, segmenter(images), strict=True):
        assert agreement(segmented.mask, by_hand(image)) > 0.999


def test_classes_shares_and_colours():
    segmented = ImageSegmenter(small_segmenter())(scene(40, 60))
    assert segmented.classes == CLASSES
    assert sum(segmented.shares.values()) == pytest.approx(1)
    assert list(segmented.shares.values()) == sorted(segmented.shares.values(), reverse=True)
    image = segmented.image()
    assert image.getpalette()[:12] == [value for colour in PALETTE for value in colour]
    assert np.array_equal(np.asarray(image), segmented.mask)
    assert "40 x 60" in repr(segmented)


def test_a_mask_is_saved_and_drawn_over_its_image(tmp_path: Path):
    pixels = scene(24, 40)
    segmented = ImageSegmenter(small_segmenter())(pixels)
    segmented.save(tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as image:
        assert np.array_equal(np.asarray(image), segmented.mask)
    assert segmented.over(pixels).size == (40, 24)
    with pytest.raises(ConfigError, match="the mask that of one of"):
        segmented.over(scene(9, 9))


def test_probabilities_come_with_the_mask_where_asked():
    segmented = ImageSegmenter(small_segmenter(), probabilities=True)(scene(24, 40))
    assert segmented.probability is not None
    assert segmented.probability.shape == (24, 40)
    assert 0.25 <= segmented.probability.min() <= segmented.probability.max() <= 1
    assert ImageSegmenter(small_segmenter())(scene()).probability is None


def test_large_images_are_cut_into_windows():
    segmenter = ImageSegmenter(small_segmenter(trained_size=(32, 32)))
    small, large = segmenter([scene(64, 64), scene(65, 64)])
    assert (small.windows, large.windows) == (1, 9)
    assert large.mask.shape == (65, 64)


def test_a_run_folder_is_a_source_and_a_model_keeps_its_mode(tmp_path: Path):
    model = small_segmenter()
    vitkit.save(model, tmp_path / "run")
    model.train()
    from_run, from_model = ImageSegmenter(tmp_path / "run"), ImageSegmenter(model)
    assert model.training
    assert (from_run.classes, from_run.palette) == (CLASSES, PALETTE)
    assert np.array_equal(from_run(scene()).mask, from_model(scene()).mask)


def test_classifiers_and_preprocessing_that_cuts_are_declined():
    with pytest.raises(WeightsError, match=r"gives no masks"):
        ImageSegmenter(small_model())
    with pytest.raises(ConfigError, match="gives every pixel a class") as error:
        vitkit.Classifier(small_segmenter())
    assert "vitkit.ImageSegmenter" in str(error.value)
    with pytest.raises(ConfigError, match="masks need whole images"):
        ImageSegmenter(small_segmenter(resize="crop"))
    with pytest.raises(ConfigError, match="2 class names for a model of 4 classes"):
        ImageSegmenter(small_segmenter(), labels=["a", "b"])


@pytest.mark.parametrize("stored", [None, [[0, 0, 0]], [[0, 0]] * 4, ["red"] * 4, [[0, 0, 999]] * 4, 7])
def test_a_palette_that_is_none_gives_way_to_the_default(stored):
    model = small_segmenter()
    model.metadata = replace(model.metadata, provenance={"palette": stored})
    assert stored_palette(model.metadata.provenance, 4) == default_palette(4)
