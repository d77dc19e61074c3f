"""The ASGI application: routes that take images and return predictions, health checks, metrics and the web page.

Nothing here opens a file or an address that a client names: images come in the request, and the page's files are a
fixed list, read once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from importlib import resources
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from vitkit import __version__
from vitkit.errors import VitkitError
from vitkit.predict.prediction import Prediction
from vitkit.serve import schema
from vitkit.serve.batching import EngineError
from vitkit.serve.body import DEPRECATED_FIELD, FIELD, check_content_type, parse_images, read_body
from vitkit.serve.client import client_of
from vitkit.serve.limits import RequestError
from vitkit.serve.metrics import CLIENT_CLOSED_REQUEST, CONTENT_TYPE
from vitkit.serve.middleware import AccessMiddleware, ResponseMiddleware, count_rejection, error_response
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.model_worker import ModelWorker, prediction_response
from vitkit.serve.upload import Upload

log = logging.getLogger(__name__)
T = TypeVar("T")
_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PARSE_COST = 10_000  # bytes that take as long to parse as what is the same for every body
MAX_TOP = 1000  # classes per image: all of ImageNet
MAX_INLINE_ROWS = 1000  # that the event loop serialises itself; more would hold up all other requests
_ERRORS = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
ModelName = Annotated[str | None, Query(alias="model", description="a name of /v1/models; default: the first one")]


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
        description="Image classification, embeddings and attention maps of Vision Transformers.",
    )
    _add_model_routes(api, pool, key)
    _add_monitoring_routes(api, pool, key)
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


def _add_model_routes(api: FastAPI, pool: ModelPool, key: str | None) -> None:
    security = _security(key)
    request_body = partial(schema.request_body, pool.limits)

    @api.get("/v1/models", dependencies=security, responses=schema.error_responses(400, 401, 429))
    async def models() -> schema.ModelsResponse:
        """List the models and the limits of a request."""
        limits = pool.limits
        return schema.ModelsResponse(
            default=pool.default_name,
            models=[worker.describe() for worker in pool.workers.values()],
            limits=schema.RequestLimits(
                body_bytes=limits.body_bytes,
                pixels=limits.pixels,
                request_pixels=limits.request_pixels,
                images=limits.images,
                seconds=limits.seconds,
                decode_seconds=limits.decode_seconds,
                client_seconds=limits.client_seconds,
            ),
            key_needed=key is not None,
        )

    @api.post(
        "/v1/predict",
        dependencies=security,
        response_model=schema.PredictResponse,
        openapi_extra=request_body(),
        responses=schema.error_responses(*_ERRORS, undecodable=schema.PredictErrorResponse),
    )
    async def predict(
        request: Request,
        model: ModelName = None,
        top: Annotated[int, Query(ge=1, le=MAX_TOP, description="number of most probable classes to return")] = 5,
        with_input: Annotated[
            bool, Query(alias="seen", description="also return each preprocessed image that the model sees")
        ] = False,
    ) -> Response:
        """Return class names and probabilities for each image."""
        return await _respond(pool, request, partial(_predict, pool.worker(model), top, with_input))

    @api.post(
        "/v1/embed",
        dependencies=security,
        response_model=schema.EmbedResponse,
        openapi_extra=request_body(),
        responses=schema.error_responses(*_ERRORS, undecodable=schema.EmbedErrorResponse),
    )
    async def embed(request: Request, model: ModelName = None) -> Response:
        """Return the representation of each image, the features that `vitkit probe` uses."""
        return await _respond(pool, request, partial(_embed, pool.worker(model)))

    @api.post(
        "/v1/attention",
        dependencies=security,
        response_model=schema.AttentionResponse,
        openapi_extra=request_body(single=True),
        responses=schema.error_responses(*_ERRORS),
    )
    async def attention(
        request: Request,
        model: ModelName = None,
        layer: Annotated[int | None, Query(ge=0, description="one layer; default: all")] = None,
        head: Annotated[int | None, Query(ge=0, description="one head; default: all")] = None,
    ) -> Response:
        """Return the attention maps of one image by layer and head, and the attention rollout."""
        return await _respond(pool, request, partial(_attention, pool.worker(model), layer, head))


async def _predict(worker: ModelWorker, top: int, with_input: bool, uploads: list[Upload], client: str) -> Response:
    predictions = await worker.predict(uploads, client=client, with_input=with_input)

    def serialise() -> Response:
        rows = [
            prediction_response(prediction, top, upload.name)
            for prediction, upload in zip(predictions, uploads, strict=True)
        ]
        content = schema.PredictResponse(model=worker.name, predictions=rows)
        return _json(content, undecodable=schema.PredictErrorResponse, errors=[row.error for row in rows])

    inline = top * len(predictions) <= MAX_INLINE_ROWS and not with_input
    return serialise() if inline else await _in_thread(worker, serialise)


async def _embed(worker: ModelWorker, uploads: list[Upload], client: str) -> Response:
    rows = await worker.embed(uploads, client=client)
    for row, upload in zip(rows, uploads, strict=True):
        row.image = upload.name
    content = schema.EmbedResponse(model=worker.name, width=max(len(row.vector) for row in rows), embeddings=rows)
    errors = [row.error for row in rows]
    return await _in_thread(worker, partial(_json, content, undecodable=schema.EmbedErrorResponse, errors=errors))


async def _attention(
    worker: ModelWorker, layer: int | None, head: int | None, uploads: list[Upload], client: str
) -> Response:
    if len(uploads) != 1:
        message = f"The request holds {len(uploads)} images; attention takes one at a time."
        raise RequestError(413, message, "Send a request for each image.")
    try:
        content = await worker.attention(uploads[0], layer=layer, head=head, client=client)
    except VitkitError as error:  # a ResNet has no attention; no such layer or head
        first, *rest = str(error).splitlines()
        raise RequestError(422, first, "; ".join(" ".join(line.split()) for line in rest) or None) from None
    if isinstance(content, Prediction):
        raise RequestError(422, f"The image cannot be decoded: {content.error}", "Send another image.")
    content.prediction.image = uploads[0].name
    return await _in_thread(worker, partial(_json, content))


async def _in_thread(worker: ModelWorker, serialise: Callable[[], Response]) -> Response:
    """Serialise megabytes of numbers in a thread instead of the event loop."""
    return await asyncio.get_running_loop().run_in_executor(worker.thread_executor, serialise)


async def _respond(pool: ModelPool, request: Request, compute: Callable[[list[Upload], str], Awaitable[T]]) -> T:
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


def _json(
    content: BaseModel, *, undecodable: type[BaseModel] | None = None, errors: Sequence[str | None] = (None,)
) -> Response:
    """Return a JSON response, with status 422 if none of the images could be decoded."""
    if undecodable is None or None in errors:
        return Response(content.model_dump_json(exclude_unset=True), media_type="application/json")
    error = f"The image cannot be decoded: {errors[0]}" if len(errors) == 1 else "None of the images can be decoded."
    failure = undecodable.model_validate(
        {**content.model_dump(exclude_unset=True), "error": error, "try": "Send another image."}
    )
    return Response(failure.model_dump_json(by_alias=True, exclude_unset=True), 422, media_type="application/json")


def _add_monitoring_routes(api: FastAPI, pool: ModelPool, key: str | None) -> None:
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
            else _json(schema.ReadyResponse(status="ready"))
        )

    @api.get(
        "/metrics",
        dependencies=_security(key),
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
