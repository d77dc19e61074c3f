"""The licence that comes with weights: read where publishers state it, kept with the model, printed when it loads.

It is stated in the front matter of a README.md (license, or license_name where that is "other"), in timm's config.json,
or in our list of public checkpoints. It stays in the provenance of the model, from where model.json and the model card
of a run take it.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.regular_file import open_regular
from vitkit.weights.public import KNOWN

CARD = "README.md"
MOST_BYTES = 1 << 20  # of a card that are read
UNKNOWN = "unknown"  # of our own model cards, where a run states no licence

log = logging.getLogger("vitkit")
_printed: set[tuple[str, str]] = set()  # once for each source: a server or a grid loads weights many times


def card_licence(folder: Path) -> str | None:
    """Return the licence in the front matter of a folder's README.md; None where there is none that can be read."""
    try:
        with open_regular(folder / CARD) as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    if not text.startswith("---"):
        return None
    from huggingface_hub import ModelCard

    try:
        data = ModelCard(text, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # the front matter is anybody's YAML, and a card is no reason not to load the weights
        return None
    return _stated(data)


def config_licence(config: Mapping[str, Any]) -> str | None:
    """Return the licence in timm's config.json, whose pretrained_cfg states it."""
    table = config.get("pretrained_cfg")
    return _stated(table if isinstance(table, Mapping) else {}) or _stated(config)


def known_licence(source: str | os.PathLike[str]) -> str | None:
    """Return the licence of a public checkpoint by its name, hf:OWNER/NAME, whatever its revision."""
    checkpoint = KNOWN.get(os.fspath(source).partition("@")[0])
    return None if checkpoint is None else checkpoint.licence


def print_licence(source: str | os.PathLike[str], provenance: Mapping[str, Any]) -> None:
    """Print the licence of loaded weights in one line, once for each source."""
    licence, whose = provenance.get("license"), ""
    before: Any = provenance
    while not licence and isinstance(before := before.get("before"), Mapping):
        licence, whose = before.get("license"), " of the weights that it was trained from"
    if isinstance(licence, str) and (os.fspath(source), licence) not in _printed:
        _printed.add((os.fspath(source), licence))
        log.warning("%s: licence%s %s", os.fspath(source), whose, licence)


def _stated(table: Mapping[str, Any]) -> str | None:
    name = table.get("license")
    if name in (None, "other") and isinstance(table.get("license_name"), str):
        name = table["license_name"]
    return name if isinstance(name, str) and name not in ("", UNKNOWN) else None
