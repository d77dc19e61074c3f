"""The name of a client: its IPv4 address, or its IPv6 network."""

from __future__ import annotations

import pytest

from vitkit.serve.client import UNKNOWN_CLIENT, client_of


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("testclient", UNKNOWN_CLIENT),
    ],
)
def test_a_client_is_its_ipv4_address_or_its_ipv6_network(address: str, name: str):
    assert client_of({"type": "http", "client": (address, 40000)}) == name


@pytest.mark.parametrize("scope", [{"type": "http"}, {"type": "http", "client": None}])
def test_connections_without_an_address_are_one_client(scope: dict[str, object]):
    assert client_of(scope) == UNKNOWN_CLIENT
