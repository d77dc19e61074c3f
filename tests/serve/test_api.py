"""The HTTP API, straight into the application: every image gets the prediction of the classifier."""

from __future__ import annotations

import asyncio
import base64
import io
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import vitkit
from tests.serve.asgi_client import JPEG_IMAGE, base64_images, gated_pool, run_requests, send, wait_until
from tests.serve.servers import (
    EPS,
    PATIENT,
    PROBABILITY_ATOL,
    TIMEOUT,
    decompression_bomb,
    image_form,
    make_image,
    make_pool,
    probability_by_index,
    small_classifier,
)
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.rollout import rollout
from vitkit.predict.inputs import pixels_of
from vitkit.serve.body import parse_images
from vitkit.serve.classifier_worker import WorkerPrediction, prediction_response
from vitkit.serve.limits import RequestError

MAP_ATOL = 0.5e-6 + 8 * EPS  # the server rounds to six decimals


def check_model_input(data_url: str, classifier: vitkit.Classifier) -> None:
    """Compare the returned image with the model's input, which was rounded to whole grey levels."""
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data_url.removeprefix("data:image/png;base64,")))))
    expected = classifier.transform.resize_only(pixels_of(JPEG_IMAGE)).permute(1, 2, 0).numpy()
    assert np.abs(shown.astype(float) - expected).max() <= 0.5


def test_a_prediction_includes_the_preprocessed_image_on_request():
    """It does so for a ResNet too, which has no attention route that would show it."""
    classifier = small_classifier("ResNet")
    answer = send(
        "POST", "/v1/predict?seen=true", pool=make_pool(small=classifier), files=image_form(JPEG_IMAGE, b"x")
    ).json()
    first, second = answer["predictions"]
    check_model_input(first["seen"], classifier)
    assert probability_by_index(first)[classifier(JPEG_IMAGE).top(1)[0].index] == pytest.approx(
        classifier(JPEG_IMAGE).probability, abs=PROBABILITY_ATOL
    )
    assert "seen" not in second
    assert "seen" not in send("POST", "/v1/predict", files=image_form(JPEG_IMAGE)).json()["predictions"][0]


def test_every_image_gets_its_own_prediction_in_any_batch():
    images = [make_image(seed) for seed in range(48)]
    pool, gate, sizes = gated_pool()
    classifier = pool.workers["small"].classifier
    gate.set()
    expected = [classifier(content).probabilities for content in images]
    gate.clear()
    sizes.clear()
    assert len({tuple(row.round(3)) for row in expected}) == 48  # so that a mix-up would show
    sample = pool.metrics.registry.get_sample_value

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        tasks = [
            asyncio.create_task(
                http.post("/v1/predict?top=10", files=image_form(content))
                if index % 2
                else http.post("/v1/predict?top=10", json=base64_images(content))
            )
            for index, content in enumerate(images)
        ]
        # all are queued while the first batch waits for the gate
        await wait_until(lambda: sample("vitkit_images_total", {"model": "small", "outcome": "read"}) == 48)
        gate.set()
        return await asyncio.gather(*tasks)

    for response, row in zip(run_requests(pool, requests), expected, strict=True):
        content = response.json()
        assert (response.status_code, content["model"]) == (200, "small")
        probabilities = probability_by_index(content["predictions"][0])
        assert np.abs(np.array([probabilities[index] for index in range(10)]) - row).max() < PROBABILITY_ATOL
    batches = {"model": "small", "task": "predict"}
    assert sample("vitkit_batch_images_sum", batches) == 48
    assert sample("vitkit_batch_images_count", batches) == len(sizes) < 48


def test_several_images_are_answered_in_order_and_broken_ones_with_the_reason():
    classifier = small_classifier()
    response = send(
        "POST",
        "/v1/predict?top=3",
        pool=make_pool(small=classifier),
        files=image_form(make_image(1), b"no image", JPEG_IMAGE[:-20], make_image(2)),
    )
    first, second, third, fourth = response.json()["predictions"]
    assert response.status_code == 200
    assert second["error"].startswith("not an image in an accepted format: JPEG, PNG")
    assert (second["answers"], second["label"], second["probability"]) == ([], None, None)
    assert [row["image"] for row in response.json()["predictions"]] == ["0.png", "1.png", "2.png", "3.png"]
    assert "truncated" in third["error"], third
    for seed, prediction in ((1, first), (2, fourth)):
        assert prediction["error"] is None
        assert [answer["label"] for answer in prediction["answers"]] == [
            answer.label for answer in classifier(make_image(seed)).top(3)
        ]


def test_a_request_without_a_decodable_image_gets_a_422_with_the_same_body_and_an_error():
    response = send("POST", "/v1/predict", files=image_form(b"a", b"b"))
    assert response.status_code == 422
    assert response.json()["error"] == "None of the images can be decoded."
    assert [each["answers"] for each in response.json()["predictions"]] == [[], []]
    response = send("POST", "/v1/embed", files=image_form(b"a"))
    assert (response.status_code, response.json()["width"]) == (422, 0)


