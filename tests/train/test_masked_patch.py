"""Masked patch prediction: targets and losses against plain loops, statistics of the corruption, and training."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

import vitkit
from tests.model.kinds import KINDS, make
from vitkit.cli.main import main
from vitkit.config.schema import Adam, AdamW, Fit, Masked
from vitkit.data.decode import decode
from vitkit.data.resize import resize
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.masked_patch import MaskedPatch, colour_classes, corrupt, mean_colours
from vitkit.train.optimizer import build_optimizer

UNUSED = ("model.pool.", "model.projection.", "model.head.")
PATCHED = [kind for kind in KINDS if kind != "ResNet"]
TARGETS = ["colour", "4x4", "pixels"]
MASK = torch.full((1, 4), -1.0)

grids = st.tuples(st.integers(1, 4), st.integers(1, 4))
seeds = st.integers(0, 10**6)


def pixels_for(model: Model, batch: int = 2) -> Tensor:
    return torch.rand(batch, model.config.channels, *model.config.image)


def numbered(images: int, patches: int) -> Tensor:
    """Return patches with a vector of their own each, so that a copy shows where it is from."""
    return torch.arange(images * patches).float().view(images, patches, 1).expand(-1, -1, 4)


# Targets


def colours_of_b_1_2(image: NDArray[np.float32], patch: int, cells: int) -> NDArray[np.int64]:
    """Return the targets of B.1.2 in NumPy: the "3-bit mean color" of each patch, one of "512 colors in total".

    With `cells` = 4, they are those of "a 4 x 4 downsized version of the 16 x 16 patch with 3bit colors".
    """
    height, width, channels = image.shape
    rows, columns, side = height // patch, width // patch, patch // cells
    targets = np.zeros((rows * columns, cells * cells), np.int64)
    for row, column, down, right in itertools.product(range(rows), range(columns), range(cells), range(cells)):
        top, left = row * patch + down * side, column * patch + right * side
        mean = image[top : top + side, left : left + side].astype(np.float64).mean(axis=(0, 1))
        bits = np.minimum((256 * mean).astype(np.int64), 255) >> 5  # the three upper bits of eight
        targets[row * columns + column, down * cells + right] = sum(
            int(level) << 3 * (channels - 1 - channel) for channel, level in enumerate(bits)
        )
    return targets


@given(grid=grids, side=st.integers(1, 3), cells=st.sampled_from([1, 4]), channels=st.integers(1, 4), seed=seeds)
def test_colours_are_those_of_the_sentences_of_the_appendix(
    grid: tuple[int, int], side: int, cells: int, channels: int, seed: int
):
    patch = side * cells
    draws = np.random.default_rng(seed)
    # values in the middle between bounds of colours, so that no rounding of a mean moves it over one
    levels = draws.integers(0, 8, (2, channels, grid[0] * cells, grid[1] * cells))
    pixels = (levels.repeat(side, axis=2).repeat(side, axis=3) + 0.5) / 8 + draws.choice([-0.03, 0.03], (1, 1, 1, 1))
    pixels = pixels.astype(np.float32)
    ours = colour_classes(mean_colours(torch.from_numpy(pixels), grid, cells))
    for image in range(2):
        assert np.array_equal(ours[image].numpy(), colours_of_b_1_2(pixels[image].transpose(1, 2, 0), patch, cells))


@given(grid=grids, side=st.integers(1, 4), cells=st.sampled_from([1, 4]), seed=seeds)
def test_cells_average_all_of_their_pixels(grid: tuple[int, int], side: int, cells: int, seed: int):
    h, w = grid
    pixels = np.random.default_rng(seed).random((2, 3, h * cells * side, w * cells * side), np.float32)
    ours = mean_colours(torch.from_numpy(pixels), grid, cells)
    theirs = pixels.reshape(2, 3, h, cells, side, w, cells, side).mean(axis=(4, 7), dtype=np.float64)
    assert ours.shape == (2, h * w, cells**2, 3)
    np.testing.assert_allclose(ours, theirs.transpose(0, 2, 4, 3, 5, 1).reshape(ours.shape), atol=1e-6)


def test_the_cells_of_a_patch_of_14_pixels_overlap_inside_it_only():
    pixels = torch.zeros(1, 3, 28, 28)
    pixels[..., 14:, 14:] = 1.0
    means = mean_colours(pixels, (2, 2), 4)
    assert means[0, :3].max() == 0
    assert means[0, 3].min() == 1


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
@pytest.mark.parametrize("cells", [1, 4])
def test_a_plain_patch_has_the_class_of_its_colour(colour: tuple[float, ...], expected: int, cells: int):
    pixels = torch.tensor(colour).view(1, 3, 1, 1).expand(1, 3, 16, 32)
    assert colour_classes(mean_colours(pixels, (1, 2), cells)).tolist() == [[[expected] * cells**2] * 2]


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
@pytest.mark.parametrize("target", TARGETS)
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
                continue
            cells = 4 if target == "4x4" else 1
            (colours,) = colours_of_b_1_2(patch_pixels.permute(1, 2, 0).numpy(), side, cells)
            for one, colour in zip(guess.view(cells**2, 8 ** len(patch_pixels)), colours, strict=True):
                losses.append(-one.log_softmax(0)[colour])
                right.append(float(one.argmax() == colour))
    torch.testing.assert_close(loss, torch.stack(losses).mean(), atol=1e-4, rtol=1e-4)
    expected = {} if target == "pixels" else {"accuracy": pytest.approx(sum(right) / len(right))}
    assert {name: value.item() for name, value in metrics.items()} == expected


@pytest.mark.parametrize("target", ["colour", "4x4"])
def test_before_training_every_colour_is_equally_likely(target: Any):
    objective = MaskedPatch(make("token"), Masked(target=target))
    loss, _ = objective(torch.rand(2, 3, 32, 32))
    assert loss.item() == pytest.approx(math.log(512), rel=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_of_a_head_that_ignores_the_image_is_the_entropy_of_colours_or_the_variance_of_pixels(target: Any):
    objective, pixels = MaskedPatch(make("token"), Masked(target=target)), torch.rand(5, 3, 32, 32) ** 2
    side = 32 // objective.model.config.grid[0]
    if target == "pixels":
        expected = pixels.double().numpy().transpose(1, 0, 2, 3).reshape(3, -1).var(axis=1).mean()
    else:
        cells = 4 if target == "4x4" else 1
        colours = [colours_of_b_1_2(image.permute(1, 2, 0).numpy(), side, cells) for image in pixels]
        expected = stats.entropy(np.bincount(np.concatenate(colours).ravel()))
    assert objective.uninformed_loss(pixels) == pytest.approx(expected, rel=1e-5)
    assert f"a loss of {expected:.3g}, " in objective.describe(pixels)
    assert "a loss of" not in objective.describe(pixels[:0])


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
    assert idle == {name for name, _ in objective.named_parameters() if name.startswith(UNUSED)}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mu/4", {}),
        ("mu/4", {"pool": "gap"}),
        ("R+mu/16", {"image": (32, 64)}),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
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


def test_a_run_prints_the_entropy_that_its_loss_has_to_fall_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draws = np.random.default_rng(0)
    # each value is far from the bounds of colours, which a mean in another order of sums could cross
    images = draws.integers(0, 8, (6, 2, 2, 3)).repeat(8, axis=1).repeat(8, axis=2) * 32 + 16
    np.savez(tmp_path / "images.npz", images=images.astype(np.uint8))
    options = "--model mu/8 --image 16 --steps 1 --batch 2 --workers 0 --device cpu"
    settings = "--set masked.target=4x4 masked.rate=0.25 augment.crop=false augment.flip=false"
    main(["pretrain", str(tmp_path / "images.npz"), *f"{options} {settings}".split(), "--out", str(tmp_path / "run")])
    colours = [colours_of_b_1_2(image / np.float32(255), 8, 4) for image in images]
    expected = stats.entropy(np.bincount(np.concatenate(colours).ravel()))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("target")]
    assert "25% of the patches are corrupted; 4x4: 16 predictions of 512 colours for each" in line
    assert line.endswith(f"a loss of {expected:.3g}, their entropy in 6 images")


@pytest.mark.slow  # a minute or two
def test_on_real_photos_the_4x4_loss_falls_below_the_entropy_of_the_colours(shared: Path):
    data = open_data(shared / "data" / "pets160.tar")

    def photos(split: str, count: int) -> Tensor:
        rows = np.random.default_rng(0).permutation(len(data.splits[split]))[:count]
        pixels = (torch.from_numpy(decode(data.splits[split].read(int(row)))) for row in rows)
        return torch.cat([resize(image.permute(2, 0, 1)[None], (96, 96), "bilinear") for image in pixels]).float() / 255

    train, held_out = photos("trainval", 1_000), photos("test", 200)
    model = vitkit.create("mu/16", image=96, classes=0, depth=4, width=128, mlp=512, heads=4)
    objective = MaskedPatch(model, Masked(target="4x4"))
    targets = [colours_of_b_1_2(image.permute(1, 2, 0).numpy(), 16, 4) for image in held_out]
    shares = np.bincount(np.concatenate(targets).ravel(), minlength=512) / (200 * 36 * 16)
    # the loss of a head that knows how frequent each colour is, and nothing about the image
    entropy = stats.entropy(shares)
    optimizer = build_optimizer(objective, Fit(lr=1e-3, optimizer=AdamW(weight_decay=0.05)), fused=False)
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 30)
        optimizer.zero_grad()
        objective(train[torch.randint(len(train), (32,))])[0].backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        loss, metrics = objective(held_out)
    print(f"entropy {entropy:.3f}, loss {loss:.3f}, accuracy {metrics['accuracy']:.3f}")
    assert entropy < math.log(512) - 1
    assert loss < entropy - 0.3


def test_the_loss_and_gradients_of_a_bf16_model_are_fp32():
    objective = random_guesses(MaskedPatch(make("token"), Masked()))
    loss, _ = MixedPrecision(objective)(torch.rand(2, 3, 32, 32), torch.zeros(2, 10))
    loss.backward()
    assert loss.dtype == objective.mask_token.grad.dtype == torch.float32


@pytest.mark.parametrize("target", TARGETS)
def test_compiles_as_one_graph(target: Any):
    objective = random_guesses(MaskedPatch(make("token"), Masked(target=target)))
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
@pytest.mark.parametrize("target", TARGETS)
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
