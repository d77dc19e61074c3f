"""report.html and README.md of a segmentation run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.damaged_json import damaged
from tests.pages.browser import check_on_a_phone
from tests.pages.test_inline_images import decode_data_url
from tests.report.run_folders import HOSTILE, PLAIN, ParsedPage, make_evaluation, make_split, write_run
from tests.report.segmentation_runs import STREET, evaluate_split, make_mask_split, predict_mask, write_mask_run
from vitkit.data.groups import Leak
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.evaluate.segmentation_printing import print_segmentation
from vitkit.report.card import write_card
from vitkit.report.mask_samples import WORST
from vitkit.report.page import write_report
from vitkit.report.run_data import read_run_data
from vitkit.text import percent


@pytest.fixture(scope="module")
def evaluation() -> SegmentationEvaluation:
    return evaluate_split(make_mask_split(3), STREET)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, evaluation: SegmentationEvaluation) -> ParsedPage:
    folder = write_mask_run(tmp_path_factory.mktemp("run"), evaluation)
    return ParsedPage.read(write_report(folder, make_mask_split(3), predict_mask=predict_mask))


def plain(text: str) -> str:
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def test_the_page_is_well_formed_and_needs_nothing_but_itself(page: ParsedPage) -> None:
    assert not page.wrong
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "embed", "base"}
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = {link["href"] for link in page.all("a")}
    assert anchors <= {f"#{one}" for one in ids}
    assert {"#class_scores", "#typical_masks", "#worst_masks", "#class_confusions"} <= anchors


def test_the_headline_is_the_mean_iou(page: ParsedPage, evaluation: SegmentationEvaluation) -> None:
    score = evaluation.mean_iou
    expected = f"{percent(score.value)} mean IoU ({100 * score.low:.1f} – {100 * score.high:.1f}), 12 test images"
    assert expected in plain(page.texts["h1"][0])
    text = plain(page.text)
    assert percent(evaluation.pixel_accuracy.value) in text
    assert percent(evaluation.mean_accuracy.value) in text
    assert "The score was measured on 12 images" in text
    assert "Mean IoU" in page.texts["h3"]  # the validation curve
    assert "Pixel accuracy" in page.texts["h3"]
    assert "0.01 41.0 % chosen" in text
    assert "vitkit.ImageSegmenter(" in text
    assert "--out masks" in text


def test_classes_have_their_scores_the_weakest_first(page: ParsedPage, evaluation: SegmentationEvaluation) -> None:
    rows = [plain(row) for row in page.texts["tr"]]
    expected = [
        f"{row.name} {percent(row.iou.value)} {100 * row.iou.low:.1f} – {100 * row.iou.high:.1f} "
        f"{percent(row.accuracy)} {percent(row.pixels / evaluation.pixels)} {row.images}"
        for row in sorted(evaluation.per_class, key=lambda row: row.iou.value)
    ]
    assert [row for row in rows if row in expected] == expected
    assert f"{percent(1 / 24)} of all pixels are ignored" in plain(page.text)


def test_masks_stand_side_by_side(page: ParsedPage, evaluation: SegmentationEvaluation) -> None:
    images = [decode_data_url(image["src"]) for image in page.all("img")]
    shown = len(evaluation.typical) + min(len(evaluation.worst), WORST)
    assert len(images) == 3 * shown
    assert all(image.shape[:2] == (24, 40) for image in images)
    alts = [image["alt"] for image in page.all("img")]
    assert alts.count(f"{evaluation.worst[0].key}, where it is wrong") == 1
    text = plain(page.text)
    assert f"{percent(evaluation.typical[0].mean_iou)} mean IoU" in text
    assert re.search(r"of its pixels: \w+ taken for \w+", text)
    assert "ignored" in text


def test_confusions_are_in_words_and_in_a_matrix(page: ParsedPage, evaluation: SegmentationEvaluation) -> None:
    counts = np.array(evaluation.confusion)
    wrong = counts - np.diag(np.diag(counts))
    truth, prediction = np.unravel_index(wrong.argmax(), wrong.shape)
    shares = wrong[truth, prediction] / counts[truth].sum(), wrong[truth, prediction] / wrong.sum()
    row = f"{STREET[truth]} {STREET[prediction]} {percent(shares[0])} {percent(shares[1])}"
    assert row in [plain(row) for row in page.texts["tr"]]
    assert "Confusion matrix of 3 classes" in [svg.get("aria-label") for svg in page.all("svg")]


def test_without_images_or_a_model_the_tables_stay(tmp_path: Path, evaluation: SegmentationEvaluation) -> None:
    folder = write_mask_run(tmp_path, evaluation)
    for split, predict in ((None, predict_mask), (make_mask_split(3), None), (make_mask_split(3, 0), predict_mask)):
        page = ParsedPage.read(write_report(folder, split, predict_mask=predict))
        ids = {attributes.get("id") for _, attributes in page.elements}
        assert {"class_scores", "class_confusions"} <= ids
        assert not {"typical_masks", "worst_masks", "preprocessing"} & ids
        assert not page.wrong


def test_the_loss_of_queries_and_that_of_validation_are_on_axes_of_their_own(tmp_path: Path) -> None:
    """The sum of the losses of several blocks is some twenty times the cross-entropy of pixels."""
    folder = write_mask_run(tmp_path, None)
    titles = ParsedPage.read(write_report(folder, make_mask_split(3))).texts["h3"]
    assert "Loss" in titles
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{**row, "mask_loss": 0.3, "loss": 50} if row["kind"] == "step" else row for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    titles = ParsedPage.read(write_report(folder, make_mask_split(3))).texts["h3"]
    assert {"Training loss", "Validation loss"} <= set(titles)
    assert "Loss" not in titles


def test_a_run_that_was_not_scored_or_is_damaged_has_a_report(tmp_path: Path) -> None:
    folder = write_mask_run(tmp_path, None)
    assert "not evaluated" in ParsedPage.read(write_report(folder, make_mask_split(3))).text
    (folder / "evaluation.json").write_text(json.dumps({"task": "segment", "data": 3}))
    assert read_run_data(folder).unreadable_files == ("evaluation.json",)
    write_card(folder)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_damaged_evaluation_still_gives_a_report(
    tmp_path: Path, evaluation: SegmentationEvaluation, draw: st.DataObject
) -> None:
    folder = write_mask_run(tmp_path, evaluation)
    content = draw.draw(damaged(json.loads(evaluation.to_json())))
    (folder / "evaluation.json").write_text(json.dumps(content))
    assert write_report(folder, make_mask_split(3), predict_mask=predict_mask).stat().st_size > 1000
    write_card(folder)
    run = read_run_data(folder)
    if run.segmentation is not None:
        print_segmentation(run.segmentation)


def test_problems_name_what_the_scores_hide(tmp_path: Path) -> None:
    split = replace(make_mask_split(3), leaked=np.array([Leak.IDENTICAL] * 2 + [Leak.NONE] * 10, np.uint8))
    evaluation = evaluate_split(split, STREET, unlabelled=3, left_out={"a.png": "truncated"}, missing=("car",))
    blind = evaluation.per_class[1]
    assert blind.iou is not None
    empty = replace(blind.iou, value=0.0, low=0.0)
    lost, unasked = replace(evaluation.per_class[0], iou=empty), replace(blind, iou=empty, pixels=0)
    folder = write_mask_run(
        tmp_path, replace(evaluation, per_class=(lost, unasked, evaluation.per_class[2]), windows=4)
    )
    text = plain(ParsedPage.read(write_report(folder, split)).text)
    for sentence in (
        "2 are copies of training images (2 identical)",
        "on the 10 that training has not seen",
        "Scoring skipped 1 image: a.png (truncated)",
        "3 images of the test split had no mask",
        "Not one pixel was found of 1 class: sky",
        "1 class is in no ground-truth mask",
        "The scored data lack 1 class of the model: car",
        "4 of the images are much larger",
    ):
        assert sentence in text


def test_a_page_of_a_classifier_has_nothing_of_masks(tmp_path: Path) -> None:
    split = make_split(PLAIN)
    write_run(tmp_path, evaluation=make_evaluation(PLAIN, split))
    path = write_report(tmp_path, split, predict_mask=predict_mask)
    assert not re.search(r"class_scores|typical_masks|swatch|\.masks", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_a_report_fits_a_phone_and_fetches_nothing(tmp_path: Path, color_scheme: str) -> None:
    split = make_mask_split(len(HOSTILE))
    write_mask_run(tmp_path, evaluate_split(split, HOSTILE), HOSTILE)
    text, background = check_on_a_phone(write_report(tmp_path, split, predict_mask=predict_mask), color_scheme)
    assert text != background


def test_the_card_carries_the_scores(tmp_path: Path, evaluation: SegmentationEvaluation) -> None:
    card = ModelCard.load(write_card(write_mask_run(tmp_path, evaluation)))
    assert card.data.pipeline_tag == "image-segmentation"
    scores = {result.metric_type: result for result in card.data.eval_results}
    assert scores["mean_iou"].metric_value == pytest.approx(evaluation.mean_iou.value, abs=1e-6)
    assert scores["mean_iou"].task_type == "image-segmentation"
    assert "an image model that gives every pixel a class" in card.text
    weakest = min(evaluation.per_class, key=lambda row: row.iou.value)
    assert f"Weakest classes: {weakest.name} (IoU {percent(weakest.iou.value)})" in card.text
    assert "Most of the wrong pixels: " in card.text
    assert f"| {weakest.name} | {percent(weakest.iou.value)} |" in card.text