def test_a_request_for_more_classes_than_there_are_gets_all_of_them():
    answer = send("POST", "/v1/predict?top=1000", files=image_form(*[JPEG_IMAGE] * 3)).json()
    assert [len(each["answers"]) for each in answer["predictions"]] == [10] * 3


def test_embeddings_equal_those_of_the_classifier():
    classifier = small_classifier()
    answer = send("POST", "/v1/embed", pool=make_pool(small=classifier), files=image_form(make_image(3), b"x")).json()
    expected = classifier.embed(classifier.preprocess(make_image(3))[None])[0]
    assert answer["width"] == len(expected)
    assert np.allclose(answer["embeddings"][0]["vector"], expected, atol=16 * EPS * len(expected) ** 0.5)
    assert (answer["embeddings"][1]["vector"], "not an image" in answer["embeddings"][1]["error"]) == ([], True)


@pytest.mark.parametrize(
    ("query", "views", "heads"), [("", None, None), ("?layer=1", [1], None), ("?layer=0&head=1", [0], [1])]
)
def test_attention_equals_that_of_vitkit_inspect(query: str, views: list[int] | None, heads: list[int] | None):
    classifier = small_classifier()
    answer = send(
        "POST", f"/v1/attention{query}", pool=make_pool(small=classifier), files=image_form(JPEG_IMAGE)
    ).json()
    image = classifier.preprocess(JPEG_IMAGE)[None]
    maps = attention_maps(classifier.model, image, layers=views, heads=heads)[0]
    assert np.allclose(answer["maps"], maps, atol=MAP_ATOL)
    assert np.allclose(answer["rollout"], rollout(classifier.model, image)[0], atol=MAP_ATOL)
    assert (len(answer["views"]), len(answer["heads"])) == maps.shape[:2]
    assert probability_by_index(answer["prediction"])[classifier(JPEG_IMAGE).top(1)[0].index] == pytest.approx(
        classifier(JPEG_IMAGE).probability, abs=PROBABILITY_ATOL
    )
    check_model_input(answer["seen"], classifier)


@pytest.mark.parametrize("kind", ["axial", "gap", "non-square, one channel", "five channels", "hybrid"])
def test_models_of_other_kinds_return_their_attention(kind: str):
    pool = make_pool(kind=kind)
    content = make_image(5)
    if kind == "five channels":
        file = io.BytesIO()
        np.save(file, np.random.default_rng(0).integers(0, 256, (40, 40, 5), dtype=np.uint8))
        content = file.getvalue()
    response = send("POST", "/v1/attention", pool=pool, files=image_form(content))
    assert response.status_code == 200, response.text
    assert response.json()["views"] == pool.workers["small"].describe().views


def test_a_resnet_predicts_and_reports_that_it_has_no_attention():
    pool = make_pool(kind="ResNet")

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.post(f"/v1/{task}", files=image_form(JPEG_IMAGE)) for task in ("predict", "attention")]

    answers = run_requests(pool, requests)
    assert answers[0].status_code == 200
    assert (answers[1].status_code, "ResNet" in answers[1].json()["error"]) == (422, True)
    info = pool.workers["small"].describe()
    assert (info.views, info.heads, info.grid) == ([], 0, None)


def test_a_request_can_name_a_model_and_the_first_is_the_default():
    classifiers = {"one": small_classifier(), "two": small_classifier("gap")}
    pool = make_pool(**classifiers)

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await http.get("/v1/models"),
            *[
                await http.post(f"/v1/predict?top=10{query}", files=image_form(JPEG_IMAGE))
                for query in ("", "&model=", "&model=two", "&model=tow")
            ],
        ]

    listed, *answers = run_requests(pool, requests)
    assert listed.json()["default"] == "one"
    assert [
        (model["name"], model["variant"], model["image"], len(model["classes"])) for model in listed.json()["models"]
    ] == [("one", "mu/8", [32, 32], 10), ("two", "mu/8", [32, 32], 10)]
    assert listed.json()["limits"] == {
        "body_bytes": 32_000_000,
        "pixels": 50_000_000,
        "request_pixels": 500_000_000,
        "images": 64,
        "seconds": TIMEOUT,
        "decode_seconds": 10,
        "client_seconds": 30,
    }
    for response, name in zip(answers, ("one", "one", "two"), strict=False):
        assert response.json()["model"] == name
        answer = classifiers[name](JPEG_IMAGE).top(1)[0]
        assert probability_by_index(response.json()["predictions"][0])[answer.index] == pytest.approx(
            answer.probability, abs=PROBABILITY_ATOL
        )
    assert (answers[3].status_code, "did you mean two" in answers[3].json()["error"]) == (404, True)


