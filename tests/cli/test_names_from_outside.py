"""Names of files and classes that others chose: no verb lets them command the terminal or forge a line."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitkit
from tests.data.sample_images import encode, scene
from vitkit.cli.main import main
from vitkit.errors import VitkitError
from vitkit.predict.answer_columns import AnswerColumns
from vitkit.predict.rows import AnswerFormat, csv_texts, without_formula
from vitkit.text import printable, printable_lines

HOSTILE = "a\x1b]0;title\x07\x1b[2J\nscore     top-1 100.0 %\r\t\u202egpj\x9b31m"
PACKAGE = Path(vitkit.__file__).parent


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes in two splits, with hostile names of files and classes; each class has an unreadable image."""
    root = tmp_path_factory.mktemp("photos")
    for number, (split, label) in enumerate((s, c) for s in ("train", "test") for c in (HOSTILE, f"=cmd|{HOSTILE}")):
        folder = root / split / label
        folder.mkdir(parents=True)
        for index in range(6):
            (folder / f"-{index}{HOSTILE}.png").write_bytes(encode(scene(20 + index, 24 + number), "PNG"))
        (folder / f"broken{HOSTILE}.png").write_bytes(b"\x89PNG")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / f"run{HOSTILE}"
    classes = tuple(path.name for path in sorted((photos / "train").iterdir()))
    model = vitkit.create("mu/4", classes=len(classes), image=16)
    model.metadata = model.metadata.__class__(**{**vars(model.metadata), "labels": classes})
    vitkit.save(model, folder, format="vitkit")
    return folder


def assert_harmless(*texts: str) -> None:
    assert any(texts)
    for text in texts:
        commands = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
        assert not commands, (commands, text)
        assert "\nscore     top-1 100.0 %" not in text


COMMANDS = [
    ["check", "PHOTOS"],
    ["evaluate", "RUN", "PHOTOS", "--max-failed", "1"],
    ["evaluate", "RUN", "PHOTOS", "--max-failed", "0"],
    ["evaluate", "RUN", "PHOTOS", "--max-failed", "1", "--json"],
    ["probe", "RUN", "PHOTOS", "--max-failed", "1"],
    ["predict", "RUN", "PHOTOS"],
    ["predict", "RUN", "PHOTOS", "--json"],
    ["predict", "RUN", "PHOTOS/test", "--log-format", "json"],
    ["predict", "RUN", f"PHOTOS/{HOSTILE}.jpg"],
    ["predict", "RUN", "PHOTOS", "--out", f"PHOTOS/{HOSTILE}/a.csv"],
    ["predict", f"PHOTOS/{HOSTILE}", "PHOTOS"],
    ["fit", f"PHOTOS/{HOSTILE}"],
    ["fit", "PHOTOS", "--weights", f"PHOTOS/{HOSTILE}"],
    ["fit", "PHOTOS", "--verbose", "--model", HOSTILE],
    ["fit", "PHOTOS", f"--{HOSTILE}"],
    [HOSTILE],
]


def test_no_verb_prints_a_name_raw(photos: Path, run: Path, tmp_path: Path):
    """All commands run in one other process, whose output is that of a shell script."""
    words = [[word.replace("PHOTOS", str(photos)).replace("RUN", str(run)) for word in words] for words in COMMANDS]
    script = tmp_path / "commands.json"
    script.write_text(json.dumps(words))
    program = (
        "import json, sys; from vitkit.cli.main import main\n"
        "for words in json.load(open(sys.argv[1])):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "    for stream in (sys.stdout, sys.stderr): print('-' * 8, file=stream, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(script)],
        capture_output=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr.decode()
    outputs = [stream.decode().split("-" * 8 + "\n")[:-1] for stream in (done.stdout, done.stderr)]
    for command, *texts in zip(COMMANDS, *outputs, strict=True):
        assert any(texts), command
        assert_harmless(*texts)


@given(st.text(max_size=30))
def test_printable_text_is_on_one_line_without_commands_and_stays_as_it_is(text: str):
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown.replace("\u200c", "").replace("\u200d", "")} & {"Cc", "Cf", "Zl"}
    assert printable(shown) == shown
    assert shown.encode().decode() == shown
    if text.isprintable():
        assert shown == text


