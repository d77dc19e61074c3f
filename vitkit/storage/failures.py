"""Tell what a failed request means: an object is missing or denied, a store cannot be used, or a later try may work.

Libraries raise what they like; the code or the status of the answer is found along the chain of causes.
"""

from collections.abc import Iterator
from enum import Enum

from vitkit.errors import ConfigError
from vitkit.storage.urls import WEB, redacted, scheme, scrub


class StorageError(ConfigError):
    """A store that cannot be used, or does not answer: the work stops, and continues where it was."""


class ObjectError(OSError):
    """One object that cannot be read; `strerror` is the reason."""

    def __init__(self, reason: str, url: str):
        super().__init__(None, reason, redacted(url))


class MissingObject(ObjectError):
    """An object that does not exist."""

    def __init__(self, url: str):
        super().__init__("there is no such object", url)


class DeniedObject(ObjectError):
    """An object that the credentials give no access to."""

    def __init__(self, url: str, code: str):
        super().__init__(f"access is denied ({code})", url)


class TruncatedAnswer(OSError):
    """An answer with fewer bytes than the object has."""


class Passing(Enum):
    """Marks a failure that a later try may not meet."""

    FAILURE = "failure"


_WRONG_CREDENTIALS = (
    "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken ExpiredToken TokenRefreshRequired InvalidSecurity "
    "RequestTimeTooSkewed 401"
).split()
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "ProfileNotFound")
_FULL = ("XMinioStorageFull", "QuotaExceeded", "QuotaExceededException", "InsufficientStorage", "507")
_MOVED = ("PermanentRedirect", "AuthorizationHeaderMalformed", "301", "IllegalLocationConstraintException")
PAST_THE_END = ("InvalidRange", "416")
_MISSING = ("NoSuchKey", "NoSuchVersion", "404", "410")
_DENIED = ("AccessDenied", "AllAccessDisabled", "Forbidden", "403")
_PASSING = (
    "SlowDown",
    "ConditionalRequestConflict",
    "RequestTimeout",
    "InternalError",
    "ServiceUnavailable",
    "OperationAborted",
    "408",
    "425",
    "429",
)
_MISTAKES = (TypeError, AttributeError, NameError, LookupError, AssertionError, MemoryError)  # ours, not the store's

PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp", "gs": "gcsfs", "gcs": "gcsfs"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket, FSSPEC_S3_ANON=true",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS; for a public bucket, FSSPEC_GS_TOKEN=anon",
    "hf": "HF_TOKEN, or hf auth login",
}


def meaning(error: BaseException, url: str) -> Exception | Passing:
    """Return the error to raise for a failed request, or Passing.FAILURE where another try may succeed."""
    code, names = code_of(error), [type(one).__name__ for one in _chain(error)]
    if isinstance(error, ImportError):
        return missing_package(url, error)
    if isinstance(error, _MISTAKES) and not code:
        return error if isinstance(error, Exception) else StorageError(str(error))
    shown, credentials = redacted(url), _CREDENTIALS.get(scheme(url).replace("s3a", "s3").replace("gcs", "gs"), "")
    advice = {"try_": credentials} if credentials else {}
    if set(names).intersection(_NO_CREDENTIALS):
        return StorageError(f"{shown}: there are no credentials for this store.", **advice)
    if code == "NoSuchBucket":
        return StorageError(f"{shown}: there is no such bucket.", try_="the spelling, and the endpoint of the store")
    if code in _FULL:
        return StorageError(
            f"{shown}: the store is full ({code}).", try_="make room there, then the same command again"
        )
    if code in _WRONG_CREDENTIALS:
        return StorageError(f"{shown}: the credentials are wrong or have expired ({code}).", **advice)
    if code in _MOVED:
        return StorageError(f"{shown}: the bucket is in another region ({code}).", try_="AWS_REGION=…")
    if code in _DENIED or (isinstance(error, PermissionError) and not code):
        return DeniedObject(url, code or "by the store")
    if code in _MISSING or (isinstance(error, FileNotFoundError) and not code and scheme(url) not in WEB):
        return MissingObject(url)
    if code in _PASSING or (code.isdecimal() and int(code) >= 500 and code != "501") or not code:
        if isinstance(error, IsADirectoryError | NotADirectoryError | ValueError | NotImplementedError):
            return ObjectError(reason(error), url)
        return Passing.FAILURE
    return ObjectError(reason(error), url)


def gave_up(error: BaseException, url: str, tries: int) -> StorageError:
    """Return the error of a request whose last try has failed, too."""
    return StorageError(
        f"{redacted(url)}: the store does not answer as it should, after {tries} tries.",
        because=reason(error),
        try_="the same command again once it does; VITKIT_REMOTE_TRIES and VITKIT_REMOTE_TIMEOUT wait longer",
    )


def missing_package(url: str, error: ImportError) -> StorageError:
    kind = scheme(url)
    package = PACKAGES.get(kind)
    remedy = "pip install gcsfs" if package == "gcsfs" else 'pip install "vitkit[remote]"'
    if package is None and error.name != "fsspec":  # fsspec's own text names the package
        return StorageError(f"{kind}:// needs a package that is not installed: {reason(error)}")
    return StorageError(f"{kind}:// needs {package or 'fsspec'}, which is not installed.", try_=remedy)


def reason(error: BaseException) -> str:
    """Return what went wrong in one line without credentials; a timeout often has no text of its own."""
    wrapped = isinstance(error, FileNotFoundError) and error.__cause__ is not None  # whatever fsspec's HTTP met
    for one in _chain(error.__cause__ if wrapped and error.__cause__ is not None else error):
        if text := next(iter(str(one).splitlines()), ""):
            return scrub(text)
    return "no answer in time" if "Timeout" in type(error).__name__ else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def code_of(error: BaseException) -> str:
    """Return the code of the answer, "NoSuchKey", or its status, "404"; "" where there was no answer."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, dict):  # botocore's
            code = str(response.get("Error", {}).get("Code", ""))
            status = str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
            return status if status == "507" or code in ("", "Unknown") else code
        # aiohttp's, requests' and httpx's, gcsfs's; others have a `code` for connections that broke
        for holder, name in ((one, "status"), (response, "status_code"), (one, "code")):
            number = getattr(holder, name, None)
            if name == "code" and type(one).__name__ != "HttpError":
                continue
            if isinstance(number, int | str) and str(number).isdecimal():
                return str(int(number))
    return ""
