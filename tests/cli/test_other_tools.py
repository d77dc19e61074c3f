"""Options of other tools are errors that name ours; options that exist are left alone."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.test_main import OPTIONS as FROZEN
from vitkit.cli.main import VERBS, main, verb_function
from vitkit.cli.other_tools import OPTIONS, SETTINGS, WORDS, option_names, unknown_option
from vitkit.config.listing import list_settings
from vitkit.errors import did_you_mean


@pytest.mark.parametrize(
    ("command", "suggestion"),
    [
        ("fit photos --batch-size 3", "there is no option --batch-size; did you mean --batch?"),
        ("fit photos --batch_size=3", "there is no option --batch_size; did you mean --batch?"),
        ("fit photos --learning-rate 0.1", "did you mean --lr?"),
        ("fit photos --mixup 0.2", "did you mean --set augment.mixup=…?"),
        ("fit photos --lr-scheduler cosine", "did you mean --set schedule.kind=…?"),
        ("fit photos --weight-decay 0.1", "did you mean --set optimizer.weight_decay=…?"),
        ("fit photos --imgsz 640", "did you mean --image?"),
        ("fit --data photos", "did you mean vitkit fit DATA, without an option?"),
        ("fit photos --ema", "did you mean --set average=…?"),
        ("pretrain photos --output-dir x", "did you mean --out?"),
        ("predict --model runs/x a.jpg", "did you mean vitkit predict RUN, without an option?"),
        ("predict runs/x a.jpg --topk 3", "did you mean --top?"),
        ("bench B/16 --img-size 32", "did you mean --image?"),
    ],
)
def test_an_option_of_another_tool_is_an_error_with_ours(
    command: str, suggestion: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        main(shlex.split(command))
    error = capsys.readouterr().err
    assert suggestion in error
    assert "--help" in error


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_that_exists_is_refused(verb: str):
    function = verb_function(verb)
    existing = [word for word in FROZEN[verb].split() if word.startswith("--")]
    assert unknown_option(verb, function, [*existing, *(f"--no-{word[2:]}" for word in existing)]) is None
    options, _ = option_names(function)
    assert {f"--{name}" for name in options} >= set(existing) != set()


def test_what_is_suggested_exists():
    names = [option_names(verb_function(verb)) for verb in VERBS]
    assert set().union(*(options for options, _ in names)) >= OPTIONS.keys()
    assert set().union(*(positionals for _, positionals in names)) >= WORDS.keys()
    assert {setting.name for setting in list_settings()} >= SETTINGS.keys()


def test_words_after_two_dashes_are_no_options():
    assert unknown_option("fit", verb_function("fit"), ["photos", "--", "--batch-size"]) is None


@pytest.mark.parametrize(
    ("word", "known", "suggested"),
    [
        ("pets_transfr", ("pets_transfer", "vtab_transfer", "flowers_transfer"), "pets_transfer"),
        ("B/15", ("B/16", "B/32", "R50+B/16"), "B/16"),
        ("mixupp", ("augment.mixup", "mixup", "cutmix"), "mixup"),
        ("xyz", ("fit", "predict"), ""),
        ("holiday", ("label", "layer_decay"), ""),
    ],
)
def test_only_near_names_are_suggested(word: str, known: tuple[str, ...], suggested: str):
    assert did_you_mean(word, known) == (f"; did you mean {suggested}?" if suggested else "")
