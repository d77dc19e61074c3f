"""Masked patch prediction: targets and losses against plain loops, statistics of the corruption, and training."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import vitkit
from tests.model.kinds import KINDS, make
from vitkit.config.schema import Adam, Fit, Masked
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.masked_patch import MaskedPatch, colour_classes, corrupt, mean_colours
from vitkit.train.optimizer import build_optimizer

PATCHED = [kind for kind in KINDS if kind != "ResNet"]
MASK = torch.full((1, 4), -1.0)

grids = st.tuples(st.integers(1, 4), st.integers(1, 4))
seeds = st.integers(0, 10**6)


def pixels_for(model: Model, batch: int = 2) -> Tensor:
    return torch.rand(batch, model.config.channels, *model.config.image)


def numbered(images: int, patches: int) -> Tensor:
    """Return patches with a vector of their own each, so that a copy shows where it is from."""
    return torch.arange(images * patches).float().view(images, patches, 1).expand(-1, -1, 4)


# Targets


@given(grid=grids, side=st.integers(1, 5), channels=st.integers(1, 4), seed=seeds)
def test_colours_are_those_of_a_plain_loop(grid: tuple[int, int], side: int, channels: int, seed: int):
    h, w = grid
    pixels = torch.rand(2, channels, h * side, w * side, generator=torch.Generator().manual_seed(seed))
    means = mean_colours(pixels, grid)
    classes = colour_classes(means)
    for image in range(2):
        for row in range(h):
            for column in range(w):
                code, patch = 0, row * w + column
                for channel in range(channels):
                    values = [
                        pixels[image, channel, row * side + y, column * side + x].item()
                        for y in range(side)
                        for x in range(side)
                    ]
                    mean = sum(values) / len(values)
                    ours = means[image, patch, channel].item()
                    assert ours == pytest.approx(mean, abs=1e-6)
                    code = 8 * code + min(math.floor(8 * ours), 7)
                assert classes[image, patch] == code


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        ((0.0, 0.0, 0.0), 0),
        ((1.0, 1.0, 1.0), 511),
        ((1.0, 0.0, 0.0), 7 * 64),
        ((0.0, 0.125, 0.0), 8),
        ((0.0, 0.0, 0.1249), 0),
        ((0.5, 0.25, 0.875), 4 * 64 + 2 * 8 + 7),
    ],
)
def test_a_plain_patch_has_the_class_of_its_colour(colour: tuple[float, ...], expected: int):
    pixels = torch.tensor(colour).view(1, 3, 1, 1).expand(1, 3, 14, 28)
    assert colour_classes(mean_colours(pixels, (1, 2))).tolist() == [[expected, expected]]


# Corruption


@given(patches=st.integers(1, 30), rate=st.floats(0.01, 0.99), seed=seeds)
def test_the_requested_share_of_patches_is_chosen_and_no_other_patch_changes(patches: int, rate: float, seed: int):
    torch.manual_seed(seed)
    before = torch.randn(3, patches, 4)
    after, chosen = corrupt(before, MASK, rate)
    assert chosen.shape == (3, max(round(rate * patches), 1))
    for image in range(3):
        indices = chosen[image].tolist()
        assert len(set(indices)) == len(indices)
        for patch in set(range(patches)) - set(indices):
            assert torch.equal(after[image, patch], before[image, patch])


@given(patches=st.integers(2, 30), seed=seeds)
def test_a_corrupted_patch_is_the_mask_token_or_a_patch_of_its_image(patches: int, seed: int):
    torch.manual_seed(seed)
    after, _ = corrupt(numbered(4, patches), MASK, 0.5)
    for image in range(4):
        own = set(range(image * patches, (image + 1) * patches))
        assert set(after[image, :, 0].tolist()) <= own | {-1}


def test_masked_swapped_and_kept_patches_are_as_frequent_as_in_the_paper():
    images, patches = 2_000, 16
    before = numbered(images, patches)
    after, chosen = corrupt(before, MASK, 0.5)
    was, became = before[..., 0].gather(1, chosen).flatten(), after[..., 0].gather(1, chosen).flatten()
    masked, same = became == -1, became == was
    for count, share in ((masked, 0.8), (same, 0.1), (~masked & ~same, 0.1)):
        assert stats.binomtest(int(count.sum()), images * 8, share).pvalue > 1e-4
    # the offset of the swapped patches is uniform over all but 0
    moved = ((became - was) % patches)[~masked & ~same].long()
    assert stats.chisquare(torch.bincount(moved, minlength=patches)[1:]).pvalue > 1e-4


def test_every_patch_is_chosen_equally_often():
    _, chosen = corrupt(torch.zeros(4_000, 9, 4), MASK, 0.5)
    for count in torch.bincount(chosen.flatten(), minlength=9).tolist():
        assert stats.binomtest(count, 4_000, 4 / 9).pvalue > 1e-4


def test_a_patch_is_never_swapped_with_itself():
    torch.manual_seed(5)
    after, chosen = corrupt(numbered(20_000, 2), MASK, 0.9)
    assert chosen.shape[1] == 2
    # with two patches, both chosen, a swap shows the other's number in 10 % of the cases
    swapped = (after[..., 0] % 2 == 1 - torch.arange(2)) & (after[..., 0] >= 0)
    assert stats.binomtest(int(swapped.sum()), 40_000, 0.1).pvalue > 1e-4


def test_a_single_patch_is_masked_or_kept():
    after, chosen = corrupt(numbered(1_000, 1), MASK, 0.3)
    assert not chosen.any()
    masked = after[:, 0, 0] == -1
    assert torch.equal(after[~masked], numbered(1_000, 1)[~masked])
    assert stats.binomtest(int(masked.sum()), 1_000, 0.8).pvalue > 1e-4


def test_corruption_is_a_function_of_the_seed():
    patches = torch.randn(3, 10, 4)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(corrupt(patches, MASK, 0.5)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# Losses


def random_guesses(objective: MaskedPatch) -> MaskedPatch:
    torch.nn.init.normal_(objective.guess.weight)
    torch.nn.init.normal_(objective.guess.bias)
    return objective


@pytest.mark.parametrize(
    "kind", ["token", "gap", "gap-norm with class token", "non-square, one channel", "2d", "root hybrid"]
)
@pytest.mark.parametrize("target", ["colour", "pixels"])
def test_the_loss_is_that_of_a_plain_loop(kind: str, target: str):
    model = make(kind)
    objective = random_guesses(MaskedPatch(model, Masked(target=target)))
    pixels, (h, w) = pixels_for(model), model.config.grid
    torch.manual_seed(9)
    loss, metrics = objective(pixels)
    torch.manual_seed(9)
    patches, chosen = corrupt(model.embed((pixels - 0.5) / 0.5), objective.mask_token, 0.5)
    tokens = model.encode(patches)
    assert tokens.shape[1] == h * w + model.config.class_token
    side, losses, right = pixels.shape[2] // h, [], []
    for image in range(2):
        for patch in chosen[image].tolist():
            token = tokens[image, patch + model.config.class_token]
            guess = objective.guess.weight @ token + objective.guess.bias
            top, left = patch // w * side, patch % w * side
            patch_pixels = pixels[image, :, top : top + side, left : left + side]
            if target == "pixels":
                losses.append((guess - patch_pixels.flatten()).square().mean())
            else:
                levels = [min(int(8 * patch_pixels[channel].mean()), 7) for channel in range(len(patch_pixels))]
                colour = sum(level * 8**digit for digit, level in enumerate(reversed(levels)))
                losses.append(-guess.log_softmax(0)[colour])
                right.append(float(guess.argmax() == colour))
    torch.testing.assert_close(loss, torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)
    expected = {} if target == "pixels" else {"accuracy": pytest.approx(sum(right) / len(right))}
    assert {name: value.item() for name, value in metrics.items()} == expected


def test_before_training_every_colour_is_equally_likely():
    objective = MaskedPatch(make("token"), Masked())
    loss, _ = objective(torch.rand(2, 3, 32, 32))
    assert loss.item() == pytest.approx(math.log(512), rel=1e-5)


@pytest.mark.parametrize("kind", PATCHED)
def test_every_trainable_parameter_gets_a_gradient(kind: str):
    model = make(kind)
    target = "pixels" if model.config.channels > 4 else "colour"
    objective = random_guesses(MaskedPatch(model, Masked(target=target)))
    loss, _ = objective(pixels_for(model, batch=8))
    loss.backward()
    lost = [
        name
        for name, parameter in objective.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    assert not lost
    idle = {name for name, parameter in objective.named_parameters() if not parameter.requires_grad}
    assert idle == {name for name, _ in objective.named_parameters() if name.startswith(("model.pool.", "model.head."))}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mu/4", {}),
        ("mu/4", {"pool": "gap"}),
        ("R+mu/16", {"image": (32, 64)}),
    ],
)
@pytest.mark.parametrize("target", ["colour", "pixels"])
def test_a_few_steps_lower_the_loss(name: str, options: dict, target: str):
    model = vitkit.create(name, **{"image": 16, "classes": 10, **options})
    objective = MaskedPatch(model, Masked(target=target))
    optimizer = build_optimizer(objective, Fit(lr=3e-3, optimizer=Adam()), fused=False)
    # images of one colour each: masked patches can be predicted from the others
    pixels = torch.rand(16, 3, 1, 1).expand(-1, -1, *model.config.image)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss, _ = objective(pixels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


def test_the_loss_and_gradients_of_a_bf16_model_are_fp32():
    objective = random_guesses(MaskedPatch(make("token"), Masked()))
    loss, _ = MixedPrecision(objective)(torch.rand(2, 3, 32, 32), torch.zeros(2, 10))
    loss.backward()
    assert loss.dtype == objective.mask_token.grad.dtype == torch.float32


def test_compiles_as_one_graph():
    objective = random_guesses(MaskedPatch(make("token"), Masked()))
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    pixels, results = torch.rand(2, 3, 32, 32), []
    for module in (objective, compiled):
        torch.manual_seed(4)
        results.append(module(pixels, None)[0])
    torch.testing.assert_close(results[0], results[1])


def test_labels_are_ignored():
    objective = random_guesses(MaskedPatch(make("token"), Masked()))
    pixels, results = torch.rand(2, 3, 32, 32), []
    for targets in (torch.zeros(2, 10), torch.full((2, 10), math.nan)):
        torch.manual_seed(4)
        results.append(objective(pixels, targets)[0])
    assert torch.equal(results[0], results[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("target", ["colour", "pixels"])
def test_the_host_never_waits_for_the_gpu(target: str):
    objective = random_guesses(MaskedPatch(make("token"), Masked(target=target))).cuda()
    pixels = torch.rand(4, 3, 32, 32).cuda()
    objective(pixels)[0].backward()  # the first pass loads libraries
    torch.cuda.set_sync_debug_mode("error")
    try:
        MixedPrecision(objective)(pixels, torch.zeros(4, 10, device="cuda"))[0].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Errors


def test_a_resnet_has_no_patches_to_mask():
    with torch.device("meta"):
        model = vitkit.create("R50x1")
    with pytest.raises(ConfigError, match="needs a model with patches"):
        MaskedPatch(model, Masked())


def test_colours_of_many_channels_are_an_error_that_suggests_pixels():
    model = make("five channels")
    with pytest.raises(ConfigError, match=r"32,768 classes(.|\n)*target = pixels"):
        MaskedPatch(model, Masked())
    assert all(parameter.requires_grad for parameter in model.parameters())
    MaskedPatch(model, Masked(target="pixels"))
