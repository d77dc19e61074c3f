"""The Host and Origin headers: proper forms are accepted, look-alikes and other sites are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv6Address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.serve.asgi_client import request_bytes
from tests.serve.servers import exchange, make_image, make_pool, running_server
from vitkit.serve.host_header import Host, is_same_origin, parse_host

NAMES = ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]"]
MALFORMED = [
    "",
    "evil.com@localhost",
    "user:password@localhost",
    "localhost:80:80",
    "localhost:99999",
    "localhost:-1",
    "localhost:８０".encode().decode("latin-1"),
    "local host",
    "localhost, evil.com",
    "localhost/path",
    "localhost?x",
    "localhost#x",
    "localhost\\evil.com",
    "http://localhost",
    "::1",
    "[::1",
    "[::1]x",
    "[::1]]",
    "[[::1]]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[v1.x]",
    "[localhost]",
    "[127.0.0.1]",
    "[::1]:80:80",
    ".",
    ".localhost",
    "localhost..",
    "-localhost",
    "*",
    "%6cocalhost",
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server that accepts the names of loopback, as `vitkit serve` without a key does."""
    hosts = {"localhost", "127.0.0.1", "::1"}
    with make_pool() as pool, running_server(pool, hosts=hosts) as (address, _, _):
        yield address


@pytest.fixture(scope="module")
def open_address() -> Iterator[str]:
    """The address of a server that accepts any proper name."""
    with make_pool() as pool, running_server(pool) as (address, _, _):
        yield address


def status(address: str, *hosts: str, version: str = "1.1") -> int:
    lines = [f"GET /healthz HTTP/{version}", *(f"host: {host}" for host in hosts), "connection: close", "", ""]
    return int(exchange(address, "\r\n".join(lines).encode("latin-1")).split()[1])


def test_proper_host_headers_are_accepted(address: str, open_address: str):
    for name in NAMES:
        for port in ("", ":", ":8000", ":65535"):
            assert status(address, name + port) == 200, name + port
    for name in ("example.org", "EXAMPLE.org.", "xn--bcher-kva.example:443", "my_container:8000", "[2001:db8::1]:80"):
        assert (status(open_address, name), status(address, name)) == (200, 400), name
    assert status(address, version="1.0") == 200  # a health check of HTTP/1.0 has no Host


@pytest.mark.parametrize("host", MALFORMED)
def test_malformed_host_headers_are_refused(address: str, open_address: str, host: str):
    assert (status(address, host), status(open_address, host)) == (400, 400)


def test_several_host_headers_or_none_are_refused(address: str):
    assert status(address, "localhost", "localhost") == 400
    assert status(address, "localhost", "evil.example") == 400
    assert status(address) == 400


# RFC 3986's host without percent-encoding and without the signs that no name of a machine has, and RFC 6335's ports
LABEL = st.from_regex(r"\A[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?\Z")
NAME = st.lists(LABEL, min_size=1, max_size=5).map(".".join)
PORT = st.none() | st.integers(0, 65535)


@given(NAME | st.ip_addresses(v=4).map(str), PORT)
def test_a_name_with_or_without_a_port_is_parsed(name: str, port: int | None):
    assert parse_host(name if port is None else f"{name}:{port}") == Host(name, port)


@given(st.ip_addresses(v=6), PORT, st.sampled_from(["compressed", "exploded"]))
def test_an_ipv6_address_in_brackets_is_parsed(address: IPv6Address, port: int | None, form: str):
    text = f"[{getattr(address, form)}]" + ("" if port is None else f":{port}")
    assert parse_host(text) == Host(str(address), port)


@given(st.text("aA1.-_:[]@/ %\\#?,\t\0ß", max_size=12) | st.text(max_size=12))
@example("localhost\n")
def test_nothing_else_is_parsed(text: str):
    """A plain grammar, without addresses in brackets: labels of letters and digits between dots, a colon and digits."""
    name, _, port = text.partition(":")
    labels = name.removesuffix(".").split(".")
    proper = (
        all(re.fullmatch("[a-zA-Z0-9_-]+", label) and "-" not in (label[0], label[-1]) for label in labels)
        and all(digit in "0123456789" for digit in port)
        and int(port or 0) < 65536
        and len(port) < 6
    )
    assert (parse_host(text) is not None) == proper or "[" in text


@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        ("http://HOST", None, 200),  # an old browser on the server's own page
        ("https://evil.example", None, 403),
        ("http://localhost.evil.example", None, 403),
        ("http://evil.example@HOST", None, 403),
        ("http://127.0.0.1:1", None, 403),  # another port is another site
        ("null", None, 403),  # a sandboxed frame, or a page of a file
        ("", None, 403),
        ("file://", None, 403),
        ("http://HOST\r\norigin: https://evil.example", None, 403),
        (None, None, 200),  # a tool
        (None, "cross-site", 403),
        ("https://behind.a.proxy.example", "same-origin", 200),  # the proxy sent another Host
        ("https://evil.example", "cross-site", 403),
        ("http://HOST", "same-site", 403),
        ("http://HOST", "nonsense", 403),
    ],
)
def test_images_from_pages_of_other_sites_are_refused(
    open_address: str, origin: str | None, site: str | None, status: int
):
    host = open_address.removeprefix("http://")
    headers = [f"host: {host}", "connection: close"]
    headers += [] if origin is None else [f"origin: {origin.replace('HOST', host)}"]
    headers += [] if site is None else [f"sec-fetch-site: {site}"]
    request = request_bytes(make_image(1)).replace(b"host: localhost", "\r\n".join(headers).encode())
    assert int(exchange(open_address, request).split()[1]) == status


def test_the_origins_of_cors_may_send_images_without_sec_fetch_site():
    request = request_bytes(make_image(1)).replace(b"host:", b"connection: close\r\norigin: ORIGIN\r\nhost:")
    friend = "https://friend.example"
    for cors, origin, status in (
        ([friend], friend, 200),
        ([friend], "https://friend.example:444", 403),
        ([friend], "null", 403),
        (["*"], "https://anyone.example", 200),
    ):
        with make_pool() as pool, running_server(pool, cors=cors) as (address, _, _):
            assert int(exchange(address, request.replace(b"ORIGIN", origin.encode())).split()[1]) == status


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("https://example.org", "example.org", True),
        ("https://example.org", "example.org:443", True),
        ("https://example.org:443", "example.org", True),
        ("http://example.org", "example.org:80", True),
        ("http://example.org", "example.org:443", False),
        ("https://example.org:8443", "example.org", False),
        ("https://EXAMPLE.org", "example.org", True),
        ("http://[::1]:8000", "[0::1]:8000", True),
        ("ftp://example.org", "example.org", False),
        ("example.org", "example.org", False),
    ],
)
def test_an_origin_is_compared_by_name_and_port(origin: str, host: str, same: bool):
    parsed = parse_host(host)
    assert parsed is not None
    assert is_same_origin(origin, parsed) == same
