"""The client of a request, as limits and fair turns count it: its address, or its network for IPv6."""

import ipaddress

from starlette.types import Scope

UNKNOWN_CLIENT = "unknown"  # of a Unix socket, whose connections have no address
IPV6_PREFIX = 64  # bits: a household or a machine has a whole such network, and can take a new address for each request


def client_of(scope: Scope) -> str:
    """Return the name under which a request's use of the server is counted.

    Two requests with the same name share one allowance. That is the address for IPv4, also where a socket for both
    families reports it as ::ffff:192.0.2.1, and the /64 network for IPv6. Everyone behind one proxy has its address:
    their requests take turns at the decoders and at the model, but share one allowance of the queue and of memory. One
    of them who uses it up has the others refused with 503 as well; only the proxy can tell them apart.
    """
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return UNKNOWN_CLIENT
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((int(address), IPV6_PREFIX), strict=False))
        address = address.ipv4_mapped
    return str(address)
