"""The closed form against the paper's tables, counted FLOPs and the tensors that autograd really keeps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.model.kinds import ALL_KINDS, images_for, make
from vitkit.cost import cost
from vitkit.kernels.fuse import fuse
from vitkit.model.build import Model, build
from vitkit.model.resnet import StandardisedConv, pad_same
from vitkit.model.variants import NAMED, configure
from vitkit.table6 import compare

# paper, Table 6: epochs, exaFLOPs, and how close the closed form comes without products with padding
TABLE_6 = [
    ("B/32", 7, 55, 0.021),  # its own remark
    ("B/16", 7, 224, 0.003),
    ("L/32", 7, 196, 0.003),
    ("L/16", 7, 783, 0.003),
    ("L/16", 14, 1567, 0.003),
    ("H/14", 14, 4262, 0.003),
    ("R50x1", 7, 50, 0.01),
    ("R50x2", 7, 199, 0.01),
    ("R101x1", 7, 96, 0.01),
    ("R152x1", 7, 141, 0.01),
    ("R152x2", 7, 563, 0.01),
    ("R152x2", 14, 1126, 0.01),
    ("R200x3", 14, 3306, 0.01),
    ("R50+B/32", 7, 106, 0.01),
    ("R50+B/16", 7, 274, 0.01),
    ("R50+L/32", 7, 246, 0.01),
    ("R50+L/16", 7, 859, 0.031),  # its own remark
    ("R50+L/16", 14, 1668, 0.01),
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
    (row,) = [row for row in compare() if (row.model, row.epochs) == (name, epochs)]
    assert row.paper == exaflops
    assert row.exaflops == pytest.approx(exaflops, rel=tolerance)
    assert row.with_padding == pytest.approx(6 * cost(configure(name)).macs * 303e6 * epochs / 1e18)
    assert bool(row.remark) == (tolerance > 0.01)


def test_the_comparison_has_every_row_of_table_6():
    assert [(row.model, row.epochs) for row in compare()] == [row[:2] for row in TABLE_6]


@pytest.mark.parametrize("name", ["R50x1", "R26+mu/32", "R+mu/16"])
@pytest.mark.parametrize("image", [(64, 64), (96, 160), (224, 224)])
def test_products_with_padding_are_those_that_a_convolution_of_ones_lacks(name: str, image: tuple[int, int]):
    """Over an input of ones, a kernel of ones sums the products that do not fall on the zeros around it."""
    config = configure(name, image=image)
    outside = 0

    def count(layer: StandardisedConv, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal outside
        plane = torch.ones(1, 1, *inputs[0].shape[2:])
        if layer.config.preactivation:
            padded = torch.nn.functional.pad(plane, [(layer.kernel - 1) // 2] * 4)
        else:
            padded = pad_same(plane, layer.kernel, layer.stride)
        ones = torch.ones(1, 1, layer.kernel, layer.kernel)
        inside = torch.nn.functional.conv2d(padded, ones, stride=layer.stride)
        assert inside.shape[2:] == output.shape[2:]
        pairs = layer.weight.shape[0] * layer.weight.shape[1]
        outside += pairs * (layer.kernel**2 * inside.numel() - int(inside.sum()))

    with torch.device("meta"):
        model = build(config)
    for module in model.modules():
        if isinstance(module, StandardisedConv):
            module.register_forward_hook(count)
    model(torch.empty(1, 3, *image, device="meta"))
    assert cost(config).padding_macs == outside > 0


def test_a_transformer_has_no_padding():
    assert cost(configure("B/16")).padding_macs == 0


SHAPES = [
    ("mu/8", {"axial": True, "pool": "gap", "depth": 3}),
    ("mu/8", {"depth": 5, "width": 48, "mlp": 100, "heads": 3}),
    ("mu/8", {"positions": "relative", "pool": "attention"}),
    ("R26+mu/32", {"depth": 3}),
    ("R50+mu/16", {"pool": "gap"}),
    ("R+mu/16", {"axial": True, "pool": "gap"}),
    ("R50x1", {}),
    ("R101x1", {}),
]


@pytest.mark.parametrize(("name", "options"), SHAPES)
@pytest.mark.parametrize("image", [(64, 64), (96, 160)])
def test_multiply_adds_of_axial_hybrid_and_resnet_models_are_those_that_torch_counts(
    name: str, options: dict[str, object], image: tuple[int, int]
):
    config = configure(name, image=image, **options)
    with torch.device("meta"):
        model = build(config)
        images = torch.empty(1, 3, *image)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert 2 * cost(config).macs == counter.get_total_flops()


@pytest.mark.parametrize("name", ["B/16", "R50x1"])
@pytest.mark.parametrize("gibibytes", [1, 16, 80])
def test_the_largest_batch_fills_the_memory(name: str, gibibytes: int):
    estimate, memory = cost(configure(name)), gibibytes * 2**30

    def needed(batch: int) -> int:
        return estimate.state_bytes + estimate.activation_bytes(batch, bytes_per_number=2)

    batch = estimate.largest_batch(memory, bytes_per_number=2)
    assert batch == 0 or needed(batch) <= memory
    assert needed(batch + 1) > memory


@pytest.mark.parametrize(("name", "image", "gmacs"), GMACS)
def test_multiply_adds_are_the_published_ones(name: str, image: int, gmacs: float):
    assert cost(configure(name, image=image)).macs / 1e9 == pytest.approx(gmacs, rel=0.005)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_multiply_adds_equal_those_of_a_real_forward_pass(kind: str):
    model = make(kind)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        # with all tokens of the last block; local attention whose weights are asked for is computed from copies
        model(images_for(model, batch=1), capture=[name for name in model.captures[-2:] if "unit" not in name])
    assert 2 * cost(model.config).macs == counter.get_total_flops()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_parameters_equal_the_models(kind: str):
    model = make(kind)
    assert cost(model.config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMED)
def test_parameters_equal_those_of_every_named_model(name: str):
    config = configure(name)
    with torch.device("meta"):
        model = build(config)
    assert cost(config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("batch", [1, 4])
def test_activation_memory_is_what_autograd_keeps(kind: str, batch: int):
    model = make(kind)
    fuse(model, class_token_only=True)  # as an objective does before training
    model.requires_grad_(True)
    closed_form = cost(model.config).activation_bytes(batch, bytes_per_number=4)
    assert closed_form == pytest.approx(kept_bytes(model, images_for(model, batch)), rel=0.06)


def kept_bytes(model: Model, images: torch.Tensor) -> int:
    own = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        model(images)
    return sum(storage.nbytes() for address, storage in storages.items() if address not in own)
