"""Responses of the routes for a segmentation model: masks in JSON, or the PNG of one mask."""

import base64
from functools import partial

from fastapi.responses import Response

from vitkit.serve.json_response import in_thread, json_response
from vitkit.serve.limits import RequestError
from vitkit.serve.mask_answer import MaskAnswer, MaskEncoding
from vitkit.serve.segment_schema import ClassShare, ImageMask, RunLengths, SegmentErrorResponse, SegmentResponse
from vitkit.serve.segmenter_worker import SegmenterWorker
from vitkit.serve.upload import Upload


async def segment(worker: SegmenterWorker, encoding: MaskEncoding, uploads: list[Upload], client: str) -> Response:
    answers = await worker.segment(uploads, client=client, encoding=encoding)
    return await in_thread(worker, partial(_serialise, worker, uploads, answers))


async def segment_to_png(worker: SegmenterWorker, uploads: list[Upload], client: str) -> Response:
    """Return the mask of one image as a PNG, or the reason why there is none in JSON."""
    if len(uploads) != 1:
        message = f"The request holds {len(uploads)} images; with Accept: image/png it takes one at a time."
        raise RequestError(413, message, "Send a request for each image, or Accept: application/json.")
    (answer,) = await worker.segment(uploads, client=client, encoding="png")
    if answer.png is None:
        return await in_thread(worker, partial(_serialise, worker, uploads, [answer]))
    return Response(answer.png, media_type="image/png")


def _serialise(worker: SegmenterWorker, uploads: list[Upload], answers: list[MaskAnswer]) -> Response:
    rows = [_row(worker, upload, answer) for upload, answer in zip(uploads, answers, strict=True)]
    content = SegmentResponse(model=worker.name, predictions=rows)
    return json_response(content, undecodable=SegmentErrorResponse, errors=[row.error for row in rows])


def _row(worker: SegmenterWorker, upload: Upload, answer: MaskAnswer) -> ImageMask:
    height, width = answer.size
    shares = [
        ClassShare(label=worker.segmenter.classes[number], index=number, share=round(count / (height * width), 6))
        for number, count in answer.pixels
    ]
    for share, rle in zip(shares, answer.rles or (), strict=answer.rles is not None):
        share.rle = RunLengths.model_validate(rle)  # left unset otherwise, so that the response has no such key
    row = ImageMask(
        image=upload.name, error=answer.error, height=height, width=width, windows=answer.windows, classes=shares
    )
    if answer.png is not None:
        row.mask = base64.b64encode(answer.png).decode("ascii")
    return row
