"""S3 through s3fs: timeouts, and repeats of each of the requests that a listing or an upload is made of."""

from typing import Any

from vitkit.storage.repeats import count_repeat, most_requests, most_tries, waits

# of these, one action sends many: a listing of a million names has a thousand pages
_OPERATIONS = (
    "ListObjectsV2",
    "PutObject",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
)
_PASSING = ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable")
_FINAL = (501, 507)  # not implemented; full


def open_s3(kind: str, connect: int, timeout: int, options: dict[str, Any]) -> Any:
    from s3fs import S3FileSystem

    class CountingS3FileSystem(S3FileSystem):
        """A filesystem without repeats of its own, which would be neither counted nor bounded by our settings."""

        retries = 1
        vitkit_repeats = True

        async def set_session(self, refresh: bool = False, kwargs: dict[str, Any] = {}) -> Any:  # noqa: B006
            before = self._s3
            client = await super().set_session(refresh=refresh, kwargs=kwargs)
            if client is not before:
                for operation in _OPERATIONS:
                    client.meta.events.register(f"needs-retry.s3.{operation}", _seconds_to_repeat)
            return client

    config = {
        "connect_timeout": connect,
        "read_timeout": timeout,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": max(2 * most_requests(), 10),
    }
    return CountingS3FileSystem(config_kwargs=config, **options)


def _seconds_to_repeat(attempts: int, response: Any, caught_exception: Any, **more: Any) -> float | None:
    """Return after how many seconds botocore sends a request again, None where it need not or must not."""
    if caught_exception is None:
        http, parsed = response
        code = parsed.get("Error", {}).get("Code", "")
        if not (http.status_code >= 500 or http.status_code == 429 or code in _PASSING):
            return None
        if http.status_code in _FINAL or "Full" in code or "Quota" in code:
            return None
    remaining = list(waits(most_tries()))[attempts - 1 :]
    if not remaining:
        return None
    count_repeat()
    return remaining[0]
