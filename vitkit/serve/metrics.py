"""Prometheus metrics of a server. Every label comes from a fixed list: no client can make one up."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that did not wait for its response
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    def __init__(self, queue_length: Callable[[], float]):
        """queue_length: returns the number of images accepted and not answered yet."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("vitkit_requests", "requests answered", ("route", "status"), registry=registry)
        self.seconds = Histogram(
            "vitkit_request_seconds",
            "from a request's head to the end of its response",
            ("route",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.images = Counter(
            "vitkit_images", "images decoded or rejected as unreadable", ("model", "outcome"), registry=registry
        )
        self.batch_sizes = Histogram(
            "vitkit_batch_images", "images computed in one batch", ("model", "task"), buckets=_SIZES, registry=registry
        )
        self.rejected = Counter("vitkit_refused", "requests answered with 503", ("reason",), registry=registry)
        Gauge("vitkit_queue_images", "images accepted and not answered yet", registry=registry).set_function(
            queue_length
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
