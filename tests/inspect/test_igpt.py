"""Attention of an iGPT, causal and not, against loops over pairs of pixels in float64, and its page."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.distance import cosine

import vitkit
from tests.inspect import reference
from tests.model.kinds import images_for, randomise
from tests.pages.browser import check_on_a_phone
from vitkit.cli.main import main
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.completions import Sampling, completions
from vitkit.inspect.distance import attention_distance
from vitkit.inspect.embeddings import position_similarity
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.relevance import relevance
from vitkit.inspect.rollout import rollout
from vitkit.model.igpt import ImageGPT

GRID = 4, 5


def make(causal: bool, image: tuple[int, int] = GRID) -> ImageGPT:
    torch.manual_seed(0)
    model = vitkit.create("iGPT-mu/4", classes=10, colours=19, image=image, causal=causal).eval()
    with torch.no_grad():
        model.embedding.colours.mul_(20)  # else attention would be near to uniform
    return randomise(model)


def captured(model: ImageGPT, images: torch.Tensor) -> np.ndarray:
    """Return the model's own weights of tokens for tokens in float64: (L, B, H, N, N)."""
    _, seen = model(images, capture=("block*/attention",))
    return np.stack([weights.detach().double().numpy() for weights in seen.values()])


def pixel_pairs(causal: bool) -> list[tuple[int, int, int, int]]:
    """Return the pixels (query, key) that a model sees, with the tokens that stand for them.

    Token t of a causal model is asked for pixel t, after the start of the sequence and the pixels before it have come
    in as tokens 0, 1, 2 …; every token of the other model is a pixel.
    """
    count = GRID[0] * GRID[1]
    if not causal:
        return [(query, key, query, key) for query in range(count) for key in range(count)]
    return [(query, key, query, 1 + key) for query in range(count) for key in range(query)]


