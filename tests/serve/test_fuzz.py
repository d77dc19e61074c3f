"""The server's own OpenAPI description, fuzzed: whatever is sent, it answers as it said it would."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.serve.small import in_process, picture, service

NOT_MEANT = [positive_data_acceptance]  # text that might be a picture, but is none, is refused with 422
REAL = base64.b64encode(picture(1)).decode()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with service() as made, in_process(made) as (address, _, _):
        yield address


def fuzz(address: str, examples: int) -> dict[int, int]:
    """How often which status came back; schemathesis raises what an answer got wrong."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    # too many pictures is 413, a refusal that schemathesis does not count as one
    schema.config.checks.negative_data_rejection.expected_statuses = ["400", "404", "405", "413", "415", "422"]
    statuses: dict[int, int] = {}
    for result in schema.get_all_operations():
        operation, mode = result.ok(), schemathesis.GenerationMode
        right = operation.as_strategy(generation_mode=mode.POSITIVE)
        wrong = operation.as_strategy(generation_mode=mode.NEGATIVE)

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(right.map(with_picture) | right | wrong)
        def check(case: schemathesis.Case) -> None:
            response = case.call_and_validate(excluded_checks=NOT_MEANT)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1

        check()
    return statuses


def with_picture(case: schemathesis.Case) -> schemathesis.Case:
    """Random text is never a picture; this gets beyond the decoder."""
    if case.media_type == "application/json":
        case.body = {"pictures": [REAL]}
    return case


def test_what_the_description_allows_and_what_it_does_not_is_answered_as_described(address: str):
    statuses = fuzz(address, 15)
    assert sum(statuses.values()) >= 40
    assert {200, 404, 422} <= set(statuses)


@pytest.mark.slow
def test_many_more_of_it(address: str):
    assert sum(fuzz(address, 500).values()) > 1500
