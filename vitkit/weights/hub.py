"""Download hf:OWNER/NAME into the cache of huggingface_hub; where the Hub cannot be reached, say so within seconds."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitkit.errors import WeightsError
from vitkit.weights.files import WEIGHT_FILES, shard_names
from vitkit.weights.licence import CARD

PREFIX = "hf:"
_RECORDS = ("model.json", "config.json", "preprocessor_config.json", "open_clip_config.json", CARD)
_TIMEOUT = "HF_HUB_ETAG_TIMEOUT"  # huggingface_hub's own setting, in seconds
_SECONDS = 3.0  # for the Hub's first answer; huggingface_hub alone would retry an absent network for 25 seconds


def download(source: str) -> Path:
    """Return the local folder of `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`; cached files also serve offline."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    repository, _, revision = source.removeprefix(PREFIX).partition("@")
    obstacle = ""
    try:
        obstacle = _obstacle(repository, revision)
        hub = _Repository(repository, revision, cached_only=bool(obstacle))
        weights = _fetch_weights(hub)
        for name in _RECORDS:
            # offline, the cache may lack a JSON file that the repository never had
            with contextlib.suppress(LocalEntryNotFoundError):
                _fetch(hub, name)
    except HFValidationError as error:
        raise WeightsError(
            f"{source} is not a repository name.",
            expected="hf:OWNER/NAME or hf:OWNER/NAME@REVISION",
            try_=f"{repository} without hf:, if it is a file or folder",
        ) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(repository, revision, obstacle or _first_line(error)) from error
    return weights.parent


@dataclass(frozen=True)
class _Repository:
    """A repository on the Hub at one revision; `cached_only` where the Hub cannot be reached."""

    name: str
    revision: str
    cached_only: bool


def _obstacle(repository: str, revision: str) -> str:
    """Return why the Hub cannot be reached, or "" if it answers a request for the weights, be it with an error.

    The request has a thread of its own, because looking up the Hub's address has no timeout.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    address = hf_hub_url(repository, WEIGHT_FILES[0], revision=revision or None)
    seconds = float(os.environ.get(_TIMEOUT) or _SECONDS)
    obstacle = [f"no answer within {seconds:g} s; {_TIMEOUT}=30 waits longer"]

    def request() -> None:
        try:
            get_hf_file_metadata(address, timeout=seconds)
        except HfHubHTTPError:
            pass
        except Exception as error:  # of sockets, TLS, proxies, HF_HUB_OFFLINE
            obstacle[0] = _first_line(error)
            return
        obstacle[0] = ""

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    return obstacle[0]


def _fetch_weights(hub: _Repository) -> Path:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import LocalEntryNotFoundError

    for name in WEIGHT_FILES:
        try:
            path = _fetch(hub, name)
        except LocalEntryNotFoundError:
            # offline: the weights may be in the cache under another name
            cached = [try_to_load_from_cache(hub.name, other, revision=hub.revision or None) for other in WEIGHT_FILES]
            path = next((Path(file) for file in cached if isinstance(file, str)), None)
            if path is None:
                raise
        if path is not None:
            if path.name.endswith(".index.json"):
                _fetch_shards(hub, path)
            return path
    raise WeightsError(f"{PREFIX}{hub.name} holds no weights that vitkit can read.", looked_for=", ".join(WEIGHT_FILES))


def _fetch(hub: _Repository, name: str) -> Path | None:
    """Return the path of a file in the cache, or None where the repository has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    address = f"{PREFIX}{hub.name}" + (f"@{hub.revision}" if hub.revision else "")
    try:
        with _without_retry_messages():
            return Path(
                hf_hub_download(hub.name, name, revision=hub.revision or None, local_files_only=hub.cached_only)
            )
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise WeightsError(
            f"{address} is gated: its users have to accept its conditions first.",
            try_=f"accept them at huggingface.co/{hub.name}, then: hf auth login",
        ) from error
    except RevisionNotFoundError as error:
        raise WeightsError(f"{address}: the repository has no such revision.") from error
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"{address} does not exist on the Hub, or is private.",
            try_="check the spelling; for a private repository: hf auth login",
        ) from error
    except (HfHubHTTPError, OSError) as error:  # OSError: a connection that broke, or a full disk
        raise _unreachable(hub.name, hub.revision, _first_line(error)) from error


@contextlib.contextmanager
def _without_retry_messages() -> Iterator[None]:
    """Silence the two lines that huggingface_hub prints for each retry; the final error says the same."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fetch_shards(hub: _Repository, index: Path) -> None:
    for name in shard_names(index):
        if _fetch(hub, name) is None:
            raise WeightsError(f"{PREFIX}{hub.name} lacks {name}, which its index lists.")


def _unreachable(repository: str, revision: str, reason: str) -> WeightsError:
    """Return an error with the addresses of the files, to be downloaded elsewhere."""
    from huggingface_hub import hf_hub_url

    source = f"{PREFIX}{repository}" + (f"@{revision}" if revision else "")
    return WeightsError(
        f"{source} cannot be downloaded, and is not in the local cache.",
        because=reason,
        files=[hf_hub_url(repository, name, revision=revision or None) for name in (WEIGHT_FILES[0], "config.json")],
        try_=[
            "again when the Hub can be reached, or",
            "download these files elsewhere into one folder, for vitkit.load(PATH) or --weights PATH, or",
            "ti16, the Ti/16 inside vitkit, which needs no download",
        ],
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
