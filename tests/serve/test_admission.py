"""Admission: one client can fill most of the server, but never so far that another's small request is refused."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.asgi_client import gated_pool, run_requests, send, wait_until
from tests.serve.servers import PATIENT, image_form, make_image, make_pool
from vitkit.errors import ConfigError
from vitkit.serve.app import create_app
from vitkit.serve.limits import AdmissionControl, Limits, Overloaded, Share

CAPACITY = 1000


def fill(share: Share, requests: list[tuple[str, int]]) -> None:
    for client, count in requests:
        if share.fits(client, count):
            share.add(client, count)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 64)), max_size=300))
def test_whatever_eight_clients_hold_another_may_hold_something(requests: list[tuple[str, int]]):
    share = Share(CAPACITY)
    fill(share, requests)
    assert share.total <= CAPACITY
    assert share.fits("new", (CAPACITY // 17) // 2)  # eight clients leave a seventeenth free


@pytest.mark.parametrize(("clients", "part"), [(1, 2 / 3), (2, 4 / 5), (8, 16 / 17)])
def test_clients_that_take_all_they_can_get_hold_the_part_of_the_closed_form(clients: int, part: float):
    """With n clients and SHARE 2, all together hold 2n / (2n + 1) of everything (Choudhury & Hahne, eq. 6)."""
    share = Share(CAPACITY)
    fill(share, [(str(client), 1) for _ in range(CAPACITY) for client in range(clients)])
    assert share.total == pytest.approx(part * CAPACITY, abs=clients + 1)
    held = [share.held(str(client)) for client in range(clients)]
    assert max(held) - min(held) <= 1


@given(number=st.integers(2, 9), chunk=st.integers(1, 20))
def test_bodies_that_grow_stop_before_a_small_one_of_the_same_client_is_refused(number: int, chunk: int):
    share, bodies = Share(CAPACITY), [0] * number
    for _ in range(CAPACITY // chunk):
        for index in range(number):
            if share.fits("proxy", chunk, bodies[index]):
                share.add("proxy", chunk)
                bodies[index] += chunk
    # each holds what its client does not: q = 2 (1 - n q) - n q of everything
    assert max(bodies) <= 2 * CAPACITY / (3 * number + 1) + chunk
    assert share.fits("proxy", 10)


def test_a_server_that_holds_nothing_else_accepts_whatever_is_within_the_limits():
    assert Share(CAPACITY).fits("a", CAPACITY)
    assert not Share(CAPACITY).fits("a", CAPACITY + 1)


def test_beside_a_client_that_takes_all_it_can_an_address_has_room_for_the_images_that_the_documents_name():
    """SECURITY.md says what holds: another address has room for some images, and the same address for none."""
    admission = AdmissionControl(Limits())
    with ExitStack() as greedy:
        with suppress(Overloaded):
            while True:
                greedy.enter_context(admission.admit(1, "proxy"))
        with pytest.raises(Overloaded):
            admission.check_capacity("proxy")
        admission.check_capacity("other")
        with admission.admit(1, "other"):
            with pytest.raises(Overloaded):
                admission.admit(43, "other", request=1)
            with admission.admit(42, "other", request=1):
                most = admission._images.held("other")
    security = Path(__file__).parents[2].joinpath("SECURITY.md").read_text(encoding="utf-8")
    assert f"beside one client that takes all it can, {most} images fit" in " ".join(security.split())


def test_what_is_released_is_forgotten():
    share = Share(CAPACITY)
    share.add("a", 5)
    share.add("a", -5)
    assert (share.total, share._held) == (0, {})


def test_one_client_that_fills_the_queue_leaves_room_for_another():
    pool, gate, _ = gated_pool(replace(PATIENT, queue=16, images=8), batch=1)

    async def requests(http: httpx.AsyncClient) -> list[int]:
        form = image_form(make_image(0), make_image(1))
        greedy = [asyncio.create_task(http.post("/v1/predict", files=form)) for _ in range(20)]
        await wait_until(lambda: sum(task.done() for task in greedy) >= 12)
        app = httpx.ASGITransport(create_app(pool), client=("192.0.2.7", 5000))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost", timeout=None) as other:
            ordinary = asyncio.create_task(other.post("/v1/predict", files=image_form(make_image(2))))
            await asyncio.sleep(0.05)
            gate.set()
            return [(await ordinary).status_code, *[(await task).status_code for task in greedy]]

    ordinary, *greedy = run_requests(pool, requests)
    assert ordinary == 200
    assert set(greedy) == {200, 503}


def test_the_megapixels_of_a_request_are_bounded_before_anything_is_decoded():
    pool = make_pool(replace(PATIENT, megapixels=1, request_megapixels=1))
    images = [make_image(seed, size=(800, 700)) for seed in range(2)]
    response = send("POST", "/v1/predict", pool=pool, files=image_form(*images))
    assert response.status_code == 413
    assert "1 megapixels together, over the limit of 1" in response.json()["error"]
    assert "several requests" in response.json()["try"]
    pool = make_pool(replace(PATIENT, megapixels=1, request_megapixels=1))
    assert send("POST", "/v1/predict", pool=pool, files=image_form(images[0])).status_code == 200


def test_a_request_must_be_able_to_hold_an_image_of_the_largest_size():
    with pytest.raises(ConfigError, match="request_megapixels=40"):
        Limits(request_megapixels=40)
