"""The learned input layers: position embeddings (Fig. 7 centre, Fig. 10) and patch embedding filters (Fig. 7 left).

Shapes: h x w patch grid, N = h·w, D width, C channels, P side of a filter, n components.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.inspect.inference import DoesNotApply, require_tokens
from vitkit.model.build import Model, transformer_of
from vitkit.model.igpt import ImageGPT
from vitkit.model.options import INSIDE_ATTENTION
from vitkit.model.resnet import ConvBody, ResNet, standardise

COMPONENTS = 28  # as in Fig. 7


@dataclass(frozen=True)
class Filters:
    components: NDArray[np.float32]  # (n, P, P, C), of norm 1, the strongest first
    shares: NDArray[np.float32]  # (n,) of the variance among all filters
    layer: str  # "patch embedding" or "root convolution"


@torch.no_grad()
def position_similarity(model: Model, layer: int = 0) -> NDArray[np.float32]:
    """Return the cosine between the position embedding of each patch and those of all patches: (h, w, h, w).

    `layer` chooses among the tables of a model that adds position embeddings before every layer.
    """
    if isinstance(model, ResNet) and model.config.body.attention:
        raise DoesNotApply(
            "position similarity: the positions of this ResNet belong to offsets between pixels, not to pixels; there "
            "is no table whose rows could be compared."
        )
    tokens = require_tokens(model, "position similarity")
    if isinstance(tokens, ImageGPT):
        if layer:
            raise ConfigError(f"layer {layer} has no position embeddings of its own", tables="1")
        return _cosines(tokens.embedding.positions, tokens.config.grid)
    vit = transformer_of(tokens)
    assert vit is not None  # what is left of models with tokens
    config, tables = vit.config, vit.encoder.positions
    if config.positions == "none":
        raise DoesNotApply("position similarity: this model has no position embeddings.")
    if config.positions in INSIDE_ATTENTION:
        raise DoesNotApply(
            f"position similarity: {config.positions} positions belong to pairs of patches, not to patches; there "
            "is no table whose rows could be compared."
        )
    if not 0 <= layer < len(tables):
        raise ConfigError(f"layer {layer} has no position embeddings of its own", tables=str(len(tables)))
    return _cosines(tables[layer]()[config.special_positions :], config.grid)


def _cosines(table: Tensor, grid: tuple[int, int]) -> NDArray[np.float32]:
    """Return the cosine between any two rows of a table (N, D): (h, w, h, w)."""
    unit = F.normalize(table.double(), dim=1, eps=1e-12)
    return (unit @ unit.T).float().cpu().numpy().reshape(*grid, *grid)


def similarity_by_steps(similarity: NDArray[np.float32]) -> NDArray[np.float32]:
    """Average the cosines (h, w, h, w) of patches 0, 1, 2 … steps apart, rows and columns added: (h + w - 1,)."""
    h, w = similarity.shape[:2]
    row, column = np.divmod(np.arange(h * w), w)
    steps = (np.abs(row[:, None] - row) + np.abs(column[:, None] - column)).ravel()
    return (np.bincount(steps, similarity.ravel()) / np.bincount(steps)).astype(np.float32)


def similarity_by_offset(similarity: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Average the cosines (h, w, h, w) of patches 0, 1, 2 … apart: (w,) along the same row, (h,) down a column."""
    h, w = similarity.shape[:2]
    in_rows = np.einsum("rcrk->ck", similarity) / h  # (w, w)
    in_columns = np.einsum("rckc->rk", similarity) / w  # (h, h)
    across, down = (
        np.array([np.diagonal(table, offset).mean() for offset in range(len(table))], dtype=np.float32)
        for table in (in_rows, in_columns)
    )
    return across, down


@torch.no_grad()
def filter_components(model: Model, count: int = COMPONENTS) -> Filters:
    """Return principal components of the patch embedding's filters, or of the 7 x 7 kernels of a ResNet's root."""
    vit = transformer_of(model)
    if isinstance(model, ResNet):
        body: object = model.body
    elif vit is not None:
        body = vit.stem
    else:
        raise DoesNotApply(f"filters: {model.kind} has none, its first layer is a table of colours.")
    if isinstance(body, ConvBody):
        kernels, layer = standardise(body.root.weight, body.config), "root convolution"  # as they are used
    else:
        assert vit is not None
        side = vit.config.patch
        kernels, layer = vit.patches.project.weight.unflatten(1, (-1, side, side)), "patch embedding"
    filters = kernels.permute(0, 2, 3, 1).double().cpu()  # (D, P, P, C)
    shape, rows = filters.shape[1:], filters.flatten(1).numpy()
    centred = rows - rows.mean(axis=0)
    _, strengths, components = np.linalg.svd(centred, full_matrices=False)
    # a component is as good as its negative: the sign that makes the larger peak positive is as good as any, and fixed
    peaks = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    shares = strengths**2 / max((strengths**2).sum(), 1e-30)
    shown = (components * np.sign(peaks))[:count]
    return Filters(shown.reshape(-1, *shape).astype(np.float32), shares[:count].astype(np.float32), layer)
