"""Segmenters inspected: masks, the queries that win pixels and where they look, and the analyses of their tokens."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import vitkit
from tests.model.kinds import SEGMENTERS, images_for, make
from tests.pages.browser import check_on_a_phone
from vitkit.cli.main import main
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.dense import dense_features
from vitkit.inspect.distance import attention_distance
from vitkit.inspect.embeddings import filter_components
from vitkit.inspect.image_set import open_images
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.inspection import inspect_model
from vitkit.inspect.masks import SHOWN, inspect_masks
from vitkit.inspect.page import write_page
from vitkit.inspect.relevance import relevance
from vitkit.inspect.rollout import rollout
from vitkit.inspect.rollout_overlays import rollout_overlays

LINEAR = [kind for kind in SEGMENTERS if kind.startswith("linear")]
QUERIES = [kind for kind in SEGMENTERS if kind.startswith("queries")]
LABELS = tuple(f"<b>{number}" for number in range(10))


# the analyses of tokens


@pytest.mark.parametrize("kind", LINEAR)
def test_the_tokens_of_a_linear_head_are_those_of_its_backbone(kind: str):
    torch.manual_seed(0)
    model = make(kind)
    images, backbone = images_for(model), model.backbone
    np.testing.assert_array_equal(attention_maps(model, images), attention_maps(backbone, images, token="mean"))
    np.testing.assert_array_equal(rollout(model, images), rollout(backbone, images, token="mean"))
    ours, theirs = attention_distance(model, images), attention_distance(backbone, images)
    np.testing.assert_array_equal(ours.per_image, theirs.per_image)
    np.testing.assert_array_equal(filter_components(model).components, filter_components(backbone).components)
    assert dense_features(model, images).shape[1:3] == model.config.grid


@pytest.mark.parametrize("kind", QUERIES)
def test_queries_in_front_of_the_tokens_are_left_out_of_maps_and_carried_through_rollout(kind: str):
    torch.manual_seed(0)
    model = make(kind)
    config, images = model.config, images_for(model)
    _, captured = model(images, capture=("block*attention",))
    layers = [captured[f"block{layer}/attention"].detach().double().numpy() for layer in range(config.depth)]
    patches = config.patches
    expected = np.stack([layer[:, :, -patches:, -patches:].mean(axis=2) for layer in layers], axis=1)
    maps = attention_maps(model, images, token="mean").reshape(expected.shape)
    np.testing.assert_allclose(maps, expected, atol=1e-6)
    # with queries from the first block on: before they join, each query attends to itself alone
    everyone = config.queries + config.tokens
    rolled = np.eye(everyone)[None]
    for layer in layers:
        length = layer.shape[-1]
        step = np.tile(np.eye(everyone), (len(images), 1, 1))
        step[:, -length:, -length:] = 0.5 * layer.mean(axis=1) + 0.5 * np.eye(length)
        rolled = step @ rolled
    shares = rolled[:, -patches:, -patches:].mean(axis=1)
    np.testing.assert_allclose(rollout(model, images).reshape(shares.shape), shares, atol=1e-6)
    np.testing.assert_allclose(rolled.sum(axis=2), 1)
    distance = attention_distance(model, images)
    assert np.isfinite(distance.per_image).all()
    assert 0 < distance.special_share < 1


def test_a_model_for_pixels_has_no_relevance_and_no_rollout_in_reports():
    model = make("linear")
    with pytest.raises(DoesNotApply, match="a segmenter has one for each pixel"):
        relevance(model, images_for(model))
    assert rollout_overlays(model, None) == []  # type: ignore[arg-type]
    with pytest.raises(DoesNotApply, match="gives each image one answer"):
        inspect_masks(make("token"), images_for(make("token")))


# the masks


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_masks_and_shares_are_those_of_the_scores(kind: str):
    torch.manual_seed(0)
    model = make(kind)
    images = images_for(model)
    with torch.no_grad():
        scores = F.interpolate(model(images), model.config.image, mode="bilinear")
    for found, own in zip(inspect_masks(model, images), scores, strict=True):
        chosen = own.gather(0, torch.from_numpy(found.mask).long()[None])[0]
        torch.testing.assert_close(chosen, own.amax(0), atol=1e-5, rtol=0)
        shares = {one.number: one.share for one in found.classes}
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
        assert sum(shares.values()) == pytest.approx(1)
        for one in found.classes:
            assert one.share == pytest.approx(float((found.mask == one.number).mean()))
            assert one.probability.shape == model.config.score_grid
            assert 0 <= one.probability.min() <= one.probability.max() <= 1
        assert bool(found.queries) == (model.config.head == "queries")


@pytest.mark.parametrize("kind", QUERIES)
def test_a_cell_belongs_to_the_query_that_adds_most_to_its_class(kind: str):
    torch.manual_seed(0)
    model = make(kind)
    config, images = model.config, images_for(model)
    last = f"block{config.depth - 1}/attention"
    with torch.no_grad():
        _, seen = model(images, capture=("class_logits", "mask_logits", last))
    classes = seen["class_logits"].softmax(-1)[..., :-1].numpy()
    masks = seen["mask_logits"].sigmoid().numpy()
    for index, found in enumerate(inspect_masks(model, images)):
        adds = classes[index][:, :, None, None] * masks[index][:, None]  # (Q, K, h', w')
        best = adds.sum(axis=0).argmax(axis=0)
        winners = np.take_along_axis(adds, best[None, None], axis=1)[:, 0].argmax(axis=0)
        counts = np.bincount(winners.ravel(), minlength=config.queries)
        assert found.winners == (counts > 0).sum()
        assert len(found.queries) == min(SHOWN, found.winners)
        assert [round(one.share * best.size) for one in found.queries] == sorted(counts[counts > 0], reverse=True)[
            :SHOWN
        ]
        for one in found.queries:
            assert round(one.share * best.size) == counts[one.query]
            assert one.number == classes[index, one.query].argmax()
            assert one.confidence == pytest.approx(float(classes[index, one.query].max()))
            np.testing.assert_allclose(one.mask, masks[index, one.query], atol=1e-6)
            weights = seen[last][index, :, one.query, -config.patches :].mean(dim=0).numpy()
            np.testing.assert_allclose(one.attention.ravel(), weights, atol=1e-6)


# the page


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for name in ("a.png", "<b>&amp;.png"):
        Image.fromarray(random.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("linear", "queries") else pytest.param(kind, marks=pytest.mark.slow) for kind in SEGMENTERS],
)
def test_every_kind_of_segmenter_gets_a_page(kind: str, photos: Path, tmp_path: Path):
    torch.manual_seed(0)
    model = make(kind)
    model.metadata = replace(model.metadata, labels=LABELS, provenance={"palette": [[9, 90, 200]] * 10})
    files = write_page(inspect_model(model, open_images(model, [photos])), tmp_path / "out", "run")
    page = files[0].read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in files}
    queries = model.config.head == "queries"
    assert {"mask-1.png", "mask-2.png", f"{'queries' if queries else 'classes'}-2.png"} <= {path.name for path in files}
    assert ("Which query looks where" in page) == queries
    assert "background: #095ac8" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "<h2>Attention distance</h2>" in page
    assert "a segmenter has one for each pixel" in page
    assert len(re.findall(r'<figure class="mask-row">', page)) == 2


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_the_page_fits_a_phone(color_scheme: str, photos: Path, tmp_path: Path):
    model = make("queries")
    files = write_page(inspect_model(model, open_images(model, [photos])), tmp_path / "out", "run")
    text, background = check_on_a_phone(files[0], color_scheme)
    assert text != background


def test_the_command_prints_and_json_holds_what_was_found(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = make("queries")
    model.metadata = replace(model.metadata, labels=LABELS)
    vitkit.save(model, tmp_path / "run")
    main(["inspect", str(tmp_path / "run"), str(photos)])
    assert re.search(r"masks      \d+ classes? in 2 images; [\d to]+ of 7 queries win pixels", capsys.readouterr().out)
    main(["inspect", str(tmp_path / "run"), str(photos), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [one["image"] for one in record["masks"]] == ["<b>&amp;.png", "a.png"]
    for one in record["masks"]:
        assert sum(one["shares"].values()) == pytest.approx(1, abs=0.01)
        assert one["winners"] >= len(one["queries"]) > 0
        assert {"query", "label", "index", "confidence", "share"} == one["queries"][0].keys()
    assert all(Path(name).is_file() for name in record["figures"])
    assert "answers" not in record
