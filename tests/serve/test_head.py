"""HEAD and Allow, over real connections: monitors, link checkers and `curl -I` ask so."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from tests.serve.servers import TIMEOUT, exchange, make_pool, running_server

PATHS = ["/", "/page.js", "/page.css", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with make_pool() as pool, running_server(pool) as (address, _, _):
        yield address


def ask(address: str, method: str, *paths: str) -> list[tuple[int, dict[str, str], bytes]]:
    """Send requests over one connection with Python's own client, which would take a stray body for a response."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=TIMEOUT)
    responses = []
    for path in paths:
        connection.request(method, path)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        responses.append((response.status, headers, response.read()))
    connection.close()
    return responses


def test_head_has_the_status_and_headers_of_get_and_no_body(address: str):
    for path, head, got in zip(PATHS, ask(address, "HEAD", *PATHS), ask(address, "GET", *PATHS), strict=True):
        assert (head[0], got[0], head[2]) == (200, 200, b""), path
        assert int(got[1]["content-length"]) == len(got[2]) > 0
        for headers in (head[1], got[1]):
            del headers["date"]
            if path == "/metrics":  # its numbers change
                assert headers.pop("content-length").isdecimal()
        assert head[1] == got[1], path


def test_head_of_a_missing_address_is_a_404_and_of_an_address_for_images_a_405(address: str):
    (missing, _, body), (refused, headers, also_body) = ask(address, "HEAD", "/nothing", "/v1/predict")
    assert (missing, refused, body, also_body) == (404, 405, b"", b"")
    assert headers["allow"] == "POST"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE"])
def test_other_methods_get_a_405_that_names_the_supported_ones(address: str, method: str):
    for path in PATHS:
        ((status, headers, _),) = ask(address, method, path)
        assert (status, {name.strip() for name in headers["allow"].split(",")}) == (405, {"GET", "HEAD"}), path
    ((status, headers, _),) = ask(address, method, "/v1/predict")
    assert (status, headers["allow"]) == (405, "POST")


def test_head_over_http_1_0_ends_the_connection_after_the_headers(address: str):
    response = exchange(address, b"HEAD / HTTP/1.0\r\n\r\n")  # HAProxy's health check has no Host either
    assert response.startswith(b"HTTP/1.1 200 ")
    assert response.endswith(b"\r\n\r\n")
    assert response.count(b"\r\n\r\n") == 1