def test_names_in_any_script_stay_as_they_are():
    for name in ("Übung", "می\u200cخواهم", "क्\u200dष", "👩\u200d🔬", "고양이", "ねこ\u3000いぬ", "3.45\u202fPM"):
        assert printable(name) == name


def test_lines_of_an_error_are_its_own():
    error = VitkitError("no images in x\n  try  rm -r.", found=["a\nb", "c\x1b[0m"])
    assert str(error).splitlines() == [r"no images in x\n  try  rm -r.", r"  found  a\nb", r"         c\x1b[0m"]
    assert printable_lines("a\nb\x07") == "a\nb\\x07"


FORMULAS = st.sampled_from("=+-@\t\r\n").flatmap(lambda start: st.text(max_size=5).map(lambda rest: start + rest))


@given(FORMULAS)
def test_no_csv_cell_is_a_formula_unless_asked_for(name: str):
    columns = AnswerColumns(np.zeros((1, 1), np.int32), np.full((1, 1), 0.5, np.float32), {}, [[0]])
    for raw in (False, True):
        form = AnswerFormat(labels=(name,), top=1, multilabel=True, csv_raw=raw)
        text = "".join(csv_texts([([name], columns)], form))
        _, (image, error, predicted, label, probability) = csv.reader(io.StringIO(text, newline=""))
        assert (error, probability) == ("", "0.5")
        assert {image, predicted, label} == {name if raw else f"'{name}"}
    assert without_formula("cat") == "cat"


def test_predict_writes_guarded_csv_unless_told_otherwise(
    photos: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = next((photos / "test").iterdir())
    monkeypatch.chdir(folder)
    files = [path for path in sorted(folder.iterdir()) if path.name.startswith("-")]
    for name, options in (("guarded", []), ("raw", ["--csv-raw"])):
        out = tmp_path / f"{name}.csv"
        with pytest.raises(SystemExit, match="3"):  # one of seven is broken
            main(["predict", str(run), ".", "--out", str(out), "--top", "2", "--max-failed", "0", *options])
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(files) + 1
        labels = {row["label_1"] for row in rows if row["label_1"]} | {row["label_2"] for row in rows if row["label_2"]}
        assert any(label.startswith("'=cmd" if name == "guarded" else "=cmd") for label in labels)
    with pytest.raises(SystemExit, match="2"):
        main(["predict", str(run), ".", "--csv-raw"])
    assert "--csv-raw needs --csv or --out FILE.csv" in capsys.readouterr().err


def test_csv_on_a_terminal_is_escaped_and_in_a_pipe_as_it_is(
    photos: Path, run: Path, capsys: pytest.CaptureFixture[str]
):
    pty = pytest.importorskip("pty")
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "vitkit", "predict", str(run), str(photos / "test"), "--csv", "--quiet"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL):
        os.close(writer)
        shown = b""
        try:
            while chunk := os.read(reader, 65536):
                shown += chunk
        except OSError:  # the other end is closed
            pass
    os.close(reader)
    assert b"\\x1b]0;title" in shown
    assert b"\x1b" not in shown
    with pytest.raises(SystemExit, match="3"):
        main(command[3:])
    assert HOSTILE in capsys.readouterr().out


# modules that print something else than lines for people: JSON, help, tables of our own numbers, a progress bar
PRINTING = {"messages", "cli.main", "cli.options", "cli.bench", "cli.list", "demo", "train.display"}


def test_modules_print_through_one_function():
    printing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.add(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    assert printing == PRINTING


def test_an_archive_made_for_another_place_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(f"/{HOSTILE}/1.png", encode(scene(), "PNG"))
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(tmp_path / "a.zip")])
    out, err = capsys.readouterr()
    assert out == ""
    assert "a.zip has a file with an absolute path: /a\\x1b]0;" in err
    assert_harmless(err)
