"""iGPT against transformers' ImageGPT, its causality by gradient, its cost by counting, its palette against others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree
from sklearn.cluster import KMeans
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

import vitkit
from tests.model.kinds import images_for, randomise
from tests.test_cost import kept_bytes
from vitkit.cost import cost
from vitkit.errors import ConfigError, SizeError
from vitkit.model.build import build, build_on_meta
from vitkit.model.config import from_dict, to_dict
from vitkit.model.igpt import ImageGPT
from vitkit.model.palette import kmeans_palette, nearest_colours, uniform_palette
from vitkit.model.resize_positions import resize_table
from vitkit.model.variants import configure, name_of
from vitkit.train.activation_checkpointing import set_recompute
from vitkit.weights import imagegpt


def make(**options: Any) -> ImageGPT:
    torch.manual_seed(0)
    options = {"classes": 10, "colours": 37, "image": (5, 7), **options}
    return randomise(vitkit.create("iGPT-mu/8", **options).eval())


def theirs_for(model: ImageGPT) -> ImageGPTForCausalImageModeling:
    """Return transformers' model with the weights of ours, by the names that our writer has for them."""
    config = model.config
    theirs = ImageGPTForCausalImageModeling(
        ImageGPTConfig(
            vocab_size=config.colours + 1,
            n_positions=config.patches,
            n_embd=config.width,
            n_layer=config.depth,
            n_head=config.heads,
            n_inner=config.mlp,
        )
    ).eval()
    theirs.load_state_dict(imagegpt.tensors_of(model))
    return theirs


def test_logits_and_features_equal_transformers_image_gpt():
    model = make(classes=0)
    theirs = theirs_for(model)
    images = images_for(model, 3)
    tokens = model.quantise(images)
    start = torch.full((3, 1), model.config.colours)
    with torch.no_grad():
        expected = theirs(torch.cat([start, tokens[:, :-1]], 1), output_hidden_states=True, output_attentions=True)
        logits = model.next_colour(model.encode(model.embed(tokens)))
        _, seen = model(images, capture=("*",))
    torch.testing.assert_close(logits, expected.logits, atol=1e-5, rtol=0)
    for layer, hidden in enumerate(expected.hidden_states[1:-1]):  # the last of them is normed
        torch.testing.assert_close(seen[f"block{layer}"], hidden, atol=1e-5, rtol=0)
    torch.testing.assert_close(seen["encoded"], expected.hidden_states[-1], atol=1e-5, rtol=0)
    for layer, weights in enumerate(expected.attentions):
        torch.testing.assert_close(seen[f"block{layer}/attention"], weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_a_pixel_is_predicted_from_earlier_ones_only_if_and_only_if_the_model_is_causal(causal: bool):
    model = make(causal=causal, image=(3, 4))
    tokens = torch.randint(37, (1, 12))
    vectors = model.embedding.colours[tokens].detach().requires_grad_()
    # what `embed` does, with vectors that take a gradient
    late = torch.cat([model.embedding.colours[-1].expand(1, 1, -1), vectors[:, :-1]], 1) if causal else vectors
    torch.testing.assert_close(late + model.embedding.positions, model.embed(tokens))
    predicted = model.next_colour(model.encode(late + model.embedding.positions))
    for pixel in range(12):
        (gradient,) = torch.autograd.grad(predicted[0, pixel].square().sum(), vectors, retain_graph=True)
        reached = gradient[0].abs().sum(-1) > 0
        assert reached.tolist() == [other < pixel if causal else True for other in range(12)]


def test_a_hidden_pixel_leaves_no_trace_in_the_bidirectional_model():
    model = make(causal=False)
    tokens = torch.randint(37, (1, 35))
    hidden = torch.zeros(1, 35, dtype=torch.bool)
    hidden[0, 4] = True
    other = tokens.clone()
    other[0, 4] = (tokens[0, 4] + 1) % 37
    torch.testing.assert_close(model.embed(tokens, hidden), model.embed(other, hidden), atol=0, rtol=0)
    assert not torch.equal(model.embed(tokens), model.embed(other))


def test_the_features_of_a_layer_are_the_mean_of_its_normed_pixels():
    """n^l of the paper: the norm is that of the next layer, or the one at the end."""
    model = make(classes=0)
    _, seen = model(images_for(model, 2), capture=("*",))
    gains = [block.attention_norm.gain for block in model.encoder.blocks[1:]] + [model.encoder.norm.gain]
    assert len({tuple(gain.tolist()) for gain in gains}) == len(gains)  # the norms differ
    for layer, gain in zip(model.layers, gains, strict=True):
        x = seen[layer].detach().double().numpy()
        normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + model.config.eps) * gain.detach().double().numpy()
        features = model.pool_layer(layer, seen[layer]).detach().numpy()
        np.testing.assert_allclose(features, normed.mean(1), atol=1e-5)
    np.testing.assert_allclose(features, seen["representation"].detach().numpy(), atol=1e-6)


