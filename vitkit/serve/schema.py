"""What goes in and comes out over HTTP, typed; the OpenAPI page is made of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vitkit.serve.limits import Limits


class Problem(BaseModel):
    """Every answer that is none."""

    model_config = ConfigDict(populate_by_name=True)
    error: str = Field(description="what is wrong, in a sentence")
    try_: str | None = Field(alias="try", description="what to do")


class Health(BaseModel):
    status: Literal["ok"]


class Ready(BaseModel):
    status: Literal["ready"]


class NotReady(BaseModel):
    status: Literal["draining"]


class Answer(BaseModel):
    label: str
    probability: float
    index: int = Field(description="place among the model's classes")


class Prediction(BaseModel):
    error: str | None = Field(description="why the picture could not be read; then there are no answers")
    answers: list[Answer] = Field(description="the likeliest first")
    seen: str = Field(
        default="", description="where it was asked for, the picture as the model sees it, as a data: URL of a PNG"
    )


class Predictions(BaseModel):
    model: str
    predictions: list[Prediction] = Field(description="one for each picture, in their order")


class Embedding(BaseModel):
    error: str | None
    vector: list[float]


class Embeddings(BaseModel):
    model: str
    width: int = Field(description="numbers in a vector")
    embeddings: list[Embedding]


class UnreadPredictions(Problem, Predictions):
    """None of the pictures could be read."""


class UnreadEmbeddings(Problem, Embeddings):
    """None of the pictures could be read."""


Map = list[list[float]]  # rows of columns of the patch grid


class Attention(BaseModel):
    model: str
    grid: tuple[int, int] = Field(description="rows and columns of patches")
    views: list[str] = Field(description="the layers of `maps`; rows and columns apart in an axial model")
    heads: list[int] = Field(description="the heads of `maps`")
    maps: list[list[Map]] = Field(
        description="[view][head][row][column]: weights that the head's token gives to the patches, to six decimals"
    )
    rollout: Map = Field(description="the share of each patch in what the head reads, through all layers")
    seen: str = Field(description="the picture as the model sees it, as a data: URL of a PNG")
    prediction: Prediction


class Model(BaseModel):
    name: str
    variant: str | None
    image: tuple[int, int] = Field(description="height and width")
    classes: list[str]
    multilabel: bool
    views: list[str] = Field(description="layers whose attention can be asked for; none in a ResNet")
    heads: int
    grid: tuple[int, int] | None
    preprocessing: list[str]
    computes: str


class ModelLimits(BaseModel):
    body_bytes: int
    pixels: int
    pictures: int
    seconds: int


class Models(BaseModel):
    default: str
    models: list[Model]
    limits: ModelLimits
    key_needed: bool


class Pictures(BaseModel):
    """The JSON form of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    pictures: list[str] = Field(min_length=1)


def input_forms(limits: Limits, *, single: bool = False) -> dict[str, Any]:
    """requestBody: the pictures as files of a form, or as base64 in JSON."""
    most = 1 if single else limits.pictures

    def form(item: dict[str, Any]) -> dict[str, Any]:
        pictures = {"type": "array", "items": {"type": "string", **item}, "minItems": 1, "maxItems": most}
        return {
            "schema": {
                "type": "object",
                "properties": {"pictures": pictures},
                "required": ["pictures"],
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
                "multipart/form-data": form({"contentMediaType": "application/octet-stream", "format": "binary"}),
                "application/json": form(base64),
            },
        }
    }


def refusals(*statuses: int, unread: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """responses: the ways in which a route says no."""
    words = {
        400: "malformed",
        401: "the key is missing or wrong",
        403: "a page of another site asks, which was not allowed",
        404: "no such model",
        408: "the body came too slowly",
        413: "too many bytes or pictures",
        415: "neither a form nor JSON",
        422: "nothing to answer with",
        500: "the model could not compute an answer",
        503: "busy or shutting down; see Retry-After",
        504: "over the time limit",
    }
    told: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "description": words[status]} for status in statuses
    }
    if unread is not None:
        told[422]["model"] = unread | Problem
    if 503 in told:
        told[503]["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
    return told
