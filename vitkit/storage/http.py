"""GET of a web server through fsspec's session, with a bound on the bytes: servers may ignore ranges, or never end."""

from typing import Any

_CHUNK = 2**18


def get_http(filesystem: Any, url: str, start: int, stop: int) -> bytes:
    """Return the bytes from `start` to `stop`, or as far as the file goes, in one request."""
    from fsspec.asyn import sync

    content: bytes = sync(filesystem.loop, _get, filesystem, url, start, stop)
    return content


async def _get(filesystem: Any, url: str, start: int, stop: int) -> bytes:
    session = await filesystem.set_session()
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-{stop - 1}"
    async with session.get(filesystem.encode_url(url), headers=headers) as answer:
        if answer.status == 416:  # the file ends before
            return b""
        answer.raise_for_status()
        skip = 0 if answer.status == 206 else start
        chunks, length = [], 0
        # a connection that ends before the stated length raises an error of its own
        async for chunk in answer.content.iter_chunked(_CHUNK):
            chunks.append(chunk)
            length += len(chunk)
            if length >= skip + stop - start:
                break
        return b"".join(chunks)[skip : skip + stop - start]