def pixels_between(a: int, b: int) -> float:
    return float(np.hypot(a // GRID[1] - b // GRID[1], a % GRID[1] - b % GRID[1]))


@pytest.mark.parametrize("causal", [True, False])
def test_maps_are_of_the_pixels_that_are_read(causal: bool):
    model = make(causal)
    images = images_for(model)
    weights = captured(model, images)
    count = GRID[0] * GRID[1]
    expected = np.zeros((*weights.shape[:3], count, count))
    for query, key, from_token, to_token in pixel_pairs(causal):
        expected[..., query, key] = weights[..., from_token, to_token]
    expected = expected.swapaxes(0, 1)  # (B, L, H, N, N)
    for token, rows in (("mean", expected.mean(axis=-2)), ((2, 3), expected[..., 2 * GRID[1] + 3, :])):
        maps = attention_maps(model, images, token=token)
        np.testing.assert_allclose(maps, rows.reshape(maps.shape), atol=16 * reference.EPS)
    chosen = attention_maps(model, images, token=(2, 3), layers=[1], heads=[0])
    np.testing.assert_array_equal(chosen, attention_maps(model, images, token=(2, 3))[:, 1:2, :1])


@pytest.mark.parametrize("causal", [True, False])
def test_distance_is_a_loop_over_pairs_of_pixels(causal: bool):
    model = make(causal)
    images = images_for(model)
    weights = captured(model, images)
    total, far = (np.zeros((*weights.shape[:3], GRID[0] * GRID[1])) for _ in range(2))
    uniform: dict[int, list[float]] = {}
    for query, key, from_token, to_token in pixel_pairs(causal):
        weight = weights[..., from_token, to_token]
        total[..., query] += weight
        far[..., query] += weight * pixels_between(query, key)
        uniform.setdefault(query, []).append(pixels_between(query, key))
    first = 1 if causal else 0  # the first pixel is predicted from the start of the sequence alone
    expected = (far[..., first:] / total[..., first:]).mean(axis=-1).swapaxes(0, 1)  # (B, L, H)
    distance = attention_distance(model, images)
    np.testing.assert_allclose(distance.per_image, expected, rtol=128 * reference.EPS)
    assert expected.std() > 0.01  # heads differ
    assert distance.uniform == pytest.approx(np.mean([np.mean(row) for row in uniform.values()]), rel=1e-5)
    assert sorted(uniform) == list(range(first, GRID[0] * GRID[1]))
    assert distance.special_share == pytest.approx(1 - total[..., first:].mean(), abs=1e-5)
    assert (distance.special_share > 0.01) == causal


@pytest.mark.parametrize("causal", [True, False])
def test_equal_scores_have_the_uniform_distance(causal: bool):
    model = make(causal)
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.qkv.weight[: 2 * model.config.width] = 0
            block.attention.qkv.bias[: 2 * model.config.width] = 0
    distance = attention_distance(model, images_for(model))
    np.testing.assert_allclose(distance.per_image, distance.uniform, rtol=128 * reference.EPS)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("identity", [True, False])
def test_rollout_is_the_share_of_the_pixels_that_were_read(identity: bool, causal: bool):
    model = make(causal)
    images = images_for(model)
    weights = captured(model, images)
    rolled = rollout(model, images, identity=identity)
    for index, shares in enumerate(rolled):
        mean = reference.rollout([layer[index] for layer in weights], identity).mean(axis=0)  # what the head reads
        expected = np.append(mean[1:], 0) if causal else mean  # no token reads the last pixel
        np.testing.assert_allclose(shares, expected.reshape(GRID), atol=16 * reference.EPS)


def test_position_similarity_compares_the_rows_of_the_table():
    model = make(True)
    table = model.embedding.positions.detach().double().numpy()
    expected = [[1 - cosine(a, b) for b in table] for a in table]
    np.testing.assert_allclose(position_similarity(model).reshape(20, 20), expected, atol=16 * reference.EPS)


def test_what_does_not_apply_is_declined_by_name():
    model = make(True)
    with pytest.raises(DoesNotApply, match="relevance: it is built for Vision Transformers alone, not for an iGPT"):
        relevance(model, images_for(model))
    one_pixel = make(True, (1, 1))
    with pytest.raises(DoesNotApply, match="a single pixel has none before it"):
        attention_distance(one_pixel, images_for(one_pixel))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_completions_follow_each_setting_of_their_sampling():
    model = make(True)
    images = images_for(model)

    def drawn(**settings: Any) -> np.ndarray:
        return completions(model, images, Sampling(samples=2, **settings)).completed

    np.testing.assert_array_equal(drawn(seed=1), drawn(seed=1))
    assert not np.array_equal(drawn(seed=1), drawn(seed=2))
    likeliest = drawn(temperature=0)
    assert not np.array_equal(drawn(), likeliest)
    np.testing.assert_array_equal(drawn(top_k=1), likeliest)
    np.testing.assert_array_equal(drawn(temperature=1e-6), likeliest)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("samples", "0"),
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("top-k", "0"),
        ("seed", "-1"),
        ("seed", str(2**63)),
    ],
)
def test_a_sampling_that_cannot_be_drawn_is_a_message(
    option: str, value: str, photos: Path, capsys: pytest.CaptureFixture[str]
):
    run = photos.parent / "run"
    vitkit.save(make(True), run)
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", str(run), str(photos), f"--{option}", value])
    assert stopped.value.code == 2
    assert f"{option.replace('-', '_')} = {value} must be" in capsys.readouterr().err


@pytest.mark.parametrize("causal", [True, False])
def test_the_page_shows_attention_and_says_what_a_pixel_sees(
    causal: bool, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)  # where photos/ is
    vitkit.save(make(causal), "run")
    main(["inspect", "run", "photos", "--json", *(["--samples", "7"] if causal else [])])
    content = json.loads(capsys.readouterr().out)
    assert content["grid"] == list(GRID)
    assert np.shape(content["attention_distance"]["heads"]) == (2, 2)
    assert (content["attention_distance"]["special_share"] > 0) == causal
    names = {Path(name).name for name in content["figures"]}
    assert {"attention-1-mean.png", "distance.png", "distance-near.png", "positions.png"} <= names
    assert ("attention-1-2-2.png" in names) == ("completions.png" in names) == causal
    page = Path("run/inspect/inspect.html").read_text(encoding="utf-8")
    for text in ("of the token that predicts it", "all pixels before the one", "start of the sequence has no position"):
        assert (text in page) == causal
    assert "Relevance: it is built for Vision Transformers alone" in page
    assert "A patch is a pixel here" in page
    code = re.search(r"<code>(.*?)</code>", page, re.DOTALL)
    exec(html.unescape(code[1]), {})
    if causal:
        check_on_a_phone(tmp_path / "run/inspect/inspect.html", "light")
