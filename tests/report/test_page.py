"""report.html, read as a browser would read it."""

from __future__ import annotations

import html
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.pages.test_inline_images import decode_data_url
from tests.report.run_folders import (
    HOSTILE,
    PLAIN,
    SIDE,
    ParsedPage,
    make_evaluation,
    make_metrics,
    make_split,
    write_run,
)
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.errors import ConfigError
from vitkit.evaluate.evaluation import ClassScore, Estimate
from vitkit.pages.inline_images import SAMPLES
from vitkit.report.card import write_card
from vitkit.report.page import hide_paths, write_report
from vitkit.report.run_data import read_run_data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ParsedPage:
    split = make_split(PLAIN)
    folder = write_run(tmp_path_factory.mktemp("run"), evaluation=make_evaluation(PLAIN, split))
    return ParsedPage.read(write_report(folder, split))


def test_the_page_is_well_formed_and_needs_nothing_but_itself(page: ParsedPage) -> None:
    assert not page.wrong
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base"}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    assert not re.search(r"@import|url\((?!#)", page.texts["style"][0])
    assert len(page.all("h1")) == 1


def test_ids_are_unique_and_references_have_targets(page: ParsedPage) -> None:
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    text = str(page.elements)
    referred = {target for pair in re.findall(r"'href': '#([^']+)'|url\(#([^)]+)\)", text) for target in pair if target}
    assert referred
    assert referred <= set(ids)


def test_numbers_are_those_of_the_evaluation(page: ParsedPage) -> None:
    title = "mu/4 on photos: 90.0 % top-1 (84.9 – 95.0), 40 test images, 3 classes; all weights were trained"
    assert page.texts["title"] == [title]
    assert " ".join(page.texts["h1"][0].split()) == title
    for text in (
        "61.2 %",
        "62.3 %",
        "4.6 %",
        "2 min 3 s",
        "0123abcd",
        "vitkit fit photos --epochs 3",
        "torch 2.13.0",
        "412 images/s",
        "two empty folders",
        "289 gigaFLOPs",
        "512 images (2 micro-batches x 256)",
        "0.01 91.0 % chosen",
    ):
        assert text in page.text.replace("\N{NO-BREAK SPACE}", " ")


def test_held_out_images_are_not_counted_as_training_images(tmp_path: Path) -> None:
    write_run(tmp_path, split={"source": "train", "share": 0.1, "seed": 3, "fingerprint": "0123abcd"})
    text = ParsedPage.read(write_report(tmp_path, None)).text
    assert "Trained on 4,320 images for 60 steps" in text  # 60 steps of 512 over 7.11 epochs, not all 4,800
    assert "10% of each class of train held out for scoring, seed 3" in text


def test_classes_have_their_recall_precision_and_number_of_images(page: ParsedPage) -> None:
    rows = [" ".join(row.split()) for row in page.texts["tr"]]
    # images 0 and 33 are birds classified as cats, 11 a dog classified as a bird, 22 a cat classified as a dog
    assert "bird 85.7 % 92.3 % 50.0 % 14 100" in rows  # 12 of 14 birds, 12 of 13 predictions correct, 14 scored
    assert "cat 92.3 % 85.7 % 50.0 % 13 101" in rows
    assert "bird cat 2 of 14 0 of 13" in rows


def test_classes_are_sorted_with_the_weakest_first_and_long_tables_folded(tmp_path: Path) -> None:
    classes = tuple(f"class {index:02}" for index in range(50))
    split = make_split(classes, 400)
    scores = tuple(
        ClassScore(name=name, images=8, recall=None if index == 7 else 1 - index / 100, precision=None, f1=0.5)
        for index, name in enumerate(classes)
    )
    write_run(tmp_path, classes, evaluation=make_evaluation(classes, split, per_class=scores))
    page = ParsedPage.read(write_report(tmp_path, None))
    names = [row.strip() for row in page.texts["th"] if re.match(r"class \d", row)][:50]
    assert names[0] == "class 49"
    assert names[-1] == "class 07"  # without images, so without recall
    assert "The other 38 classes" in page.texts["summary"]


@pytest.mark.parametrize(("weak", "opened"), [(3, 3), (0, 12), (30, 12)])
def test_the_weakest_classes_are_below_100_percent(weak: int, opened: int, tmp_path: Path) -> None:
    classes = tuple(f"class {index:02}" for index in range(50))
    scores = tuple(
        ClassScore(name=name, images=8, recall=0.5 if index < weak else 1.0, precision=None, f1=0.5)
        for index, name in enumerate(classes)
    )
    write_run(tmp_path, classes, evaluation=make_evaluation(classes, make_split(classes, 400), per_class=scores))
    page = ParsedPage.read(write_report(tmp_path, None))
    assert f"The other {50 - opened} classes" in page.texts["summary"]
    assert ("No class is below 100 %" in page.text) == (weak == 0)
    assert ("The weakest come first" in page.text) == (weak > 0)
    write_card(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.count("(recall 50.0 %)") == min(weak, 5)
    assert "(recall 100 %)" not in card


def test_hostile_names_are_shown_and_never_run(tmp_path: Path) -> None:
    split = make_split(HOSTILE)
    evaluation = make_evaluation(
        HOSTILE, split, left_out={"<b>.jpg": "<i>bad</i>"}, missing=HOSTILE[:1], extra=HOSTILE[1:3]
    )
    write_run(
        tmp_path,
        HOSTILE,
        evaluation=evaluation,
        command="vitkit fit '<img src=x onerror=alert(1)>'",
        decisions=[["<u>", "</dl><script>alert(2)</script>"]],
    )
    page = ParsedPage.read(write_report(tmp_path, split))
    assert not page.wrong
    assert not {"script", "i", "u"} & {tag for tag, _ in page.elements}
    assert not [one for one in page.all("img") if not (one["src"] or "").startswith("data:")]
    cells = [" ".join(row.split()) for row in page.texts["th"]]
    for name in HOSTILE[:4] + HOSTILE[5:]:
        assert " ".join(name.split()) in cells
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "</dl><script>alert(2)</script>" in page.text


def test_figures_hold_class_names_of_any_script_as_text(tmp_path: Path) -> None:
    split = make_split(HOSTILE)
    write_run(tmp_path, HOSTILE, evaluation=make_evaluation(HOSTILE, split))
    texts = ParsedPage.read(write_report(tmp_path, None)).texts["text"]
    assert "고양이" in texts
    assert "$\\frac{a$" in texts
    assert "<script>alert(1)</script>" in texts
    assert "bell\ufffd and \ufffd" in texts


def test_inline_images_are_the_output_of_the_evaluation_transform(tmp_path: Path) -> None:
    split = make_split(PLAIN)
    evaluation = make_evaluation(PLAIN, split)
    write_run(tmp_path, evaluation=evaluation)
    page = ParsedPage.read(write_report(tmp_path, split))
    images = [decode_data_url(one["src"]) for one in page.all("img")]
    wrong = images[: len(evaluation.mistakes)]
    transform = read_run_data(tmp_path).transform
    assert transform is not None
    for image, mistake in zip(wrong, evaluation.mistakes, strict=True):
        resized = transform.resize_only(split.read(mistake.index)).round().byte().permute(1, 2, 0).numpy()
        assert image.shape == (SIDE, SIDE, 3)
        np.testing.assert_array_equal(image, resized)
    before_and_after = images[len(wrong) :]
    assert [one.shape[:2] for one in before_and_after] == [(24, 32), (SIDE, SIDE)] * SAMPLES
    assert all(one["alt"] for one in page.all("img"))


def test_mistakes_of_another_split_are_listed_without_images(tmp_path: Path) -> None:
    split = make_split(PLAIN)
    write_run(tmp_path, evaluation=make_evaluation(PLAIN, split))
    page = ParsedPage.read(write_report(tmp_path, split.select(np.arange(len(split))[::-1])))
    assert page.text.count("image not available") == 4


def test_a_run_without_evaluation_shows_its_curves(tmp_path: Path) -> None:
    steps = [{**row, "accuracy": None} for row in make_metrics() if row["kind"] == "step"]
    config = Fit(data="photos", model="mu/4", image=(SIDE, SIDE), objective="masked-patch", weights="none")
    write_run(tmp_path, (), metrics=steps, config=config, objective="masked-patch", learning_rates=None)
    page = ParsedPage.read(write_report(tmp_path, make_split(PLAIN)))
    assert "pre-trained by masked patch prediction for 60 steps" in page.text
    assert {"Loss", "Learning rate", "Gradient norm"} <= set(page.texts["h3"])
    assert not {"Class by class", "The worst mistakes", "Confusions"} & set(page.texts["h2"])
    assert "Preprocessing: what the model gets" in page.texts["h2"]
    assert "vitkit evaluate" not in page.text


@pytest.mark.parametrize(
    ("default", "sentence"),
    [
        (0.003, "The best was 4.0 points ahead of the recipe's own rate, 0.003, on these images."),
        (0.01, "No rate was ahead of the recipe's own, 0.01."),
    ],
)
def test_the_recipes_rate_is_compared_with_the_best(default: float, sentence: str, tmp_path: Path):
    write_run(tmp_path, asked={"lr": default})
    assert sentence in html.unescape(write_report(tmp_path, None).read_text())


def test_the_last_section_holds_commands_and_code_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path of the run needs quotes; IMAGES is a photo that the Python lines name."""
    monkeypatch.chdir(tmp_path)
    folder = write_run(Path("it's a run"), evaluation=make_evaluation(PLAIN, make_split(PLAIN)))
    model = vitkit.create("mu/4", classes=len(PLAIN), image=SIDE)
    model.metadata = replace(model.metadata, labels=PLAIN)
    vitkit.save(model, folder)
    Image.new("RGB", (SIDE, SIDE), "red").save("photo.jpg")
    *_, shell, python = ParsedPage.read(write_report(folder, None)).texts["pre"]
    exec(python, {})
    assert capsys.readouterr().out.split()[0] in PLAIN
    commands = [shlex.split(line)[1:] for line in shell.splitlines() if line and not line.startswith("#")]
    assert [words[0] for words in commands] == ["predict", "serve", "export", "evaluate", "fit", "inspect"]
    assert all(str(folder) in words for words in commands)
    for verb in ("predict", "inspect"):
        (words,) = [words for words in commands if words[0] == verb]
        main(["photo.jpg" if word == "IMAGES" else word for word in words])
    assert "photo.jpg" in capsys.readouterr().out


def test_pre_training_offers_no_prediction(tmp_path: Path) -> None:
    write_run(tmp_path, (), objective="masked-patch")
    text = ParsedPage.read(write_report(tmp_path, None)).texts
    *_, shell, python = text["pre"]
    assert "vitkit fit DATA --weights" in shell
    assert not [word for word in ("predict", "serve", "export", "evaluate") if f"vitkit {word} " in shell]
    assert "vitkit.load(" in python
    assert "Classifier" not in python


def test_a_multilabel_run_is_headed_by_its_average_precision(tmp_path: Path) -> None:
    split = make_split(PLAIN)
    scores = tuple(
        ClassScore(name=name, images=13, recall=0.5, precision=0.5, f1=0.5, average_precision=value)
        for name, value in zip(PLAIN, (0.9, 0.3, 0.6), strict=True)
    )
    evaluation = make_evaluation(
        PLAIN,
        split,
        multilabel=True,
        top1=None,
        confusion=(),
        reliability=(),
        mistakes=(),
        mean_average_precision=Estimate(value=0.6, low=0.55, high=0.65),
        per_class=scores,
    )
    write_run(tmp_path, evaluation=evaluation, metrics=[{"kind": "score", "step": 5, "loss": 1.0, "map": 0.5}])
    page = ParsedPage.read(write_report(tmp_path, split))
    assert "60.0 % mean average precision (55.0 – 65.0)" in page.text
    assert page.text.index("cat") < page.text.index("dog") < page.text.index("bird")
    assert "Mean average precision" in page.texts["h3"]


@pytest.mark.parametrize("name", ["run.json", "config.toml", "model.json", "metrics.jsonl", "evaluation.json"])
@pytest.mark.parametrize("content", [None, "{"])
def test_missing_and_broken_files_are_reported_as_not_recorded(tmp_path: Path, name: str, content: str | None) -> None:
    split = make_split(PLAIN)
    write_run(tmp_path, evaluation=make_evaluation(PLAIN, split))
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    page = ParsedPage.read(write_report(tmp_path, split))
    assert not page.wrong
    if name == "run.json":
        assert "not recorded" in page.text


def test_only_metrics_or_only_a_model_are_enough(tmp_path: Path) -> None:
    write_run(tmp_path)
    for name in ("run.json", "config.toml", "model.json"):
        (tmp_path / name).unlink()
    assert "trained for 60 steps, not evaluated" in ParsedPage.read(write_report(tmp_path, None)).text


def test_problems_are_listed(tmp_path: Path) -> None:
    split = make_split(PLAIN)
    metrics = [
        *make_metrics(),
        {"kind": "rolled-back", "step": 23, "to": 20, "what": "loss is nan"},
        {"kind": "left-out", "step": 3, "picture": "a/b.jpg", "reason": "empty file"},
    ]
    evaluation = make_evaluation(
        PLAIN, split, missing=("dog",), extra=("fox",), unlabelled=3, left_out={"c.jpg": "cut off"}
    )
    write_run(tmp_path, evaluation=evaluation, metrics=metrics, finished=None)
    text = ParsedPage.read(write_report(tmp_path, split)).text
    for sentence in (
        f"vitkit resume {tmp_path}",
        "At step 23 training was rolled back to step 20: loss is nan",
        "Training skipped 1 image: a/b.jpg (empty file)",
        "Scoring skipped 1 image: c.jpg (cut off)",
        "3 images of the test split had no class",
        "lack 1 class of the model: dog",
        "1 class that the model does not know: fox",
        "7 things to know",
    ):
        assert sentence in text


def test_the_last_row_of_a_repeated_step_counts_and_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    write_run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 60, "loss": 7.5, "lr": 0.1}\n{"kind": "step", "step": 61, "lo')
    steps = read_run_data(tmp_path).steps
    assert len(steps) == 60
    assert steps[-1]["loss"] == 7.5


@pytest.mark.parametrize(
    "values",
    [[float("nan")] * 5, [1.0], [0.0, 0.0], [1.0, float("inf"), 2.0], list(np.random.default_rng(0).random(3000))],
)
def test_curves_of_any_length_and_with_non_finite_values_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    rows = [{"kind": "step", "step": step, "loss": value, "norm": value} for step, value in enumerate(values, 1)]
    write_run(tmp_path, metrics=rows)
    path = write_report(tmp_path, None)
    assert not ParsedPage.read(path).wrong
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("count", [2, 40, 41, 300])
def test_any_number_of_classes_can_be_drawn(tmp_path: Path, count: int) -> None:
    classes = tuple(f"class {index}" for index in range(count))
    split = make_split(classes, 3 * count)
    write_run(tmp_path, classes, evaluation=make_evaluation(classes, split))
    page = ParsedPage.read(write_report(tmp_path, None))
    named = [text for text in page.texts["text"] if text in classes]
    assert len(named) == (2 * count if count <= 40 else 0)
    assert "Confusions" in page.texts["h2"]


def test_the_same_run_gives_the_same_file_and_writes_no_other_file(tmp_path: Path) -> None:
    split = make_split(PLAIN)
    write_run(tmp_path, evaluation=make_evaluation(PLAIN, split))
    before = set(tmp_path.iterdir())
    first = write_report(tmp_path, split).read_bytes()
    assert write_report(tmp_path, split).read_bytes() == first
    assert set(tmp_path.iterdir()) - before == {tmp_path / "report.html"}


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder"):
        write_report(tmp_path, None)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('data = "/home/ann/scans/patients"', 'data = "…/patients"'),
        ('out = "~/runs/a"', 'out = "…/a"'),
        ('weights = "C:\\\\Users\\\\ann\\\\run"', 'weights = "…/run"'),
        ('weights = "hf:google/vit-base"', None),
        ('data = "fashion"', None),
        ('data = "photos/cats"', None),
        ('label = "/a/b"', None),
    ],
)
def test_absolute_paths_are_hidden_in_the_settings(line: str, shown: str | None):
    assert hide_paths(f"lr = 0.1\n{line}\nsteps = 3\n") == f"lr = 0.1\n{shown or line}\nsteps = 3\n"
