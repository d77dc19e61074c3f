"""Access control: API keys, host names, pages of other sites, security headers, and the files that are served."""

from __future__ import annotations

import httpx
import pytest

from tests.serve.asgi_client import JPEG_IMAGE, run_requests, send
from tests.serve.servers import image_form, make_pool


def test_the_api_and_the_metrics_require_the_key_and_the_other_routes_do_not():
    async def requests(http: httpx.AsyncClient) -> list[int]:
        credentials = [
            {},
            {"authorization": "Bearer wrong-key"},
            {"authorization": "Basic right-key"},
            {"x-api-key": ""},
            {"x-api-key": "rightßkey".encode()},
            {"authorization": "Bearer right-key"},
            {"authorization": "bearer right-key"},
            {"x-api-key": "right-key"},
        ]
        codes = [
            (await http.post("/v1/predict", files=image_form(JPEG_IMAGE), headers=headers)).status_code
            for headers in credentials
        ]
        public = [(await http.get(path)).status_code for path in ("/healthz", "/readyz", "/openapi.json", "/")]
        protected = [(await http.get(path)).status_code for path in ("/v1/models", "/v1/nothing", "/metrics")]
        scraped = (await http.get("/metrics", headers={"authorization": "Bearer right-key"})).status_code
        return [*codes, *public, *protected, scraped]

    assert run_requests(make_pool(), requests, key="right-key") == [401] * 5 + [200] * 3 + [200] * 4 + [401] * 3 + [200]


def test_a_host_name_outside_the_allow_list_is_rejected():
    async def requests(http: httpx.AsyncClient) -> list[int]:
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
    assert run_requests(make_pool(), requests, hosts=hosts) == [200] * 4 + [400] * 5


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
def test_a_page_of_another_site_cannot_make_a_browser_send_images(site: str, cors: list[str], status: int):
    """A browser sends a form without a preflight request, and only hides the response from that page."""
    headers = {"sec-fetch-site": site, "origin": "https://friend.example"}
    assert (
        send("POST", "/v1/predict", options={"cors": cors}, files=image_form(JPEG_IMAGE), headers=headers).status_code
        == status
    )
    assert send("GET", "/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page is harmless


def test_only_sites_of_the_cors_allow_list_get_the_cors_headers():
    async def requests(http: httpx.AsyncClient) -> list[str | None]:
        allowed = []
        for origin in ("https://friend.example", "https://foe.example"):
            preflight = await http.options(
                "/v1/predict",
                headers={
                    "origin": origin,
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "x-api-key",
                },
            )
            response = await http.get("/v1/models", headers={"origin": origin})
            allowed += [
                preflight.headers.get("access-control-allow-origin"),
                response.headers.get("access-control-allow-origin"),
            ]
        return allowed

    assert run_requests(make_pool(), requests) == [None] * 4
    friend = "https://friend.example"
    assert run_requests(make_pool(), requests, cors=[friend], key="a-key") == [friend, friend, None, None]


@pytest.mark.parametrize("path", ["/", "/v1/models", "/nothing", "/v1/predict", "/metrics"])
def test_every_response_has_the_security_headers(path: str):
    headers = send("GET", path).headers
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
def test_no_file_but_those_of_the_page_is_served(path: str):
    response = send("GET", path)
    assert response.status_code == 404
    assert response.json() == {
        "error": "There is nothing at this address.",
        "try": "See /openapi.json for what the server offers.",
    }


def test_the_page_is_served_as_html():
    response = send("GET", "/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
