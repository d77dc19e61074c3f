"""Sampling with kept keys and values against the full forward pass, and likelihoods that sum to one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import vitkit
from tests.model.kinds import randomise
from vitkit.errors import ConfigError
from vitkit.model.igpt import ImageGPT
from vitkit.model.igpt_sampling import bits_per_pixel, complete, draw


def make(**options: object) -> ImageGPT:
    torch.manual_seed(0)
    model = randomise(vitkit.create("iGPT-mu/4", **{"classes": 0, "colours": 11, "image": (3, 4), **options}).eval())
    with torch.no_grad():
        model.next_colour.weight.normal_()  # so that colours differ in likelihood
    return model


@pytest.mark.parametrize("given", [0, 1, 5, 12])
def test_the_likeliest_completion_is_the_full_models_choice_pixel_by_pixel(given: int):
    model, start = make(), torch.randint(11, (3, 12))
    expected = start.clone()
    with torch.no_grad():
        for pixel in range(given, 12):
            expected[:, pixel] = model.next_colour(model.encode(model.embed(expected)))[:, pixel].argmax(-1)
    assert torch.equal(complete(model, start[:, :given], temperature=0), expected)


def test_draws_follow_the_models_probabilities():
    model = make(image=(1, 2), colours=3)
    count = 4000
    drawn = complete(model, torch.zeros(count, 0, dtype=torch.long), seed=5)
    found = torch.zeros(3, 3).index_put((drawn[:, 0], drawn[:, 1]), torch.ones(count), accumulate=True) / count
    every = torch.tensor(list(itertools.product(range(3), repeat=2)))
    likelihoods = (2 ** (-2 * bits_per_pixel(model, every))).view(3, 3)
    assert float(likelihoods.sum()) == pytest.approx(1, abs=1e-5)  # of all images there are
    # five deviations of a binomial share, at most sqrt(1/4 / count)
    assert (found - likelihoods).abs().max() < 5 * math.sqrt(0.25 / count)


def test_a_seed_repeats_the_draw_and_top_k_and_temperature_narrow_it():
    model, nothing = make(), torch.zeros(50, 0, dtype=torch.long)
    assert torch.equal(complete(model, nothing, seed=3), complete(model, nothing, seed=3))
    assert not torch.equal(complete(model, nothing, seed=3), complete(model, nothing, seed=4))
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]]).expand(400, -1)
    drawn = draw(logits, 1.0, 2, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {1, 2}
    assert set(draw(logits, 0.01, None, torch.Generator().manual_seed(0)).tolist()) == {1}


def test_a_completion_keeps_to_its_temperature_and_top_k():
    model, nothing = make(), torch.zeros(60, 0, dtype=torch.long)
    likeliest = complete(model, nothing, temperature=0)
    assert torch.equal(complete(model, nothing, temperature=1e-5), likeliest)
    assert torch.equal(complete(model, nothing, top_k=1), likeliest)
    assert not torch.equal(complete(model, nothing), likeliest)


@pytest.mark.parametrize("temperature", [1e-30, 1e-60, 5e-324])
def test_the_smallest_temperatures_draw_the_likeliest_colour(temperature: float):
    logits = torch.tensor([[-80.0, 40.0, 39.0]])
    assert draw(logits, temperature, None, torch.Generator().manual_seed(0)).tolist() == [1]


def test_a_bidirectional_model_completes_nothing():
    with pytest.raises(ConfigError, match="next-pixel"):
        complete(make(causal=False), torch.zeros(1, 2, dtype=torch.long))
