"""Weights behind a URL: a file or a run folder, copied to the local cache and opened there.

Only files that can hold no code are read: safetensors, Google's .npz of plain arrays, JSON and TOML.
"""

import logging
from functools import cache
from pathlib import Path

from vitkit.errors import WeightsError
from vitkit.storage.failures import StorageError
from vitkit.storage.local_copies import local_copy, local_copy_if_any
from vitkit.storage.urls import join, last_part, parent, redacted
from vitkit.weights.files import WEIGHT_FILES, config_name, holds_no_code, shard_names
from vitkit.weights.licence import CARD

_SAFE = (".safetensors", ".npz", ".safetensors.index.json")
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_RECORDS = ("model.json", "config.json", "preprocessor_config.json", "open_clip_config.json", CARD)
_OF_RUNS = ("run.json", "config.toml", "evaluation.json")

log = logging.getLogger("vitkit")


@cache
def download_remote(url: str) -> Path:
    """Return the copy of a weights file, or the folder of the copy of a run folder; a process looks once."""
    name = last_part(url)
    if name.lower().endswith((*_PICKLED, ".onnx", ".pt2")):
        raise _refused(url)
    if not name.lower().endswith(_SAFE):
        return _download_folder(url)
    path = local_copy(url)
    _check(url, path)
    _download_shards(url, path)
    if name in WEIGHT_FILES:  # then the records beside it are read as well
        _download_records(parent(url), config_name(name))
    return path


def downloaded_run(url: str) -> Path | None:
    """Return the copy of a run folder, or of the folder of a weights file; None where there is nothing of that kind."""
    path = download_remote(url)
    return path if path.is_dir() or path.name not in WEIGHT_FILES else path.parent


def _download_folder(url: str) -> Path:
    log.info("looking for weights in %s", redacted(url))
    for name in WEIGHT_FILES:
        if name.endswith(".bin"):
            continue
        path = local_copy_if_any(join(url, name))
        if path is not None:
            _check(join(url, name), path)
            _download_shards(join(url, name), path)
            _download_records(url, config_name(name))
            return path.parent
    raise WeightsError(
        f"{redacted(url)} holds no weights that vitkit reads from a URL.",
        looked_for=", ".join(name for name in WEIGHT_FILES if not name.endswith(".bin")),
        try_="the URL of a .safetensors or .npz file, or of a finished run's folder",
    )


def _check(url: str, path: Path) -> None:
    if not path.name.endswith(".index.json") and not holds_no_code(path):
        raise _refused(url)


def _refused(url: str) -> WeightsError:
    return WeightsError(
        f"{redacted(url)}: from a URL, safetensors and .npz are read, no pickles and no programs.",
        try_="download it, if you trust its author; then vitkit convert writes safetensors",
    )


def _download_records(folder: str, config: str) -> None:
    for name in (*_RECORDS, *_OF_RUNS):
        if name not in ("config.json", "open_clip_config.json") or name == config:
            local_copy_if_any(join(folder, name))


def _download_shards(url: str, path: Path) -> None:
    if path.name.endswith(".index.json"):
        for name in shard_names(path):
            try:
                local_copy(join(parent(url), name))
            except StorageError as error:
                error.add(because=f"{redacted(url)} lists it")
                raise
