"""The server as an ASGI application: routes that take pictures and give answers, health, metrics, the page.

Nothing here opens a file or an address that a client names: pictures come in the request, and the page's files are a
fixed list, read once.
"""

from __future__ import annotations

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
from vitkit.serve.body import body_of, check_form, pictures_of
from vitkit.serve.guard import Gate, Shell, count_refusal, problem
from vitkit.serve.limits import Refusal
from vitkit.serve.metrics import CONTENT_TYPE, GONE
from vitkit.serve.model_pool import Service
from vitkit.serve.model_worker import Served, told

log = logging.getLogger(__name__)
T = TypeVar("T")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MOST_ANSWERS = 1000  # for a picture: all classes of ImageNet
QUICK = 1000  # answers that the event loop writes itself; more of them would hold up everybody else
_SAYS_NO = (400, 401, 403, 404, 408, 413, 415, 422, 500, 503, 504)
ModelName = Annotated[str | None, Query(alias="model", description="a name of /v1/models; else the default one")]


def create_app(
    service: Service, *, key: str | None = None, cors: Sequence[str] = (), hosts: Collection[str] | None = None
) -> ASGIApp:
    """key: asked for by /v1/…; cors: origins whose pages may ask; hosts: names under which it answers, None: any."""
    api = FastAPI(
        title="vitkit",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        description="Pictures in, answers out.",
    )
    _add_questions(api, service, key)
    _add_operations(api, service)
    _add_page(api)
    _add_errors(api, service)
    routes = {route.path for route in api.routes}  # type: ignore[attr-defined]
    app: ASGIApp = Gate(api, key=key, hosts=hosts, origins=cors)
    if cors:
        app = CORSMiddleware(
            app,
            allow_origins=list(cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type"],
            expose_headers=["Retry-After"],
        )
    return Shell(app, routes=routes, meters=service.meters, admission=service.admission)


def _add_questions(api: FastAPI, service: Service, key: str | None) -> None:
    # the Gate asks for the key; these only tell OpenAPI of it
    asked = (
        []
        if key is None
        else [Security(HTTPBearer(auto_error=False)), Security(APIKeyHeader(name="X-API-Key", auto_error=False))]
    )
    forms = partial(schema.input_forms, service.limits)

    @api.get("/v1/models", dependencies=asked, responses=schema.refusals(400, 401))
    async def models() -> schema.Models:
        """What is served, and how much it takes."""
        limits = service.limits
        return schema.Models(
            default=service.default,
            models=[served.describe() for served in service.models.values()],
            limits=schema.ModelLimits(
                body_bytes=limits.body_bytes, pixels=limits.pixels, pictures=limits.pictures, seconds=limits.seconds
            ),
            key_needed=key is not None,
        )

    @api.post(
        "/v1/predict",
        dependencies=asked,
        response_model=schema.Predictions,
        openapi_extra=forms(),
        responses=schema.refusals(*_SAYS_NO, unread=schema.UnreadPredictions),
    )
    async def predict(
        request: Request,
        model: ModelName = None,
        top: Annotated[int, Query(ge=1, le=MOST_ANSWERS, description="likeliest classes to tell")] = 5,
        seen: Annotated[bool, Query(description="tell each picture as the model sees it, too")] = False,
    ) -> Response:
        """Names and probabilities for each picture."""
        return await _asked(service, request, partial(_predict, service.model(model), top, seen))

    @api.post(
        "/v1/embed",
        dependencies=asked,
        response_model=schema.Embeddings,
        openapi_extra=forms(),
        responses=schema.refusals(*_SAYS_NO, unread=schema.UnreadEmbeddings),
    )
    async def embed(request: Request, model: ModelName = None) -> Response:
        """The vector that the model makes of each picture, as in `vitkit probe`."""
        return await _asked(service, request, partial(_embed, service.model(model)))

    @api.post(
        "/v1/attention",
        dependencies=asked,
        response_model=schema.Attention,
        openapi_extra=forms(single=True),
        responses=schema.refusals(*_SAYS_NO),
    )
    async def attention(
        request: Request,
        model: ModelName = None,
        layer: Annotated[int | None, Query(ge=0, description="one layer; else all")] = None,
        head: Annotated[int | None, Query(ge=0, description="one head; else all")] = None,
    ) -> Response:
        """Where the model looks in one picture, layer by layer and head by head."""
        return await _asked(service, request, partial(_attend, service.model(model), layer, head))


async def _predict(served: Served, top: int, seen: bool, pictures: list[bytes]) -> Response:
    predictions = await served.predict(pictures, seen=seen)

    def write() -> Response:
        answer = schema.Predictions(model=served.name, predictions=[told(each, top) for each in predictions])
        return _json(answer, unread=schema.UnreadPredictions, errors=[each.error for each in answer.predictions])

    return write() if top * len(predictions) <= QUICK and not seen else await _aside(served, write)


async def _embed(served: Served, pictures: list[bytes]) -> Response:
    embeddings = await served.embed(pictures)
    answer = schema.Embeddings(
        model=served.name, width=max(len(each.vector) for each in embeddings), embeddings=embeddings
    )
    return await _aside(
        served, partial(_json, answer, unread=schema.UnreadEmbeddings, errors=[each.error for each in embeddings])
    )


async def _attend(served: Served, layer: int | None, head: int | None, pictures: list[bytes]) -> Response:
    if len(pictures) != 1:
        raise Refusal(
            413, f"{len(pictures)} pictures, where attention is shown for one at a time.", "a request for each"
        )
    try:
        found = await served.attend(pictures[0], layer=layer, head=head)
    except VitkitError as error:  # no attention in a ResNet, no such layer or head
        first, *rest = str(error).splitlines()
        raise Refusal(422, first, "; ".join(" ".join(line.split()) for line in rest) or None) from None
    if isinstance(found, Prediction):
        raise Refusal(422, f"The picture cannot be read: {found.error}", "another picture")
    return await _aside(served, partial(_json, found))


async def _aside(served: Served, write: Callable[[], Response]) -> Response:
    """Megabytes of numbers become text in a reader's thread."""
    return await asyncio.get_running_loop().run_in_executor(served.readers, write)


async def _asked(service: Service, request: Request, answer: Callable[[list[bytes]], Awaitable[T]]) -> T:
    """From the request's body to its answer: every limit is met on this way."""
    service.admission.check_open()
    check_form(request)
    async with body_of(request, service.admission) as body:
        return await service.within_limits(_answered(service, request, body, answer), request)


async def _answered(
    service: Service, request: Request, body: bytearray, answer: Callable[[list[bytes]], Awaitable[T]]
) -> T:
    with service.admission.admit(1):  # it may hold one picture at least, and waits for a reader already
        parse = partial(pictures_of, request.headers["content-type"], body, service.limits)
        pictures = await asyncio.get_running_loop().run_in_executor(service.readers, parse)
        body.clear()  # the pictures are as large again
        with service.admission.admit(len(pictures) - 1):
            return await answer(pictures)


def _json(
    content: BaseModel, *, unread: type[BaseModel] | None = None, errors: Sequence[str | None] = (None,)
) -> Response:
    """With 422 where not one picture could be read."""
    if unread is None or None in errors:
        return Response(content.model_dump_json(exclude_unset=True), media_type="application/json")
    what = f"The picture cannot be read: {errors[0]}" if len(errors) == 1 else "None of the pictures can be read."
    told = unread.model_validate({**content.model_dump(exclude_unset=True), "error": what, "try": "another picture"})
    return Response(told.model_dump_json(by_alias=True, exclude_unset=True), 422, media_type="application/json")


def _add_operations(api: FastAPI, service: Service) -> None:
    @api.get("/healthz", responses=schema.refusals(400))
    async def healthz() -> schema.Health:
        """The process lives."""
        return schema.Health(status="ok")

    @api.get(
        "/readyz",
        response_model=schema.Ready,
        responses={**schema.refusals(400), 503: {"model": schema.NotReady, "description": "shutting down"}},
    )
    async def readyz() -> Response:
        """It takes requests."""
        return (
            Response(schema.NotReady(status="draining").model_dump_json(), 503, media_type="application/json")
            if service.admission.draining
            else _json(schema.Ready(status="ready"))
        )

    @api.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **schema.refusals(400)},
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.meters.text(), media_type=CONTENT_TYPE)


