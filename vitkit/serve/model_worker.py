"""One model behind the server: pictures as bytes → answers, read by the readers' threads, computed in batches.

Shapes: B pictures, C channels, K classes, D width, V views, H heads, h x w patch grid.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.inspect.applies import transformer
from vitkit.inspect.attention import attention_maps, pick_heads, views
from vitkit.inspect.rollout import rollout
from vitkit.model.variants import name_of
from vitkit.model.vit import VisionTransformer
from vitkit.predict.classifier import Classifier
from vitkit.predict.prediction import Prediction
from vitkit.serve import image_formats, schema
from vitkit.serve.batching import Batcher
from vitkit.serve.limits import Limits
from vitkit.serve.metrics import Meters

T = TypeVar("T")
Floats = NDArray[np.float32]
CPU_BATCH = 16  # Ti/16 on one core: 40 ms a picture alone, 27 in 8 or 16, 33 in 64, and all 64 wait for the last


@dataclass(frozen=True)
class Looked:
    """A picture, and which part of the attention is wanted."""

    image: Tensor  # (C, height, width)
    layers: list[int] | None
    heads: list[int]


@dataclass(frozen=True)
class Predicted:
    prediction: Prediction
    seen: str | None = None  # the picture as the model sees it, as a data: URL of a PNG, where it was asked for


class Served:
    def __init__(
        self,
        name: str,
        classifier: Classifier,
        *,
        batch: int | None,
        computer: Executor,
        readers: Executor,
        limits: Limits,
        meters: Meters,
    ):
        self.name, self.classifier, self.limits, self.meters, self.readers = name, classifier, limits, meters, readers
        self.batch = batch or min(classifier.engine.batch, CPU_BATCH if classifier.device.type == "cpu" else 10**9)
        # one thread computes for all models and tasks: they take turns, and share no cores badly
        self.predicting = self._batcher(
            "predict", lambda images: list(classifier.probabilities(torch.stack(images))), self.batch, computer
        )
        self.embedding = self._batcher(
            "embed", lambda images: list(classifier.embed(torch.stack(images))), self.batch, computer
        )
        self.attending: Batcher[Looked, tuple[Floats, Floats]] = self._batcher("attention", self._look, 1, computer)

    def _batcher(
        self, task: str, compute: Callable[[list[Any]], Sequence[Any]], batch: int, computer: Executor
    ) -> Batcher[Any, Any]:
        sizes = self.meters.batches.labels(self.name, task)
        return Batcher(compute, batch=batch, executor=computer, watch=sizes.observe)

    async def predict(self, pictures: list[bytes], *, seen: bool = False) -> list[Predicted]:
        """seen: with each picture as the model sees it."""
        return await self._in_turn(partial(self._predict, seen=seen), pictures)

    async def embed(self, pictures: list[bytes]) -> list[schema.Embedding]:
        return await self._in_turn(self._embed, pictures)

    async def _in_turn(self, ask: Callable[[bytes, object], Coroutine[Any, Any, T]], pictures: list[bytes]) -> list[T]:
        """A request of 64 leaves room for one of 1: to the batcher it is one asker among others, and it has no more
        pictures under way than are computed together. Beside three of 64, one of 1 took 4.9 s; so it takes 0.9."""
        request = asyncio.Semaphore(self.batch)

        async def one(picture: bytes) -> T:
            async with request:
                return await ask(picture, request)

        return await _all([one(picture) for picture in pictures])

    async def _predict(self, picture: bytes, request: object, seen: bool) -> Predicted:
        read = await self._read(picture, self._frame_and_png if seen else self._see)
        if isinstance(read, str):
            return Predicted(Prediction(self.classifier.labels, error=read))
        image, png = read if isinstance(read, tuple) else (read, None)
        return Predicted(self._prediction(await self.predicting.ask(image, request)), png)

    def _prediction(self, probabilities: Floats) -> Prediction:
        if not np.isfinite(probabilities).all():
            return Prediction(self.classifier.labels, error="the model's answer to it is no number")
        return Prediction(self.classifier.labels, probabilities)

    async def _embed(self, picture: bytes, request: object) -> schema.Embedding:
        image = await self._read(picture, self._see)
        if isinstance(image, str):
            return schema.Embedding(error=image, vector=[])
        vector: Floats = await self.embedding.ask(image, request)
        if not np.isfinite(vector).all():
            return schema.Embedding(error="the model's answer to it is no number", vector=[])
        return schema.Embedding(error=None, vector=vector.tolist())

    async def attend(self, picture: bytes, *, layer: int | None, head: int | None) -> schema.Attention | Prediction:
        """What the heads look at; of a picture that cannot be read, the prediction that says so."""
        vit = transformer(self.classifier.model, "attention")
        layers, heads = None if layer is None else [layer], pick_heads(vit, None if head is None else [head])
        shown = [view.label for view in views(vit, layers)]
        read = await self._read(picture, self._frame)
        if isinstance(read, str):
            return Prediction(self.classifier.labels, error=read)
        framed, image = read
        request = object()
        (maps, rolled), probabilities = await _all(
            [self.attending.ask(Looked(image, layers, heads), request), self.predicting.ask(image, request)]
        )
        finding = partial(
            self._tell, vit.config.grid, shown, heads, maps, rolled, framed, self._prediction(probabilities)
        )
        return await asyncio.get_running_loop().run_in_executor(self.readers, finding)

    def _look(self, asked: Sequence[Looked]) -> list[tuple[Floats, Floats]]:
        model = self.classifier.model
        return [
            (
                attention_maps(model, each.image[None], layers=each.layers, heads=each.heads)[0],  # (V, H, h, w)
                rollout(model, each.image[None])[0],
            )
            for each in asked
        ]  # (h, w)

    def _tell(
        self,
        grid: tuple[int, int],
        shown: list[str],
        heads: list[int],
        maps: Floats,
        rolled: Floats,
        framed: Tensor,
        prediction: Prediction,
    ) -> schema.Attention:
        return schema.Attention(
            model=self.name,
            grid=grid,
            views=shown,
            heads=heads,
            maps=_short(maps),
            rollout=_short(rolled),
            seen=_png(framed),
            prediction=told(Predicted(prediction), 5),
        )

    async def _read(self, picture: bytes, how: Callable[[bytes], T]) -> T | str:
        """What the model is shown, or why it cannot be."""
        try:
            read = await asyncio.get_running_loop().run_in_executor(self.readers, how, picture)
        except (VitkitError, MemoryError) as error:
            self.meters.pictures.labels(self.name, "unreadable").inc()
            return str(error) or "too large for this machine's memory"
        self.meters.pictures.labels(self.name, "read").inc()
        return read

    def _see(self, picture: bytes) -> Tensor:
        return self.classifier.exact(self._pixels(picture))

    def _frame(self, picture: bytes) -> tuple[Tensor, Tensor]:
        """To look at, and for the model."""
        framed = self.classifier.exact.frame(self._pixels(picture))
        return framed, self.classifier.exact.normalise(framed)

    def _frame_and_png(self, picture: bytes) -> tuple[Tensor, str]:
        framed, image = self._frame(picture)
        return image, _png(framed)

    def _pixels(self, picture: bytes) -> NDArray[Any]:
        return image_formats.pixels_of(
            picture, channels=self.classifier.model.config.channels, pixel_limit=self.limits.pixels
        )

    def warm(self) -> None:
        """The first pass through a model is slower than all others: not with somebody waiting for it."""
        config = self.classifier.model.config
        self.classifier.probabilities(torch.zeros(1, config.channels, *config.image))

    def describe(self) -> schema.Model:
        model, classifier = self.classifier.model, self.classifier
        vit = model if isinstance(model, VisionTransformer) else None
        return schema.Model(
            name=self.name,
            variant=name_of(model.config),
            image=model.config.image,
            classes=list(classifier.labels),
            multilabel=classifier.multilabel,
            views=[view.label for view in views(vit)] if vit else [],
            heads=vit.config.heads if vit else 0,
            grid=vit.config.grid if vit else None,
            preprocessing=classifier.exact.describe(),
            computes=classifier.engine.words,
        )


def told(predicted: Predicted, top: int) -> schema.Prediction:
    prediction = predicted.prediction
    answers = [] if prediction.error is not None else prediction.top(min(top, len(prediction.labels)))
    content = schema.Prediction(
        error=prediction.error,
        answers=[
            schema.Answer(label=answer.label, probability=answer.probability, index=answer.index) for answer in answers
        ],
    )
    if predicted.seen is not None:
        content.seen = predicted.seen  # who did not ask for it does not find it in the answer
    return content


async def _all(asked: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; where one fails, or nobody waits any longer, the others are called off."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _short(weights: Floats) -> Any:
    """Six decimals: in full, float32 in JSON is twice as long and shows nothing more."""
    return weights.astype(np.float64).round(6).tolist()


def _png(framed: Tensor) -> str:
    """(C, height, width) on 0 to 255 → a data: URL; of more than three channels the first three."""
    pixels = framed.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0])
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
