"""The same blocks with fewer operations: LayerScale inside the weights before it, and a bias for every projection."""

import torch
from torch import nn

from vitkit.model.attention import complete_bias
from vitkit.model.encoder import Block
from vitkit.model.layer_scale import LayerScale


def fold_blocks(model: nn.Module) -> None:
    """Fold the blocks of a copy for inference, in place; fold before it is cast, so that weights are rounded once."""
    for block in model.modules():
        if isinstance(block, Block):
            _fold(block)


@torch.no_grad()
def _fold(block: Block) -> None:
    for layer, name in ((block.attention.out, "attention_scale"), (block.mlp.down, "mlp_scale")):
        scale = getattr(block, name)
        if isinstance(scale, LayerScale):
            layer.weight = nn.Parameter(layer.weight * scale.gamma[:, None], requires_grad=False)
            layer.bias = nn.Parameter(layer.bias * scale.gamma, requires_grad=False)
            setattr(block, name, nn.Identity())
    qkv = block.attention.qkv
    plain = nn.Linear(qkv.in_features, qkv.out_features, device="meta")
    plain.weight, plain.bias = qkv.weight, nn.Parameter(complete_bias(qkv), requires_grad=False)
    block.attention.qkv = plain
