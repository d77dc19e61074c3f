"""Without positions, a model sees a set of patches: their order does not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitkit
from tests.model.kinds import randomise
from vitkit.errors import ConfigError
from vitkit.model.vit import VisionTransformer

SETS = {
    "gap": {"pool": "gap"},
    "class token": {"pool": "token"},
    "attention pool": {"pool": "attention"},
    "one seed": {"pool": "seeds"},
    "inducing points, class token": {"induced": 5, "pool": "token"},
    "inducing points, three seeds": {"induced": 5, "pool": "seeds", "seeds": 3},
    "inducing points, post-norm, gap": {"induced": 5, "pool": "gap", "norm": "post"},
}
QUICK = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def models() -> dict[str, VisionTransformer]:
    torch.manual_seed(0)
    built = {
        name: vitkit.create("mu/4", image=(16, 24), classes=10, **{"positions": "none", **options})
        for name, options in {**SETS, "1d": {"pool": "gap", "positions": "1d"}}.items()
    }
    return {name: randomise(model.eval()) for name, model in built.items()}


def of_patches(model: VisionTransformer, patches: torch.Tensor) -> torch.Tensor:
    """Logits of patch embeddings (B, N, D)."""
    with torch.no_grad():
        return model.head(model.head.represent(model.pool(model.encode(patches))))


@pytest.mark.parametrize("name", SETS)
@QUICK
@given(order=st.permutations(range(24)), seed=st.integers(0, 1000))
def test_the_order_of_patches_does_not_matter_to_a_set_model(
    models: dict[str, VisionTransformer], name: str, order: list[int], seed: int
):
    images = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(seed))
    patches = models[name].embed(images).detach()
    expected = of_patches(models[name], patches)
    permuted = of_patches(models[name], patches[:, order])
    torch.testing.assert_close(permuted, expected, atol=1e-6 * max(1.0, float(expected.abs().max())), rtol=0)


@QUICK
@given(order=st.permutations(range(24)).filter(lambda order: order != list(range(24))))
def test_the_order_of_patches_matters_to_a_model_with_positions(models: dict[str, VisionTransformer], order: list[int]):
    patches = models["1d"].embed(torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))).detach()
    difference = of_patches(models["1d"], patches) - of_patches(models["1d"], patches[:, order])
    assert difference.abs().max() > 1e-5


def test_pixels_permuted_by_patch_are_the_same_image_to_a_set_model(models: dict[str, VisionTransformer]):
    image = torch.randn(1, 3, 16, 24)
    blocks = image.unflatten(2, (4, 4)).unflatten(4, (6, 4)).permute(2, 4, 0, 1, 3, 5).flatten(0, 1)
    shuffled = blocks[torch.randperm(24)].unflatten(0, (4, 6)).permute(2, 3, 0, 4, 1, 5).flatten(4, 5).flatten(2, 3)
    model = models["inducing points, three seeds"]
    torch.testing.assert_close(model(shuffled), model(image), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"induced": 4, "positions": "quadratic", "pool": "gap"}, "inducing points, which have no place"),
        ({"induced": 4, "rotary": "index"}, "inducing points, which have no place"),
        ({"induced": 4, "key_bias": False}, "projections of its own"),
        ({"induced": -1}, "induced=-1 must be a whole number, 0 or more"),
        ({"seeds": 2}, "seeds=2 has no effect with pool='token'"),
        ({"content": False}, "positions='1d' gives it none"),
        ({"content": False, "positions": "quadratic", "pool": "gap", "query_bias": False}, "neither queries nor keys"),
        ({"positions": "quadratic"}, "between patches, and class token and registers are in no place"),
        ({"positions": "relative-2d", "pool": "gap", "axial": True}, "axial attention with relative-2d positions"),
        ({"positions": "relative-2d", "pool": "gap", "inject": "stem"}, "relative-2d positions live inside attention"),
        ({"positions": "relative-2d", "pool": "gap", "width": 6, "heads": 2}, "an even width per head"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        vitkit.create("mu/4", image=16, **options)
