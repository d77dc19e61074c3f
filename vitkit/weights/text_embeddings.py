"""Zero-shot classification: a file of class names and text embeddings becomes the head of a CLIP or SigLIP tower.

An .npz file without pickled objects, as numpy writes it:

    np.savez("text.npz", names=["cat", "dog"], vectors=embeddings)       # (K,) and (K, R)

`vectors` are the outputs of the text tower, of any length. `logit_scale` and `logit_bias`, one number each, are needed
where the weights do not hold them; `multilabel=True` makes each class a question of its own, as
SigLIP was trained: sigmoid instead of softmax.

Shapes: K classes, R width of the image and text embeddings.
"""

import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.bounded_read import TooLarge, check_npz
from vitkit.errors import WeightsError
from vitkit.model.config import ViTConfig
from vitkit.model.options import MOST
from vitkit.regular_file import open_regular
from vitkit.text import counted, few
from vitkit.weights.formats import LoadedWeights

_ARRAYS = ("names", "vectors", "logit_scale", "logit_bias", "multilabel")
MOST_BYTES = 4 << 30  # of all arrays: a million classes at CLIP's width
LONGEST_NAME = 4096


@dataclass(frozen=True, kw_only=True)
class TextEmbeddings:
    origin: str
    names: tuple[str, ...]
    vectors: NDArray[np.float64]  # (K, R)
    logit_scale: float | None = None
    logit_bias: float | None = None
    multilabel: bool = False


def read_text_embeddings(path: str | os.PathLike[str]) -> TextEmbeddings:
    """Read and check a file; every defect is one error that names it."""
    path = Path(path).expanduser()
    arrays = _read_arrays(path)
    if unknown := sorted(arrays.keys() - set(_ARRAYS)):
        raise WeightsError(f"{path} holds arrays that have no meaning here.", found=few(unknown), known=few(_ARRAYS))
    for name in ("names", "vectors"):
        if name not in arrays:
            raise WeightsError(f"{path} lacks the array {name!r}.", found=few(sorted(arrays)) or "no arrays")
    vectors = _check_vectors(path, arrays["vectors"])
    names = _check_names(path, arrays["names"], len(vectors))
    return TextEmbeddings(
        origin=str(path),
        names=names,
        vectors=vectors,
        logit_scale=_number(path, arrays, "logit_scale"),
        logit_bias=_number(path, arrays, "logit_bias"),
        multilabel=_switch(path, arrays),
    )


def with_text_head(weights: LoadedWeights, texts: TextEmbeddings, origin: str) -> LoadedWeights:
    """Return the weights with a head whose logits are exp(scale) · cosine similarity + bias.

    A head of text embeddings that the weights have already is replaced; any other is refused.
    """
    config, provenance = weights.config, dict(weights.metadata.provenance)
    if not isinstance(config, ViTConfig) or (config.classes and not config.normalise):
        what = f"a classifier of {config.classes} classes" if config.classes else "a ResNet"
        raise WeightsError(f"{origin} is {what}; text embeddings need the image tower of a CLIP or SigLIP model.")
    width = config.representation or config.projection or config.pooled_width
    if texts.vectors.shape[1] != width:
        raise WeightsError(
            f"{texts.origin} has vectors of {texts.vectors.shape[1]} numbers, but images of {origin} have {width}.",
            try_="embeddings of the text tower that belongs to these weights",
        )
    scale, bias = (_logit_number(texts, provenance, origin, name) for name in ("logit_scale", "logit_bias"))
    if scale is None:
        raise WeightsError(
            f"neither {origin} nor {texts.origin} holds logit_scale, which makes similarities probabilities.",
            try_="add it to the file: np.savez(…, logit_scale=math.log(100)) is that of OpenAI's CLIP models",
        )
    if scale > math.log(1e6):
        raise WeightsError(f"logit_scale = {scale:g} would multiply similarities by {math.exp(min(scale, 700)):.3g}.")
    directions = texts.vectors / np.linalg.norm(texts.vectors, axis=1, keepdims=True)
    head = {
        "head.logits.weight": torch.from_numpy(directions * math.exp(scale)).float(),
        "head.logits.bias": torch.full((len(texts.names),), bias or 0.0),
    }
    numbers = {"logit_scale": scale, **({} if bias is None else {"logit_bias": bias})}
    provenance = {**provenance, **numbers, "multilabel": texts.multilabel, "text_embeddings": Path(texts.origin).name}
    return LoadedWeights(
        config=replace(config, classes=len(texts.names), normalise=True),
        state={**weights.state, **head},
        metadata=replace(weights.metadata, labels=texts.names, provenance=provenance),
    )


