"""Parse the Host and Origin headers, as browsers and tools write them and nothing looser.

urllib reads "evil.example@localhost" as localhost with a user name, and "localhost:80:80" as localhost.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"  # of a DNS name; names of containers have underscores
_HOST = re.compile(
    rf"(?:(?P<name>{_LABEL}(?:\.{_LABEL})*\.?)|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])(?::(?P<port>[0-9]{{0,5}}))?"
)
MAX_NAME = 254  # characters of a DNS name with a dot at its end
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Host:
    name: str  # in lower case; an IPv6 address in its shortest form, without brackets
    port: int | None = None


def parse_host(text: str) -> Host | None:
    """Return the host of NAME, NAME:PORT, [IPV6] or [IPV6]:PORT; None for anything else."""
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    if port is not None and port > 65535:
        return None
    if match["name"] is not None:
        return Host(match["name"].lower(), port) if len(match["name"]) <= MAX_NAME else None
    try:
        return Host(str(ipaddress.IPv6Address(match["ipv6"])), port)
    except ValueError:
        return None


def is_same_origin(origin: str, host: Host) -> bool:
    """Return whether an Origin header names the host that the request was sent to.

    The scheme is not compared: behind a proxy with TLS, the origin is https and the request is not.
    """
    scheme, separator, authority = origin.partition("://")
    sender = parse_host(authority) if separator else None
    if sender is None or scheme not in DEFAULT_PORTS:
        return False
    default = DEFAULT_PORTS[scheme]
    ports = [default if port is None else port for port in (sender.port, host.port)]
    return sender.name == host.name and ports[0] == ports[1]
