"""`vitkit predict`: files, folders and patterns → rows, continued where they stopped."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import vitkit
from tests.data.images import encode, scene
from tests.predict.coloured import LABELS, colour_model, odd_pictures, real_pictures
from vitkit.cli.main import main
from vitkit.data.sources.named import find
from vitkit.predict.stream import predict_files, predict_into


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(colour_model(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """30 pictures in two folders, one of them broken, and a text beside them."""
    folder = tmp_path / "photos"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        real_pictures(folder / name, 15)
    (folder / "a" / "007.jpg").write_bytes(b"\xff\xd8\xffnothing")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def predict(*words: str | Path) -> None:
    main(["predict", *map(str, words), "--device", "cpu"])


def answers(run: Path, photos: Path) -> dict[str, str | None]:
    """The oracle: each picture asked on its own."""
    classifier = vitkit.Classifier(run)
    told = {str(path): classifier(path) for path in sorted(photos.rglob("*.*g"))}
    return {name: None if prediction.error else prediction.label for name, prediction in told.items()}


def test_json_is_a_line_for_each_picture(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, photos, "--json", "--top", "2")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["picture"]: row["answers"][0]["label"] if row["answers"] else None for row in rows} == answers(
        run, photos
    )
    assert [row["picture"] for row in rows] == sorted(answers(run, photos))
    assert all(len(row["answers"]) == 2 for row in rows if row["error"] is None)
    assert [row["picture"] for row in rows if row["error"]] == [str(photos / "a" / "007.jpg")]


def test_csv_is_read_by_others(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, photos, "--csv", "--top", "3")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["picture"]: row["label_1"] or None for row in rows} == answers(run, photos)
    assert list(rows[0]) == [
        "picture",
        "error",
        "label_1",
        "probability_1",
        "label_2",
        "probability_2",
        "label_3",
        "probability_3",
    ]


def test_there_are_no_more_columns_than_classes(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    predict(run, photos, "--csv", "--top", "99")
    printed = capsys.readouterr().out
    predict(run, photos, "--out", tmp_path / "answers.csv", "--top", "99")
    head, *rows = csv.reader(io.StringIO(printed))
    assert head[-1] == "probability_7"
    assert all(len(row) == len(head) and (row[1] or all(row[2:])) for row in rows)
    assert (tmp_path / "answers.csv").read_text() == printed


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_files_hold_what_is_printed(
    run: Path, photos: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / f"answers.{ending}"
    predict(run, photos, "--out", out)
    assert "30 pictures; 1 could not be read" in capsys.readouterr().out
    if ending == "parquet":
        rows = pyarrow.parquet.read_table(out).to_pylist()
        found = {row["picture"]: row["label"] for row in rows}
        assert all(row["labels"][0] == row["label"] for row in rows if row["error"] is None)
    elif ending == "csv":
        with out.open(newline="") as file:
            found = {row["picture"]: row["label_1"] or None for row in csv.DictReader(file)}
        assert pyarrow.csv.read_csv(out).shape == (30, 12)  # strict: a row that is short is an error
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        found = {row["picture"]: row["answers"][0]["label"] if row["answers"] else None for row in rows}
    assert found == answers(run, photos)
    assert [path.name for path in tmp_path.glob("*answers*")] == [out.name]


def test_people_get_bars_for_a_few_and_lines_for_many(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, photos / "a" / "000.png", photos / "a" / "007.jpg")
    text = capsys.readouterr().out
    assert "█" in text
    assert "no answer: " in text
    predict(run, photos)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("a/000.png")
    assert answers(run, photos)[str(photos / "a" / "000.png")] in lines[0].split()[1]


def test_a_killed_call_goes_on_where_it_stopped(run: Path, tmp_path: Path):
    photos, out = tmp_path / "many", tmp_path / "answers.csv"
    photos.mkdir()
    real_pictures(photos, 400)
    command = [
        sys.executable,
        "-m",
        "vitkit",
        "predict",
        str(run),
        str(photos),
        "--out",
        str(out),
        "--device",
        "cpu",
        "--workers",
        "0",
    ]
    slow = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=slow, stderr=subprocess.DEVNULL)
    journal = tmp_path / "answers.csv.part"
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and (not journal.exists() or journal.stat().st_size < 20_000)
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    with journal.open("ab") as file:
        file.write(b'{"picture": "half a ro')  # the worst moment: within a row
    left = journal.read_bytes().count(b"\n") - 1
    assert 0 < left < 400
    done = subprocess.run(command, env=slow, capture_output=True, text=True, check=True)
    assert f"400 pictures, {left} of them from an earlier call" in done.stdout
    again = tmp_path / "whole.csv"
    assert predict_into(again, vitkit.Classifier(run), find([photos]), top=5) == (0, 0)
    assert out.read_text() == again.read_text()
    assert not journal.exists()


def test_rows_of_another_model_are_never_mixed_in(run: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "answers.jsonl"
    classifier = vitkit.Classifier(run)

    def stop(items, total, what):
        for place, item in enumerate(items):
            if place == 10:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        predict_into(out, classifier, find([photos]), top=5, source="runs/a", progress=stop)
    retrained = vitkit.Classifier(colour_model())
    with torch.no_grad():
        retrained.model.head.logits.bias += 0.5
    lies = find([photos])
    for words, other, paths, top in (
        (
            r"preprocessing: resize to cover 32 x 32.*; now resize to 32 x 32, whatever the shape",
            vitkit.Classifier(colour_model(resize="squash")),
            lies,
            5,
        ),
        (
            r"class names: ant, bee, cat and 4 more; now a, b, c and 4 more",
            vitkit.Classifier(run, labels=list("abcdefg")),
            lies,
            5,
        ),
        (r"model: mu/4 at 32 x 32 px, from runs/a; now mu/4 at 32 x 32 px, from runs/b", retrained, lies, 5),
        (r"--top: 5; now 3", classifier, lies, 3),
        (rf"pictures: 30, the first {photos}/a/000.png; now 29, the first {photos}/a/001.jpg", classifier, lies[1:], 5),
        (r"pictures: 30, .*, as now, but what is called so has changed", classifier, [*lies[:-1], lies[0]], 5),
    ):
        with pytest.raises(vitkit.VitkitError, match=f"begun with another model(.|\n)*{words}") as told:
            predict_into(out, other, paths, top=top, source="runs/b")
        assert len(str(told.value).splitlines()) == 3  # what differs, and nothing else
        assert not re.search(r"[0-9a-f]{16}|\w\(\w+=", str(told.value))  # no hash, no repr
    # the same model, wherever it lies now
    assert predict_into(out, classifier, find([photos]), top=5, source="runs/moved") == (10, 1)
    with pytest.raises(vitkit.VitkitError, match="exists already"):
        predict_into(out, classifier, find([photos]), top=5)
    assert predict_into(out, classifier, find([photos]), top=5, overwrite=True) == (0, 1)


def test_a_file_that_is_being_replaced_is_so_by_the_same_call_without_overwrite(photos: Path, tmp_path: Path):
    classifier, out, paths = vitkit.Classifier(colour_model()), tmp_path / "a.csv", find([photos])
    out.write_text("older answers\n")

    def stopped(items, total, what):
        for count, item in enumerate(items):
            if count == 4:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        predict_into(out, classifier, paths, top=5, overwrite=True, progress=stopped)
    assert out.read_text() == "older answers\n"
    assert predict_into(out, classifier, paths, top=5)[0] == 4
    assert len(out.read_text().splitlines()) == 1 + len(paths)
    with pytest.raises(KeyboardInterrupt):
        predict_into(out, classifier, paths, top=5, overwrite=True, progress=stopped)
    os.utime(out, (time.time() + 9, time.time() + 9))  # somebody else has written it since
    with pytest.raises(vitkit.VitkitError, match="exists already"):
        predict_into(out, classifier, paths, top=5)


def test_a_full_disk_is_told_in_words_and_loses_no_row(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out, before = tmp_path / "answers.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # bytes of any file
    try:
        with pytest.raises(SystemExit) as stopped:
            predict(run, photos, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stopped.value.code == 2
    assert "answers.csv.part cannot be written: File too large" in capsys.readouterr().err
    whole = (tmp_path / "answers.csv.part").read_bytes().count(b"\n") - 1
    assert predict_into(out, vitkit.Classifier(run), find([photos]), top=5) == (whole, 1)
    with out.open(newline="") as file:
        assert {row["picture"]: row["label_1"] or None for row in csv.DictReader(file)} == answers(run, photos)


@pytest.mark.parametrize("content", [b"notes of mine", b"a,b\n1,2\n", b"[1]\n", b'{"model": "1f2e", "top": 5}\n'])
def test_a_part_that_is_another_program_s_is_left_alone(run: Path, photos: Path, tmp_path: Path, content: bytes):
    (tmp_path / "answers.csv.part").write_bytes(content)
    with pytest.raises(vitkit.VitkitError, match="a file that vitkit has not written"):
        predict_into(tmp_path / "answers.csv", vitkit.Classifier(run), find([photos]), top=5)
    assert (tmp_path / "answers.csv.part").read_bytes() == content


@pytest.mark.parametrize("left", [b"", b'{"model": ["', None])
def test_what_a_crash_leaves_of_a_journal_is_no_hindrance(run: Path, photos: Path, tmp_path: Path, left: bytes | None):
    out, classifier, part = tmp_path / "answers.csv", vitkit.Classifier(run), tmp_path / "answers.csv.part"
    if left is None:  # the file system gave the last row its room, and not its content
        with pytest.raises(ZeroDivisionError):
            predict_into(
                out,
                classifier,
                find([photos]),
                top=5,
                progress=lambda items, total, what: (1 / (3 - place) and item for place, item in enumerate(items)),
            )
        part.write_bytes(part.read_bytes() + bytes(100) + b"\n")
    else:
        part.write_bytes(left)
    assert predict_into(out, classifier, find([photos]), top=5) == (3 if left is None else 0, 1)
    with out.open(newline="") as file:
        assert {row["picture"]: row["label_1"] or None for row in csv.DictReader(file)} == answers(run, photos)


def test_rows_that_another_process_is_writing_are_left_alone(run: Path, photos: Path, tmp_path: Path):
    part = tmp_path / "answers.csv.part"
    holds = "import fcntl, sys; file = open(sys.argv[1], 'wb'); fcntl.lockf(file, fcntl.LOCK_EX); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", holds, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for overwrite in (False, True):
            with pytest.raises(vitkit.VitkitError, match="another process is writing"):
                predict_into(
                    tmp_path / "answers.csv", vitkit.Classifier(run), find([photos]), top=5, overwrite=overwrite
                )
        other.communicate(b"\n")
    assert predict_into(tmp_path / "answers.csv", vitkit.Classifier(run), find([photos]), top=5) == (0, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_scheduler_hear_how_to_go_on(
    run: Path,
    photos: Path,
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def stop(items, total, what):
        yield next(items)
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr("vitkit.progress.show_progress", stop)
    with pytest.raises(SystemExit) as stopped:
        predict(run, photos, "--out", tmp_path / "answers.csv")
    monkeypatch.undo()
    assert stopped.value.code == 128 + number
    assert "stopped; the same command goes on" in capsys.readouterr().err
    predict(run, photos, "--out", tmp_path / "answers.csv")
    assert "30 pictures, 1 of them from an earlier call" in capsys.readouterr().out


def test_output_that_nobody_can_take_is_no_traceback():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vitkit", "cost", "mu/4"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "vitkit cost: the output cannot be written: No space left on device.\n"


def test_workers_change_nothing(run: Path, photos: Path):
    classifier = vitkit.Classifier(run)
    alone = [*predict_files(classifier, find([photos]))]
    beside = [*predict_files(classifier, find([photos]), workers=2)]
    for one, other in zip(alone, beside, strict=True):
        assert (one.name, one.error) == (other.name, other.error)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)


def test_patterns_folders_and_files_are_found(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(photos)
    assert find(["*/00[01].*"]) == [Path("a/000.png"), Path("a/001.jpg"), Path("b/000.png"), Path("b/001.jpg")]
    assert len(find(["**/*"])) == 30  # the text is none of them
    assert find(["notes.txt"]) == [Path("notes.txt")]  # named on purpose: the row says that it is no picture
    for wrong, message in ((["c*"], "no picture matches"), (["c"], "does not exist"), ([], "no pictures named")):
        with pytest.raises(vitkit.VitkitError, match=message):
            find(wrong)


def test_a_list_on_standard_input_is_read(run: Path, photos: Path):
    """find photos -name '*.jpg' | vitkit predict RUN -"""
    names = sorted(map(os.fsencode, photos.rglob("*.*g")))
    odd = photos / os.fsdecode(b"no text \xff.jpg")
    odd.write_bytes((photos / "a" / "001.jpg").read_bytes())
    asked = subprocess.run(
        [sys.executable, "-m", "vitkit", "predict", str(run), "-", "--json", "--device", "cpu"],
        input=b"\n".join([*names, b"", os.fsencode(odd)]),
        capture_output=True,
        check=True,
    )
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    assert [row["picture"] for row in rows[:-1]] == [os.fsdecode(name) for name in names]
    assert rows[-1]["answers"] == next(row["answers"] for row in rows if row["picture"].endswith("a/001.jpg"))
    empty = subprocess.run([sys.executable, "-m", "vitkit", "predict", str(run), "-"], input=b"\n", capture_output=True)
    assert empty.returncode == 2
    assert b"standard input names no pictures" in empty.stderr


def test_names_that_are_no_text_and_odd_pictures_come_through(run: Path, tmp_path: Path):
    photos = tmp_path / "odd"
    photos.mkdir()
    for name, content in odd_pictures().items():
        (photos / name).write_bytes(content)
    (photos / os.fsdecode(b"\xff\xfe.png")).write_bytes(encode(scene(), "PNG"))
    (photos / 'comma, "quote"\n.png').write_bytes(encode(scene(), "PNG"))
    for ending in ("csv", "jsonl", "parquet"):
        _, failed = predict_into(tmp_path / f"odd.{ending}", vitkit.Classifier(run), find([photos]), top=1)
        assert failed == 0
    with (tmp_path / "odd.csv").open(newline="", errors="surrogateescape") as file:
        assert sum(1 for _ in csv.reader(file)) == len(odd_pictures()) + 3


def test_a_name_takes_one_line_whatever_is_in_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    photos = tmp_path / "names"
    photos.mkdir()
    for name in ("line\nbreak", "red\x1b[31m", "tab\t", "ü", "a", "b", "c"):
        (photos / f"{name}.png").write_bytes(encode(scene(), "PNG"))
    predict(run, photos)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(line.isprintable() for line in lines)
    predict(run, photos / "line\nbreak.png")
    assert r"line\nbreak.png" in capsys.readouterr().out


def test_links_to_nothing_have_a_row_and_what_is_left_out_is_named(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    (photos / "circle").symlink_to(photos)
    os.mkfifo(photos / "pipe.jpg")
    for source in (photos, photos / "*.jpg"):
        with pytest.raises(SystemExit) if source != photos else nullcontext():  # of which not one has an answer
            predict(run, source, "--json")
        rows = {row["picture"]: row["error"] for row in map(json.loads, capsys.readouterr().out.splitlines())}
        assert "No such file" in rows[str(photos / "gone.jpg")]
        assert len(rows) == (31 if source == photos else 1)
    assert "circle" in caplog.text
    assert "pipe.jpg" in caplog.text


@pytest.mark.parametrize(
    "words", [[], ["--json"], ["--csv"], ["--out", "answers.csv"], ["--out", "answers.csv", "--json"]]
)
def test_the_exit_code_tells_whether_anything_was_answered(
    run: Path, photos: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(photos.parent)
    good, broken, text = photos / "a" / "000.png", photos / "a" / "007.jpg", photos / "notes.txt"
    predict(run, good, broken, *words, *["--overwrite"] * ("--out" in words))
    capsys.readouterr()
    for pictures, message in (
        ([broken], "the picture has no answer"),
        ([broken, text], "not one of 2 pictures has an answer"),
    ):
        with pytest.raises(SystemExit) as stopped:
            predict(run, *pictures, *words, *["--overwrite"] * ("--out" in words))
        assert stopped.value.code == 1
        told = capsys.readouterr()
        assert f"vitkit predict: {message}" in told.err
        # the reasons come all the same
        assert "007.jpg" in (Path("answers.csv").read_text() if "--out" in words else told.out)


def test_weights_without_names_hint_at_the_option_that_gives_them(
    run: Path, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    model = colour_model()
    model.metadata = replace(model.metadata, labels=None)
    vitkit.save(model, tmp_path / "unnamed")
    (tmp_path / "names.txt").write_text("\n".join(LABELS))
    predict(tmp_path / "unnamed", photos)
    assert caplog.text.count("--labels FILE") == 1
    caplog.clear()
    predict(tmp_path / "unnamed", photos / "a" / "000.png", "--labels", tmp_path / "names.txt")
    predict(run, photos / "a" / "000.png")
    assert "--labels" not in caplog.text
    assert any(name in capsys.readouterr().out for name in LABELS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["http://example.org/cat.jpg"], "http://example.org/cat.jpg is a URL, and those are not read"),
        (["nowhere.jpg"], "nowhere.jpg does not exist"),
        ([f"{'long' * 80}.jpg"], "cannot be read: File name too long"),
        (["PHOTOS", "--out", f"{'long' * 80}.csv"], "cannot be written: File name too long"),
        (["PHOTOS", "--top", "0"], "--top 0: 1 or more is needed"),
        (["PHOTOS", "--csv", "--json"], "one is needed"),
        (["PHOTOS", "--out", "answers.xlsx"], ".csv, .jsonl, .parquet"),
        (["PHOTOS", "--out", "no/folder/answers.csv"], "there is no folder"),
    ],
)
def test_mistakes_are_told_in_words(
    run: Path, photos: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        predict(run, *(str(photos) if word == "PHOTOS" else word for word in words))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
