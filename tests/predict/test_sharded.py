"""Many processes write the parts of one job, are killed and started again, and one puts the parts together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet
import pytest

import vitkit
from tests.predict.small_model import real_images, small_model
from vitkit.cli.main import main
from vitkit.data.sources.image_paths import find_images
from vitkit.errors import ConfigError
from vitkit.job_shard import JobShard
from vitkit.predict.embedder import Embedder
from vitkit.predict.embedding_file import embed_into
from vitkit.predict.part_folder import PartPlan
from vitkit.predict.stream import predict_into

IMAGES, BATCH = 100, 4


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 100 images, two of them broken."""
    folder = tmp_path_factory.mktemp("photos")
    real_images(folder, IMAGES)
    (folder / "017.jpg").write_bytes(b"\xff\xd8\xffnothing")
    (folder / "060.png").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def paths(photos: Path) -> Sequence[Path]:
    return find_images([photos])


def classifier(**preprocessing: Any) -> vitkit.Classifier:
    result = vitkit.Classifier(small_model(**preprocessing))
    result.engine = replace(result.engine, batch=BATCH)
    return result


def part_files(out: Path) -> list[Path]:
    return sorted(out.glob("parts/part-*.parquet"))


def stop_after(batches: int):
    """Return a progress that ends like Ctrl-C after so many batches."""

    def progress(items, total, what, images_in=None):
        for number, item in enumerate(items):
            if number == batches:
                raise KeyboardInterrupt
            yield item

    return progress


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_seven_shards_put_together_are_the_bytes_of_one_process(ending: str, paths: Sequence[Path], tmp_path: Path):
    alone, out = tmp_path / f"alone.{ending}", tmp_path / f"answers.{ending}"
    expected = predict_into(alone, classifier(), paths, top=3)
    shards = [
        predict_into(out, classifier(), paths, top=3, shard=JobShard(index, 7)) for index in (3, 0, 6, 1, 5, 2, 4)
    ]
    assert sum(failures.images for _, failures in shards) == len(paths)
    assert sum(failures.failed for _, failures in shards) == expected[1].failed == 2
    assert not out.exists()
    assert predict_into(out, classifier(), paths, top=3) == (len(paths), expected[1])
    assert out.read_bytes() == alone.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {alone.name, out.name}


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_vectors_of_shards_put_together_are_the_bytes_of_one_process(
    ending: str, paths: Sequence[Path], tmp_path: Path
):
    def embedder() -> Embedder:
        return Embedder(small_model(), batch=BATCH)

    alone, out = tmp_path / f"alone.{ending}", tmp_path / f"vectors.{ending}"
    embed_into(alone, embedder(), paths)
    for index in range(3):
        embed_into(out, embedder(), paths, shard=JobShard(index, 3))
    assert embed_into(out, embedder(), paths)[0] == len(paths)
    assert out.read_bytes() == alone.read_bytes()
    if ending == "npy":
        names = [path.with_suffix(".images.jsonl").read_bytes() for path in (alone, out)]
        assert names[0] == names[1]


def test_a_folder_of_parts_is_a_dataset_and_gets_the_one_file(paths: Sequence[Path], tmp_path: Path):
    out = tmp_path / "answers"
    for index in range(2):
        predict_into(out, classifier(), paths, top=3, shard=JobShard(index, 2))
    parts = pandas.read_parquet(out / "parts")
    predict_into(out, classifier(), paths, top=3)
    rows = pandas.read_parquet(out / "predictions.parquet")
    pandas.testing.assert_frame_equal(parts[rows.columns], rows)
    assert len(part_files(out)) == len(PartPlan.of(len(paths), BATCH))  # they stay
    with pytest.raises(ConfigError, match=r"predictions.parquet exists already, and is complete"):
        predict_into(out, classifier(), paths, top=3)


