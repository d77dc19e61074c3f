"""The Accept header of a request: the types of response that a client wants (RFC 9110, section 12.5.1)."""


def prefers(accept: str, kind: str, otherwise: str) -> bool:
    """Return whether the header gives one media type more weight than the other; without a header, it does not."""
    return _weight(accept, kind) > _weight(accept, otherwise)


def _weight(accept: str, kind: str) -> float:
    """Return the weight of a media type, 0 to 1: that of the most specific range which it is in."""
    ranges = ("*/*", f"{kind.partition('/')[0]}/*", kind)
    best, weight = -1, 0.0
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name in ranges and ranges.index(name) > best:
            best, weight = ranges.index(name), _quality(parameters)
    return weight


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
