"""Requests that cannot be answered, and the error that each of them gets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import torch

from tests.serve.asgi_client import JPEG_IMAGE, base64_images, run_requests, send
from tests.serve.servers import image_form, make_pool, small_classifier
from vitkit.predict.engines import Engine


@pytest.mark.parametrize(
    ("path", "request_", "status", "message"),
    [
        ("/v1/predict?top=0", {"files": image_form(JPEG_IMAGE)}, 422, "top: "),
        ("/v1/predict?top=-1", {"files": image_form(JPEG_IMAGE)}, 422, "top: "),
        ("/v1/predict?top=1e9", {"files": image_form(JPEG_IMAGE)}, 422, "top: "),
        ("/v1/predict?top=1000000000", {"files": image_form(JPEG_IMAGE)}, 422, "top: "),
        ("/v1/attention?layer=99", {"files": image_form(JPEG_IMAGE)}, 422, "no layer 99"),
        ("/v1/attention?head=99", {"files": image_form(JPEG_IMAGE)}, 422, "no head 99"),
        ("/v1/attention", {"files": image_form(JPEG_IMAGE, JPEG_IMAGE)}, 413, "one at a time"),
        ("/v1/attention", {"files": image_form(b"x")}, 422, "cannot be decoded"),
        ("/v1/predict", {"json": {"images": []}}, 422, "images"),
        ("/v1/predict", {"json": {}}, 422, "images"),
        ("/v1/predict", {"json": ["a"]}, 422, "JSON"),
        ("/v1/predict", {"json": {"images": [7]}}, 422, "images.0"),
        ("/v1/predict", {"json": {"images": ["QUI="], "path": "/etc/passwd"}}, 422, "path"),
        ("/v1/predict", {"json": {"images": ["QUJ"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"images": ["QU JD"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"images": ["QUJD\n"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"images": ["ä"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"images": ["data:image/png;base64,QUJD"]}}, 400, "base64"),
        ("/v1/predict", {"json": base64_images(*[b"x"] * 65)}, 413, "64"),
        ("/v1/predict", {"files": image_form(*[b"x"] * 65)}, 413, "64"),
        ("/v1/predict", {"files": [("images", b"x")] * 1000}, 413, "64"),
        ("/v1/predict", {"files": [("other", b"x")]}, 422, "other"),
        ("/v1/predict", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ("/v1/predict", {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 400, "nested"),
        ("/v1/predict", {"content": b"[0" + b",0" * 10**6, "headers": {"content-type": "application/json"}}, 413, "64"),
        ("/v1/predict", {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ("/v1/predict", {"content": JPEG_IMAGE, "headers": {"content-type": "text/plain"}}, 415, "neither"),
        ("/v1/predict", {"content": b"", "headers": {"content-type": "image/jpeg"}}, 422, "empty"),
        ("/v1/predict", {"content": JPEG_IMAGE}, 415, "neither"),
        ("/v1/predict", {"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        (
            "/v1/predict",
            {"content": b"", "headers": {"content-type": "application/json", "content-encoding": "gzip"}},
            415,
            "Compressed",
        ),
    ],
)
def test_an_invalid_request_gets_an_error_that_says_what_is_wrong(
    path: str, request_: dict[str, Any], status: int, message: str
):
    response = send("POST", path, **request_)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]
    assert set(response.json()) >= {"error", "try"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n",
        b"no boundary at all",
        b"--b--",
        b'--b\r\nContent-Disposition: form-data; name="images"',
        b'--b\r\nContent-Disposition: form-data; name="images"\r\n\r\nbreaks off',
        b"--b\r\n\xff\xfe: x\r\n\r\n\r\n--b--",
        b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\n\r\n--b--",
        b"--b\r\n\r\nnameless\r\n--b--",
        b"\r\n" * 100_000 + b"--b--",
    ],
)
def test_a_malformed_form_gets_a_client_error(body: bytes):
    response = send("POST", "/v1/predict", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]


def test_an_engine_failure_is_a_500_and_does_not_affect_the_next_request(caplog: pytest.LogCaptureFixture):
    classifier = small_classifier()
    compute, failures = classifier.engine.logits, [RuntimeError("/secret/path: out of memory")]

    def logits(images: torch.Tensor) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return compute(images)

    classifier.engine = Engine(logits, "fails once")

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.post("/v1/predict", files=image_form(JPEG_IMAGE)) for _ in range(2)]

    first, second = run_requests(make_pool(small=classifier), requests)
    assert (first.status_code, second.status_code) == (500, 200)
    assert "secret" not in first.text
    assert "/secret/path: out of memory" in caplog.text  # the operator does see it, in the log


def test_a_prediction_that_is_not_finite_is_an_error_in_valid_json():
    classifier = small_classifier()
    classifier.engine = Engine(lambda images: torch.full((len(images), 10), torch.nan), "nonsense")
    response = send("POST", "/v1/predict", pool=make_pool(small=classifier), files=image_form(JPEG_IMAGE))
    assert response.status_code == 422
    assert "not a finite number" in json.loads(response.text, parse_constant=pytest.fail)["error"]


def test_openapi_describes_the_request_bodies_and_every_error():
    description = send("GET", "/openapi.json", options={"key": "some-key"}).json()
    for path in ("/v1/predict", "/v1/embed", "/v1/attention"):
        operation = description["paths"][path]["post"]
        described = operation["requestBody"]["content"]
        for kind in ("multipart/form-data", "application/json"):
            content = described.pop(kind)
            assert set(content["schema"]["properties"]) == {"images"}
            assert content["schema"]["required"] == ["images"]
        assert set(described) == {"image/jpeg", "image/png", "image/webp", "application/octet-stream"}
        assert all(content["schema"] == {"type": "string", "format": "binary"} for content in described.values())
        assert set(operation["responses"]) == {
            "200",
            "400",
            "401",
            "403",
            "404",
            "408",
            "413",
            "415",
            "422",
            "429",
            "500",
            "503",
            "504",
        }
        assert operation["security"] == [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    assert "security" not in description["paths"]["/healthz"]["get"]
