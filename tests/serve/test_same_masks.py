"""ImageSegmenter, the command line and HTTP give the same masks for the same 50 odd images."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import vitkit
from tests.data.sample_images import encode, oriented, scene
from tests.export.exported_files import IMAGES
from tests.predict.small_model import odd_images
from tests.predict.small_segmenter import small_segmenter
from tests.serve.servers import PATIENT, running_server
from vitkit.cli.main import main
from vitkit.data.masks.rle import decode_rle
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.serve.model_pool import ModelPool

Masks = dict[str, NDArray[np.uint8]]
TRAINED = (60, 80)  # so that some of the images are cut into windows


def animation() -> bytes:
    """Return a GIF of three frames, of which the first counts."""
    frames = [Image.fromarray(np.roll(scene(33, 47), 9 * number, 1)).quantize(32) for number in range(3)]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:])


def images() -> dict[str, bytes]:
    """Return 50 images of odd sizes, kinds and formats, under names of files."""
    found = odd_images()
    for name, image in IMAGES.items():
        found[f"{name.replace(' ', '_')}.img"] = image if isinstance(image, bytes) else encode(image, "PNG")
    for orientation in range(1, 9):
        found[f"{orientation}.jpg"] = oriented("JPEG", orientation, quality=95)
        found[f"{orientation}.png"] = oriented("PNG", orientation)
    found |= {
        "animation.gif": animation(),
        "3x500.png": encode(scene(3, 500), "PNG"),
        "500x3.webp": encode(scene(500, 3), "WEBP", lossless=True),
        "grey_alpha.png": encode(Image.fromarray(scene()).convert("LA"), "PNG"),
        "bits.png": encode(Image.fromarray(scene()).convert("1"), "PNG"),
        "palette.png": encode(Image.fromarray(scene()).quantize(7), "PNG"),
        "windows.jpg": encode(scene(300, 470), "JPEG", quality=90),
        "windows.tiff": encode(scene(201, 133), "TIFF"),
        "deep_windows.tiff": encode(Image.fromarray((scene(150, 200)[..., 0].astype(np.uint16)) * 257), "TIFF"),
        "old.bmp": encode(scene(17, 23), "BMP"),
        "raw.ppm": encode(scene(17, 23), "PPM"),
    }
    assert len(found) == 50
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("odd")
    for name, content in images().items():
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "streets"
    vitkit.save(small_segmenter(TRAINED), folder)
    return folder


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with ModelPool({"streets": ImageSegmenter(run)}, PATIENT) as pool, running_server(pool) as (address, _, _):
        yield address


@pytest.fixture(scope="module")
def expected(run: Path, files: list[Path]) -> Masks:
    segmented = ImageSegmenter(run)(files)
    assert [one.error for one in segmented] == [None] * 50
    assert sum(one.windows > 1 for one in segmented) == 4
    return {file.name: one.mask for file, one in zip(files, segmented, strict=True)}


def assert_same(masks: Masks, expected: Masks) -> None:
    """Rounding depends on the batch, and may decide between two classes of the same score."""
    assert masks.keys() == expected.keys()
    for name, mask in masks.items():
        assert mask.shape == expected[name].shape, name
        assert (mask != expected[name]).sum() <= 1 + mask.size // 2000, name


def posted(address: str, files: list[Path], query: str = "", headers: dict[str, str] | None = None) -> list[Any]:
    parts = [("images", (file.name, file.read_bytes())) for file in files]
    answer = httpx.post(f"{address}/v1/predict{query}", files=parts, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    rows: list[Any] = answer.json()["predictions"]
    assert [row["error"] for row in rows] == [None] * len(files)
    return rows


def test_the_command_line_writes_the_masks_of_python(run: Path, files: list[Path], expected: Masks, tmp_path: Path):
    main(["predict", str(run), *map(str, files), "--out", f"{tmp_path}/masks", "--device", "cpu"])
    rows = [json.loads(line) for line in (tmp_path / "masks/masks.jsonl").read_text().splitlines()]
    masks = {Path(row["image"]).name: np.asarray(Image.open(tmp_path / "masks" / row["mask"])) for row in rows}
    assert_same(masks, expected)


def test_the_server_returns_them_in_json(address: str, files: list[Path], expected: Masks):
    rows = posted(address, files)
    masks = {row["image"]: np.asarray(Image.open(io.BytesIO(base64.b64decode(row["mask"])))) for row in rows}
    assert_same(masks, expected)


def test_the_server_returns_them_as_run_lengths(address: str, files: list[Path], expected: Masks):
    masks = {}
    for row in posted(address, files, "?mask=rle"):
        masks[row["image"]] = np.full((row["height"], row["width"]), 255, np.uint8)
        for found in row["classes"]:
            masks[row["image"]][decode_rle(found["rle"])] = found["index"]
    assert_same(masks, expected)


def test_the_server_returns_each_as_an_image(address: str, files: list[Path], expected: Masks):
    masks = {}
    headers = {"accept": "image/png", "content-type": "application/octet-stream"}
    with httpx.Client(timeout=120) as client:
        for file in files:
            answer = client.post(f"{address}/v1/predict", content=file.read_bytes(), headers=headers)
            assert answer.status_code == 200, answer.text
            masks[file.name] = np.asarray(Image.open(io.BytesIO(answer.content)))
    assert_same(masks, expected)
