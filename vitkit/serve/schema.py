"""Types of the JSON requests and responses; FastAPI makes the OpenAPI description of them."""

from types import UnionType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vitkit.serve.limits import Limits


class ErrorResponse(BaseModel):
    """The body of every error response."""

    model_config = ConfigDict(populate_by_name=True)
    error: str = Field(description="what is wrong, in a sentence")
    try_: str | None = Field(alias="try", description="what to do")


class HealthResponse(BaseModel):
    status: Literal["ok"]


class ReadyResponse(BaseModel):
    status: Literal["ready"]


class NotReadyResponse(BaseModel):
    status: Literal["draining"]


class ClassProbability(BaseModel):
    label: str
    probability: float
    index: int = Field(description="index of the class in the model's logits")
    predicted: bool = Field(
        description="whether the model predicts this class: the most probable one; in a multi-label model, each class "
        "from its threshold on"
    )


IMAGE_NAME = "the client's name of the file; null in JSON and for a body that is one image"


class ImagePrediction(BaseModel):
    """The prediction of one image, with the keys of a row that `vitkit predict` writes."""

    image: str | None = Field(description=IMAGE_NAME)
    error: str | None = Field(description="why the image could not be decoded; `answers` is empty then")
    label: str | None = Field(description="the most probable class")
    probability: float | None = Field(description="its probability")
    answers: list[ClassProbability] = Field(description="the most probable class first")
    predicted: list[str] = Field(
        default=[], description="of a multi-label model: all classes from their thresholds on, also beyond `top`"
    )
    seen: str = Field(
        default="", description="if requested, the preprocessed image that the model sees, as a data: URL of a PNG"
    )


class PredictResponse(BaseModel):
    model: str
    predictions: list[ImagePrediction] = Field(description="one for each image, in the order of the request")


class ImageEmbedding(BaseModel):
    image: str | None = Field(description=IMAGE_NAME)
    error: str | None = Field(description="why the image could not be decoded; `vector` is empty then")
    vector: list[float]


class EmbedResponse(BaseModel):
    model: str
    width: int = Field(description="length of a vector")
    embeddings: list[ImageEmbedding] = Field(description="one for each image, in the order of the request")


class PredictErrorResponse(ErrorResponse, PredictResponse):
    """The response if no image of the request could be decoded."""


class EmbedErrorResponse(ErrorResponse, EmbedResponse):
    """The response if no image of the request could be decoded."""


Map = list[list[float]]  # rows of columns of the patch grid


class AttentionResponse(BaseModel):
    model: str
    grid: tuple[int, int] = Field(description="rows and columns of patches")
    views: list[str] = Field(description="the layers of `maps`; an axial model has rows and columns of a layer apart")
    heads: list[int] = Field(description="the heads of `maps`")
    maps: list[list[Map]] = Field(
        description="[view][head][row][column]: attention weights from the token that the classification head reads to "
        "the patches, rounded to six decimals"
    )
    rollout: Map = Field(description="attention rollout: the share of each patch in that token, through all layers")
    seen: str = Field(description="the preprocessed image that the model sees, as a data: URL of a PNG")
    prediction: ImagePrediction


class ModelInfo(BaseModel):
    name: str
    task: Literal["classify", "segment"] = Field(description="whether it predicts classes of images, or of pixels")
    variant: str | None
    image: tuple[int, int] = Field(description="input height and width")
    classes: list[str]
    palette: list[tuple[int, int, int]] | None = Field(
        default=None, description="of a segmentation model, the red, green and blue of each class in a mask"
    )
    window: tuple[int, int] | None = Field(
        default=None,
        description="of a segmentation model, height and width of the windows that an image is cut into if it has more "
        "than four times their pixels; null where it is always resized as a whole",
    )
    multilabel: bool
    thresholds: list[float] | None = Field(
        description="the probability from which each class of a multi-label model is predicted, in their order"
    )
    views: list[str] = Field(description="layers that have attention maps; a ResNet has none")
    heads: int
    grid: tuple[int, int] | None
    preprocessing: list[str]
    computes: str = Field(description="the inference engine, its precision and device")


class RequestLimits(BaseModel):
    body_bytes: int
    pixels: int = Field(description="of an image")
    request_pixels: int = Field(description="of all images of a request together")
    images: int
    seconds: int
    decode_seconds: int = Field(description="of processor time to decode an image")
    client_seconds: int = Field(description="of decoding in a minute, beyond which images of other clients come first")


class ModelsResponse(BaseModel):
    default: str
    models: list[ModelInfo]
    limits: RequestLimits
    key_needed: bool


class ImagesRequest(BaseModel):
    """A request in JSON: images in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)
    images: list[str] = Field(min_length=1)


class DeprecatedImagesRequest(BaseModel):
    """The same with the old field name, which is accepted for one release."""

    model_config = ConfigDict(extra="forbid", strict=True)
    pictures: list[str] = Field(min_length=1)


RAW_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")  # and any other image/…


def request_body(limits: Limits, *, single: bool = False) -> dict[str, Any]:
    """Return the OpenAPI requestBody: images as files of a form, as base64 in JSON, or one image as it is."""
    max_images = 1 if single else limits.images

    def media_type(item: dict[str, Any]) -> dict[str, Any]:
        images = {"type": "array", "items": {"type": "string", **item}, "minItems": 1, "maxItems": max_images}
        return {
            "schema": {
                "type": "object",
                "properties": {"images": images},
                "required": ["images"],
                "additionalProperties": False,
            }
        }

    base64 = {
        "contentEncoding": "base64",
        "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": media_type({"contentMediaType": "application/octet-stream", "format": "binary"}),
                "application/json": media_type(base64),
                **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in RAW_TYPES},
            },
        }
    }


def error_responses(
    *statuses: int, undecodable: type[BaseModel] | UnionType | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses for these statuses; `undecodable` is a route's own form of 422."""
    descriptions = {
        400: "malformed request",
        401: "the API key is missing or wrong",
        403: "a page of another site sent the request, and --cors does not allow it",
        404: "no such model",
        408: "the body arrived too slowly",
        413: "too many bytes or images",
        415: "neither a form nor JSON nor an image",
        422: "a parameter is invalid, or no image could be decoded",
        429: "too many wrong API keys; see Retry-After",
        500: "the model failed",
        503: "overloaded or shutting down; see Retry-After",
        504: "over the time limit",
    }
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse, "description": descriptions[status]} for status in statuses
    }
    if undecodable is not None:
        responses[422]["model"] = undecodable | ErrorResponse
    for status in {429, 503} & responses.keys():
        responses[status]["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
    return responses
