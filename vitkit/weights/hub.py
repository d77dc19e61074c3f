"""hf:OWNER/NAME → a local folder, through huggingface_hub and its cache."""

from __future__ import annotations

from pathlib import Path

from vitkit.errors import WeightsError
from vitkit.weights.files import WEIGHT_FILES

PREFIX = "hf:"
_RECORDS = ("model.json", "config.json", "preprocessor_config.json")


def download(source: str) -> Path:
    """`hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`; what the cache holds is not fetched again and serves offline."""
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = source.removeprefix(PREFIX).partition("@")
    try:
        for name in _RECORDS:
            _fetch(repository, name, revision)
        for name in WEIGHT_FILES:
            path = _fetch(repository, name, revision)
            if path is not None:
                if name.endswith(".index.json"):
                    _fetch_shards(repository, path, revision)
                return path.parent
    except HFValidationError as error:
        raise WeightsError(f"{source} is no repository name.", expected="hf:OWNER/NAME or hf:OWNER/NAME@REVISION",
                           try_=f"{repository} without hf:, if it is a file or folder") from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(source, error) from error
    except EntryNotFoundError as error:
        raise WeightsError(f"{source}: a file that its index names is missing: {error}") from error
    raise WeightsError(f"{source} holds no weights that I can use.", looked_for=", ".join(WEIGHT_FILES))


def _fetch(repository: str, name: str, revision: str) -> Path | None:
    """The file's place in the cache, or None where the repository has no such file."""
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = f"{PREFIX}{repository}" + (f"@{revision}" if revision else "")
    try:
        return Path(hf_hub_download(repository, name, revision=revision or None))
    except LocalEntryNotFoundError:
        # offline: the cache remembers which files the repository was seen not to have
        if try_to_load_from_cache(repository, name, revision=revision or None) is _CACHED_NO_EXIST:
            return None
        raise
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise WeightsError(f"{where} asks its users to accept conditions first.",
                           try_=f"accept them at huggingface.co/{repository}, then: hf auth login") from error
    except RevisionNotFoundError as error:
        raise WeightsError(f"{where}: the repository is there, that revision is not.") from error
    except RepositoryNotFoundError as error:
        raise WeightsError(f"{where} does not exist on the Hub, or is private.",
                           try_="check the spelling; for a private one: hf auth login") from error
    except HfHubHTTPError as error:
        raise _unreachable(where, error) from error
    except OSError as error:  # connection errors of every kind, and a full disk
        raise _unreachable(where, error) from error


def _fetch_shards(repository: str, index: Path, revision: str) -> None:
    import json

    for name in sorted(set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())):
        _fetch(repository, name, revision)


def _unreachable(source: str, error: Exception) -> WeightsError:
    return WeightsError(f"{source} cannot be fetched, and is not in the local cache.",
                        because=str(error).splitlines()[0] if str(error) else type(error).__name__,
                        try_=["again when the Hub can be reached, or",
                              "a copy on this machine: vitkit.load(PATH), --weights PATH: an .npz of Google's,",
                              "a .safetensors file, or a folder with config.json and model.safetensors"])
