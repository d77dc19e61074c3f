"""How much may wait, in pictures, bytes and seconds; and how it is counted."""

from __future__ import annotations

import asyncio

import httpx

from tests.serve.asking import JPEG, asked, slow_service, until
from tests.serve.small import form, picture, service
from vitkit.serve.limits import Limits


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
