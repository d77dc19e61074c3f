"""The routes of the models: what there are, and images in, answers out."""

from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from vitkit.serve import classifier_responses, schema, segment_schema, segmenter_responses
from vitkit.serve.accept import prefers
from vitkit.serve.classifier_worker import ClassifierWorker
from vitkit.serve.image_request import respond
from vitkit.serve.limits import RequestError
from vitkit.serve.mask_answer import MaskEncoding
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.model_worker import ModelWorker
from vitkit.serve.segmenter_worker import SegmenterWorker

MAX_TOP = 1000  # classes per image: all of ImageNet
_ERRORS = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)
_PNG = "image/png"
ModelName = Annotated[str | None, Query(alias="model", description="a name of /v1/models; default: the first one")]
MaskQuery = Annotated[
    MaskEncoding,
    Query(
        description="of a segmentation model, how each mask is returned: a PNG in base64, COCO's run-length encoding "
        "of each class, or not at all"
    ),
]


def add_model_routes(api: FastAPI, pool: ModelPool, security: list[Any]) -> None:
    """Add the routes; `security` describes the key, if there is one."""
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
            key_needed=bool(security),
        )

    @api.post(
        "/v1/predict",
        dependencies=security,
        response_model=schema.PredictResponse | segment_schema.SegmentResponse,
        openapi_extra=request_body(),
        responses={
            200: {"content": {_PNG: {"schema": {"type": "string", "format": "binary"}}}},
            **schema.error_responses(
                *_ERRORS, undecodable=schema.PredictErrorResponse | segment_schema.SegmentErrorResponse
            ),
        },
    )
    async def predict(
        request: Request,
        model: ModelName = None,
        top: Annotated[int, Query(ge=1, le=MAX_TOP, description="number of most probable classes to return")] = 5,
        with_input: Annotated[
            bool, Query(alias="seen", description="also return each preprocessed image that the model sees")
        ] = False,
        mask: MaskQuery = "png",
    ) -> Response:
        """Return class names and probabilities for each image; of a segmentation model, its mask at its own size.

        With `Accept: image/png`, a segmentation model's response is the mask of the request's only image.
        """
        worker = pool.worker(model)
        if isinstance(worker, SegmenterWorker):
            _refuse(request, ("top", "seen"), f"{worker.name} gives masks of images")
            if prefers(request.headers.get("accept", ""), _PNG, "application/json"):
                compute = partial(segmenter_responses.segment_to_png, worker)
            else:
                compute = partial(segmenter_responses.segment, worker, mask)
            response = await respond(pool, request, compute)
            response.headers["vary"] = "accept"
            return response
        _refuse(request, ("mask",), f"{worker.name} classifies images")
        return await respond(
            pool, request, partial(classifier_responses.predict, _classifier(worker, "classes"), top, with_input)
        )

    @api.post(
        "/v1/embed",
        dependencies=security,
        response_model=schema.EmbedResponse,
        openapi_extra=request_body(),
        responses=schema.error_responses(*_ERRORS, undecodable=schema.EmbedErrorResponse),
    )
    async def embed(request: Request, model: ModelName = None) -> Response:
        """Return the representation of each image, the features that `vitkit probe` uses."""
        compute = partial(classifier_responses.embed, _classifier(pool.worker(model), "a vector of an image"))
        return await respond(pool, request, compute)

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
        worker = _classifier(pool.worker(model), "attention of an image")
        return await respond(pool, request, partial(classifier_responses.attend, worker, layer, head))


def _refuse(request: Request, parameters: tuple[str, ...], reason: str) -> None:
    """Raise an error for a parameter that means nothing to this model."""
    for name in parameters:
        if name in request.query_params:
            raise RequestError(422, f"{name}: {reason}, and has no use for this parameter.", f"Leave {name} out.")


def _classifier(worker: ModelWorker, what: str) -> ClassifierWorker:
    """Return the worker of a classifier, or raise an error: `what` is asked for, and this model has none."""
    if not isinstance(worker, ClassifierWorker):
        raise RequestError(
            422, f"{worker.name} is {worker.model.kind}: it gives masks, and not {what}.", "POST /v1/predict"
        )
    return worker
