"""Damaged images: each has its own answer or error, the same as on the command line, whatever a decoder raises."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.serve.servers import (
    PROBABILITY_ATOL,
    TIMEOUT,
    image_form,
    make_image,
    make_pool,
    probability_by_index,
    running_server,
    small_classifier,
)
from vitkit.data.decode import decode
from vitkit.data.fingerprint import thumbnail
from vitkit.data.image_info import read_image_info
from vitkit.errors import DecodeError
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.decode_upload import UNSTATED_LIMIT, decode_upload
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.pixel_count import stated_pixels

ROOT = Path(__file__).parents[2]
FUZZER = runpy.run_path(str(ROOT / "benchmarks" / "fuzz_decoders.py"))
GOOD = make_image(1)
pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns about damage that it can read past
# files that ended in another exception than a DecodeError: an offset beyond any file, and a width that is text
FOUND = {
    "offset": b"II+\0" + bytes.fromhex("08000000 ffffffffffffffff"),
    "dimensions": (ROOT / "tests" / "fixtures" / "dimensions.tif").read_bytes(),
}


@pytest.fixture(scope="module")
def classifier() -> vitkit.Classifier:
    return small_classifier()


@pytest.fixture(scope="module")
def pool(classifier: vitkit.Classifier) -> Iterator[ModelPool]:
    with make_pool(small=classifier) as pool:
        yield pool


@pytest.fixture(scope="module")
def address(pool: ModelPool) -> Iterator[str]:
    with running_server(pool) as (address, _, _):
        yield address


def ask(address: str, images: list[bytes], path: str = "predict") -> list[Any]:
    response = httpx.post(f"{address}/v1/{path}", files=image_form(*images), timeout=TIMEOUT)
    assert response.status_code == 200, response.text
    return response.json()["predictions" if path == "predict" else "embeddings"]


@pytest.mark.parametrize("name", FOUND)
def test_files_that_once_failed_a_request_have_an_error_of_their_own(name: str, address: str):
    before, bad, after = ask(address, [GOOD, FOUND[name], make_image(2)])
    assert bad["error"].startswith("damaged")
    assert bad["answers"] == []
    assert before["error"] is None
    assert after["error"] is None
    assert [row["error"] is None for row in ask(address, [GOOD, FOUND[name]], "embed")] == [True, False]


@pytest.mark.parametrize("name", FOUND)
def test_such_files_are_a_decode_error_on_every_path(name: str):
    content = FOUND[name]
    for channels in (1, 3, 4):
        with pytest.raises(DecodeError):
            decode(content, channels=channels)
        with pytest.raises(DecodeError):
            decode_upload(content, channels=channels, pixel_limit=10**6)
        assert read_image_info(content, channels).error
    assert thumbnail(content) is None


UNDERSTATED = (11953, 45173, 51440, 53823, 56373, 80847, 86457)  # found by the fuzzer: more pixels than were counted


@pytest.mark.parametrize("number", UNDERSTATED)
def test_no_image_has_more_pixels_than_the_budget_of_its_request_counts(number: int):
    _, content = FUZZER["damaged"](number, FUZZER["seed_images"]())
    for channels in (1, 3, 4):
        with suppress(DecodeError):
            pixels = decode_upload(content, channels=channels, pixel_limit=10**6)
            assert pixels.shape[2] == channels
            assert pixels.shape[0] * pixels.shape[1] <= (stated_pixels(content) or UNSTATED_LIMIT)


def test_an_image_that_states_fewer_pixels_than_it_has_is_refused_by_name():
    _, content = FUZZER["damaged"](86457, FUZZER["seed_images"]())  # a TIFF whose width is a list of 513 numbers
    assert decode(content, channels=1).shape == (20, 8, 1)
    with pytest.raises(DecodeError, match="more pixels than its header states"):
        decode_upload(content, channels=1, pixel_limit=10**6)
    with pytest.raises(DecodeError, match="over the limit of 100"):
        decode_upload(make_image(1), channels=3, pixel_limit=100)


class Surprise(Exception):
    """An exception that no decoder documents."""


@contextmanager
def raising(error: Exception) -> Iterator[None]:
    """Have Pillow raise the error for every image but one."""
    opened = Image.open

    def open_or_raise(file: Any, *args: Any, **options: Any) -> Image.Image:
        if file.getvalue() != GOOD:
            raise error
        return opened(file, *args, **options)

    with mock.patch.object(Image, "open", open_or_raise):
        yield


@dataclass(frozen=True)
class RaisingTask(DecodeTask):
    error: Exception | None = None

    def __call__(self, content: bytes) -> DecodedImage:
        assert self.error is not None
        with raising(self.error):  # in the decode process
            return super().__call__(content)


@pytest.mark.parametrize(
    "error", [Surprise("no such thing"), MemoryError(), RecursionError(), AssertionError(), SystemError()]
)
def test_whatever_a_decoder_raises_the_image_beside_it_is_answered(
    error: Exception, pool: ModelPool, address: str, classifier: vitkit.Classifier, monkeypatch: pytest.MonkeyPatch
):
    worker, tiff = pool.worker(None), make_image(3, kind="TIFF")
    monkeypatch.setattr(worker, "decode_task", RaisingTask(**vars(worker.decode_task), error=error))
    good, bad = ask(address, [GOOD, tiff])
    assert good["error"] is None
    with raising(error):
        assert bad["error"] == classifier(tiff).error
        assert read_image_info(tiff, 3).error == bad["error"]
        thumbnail(tiff)  # tifffile may read what Pillow does not


def test_answers_for_damaged_images_are_those_of_the_command_line(address: str, classifier: vitkit.Classifier):
    seeds = FUZZER["seed_images"]()
    images = [*seeds.values(), *(FUZZER["damaged"](number, seeds)[1] for number in range(60))]
    answered = 0
    for first in range(0, len(images), 50):
        some = images[first : first + 50]
        for content, ours in zip(some, ask(address, some), strict=True):
            theirs = classifier(content)
            if ours["error"] is None:
                assert theirs.error is None
                for index, probability in probability_by_index(ours).items():
                    np.testing.assert_allclose(probability, theirs.probabilities[index], atol=PROBABILITY_ATOL)
                answered += 1
    assert answered >= len(seeds) - 5  # all but the formats that the server does not accept


def test_fuzzed_images_of_every_format_raise_only_decode_errors():
    totals = FUZZER["fuzz"](iter(range(500)), TIMEOUT)
    assert totals.images == 500
    assert totals.uncaught == []
    assert totals.different == []
    assert 30 < totals.decoded_by_server < 300


@pytest.mark.slow
def test_many_more_fuzzed_images_raise_only_decode_errors():
    totals = FUZZER["fuzz"](iter(range(500, 20_000)), 3_000)
    assert totals.uncaught == []
    assert totals.different == []
