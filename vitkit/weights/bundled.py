"""The weights inside the package, by name: `ti16`, a public Ti/16, so that everything works without a download.

A name wins over a local file or folder of that name; ./ti16 is the local one. This file does not import torch.
"""

import logging
import os
from pathlib import Path

from vitkit.storage.urls import is_url

log = logging.getLogger("vitkit")

TI16 = "ti16"
BUNDLED = {TI16: Path(__file__).parent / "ti16"}


def bundled_folder(source: str | os.PathLike[str]) -> Path | None:
    """Return the folder of weights inside the package, or None where `source` is not the name of such weights."""
    folder = BUNDLED.get(source) if isinstance(source, str) else None
    if folder is not None and os.path.exists(source):
        log.warning("%s: the weights inside the package; write ./%s for the local file or folder", source, source)
    return folder


def local_path(source: str) -> Path | None:
    """Return the path that names weights; None for hf:OWNER/NAME, URLs and the names of weights inside the package."""
    if source.startswith("hf:") or is_url(source) or source in BUNDLED:
        return None
    return Path(source).expanduser()