def test_a_missing_shard_is_named_and_computed(
    paths: Sequence[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    alone, out = tmp_path / "alone.csv", tmp_path / "answers.csv"
    predict_into(alone, classifier(), paths, top=3)
    for index in (0, 2):
        predict_into(out, classifier(), paths, top=3, shard=JobShard(index, 5))
    before, _ = predict_into(out, classifier(), paths, top=3)
    assert before == 2 * len(paths) // 5
    missing = "computing the missing 60 images: 20 to 39, 60 to 99"
    assert missing in capsys.readouterr().out
    assert out.read_bytes() == alone.read_bytes()


def test_a_shard_continues_after_its_last_part_and_another_number_of_shards_fits(paths: Sequence[Path], tmp_path: Path):
    out = tmp_path / "answers"
    with pytest.raises(KeyboardInterrupt):
        predict_into(out, classifier(), paths, top=3, shard=JobShard(0, 2), progress=stop_after(3))
    kept = {path: path.stat().st_mtime_ns for path in part_files(out)}
    assert len(kept) == 3
    assert predict_into(out, classifier(), paths, top=3, shard=JobShard(0, 5))[0] == 3 * BATCH
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(part_files(out)) == 5


def test_a_shard_that_is_larger_than_the_number_of_parts_has_nothing_to_do(paths: Sequence[Path], tmp_path: Path):
    before, failures = predict_into(tmp_path / "answers", classifier(), paths[:3], top=3, shard=JobShard(0, 7))
    assert (before, failures.images) == (0, 0)


def test_parts_of_another_model_or_other_images_are_refused(paths: Sequence[Path], tmp_path: Path):
    out = tmp_path / "answers"
    predict_into(out, classifier(), paths, top=3, shard=JobShard(0, 2))
    for other, images, top in (
        (classifier(mean=(0.4, 0.5, 0.5)), paths, 3),
        (classifier(), paths[1:], 3),
        (classifier(), paths, 2),
    ):
        with pytest.raises(ConfigError, match="begun with another model, other settings or other images"):
            predict_into(out, other, images, top=top, shard=JobShard(1, 2))
    other = classifier(mean=(0.4, 0.5, 0.5))
    assert predict_into(out, other, paths, top=3, overwrite=True)[0] == 0
    alone = tmp_path / "alone.parquet"
    predict_into(alone, other, paths, top=3)
    assert (out / "predictions.parquet").read_bytes() == alone.read_bytes()


def test_the_first_shard_decides_the_batch_size_of_all(paths: Sequence[Path], tmp_path: Path):
    out, alone = tmp_path / "answers.csv", tmp_path / "alone.csv"
    predict_into(out, classifier(), paths, top=3, shard=JobShard(0, 2))
    other = classifier()
    other.engine = replace(other.engine, batch=7)
    predict_into(out, other, paths, top=3)
    predict_into(alone, classifier(), paths, top=3)
    assert out.read_bytes() == alone.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "swapped"])
def test_a_damaged_part_is_computed_again(damage: str, paths: Sequence[Path], tmp_path: Path):
    out, alone = tmp_path / "answers.csv", tmp_path / "alone.csv"
    predict_into(alone, classifier(), paths, top=3)
    predict_into(out, classifier(), paths, top=3, shard=JobShard(0, 1))
    first, second, *_ = part_files(tmp_path / "answers.csv.parts")
    first.write_bytes(first.read_bytes()[:-100] if damage == "cut" else second.read_bytes())
    assert predict_into(out, classifier(), paths, top=3)[0] == len(paths) - BATCH
    assert out.read_bytes() == alone.read_bytes()


def test_a_folder_of_other_files_is_left_alone(paths: Sequence[Path], photos: Path):
    with pytest.raises(ConfigError, match="is a folder with other files in it"):
        predict_into(photos, classifier(), paths, top=3)
    assert len(list(photos.iterdir())) == len(paths)


