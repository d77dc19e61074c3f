"""What cannot be answered, and the error for people that comes instead."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import torch

from tests.serve.asking import JPEG, asked, in_base64, once
from tests.serve.small import form, small_classifier
from vitkit.predict.engine import Engine
from vitkit.serve.model_pool import Service


@pytest.mark.parametrize(
    ("path", "request_", "status", "words"),
    [
        ("/v1/predict?top=0", {"files": form(JPEG)}, 422, "top: "),
        ("/v1/predict?top=-1", {"files": form(JPEG)}, 422, "top: "),
        ("/v1/predict?top=1e9", {"files": form(JPEG)}, 422, "top: "),
        ("/v1/predict?top=1000000000", {"files": form(JPEG)}, 422, "top: "),
        ("/v1/attention?layer=99", {"files": form(JPEG)}, 422, "no layer 99"),
        ("/v1/attention?head=99", {"files": form(JPEG)}, 422, "no head 99"),
        ("/v1/attention", {"files": form(JPEG, JPEG)}, 413, "one at a time"),
        ("/v1/attention", {"files": form(b"x")}, 422, "cannot be read"),
        ("/v1/predict", {"json": {"pictures": []}}, 422, "pictures"),
        ("/v1/predict", {"json": {}}, 422, "pictures"),
        ("/v1/predict", {"json": ["a"]}, 422, "JSON"),
        ("/v1/predict", {"json": {"pictures": [7]}}, 422, "pictures.0"),
        ("/v1/predict", {"json": {"pictures": ["QUI="], "path": "/etc/passwd"}}, 422, "path"),
        ("/v1/predict", {"json": {"pictures": ["QUJ"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"pictures": ["QU JD"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"pictures": ["QUJD\n"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"pictures": ["ä"]}}, 400, "base64"),
        ("/v1/predict", {"json": {"pictures": ["data:image/png;base64,QUJD"]}}, 400, "base64"),
        ("/v1/predict", {"json": in_base64(*[b"x"] * 65)}, 413, "64"),
        ("/v1/predict", {"files": form(*[b"x"] * 65)}, 413, "64"),
        ("/v1/predict", {"files": [("pictures", b"x")] * 1000}, 413, "64"),
        ("/v1/predict", {"files": [("other", b"x")]}, 422, "other"),
        ("/v1/predict", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ("/v1/predict", {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 400, "nested"),
        ("/v1/predict", {"content": b"[0" + b",0" * 10**6, "headers": {"content-type": "application/json"}}, 413, "64"),
        ("/v1/predict", {"content": b"\xff\xfe", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ("/v1/predict", {"content": JPEG, "headers": {"content-type": "image/jpeg"}}, 415, "neither"),
        ("/v1/predict", {"content": JPEG}, 415, "neither"),
        ("/v1/predict", {"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        (
            "/v1/predict",
            {"content": b"", "headers": {"content-type": "application/json", "content-encoding": "gzip"}},
            415,
            "Compressed",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(path: str, request_: dict[str, Any], status: int, words: str):
    response = once("POST", path, **request_)
    assert response.status_code == status, response.text
    assert words in response.json()["error"]
    assert set(response.json()) >= {"error", "try"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\n",
        b"no boundary at all",
        b"--b--",
        b'--b\r\nContent-Disposition: form-data; name="pictures"',
        b'--b\r\nContent-Disposition: form-data; name="pictures"\r\n\r\nbreaks off',
        b"--b\r\n\xff\xfe: x\r\n\r\n\r\n--b--",
        b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\n\r\n--b--",
        b"--b\r\n\r\nnameless\r\n--b--",
        b"\r\n" * 100_000 + b"--b--",
    ],
)
def test_a_malformed_form_is_the_clients_mistake(body: bytes):
    response = once("POST", "/v1/predict", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]


def test_an_engine_that_fails_answers_500_and_the_server_lives_on(caplog: pytest.LogCaptureFixture):
    classifier = small_classifier()
    quick, broken = classifier.engine.logits, [True]

    def logits(images: torch.Tensor) -> torch.Tensor:
        if broken.pop() if broken else False:
            raise RuntimeError("/secret/path: out of memory")
        return quick(images)

    classifier.engine = Engine(logits, "at the second try")

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.post("/v1/predict", files=form(JPEG)) for _ in range(2)]

    first, second = asked(Service({"small": classifier}), scene)
    assert (first.status_code, second.status_code) == (500, 200)
    assert "secret" not in first.text
    assert "/secret/path: out of memory" in caplog.text  # the operator does see it


def test_an_answer_that_is_no_number_is_an_error_and_valid_json():
    classifier = small_classifier()
    classifier.engine = Engine(lambda images: torch.full((len(images), 10), torch.nan), "nonsense")
    response = once("POST", "/v1/predict", made=Service({"small": classifier}), files=form(JPEG))
    assert response.status_code == 422
    assert "no number" in json.loads(response.text, parse_constant=pytest.fail)["error"]


def test_openapi_tells_both_forms_and_every_refusal():
    described = once("GET", "/openapi.json", options={"key": "some-key"}).json()
    for path in ("/v1/predict", "/v1/embed", "/v1/attention"):
        asked_ = described["paths"][path]["post"]
        assert set(asked_["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
        assert set(asked_["responses"]) == {
            "200",
            "400",
            "401",
            "403",
            "404",
            "408",
            "413",
            "415",
            "422",
            "500",
            "503",
            "504",
        }
        assert asked_["security"] == [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    assert "security" not in described["paths"]["/healthz"]["get"]
