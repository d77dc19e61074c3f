"""Read a request's body and parse the images in it, from a multipart form, JSON or plain bytes, within the limits.

Nothing is written to disk: a body is held in memory, bounded while it arrives, and all bodies together are bounded too.
"""

import asyncio
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pydantic import ValidationError
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from vitkit.serve.client import client_of
from vitkit.serve.limits import MIN_BYTES_PER_SECOND, AdmissionControl, Limits, RequestError
from vitkit.serve.schema import DeprecatedImagesRequest, ImagesRequest
from vitkit.serve.upload import Upload

FIELD = "images"
DEPRECATED_FIELD = "pictures"  # accepted for one release
_MAX_BOUNDARY = 70  # RFC 2046
_PIECE = 65536  # bytes up to which small chunks of a body are joined as they arrive
_EXPECTED = (
    f'Send files in the field "{FIELD}" of multipart/form-data, JSON {{"{FIELD}": ["BASE64", …]}}, or the bytes of one '
    "image with Content-Type: image/jpeg, image/png and so on."
)
_FORM, _JSON, _BYTES = b"multipart/form-data", b"application/json", b"application/octet-stream"
MAX_NAME = 255  # characters of a client's file name that are repeated in the response


@asynccontextmanager
async def read_body(request: Request, admission: AdmissionControl) -> AsyncIterator[list[bytes]]:
    """Yield the complete body in pieces; they, or the images parsed from them, count as held until the context ends."""
    limits, held, client = admission.limits, 0, client_of(request.scope)
    body: list[bytes] = []  # joined later, in a thread: megabytes would hold up the event loop
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limits.body_bytes:
        raise _body_too_large(limits)
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        try:
            async with asyncio.timeout_at(started + limits.patience) as timeout:
                async for chunk in request.stream():
                    if held + len(chunk) > limits.body_bytes:
                        raise _body_too_large(limits)
                    admission.hold_bytes(len(chunk), client, held)
                    held += len(chunk)
                    if body and len(body[-1]) + len(chunk) <= _PIECE:
                        body[-1] += chunk  # a million pieces of a byte would take forty times their size
                    else:
                        body.append(chunk)
                    timeout.reschedule(started + limits.patience + held / MIN_BYTES_PER_SECOND)
        except TimeoutError:
            raise RequestError(
                408,
                f"The body arrived too slowly: {held:,} bytes in {loop.time() - started:.0f} s.",
                "Send a smaller image, or use a faster connection.",
            ) from None
        yield body
    finally:
        admission.release_bytes(held, client)


def check_content_type(request: Request) -> None:
    """Reject a body that cannot be parsed, before it is read."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind not in (_FORM, _JSON) and not _is_image(kind):
        raise RequestError(415, "The request is neither a form nor JSON nor an image.", _EXPECTED)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError(415, "Compressed bodies are not accepted.", "Send the body without Content-Encoding.")
    if kind == _FORM and not 0 < len(options.get(b"boundary", b"")) <= _MAX_BOUNDARY:
        raise RequestError(400, "The form has no usable boundary.", "Let the HTTP library set Content-Type.")


def _is_image(kind: bytes) -> bool:
    """Return whether the body is one image; the decoder finds out its format from the content."""
    return kind.startswith(b"image/") or kind == _BYTES


@dataclass(frozen=True)
class ParsedImages:
    uploads: list[Upload]
    deprecated: bool  # the request used the old field name


def parse_images(content_type: str, body: list[bytes], limits: Limits) -> ParsedImages:
    """Return the images of a body; this takes time, so call it in a thread and not in the event loop."""
    images = _parse(content_type, b"".join(body), limits)
    pixels = sum(min(upload.pixels, limits.pixels) for upload in images.uploads)
    if pixels > limits.request_pixels:
        raise RequestError(
            413,
            f"The images of the request have {pixels / 1e6:,.0f} megapixels together, over the limit of "
            f"{limits.request_megapixels}.",
            "Send several requests, or smaller images.",
        )
    return images


def _parse(content_type: str, body: bytes, limits: Limits) -> ParsedImages:
    kind, options = parse_options_header(content_type)
    if kind == _FORM:
        return _MultipartForm(options[b"boundary"], limits).parse(body)
    if _is_image(kind):
        if not body:
            raise RequestError(422, "The body is empty.", _EXPECTED)
        return ParsedImages([Upload(body)], deprecated=False)
    return _parse_json(body, limits)


def _clean_name(name: bytes) -> str | None:
    """Return a client's file name as one line of text that can be shown, or None where it has none."""
    text = name.decode("utf-8", "replace")[:MAX_NAME]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text) or None


