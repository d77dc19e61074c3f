"""A request's body → the bytes of its pictures, from a form or from JSON, never more than the limits allow.

Nothing is written to disk: a body is held whole, is bounded while it arrives, and all bodies together are bounded too.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import ValidationError
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from vitkit.serve.limits import SLOWEST, Admission, Limits, Refusal
from vitkit.serve.schema import Pictures

FIELD = "pictures"
_LONGEST_BOUNDARY = 70  # RFC 2046
_FORMS = 'files in the field "pictures" of multipart/form-data, or JSON {"pictures": ["BASE64", …]}'


@asynccontextmanager
async def body_of(request: Request, admission: Admission) -> AsyncIterator[bytearray]:
    """The whole body; its bytes, or the pictures made of them, are counted as held until the context ends."""
    limits, body, held = admission.limits, bytearray(), 0
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limits.body_bytes:
        raise _too_large(limits)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        try:
            async with asyncio.timeout_at(began + limits.patience) as clock:
                async for chunk in request.stream():
                    if held + len(chunk) > limits.body_bytes:
                        raise _too_large(limits)
                    admission.hold(len(chunk))
                    held += len(chunk)
                    body += chunk
                    clock.reschedule(began + limits.patience + held / SLOWEST)
        except TimeoutError:
            raise Refusal(
                408,
                f"The body came too slowly: {held:,} bytes in {loop.time() - began:.0f} s.",
                "a smaller picture, or a better connection",
            ) from None
        yield body
    finally:
        admission.let_go(held)


def check_form(request: Request) -> None:
    """Before the body is read: is it of a kind that can be?"""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind not in (b"multipart/form-data", b"application/json"):
        raise Refusal(415, "The request is neither a form nor JSON.", _FORMS)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "Compressed bodies are not taken.", "the same without Content-Encoding")
    if kind == b"multipart/form-data" and not 0 < len(options.get(b"boundary", b"")) <= _LONGEST_BOUNDARY:
        raise Refusal(400, "The form's Content-Type has no usable boundary.", "let the HTTP library set Content-Type")


def pictures_of(content_type: str, body: bytearray, limits: Limits) -> list[bytes]:
    """Takes its time: for a thread, not for the event loop."""
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        return _Form(options[b"boundary"], limits).parse(bytes(body))
    return _from_json(bytes(body), limits)


class _Form:
    """python-multipart's parser tells of parts as it meets them; what is too much stops it at once."""

    def __init__(self, boundary: bytes, limits: Limits):
        self.limits = limits
        self.parts: list[bytes] = []
        self.ended = False
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._name,
                "on_header_value": self._value,
                "on_header_end": self._header,
                "on_headers_finished": self._headers,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._finish,
            },
        )

    def parse(self, body: bytes) -> list[bytes]:
        try:
            self.parser.write(body)
            self.parser.finalize()
        except FormParserError as error:
            raise Refusal(400, f"The form cannot be read: {error}.", _FORMS) from None
        if not self.ended:
            raise Refusal(400, "The form breaks off before its last boundary.", _FORMS)
        if not self.parts:
            raise Refusal(422, "The form holds no pictures.", _FORMS)
        return self.parts

    def _begin(self) -> None:
        if len(self.parts) == self.limits.pictures:
            raise too_many(self.limits)
        self.header, self.content, self.disposition, self.data = b"", b"", b"", bytearray()

    def _name(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def _value(self, data: bytes, start: int, end: int) -> None:
        self.content += data[start:end]

    def _header(self) -> None:
        if self.header.lower() == b"content-disposition":
            self.disposition = self.content
        self.header, self.content = b"", b""

    def _headers(self) -> None:
        _, options = parse_options_header(self.disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name != FIELD:
            raise Refusal(422, f"The form has a field {name[:40]!r}; only {FIELD!r} is known.", _FORMS)

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.data += data[start:end]

    def _end(self) -> None:
        self.parts.append(bytes(self.data))

    def _finish(self) -> None:
        self.ended = True


def _from_json(body: bytes, limits: Limits) -> list[bytes]:
    # base64 has no commas and no brackets: counting them first keeps a body of a million empty lists from becoming a
    # tree a hundred times its size
    if body.count(b",") > limits.pictures:
        raise too_many(limits)
    if body.count(b"[") + body.count(b"{") > 16:
        raise Refusal(400, "The JSON is nested deeper than a list of pictures.", _FORMS)
    try:
        texts = Pictures.model_validate_json(body).pictures
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        raise Refusal(
            400 if first["type"] == "json_invalid" else 422,
            f"The JSON cannot be used: {f'{place}: ' * bool(place)}{first['msg']}.",
            _FORMS,
        ) from None
    if len(texts) > limits.pictures:
        raise too_many(limits)
    return [_from_base64(place, text) for place, text in enumerate(texts)]


def _from_base64(place: int, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Refusal(
            400,
            f"pictures.{place} is not base64.",
            "the standard alphabet with padding: no spaces, no line breaks, no data: in front",
        ) from None


def too_many(limits: Limits) -> Refusal:
    return Refusal(413, f"More pictures than a request may hold: {limits.pictures}.", "several requests")


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"The request is larger than {limits.body} MB.", "fewer or smaller pictures")
