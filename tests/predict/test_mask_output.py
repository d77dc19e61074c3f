"""`vitkit predict` with a segmentation model: PNG files, COCO's JSON, printed lines; after a stop it continues."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

import vitkit
from tests.data.mask_images import write_masked_folder
from tests.data.sample_images import encode, scene
from tests.predict.small_model import real_images, small_model
from tests.predict.small_segmenter import CLASSES, small_segmenter
from vitkit.cli.main import main
from vitkit.data.sources.image_paths import find_image_names
from vitkit.errors import ConfigError
from vitkit.predict.mask_output import segment_into
from vitkit.predict.segmentation import ImageSegmenter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(small_segmenter(trained_size=(32, 32)), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write 25 images in two folders, one of them broken and one large."""
    folder = tmp_path / "photos"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        real_images(folder / name, 12)
    (folder / "a" / "007.jpg").write_bytes(b"\xff\xd8\xffnothing")
    (folder / "b" / "large.png").write_bytes(encode(scene(100, 140), "PNG"))
    return folder


def predict(*arguments: str | Path) -> None:
    main(["predict", *map(str, arguments), "--device", "cpu"])


def masks_by_hand(run: Path, photos: Path) -> dict[str, np.ndarray]:
    """Return the oracle: the mask of each image, segmented on its own."""
    segmenter = ImageSegmenter(run)
    paths = sorted(photos.rglob("*.*g"))
    return {str(path.relative_to(photos)): one.mask for path in paths if (one := segmenter(path)).error is None}


def same(mask: np.ndarray, other: np.ndarray) -> bool:
    return mask.shape == other.shape and (mask == other).mean() > 0.999