class _MultipartForm:
    """Callbacks for python-multipart's parser, which raise as soon as the form exceeds a limit."""

    def __init__(self, boundary: bytes, limits: Limits):
        self.limits = limits
        self.uploads: list[Upload] = []
        self.deprecated = self.ended = False
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    def parse(self, body: bytes) -> ParsedImages:
        try:
            self.parser.write(body)
            self.parser.finalize()
        except FormParserError as error:
            raise RequestError(400, f"The form cannot be parsed: {error}.", _EXPECTED) from None
        if not self.ended:
            raise RequestError(400, "The form ends before its last boundary.", _EXPECTED)
        if not self.uploads:
            raise RequestError(422, "The form holds no images.", _EXPECTED)
        return ParsedImages(self.uploads, self.deprecated)

    def _on_part_begin(self) -> None:
        if len(self.uploads) == self.limits.images:
            raise _too_many_images(self.limits)
        self.header, self.value, self.disposition, self.data = b"", b"", b"", bytearray()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def _on_header_end(self) -> None:
        if self.header.lower() == b"content-disposition":
            self.disposition = self.value
        self.header, self.value = b"", b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self.disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name not in (FIELD, DEPRECATED_FIELD):
            raise RequestError(422, f"The form has an unknown field {name[:40]!r}.", _EXPECTED)
        self.deprecated |= name == DEPRECATED_FIELD
        self.name = _clean_name(options.get(b"filename", b""))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.data += data[start:end]

    def _on_part_end(self) -> None:
        self.uploads.append(Upload(bytes(self.data), self.name))

    def _on_end(self) -> None:
        self.ended = True


def _parse_json(body: bytes, limits: Limits) -> ParsedImages:
    # base64 has no commas and no brackets: counting them first keeps a body of a million empty lists from becoming a
    # tree a hundred times its size
    if body.count(b",") > limits.images:
        raise _too_many_images(limits)
    if body.count(b"[") + body.count(b"{") > 16:
        raise RequestError(400, "The JSON is nested deeper than a list of images.", _EXPECTED)
    deprecated = False
    try:
        texts = ImagesRequest.model_validate_json(body).images
    except ValidationError as error:
        try:
            texts, deprecated = DeprecatedImagesRequest.model_validate_json(body).pictures, True
        except ValidationError:
            raise _invalid_json(error) from None
    if len(texts) > limits.images:
        raise _too_many_images(limits)
    return ParsedImages([Upload(_decode_base64(index, text)) for index, text in enumerate(texts)], deprecated)


def _invalid_json(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(str(step)[:40] for step in first["loc"])
    return RequestError(
        400 if first["type"] == "json_invalid" else 422,
        f"The JSON cannot be used: {f'{location}: ' * bool(location)}{first['msg']}.",
        _EXPECTED,
    )


def _decode_base64(index: int, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise RequestError(
            400,
            f"{FIELD}.{index} is not base64.",
            'Use the standard alphabet with padding, without spaces, line breaks or a "data:" prefix.',
        ) from None


def _too_many_images(limits: Limits) -> RequestError:
    return RequestError(413, f"The request holds more than {limits.images} images.", "Send several requests.")


def _body_too_large(limits: Limits) -> RequestError:
    return RequestError(413, f"The request is larger than {limits.body} MB.", "Send fewer or smaller images.")
