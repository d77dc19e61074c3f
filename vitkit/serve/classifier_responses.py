"""Responses of the routes for a classifier: predictions, embeddings and attention maps."""

from functools import partial

from fastapi.responses import Response

from vitkit.errors import VitkitError
from vitkit.predict.prediction import Prediction
from vitkit.serve import schema
from vitkit.serve.classifier_worker import ClassifierWorker, prediction_response
from vitkit.serve.json_response import in_thread, json_response
from vitkit.serve.limits import RequestError
from vitkit.serve.upload import Upload

MAX_INLINE_ROWS = 1000  # that the event loop serialises itself; more would hold up all other requests


async def predict(worker: ClassifierWorker, top: int, with_input: bool, uploads: list[Upload], client: str) -> Response:
    predictions = await worker.predict(uploads, client=client, with_input=with_input)

    def serialise() -> Response:
        rows = [
            prediction_response(prediction, top, upload.name)
            for prediction, upload in zip(predictions, uploads, strict=True)
        ]
        content = schema.PredictResponse(model=worker.name, predictions=rows)
        return json_response(content, undecodable=schema.PredictErrorResponse, errors=[row.error for row in rows])

    inline = top * len(predictions) <= MAX_INLINE_ROWS and not with_input
    return serialise() if inline else await in_thread(worker, serialise)


async def embed(worker: ClassifierWorker, uploads: list[Upload], client: str) -> Response:
    rows = await worker.embed(uploads, client=client)
    for row, upload in zip(rows, uploads, strict=True):
        row.image = upload.name
    content = schema.EmbedResponse(model=worker.name, width=max(len(row.vector) for row in rows), embeddings=rows)
    errors = [row.error for row in rows]
    return await in_thread(
        worker, partial(json_response, content, undecodable=schema.EmbedErrorResponse, errors=errors)
    )


async def attend(
    worker: ClassifierWorker, layer: int | None, head: int | None, uploads: list[Upload], client: str
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
    return await in_thread(worker, partial(json_response, content))
