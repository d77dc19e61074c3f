"""README.md, read by the library that the Hub's own tools use."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from PIL import Image

import vitkit
from tests.report.run_folders import HOSTILE, PLAIN, SIDE, make_evaluation, make_split, write_run
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.report.card import write_card
from vitkit.report.markdown import escape


def test_the_front_matter_carries_the_score(tmp_path: Path) -> None:
    evaluation = make_evaluation(PLAIN, make_split(PLAIN))
    write_run(tmp_path, evaluation=evaluation)
    card = ModelCard.load(write_card(tmp_path))
    assert card.data.library_name == "vitkit"
    assert card.data.license == "unknown"
    assert card.data.pipeline_tag == "image-classification"
    assert "accuracy" in card.data.metrics
    scores = {result.metric_type: result for result in card.data.eval_results}
    assert scores["accuracy"].metric_value == pytest.approx(evaluation.headline.value)
    assert scores["f1"].metric_value == pytest.approx(0.6123)
    assert (scores["accuracy"].dataset_name, scores["accuracy"].dataset_split) == ("photos", "test")
    assert "90.0 % top-1 (84.9 – 95.0), 40 test images, 3 classes" in card.text
    assert "3 classes: bird, cat, dog." in card.text


def test_data_and_weights_of_the_hub_are_linked_and_a_given_licence_is_kept(tmp_path: Path) -> None:
    config = Fit(data="hf:OWNER/pets", model="B/16", image=(SIDE, SIDE), weights="default")
    write_run(
        tmp_path,
        evaluation=make_evaluation(PLAIN, make_split(PLAIN)),
        config=config,
        license="apache-2.0",
        data={"name": "hf:OWNER/pets", "pictures": {"train": 10}},
    )
    card = ModelCard.load(write_card(tmp_path))
    assert card.data.license == "apache-2.0"
    assert card.data.datasets == ["OWNER/pets"]
    assert card.data.base_model.startswith("timm/vit_base")
    assert card.data.eval_results[0].dataset_type == "OWNER/pets"


def test_weights_inside_the_package_are_named_with_their_licence(tmp_path: Path) -> None:
    config = Fit(data="photos", model="Ti/16", image=(SIDE, SIDE), weights="ti16")
    folder = write_run(tmp_path, evaluation=make_evaluation(PLAIN, make_split(PLAIN)), config=config)
    record = json.loads((folder / "model.json").read_text())
    record["provenance"] = {"weights": "ti16", "before": dict(vitkit.load("ti16").metadata.provenance)}
    (folder / "model.json").write_text(json.dumps(record))
    card = ModelCard.load(write_card(folder))
    assert card.data.base_model is None  # they are not on the Hub under this name
    assert "| started from | ti16 (Ti/16 of AugReg, ImageNet-1k) |" in card.text
    assert "the licences of the data and of the initial weights (Apache-2.0) may apply" in card.text


def test_a_card_that_may_be_published_tells_nothing_of_the_disk(tmp_path: Path) -> None:
    config = Fit(data="/home/me/secret/photos/", model="mu/4", image=(SIDE, SIDE), weights="/home/me/secret/start")
    write_run(
        tmp_path,
        evaluation=make_evaluation(PLAIN, make_split(PLAIN)),
        config=config,
        finished=None,
        data={"name": "/home/me/secret/photos/"},
        command="vitkit fit /home/me/secret/photos",
    )
    text = write_card(tmp_path).read_text(encoding="utf-8")
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert "# mu/4 on photos" in text
    assert "| started from | start |" in text


def test_the_code_on_the_card_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", evaluation=make_evaluation(PLAIN, make_split(PLAIN)))
    model = vitkit.create("mu/4", classes=len(PLAIN), image=SIDE)
    model.metadata = replace(model.metadata, labels=PLAIN)
    vitkit.save(model, folder)
    Image.new("RGB", (SIDE, SIDE), "red").save(tmp_path / "photo.jpg")
    text = write_card(folder).read_text(encoding="utf-8").split("## How to use it")[1].split("##")[0]
    for text_on_card, replacement in (
        ("hf:OWNER/NAME", folder),
        ("photo.jpg", tmp_path / "photo.jpg"),
        ("photos/", tmp_path),
        ("predictions.csv", tmp_path / "predictions.csv"),
    ):
        text = text.replace(text_on_card, str(replacement))
    python, shell = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    exec(python, {})
    assert capsys.readouterr().out.split()[0] in PLAIN
    command = next(line for line in shell.splitlines() if line.startswith("vitkit predict "))
    main(shlex.split(command)[1:])
    printed = capsys.readouterr().out
    assert ": 1 image" in printed
    assert "; 0 could not be read" in printed


def test_pre_training_has_a_card_without_scores(tmp_path: Path) -> None:
    write_run(tmp_path, (), objective="masked-patch")
    card = ModelCard.load(write_card(tmp_path))
    assert card.data.eval_results is None
    assert card.data.pipeline_tag == "image-feature-extraction"
    for what in ("vitkit evaluate", "vitkit predict", "Classifier"):  # it has no classes to answer with
        assert what not in card.text
    assert "vitkit.load" in card.text


@pytest.mark.parametrize("left", ["run.json", "config.toml", "model.json", "metrics.jsonl", "evaluation.json"])
def test_a_card_can_be_written_from_any_one_file(tmp_path: Path, left: str) -> None:
    write_run(tmp_path, evaluation=make_evaluation(PLAIN, make_split(PLAIN)))
    for path in list(tmp_path.iterdir()):
        if path.name != left:
            path.unlink()
    assert ModelCard.load(write_card(tmp_path)).data.library_name == "vitkit"


def test_hostile_names_have_no_meaning_in_markdown(tmp_path: Path) -> None:
    evaluation = make_evaluation(HOSTILE, make_split(HOSTILE))
    write_run(tmp_path, HOSTILE, evaluation=evaluation, data={"name": "a: b\n---\n# not a heading | x"})
    path = write_card(tmp_path)
    card = ModelCard.load(path)
    assert "<script>" not in card.text.replace("\\<script\\>", "")
    assert card.data.eval_results[0].dataset_name.startswith("a: b")
    assert "\n# not a heading" not in card.text
    assert escape("a|b\n<i>*x*_y_ `z`") == "a\\|b \\<i\\>\\*x\\*\\_y\\_ \\`z\\`"
