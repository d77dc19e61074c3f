"""The worker of one model: it has uploaded images decoded, computes them in micro-batches and returns results.

Shapes: B images, C channels, K classes, D width, V views, H heads, h x w patch grid.
"""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import DecodeError
from vitkit.inspect.attention import attention_layers, attention_maps, select_heads
from vitkit.inspect.inference import require_vit
from vitkit.inspect.rollout import rollout
from vitkit.model.variants import name_of
from vitkit.model.vit import VisionTransformer
from vitkit.predict.classifier import Classifier
from vitkit.predict.prediction import Prediction
from vitkit.serve import schema
from vitkit.serve.batching import MicroBatcher
from vitkit.serve.decode_pool import DecodePool
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.limits import Limits
from vitkit.serve.metrics import Metrics
from vitkit.serve.upload import Upload

T = TypeVar("T")
Floats = NDArray[np.float32]
CPU_BATCH = 16  # Ti/16 on one core, ms per image: 40 at batch 1, 27 at 8 and 16, 33 at 64, which adds latency too
GPU_BATCH = 64
NOT_FINITE = "the model's output for this image is not a finite number"


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


@dataclass(frozen=True, eq=False)
class Turn:
    """Whose turn it is at the decoders and at the model: a client, and one of its requests."""

    client: str
    request: object


class ModelWorker:
    def __init__(
        self,
        name: str,
        classifier: Classifier,
        *,
        batch: int | None,
        compute_executor: Executor,
        decode_pool: DecodePool,
        thread_executor: Executor,
        limits: Limits,
        metrics: Metrics,
    ):
        self.name, self.classifier, self.limits, self.metrics = name, classifier, limits, metrics
        self.decode_pool, self.thread_executor = decode_pool, thread_executor
        self.decode_task = DecodeTask(classifier.transform, classifier.model.config.channels, limits.pixels)
        self.batch = batch or min(classifier.engine.batch, CPU_BATCH if classifier.device.type == "cpu" else GPU_BATCH)
        # one thread computes for all models and tasks, in turns: threads that share cores slow each other down
        self.predict_batcher = self._batcher(
            "predict", lambda images: list(classifier.probabilities(torch.stack(images))), self.batch, compute_executor
        )
        self.embed_batcher = self._batcher(
            "embed", lambda images: list(classifier.embed(torch.stack(images))), self.batch, compute_executor
        )
        self.attention_batcher: MicroBatcher[AttentionQuery, tuple[Floats, Floats]] = self._batcher(
            "attention", self._compute_attention, 1, compute_executor
        )

    def _batcher(
        self, task: str, compute: Callable[[list[Any]], Sequence[Any]], batch: int, compute_executor: Executor
    ) -> MicroBatcher[Any, Any]:
        sizes = self.metrics.batch_sizes.labels(self.name, task)
        return MicroBatcher(compute, batch=batch, executor=compute_executor, on_batch=sizes.observe)

    async def predict(
        self, images: list[Upload], *, client: str = "", with_input: bool = False
    ) -> list[WorkerPrediction]:
        """Classify images; with_input adds each preprocessed image as the model sees it."""
        return await self._each(partial(self._predict, with_input=with_input), images, client)

    async def embed(self, images: list[Upload], *, client: str = "") -> list[schema.ImageEmbedding]:
        return await self._each(self._embed, images, client)

    async def _each(
        self, compute: Callable[[Upload, Turn], Coroutine[Any, Any, T]], images: list[Upload], client: str
    ) -> list[T]:
        """Compute the images of one request, at most a batch at a time, so that a request of 64 leaves room for others.

        Next to three requests of 64 images, a request of one took 4.9 s without this limit and takes 0.9 s with it.
        """
        request = asyncio.Semaphore(self.batch)

        async def compute_one(image: Upload) -> T:
            async with request:
                return await compute(image, Turn(client, request))

        return await _gather([compute_one(image) for image in images])

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
        (maps, rolled_out), probabilities = await _gather(
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
        """Return the decoded image, or the reason why it cannot be decoded."""
        task = replace(self.decode_task, with_png=with_png)
        try:
            decoded = await self.decode_pool.decode(task, upload, client=turn.client, request=turn.request)
        except DecodeError as error:
            self.metrics.images.labels(self.name, "unreadable").inc()
            return str(error)
        self.metrics.images.labels(self.name, "read").inc()
        return decoded

    def warm_up(self) -> None:
        """Run the model once: the first forward pass is slower than all others, and no client should wait for it."""
        config = self.classifier.model.config
        self.classifier.probabilities(torch.zeros(1, config.channels, *config.image))

    def describe(self) -> schema.ModelInfo:
        model, classifier = self.classifier.model, self.classifier
        vit = model if isinstance(model, VisionTransformer) else None
        return schema.ModelInfo(
            name=self.name,
            variant=name_of(model.config),
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


async def _gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order; if one fails or the caller is cancelled, cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _rounded_list(weights: Floats) -> Any:
    """Round to six decimals: in full, float32 in JSON is twice as long and shows nothing more."""
    return weights.astype(np.float64).round(6).tolist()


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
