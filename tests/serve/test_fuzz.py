"""Fuzz the server with its own OpenAPI description: it responds to every request as described."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.predict.small_segmenter import small_segmenter
from tests.serve.servers import make_image, make_pool, running_server
from vitkit.predict.segmentation import ImageSegmenter

EXCLUDED_CHECKS = [positive_data_acceptance]  # random text in place of an image is rejected with 422
REAL_IMAGE = base64.b64encode(make_image(1)).decode()


@pytest.fixture(scope="module", params=["classifier", "segmenter"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    models = {"small": ImageSegmenter(small_segmenter())} if request.param == "segmenter" else {}
    with make_pool(**models) as pool, running_server(pool) as (address, _, _):
        yield address


def fuzz(address: str, examples: int) -> dict[int, int]:
    """Return how often each status came back; schemathesis raises if a response is not as described."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    # too many images is 413, which schemathesis does not count as a rejection
    schema.config.checks.negative_data_rejection.expected_statuses = ["400", "404", "405", "413", "415", "422"]
    statuses: dict[int, int] = {}
    for result in schema.get_all_operations():
        operation, mode = result.ok(), schemathesis.GenerationMode
        valid = operation.as_strategy(generation_mode=mode.POSITIVE)
        invalid = operation.as_strategy(generation_mode=mode.NEGATIVE)

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(valid.map(with_real_image) | valid | invalid, st.sampled_from(["*/*", "image/png"]))
        def check(case: schemathesis.Case, accept: str) -> None:
            response = case.call_and_validate(headers={"accept": accept}, excluded_checks=EXCLUDED_CHECKS)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1

        check()
    return statuses


def with_real_image(case: schemathesis.Case) -> schemathesis.Case:
    """Replace random text, which the decoder rejects, by a real image."""
    if case.media_type == "application/json":
        case.body = {"images": [REAL_IMAGE]}
    return case


def test_valid_and_invalid_requests_get_the_described_responses(address: str):
    statuses = fuzz(address, 15)
    assert sum(statuses.values()) >= 40
    assert {200, 404, 422} <= set(statuses)


@pytest.mark.slow
def test_many_more_requests_get_the_described_responses(address: str):
    assert sum(fuzz(address, 500).values()) > 1500
