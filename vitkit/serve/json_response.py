"""The JSON of a response, made in a thread where it is long."""

import asyncio
from collections.abc import Callable, Sequence

from fastapi.responses import Response
from pydantic import BaseModel

from vitkit.serve.model_worker import ModelWorker


async def in_thread(worker: ModelWorker, serialise: Callable[[], Response]) -> Response:
    """Serialise megabytes of numbers in a thread instead of the event loop."""
    return await asyncio.get_running_loop().run_in_executor(worker.thread_executor, serialise)


def json_response(
    content: BaseModel, *, undecodable: type[BaseModel] | None = None, errors: Sequence[str | None] = (None,)
) -> Response:
    """Return a JSON response, with status 422 if none of the images could be decoded."""
    if undecodable is None or None in errors:
        return Response(content.model_dump_json(exclude_unset=True), media_type="application/json")
    error = f"The image cannot be decoded: {errors[0]}" if len(errors) == 1 else "None of the images can be decoded."
    failure = undecodable.model_validate(
        {**content.model_dump(exclude_unset=True), "error": error, "try": "Send another image."}
    )
    return Response(failure.model_dump_json(by_alias=True, exclude_unset=True), 422, media_type="application/json")