def _logit_number(texts: TextEmbeddings, provenance: dict[str, Any], origin: str, name: str) -> float | None:
    """Return the scale or the bias of the logits: of the weights or of the file, which must not disagree."""
    of_file, of_weights = getattr(texts, name), provenance.get(name)
    if of_file is not None and of_weights is not None and not math.isclose(of_file, of_weights, rel_tol=1e-5):
        raise WeightsError(
            f"{texts.origin} has {name} {of_file:g}, and {origin} has {of_weights:g}.", try_=f"leave {name} out"
        )
    number: float | None = of_weights if of_weights is not None else of_file
    return number


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open_regular(path) as file:
            start: bytes = file.read(2)
        if start != b"PK":
            raise ValueError("no zip archive")
        headers = check_npz(path)
        if (size := sum(header.nbytes for header in headers.values())) > MOST_BYTES:
            raise TooLarge(f"{size:,} bytes of arrays, over the limit of {MOST_BYTES:,}")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise WeightsError(f"{path} does not exist.") from error
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror or error}.") from error
    except TooLarge as error:
        raise WeightsError(f"{path}: {error}.") from error
    except Exception as error:  # damaged bytes raise errors of zlib, struct, numpy or the tokeniser
        raise WeightsError(
            f"{path} is not an npz file of plain arrays: {error}",
            expected="np.savez('text.npz', names=[…], vectors=…); pickled objects are never loaded",
        ) from error


def _check_vectors(path: Path, vectors: NDArray[Any]) -> NDArray[np.float64]:
    if vectors.dtype.kind != "f" or vectors.ndim != 2 or 0 in vectors.shape:
        raise WeightsError(
            f"{path} has vectors in the shape {vectors.shape} of {vectors.dtype}, where one row of floats for each "
            "name is expected."
        )
    if len(vectors) > MOST["classes"]:
        raise WeightsError(f"{path} has {len(vectors):,} vectors, more than a model can have classes.")
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    for rows, defect in ((~np.isfinite(lengths), "not finite"), (lengths == 0, "zero, without a direction")):
        if rows.any():
            indices = np.flatnonzero(rows)
            raise WeightsError(
                f"{path} has vectors in {counted(len(indices), 'row')} that are {defect}.",
                rows=few([*map(str, indices)]),
            )
    return vectors


def _check_names(path: Path, names: NDArray[Any], vectors: int) -> tuple[str, ...]:
    if names.dtype.kind not in "US" or names.ndim != 1:
        raise WeightsError(
            f"{path} has names in the shape {names.shape} of {names.dtype}, where a list of texts is expected."
        )
    if len(names) != vectors:
        raise WeightsError(f"{path} has {len(names)} names for {vectors} vectors.")
    try:
        texts = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
    except UnicodeDecodeError as error:
        raise WeightsError(f"{path} has names that are not UTF-8: {error.reason}.") from error
    if any(not text.strip() or len(text) > LONGEST_NAME for text in texts):
        raise WeightsError(f"{path} has a name that is empty or longer than {LONGEST_NAME:,} characters.")
    if twice := [name for name, number in Counter(texts).items() if number > 1]:
        raise WeightsError(
            f"{path} has {counted(len(twice), 'name')} more than once.",
            found=few(list(map(repr, twice))),
            try_="one vector for each class; the mean of the unit vectors of several prompts is the usual one",
        )
    return texts


def _number(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> float | None:
    if name not in arrays:
        return None
    array = arrays[name]
    value = float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "fiu" else math.nan
    if not math.isfinite(value):
        raise WeightsError(f"{path} has {name} in the shape {array.shape} of {array.dtype}, not one finite number.")
    return value


def _switch(path: Path, arrays: dict[str, NDArray[Any]]) -> bool:
    array = arrays.get("multilabel", np.array(False))
    if array.size != 1 or array.dtype.kind != "b":
        raise WeightsError(f"{path} has multilabel in the shape {array.shape} of {array.dtype}, not True or False.")
    return bool(array)
