"""The worker of a classifier: predictions, embeddings and attention maps of uploaded images.

Shapes: B images, C channels, K classes, D width, V views, H heads, h x w patch grid.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.attention import attention_layers, attention_maps, select_heads
from vitkit.inspect.inference import require_vit
from vitkit.inspect.rollout import rollout
from vitkit.model.vit import VisionTransformer
from vitkit.predict.classifier import Classifier
from vitkit.predict.prediction import Prediction
from vitkit.serve import schema
from vitkit.serve.batching import MicroBatcher
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.model_worker import (
    CPU_BATCH,
    GPU_BATCH,
    NOT_FINITE,
    ModelWorker,
    Turn,
    WorkerResources,
    gather,
)
from vitkit.serve.upload import Upload

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class AttentionQuery:
    """An image, and the layers and heads whose attention to compute."""

    image: Tensor  # (C, height, width)
    layers: list[int] | None
    heads: list[int]


@dataclass(frozen=True)
class WorkerPrediction:
    prediction: Prediction
    model_input: str | None = None  # the preprocessed image as a data: URL of a PNG, if requested


class ClassifierWorker(ModelWorker):
    def __init__(self, name: str, classifier: Classifier, batch: int | None, resources: WorkerResources):
        self.classifier = classifier
        largest = CPU_BATCH if classifier.device.type == "cpu" else GPU_BATCH
        task = DecodeTask(classifier.transform, classifier.model.config.channels, resources.limits.pixels)
        super().__init__(name, classifier.model, batch or min(classifier.engine.batch, largest), task, resources)
        self.predict_batcher = self.batcher(
            "predict", lambda images: list(classifier.probabilities(torch.stack(images)))
        )
        self.embed_batcher = self.batcher("embed", lambda images: list(classifier.embed(torch.stack(images))))
        self.attention_batcher: MicroBatcher[AttentionQuery, tuple[Floats, Floats]] = self.batcher(
            "attention", self._compute_attention, 1
        )

    async def predict(
        self, images: list[Upload], *, client: str = "", with_input: bool = False
    ) -> list[WorkerPrediction]:
        """Classify images; with_input adds each preprocessed image as the model sees it."""
        return await self.each(partial(self._predict, with_input=with_input), images, client)

    async def embed(self, images: list[Upload], *, client: str = "") -> list[schema.ImageEmbedding]:
        return await self.each(self._embed, images, client)

    async def _predict(self, upload: Upload, turn: Turn, with_input: bool) -> WorkerPrediction:
        decoded = await self._decode(upload, turn, with_png=with_input)
        if isinstance(decoded, str):
            return WorkerPrediction(self.classifier.prediction(error=decoded))
        probabilities = await self.predict_batcher.submit(decoded.image, turn.request, turn.client)
        return WorkerPrediction(
            self._prediction(probabilities), None if decoded.png is None else _data_url(decoded.png)
        )

    def _prediction(self, probabilities: Floats) -> Prediction:
        if not np.isfinite(probabilities).all():
            return self.classifier.prediction(error=NOT_FINITE)
        return self.classifier.prediction(probabilities)

    async def _embed(self, upload: Upload, turn: Turn) -> schema.ImageEmbedding:
        decoded = await self._decode(upload, turn)
        if isinstance(decoded, str):
            return schema.ImageEmbedding(image=None, error=decoded, vector=[])
        vector: Floats = await self.embed_batcher.submit(decoded.image, turn.request, turn.client)
        if not np.isfinite(vector).all():
            return schema.ImageEmbedding(image=None, error=NOT_FINITE, vector=[])
        return schema.ImageEmbedding(image=None, error=None, vector=vector.tolist())

    async def attention(
        self, upload: Upload, *, layer: int | None, head: int | None, client: str = ""
    ) -> schema.AttentionResponse | Prediction:
        """Return attention maps and rollout of an image, or a Prediction with an error if it cannot be decoded."""
        vit = require_vit(self.classifier.model, "attention")
        layers, heads = None if layer is None else [layer], select_heads(vit, None if head is None else [head])
        views = [layer_view.label for layer_view in attention_layers(vit, layers)]
        turn = Turn(client, object())
        decoded = await self._decode(upload, turn, with_png=True)
        if isinstance(decoded, str):
            return self.classifier.prediction(error=decoded)
        png = decoded.png or b""
        (maps, rolled_out), probabilities = await gather(
            [
                self.attention_batcher.submit(AttentionQuery(decoded.image, layers, heads), turn.request, client),
                self.predict_batcher.submit(decoded.image, turn.request, client),
            ]
        )

        def respond() -> schema.AttentionResponse:
            return schema.AttentionResponse(
                model=self.name,
                grid=vit.config.grid,
                views=views,
                heads=heads,
                maps=_rounded_list(maps),
                rollout=_rounded_list(rolled_out),
                seen=_data_url(png),
                prediction=prediction_response(WorkerPrediction(self._prediction(probabilities)), 5),
            )

        return await asyncio.get_running_loop().run_in_executor(self.thread_executor, respond)

    def _compute_attention(self, queries: Sequence[AttentionQuery]) -> list[tuple[Floats, Floats]]:
        model = self.classifier.model
        return [
            (
                attention_maps(model, query.image[None], layers=query.layers, heads=query.heads)[0],  # (V, H, h, w)
                rollout(model, query.image[None])[0],  # (h, w)
            )
            for query in queries
        ]

    async def _decode(self, upload: Upload, turn: Turn, *, with_png: bool = False) -> DecodedImage | str:
        return await self.decode(replace(self.decode_task, with_png=with_png), upload, turn)

    def warm_up(self) -> None:
        config = self.model.config
        self.classifier.probabilities(torch.zeros(1, config.channels, *config.image))

    def describe(self) -> schema.ModelInfo:
        model, classifier = self.classifier.model, self.classifier
        vit = model if isinstance(model, VisionTransformer) else None
        return schema.ModelInfo(
            name=self.name,
            task="classify",
            variant=self.variant,
            image=model.config.image,
            classes=list(classifier.labels),
            multilabel=classifier.multilabel,
            thresholds=None if classifier.thresholds is None else list(classifier.thresholds),
            views=[view.label for view in attention_layers(vit)] if vit else [],
            heads=vit.config.heads if vit else 0,
            grid=vit.config.grid if vit else None,
            preprocessing=classifier.transform.describe(),
            computes=classifier.engine.description,
        )


def prediction_response(predicted: WorkerPrediction, top: int, name: str | None = None) -> schema.ImagePrediction:
    """Return the JSON form of a prediction with its `top` most probable classes; `name` is the file's."""
    prediction = replace(predicted.prediction, name=name)
    answers = [] if prediction.error is not None else prediction.top(top)
    row = {
        **prediction.record(top),
        "answers": [{**vars(answer), "predicted": prediction.applies(answer)} for answer in answers],
    }
    content = schema.ImagePrediction.model_validate(row)
    if predicted.model_input is not None:
        content.seen = predicted.model_input  # left unset otherwise, so that the response has no such key
    return content


def _rounded_list(weights: Floats) -> Any:
    """Round to six decimals: in full, float32 in JSON is twice as long and shows nothing more."""
    return weights.astype(np.float64).round(6).tolist()


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
