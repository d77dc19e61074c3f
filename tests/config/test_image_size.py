"""The image size of a model that is trained from scratch follows the data, is printed, and stays where it is set."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitkit
from vitkit.cli.main import main
from vitkit.config.image_size import choose_mask_size, choose_size
from vitkit.config.resolve import resolve
from vitkit.data.decode import decode, decoded_size
from vitkit.data.image_sizes import DataSize, measure_size
from vitkit.data.sources.open import open_data
from vitkit.model.config import ViTConfig
from vitkit.model.variants import configure


def square(side: int) -> DataSize:
    return DataSize(images=100, height=side, width=side, short_side=side)


def write_photos(folder: Path, sizes: list[tuple[int, int]]) -> str:
    for index, (height, width) in enumerate(sizes):
        path = folder / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((height, width, 3), index, np.uint8)).save(path)
    return str(folder)


@pytest.mark.parametrize(
    ("side", "model", "image"),
    [
        (28, "Ti/4", 28),  # Fashion-MNIST
        (32, "Ti/4", 32),  # CIFAR
        (64, "Ti/8", 64),  # Tiny-ImageNet
        (96, "Ti/8", 96),  # STL-10
        (112, "Ti/16", 112),
        (160, "Ti/16", 160),
        (167, "Ti/16", 160),
        (224, "Ti/16", 224),
        (500, "Ti/16", 224),
        (4000, "Ti/16", 224),
        (14, "Ti/2", 14),
        (5, "Ti/2", 14),
    ],
)
def test_without_a_named_model_size_and_patch_are_what_people_choose(side: int, model: str, image: int):
    assert choose_size("Ti/16", {}, square(side), named=False)[:2] == (model, image)


@pytest.mark.parametrize(
    ("model", "side", "image"),
    [
        ("mu/4", 28, 28),
        ("Ti/16", 28, 112),
        ("Ti/16", 160, 160),
        ("B/32", 64, 224),
        ("H/14", 300, 224),
        ("B/5", 300, 220),
        ("R50x1", 32, 128),
        ("R50x1", 500, 224),
        ("R50+B/16", 150, 144),
        ("R+Ti/16", 200, 224),
    ],
)
def test_a_named_model_keeps_its_patch(model: str, side: int, image: int):
    assert choose_size(model, {}, square(side), named=True)[:2] == (model, image)


@given(side=st.integers(1, 5000), model=st.sampled_from(["Ti/16", "S/8", "B/32", "H/14", "B/3", "R50+B/16", "R50x1"]))
def test_every_size_suits_its_model(side: int, model: str):
    for named in (True, False):
        chosen, image, reason = choose_size(model, {}, square(side), named=named)
        config = configure(chosen, image=image)  # raises an error for a size that it cannot take
        assert image <= 224
        assert f"{image} px" in reason
        if isinstance(config, ViTConfig) and model != "B/32":
            assert min(config.grid) >= 7


def test_patches_of_4_px_make_49_tokens_of_fashion():
    config, _, reason = resolve({"data": "fashion", "weights": "none", "options": {"patch": 4}, "model": "Ti/16"})
    assert config.image == (28, 28)
    assert configure(config.model, image=config.image, **config.options).patches == 49
    assert "28 px: the median of the images' shorter sides is 28 px, in 7 x 7 patches of 4 px" in reason


def test_a_model_whose_patches_are_too_large_is_told_which_would_suit():
    _, _, reason = resolve({"data": "fashion", "weights": "none", "model": "Ti/16"})
    assert "images are enlarged for that, and --model Ti/4 would do without" in reason


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ({"weights": "none", "image": (56, 56)}, (56, 56)),
        ({"weights": "none", "recipe": "imagenet_pretrain"}, (224, 224)),
        ({"weights": "none", "recipe": "pets_transfer"}, (384, 384)),
        ({}, None),  # that of the weights
        ({"weights": "ti16"}, None),
    ],
)
def test_a_size_that_weights_recipe_or_user_have_stays(settings: dict[str, object], image: tuple[int, int] | None):
    assert resolve({"data": "fashion", **settings})[0].image == image


def test_the_median_is_that_of_the_shorter_sides(tmp_path: Path):
    data = open_data(write_photos(tmp_path / "photos", [(40, 90), (60, 50), (70, 64), (300, 20), (64, 64)]))
    assert measure_size(data.splits["all"]) == DataSize(images=5, height=64, width=64, short_side=50)


def test_images_without_a_readable_header_do_not_count(tmp_path: Path):
    folder = Path(write_photos(tmp_path / "photos", [(48, 48)] * 4))
    (folder / "a" / "broken.png").write_bytes(b"no image")
    size = measure_size(open_data(str(folder)).splits["all"])
    assert size is not None
    assert (size.images, size.short_side) == (5, 48)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no image")
    assert measure_size(open_data(str(folder)).splits["all"]) is None
    assert choose_size("Ti/16", {}, None, named=False)[:2] == ("Ti/16", 224)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_from_the_header_is_that_of_the_decoded_image(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("JPEG", "PNG", "WEBP"):
        buffer = io.BytesIO()
        Image.new("RGB", (30, 20)).save(buffer, name, exif=exif)
        assert decoded_size(buffer.getvalue()) == decode(buffer.getvalue()).shape[:2]
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((5, 9, 3), np.uint8))
    assert decoded_size(buffer.getvalue()) == (5, 9)
    assert decoded_size(np.zeros((4, 6), np.uint8)) == (4, 6)


def test_the_size_is_printed_recorded_and_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    photos, run = write_photos(tmp_path / "photos", [(36, 40)] * 20), tmp_path / "run"
    small = ["--steps", "2", "--batch", "4", "--workers", "0", "--device", "cpu", "--set", "schedule.warmup=0"]
    depth = ["options.depth=1", "options.width=32", "options.mlp=64", "options.heads=2"]
    main(["fit", photos, "--weights", "none", "--out", str(run), *small, *depth])
    printed = " ".join(capsys.readouterr().out.split())
    assert "36 px: the median of the images' shorter sides is 36 px, in 9 x 9 patches of 4 px" in printed
    assert "therefore Ti/4 and not Ti/16" in printed
    recorded = tomllib.loads((run / "config.toml").read_text())
    assert (recorded["model"], recorded["image"]) == ("Ti/4", [36, 36])
    assert vitkit.load(run).config.image == (36, 36)
    for name in ("model.safetensors", "report.html"):
        (run / name).unlink()
    main(["resume", str(run)])
    assert "36 px: the median" in " ".join(capsys.readouterr().out.split())
    larger = write_photos(tmp_path / "larger", [(64, 64)] * 20)
    config, _, _ = resolve({**recorded, "data": larger, "out": ""}, {"data": larger})
    assert config.image == (36, 36)  # what a file says stays


@pytest.mark.parametrize(
    ("model", "size", "image", "enlarged"),
    [
        ("Ti/16", (360, 480), (368, 480), False),  # CamVid: 22.5 patches are 23
        ("Ti/16", (3000, 4000), (384, 512), False),
        ("Ti/16", (60, 80), (112, 144), True),
        ("mu/8", (60, 80), (64, 80), False),
        ("Ti/16", (10, 1000), (16, 512), False),  # the longer side counts
    ],
)
def test_a_model_for_masks_has_an_input_of_the_shape_of_the_images(
    model: str, size: tuple[int, int], image: tuple[int, int], enlarged: bool
):
    chosen = choose_mask_size(model, {}, DataSize(images=9, height=size[0], width=size[1], short_side=min(size)))
    assert chosen is not None
    assert chosen.image == image
    assert ("enlarged" in chosen.reason) == enlarged