def _add_page(api: FastAPI) -> None:
    """/ and the files beside it, as they are when the server starts."""
    for file in resources.files("vitkit.serve").joinpath("page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            shown = partial(Response, file.read_bytes(), media_type=_TYPES[suffix])
            api.add_api_route(path, _page(shown), methods=["GET"], include_in_schema=False)


def _page(shown: Callable[[], Response]) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        return shown()

    return page


def _add_errors(api: FastAPI, service: Service) -> None:
    """Each in the same form, whoever raised it."""

    async def refused(request: Request, refusal: Any) -> Response:
        count_refusal(service.meters, refusal)
        return problem(refusal)

    async def routed(request: Request, error: Any) -> Response:
        words = {404: "There is nothing here.", 405: "That cannot be done here."}
        response = problem(
            Refusal(error.status_code, words.get(error.status_code, str(error.detail)), "what /openapi.json describes")
        )
        response.headers.update(error.headers or {})
        return response

    async def invalid(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        return problem(Refusal(422, f"{'.'.join(str(part) for part in first['loc'][1:])}: {first['msg']}.", None))

    async def failed(request: Request, error: Any) -> Response:
        log.error("the engine failed: %s", error, exc_info=error.__cause__)
        return problem(Refusal(500, "The model could not compute an answer.", None))

    async def gone(request: Request, error: Any) -> Response:
        return Response(status_code=GONE)

    async def unforeseen(request: Request, error: Any) -> Response:
        return problem(Refusal(500, "Something went wrong on the server.", None))

    for kind, handler in (
        (Refusal, refused),
        (HTTPException, routed),
        (RequestValidationError, invalid),
        (EngineError, failed),
        (ClientDisconnect, gone),
        (Exception, unforeseen),
    ):
        api.add_exception_handler(kind, handler)