# the parameters that the paper names: 76M, 455M and 1.4B
@pytest.mark.parametrize(("name", "millions"), [("iGPT-S/32", 76), ("iGPT-M/32", 455), ("iGPT-L/32", 1362)])
def test_parameters_are_the_papers(name: str, millions: float):
    config = configure(name, classes=0)
    # without our biases, which OpenAI's code does not have; transformers' does
    biases = config.depth * (9 * config.width)
    assert (cost(config).parameters - biases) / 1e6 == pytest.approx(millions, rel=0.01)
    assert cost(config).parameters == sum(one.numel() for one in build_on_meta(config).parameters())
    assert name_of(config) == name


@pytest.mark.parametrize("options", [{}, {"causal": False, "channels": 1}, {"classes": 0}])
def test_cost_is_what_torch_counts_and_keeps(options: dict[str, Any]):
    model = make(**options)
    images = images_for(model, 4)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images[:1])
    assert 2 * cost(model.config).macs == counter.get_total_flops()
    closed_form = cost(model.config).activation_bytes(4, bytes_per_number=4)
    assert closed_form == pytest.approx(kept_bytes(model, images), rel=0.06)


def test_compiles_exports_and_captures_without_changing_the_logits():
    model = make()
    images = images_for(model)
    logits, seen = model(images, capture=("*",))
    assert tuple(seen) == model.captures
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for other in (model(images), compiled(images), program.module()(images)):
        torch.testing.assert_close(other, logits, atol=1e-5, rtol=1e-5)
    more = images_for(model, 3)
    torch.testing.assert_close(program.module()(more), model(more), atol=1e-5, rtol=1e-5)


def test_recomputed_blocks_have_the_same_gradients():
    model = make()
    images = images_for(model)

    def gradients() -> list[torch.Tensor]:
        parameters = [one for name, one in model.named_parameters() if one.requires_grad and "next" not in name]
        return list(torch.autograd.grad(model(images).square().sum(), parameters))

    plain = gradients()
    set_recompute(model, True)
    assert all("forward" in vars(block) for block in model.blocks)
    torch.testing.assert_close(gradients(), plain, atol=0, rtol=0)


def test_positions_and_head_are_replaced_and_the_record_comes_back():
    model = make()
    table = model.embedding.positions.detach().clone()
    model.resize((10, 7))
    expected = resize_table(table, (5, 7), (10, 7))
    torch.testing.assert_close(model.embedding.positions.detach(), expected)
    model.replace_head(3)
    images = images_for(model)
    assert model(images).shape == (2, 3)
    assert not model(images).any()
    with pytest.raises(SizeError, match="model is for 10 x 7"):
        model(images[:, :, :5])
    assert from_dict(to_dict(model.config)) == model.config
    build(model.config).load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colours": 1}, "colours=1"),
        ({"causal": 1}, "causal=1"),
        ({"heads": 5}, "cannot be shared by 5 heads"),
        ({"dropout": 1.0}, "probability"),
        ({"patch": 4}, "no option 'patch'"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        configure("iGPT-S/32", **options)


def test_the_nearest_colour_is_a_k_d_trees():
    palette, images = torch.randn(50, 3), torch.randn(2, 3, 6, 5)
    pixels = images.permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    _, expected = cKDTree(palette.numpy()).query(pixels)
    assert nearest_colours(images, palette).flatten().tolist() == expected.tolist()


def test_the_palette_is_as_good_as_scikit_learns_and_the_same_every_time():
    rng = np.random.default_rng(0)
    centres = rng.uniform(-1, 1, (20, 3))
    pixels = centres[rng.integers(20, size=16 * 8 * 8)] + rng.normal(0, 0.1, (16 * 8 * 8, 3))
    images = torch.from_numpy(pixels).float().view(16, 8, 8, 3).permute(0, 3, 1, 2)
    palette, error = kmeans_palette(images, 16, seed=3)
    theirs = KMeans(16, init="k-means++", n_init=1, random_state=0).fit(pixels)
    # both stop in a local minimum, which differ by some percent
    assert error**2 < 1.15 * theirs.inertia_ / len(pixels)
    nearest = palette[nearest_colours(images, palette)].transpose(1, 2).reshape(images.shape)
    # over all pixels; the sample was of all of them
    assert (nearest - images).square().sum(1).mean().sqrt() == pytest.approx(error, rel=1e-5)
    again, _ = kmeans_palette(images, 16, seed=3)
    assert torch.equal(palette, again)


def test_a_palette_with_more_colours_than_there_are_holds_them_all():
    images = torch.tensor([-1.0, 0.0, 0.5, 1.0]).view(1, 1, 2, 2)
    palette, error = kmeans_palette(images, 7, seed=0)
    assert error == 0
    assert sorted(set(palette.flatten().tolist())) == [-1.0, 0.0, 0.5, 1.0]


@pytest.mark.parametrize(("colours", "channels"), [(512, 3), (37, 3), (512, 1), (2, 3)])
def test_an_untrained_palette_spans_the_colours_without_repeating_one(colours: int, channels: int):
    palette = uniform_palette(colours, channels)
    assert palette.shape == (colours, channels)
    assert len(palette.unique(dim=0)) == colours
    assert palette.abs().max() <= 1
