"""Download hf:OWNER/NAME into the cache of huggingface_hub."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from vitkit.errors import WeightsError
from vitkit.weights.files import WEIGHT_FILES, shard_names

PREFIX = "hf:"
_RECORDS = ("model.json", "config.json", "preprocessor_config.json")


def download(source: str) -> Path:
    """Return the local folder of `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`; cached files also serve offline."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    repository, _, revision = source.removeprefix(PREFIX).partition("@")
    try:
        weights = _fetch_weights(repository, revision)
        for name in _RECORDS:
            # offline, the cache may lack a JSON file that the repository never had
            with contextlib.suppress(LocalEntryNotFoundError):
                _fetch(repository, name, revision)
    except HFValidationError as error:
        raise WeightsError(
            f"{source} is not a repository name.",
            expected="hf:OWNER/NAME or hf:OWNER/NAME@REVISION",
            try_=f"{repository} without hf:, if it is a file or folder",
        ) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(source, error) from error
    return weights.parent


def _fetch_weights(repository: str, revision: str) -> Path:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import LocalEntryNotFoundError

    for name in WEIGHT_FILES:
        try:
            path = _fetch(repository, name, revision)
        except LocalEntryNotFoundError:
            # offline: the weights may be in the cache under another name
            cached = [try_to_load_from_cache(repository, other, revision=revision or None) for other in WEIGHT_FILES]
            path = next((Path(file) for file in cached if isinstance(file, str)), None)
            if path is None:
                raise
        if path is not None:
            if path.name.endswith(".index.json"):
                _fetch_shards(repository, path, revision)
            return path
    raise WeightsError(
        f"{PREFIX}{repository} holds no weights that vitkit can read.", looked_for=", ".join(WEIGHT_FILES)
    )


def _fetch(repository: str, name: str, revision: str) -> Path | None:
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

    address = f"{PREFIX}{repository}" + (f"@{revision}" if revision else "")
    try:
        with _without_retry_messages():
            return Path(hf_hub_download(repository, name, revision=revision or None))
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise WeightsError(
            f"{address} is gated: its users have to accept its conditions first.",
            try_=f"accept them at huggingface.co/{repository}, then: hf auth login",
        ) from error
    except RevisionNotFoundError as error:
        raise WeightsError(f"{address}: the repository has no such revision.") from error
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"{address} does not exist on the Hub, or is private.",
            try_="check the spelling; for a private repository: hf auth login",
        ) from error
    except HfHubHTTPError as error:
        raise _unreachable(address, error) from error
    except OSError as error:  # connection errors, or a full disk
        raise _unreachable(address, error) from error


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


def _fetch_shards(repository: str, index: Path, revision: str) -> None:
    for name in shard_names(index):
        if _fetch(repository, name, revision) is None:
            raise WeightsError(f"{PREFIX}{repository} lacks {name}, which its index lists.")


def _unreachable(source: str, error: Exception) -> WeightsError:
    return WeightsError(
        f"{source} cannot be downloaded, and is not in the local cache.",
        because=str(error).splitlines()[0] if str(error) else type(error).__name__,
        try_=[
            "again when the Hub can be reached, or",
            "a local copy, with vitkit.load(PATH) or --weights PATH: an .npz of Google's,",
            "a .safetensors file, or a folder with config.json and model.safetensors",
        ],
    )
