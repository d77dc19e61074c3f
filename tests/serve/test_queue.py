"""Back-pressure: how many images, bytes and seconds may be in the queue, and how the metrics count them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx

from tests.serve.asgi_client import JPEG_IMAGE, gated_pool, run_requests, wait_until
from tests.serve.servers import PATIENT, image_form, make_image, make_pool


def test_a_full_queue_rejects_requests_at_once_and_loses_none():
    pool, gate, _ = gated_pool(replace(PATIENT, queue=7, images=2), batch=1)  # of which one client may hold 4

    async def requests(http: httpx.AsyncClient) -> tuple[list[httpx.Response], list[httpx.Response], int]:
        accepted = [asyncio.create_task(http.post("/v1/predict", files=image_form(make_image(i)))) for i in range(4)]
        await wait_until(lambda: pool.admission.images == 4)
        rejected = [await http.post("/v1/predict", files=image_form(make_image(9))) for _ in range(20)]
        length = pool.admission.images
        gate.set()
        return await asyncio.gather(*accepted), rejected, length

    accepted, rejected, length = run_requests(pool, requests)
    assert [response.status_code for response in accepted] == [200] * 4
    assert {(response.status_code, response.headers["retry-after"]) for response in rejected} == {(503, "1")}
    assert "busy" in rejected[0].json()["error"]
    assert (length, pool.admission.images, pool.admission.bytes) == (4, 0, 0)
    assert pool.metrics.registry.get_sample_value("vitkit_refused_total", {"reason": "queue"}) == 20


def test_a_request_that_would_overfill_the_queue_is_rejected_with_all_its_images():
    pool, gate, _ = gated_pool(replace(PATIENT, queue=4, images=4), batch=1)

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.create_task(http.post("/v1/predict", files=image_form(make_image(0), make_image(1))))
        await wait_until(lambda: pool.admission.images == 2)
        second = await http.post("/v1/predict", files=image_form(*map(make_image, range(3))))
        gate.set()
        return [await first, second, await http.post("/v1/predict", files=image_form(*map(make_image, range(4))))]

    assert [response.status_code for response in run_requests(pool, requests)] == [200, 503, 200]
    assert pool.admission.images == 0


def test_the_bytes_of_all_bodies_together_are_bounded():
    pool, gate, _ = gated_pool(replace(PATIENT, body=1, held=1), batch=1)
    large = make_image(0) + bytes(600_000)  # decoders ignore what follows the end of a PNG

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.create_task(http.post("/v1/predict", files=image_form(large)))
        await wait_until(lambda: pool.admission.images == 1)
        second = await http.post("/v1/predict", files=image_form(large))
        gate.set()
        return [await first, second]

    assert [response.status_code for response in run_requests(pool, requests)] == [200, 503]
    assert pool.admission.bytes == 0


def test_a_request_over_the_time_limit_gets_a_504_and_its_queued_images_are_not_computed():
    pool, gate, sizes = gated_pool(replace(PATIENT, seconds=1), batch=4)

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        form = image_form(*map(make_image, range(4)))
        late = await asyncio.gather(*(http.post("/v1/predict", files=form) for _ in range(3)))
        pool.limits = PATIENT
        gate.set()
        return [*late, await http.post("/v1/predict", files=image_form(make_image(0)))]

    assert [response.status_code for response in run_requests(pool, requests)] == [504, 504, 504, 200]
    assert sum(sizes) <= 5  # the one batch that had started, and the last image
    assert pool.admission.images == 0


def test_metrics_count_by_route_and_clients_cannot_add_labels():
    async def requests(http: httpx.AsyncClient) -> str:
        for number in range(50):
            await http.get(f"/made/up/{number}")
            await http.post(f"/v1/predict?model=m{number}", files=image_form(JPEG_IMAGE))
        await http.post("/v1/predict", files=image_form(JPEG_IMAGE, b"x"))
        return (await http.get("/metrics")).text

    lines = run_requests(make_pool(), requests).splitlines()
    assert 'vitkit_requests_total{route="other",status="404"} 50.0' in lines
    assert 'vitkit_requests_total{route="/v1/predict",status="404"} 50.0' in lines
    assert 'vitkit_images_total{model="small",outcome="read"} 1.0' in lines
    assert 'vitkit_images_total{model="small",outcome="unreadable"} 1.0' in lines
    assert "vitkit_queue_images 0.0" in lines
    assert sum("made" in line for line in lines) == 0
