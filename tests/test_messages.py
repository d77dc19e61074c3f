"""`--quiet`, `--verbose` and `--log-format json`: how much is printed about the work, and in which form."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.predict.small_model import real_images, small_model
from vitkit import messages, progress
from vitkit.cli.main import main
from vitkit.errors import ConfigError
from vitkit.train.display import Display


@pytest.fixture(autouse=True)
def defaults():
    """Restore the default settings after each test."""
    yield
    messages.configure()


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write weights without class names, which is worth a note, and an image."""
    folder = tmp_path_factory.mktemp("unnamed")
    model = small_model()
    vitkit.save(model, folder / "weights.npz", format="google")
    real_images(folder, 2)
    return folder


def vitkit_process(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vitkit", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_notes_are_plain_json_or_silent(unnamed: Path):
    command = ["predict", unnamed / "weights.npz", unnamed / "000.png", "--device", "cpu"]
    plain = vitkit_process(*command)
    assert plain.stderr.startswith("note      ")
    assert "--labels FILE names them" in plain.stderr
    in_json = vitkit_process("--log-format", "json", *command)
    assert in_json.stdout == plain.stdout
    shown, note = sorted(lines_of(in_json.stderr), key=lambda line: line["label"])
    assert [(line["level"], line["label"]) for line in (shown, note)] == [("info", "input"), ("warning", "note")]
    assert sorted(plain.stderr.splitlines()) == [f"input     {shown['text']}", f"note      {note['text']}"]
    quiet = vitkit_process(*command, "--quiet")
    assert (quiet.stdout, quiet.stderr, quiet.returncode) == (plain.stdout, "", 0)
    verbose = vitkit_process(*command, VITKIT_LOG_LEVEL="verbose", VITKIT_LOG_FORMAT="json")
    texts = [line["text"] for line in lines_of(verbose.stderr)]
    assert len(texts) > 2
    assert texts[-1].startswith("vitkit predict took ")


def test_errors_are_json_with_their_exit_code_and_a_traceback_if_verbose():
    failed = vitkit_process("cost", "B/17x", "--quiet", "--log-format=json")
    (line,) = lines_of(failed.stderr)
    assert (line["level"], line["label"], line["exit_code"], failed.returncode) == ("error", "vitkit cost", 2, 2)
    assert "there is no model 'B/17x'; did you mean B/16" in line["text"]
    verbose = vitkit_process("cost", "B/17x", "--verbose")
    assert verbose.stderr.startswith("Traceback")
    assert verbose.returncode == 2


def test_a_bug_is_a_traceback_or_one_line_of_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(*arguments: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("vitkit.cost.cost", fail)
    with pytest.raises(KeyError, match="a bug"):
        main(["cost", "B/16"])
    with pytest.raises(SystemExit, match="1"):
        main(["cost", "B/16", "--log-format", "json"])
    (line,) = lines_of(capsys.readouterr().err)
    assert (line["text"], line["exit_code"]) == ("KeyError: 'a bug'", 1)
    assert "raise KeyError" in line["traceback"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--log-format", "xml", "cost", "B/16"], "--log-format xml"),
        (["cost", "B/16", "--log-format"], "--log-format without a value"),
        (["cost", "B/16", "--log-format=jsno"], "did you mean json"),
        (["--quiet", "cost", "B/16", "--verbose"], "--quiet and --verbose exclude each other"),
    ],
)
def test_a_wrong_global_option_is_an_error(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err


def test_a_wrong_environment_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("VITKIT_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit, match="2"):
        main(["cost", "B/16"])
    assert "VITKIT_LOG_LEVEL loud" in capsys.readouterr().err


def test_the_options_stand_before_or_after_the_verb(capsys: pytest.CaptureFixture[str]):
    for words in (["--verbose", "cost", "B/16"], ["cost", "--verbose", "B/16"], ["cost", "B/16", "-v"]):
        main(words)
        assert "vitkit cost took" in capsys.readouterr().err
        assert messages.is_verbose()
    main(["cost", "B/16"])
    assert not messages.is_verbose()  # the next command of the same process begins anew
    assert capsys.readouterr().err == ""


def test_decisions_and_results_of_a_run_go_where_their_lines_would(capsys: pytest.CaptureFixture[str]):
    output = io.StringIO()
    messages.say("model", "Ti/16", file=output)
    messages.configure("quiet")
    for label in ("model", "warning", "score", "report"):
        messages.say(label, f"the {label}", file=output)
    messages.configure("normal", "json")
    messages.say("warning", "few images", file=output, images=3)
    plain, score, report, warning = output.getvalue().splitlines()
    assert [plain, score, report] == ["model     Ti/16", "score     the score", "report    the report"]
    assert json.loads(warning) | {"time": ""} == {
        "time": "",
        "level": "warning",
        "label": "warning",
        "text": "few images",
        "images": 3,
    }
    assert capsys.readouterr() == ("", "")


def test_progress_is_json_with_numbers_or_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr("vitkit.train.display.SECONDS_BETWEEN_LINES", -1.0)

    def work() -> str:
        assert list(progress.show_progress(iter("abc"), 3, "decoding")) == [*"abc"]
        with Display(step=0, steps=2, batch=4, shown=True) as display:
            display.update(1, 0.5, {"val": 0.25}, 0.1)
            display.message("rolled back")
        return capsys.readouterr().err

    assert work().splitlines()[0].startswith("decoding  1 of 3 images, ")
    messages.configure(log_format="json")
    lines = lines_of(work())
    assert [line["done"] for line in lines if line["label"] == "decoding"] == [1, 2, 3]
    step, message = (line for line in lines if line["label"] == "training")
    assert (step["step"], step["steps"], step["loss"], step["val"]) == (1, 2, 0.5, 0.25)
    assert message["text"] == "rolled back"
    messages.configure("quiet")
    assert work() == ""


def test_the_handler_writes_tracebacks_and_survives_what_it_cannot_format(capsys: pytest.CaptureFixture[str]):
    handler = messages.MessageHandler()
    for log_format in messages.LOG_FORMATS:
        messages.configure(log_format=log_format)  # type: ignore[arg-type]
        try:
            raise ConfigError("inner")
        except ConfigError:
            record = logging.LogRecord("vitkit", logging.ERROR, "", 1, "outer %s", ("one",), sys.exc_info())
        handler.emit(record)
        text = capsys.readouterr().err
        assert "outer one" in text
        assert "ConfigError: inner" in text
        handler.emit(logging.LogRecord("vitkit", logging.WARNING, "", 1, "%d", ("no number",), None))
        assert "Logging error" in capsys.readouterr().err
