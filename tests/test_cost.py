"""The closed form against the paper's tables, counted FLOPs and the tensors that autograd really keeps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.model.kinds import KINDS, images_for, make
from vitkit.cost import cost
from vitkit.kernels.fuse import fuse
from vitkit.model.build import Model
from vitkit.model.variants import NAMED, configure

JFT_IMAGES = 303e6

# paper, Table 6: epochs, exaFLOPs, and how close the closed form comes
TABLE_6 = [
    ("B/32", 7, 55, 0.03),
    ("B/16", 7, 224, 0.03),
    ("L/32", 7, 196, 0.03),
    ("L/16", 7, 783, 0.03),
    ("L/16", 14, 1567, 0.03),
    ("H/14", 14, 4262, 0.03),
    ("R50x1", 7, 50, 0.06),
    ("R50x2", 7, 199, 0.06),
    ("R101x1", 7, 96, 0.06),
    ("R152x1", 7, 141, 0.06),
    ("R152x2", 7, 563, 0.06),
    ("R200x3", 14, 3306, 0.06),
    ("R50+B/32", 7, 106, 0.06),
    ("R50+B/16", 7, 274, 0.06),
    ("R50+L/32", 7, 246, 0.06),
    ("R50+L/16", 7, 859, 0.06),
]
GMACS = [
    ("Ti/16", 224, 1.25),
    ("S/16", 224, 4.60),
    ("B/32", 224, 4.41),
    ("B/16", 224, 17.56),
    ("L/32", 224, 15.38),
    ("L/16", 224, 61.55),
    ("H/14", 224, 167.30),
    ("B/16", 384, 55.48),
    ("L/16", 384, 191.07),
]


@pytest.mark.parametrize(("name", "epochs", "exaflops", "tolerance"), TABLE_6)
def test_training_compute_is_table_6s(name: str, epochs: int, exaflops: float, tolerance: float):
    assert cost(configure(name)).exaflops(JFT_IMAGES, epochs) == pytest.approx(exaflops, rel=tolerance)


@pytest.mark.parametrize(("name", "image", "gmacs"), GMACS)
def test_multiply_adds_are_the_published_ones(name: str, image: int, gmacs: float):
    assert cost(configure(name, image=image)).macs / 1e9 == pytest.approx(gmacs, rel=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_multiply_adds_equal_those_of_a_real_forward_pass(kind: str):
    model = make(kind)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images_for(model, batch=1), capture=model.captures[-2:])  # with all tokens of the last block
    assert 2 * cost(model.config).macs == counter.get_total_flops()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_equal_the_models(kind: str):
    model = make(kind)
    assert cost(model.config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMED)
def test_parameters_equal_those_of_every_named_model(name: str):
    from vitkit.model.build import build

    config = configure(name)
    with torch.device("meta"):
        model = build(config)
    assert cost(config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 4])
def test_activation_memory_is_what_autograd_keeps(kind: str, batch: int):
    model = make(kind)
    fuse(model, class_token_only=True)  # as an objective does before training
    model.requires_grad_(True)
    closed_form = cost(model.config).activation_bytes(batch, bytes_per_number=4)
    assert closed_form == pytest.approx(kept_bytes(model, images_for(model, batch)), rel=0.06)


def kept_bytes(model: Model, images: torch.Tensor) -> int:
    own = {value.untyped_storage().data_ptr() for value in model.state_dict(keep_vars=True).values()}
    storages: dict[int, torch.UntypedStorage] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        model(images)
    return sum(storage.nbytes() for address, storage in storages.items() if address not in own)