def test_images_of_shards_are_predicted_as_their_files_are(photos: Path, tmp_path: Path):
    data, shards = tmp_path / "data", tmp_path / "shards"
    for number, path in enumerate(sorted(photos.iterdir())[:12]):
        target = data / ("train" if number < 8 else "test") / ("a" if number % 2 else "b") / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    vitkit.save(small_model(), tmp_path / "model")
    main(["shard", str(data), str(shards), "--workers", "1"])
    for source in (data, shards):
        main(["predict", str(tmp_path / "model"), str(source), "--out", f"{source}.jsonl", "--device", "cpu"])
    answers: list[dict[str, Any]] = [{}, {}]
    for rows, source in zip(answers, (data, shards), strict=True):
        for line in Path(f"{source}.jsonl").read_text().splitlines():
            row = json.loads(line)
            rows[Path(row["image"]).name] = row["answers"]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 12


def test_shards_killed_and_started_again_give_the_bytes_of_one_process(tmp_path: Path):
    """Of 7 shards, two are processes that are killed with -9 between two parts, and started again."""
    photos, model, out = tmp_path / "photos", tmp_path / "model", tmp_path / "answers.csv"
    photos.mkdir()
    real_images(photos, 14 * 64)
    vitkit.save(small_model(), model)
    arguments = ["predict", str(model), str(photos), "--out", str(out), "--device", "cpu", "--workers", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "7"}
    folder, left = tmp_path / "answers.csv.parts", 0
    for rank in (2, 5):
        command = [sys.executable, "-m", "vitkit", *arguments]
        process = subprocess.Popen(command, env={**environment, "RANK": f"{rank}"}, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(part_files(folder)) == left:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        left = len(part_files(folder))
    assert left < 4  # neither shard, of two parts each, is complete, or one of them just so
    for rank in range(7):
        main([*arguments, "--shard", f"{rank}/7"])
    assert len(part_files(folder)) == 14
    main(arguments)
    alone = tmp_path / "alone.csv"
    predict_into(alone, vitkit.Classifier(model), find_images([photos]), top=5)
    assert out.read_bytes() == alone.read_bytes()


def test_two_processes_do_not_hold_one_shard(paths: Sequence[Path], tmp_path: Path):
    out, index = tmp_path / "answers", JobShard(1, 2)

    def progress(items, total, what, images_in=None):
        with pytest.raises(ConfigError, match="another process is writing shard 1/2 of"):
            predict_into(out, classifier(), paths, top=3, shard=index)
        predict_into(out, classifier(), paths, top=3, shard=JobShard(0, 2))
        yield from items

    predict_into(out, classifier(), paths, top=3, shard=index, progress=progress)
    assert len(part_files(out)) == len(PartPlan.of(len(paths), BATCH))


def test_the_shard_of_the_environment_is_printed_with_its_way_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    vitkit.save(small_model(), tmp_path / "model")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "11")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "10")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    words = ["predict", str(tmp_path / "model"), str(photos), "--out", str(tmp_path / "answers"), "--device", "cpu"]
    main([*words, "--max-failed", "0.1", "--json"])
    printed = capsys.readouterr()
    assert "1/2, from SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT; --shard no takes all images" in printed.err
    assert json.loads(printed.out)["shard"] == "1/2"
    assert json.loads(printed.out)["images"] < IMAGES
    main([*words, "--max-failed", "0.1", "--shard", "no"])
    assert pyarrow.parquet.read_table(tmp_path / "answers" / "predictions.parquet").num_rows == len(
        find_images([photos])
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "7/7", "--out", "x"], "counted from 0"),
        (["--shard", "0/2"], "needs --out"),
        (["--shard", "0/2", "--out", "x", "--overwrite"], "would remove the rows of the others"),
        (["--out", "x.txt"], "the name must end in .csv, .jsonl, .parquet; a folder's name has no such ending"),
    ],
)
def test_mistakes_are_readable_errors(
    words: list[str], message: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    monkeypatch.chdir(tmp_path)
    vitkit.save(small_model(), tmp_path / "model")
    with pytest.raises(SystemExit) as stopped:
        main(["predict", "model", str(photos), "--device", "cpu", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
