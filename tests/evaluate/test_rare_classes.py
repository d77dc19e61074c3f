"""Classes that are never recognised are a warning with the setting that helps, wherever scores are shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.report.run_folders import PLAIN, make_evaluation, make_split, write_run
from vitkit.cli.main import main
from vitkit.config.schema import Fit
from vitkit.evaluate.evaluation import ClassScore, Evaluation
from vitkit.evaluate.printing import print_evaluation
from vitkit.evaluate.rare_classes import recall_warning
from vitkit.report.card import write_card
from vitkit.report.run_data import read_run_data
from vitkit.report.summary import problems

COUNTS = {"bird": 400, "cat": 390, "dog": 12}


def evaluation(**recalls: float | None) -> Evaluation:
    rows = tuple(
        ClassScore(name=name, images=0 if recall is None else 9, recall=recall, precision=None, f1=None)
        for name, recall in recalls.items()
    )
    return make_evaluation(PLAIN, make_split(PLAIN), per_class=rows)


def test_a_class_at_zero_recall_is_named_with_its_images_and_the_setting_that_helps():
    warning = recall_warning(evaluation(bird=0.9, cat=0.8, dog=0.0), COUNTS, 0.0)
    assert warning.startswith("1 class of 3 had a recall of 0 %: dog (0 of 9; 12 in training). --set balance=0.5")


@pytest.mark.parametrize(
    ("balance", "advice"),
    [
        (0.5, "balance is 0.5: --set balance=1"),
        (1.0, "Rare classes already weigh as much as others (balance): they need more images"),
        (None, "fit again with --set balance=0.5"),
    ],
)
def test_the_advice_depends_on_the_balance_of_the_run(balance: float | None, advice: str):
    assert advice in recall_warning(evaluation(bird=0.9, dog=0.0), COUNTS, balance)


def test_a_frequent_class_at_zero_recall_is_not_blamed_on_its_rarity():
    warning = recall_warning(evaluation(bird=0.0, cat=0.9, dog=0.9), COUNTS, 0.0)
    assert "They are not rare in training" in warning
    assert "balance" not in warning


def test_a_class_without_training_images_needs_images_and_no_other_weight():
    warning = recall_warning(evaluation(bird=0.9, cat=0.8, dog=0.0), {**COUNTS, "dog": 0}, 0.0)
    assert "dog (0 of 9; 0 in training). A class with 0 in training was not learned at all: add images" in warning
    assert "balance" not in warning
    both = recall_warning(evaluation(bird=0.9, cat=0.0, dog=0.0), {**COUNTS, "cat": 9, "dog": 0}, 0.0)
    assert "--set balance=0.5" in both
    assert "A class with 0 in training" in both
    frequent = recall_warning(evaluation(bird=0.0, cat=0.9, dog=0.0), {**COUNTS, "dog": 0}, 0.0)
    assert "They are not rare" not in frequent
    assert "balance" not in frequent


def test_classes_without_images_or_with_some_recall_are_no_warning():
    assert recall_warning(evaluation(bird=0.9, cat=None, dog=0.1), COUNTS, 0.0) == ""


def test_report_card_and_evaluate_carry_the_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    scored = evaluation(bird=0.9, cat=0.8, dog=0.0)
    data = {"name": "photos", "pictures": {"train": 802}, "counts": {"train": COUNTS}}
    folder = write_run(tmp_path / "run", evaluation=scored, data=data, trained_counts=COUNTS)
    sentence = "1 class of 3 had a recall of 0 %: dog (0 of 9; 12 in training)."
    assert any(sentence in problem for problem in problems(read_run_data(folder)))
    write_card(folder)
    assert "1 class of 3 had a recall of 0 %" in (folder / "README.md").read_text(encoding="utf-8")
    print_evaluation(scored)
    assert "warning     1 class of 3 had a recall of 0 %: dog (0 of 9)." in capsys.readouterr().out


@pytest.mark.parametrize(("priors", "warned"), [("balanced", True), ("data", False)])
def test_the_report_says_that_probabilities_do_not_follow_the_datas_shares(priors: str, warned: bool, tmp_path: Path):
    config = Fit(data="photos", model="mu/4", weights="none", steps=60, balance=0.5, priors=priors)  # type: ignore[arg-type]
    folder = write_run(tmp_path / "run", evaluation=evaluation(bird=0.9), config=config)
    assert warned == any(
        "those of rare classes may be too high" in problem for problem in problems(read_run_data(folder))
    )


def test_a_run_corrects_its_priors_if_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Two runs of the same steps differ in the bias by the logarithm of the class weights."""
    import vitkit
    from vitkit.train.objectives.labels import class_weights

    random = np.random.default_rng(0)
    for name, count in (("common", 50), ("rare", 5)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(count):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    tiny = "--weights none --model mu/4 --image 8 --steps 2 --batch 8 --workers 0 --device cpu --set balance=1".split()
    biases, outputs = {}, {}
    for priors in ("balanced", "data"):
        out = str(tmp_path / priors)
        main(["fit", str(tmp_path / "photos"), *tiny, "--set", "schedule.warmup=0", f"priors={priors}", "--out", out])
        outputs[priors] = capsys.readouterr().out
        model = vitkit.load(out)
        biases[priors] = model.head.logits.bias.detach().numpy()
        assert model.metadata.provenance["priors"] == priors
    weights = class_weights(np.repeat([0, 1], [40, 4]), 2, 1.0)  # after a fifth was held out
    assert weights is not None
    np.testing.assert_allclose(biases["balanced"] - biases["data"], weights.log().numpy(), atol=1e-6)
    assert "priors    probabilities assume the weighted classes of balance" in outputs["balanced"]
    assert "corrected to the data's own shares" in outputs["data"]
