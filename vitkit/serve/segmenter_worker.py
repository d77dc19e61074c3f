"""The worker of a segmentation model: masks of uploaded images, at their own size.

Images, and the windows of large ones, are computed in micro-batches; then each image's scores are upsampled to its mask
in a thread (`vitkit.serve.mask_threads`), and encoded there.

Shapes: C channels, K classes, N windows, h' x w' grid of scores.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from vitkit.compute.batch_size import inference_batch
from vitkit.compute.segment import PredictedMask
from vitkit.compute.upsample import OnTile, Size, Span
from vitkit.compute.windows import is_large, window_grid
from vitkit.devices import describe_device
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.serve import schema
from vitkit.serve.batching import MicroBatcher
from vitkit.serve.decode_task import DecodedImage
from vitkit.serve.decode_upload import UNSTATED_LIMIT
from vitkit.serve.fair_slots import FairSlots
from vitkit.serve.mask_answer import MaskAnswer, MaskEncoding, answer_of
from vitkit.serve.mask_threads import LargeMask
from vitkit.serve.model_worker import CPU_BATCH, GPU_BATCH, NOT_FINITE, ModelWorker, Turn, WorkerResources, gather
from vitkit.serve.segment_task import SegmentTask
from vitkit.serve.upload import Upload

LARGE_SCORES = 1 << 25  # scores to upsample, beyond which an image is large: about 0.3 s on a core


class SegmenterWorker(ModelWorker):
    def __init__(self, name: str, segmenter: ImageSegmenter, batch: int | None, resources: WorkerResources):
        self.segmenter, self.compute = segmenter, segmenter.compute
        config, limits = segmenter.model.config, resources.limits
        task = SegmentTask(
            segmenter.transform,
            config.channels,
            limits.pixels,
            trained_size=self.compute.trained_size,
            window_limit=limits.windows,
        )
        largest = CPU_BATCH if segmenter.device.type == "cpu" else GPU_BATCH
        suited = min(inference_batch(segmenter.model, segmenter.device), largest)
        super().__init__(name, segmenter.model, batch or suited, task, resources)
        self.score_batcher: MicroBatcher[Tensor, Tensor] = self.batcher(
            "segment", lambda images: list(self.compute.scores(torch.stack(images)))
        )
        self.mask_threads = resources.mask_threads
        self.scored = FairSlots(2 * self.batch)  # images whose scores wait for the thread: those take megabytes each

    async def segment(
        self, images: list[Upload], *, client: str = "", encoding: MaskEncoding = "png"
    ) -> list[MaskAnswer]:
        return await self.each(partial(self._segment, encoding=encoding), images, client)

    async def _segment(self, upload: Upload, turn: Turn, encoding: MaskEncoding) -> MaskAnswer:
        if not self._is_large(upload.pixels or UNSTATED_LIMIT):
            return await self._segment_small(upload, turn, encoding)
        turns = self.mask_threads.large_turns
        async with turns.hold(client=turn.client, request=turn.request, cost=upload.pixels or UNSTATED_LIMIT):
            return await self._segment_large(upload, turn, encoding)

    def _is_large(self, pixels: int) -> bool:
        """Return whether an image of at most so many pixels may be cut into windows, or takes long to upsample."""
        return is_large((pixels, 1), self.compute.trained_size) or self._score_count(pixels) > LARGE_SCORES

    def _score_count(self, pixels: int) -> int:
        return pixels * self.segmenter.model.config.classes

    async def _segment_small(self, upload: Upload, turn: Turn, encoding: MaskEncoding) -> MaskAnswer:
        decoded = await self.decode(self.decode_task, upload, turn)
        if isinstance(decoded, str):
            return MaskAnswer(error=decoded)
        async with self.scored.hold(client=turn.client, request=turn.request):
            scores = await self.score_batcher.submit(decoded.image, turn.request, turn.client)
            work = partial(self._mask_of_scores, scores, decoded.size, encoding)
            cost = self._score_count(decoded.size[0] * decoded.size[1])
            return await self.mask_threads.small.run(work, client=turn.client, cost=cost)

    async def _segment_large(self, upload: Upload, turn: Turn, encoding: MaskEncoding) -> MaskAnswer:
        decoded = await self.decode(self.decode_task, upload, turn)
        if isinstance(decoded, str):
            return MaskAnswer(error=decoded)
        if is_large(decoded.size, self.compute.trained_size):
            return await self.mask_threads.run_large(partial(self._mask_of_windows, decoded, turn, encoding))
        scores = await self.score_batcher.submit(decoded.image, turn.request, turn.client)
        return await self.mask_threads.run_large(
            lambda job: self._mask_of_scores(scores, decoded.size, encoding, job.check)
        )

    def _mask_of_scores(
        self, scores: Tensor, size: Size, encoding: MaskEncoding, on_tile: OnTile | None = None
    ) -> MaskAnswer:
        if not bool(torch.isfinite(scores).all()):
            return MaskAnswer(error=NOT_FINITE)
        return self._answer(self.compute.of_scores(scores, size, on_tile), encoding)

    def _mask_of_windows(self, decoded: DecodedImage, turn: Turn, encoding: MaskEncoding, job: LargeMask) -> MaskAnswer:
        """Return the mask of an image in windows; its thread waits for the scores of one row of them after another."""
        assert self.compute.trained_size is not None
        row_numbers = {
            row: number for number, row in enumerate(window_grid(decoded.size, self.compute.trained_size)[0])
        }

        def band(rows: Span, columns: Sequence[Span]) -> list[Tensor]:
            first = row_numbers[rows] * len(columns)
            windows = decoded.image[first : first + len(columns)]
            submitted = [self.score_batcher.submit(window, turn.request, turn.client) for window in windows]
            scores = job.wait_for(gather(submitted))
            if not all(bool(torch.isfinite(one).all()) for one in scores):
                raise _NotFinite
            return scores

        try:
            return self._answer(self.compute.of_windows(decoded.size, band, job.check), encoding)
        except _NotFinite:
            return MaskAnswer(error=NOT_FINITE)

    def _answer(self, predicted: PredictedMask, encoding: MaskEncoding) -> MaskAnswer:
        return answer_of(predicted, self.segmenter.palette, encoding)

    def warm_up(self) -> None:
        config = self.model.config
        self.compute.scores(torch.zeros(1, config.channels, *config.image))

    def describe(self) -> schema.ModelInfo:
        segmenter, config = self.segmenter, self.segmenter.model.config
        return schema.ModelInfo(
            name=self.name,
            task="segment",
            variant=self.variant,
            image=config.image,
            classes=list(segmenter.classes),
            palette=list(segmenter.palette),
            window=self.compute.trained_size,
            multilabel=False,
            thresholds=None,
            views=[],
            heads=0,
            grid=config.grid,
            preprocessing=segmenter.transform.describe(),
            computes=f"exact: float32 on {describe_device(segmenter.device, torch.get_num_threads())}",
        )


class _NotFinite(Exception):
    """The scores of a window are not finite."""
