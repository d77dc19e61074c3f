"""The HTTP API of a segmentation model, straight into the application: every image gets the mask of ImageSegmenter."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.model.kinds import randomise
from tests.predict.small_segmenter import CLASSES, PALETTE, small_segmenter
from tests.serve.asgi_client import base64_images, run_requests, send
from tests.serve.masks import LARGE, PHOTO, assert_same, mask_pool, python_mask, read_mask
from tests.serve.servers import image_form, make_image, make_pool, small_classifier
from vitkit.data.masks.rle import decode_rle
from vitkit.data.preprocessing import Preprocessing
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.serve.segmenter_worker import SegmenterWorker


def test_masks_of_several_images_come_in_order_and_broken_ones_with_the_reason():
    contents = [PHOTO, b"no image", LARGE, make_image(2, (9, 50))]
    response = send("POST", "/v1/predict", pool=mask_pool(), files=image_form(*contents))
    assert response.status_code == 200
    assert response.json()["model"] == "masks"
    rows = response.json()["predictions"]
    assert [row["image"] for row in rows] == ["0.png", "1.png", "2.png", "3.png"]
    assert [row["windows"] for row in rows] == [1, 1, 36, 1]
    assert rows[1]["error"].startswith("not an image in an accepted format")
    assert (rows[1]["height"], rows[1]["width"], rows[1]["classes"]) == (0, 0, [])
    assert "mask" not in rows[1]
    for row, content in zip(rows, contents, strict=True):
        if content != b"no image":
            assert row["error"] is None
            assert_same(read_mask(row), python_mask(content))
            assert (row["height"], row["width"]) == read_mask(row).shape


def test_the_classes_of_a_mask_come_with_their_shares_and_its_palette_with_their_colours():
    (row,) = send("POST", "/v1/predict", pool=mask_pool(), files=image_form(PHOTO)).json()["predictions"]
    mask = read_mask(row)
    shares = [found["share"] for found in row["classes"]]
    assert shares == sorted(shares, reverse=True)
    assert {found["index"] for found in row["classes"]} == set(np.unique(mask).tolist())
    for found in row["classes"]:
        assert found["label"] == CLASSES[found["index"]]
        assert found["share"] == pytest.approx(float((mask == found["index"]).mean()), abs=1e-6)
        assert found.keys() == {"label", "index", "share"}
    palette = Image.open(io.BytesIO(base64.b64decode(row["mask"]))).getpalette()
    assert palette is not None
    assert palette[:12] == [value for colour in PALETTE for value in colour]


def test_a_mask_can_be_run_lengths_or_left_out():
    pool = mask_pool()

    async def requests(http: httpx.AsyncClient) -> list[Any]:
        queries = ("rle", "none", "png")
        return [await http.post(f"/v1/predict?mask={query}", json=base64_images(PHOTO)) for query in queries]

    lengths, without, png = (response.json()["predictions"][0] for response in run_requests(pool, requests))
    assert "mask" not in lengths
    assert "mask" not in without
    mask = np.full((40, 60), 255, np.uint8)
    for found in lengths["classes"]:
        mask[decode_rle(found.pop("rle"), (40, 60))] = found["index"]
    assert np.array_equal(mask, read_mask(png))
    assert lengths["classes"] == without["classes"] == png["classes"]


def test_who_accepts_images_gets_the_mask_itself():
    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        accept = {"accept": "image/png"}
        raw = {**accept, "content-type": "image/jpeg"}
        return [
            await http.post("/v1/predict", files=image_form(PHOTO), headers=accept),
            await http.post("/v1/predict", content=PHOTO, headers=raw),
            await http.post("/v1/predict", files=image_form(PHOTO, PHOTO), headers=accept),
            await http.post("/v1/predict", files=image_form(b"x"), headers=accept),
        ]

    form, raw, several, broken = run_requests(mask_pool(), requests)
    assert (form.status_code, form.headers["content-type"], form.headers["vary"]) == (200, "image/png", "accept")
    assert form.content == raw.content
    assert_same(np.asarray(Image.open(io.BytesIO(form.content))), python_mask(PHOTO))
    assert (several.status_code, "one at a time" in several.json()["error"]) == (413, True)
    assert broken.status_code == 422
    assert broken.json()["error"].startswith("The image cannot be decoded: not an image")
    assert broken.json()["predictions"][0]["classes"] == []


def test_the_model_says_what_it_does():
    (model,) = send("GET", "/v1/models", pool=mask_pool()).json()["models"]
    assert (model["task"], model["variant"], model["image"]) == ("segment", "mu/4+linear", [32, 32])
    assert (model["classes"], model["palette"]) == (list(CLASSES), [list(colour) for colour in PALETTE])
    assert (model["window"], model["grid"], model["views"]) == ([20, 30], [8, 8], [])
    (other,) = send("GET", "/v1/models").json()["models"]
    assert (other["task"], other["palette"], other["window"]) == ("classify", None, None)


@pytest.mark.parametrize(
    ("path", "model", "reason"),
    [
        ("predict?top=3", "masks", "top: masks gives masks"),
        ("predict?seen=true", "masks", "seen: masks gives masks"),
        ("predict?mask=polygons", "masks", "mask: Input should be 'png', 'rle' or 'none'"),
        ("predict?mask=rle", "classes", "mask: classes classifies images"),
        ("embed", "masks", "not a vector of an image"),
        ("attention", "masks", "not attention of an image"),
    ],
)
def test_what_a_model_cannot_do_is_refused(path: str, model: str, reason: str):
    models = {"masks": ImageSegmenter(small_segmenter()), "classes": small_classifier()}
    path = f"/v1/{path}{'&' if '?' in path else '?'}model={model}"
    response = send("POST", path, pool=make_pool(**models), files=image_form(PHOTO))
    assert (response.status_code, reason in response.json()["error"]) == (422, True), response.text


def test_both_kinds_of_models_are_served_beside_each_other():
    classifier = small_classifier()
    pool = make_pool(masks=ImageSegmenter(small_segmenter()), classes=classifier)

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        posts = [
            http.post(f"/v1/predict?model={name}", files=image_form(make_image(seed)), headers={"accept": "image/png"})
            for seed in range(8)
            for name in ("masks", "classes")
        ]
        return await asyncio.gather(*posts)

    answers = run_requests(pool, requests)
    for seed, (mask, classes) in enumerate(zip(answers[::2], answers[1::2], strict=True)):
        assert_same(np.asarray(Image.open(io.BytesIO(mask.content))), python_mask(make_image(seed), None))
        assert classes.json()["predictions"][0]["label"] == classifier(make_image(seed)).label


@pytest.mark.parametrize("content", [PHOTO, LARGE], ids=["small", "large"])
def test_scores_that_are_no_numbers_are_an_error_for_the_image(content: bytes):
    pool = mask_pool()
    worker = pool.workers["masks"]
    assert isinstance(worker, SegmenterWorker)
    compute = worker.compute
    worker.compute = replace(compute, scores=lambda images: compute.scores(images) * float("nan"))
    response = send("POST", "/v1/predict", pool=pool, files=image_form(content))
    assert (response.status_code, "not a finite number" in response.json()["error"]) == (422, True)


@pytest.mark.parametrize("content", [PHOTO, LARGE], ids=["small", "large"])
def test_a_model_that_fails_is_a_500(content: bytes):
    pool = mask_pool()
    worker = pool.workers["masks"]
    assert isinstance(worker, SegmenterWorker)

    def fail(images: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    worker.compute = replace(worker.compute, scores=fail)
    response = send("POST", "/v1/predict", pool=pool, files=image_form(content))
    assert (response.status_code, response.json()["error"]) == (500, "The model failed on this request.")


def test_serving_a_segmenter_does_not_change_it():
    segmenter = ImageSegmenter(small_segmenter())
    before = segmenter(PHOTO).mask
    send("POST", "/v1/predict", pool=make_pool(masks=segmenter), files=image_form(PHOTO))
    assert np.array_equal(before, segmenter(PHOTO).mask)


def test_mask_queries_give_the_masks_of_python():
    torch.manual_seed(1)
    model = randomise(vitkit.create("mu/4+queries", classes=5, image=32, queries=7, query_blocks=1))
    options = Preprocessing(resize="squash", interpolation="bilinear")
    model.metadata = replace(model.metadata, preprocessing=options)
    segmenter = ImageSegmenter(model)
    images = [make_image(seed, (50 + seed, 40)) for seed in range(5)]
    rows = send("POST", "/v1/predict", pool=make_pool(masks=segmenter), files=image_form(*images)).json()["predictions"]
    for row, image in zip(rows, images, strict=True):
        assert_same(read_mask(row), segmenter(image).mask)
        assert {found["label"] for found in row["classes"]} <= {"0", "1", "2", "3", "4"}
