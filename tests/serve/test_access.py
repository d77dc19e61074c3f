"""Who may ask, and what a browser may be made to do: keys, names, other sites, headers, files."""

from __future__ import annotations

import httpx
import pytest

from tests.serve.asking import JPEG, asked, once
from tests.serve.small import form, service


def test_a_key_is_asked_for_where_there_is_one_and_only_there():
    async def scene(http: httpx.AsyncClient) -> list[int]:
        tried = [
            {},
            {"authorization": "Bearer wrong-key"},
            {"authorization": "Basic right-key"},
            {"x-api-key": ""},
            {"x-api-key": "rightßkey".encode()},
            {"authorization": "Bearer right-key"},
            {"authorization": "bearer right-key"},
            {"x-api-key": "right-key"},
        ]
        codes = [(await http.post("/v1/predict", files=form(JPEG), headers=headers)).status_code for headers in tried]
        opened = [(await http.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics", "/")]
        shut = [(await http.get("/v1/models")).status_code, (await http.get("/v1/nothing")).status_code]
        return [*codes, *opened, *shut]

    assert asked(service(), scene, key="right-key") == [401] * 5 + [200] * 3 + [200] * 4 + [401] * 2


def test_a_name_that_is_not_the_servers_own_is_refused():
    async def scene(http: httpx.AsyncClient) -> list[int]:
        return [
            (await http.get("/v1/models", headers={"host": host})).status_code
            for host in (
                "localhost",
                "LOCALHOST:8000",
                "127.0.0.1:1",
                "[::1]:8000",
                "evil.example",
                "localhost.evil.example",
                "",
                "[",
                "127.0.0.1@evil.example",
            )
        ]

    hosts = {"localhost", "127.0.0.1", "::1"}
    assert asked(service(), scene, hosts=hosts) == [200] * 4 + [400] * 5


@pytest.mark.parametrize(
    ("site", "cors", "status"),
    [
        ("cross-site", [], 403),
        ("same-site", [], 403),
        ("same-origin", [], 200),
        ("none", [], 200),
        ("cross-site", ["https://friend.example"], 200),
        ("cross-site", ["https://other.example"], 403),
        ("cross-site", ["*"], 200),
    ],
)
def test_a_page_of_another_site_cannot_make_a_browser_send_pictures(site: str, cors: list[str], status: int):
    """Which it would without asking first, for a form; only the answer is kept from that page."""
    headers = {"sec-fetch-site": site, "origin": "https://friend.example"}
    assert once("POST", "/v1/predict", options={"cors": cors}, files=form(JPEG), headers=headers).status_code == status
    assert once("GET", "/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page is no harm


def test_other_sites_may_ask_only_where_they_were_named():
    async def scene(http: httpx.AsyncClient) -> list[str | None]:
        found = []
        for origin in ("https://friend.example", "https://foe.example"):
            before = await http.options(
                "/v1/predict",
                headers={
                    "origin": origin,
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "x-api-key",
                },
            )
            refused = await http.get("/v1/models", headers={"origin": origin})
            found += [
                before.headers.get("access-control-allow-origin"),
                refused.headers.get("access-control-allow-origin"),
            ]
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


@pytest.mark.parametrize(
    "path",
    [
        "/../vitkit/errors.py",
        "/page/../errors.py",
        "/%2e%2e/errors.py",
        "/page.js/../../x",
        "//etc/passwd",
        "/app.py",
        "/page/index.html",
        "/index.html%00.js",
        "/docs",
        "/redoc",
        "/..%2f..%2fetc%2fpasswd",
        "/C:%5Cwindows",
    ],
)
def test_nothing_but_the_pages_own_files_is_served(path: str):
    response = once("GET", path)
    assert response.status_code == 404
    assert response.json() == {"error": "There is nothing here.", "try": "what /openapi.json describes"}


def test_the_page_is_served_with_its_types():
    response = once("GET", "/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
