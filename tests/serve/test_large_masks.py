"""Large images beside small ones: micro-batches of windows, turns, limits, and requests that end early."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx

from tests.serve.asgi_client import run_requests, send, wait_until
from tests.serve.masks import LARGE, PHOTO, assert_same, gate_scores, mask_pool, python_mask, read_mask
from tests.serve.servers import PATIENT, image_form, make_image
from vitkit.serve.mask_threads import LARGE_AT_A_TIME


def test_images_and_windows_that_wait_are_computed_together():
    pool = mask_pool(batch=8)
    gate, sizes = gate_scores(pool)
    sample = pool.metrics.registry.get_sample_value
    images = [make_image(seed) for seed in range(12)]

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        tasks = [asyncio.create_task(http.post("/v1/predict", files=image_form(image))) for image in (*images, LARGE)]
        read = {"model": "masks", "outcome": "read"}
        await wait_until(lambda: sample("vitkit_images_total", read) == 13)
        await wait_until(lambda: len(pool.workers["masks"].score_batcher._queue) >= 11)  # type: ignore[attr-defined]
        gate.set()
        return await asyncio.gather(*tasks)

    for response, image in zip(run_requests(pool, requests), (*images, LARGE), strict=True):
        assert_same(read_mask(response.json()["predictions"][0]), python_mask(image))
    assert sum(sizes) == 12 + 36
    assert max(sizes) == 8
    batches = {"model": "masks", "task": "segment"}
    assert sample("vitkit_batch_images_sum", batches) == 48


def test_an_image_of_too_many_windows_is_an_error_and_the_others_are_answered():
    pool = mask_pool(replace(PATIENT, windows=35))
    small, large = send("POST", "/v1/predict", pool=pool, files=image_form(PHOTO, LARGE)).json()["predictions"]
    assert small["error"] is None
    assert "cut into 36 windows of 30 x 20, over the limit of 35" in large["error"]


def test_large_images_take_turns_and_do_not_keep_small_ones_waiting():
    pool = mask_pool(batch=2)
    gate, _ = gate_scores(pool)
    sample, worker = pool.metrics.registry.get_sample_value, pool.workers["masks"]

    async def requests(http: httpx.AsyncClient) -> tuple[list[str], list[httpx.Response]]:
        ended: list[str] = []

        async def post(name: str, content: bytes) -> httpx.Response:
            response = await http.post("/v1/predict", files=image_form(content))
            ended.append(name)
            return response

        tasks = [asyncio.create_task(post("large", LARGE)) for _ in range(5)]
        await wait_until(
            lambda: sample("vitkit_images_total", {"model": "masks", "outcome": "read"}) == LARGE_AT_A_TIME
        )
        tasks.append(asyncio.create_task(post("small", PHOTO)))
        await wait_until(
            lambda: sample("vitkit_images_total", {"model": "masks", "outcome": "read"}) == LARGE_AT_A_TIME + 1
        )
        gate.set()
        return ended, list(await asyncio.gather(*tasks))

    ended, responses = run_requests(pool, requests)
    assert ended[0] == "small"
    assert [response.status_code for response in responses] == [200] * 6
    assert worker.resources.mask_threads.large_turns.free == LARGE_AT_A_TIME


def test_a_large_image_that_nobody_waits_for_is_not_computed_to_the_end():
    pool = mask_pool(replace(PATIENT, seconds=1), batch=2)
    gate, sizes = gate_scores(pool)
    turns = pool.mask_threads.large_turns

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        late = await http.post("/v1/predict", files=image_form(LARGE))
        gate.set()
        await wait_until(lambda: turns.free == LARGE_AT_A_TIME)
        return [late, await http.post("/v1/predict", files=image_form(PHOTO))]

    late, after = run_requests(pool, requests)
    assert (late.status_code, after.status_code) == (504, 200)
    assert sum(sizes) <= 2 + 1  # of 36 windows, the first batch was under way