def test_serving_a_classifier_does_not_change_it():
    classifier = small_classifier()
    before = classifier(JPEG_IMAGE).probabilities
    send("POST", "/v1/predict", pool=make_pool(small=classifier), files=image_form(JPEG_IMAGE))
    assert np.array_equal(before, classifier(JPEG_IMAGE).probabilities)
    assert isinstance(classifier, vitkit.Classifier)


@pytest.mark.parametrize("kind", ["form", "JSON"])
def test_the_old_field_name_works_with_a_warning(kind: str, caplog: pytest.LogCaptureFixture):
    def body(field: str) -> dict[str, Any]:
        if kind == "form":
            return {"files": image_form(JPEG_IMAGE, field=field)}
        return {"json": base64_images(JPEG_IMAGE, field=field)}

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await http.post("/v1/predict", **body("images")),
            await http.post("/v1/predict", **body("pictures")),
            await http.post("/v1/embed", **body("pictures")),
            await http.post("/v1/attention?layer=99", **body("pictures")),  # an error has the headers, too
            await http.get("/v1/models"),
        ]

    new, *old, models = run_requests(make_pool(), requests)
    assert old[0].json() == new.json()
    assert [response.status_code for response in (new, *old, models)] == [200, 200, 200, 422, 200]
    for response in old:
        assert response.headers["deprecation"].startswith("@")
        assert response.headers["warning"].startswith('299 vitkit "pictures is deprecated')
    for response in (new, models):
        assert not {"deprecation", "warning"} & set(response.headers)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert 'the field "pictures", which is deprecated' in warnings[0]


@pytest.mark.parametrize("kind", ["image/jpeg", "image/png", "IMAGE/x-whatever", "application/octet-stream"])
def test_a_body_that_is_one_image_gets_the_answer_of_a_form(kind: str):
    """curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' …"""
    pool, headers = make_pool(), {"content-type": kind}

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        paths = ("/v1/predict?top=3", "/v1/embed", "/v1/attention?layer=0")
        return [
            await http.post(path, **body)
            for path in paths
            for body in ({"content": JPEG_IMAGE, "headers": headers}, {"files": image_form(JPEG_IMAGE)})
        ]

    answers = [response.json() for response in run_requests(pool, requests)]
    for raw, form in zip(answers[::2], answers[1::2], strict=True):
        rows = [
            answer.get("predictions", answer.get("embeddings", [answer.get("prediction")]))[0] for answer in (raw, form)
        ]
        assert [row.pop("image") for row in rows] == [None, "0.png"]
        assert raw == form


def test_a_body_that_is_one_image_keeps_the_limits():
    headers = {"content-type": "image/jpeg"}
    small = make_pool(replace(PATIENT, body=1))
    assert send("POST", "/v1/predict", pool=small, content=bytes(1_000_001), headers=headers).status_code == 413
    answer = send("POST", "/v1/predict", content=decompression_bomb(), headers=headers)
    assert (answer.status_code, "pixels" in answer.json()["error"]) == (422, True)


@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
@example(name="고양이 & co.png")
@example(name="../../etc/passwd")
@example(name="<img src=x onerror=alert(1)>\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe")
def test_the_file_name_comes_back_as_one_line_of_text(name: str):
    quoted = name.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22").replace("\\", "/")  # as browsers do
    disposition = f'Content-Disposition: form-data; name="images"; filename="{quoted}"'
    body = b"--b\r\n" + disposition.encode() + b"\r\n\r\nx\r\n--b--\r\n"
    try:
        (upload,) = parse_images("multipart/form-data; boundary=b", [body], PATIENT).uploads
    except RequestError:  # control characters are no header
        assert not name.isprintable()
        return
    assert upload.content == b"x"
    assert upload.name is None or (upload.name.isprintable() or "\N{REPLACEMENT CHARACTER}" in upload.name)
    if name.isprintable() and name.strip() == name and not {'"', "\\", ";"} & set(name):
        assert upload.name == name[:255]


def test_a_multilabel_answer_names_every_predicted_class_as_predict_does():
    """Also those beyond `top`."""
    model = small_classifier().model
    many = {**model.metadata.provenance, "multilabel": True, "thresholds": [0.0] * model.config.classes}
    model.metadata = replace(model.metadata, provenance=many)
    row = vitkit.Classifier(model, device="cpu")(make_image(0)).record(1)
    prediction = vitkit.Classifier(model, device="cpu")(make_image(0))
    answer = prediction_response(WorkerPrediction(prediction), 1).model_dump(exclude_unset=True)
    assert len(row["answers"]) == len(answer["answers"]) == 1
    assert answer["predicted"] == row["predicted"]
    assert len(answer["predicted"]) > 1
