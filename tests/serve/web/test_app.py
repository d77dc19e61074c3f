"""The HTTP API, straight into the application: right answers for the right pictures, and errors for people."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.serve.web.small import best, client, form, picture, service, small_classifier
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.rollout import rollout
from vitkit.serve.engine import Engine
from vitkit.serve.web.limits import Limits
from vitkit.serve.web.service import Service

JPEG = picture(1, kind="JPEG")


def asked(made: Service, scene: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with client(made, **options) as http:
            return await scene(http)

    with made:
        return asyncio.run(run())


def once(method: str, path: str, *, made: Service | None = None, options: dict[str, Any] | None = None,
         **request: Any) -> httpx.Response:
    return asked(made or service(), lambda http: http.request(method, path, **request), **(options or {}))


def in_base64(*pictures: bytes) -> dict[str, list[str]]:
    return {"pictures": [base64.b64encode(content).decode() for content in pictures]}


def slow_service(limits: Limits | None = None, batch: int | None = None) -> tuple[Service, threading.Event, list[int]]:
    """One whose engine waits until it is let, and notes the sizes of its batches."""
    classifier, gate, sizes = small_classifier(), threading.Event(), []
    quick = classifier.engine.logits

    def logits(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        assert gate.wait(20)
        return quick(images)

    classifier.engine = Engine(logits, "when it is let", classifier.engine.batch)
    return Service({"small": classifier}, limits, batch=batch), gate, sizes


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def test_a_prediction_shows_what_the_model_sees_where_that_is_asked_for():
    """Also of a ResNet, which has no attention to show it with."""
    classifier = small_classifier("ResNet")
    answer = once("POST", "/v1/predict?seen=true", made=Service({"small": classifier}), files=form(JPEG, b"x")).json()
    first, second = answer["predictions"]
    seen = Image.open(io.BytesIO(base64.b64decode(first["seen"].removeprefix("data:image/png;base64,"))))
    assert np.abs(np.asarray(seen, dtype=float) - classifier.frame(JPEG).permute(1, 2, 0).numpy()).max() <= 0.5
    assert best(first)[classifier(JPEG).top(1)[0].index] == pytest.approx(classifier(JPEG).probability, abs=1e-4)
    assert "seen" not in second
    assert "seen" not in once("POST", "/v1/predict", files=form(JPEG)).json()["predictions"][0]


def test_every_picture_gets_its_own_answer_whoever_it_is_computed_with():
    classifier, pictures = small_classifier(), [picture(seed) for seed in range(48)]
    alone = [classifier(content).probabilities for content in pictures]
    assert len({tuple(row.round(3)) for row in alone}) == 48  # a mixed-up answer would show
    made = Service({"small": classifier})

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(
            http.post("/v1/predict?top=10", files=form(content)) if place % 2 else
            http.post("/v1/predict?top=10", json=in_base64(content)) for place, content in enumerate(pictures)))

    for response, row in zip(asked(made, scene), alone, strict=True):
        answer = response.json()
        assert (response.status_code, answer["model"]) == (200, "small")
        told = best(answer["predictions"][0])
        assert np.abs(np.array([told[index] for index in range(10)]) - row).max() < 1e-4
    batches = made.meters.registry.get_sample_value
    assert batches("vitkit_batch_pictures_sum", {"model": "small", "task": "predict"}) == 48
    assert (batches("vitkit_batch_pictures_count", {"model": "small", "task": "predict"}) or 48) < 48


def test_several_pictures_are_answered_in_their_order_the_unreadable_with_a_reason():
    classifier = small_classifier()
    response = once("POST", "/v1/predict?top=3", made=Service({"small": classifier}),
                    files=form(picture(1), b"no picture", JPEG[:-20], picture(2)))
    first, second, third, fourth = response.json()["predictions"]
    assert response.status_code == 200
    assert second["error"].startswith("not a picture in any format that is read here: JPEG, PNG")
    assert (second["answers"], set(second)) == ([], {"error", "answers"})
    assert "truncated" in third["error"], third
    for seed, told in ((1, first), (2, fourth)):
        assert told["error"] is None
        assert [answer["label"] for answer in told["answers"]] == \
            [answer.label for answer in classifier(picture(seed)).top(3)]


def test_only_unreadable_pictures_are_a_422_with_the_same_body_and_an_error():
    told = once("POST", "/v1/predict", files=form(b"a", b"b"))
    assert told.status_code == 422
    assert told.json()["error"] == "None of the pictures can be read."
    assert [each["answers"] for each in told.json()["predictions"]] == [[], []]
    told = once("POST", "/v1/embed", files=form(b"a"))
    assert (told.status_code, told.json()["width"]) == (422, 0)


def test_embeddings_are_the_models_own():
    classifier = small_classifier()
    answer = once("POST", "/v1/embed", made=Service({"small": classifier}), files=form(picture(3), b"x")).json()
    expected = classifier.embed(classifier.see(picture(3))[None])[0]
    assert answer["width"] == len(expected)
    assert np.allclose(answer["embeddings"][0]["vector"], expected, atol=1e-5)
    assert (answer["embeddings"][1]["vector"], "not a picture" in answer["embeddings"][1]["error"]) == ([], True)


@pytest.mark.parametrize(("query", "views", "heads"), [("", None, None), ("?layer=1", [1], None),
                                                       ("?layer=0&head=1", [0], [1])])
def test_attention_is_what_inspect_finds(query: str, views: list[int] | None, heads: list[int] | None):
    classifier = small_classifier()
    answer = once("POST", f"/v1/attention{query}", made=Service({"small": classifier}), files=form(JPEG)).json()
    image = classifier.see(JPEG)[None]
    maps = attention_maps(classifier.model, image, layers=views, heads=heads)[0]
    assert np.allclose(answer["maps"], maps, atol=1e-6)
    assert np.allclose(answer["rollout"], rollout(classifier.model, image)[0], atol=1e-6)
    assert (len(answer["views"]), len(answer["heads"])) == maps.shape[:2]
    assert best(answer["prediction"])[classifier(JPEG).top(1)[0].index] == pytest.approx(classifier(JPEG).probability,
                                                                                        abs=1e-4)
    seen = Image.open(io.BytesIO(base64.b64decode(answer["seen"].removeprefix("data:image/png;base64,"))))
    assert np.abs(np.asarray(seen, dtype=float) - classifier.frame(JPEG).permute(1, 2, 0).numpy()).max() <= 0.5


@pytest.mark.parametrize("kind", ["axial", "gap", "non-square, one channel", "five channels", "hybrid"])
def test_models_of_other_kinds_show_their_attention_or_say_why_not(kind: str):
    made = service(kind=kind)
    content = picture(5)
    if kind == "five channels":
        file = io.BytesIO()
        np.save(file, np.random.default_rng(0).integers(0, 256, (40, 40, 5), dtype=np.uint8))
        content = file.getvalue()
    response = once("POST", "/v1/attention", made=made, files=form(content))
    assert response.status_code == 200, response.text
    assert response.json()["views"] == made.models["small"].describe().views


def test_a_resnet_predicts_and_says_that_it_has_no_attention():
    made = service(kind="ResNet")

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.post(f"/v1/{task}", files=form(JPEG)) for task in ("predict", "attention")]

    answers = asked(made, scene)
    assert answers[0].status_code == 200
    assert (answers[1].status_code, "ResNet" in answers[1].json()["error"]) == (422, True)
    told = made.models["small"].describe()
    assert (told.views, told.heads, told.grid) == ([], 0, None)


def test_models_are_asked_by_name_and_the_first_is_the_default():
    many = {"one": small_classifier(), "two": small_classifier("gap")}
    made = Service(many)

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.get("/v1/models"), *[await http.post(f"/v1/predict?top=10{query}", files=form(JPEG))
                                                for query in ("", "&model=", "&model=two", "&model=tow")]]

    listed, *answers = asked(made, scene)
    assert listed.json()["default"] == "one"
    assert [(model["name"], model["variant"], model["image"], len(model["classes"])) for model in
            listed.json()["models"]] == [("one", "mu/8", [32, 32], 10), ("two", "mu/8", [32, 32], 10)]
    assert listed.json()["limits"] == {"body_bytes": 32_000_000, "pixels": 50_000_000, "pictures": 64, "seconds": 30}
    for response, name in zip(answers, ("one", "one", "two"), strict=False):
        assert response.json()["model"] == name
        answer = many[name](JPEG).top(1)[0]
        assert best(response.json()["predictions"][0])[answer.index] == pytest.approx(answer.probability, abs=1e-4)
    assert (answers[3].status_code, "did you mean two" in answers[3].json()["error"]) == (404, True)


@pytest.mark.parametrize(("path", "request_", "status", "words"), [
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
    ("/v1/predict", {"content": b"", "headers": {"content-type": "application/json", "content-encoding": "gzip"}}, 415,
     "Compressed"),
])
def test_what_cannot_be_answered_is_said(path: str, request_: dict[str, Any], status: int, words: str):
    response = once("POST", path, **request_)
    assert response.status_code == status, response.text
    assert words in response.json()["error"]
    assert set(response.json()) >= {"error", "try"}


@pytest.mark.parametrize("body", [
    b"", b"--b", b"--b\r\n", b"no boundary at all", b"--b--",
    b"--b\r\nContent-Disposition: form-data; name=\"pictures\"",
    b"--b\r\nContent-Disposition: form-data; name=\"pictures\"\r\n\r\nbreaks off",
    b"--b\r\n\xff\xfe: x\r\n\r\n\r\n--b--", b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\n\r\n--b--",
    b"--b\r\n\r\nnameless\r\n--b--", b"\r\n" * 100_000 + b"--b--",
])
def test_a_malformed_form_is_the_clients_mistake(body: bytes):
    response = once("POST", "/v1/predict", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]


def test_more_answers_than_classes_are_all_of_them():
    answer = once("POST", "/v1/predict?top=1000", files=form(*[JPEG] * 3)).json()
    assert [len(each["answers"]) for each in answer["predictions"]] == [10] * 3


def test_a_full_queue_refuses_at_once_and_loses_nothing():
    made, gate, _ = slow_service(Limits(queue=4, pictures=2), batch=1)

    async def scene(http: httpx.AsyncClient) -> tuple[list[httpx.Response], list[httpx.Response], int]:
        taken = [asyncio.create_task(http.post("/v1/predict", files=form(picture(seed)))) for seed in range(4)]
        await until(lambda: made.admission.pictures == 4)
        refused = [await http.post("/v1/predict", files=form(picture(9))) for _ in range(20)]
        most = made.admission.pictures
        gate.set()
        return await asyncio.gather(*taken), refused, most

    taken, refused, most = asked(made, scene)
    assert [response.status_code for response in taken] == [200] * 4
    assert {(response.status_code, response.headers["retry-after"]) for response in refused} == {(503, "1")}
    assert "busy" in refused[0].json()["error"]
    assert (most, made.admission.pictures, made.admission.bytes) == (4, 0, 0)
    assert made.meters.registry.get_sample_value("vitkit_refused_total", {"reason": "queue"}) == 20


def test_a_request_that_would_overfill_the_queue_is_refused_as_a_whole():
    made, gate, _ = slow_service(Limits(queue=4, pictures=4), batch=1)

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.create_task(http.post("/v1/predict", files=form(picture(0), picture(1))))
        await until(lambda: made.admission.pictures == 2)
        second = await http.post("/v1/predict", files=form(*map(picture, range(3))))
        gate.set()
        return [await first, second, await http.post("/v1/predict", files=form(*map(picture, range(4))))]

    assert [response.status_code for response in asked(made, scene)] == [200, 503, 200]
    assert made.admission.pictures == 0


def test_bodies_held_together_are_bounded():
    made, gate, _ = slow_service(Limits(body=1, held=1), batch=1)
    large = picture(0) + bytes(600_000)  # what follows a PNG's end is not looked at

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.create_task(http.post("/v1/predict", files=form(large)))
        await until(lambda: made.admission.pictures == 1)
        second = await http.post("/v1/predict", files=form(large))
        gate.set()
        return [await first, second]

    assert [response.status_code for response in asked(made, scene)] == [200, 503]
    assert made.admission.bytes == 0


def test_over_the_time_limit_is_a_504_and_the_pictures_are_dropped_before_computing():
    made, gate, sizes = slow_service(Limits(seconds=1), batch=4)

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        late = await asyncio.gather(*(http.post("/v1/predict", files=form(*map(picture, range(4)))) for _ in range(3)))
        gate.set()
        return [*late, await http.post("/v1/predict", files=form(picture(0)))]

    assert [response.status_code for response in asked(made, scene)] == [504, 504, 504, 200]
    assert sum(sizes) <= 5  # the one batch that was under way, and the last picture
    assert made.admission.pictures == 0


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


def test_a_key_is_asked_for_where_there_is_one_and_only_there():
    async def scene(http: httpx.AsyncClient) -> list[int]:
        tried = [{}, {"authorization": "Bearer wrong-key"}, {"authorization": "Basic right-key"}, {"x-api-key": ""},
                 {"x-api-key": "rightßkey".encode()}, {"authorization": "Bearer right-key"},
                 {"authorization": "bearer right-key"}, {"x-api-key": "right-key"}]
        codes = [(await http.post("/v1/predict", files=form(JPEG), headers=headers)).status_code for headers in tried]
        opened = [(await http.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics", "/")]
        shut = [(await http.get("/v1/models")).status_code, (await http.get("/v1/nothing")).status_code]
        return [*codes, *opened, *shut]

    assert asked(service(), scene, key="right-key") == [401] * 5 + [200] * 3 + [200] * 4 + [401] * 2


def test_a_name_that_is_not_the_servers_own_is_refused():
    async def scene(http: httpx.AsyncClient) -> list[int]:
        return [(await http.get("/v1/models", headers={"host": host})).status_code for host in
                ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "evil.example", "localhost.evil.example",
                 "", "[", "127.0.0.1@evil.example")]

    hosts = {"localhost", "127.0.0.1", "::1"}
    assert asked(service(), scene, hosts=hosts) == [200] * 4 + [400] * 5


@pytest.mark.parametrize(("site", "cors", "status"), [
    ("cross-site", [], 403), ("same-site", [], 403), ("same-origin", [], 200), ("none", [], 200),
    ("cross-site", ["https://friend.example"], 200), ("cross-site", ["https://other.example"], 403),
    ("cross-site", ["*"], 200),
])
def test_a_page_of_another_site_cannot_make_a_browser_send_pictures(site: str, cors: list[str], status: int):
    """Which it would without asking first, for a form; only the answer is kept from that page."""
    headers = {"sec-fetch-site": site, "origin": "https://friend.example"}
    assert once("POST", "/v1/predict", options={"cors": cors}, files=form(JPEG), headers=headers).status_code == status
    assert once("GET", "/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page is no harm


def test_other_sites_may_ask_only_where_they_were_named():
    async def scene(http: httpx.AsyncClient) -> list[str | None]:
        found = []
        for origin in ("https://friend.example", "https://foe.example"):
            before = await http.options("/v1/predict", headers={
                "origin": origin, "access-control-request-method": "POST",
                "access-control-request-headers": "x-api-key"})
            refused = await http.get("/v1/models", headers={"origin": origin})
            found += [before.headers.get("access-control-allow-origin"),
                      refused.headers.get("access-control-allow-origin")]
        return found

    assert asked(service(), scene) == [None] * 4
    friend = "https://friend.example"
    assert asked(service(), scene, cors=[friend], key="a-key") == [friend, friend, None, None]


@pytest.mark.parametrize("path", ["/", "/v1/models", "/nothing", "/v1/predict", "/metrics"])
def test_every_answer_carries_the_headers_that_keep_browsers_safe(path: str):
    headers = once("GET", path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/../vitkit/errors.py", "/page/../errors.py", "/%2e%2e/errors.py", "/page.js/../../x",
                                  "//etc/passwd", "/app.py", "/page/index.html", "/index.html%00.js", "/docs", "/redoc",
                                  "/..%2f..%2fetc%2fpasswd", "/C:%5Cwindows"])
def test_nothing_but_the_pages_own_files_is_served(path: str):
    response = once("GET", path)
    assert response.status_code == 404
    assert response.json() == {"error": "There is nothing here.", "try": "what /openapi.json describes"}


def test_the_page_is_served_with_its_types():
    response = once("GET", "/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_metrics_count_by_route_and_cannot_be_flooded_with_names():
    async def scene(http: httpx.AsyncClient) -> str:
        for number in range(50):
            await http.get(f"/made/up/{number}")
            await http.post(f"/v1/predict?model=m{number}", files=form(JPEG))
        await http.post("/v1/predict", files=form(JPEG, b"x"))
        return (await http.get("/metrics")).text

    lines = asked(service(), scene).splitlines()
    assert 'vitkit_requests_total{route="other",status="404"} 50.0' in lines
    assert 'vitkit_requests_total{route="/v1/predict",status="404"} 50.0' in lines
    assert 'vitkit_pictures_total{model="small",outcome="read"} 1.0' in lines
    assert 'vitkit_pictures_total{model="small",outcome="unreadable"} 1.0' in lines
    assert "vitkit_queue_pictures 0.0" in lines
    assert sum("made" in line for line in lines) == 0


def test_a_draining_server_says_so_and_takes_nothing_new():
    made = service()
    made.admission.draining = True

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.get("/healthz"), await http.get("/readyz"), await http.post("/v1/predict", files=form(JPEG))]

    alive, ready, refused = asked(made, scene)
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (refused.status_code, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")


def test_openapi_tells_both_forms_and_every_refusal():
    described = once("GET", "/openapi.json", options={"key": "some-key"}).json()
    for path in ("/v1/predict", "/v1/embed", "/v1/attention"):
        asked_ = described["paths"][path]["post"]
        assert set(asked_["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
        assert set(asked_["responses"]) == {"200", "400", "401", "403", "404", "408", "413", "415", "422", "500", "503",
                                            "504"}
        assert asked_["security"] == [{"HTTPBearer": []}, {"APIKeyHeader": []}]
    assert "security" not in described["paths"]["/healthz"]["get"]


def test_a_classifier_is_not_changed_by_being_served():
    classifier = small_classifier()
    before = classifier(JPEG).probabilities
    once("POST", "/v1/predict", made=Service({"small": classifier}), files=form(JPEG))
    assert np.array_equal(before, classifier(JPEG).probabilities)
    assert isinstance(classifier, vitkit.Classifier)
