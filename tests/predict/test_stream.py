"""`vitkit predict` writes rows for files, folders and patterns, and continues after an interruption."""

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
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import vitkit
from tests.data.sample_images import encode, scene
from tests.predict.small_model import LABELS, odd_images, real_images, rounding, small_model
from vitkit.cli.main import main
from vitkit.data.sources.image_paths import find_image_names, find_images
from vitkit.model.build import Model
from vitkit.predict.failures import Failures
from vitkit.predict.stream import predict_files, predict_into


@pytest.fixture
def run(tmp_path: Path) -> Path:
    vitkit.save(small_model(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write 30 images in two folders, one of them broken, and a text file."""
    folder = tmp_path / "photos"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        real_images(folder / name, 15)
    (folder / "a" / "007.jpg").write_bytes(b"\xff\xd8\xffnothing")
    (folder / "notes.txt").write_text("not an image")
    return folder


def predict(*arguments: str | Path) -> None:
    main(["predict", *map(str, arguments), "--device", "cpu"])


def written(result: tuple[int, Failures]) -> tuple[int, int]:
    """Return the rows that were complete already, and the images that failed."""
    return result[0], result[1].failed


def stop_after(batches: int):
    """Return a progress that ends like Ctrl-C after so many batches."""

    def progress(items, total, what, images_in=None):
        for number, item in enumerate(items):
            if number == batches:
                raise KeyboardInterrupt
            yield item

    return progress


def begin(out: Path, classifier: vitkit.Classifier, paths: list[Path], *, batch: int, batches: int, **options) -> None:
    """Leave the journal of a call that was stopped after some batches."""
    classifier.engine = replace(classifier.engine, batch=batch)
    with pytest.raises(KeyboardInterrupt):
        predict_into(out, classifier, paths, top=5, progress=stop_after(batches), **options)


def rows_in(journal: Path) -> int:
    """Return the rows of the complete blocks of a journal."""
    return sum(
        json.loads(line)["images"] for line in journal.read_bytes().splitlines(keepends=True)[1:] if line[-1:] == b"\n"
    )


def answers(run: Path, photos: Path) -> dict[str, str | None]:
    """Return the oracle: the label of each image, predicted on its own."""
    classifier = vitkit.Classifier(run)
    predictions = {str(path): classifier(path) for path in sorted(photos.rglob("*.*g"))}
    return {name: None if prediction.error else prediction.label for name, prediction in predictions.items()}


def test_json_is_a_line_for_each_image(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, photos, "--json", "--top", "2")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["image"]: row["answers"][0]["label"] if row["answers"] else None for row in rows} == answers(
        run, photos
    )
    assert [row["image"] for row in rows] == sorted(answers(run, photos))
    assert all(len(row["answers"]) == 2 for row in rows if row["error"] is None)
    assert [row["image"] for row in rows if row["error"]] == [str(photos / "a" / "007.jpg")]


def test_csv_is_read_by_others(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, photos, "--csv", "--top", "3")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["image"]: row["label_1"] or None for row in rows} == answers(run, photos)
    assert list(rows[0]) == [
        "image",
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
    assert "30 images; 1 could not be read" in capsys.readouterr().out
    if ending == "parquet":
        rows = pyarrow.parquet.read_table(out).to_pylist()
        labels = {row["image"]: row["label"] for row in rows}
        assert all(row["labels"][0] == row["label"] for row in rows if row["error"] is None)
    elif ending == "csv":
        with out.open(newline="") as file:
            labels = {row["image"]: row["label_1"] or None for row in csv.DictReader(file)}
        assert pyarrow.csv.read_csv(out).shape == (30, 12)  # strict: a row that is short is an error
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        labels = {row["image"]: row["answers"][0]["label"] if row["answers"] else None for row in rows}
    assert labels == answers(run, photos)
    assert [path.name for path in tmp_path.glob("*answers*")] == [out.name]


def test_people_get_bars_for_a_few_and_lines_for_many(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]):
    predict(run, photos / "a" / "000.png", photos / "a" / "007.jpg")
    text = capsys.readouterr().out
    assert "█" in text
    assert "no prediction: " in text
    predict(run, photos)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("a/000.png")
    assert answers(run, photos)[str(photos / "a" / "000.png")] in lines[0].split()[1]


def test_a_killed_call_continues_after_its_last_row(run: Path, tmp_path: Path):
    photos, out = tmp_path / "many", tmp_path / "answers.csv"
    photos.mkdir()
    real_images(photos, 400)
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
        and (not journal.exists() or journal.read_bytes().count(b"\n") < 3)
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    with journal.open("ab") as file:
        file.write(b'{"images": 64, "errors": [], "clas')  # the worst moment: within a block
    left = rows_in(journal)
    assert 0 < left < 400
    assert left % 64 == 0
    done = subprocess.run(command, env=slow, capture_output=True, text=True, check=True)
    assert f"400 images, {left} of them from an earlier call" in done.stdout
    uninterrupted = tmp_path / "uninterrupted.csv"
    assert predict_into(uninterrupted, vitkit.Classifier(run), find_images([photos]), top=5) == (0, Failures(400))
    with out.open(newline="") as file, uninterrupted.open(newline="") as other:
        for row, expected in zip(csv.DictReader(file), csv.DictReader(other), strict=True):
            assert (row["image"], row["error"]) == (expected["image"], expected["error"])
            # other images in the batch may change the order of float32 sums
            for rank in range(1, 6):
                probability = float(expected[f"probability_{rank}"])
                assert float(row[f"probability_{rank}"]) == pytest.approx(probability, abs=rounding(small_model()))
    assert not journal.exists()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_resumed_call_keeps_the_batch_size_and_writes_the_same_bytes(
    run: Path, photos: Path, tmp_path: Path, ending: str
):
    paths, whole, resumed = find_images([photos]), vitkit.Classifier(run), vitkit.Classifier(run)
    whole.engine = replace(whole.engine, batch=7)
    predict_into(tmp_path / f"whole.{ending}", whole, paths, top=3)
    out, sizes, logits = tmp_path / f"resumed.{ending}", [], resumed.engine.logits
    with pytest.raises(KeyboardInterrupt):
        predict_into(out, whole, paths, top=3, progress=stop_after(2))
    resumed.engine = replace(resumed.engine, logits=lambda images: sizes.append(len(images)) or logits(images))
    assert resumed.engine.batch == 64
    assert predict_into(out, resumed, paths, top=3)[0] == 14
    assert sizes == [7, 7, 2]
    assert out.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()


def test_rows_of_another_model_are_never_mixed(run: Path, photos: Path, tmp_path: Path):
    out = tmp_path / "answers.jsonl"
    classifier = vitkit.Classifier(run)

    begin(out, classifier, find_images([photos]), batch=5, batches=2, source="runs/a")
    retrained = vitkit.Classifier(small_model())
    with torch.no_grad():
        retrained.model.head.logits.bias += 0.5
    lies = find_images([photos])
    for arguments, other, paths, top in (
        (
            r"preprocessing: short side to 32 px .*; now resized to 32 x 32 px, whatever the shape",
            vitkit.Classifier(small_model(resize="squash")),
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
        (rf"images: 30, the first {photos}/a/000.png; now 29, the first {photos}/a/001.jpg", classifier, lies[1:], 5),
        (r"images: 30, .*, as now, but the content has changed", classifier, [*lies[:-1], lies[0]], 5),
    ):
        with pytest.raises(vitkit.VitkitError, match=f"begun with another model(.|\n)*{arguments}") as error:
            predict_into(out, other, paths, top=top, source="runs/b")
        assert len(str(error.value).splitlines()) == 3  # what differs, and nothing else
        assert not re.search(r"[0-9a-f]{16}|\w\(\w+=", str(error.value))  # no hash, no repr
    # the same model, wherever it lies now
    assert written(predict_into(out, classifier, find_images([photos]), top=5, source="runs/moved")) == (10, 1)
    with pytest.raises(vitkit.VitkitError, match="exists already"):
        predict_into(out, classifier, find_images([photos]), top=5)
    assert written(predict_into(out, classifier, find_images([photos]), top=5, overwrite=True)) == (0, 1)


def test_an_interrupted_overwrite_is_continued_without_overwrite(photos: Path, tmp_path: Path):
    classifier, out, paths = vitkit.Classifier(small_model()), tmp_path / "a.csv", find_images([photos])
    out.write_text("older answers\n")

    begin(out, classifier, paths, batch=4, batches=1, overwrite=True)
    assert out.read_text() == "older answers\n"
    assert predict_into(out, classifier, paths, top=5)[0] == 4
    assert len(out.read_text().splitlines()) == 1 + len(paths)
    begin(out, classifier, paths, batch=4, batches=1, overwrite=True)
    os.utime(out, (time.time() + 9, time.time() + 9))  # somebody else has written it since
    with pytest.raises(vitkit.VitkitError, match="exists already"):
        predict_into(out, classifier, paths, top=5)


def test_a_full_disk_is_a_readable_error_and_loses_no_row(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out, before = tmp_path / "answers.csv", resource.getrlimit(resource.RLIMIT_FSIZE)
    begin(out, vitkit.Classifier(run), find_images([photos]), batch=2, batches=3)
    room = (tmp_path / "answers.csv.part").stat().st_size + 1000
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))  # bytes of any file
    try:
        with pytest.raises(SystemExit) as stopped:
            predict(run, photos, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stopped.value.code == 2
    assert "answers.csv.part cannot be written: File too large" in capsys.readouterr().err
    complete = rows_in(tmp_path / "answers.csv.part")
    assert 6 < complete < 30
    assert written(predict_into(out, vitkit.Classifier(run), find_images([photos]), top=5)) == (complete, 1)
    with out.open(newline="") as file:
        assert {row["image"]: row["label_1"] or None for row in csv.DictReader(file)} == answers(run, photos)


@pytest.mark.parametrize("content", [b"notes of mine", b"a,b\n1,2\n", b"[1]\n", b'{"model": "1f2e", "top": 5}\n'])
def test_a_part_file_of_another_program_is_left_alone(run: Path, photos: Path, tmp_path: Path, content: bytes):
    (tmp_path / "answers.csv.part").write_bytes(content)
    with pytest.raises(vitkit.VitkitError, match="a file that vitkit has not written"):
        predict_into(tmp_path / "answers.csv", vitkit.Classifier(run), find_images([photos]), top=5)
    assert (tmp_path / "answers.csv.part").read_bytes() == content


@pytest.mark.parametrize("left", [b"", b'{"model": ["', None])
def test_the_remains_of_a_crash_in_a_journal_are_cut_off(run: Path, photos: Path, tmp_path: Path, left: bytes | None):
    out, classifier, part = tmp_path / "answers.csv", vitkit.Classifier(run), tmp_path / "answers.csv.part"
    if left is None:  # the file system gave the last row its room, and not its content
        begin(out, classifier, find_images([photos]), batch=1, batches=3)
        part.write_bytes(part.read_bytes() + bytes(100) + b"\n")
    else:
        part.write_bytes(left)
    assert written(predict_into(out, classifier, find_images([photos]), top=5)) == (3 if left is None else 0, 1)
    with out.open(newline="") as file:
        assert {row["image"]: row["label_1"] or None for row in csv.DictReader(file)} == answers(run, photos)


def test_rows_that_another_process_is_writing_are_left_alone(run: Path, photos: Path, tmp_path: Path):
    journal = tmp_path / "answers.csv.part"
    hold = "import sys; from vitkit.atomic import lock; file = open(sys.argv[1], 'ab'); print(lock(file)); input()"
    with subprocess.Popen(
        [sys.executable, "-uc", hold, str(journal)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        for overwrite in (False, True):
            with pytest.raises(vitkit.VitkitError, match="another process is writing"):
                predict_into(
                    tmp_path / "answers.csv", vitkit.Classifier(run), find_images([photos]), top=5, overwrite=overwrite
                )
        other.communicate(b"\n")
    assert written(predict_into(tmp_path / "answers.csv", vitkit.Classifier(run), find_images([photos]), top=5)) == (
        0,
        1,
    )


def exact_weights() -> Model:
    """Return a model whose weights are the same to the last bit on every machine."""
    model = vitkit.create("mu/4", classes=3, image=16).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(((torch.arange(tensor.numel()) * 37 % 101 - 50) / 512).view(tensor.shape))
    return model


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_journal_begun_by_an_older_vitkit_is_continued(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It was interrupted after 3 of 5 images; its header and its rows have other keys."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    paths = [Path("photos") / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(np.full((16, 16, 3), 40 * number, np.uint8), "PNG"))
    paths[1].write_bytes(b"broken")
    out, classifier = Path(f"answers.{ending}"), vitkit.Classifier(exact_weights(), labels=["ant", "bee", "cat"])
    journal = (Path(__file__).parent / "old_journal.csv.part").read_bytes()
    Path(f"{out}.part").write_bytes(journal)
    with pytest.raises(vitkit.VitkitError, match=r"images: 5, the first photos/0\.png; now 4, the first photos/0\.png"):
        predict_into(out, classifier, paths[:4], top=2)
    assert written(predict_into(out, classifier, paths, top=2, source="runs/moved")) == (3, 1)
    if ending == "parquet":
        rows = pyarrow.parquet.read_table(out).to_pylist()
    elif ending == "csv":
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    assert [bool(row["error"]) for row in rows] == [False, True, False, False, False]
    assert not any("picture" in row for row in rows)
    assert not Path(f"{out}.part").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_say_how_to_continue(
    run: Path,
    photos: Path,
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def stop(items, total, what, images_in):
        yield next(items)
        os.kill(os.getpid(), number)
        time.sleep(60)

    begin(tmp_path / "answers.csv", vitkit.Classifier(run), find_images([photos]), batch=7, batches=1)
    monkeypatch.setattr("vitkit.progress.show_progress", stop)
    with pytest.raises(SystemExit) as stopped:
        predict(run, photos, "--out", tmp_path / "answers.csv")
    monkeypatch.undo()
    assert stopped.value.code == 128 + number
    assert "stopped; the same command continues" in capsys.readouterr().err
    predict(run, photos, "--out", tmp_path / "answers.csv")
    assert "30 images, 14 of them from an earlier call" in capsys.readouterr().out


def test_output_that_cannot_be_written_is_no_traceback():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vitkit", "cost", "mu/4"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "vitkit cost: standard output cannot be written: No space left on device.\n"


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than this machine has cores
def test_data_workers_change_nothing(run: Path, photos: Path):
    classifier = vitkit.Classifier(run)
    alone = [*predict_files(classifier, find_images([photos]))]
    with_workers = [*predict_files(classifier, find_images([photos]), workers=2)]
    for one, other in zip(alone, with_workers, strict=True):
        assert (one.name, one.error) == (other.name, other.error)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)


def test_patterns_folders_and_files_are_found(photos: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(photos)
    assert find_images(["*/00[01].*"]) == [Path("a/000.png"), Path("a/001.jpg"), Path("b/000.png"), Path("b/001.jpg")]
    assert len(find_images(["**/*"])) == 30  # the text is none of them
    assert find_images(["notes.txt"]) == [Path("notes.txt")]  # named on purpose: the row says that it is no image
    assert find_images(["c", "d.jpg"]) == [Path("c"), Path("d.jpg")]  # missing: their rows say so
    for wrong, message in ((["c*"], "no image matches"), (["c*", "d?"], "no image matches"), ([], "no images named")):
        with pytest.raises(vitkit.VitkitError, match=message):
            find_images(wrong)


def test_files_are_listed_in_the_order_of_the_parts_of_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    names = ["a.jpg", "a/b.jpg", "a/b/c.jpg", "a b/c.jpg", "a-b.jpg", "a!.jpg", "ab/c.jpg", "Z/a.jpg", "ü/a.jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    listed: list[int] = []
    expected = sorted(names, key=lambda name: Path(name).parts)
    assert find_image_names([tmp_path], listed.append) == [str(tmp_path / name) for name in expected]
    assert sum(listed) == len([*tmp_path.rglob("*")])
    monkeypatch.chdir(tmp_path)
    for source, prefix in ((".", ""), ("./a/", "a/"), ("a//b", "a/b/")):
        inside = [name for name in expected if name.startswith(prefix)]
        assert find_image_names([source]) == inside
        assert find_images([source]) == [Path(name) for name in inside]


def test_a_long_listing_says_how_far_it_is(
    run: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("vitkit.progress.SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("vitkit.cli.image_jobs.SECONDS_TO_SAY", 0.0)
    predict(run, photos, "--json")
    messages = capsys.readouterr().err
    assert re.search(r"listing  33 files, [\d,]+ a second", messages)  # two folders among them
    assert "30 images found in " in messages


def test_a_list_on_standard_input_is_read(run: Path, photos: Path):
    """find photos -name '*.jpg' | vitkit predict RUN -"""
    names = sorted(map(os.fsencode, photos.rglob("*.*g")))
    odd = photos / os.fsdecode(b"no text \xff.jpg")
    odd.write_bytes((photos / "a" / "001.jpg").read_bytes())
    listed = subprocess.run(
        [sys.executable, "-m", "vitkit", "predict", str(run), "-", "--json", "--device", "cpu"],
        input=b"\n".join([*names, b"", os.fsencode(odd)]),
        capture_output=True,
        check=True,
    )
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [row["image"] for row in rows[:-1]] == [os.fsdecode(name) for name in names]
    same_image = next(row["answers"] for row in rows if row["image"].endswith("a/001.jpg"))
    for answer, expected in zip(rows[-1]["answers"], same_image, strict=True):
        assert answer["probability"] == pytest.approx(expected["probability"], abs=rounding(small_model()))
    empty = subprocess.run([sys.executable, "-m", "vitkit", "predict", str(run), "-"], input=b"\n", capture_output=True)
    assert empty.returncode == 2
    assert b"standard input names no images" in empty.stderr


def test_undecodable_names_and_odd_images_are_written(run: Path, tmp_path: Path):
    photos = tmp_path / "odd"
    photos.mkdir()
    for name, content in odd_images().items():
        (photos / name).write_bytes(content)
    (photos / os.fsdecode(b"\xff\xfe.png")).write_bytes(encode(scene(), "PNG"))
    (photos / 'comma, "quote"\n.png').write_bytes(encode(scene(), "PNG"))
    for ending in ("csv", "jsonl", "parquet"):
        result = predict_into(tmp_path / f"odd.{ending}", vitkit.Classifier(run), find_images([photos]), top=1)
        assert written(result) == (0, 0)
    with (tmp_path / "odd.csv").open(newline="", errors="surrogateescape") as file:
        assert sum(1 for _ in csv.reader(file)) == len(odd_images()) + 3


def test_any_name_is_printed_on_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
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


def test_broken_links_have_a_row_and_skipped_files_are_named(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    (photos / "gone.jpg").symlink_to("nowhere.jpg")
    (photos / "circle").symlink_to(photos)
    os.mkfifo(photos / "pipe.jpg")
    for source in (photos, photos / "*.jpg"):
        with pytest.raises(SystemExit, match="3"):  # 2 of 31, and the only one
            predict(run, source, "--json")
        rows = {row["image"]: row["error"] for row in map(json.loads, capsys.readouterr().out.splitlines())}
        assert "No such file" in rows[str(photos / "gone.jpg")]
        assert len(rows) == (31 if source == photos else 1)
    assert "circle" in caplog.text
    assert "pipe.jpg" in caplog.text


@pytest.mark.parametrize(
    "arguments", [[], ["--json"], ["--csv"], ["--out", "answers.csv"], ["--out", "answers.csv", "--json"]]
)
def test_the_exit_code_says_whether_too_many_images_have_no_prediction(
    run: Path, photos: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(photos.parent)
    good, broken, text = photos / "a" / "000.png", photos / "a" / "007.jpg", photos / "notes.txt"
    predict(run, good, broken, *arguments, *["--overwrite"] * ("--out" in arguments))
    capsys.readouterr()
    for images, message in (
        ([broken], "1 of 1 image failed (100 %); first: "),
        ([broken, text], "2 of 2 images failed (100 %); first: "),
        ([broken, text, good, "gone.jpg"], "3 of 4 images failed (75.0 %); first: "),
    ):
        with pytest.raises(SystemExit) as stopped:
            predict(run, *images, *arguments, *["--overwrite"] * ("--out" in arguments))
        assert stopped.value.code == 3
        captured = capsys.readouterr()
        assert f"vitkit predict: {message}{broken}: " in captured.err
        assert captured.err.endswith("; --max-failed 1 allows them\n")
        # the reasons come all the same
        assert "007.jpg" in (Path("answers.csv").read_text() if "--out" in arguments else captured.out)


def test_weights_without_class_names_hint_at_labels(
    run: Path, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    model = small_model()
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
    ("arguments", "message"),
    [
        (["nowhere://example.org/cat.jpg"], "nowhere://example.org/cat.jpg: nothing is known about nowhere://"),
        (["PHOTOS", "--max-failed", "1.5"], "--max-failed 1.5: a share from 0 to 1 is needed"),
        (["PHOTOS", "--out", f"{'long' * 80}.csv"], "cannot be written: File name too long"),
        (["PHOTOS", "--top", "0"], "--top 0: 1 or more is needed"),
        (["PHOTOS", "--csv", "--json"], "--csv, --json and --out exclude each other"),
        (["PHOTOS", "--out", "answers.xlsx"], ".csv, .jsonl, .parquet"),
        (["PHOTOS", "--out", "no/folder/answers.csv"], "there is no folder"),
    ],
)
def test_mistakes_are_readable_errors(
    run: Path, photos: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as stopped:
        predict(run, *(str(photos) if argument == "PHOTOS" else argument for argument in arguments))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