def test_a_folder_gets_a_png_for_each_image(run, photos, tmp_path, capsys):
    out = tmp_path / "new" / "masks"
    predict(run, photos, "--out", out, "--overlay")
    printed = capsys.readouterr()
    assert "25 images; 1 could not be read" in printed.out
    assert "more than 4 times 32 x 32 pixels" in printed.err
    masks = masks_by_hand(run, photos)
    assert len(masks) == 24
    for name, mask in masks.items():
        with Image.open((out / name).with_suffix(".png")) as image:
            assert image.mode == "P"
            assert same(np.asarray(image), mask)
        with Image.open((out / "overlays" / name).with_suffix(".jpg")) as image:
            assert image.size == mask.shape[::-1]
    rows = [json.loads(line) for line in (out / "masks.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == find_image_names([photos])
    assert [row["image"] for row in rows if row["error"]] == [str(photos / "a" / "007.jpg")]
    assert not any("mask" in row for row in rows if row["error"])
    assert {row["windows"] for row in rows} == {1, 24}
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize("form", ["rle", "polygons"])
def test_coco_json_is_read_by_pycocotools(run, photos, tmp_path, form):
    out = tmp_path / "masks.json"
    predict(run, photos, "--out", out, "--as", form)
    coco = COCO(str(out))
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == [*CLASSES]
    masks = masks_by_hand(run, photos)
    assert {image["file_name"] for image in coco.imgs.values()} == masks.keys()
    for image in coco.imgs.values():
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        found = np.full((image["height"], image["width"]), 255, np.uint8)
        for annotation in annotations:
            area = coco.annToMask(annotation).astype(bool)
            found[area] = annotation["category_id"] - 1
            assert annotation["area"] == area.sum()
            left, top, width, height = annotation["bbox"]
            assert area[top : top + height, left : left + width].sum() == area.sum()
        assert len(annotations) == len(np.unique(found))
        assert same(found, masks[image["file_name"]])
    (failed,) = json.loads(out.read_text())["info"]["failed"]
    assert failed["file_name"] == str(photos / "a" / "007.jpg")


def stop_after(images: int):
    """Return a progress that ends like Ctrl-C after so many images."""

    def progress(items, total, what, images_in=None):
        for number, item in enumerate(items):
            if number == images:
                raise KeyboardInterrupt
            yield item

    return progress


@pytest.mark.parametrize("name", ["masks", "masks.json"])
@pytest.mark.parametrize("stopped", [0, 5, 16, 24])
def test_a_stopped_job_continues_after_the_last_mask(run, photos, tmp_path, name, stopped):
    segmenter, paths = ImageSegmenter(run), find_image_names([photos])
    whole, out = tmp_path / "whole", tmp_path / "continued"
    for folder in (whole, out):
        folder.mkdir()
    segment_into(whole / name, segmenter, paths)
    with pytest.raises(KeyboardInterrupt):
        segment_into(out / name, segmenter, paths, progress=stop_after(stopped))
    before, failures = segment_into(out / name, segmenter, paths, workers=2)
    assert (before, failures.failed) == (stopped, 1)
    files = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
    assert files == [path.relative_to(out) for path in sorted(out.rglob("*")) if path.is_file()]
    assert all((whole / file).read_bytes() == (out / file).read_bytes() for file in files)


def test_another_model_does_not_continue(run, photos, tmp_path):
    paths, out = find_image_names([photos]), tmp_path / "masks"
    with pytest.raises(KeyboardInterrupt):
        segment_into(out, ImageSegmenter(run), paths, progress=stop_after(3))
    model = small_segmenter()
    model.head.logits.bias.data[0] += 1
    with pytest.raises(ConfigError, match="begun with another model"):
        segment_into(out, ImageSegmenter(model), paths)
    segment_into(out, ImageSegmenter(model), paths, overwrite=True)


def test_complete_output_and_files_of_others_are_kept(run, photos, tmp_path):
    segmenter, paths, out = ImageSegmenter(run), find_image_names([photos]), tmp_path / "masks"
    (out / "a").mkdir(parents=True)
    (out / "a" / "001.png").write_text("mine")
    with pytest.raises(ConfigError, match="1 file in the place of a mask"):
        segment_into(out, segmenter, paths)
    assert (out / "a" / "001.png").read_text() == "mine"
    segment_into(out, segmenter, paths, overwrite=True)
    with pytest.raises(ConfigError, match="exists already, and is complete"):
        segment_into(out, segmenter, paths)


def test_a_mask_never_replaces_an_image(run, photos, capsys):
    paths = find_image_names([photos])
    with pytest.raises(ConfigError, match="is one of the images"):
        segment_into(photos, ImageSegmenter(run), paths, overwrite=True)
    with pytest.raises(SystemExit):
        predict(run, photos, "--out", photos / "masks")
    assert "inside" in capsys.readouterr().err


def test_few_images_get_bars_and_many_get_lines(run, photos, capsys):
    predict(run, photos / "b" / "001.jpg", photos / "b" / "large.png", photos / "missing.jpg", "--max-failed", "1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{photos / 'b' / '001.jpg'}  ")
    assert "█" in lines[1]
    assert any("100 x 140, in 24 windows" in line for line in lines)
    assert lines[-1] == "  no mask: No such file or directory"
    predict(run, photos, "--top", "1")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 25
    assert lines[0].startswith("a/000.png  ")
    assert lines[0].endswith("…")


def test_json_is_a_line_for_each_image(run, photos, capsys):
    predict(run, photos, "--json")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 25
    for row in rows:
        if row["error"] is None:
            assert sum(one["share"] for one in row["classes"]) == pytest.approx(1, abs=1e-4)
            assert {one["label"] for one in row["classes"]} <= {*CLASSES}


def test_too_many_broken_images_are_an_exit_code_of_three(run, photos, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        predict(run, photos, "--out", tmp_path / "masks", "--max-failed", "0")
    assert stopped.value.code == 3
    assert "1 of 25 images failed" in capsys.readouterr().err
    assert (tmp_path / "masks" / "masks.jsonl").exists()  # nothing is lost over it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--csv",), "--csv is for models that classify images"),
        (("--fast",), "--fast is for models that classify images"),
        (("--out", "masks", "--shard", "0/2"), "--shard is for models that classify images"),
        (("--overlay",), "need --out"),
        (("--out", "masks", "--as", "rle"), "is for --out FILE.json"),
        (("--out", "masks.json", "--overlay"), "--overlay needs a folder"),
        (("--out", "masks.csv"), "must end in .json"),
        (("--out", "s3://bucket/masks/"), "a folder of this machine"),
        (("--resize", "crop"), "masks need whole images"),
    ],
)
def test_options_that_masks_do_not_have(run, photos, tmp_path, monkeypatch, options, message, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        predict(run, photos, *options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_classifier_has_no_masks(photos, tmp_path, capsys):
    vitkit.save(small_model(), tmp_path / "classifier")
    with pytest.raises(SystemExit):
        predict(tmp_path / "classifier", photos, "--out", tmp_path / "masks", "--overlay")
    assert "has no masks for --as or --overlay" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        predict(tmp_path / "classifier", photos, "--out", tmp_path / "masks.json")
    assert "must end in .csv" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["{folder}", "{folder}/", ".", "./", "../streets"])
def test_masks_in_the_folder_of_the_images_are_not_segmented(run, tmp_path, capsys, monkeypatch, source):
    folder = write_masked_folder(tmp_path / "streets", 2)
    for mask in [*folder.glob("masks/*/*.png")]:
        mask.with_name(f"{mask.stem}_mask.png").write_bytes(mask.read_bytes())  # a further one of the same image
    monkeypatch.chdir(folder)
    main(["predict", str(run), source.format(folder=folder), "--out", str(tmp_path / "found")])
    assert "left out 8 masks of the images, such as" in capsys.readouterr().err
    found = sorted(path.stem for path in (tmp_path / "found").rglob("*.png"))
    assert found == [path.stem for path in sorted(folder.rglob("*.jpg"))]
    vitkit.save(small_model(), tmp_path / "classifier")
    vectors = tmp_path / "vectors.npy"
    main(["embed", str(tmp_path / "classifier"), source.format(folder=folder), "--out", str(vectors)])
    assert len(np.load(vectors)) == len(found)
    capsys.readouterr()
    named = sorted(folder.rglob("000.png"))
    main(["predict", str(run), *map(str, named), "--json"])  # named one by one, they are wanted
    assert len(capsys.readouterr().out.splitlines()) == len(named)
