"""The ASGI application: routes that take images and return predictions, health checks, metrics and the web page.

Nothing here opens a file or an address that a client names: images come in the request, and the page's files are a
fixed list, read once.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from vitkit import __version__
from vitkit.serve import schema
from vitkit.serve.batching import EngineError
from vitkit.serve.json_response import json_response
from vitkit.serve.limits import RequestError
from vitkit.serve.metrics import CLIENT_CLOSED_REQUEST, CONTENT_TYPE
from vitkit.serve.middleware import AccessMiddleware, ResponseMiddleware, count_rejection, error_response
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.model_routes import add_model_routes

log = logging.getLogger(__name__)
_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def create_app(
    pool: ModelPool, *, key: str | None = None, cors: Sequence[str] = (), hosts: Collection[str] | None = None
) -> ASGIApp:
    """Return the application; key, cors and hosts are those of AccessMiddleware."""
    api = FastAPI(
        title="vitkit",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        description="Image classification, segmentation, embeddings and attention maps of Vision Transformers.",
    )
    security = _security(key)
    add_model_routes(api, pool, security)
    _add_monitoring_routes(api, pool, security)
    _add_page(api)
    _add_error_handlers(api, pool)
    routes = {route.path for route in api.routes}  # type: ignore[attr-defined]
    app: ASGIApp = AccessMiddleware(api, key=key, hosts=hosts, origins=cors)
    if cors:
        app = CORSMiddleware(
            app,
            allow_origins=list(cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type"],
            expose_headers=["Retry-After", "Deprecation", "Warning"],
        )
    return ResponseMiddleware(app, routes=routes, metrics=pool.metrics, admission=pool.admission)


def _security(key: str | None) -> list[Any]:
    """Describe the key in OpenAPI; AccessMiddleware checks it."""
    if key is None:
        return []
    return [Security(HTTPBearer(auto_error=False)), Security(APIKeyHeader(name="X-API-Key", auto_error=False))]


def _add_monitoring_routes(api: FastAPI, pool: ModelPool, security: list[Any]) -> None:
    @api.get("/healthz", responses=schema.error_responses(400))
    async def healthz() -> schema.HealthResponse:
        """Report that the process is alive."""
        return schema.HealthResponse(status="ok")

    @api.get(
        "/readyz",
        response_model=schema.ReadyResponse,
        responses={
            **schema.error_responses(400),
            503: {"model": schema.NotReadyResponse, "description": "shutting down"},
        },
    )
    async def readyz() -> Response:
        """Report whether the server accepts requests."""
        return (
            Response(schema.NotReadyResponse(status="draining").model_dump_json(), 503, media_type="application/json")
            if pool.admission.draining
            else json_response(schema.ReadyResponse(status="ready"))
        )

    @api.get(
        "/metrics",
        dependencies=security,
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **schema.error_responses(400, 401, 429),
        },
    )
    async def metrics() -> Response:
        """Return metrics in the Prometheus text format."""
        return Response(pool.metrics.text(), media_type=CONTENT_TYPE)


def _add_page(api: FastAPI) -> None:
    """Serve / and the page's other files, as they are when the server starts."""
    for file in resources.files("vitkit.serve").joinpath("page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _MEDIA_TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            respond = partial(Response, file.read_bytes(), media_type=_MEDIA_TYPES[suffix])
            api.add_api_route(path, _file_route(respond), methods=["GET"], include_in_schema=False)


def _file_route(respond: Callable[[], Response]) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        return respond()

    return page


def _add_error_handlers(api: FastAPI, pool: ModelPool) -> None:
    """Give every error the same JSON form, whatever raised it."""

    async def rejected(request: Request, error: Any) -> Response:
        count_rejection(pool.metrics, error)
        return error_response(error)

    async def not_routed(request: Request, error: Any) -> Response:
        messages = {404: "There is nothing at this address.", 405: "This address does not support this method."}
        message = messages.get(error.status_code, str(error.detail))
        advice = "See /openapi.json for what the server offers."
        response = error_response(RequestError(error.status_code, message, advice))
        response.headers.update(error.headers or {})
        if "GET" in response.headers.get("allow", ""):
            response.headers["allow"] += ", HEAD"  # ResponseMiddleware answers it
        return response

    async def invalid(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        location = ".".join(str(step) for step in first["loc"][1:])
        return error_response(RequestError(422, f"{location}: {first['msg']}.", None))

    async def engine_failed(request: Request, error: Any) -> Response:
        log.error("the engine failed: %s", error, exc_info=error.__cause__)
        return error_response(RequestError(500, "The model failed on this request.", None))

    async def disconnected(request: Request, error: Any) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def unexpected(request: Request, error: Any) -> Response:
        return error_response(RequestError(500, "Something went wrong on the server.", None))

    for kind, handler in (
        (RequestError, rejected),
        (HTTPException, not_routed),
        (RequestValidationError, invalid),
        (EngineError, engine_failed),
        (ClientDisconnect, disconnected),
        (Exception, unexpected),
    ):
        api.add_exception_handler(kind, handler)
