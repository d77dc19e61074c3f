"""A job with missing or unreadable images finishes: each has a row with the reason; the exit code says if many."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

import vitkit
from tests.predict.small_model import real_images, small_model
from vitkit.cli.main import main
from vitkit.data.sources.image_paths import find_images

IMAGES, MISSING = 200, 10  # 5 %


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run, 200 images, a list of them in which every twentieth has been deleted since, and a broken image."""
    folder = tmp_path_factory.mktemp("job")
    vitkit.save(small_model(), folder / "run")
    (folder / "photos").mkdir()
    real_images(folder / "photos", IMAGES)
    names = sorted(str(path) for path in (folder / "photos").iterdir())
    (folder / "list.txt").write_text("\n".join(names) + "\n")
    for name in names[7::20]:
        Path(name).unlink()
    return folder


def listed(job: Path) -> list[str]:
    return (job / "list.txt").read_text().splitlines()


def command(job: Path, *arguments: str | Path) -> list[str]:
    words = ["predict", job / "run", "-", "--device", "cpu", "--workers", "0", *arguments]
    return [sys.executable, "-m", "vitkit", *map(str, words)]


def run(job: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the job in a process of its own, with the list on standard input."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (job / "list.txt").open() as names:
        return subprocess.run(
            command(job, *arguments), stdin=names, capture_output=True, text=True, timeout=300, env=environment
        )


def errors(rows: list[dict[str, str]]) -> list[tuple[str, bool]]:
    return [(row["image"], bool(row["error"])) for row in rows]


def test_a_job_with_5_percent_missing_files_finishes_and_its_exit_code_says_so(job: Path, tmp_path: Path):
    out = tmp_path / "answers.csv"
    done = run(job, "--out", out)
    assert done.returncode == 3
    assert done.stdout == f"written  {out}: 200 images; 10 could not be read\n"
    last = done.stderr.splitlines()[-1]
    first = next(name for name in listed(job) if not Path(name).exists())
    assert last.startswith(f"vitkit predict: 10 of 200 images failed (5.0 %); first: {first}: ")
    assert "No such file or directory" in last
    assert last.endswith("; --max-failed 0.1 allows them")
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert errors(rows) == [(name, not Path(name).exists()) for name in listed(job)]
    assert all(row["label_1"] for row in rows if not row["error"])
    assert not any(row["label_1"] for row in rows if row["error"])

    allowed = run(job, "--out", tmp_path / "allowed.jsonl", "--max-failed", "0.05")
    assert allowed.returncode == 0
    assert "failed    10 of 200 images failed (5.0 %)" in allowed.stderr
    assert "--max-failed" not in allowed.stderr
    rows = [json.loads(line) for line in (tmp_path / "allowed.jsonl").read_text().splitlines()]
    assert errors(rows) == [(name, not Path(name).exists()) for name in listed(job)]

    quiet = run(job, "--json", "--quiet", "--max-failed", "0.05")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    printed = [json.loads(line) for line in quiet.stdout.splitlines()]
    assert [(row["image"], row["error"], row["label"]) for row in printed] == [
        (row["image"], row["error"], row["label"]) for row in rows
    ]


def test_a_killed_job_with_missing_files_continues_to_the_same_rows(job: Path, tmp_path: Path):
    out, journal, expected = tmp_path / "a.jsonl", tmp_path / "a.jsonl.part", tmp_path / "expected.jsonl"
    assert run(job, "--out", expected).returncode == 3
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (job / "list.txt").open() as names:
        process = subprocess.Popen(command(job, "--out", out), stdin=names, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 120
    while (
        time.monotonic() < deadline and process.poll() is None and (not journal.exists() or not journal.stat().st_size)
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    again = run(job, "--out", out)
    assert again.returncode == 3
    assert "10 of 200 images failed" in again.stderr
    rows, same = ([json.loads(line) for line in path.read_text().splitlines()] for path in (out, expected))
    assert [(row["image"], row["error"], row["label"]) for row in rows] == [
        (row["image"], row["error"], row["label"]) for row in same
    ]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_kind_of_failure_has_a_row_in_its_place(job: Path, tmp_path: Path, ending: str):
    good = [name for name in listed(job) if Path(name).exists()][:3]
    empty, text, broken = tmp_path / "empty.jpg", tmp_path / "notes.txt", tmp_path / "broken.jpg"
    empty.write_bytes(b"")
    text.write_text("no image")
    broken.write_bytes(Path(good[0]).read_bytes()[:60])
    sources = [good[0], "gone.jpg", good[1], empty, text, "no/folder/a.jpg", broken, f"{'long' * 80}.jpg", good[2]]
    out = tmp_path / f"answers.{ending}"
    with pytest.raises(SystemExit, match="3"):
        main(["predict", str(job / "run"), *map(str, sources), "--out", str(out), "--device", "cpu"])
    if ending == "parquet":
        rows = pyarrow.parquet.read_table(out).to_pylist()
    elif ending == "csv":
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert errors(rows) == [(str(source), source not in good) for source in sources]
    reasons = {row["image"]: row["error"] for row in rows}
    assert "No such file" in reasons["gone.jpg"]
    assert "too long" in reasons[f"{'long' * 80}.jpg"]


def test_a_name_in_a_list_is_never_a_pattern(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good = next(name for name in listed(job) if Path(name).exists())
    names = ["a[1].jpg", good, "*.png"]
    monkeypatch.setattr(
        "sys.stdin",
        type("Stdin", (), {"buffer": type("Buffer", (), {"read": lambda _: "\n".join(names).encode()})()})(),
    )
    monkeypatch.chdir(tmp_path)
    assert find_images(["-"]) == [Path(name) for name in names]


def test_an_empty_folder_among_others_is_a_note(job: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "monday").mkdir()
    found = find_images([tmp_path / "monday", job / "photos", tmp_path / "*.heic"])
    assert len(found) == IMAGES - MISSING
    assert re.search(r"monday has no images in it\.", caplog.text)
    assert "no image matches" in caplog.text
    with pytest.raises(vitkit.VitkitError, match="monday has no images in it"):
        find_images([tmp_path / "monday"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_a_row(job: Path, tmp_path: Path):
    locked = tmp_path / "photos" / "locked"
    locked.mkdir(parents=True)
    (tmp_path / "photos" / "a.png").write_bytes(b"")
    locked.chmod(0)
    try:
        assert find_images([tmp_path / "photos"]) == [tmp_path / "photos" / "a.png", locked]
        assert find_images([locked]) == [locked]
    finally:
        locked.chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_a_row(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same as root sees it, where a network file system refuses."""
    (tmp_path / "photos" / "locked").mkdir(parents=True)
    (tmp_path / "photos" / "a.png").write_bytes(b"")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.rstrip("/").endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    locked = tmp_path / "photos" / "locked"
    assert find_images([tmp_path / "photos"]) == [tmp_path / "photos" / "a.png", locked]
    assert find_images([locked]) == [locked]


def test_evaluate_and_probe_have_the_same_option_and_exit_code(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = tmp_path / "data"
    for index, name in enumerate(small_model().metadata.labels or ()):
        for split in ("train", "test"):
            (data / split / name).mkdir(parents=True)
            real_images(data / split / name, 4)
        if index < 2:
            (data / "test" / name / "000.png").write_bytes(b"broken")
    for words in (["evaluate"], ["probe", "--method", "knn"]):
        verb, *more = words
        arguments = [verb, str(job / "run"), str(data), *more, "--device", "cpu", "--workers", "0"]
        with pytest.raises(SystemExit, match="3"):
            main(arguments)
        error = capsys.readouterr().err
        assert "2 of 28 images could not be decoded" in error
        assert "or       --max-failed 0.2 leaves them out" in error
        main([*arguments, "--max-failed", "0.2", "--json"])
        result = json.loads(capsys.readouterr().out)
        assert (result["verb"], result["failed"]) == (verb, 2)
        assert [set(failure) for failure in result["failures"]] == [{"image", "error"}] * 2


def test_few_images_are_never_worth_choosing_a_fast_engine(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`--fast` then prints nothing more and imports no engine; for many images it chooses one."""
    chosen: list[int] = []
    monkeypatch.setattr(vitkit.Classifier, "use_fast_engine", lambda self, samples: chosen.append(len(samples)))
    names = [name for name in listed(job) if Path(name).exists()]
    arguments = ["predict", str(job / "run"), *names, "--device", "cpu", "--json", "--workers", "0"]
    main(arguments)
    exact = capsys.readouterr()
    main([*arguments, "--fast"])
    assert capsys.readouterr() == exact
    assert (exact.err.count("\n"), exact.err[:6], chosen) == (1, "input ", [])
    monkeypatch.setattr("vitkit.cli.image_jobs.MIN_IMAGES_FOR_FAST", {"cpu": len(names)})
    main([*arguments, "--fast"])
    assert chosen == [len(names)]
    assert "\nengine    " in capsys.readouterr().err
