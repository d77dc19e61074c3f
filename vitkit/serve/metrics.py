"""What a server did, for Prometheus. Every label comes from a list of our own: no client can make one up."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GONE = 499  # nginx's number for a client that did not wait for its answer
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Meters:
    def __init__(self, waiting: Callable[[], float]):
        """waiting: pictures taken in and not answered yet, asked when somebody looks."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("vitkit_requests", "requests answered", ("route", "status"), registry=registry)
        self.seconds = Histogram(
            "vitkit_request_seconds",
            "from a request's head to the end of its answer",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.pictures = Counter(
            "vitkit_pictures", "pictures answered or found unreadable", ("model", "outcome"), registry=registry
        )
        self.batches = Histogram(
            "vitkit_batch_pictures", "pictures computed together", ("model", "task"), buckets=_SIZES, registry=registry
        )
        self.refused = Counter("vitkit_refused", "requests answered with 503", ("reason",), registry=registry)
        Gauge("vitkit_queue_pictures", "pictures taken in and not answered yet", registry=registry).set_function(
            waiting
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
