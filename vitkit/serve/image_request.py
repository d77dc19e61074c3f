"""A request with images: read, parse and compute it, within every limit."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fastapi import Request

from vitkit.serve.body import DEPRECATED_FIELD, FIELD, check_content_type, parse_images, read_body
from vitkit.serve.client import client_of
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.upload import Upload

log = logging.getLogger(__name__)
T = TypeVar("T")
PARSE_COST = 10_000  # bytes that take as long to parse as what is the same for every body


async def respond(pool: ModelPool, request: Request, compute: Callable[[list[Upload], str], Awaitable[T]]) -> T:
    """Read the body, compute and return the response, within every limit."""
    pool.admission.check_capacity(client_of(request.scope))
    check_content_type(request)
    async with read_body(request, pool.admission) as body:
        return await pool.with_timeout(_parse_and_compute(pool, request, body, compute), request)


async def _parse_and_compute(
    pool: ModelPool, request: Request, body: list[bytes], compute: Callable[[list[Upload], str], Awaitable[T]]
) -> T:
    client = client_of(request.scope)
    with pool.admission.admit(1, client):  # a request holds at least one image, and already waits for a thread
        parse = partial(parse_images, request.headers["content-type"], body, pool.limits)
        images = await pool.parse_thread.run(parse, client=client, cost=PARSE_COST + sum(map(len, body)))
        body.clear()  # the parsed images take as much memory again
        if images.deprecated:
            _warn_of_deprecated_field(pool, request)
        with pool.admission.admit(len(images.uploads) - 1, client, request=1):
            return await compute(images.uploads, client)


def _warn_of_deprecated_field(pool: ModelPool, request: Request) -> None:
    """Have ResponseMiddleware add the deprecation headers, and log the first such request."""
    request.state.deprecated_field = True
    if not pool.warned_of_deprecated_field:
        pool.warned_of_deprecated_field = True
        log.warning(
            'a client sent the field "%s", which is deprecated and will be removed in the next release; '
            'clients should send "%s" (this warning appears once)',
            DEPRECATED_FIELD,
            FIELD,
        )
