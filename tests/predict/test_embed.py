"""`vitkit embed` writes a vector for each image, broken ones included, and continues after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from numpy.typing import NDArray

import vitkit
from tests.data.sample_images import encode
from tests.model.kinds import randomise
from tests.predict.small_model import real_images, rounding, small_model
from vitkit.cli.main import main
from vitkit.predict.embedder import Embedder
from vitkit.predict.embedding_file import embed_into

BROKEN = b"\xff\xd8\xffnothing"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run and 70 images, more than a batch, two of them broken."""
    folder = tmp_path_factory.mktemp("job")
    vitkit.save(small_model(), folder / "run")
    (folder / "photos").mkdir()
    paths = real_images(folder / "photos", 70)
    for index in (7, 66):
        paths[index].write_bytes(BROKEN)
    return folder


def embed(job: Path, *arguments: str | Path) -> None:
    main(["embed", str(job / "run"), str(job / "photos"), "--device", "cpu", *map(str, arguments)])


def paths_of(job: Path) -> list[Path]:
    return sorted((job / "photos").iterdir())


def representations(run: Path, paths: list[Path], name: str = "representation") -> NDArray[np.float32]:
    """Return the oracle: what the plain model captures, each image on its own."""
    model = vitkit.load(run)
    preprocess = vitkit.preprocess(model)
    with torch.inference_mode():
        return np.stack([model(preprocess(path)[None], (name,))[1][name][0].numpy() for path in paths])


def tolerance(vectors: NDArray[np.float32]) -> float:
    """Return the rounding of sums in another order, of numbers of this size."""
    return rounding(small_model()) * float(np.abs(vectors).max())


def read_parquet(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def test_the_vectors_are_the_representation_and_broken_images_are_rows(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "vectors.parquet"
    embed(job, "--out", out, "--max-failed", "0.05")
    captured = capsys.readouterr()
    assert captured.out == f"written  {out}: 70 images, 32 numbers each; 2 could not be read\n"
    assert "failed    2 of 70 images failed (2.9 %)" in captured.err
    schema = pyarrow.parquet.read_schema(out)
    assert schema.names == ["image", "vector", "error"]
    assert schema.field("vector").type == pyarrow.list_(pyarrow.float32(), 32)
    rows, paths = read_parquet(out), paths_of(job)
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    broken = {index for index, row in enumerate(rows) if row["error"] is not None}
    assert broken == {7, 66}
    assert all((row["vector"] is None) == (index in broken) for index, row in enumerate(rows))
    readable = [path for index, path in enumerate(paths) if index not in broken]
    vectors = np.array([row["vector"] for row in rows if row["error"] is None], np.float32)
    expected = representations(job / "run", readable)
    np.testing.assert_allclose(vectors, expected, atol=tolerance(expected), rtol=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors.parquet"]


def test_numpy_has_the_same_rows_and_their_names_beside_it(job: Path, tmp_path: Path):
    table, matrix = tmp_path / "vectors.parquet", tmp_path / "vectors.npy"
    for out in (table, matrix):
        embed(job, "--out", out, "--max-failed", "1", "--quiet")
    rows, vectors = read_parquet(table), np.load(matrix)
    assert (vectors.dtype, vectors.shape) == (np.float32, (70, 32))
    for row, vector in zip(rows, vectors, strict=True):
        if row["error"] is None:
            np.testing.assert_array_equal(vector, np.array(row["vector"], np.float32))
        else:
            assert np.isnan(vector).all()
    names = [json.loads(line) for line in (tmp_path / "vectors.images.jsonl").read_text().splitlines()]
    assert names == [{"image": row["image"], "error": row["error"]} for row in rows]
    for name, out in (("vectors.npy exists already, and is complete", matrix), ("vectors.images.jsonl exists", matrix)):
        with pytest.raises(vitkit.VitkitError, match=name):
            embed_into(out, Embedder(small_model()), paths_of(job))
        out.unlink(missing_ok=True)


def test_pool_and_normalise_choose_the_vector(job: Path, tmp_path: Path):
    run, readable = vitkit.Run(job / "run", device="cpu"), [path for path in paths_of(job) if path.suffix == ".png"][:9]
    tokens = representations(job / "run", readable, "encoded")
    both = np.concatenate([tokens[:, 0], tokens[:, 1:].mean(axis=1)], axis=1)
    close = {"atol": tolerance(tokens), "rtol": 0}
    np.testing.assert_allclose(run.embed(readable, pool="token"), both[:, :32], **close)
    np.testing.assert_allclose(run.embed(readable, pool="gap"), both[:, 32:], **close)
    np.testing.assert_allclose(run.classifier.embed(readable, pool="token-gap"), both, **close)
    unit = both / np.linalg.norm(both, axis=1, keepdims=True)
    np.testing.assert_allclose(run.classifier.embed(readable, pool="token-gap", normalise=True), unit, **close)
    out = tmp_path / "unit.npy"
    names = [str(path) for path in readable]
    main(["embed", str(run), *names, "--out", str(out), "--pool", "token-gap", "--normalise", "--device", "cpu"])
    np.testing.assert_allclose(np.load(out), unit, **close)
    assert run.embed(readable, precision="bf16").shape == (9, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "vectors.csv"], "the name must end in .parquet, .npy"),
        (["--out", "no/folder/vectors.npy"], "there is no folder"),
        (["--out", "vectors.npy", "--fast", "--precision", "bf16"], "--fast chooses the precision itself"),
        (["--out", "vectors.npy", "--pool", "gab"], "gap"),
        (["--out", "vectors.npy", "--normalize"], "--normalise"),
        (["--out", "vectors.npy", "--workers", "-1"], "--workers -1: 0 or more is needed"),
        ([], "--out"),
    ],
)
def test_mistakes_are_readable_errors(
    job: Path, options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        embed(job, *options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_without_a_class_token_has_no_vector_of_it(job: Path, tmp_path: Path, capsys):
    vitkit.save(randomise(vitkit.create("mu/8", classes=3, image=32, pool="gap")), tmp_path / "gap")
    arguments = ["embed", str(tmp_path / "gap"), str(job / "photos"), "--out", str(tmp_path / "vectors.npy")]
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--pool", "token"])
    assert "reads the class token, and this model has none" in capsys.readouterr().err
    main([*arguments, "--max-failed", "1", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["verb"], result["images"], result["failed"], result["there_already"]) == ("embed", 70, 2, 0)


def test_rows_of_other_vectors_are_never_mixed(job: Path, tmp_path: Path):
    out, paths = tmp_path / "vectors.parquet", paths_of(job)

    def stop(items, total, what, images_in):
        for index, item in enumerate(items):
            if index == 10:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        embed_into(out, Embedder(small_model(), batch=2), paths, progress=stop)
    for other, message in (
        (Embedder(small_model(), pool="gap"), "--pool: representation; now gap"),
        (Embedder(small_model(), normalise=True), "--normalise: no; now yes"),
        (Embedder(small_model(), precision="bf16"), "engine: exact; now bf16"),
        (Embedder(small_model(resize="squash")), "preprocessing: "),
    ):
        with pytest.raises(vitkit.VitkitError, match=message):
            embed_into(out, other, paths)
    part = tmp_path / "vectors.parquet.part"
    lines = part.read_bytes().splitlines(keepends=True)
    damaged = json.loads(lines[5])
    part.write_bytes(b"".join([*lines[:5], json.dumps({**damaged, "vectors": "AAAA"}).encode() + b"\n"]))
    relabelled = small_model()
    relabelled.replace_head(3)  # vectors do not depend on the classes
    assert embed_into(out, Embedder(relabelled), paths)[0] == 8  # four batches of two
    assert len(read_parquet(out)) == 70


def test_images_that_all_fail_are_rows_of_nothing(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(BROKEN)
    for ending in ("npy", "parquet"):
        before, failures = embed_into(tmp_path / f"v.{ending}", Embedder(small_model()), [tmp_path / "a.jpg"])
        assert (before, failures.failed) == (0, 1)
    assert np.isnan(np.load(tmp_path / "v.npy")).all()
    assert [row["vector"] for row in read_parquet(tmp_path / "v.parquet")] == [None]


def test_a_vector_that_is_not_finite_is_a_failure(job: Path, tmp_path: Path):
    model = small_model()
    with torch.no_grad():
        model.encoder.norm.bias[0] = torch.nan
    _, failures = embed_into(tmp_path / "v.parquet", Embedder(model), paths_of(job)[:3])
    assert failures.failed == 3
    assert "not a number" in read_parquet(tmp_path / "v.parquet")[0]["error"]


def test_a_fast_engine_is_compared_by_the_direction_of_its_vectors(job: Path, monkeypatch: pytest.MonkeyPatch):
    from vitkit.predict import fast
    from vitkit.predict.engines import EngineCandidate

    embedder = Embedder(small_model(), pool="gap")
    exact = embedder.engine.logits
    candidates = [
        EngineCandidate("turned", lambda: lambda images: exact(images).roll(1, dims=1)),
        EngineCandidate("scaled", lambda: lambda images: exact(images) * 2),
    ]
    monkeypatch.setattr(fast, "engine_candidates", lambda model, device: candidates)
    monkeypatch.setattr(fast, "measure_speedups", lambda exact, other, images: (2.0, 2.0))
    monkeypatch.setattr(fast, "with_fewer_threads", lambda engine, images: engine)
    embedder.use_fast_engine()
    assert embedder.engine.description.startswith("fast: scaled on ")
    assert "cosine similarity 1.0000 or more on " in embedder.engine.description


def write_small_images(folder: Path, images: int, broken: int) -> None:
    """Write images of 8 x 8 to 12 x 12 pixels, some of them broken."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(images):
        side = 8 + index % 5
        content = encode(generator.integers(0, 256, (side, side, 3), np.uint8), "PNG")
        (folder / f"{index:04d}.png").write_bytes(BROKEN if index % (images // broken) == 17 else content)


@pytest.mark.parametrize(
    ("ending", "images"),
    [
        ("npy", 1_000),
        pytest.param("npy", 5_000, marks=pytest.mark.slow),
        pytest.param("parquet", 5_000, marks=pytest.mark.slow),
    ],
)
def test_a_job_killed_and_resumed_gives_the_bytes_of_an_uninterrupted_one(tmp_path: Path, ending: str, images: int):
    broken = images // 100
    torch.manual_seed(0)
    vitkit.save(randomise(vitkit.create("mu/8", classes=3, image=16)), tmp_path / "run")
    write_small_images(tmp_path / "photos", images, broken)

    def command(out: Path) -> list[str]:
        words = ["embed", tmp_path / "run", tmp_path / "photos", "--out", out, "--device", "cpu", "--workers", "0"]
        return [sys.executable, "-m", "vitkit", *map(str, words), "--max-failed", "0.02"]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out, journal = tmp_path / f"vectors.{ending}", tmp_path / f"vectors.{ending}.part"
    process = subprocess.Popen(command(out), env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and (not journal.exists() or journal.stat().st_size < 20_000)
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    left = sum(
        json.loads(line)["images"] for line in journal.read_bytes().splitlines(keepends=True)[1:] if line[-1:] == b"\n"
    )
    assert 0 < left < images
    with journal.open("ab") as file:
        file.write(b'{"images": 64, "vect')
    resumed = subprocess.run(command(out), env=environment, capture_output=True, text=True, check=True)
    assert (
        f"{images:,} images, 32 numbers each, {left:,} of them from an earlier call; {broken} could" in resumed.stdout
    )
    whole = tmp_path / "whole"
    whole.mkdir()
    subprocess.run(command(whole / out.name), env=environment, capture_output=True, check=True)
    assert out.read_bytes() == (whole / out.name).read_bytes()
    if ending == "npy":
        assert (tmp_path / "vectors.images.jsonl").read_bytes() == (whole / "vectors.images.jsonl").read_bytes()
    vectors = np.load(out) if ending == "npy" else pyarrow.parquet.read_table(out)["vector"].to_pylist()
    rows = [index for index in range(images) if index % 100 != 17]
    model = vitkit.load(tmp_path / "run")
    preprocess = vitkit.preprocess(model)
    batch = torch.stack([preprocess(tmp_path / "photos" / f"{index:04d}.png") for index in rows])
    with torch.inference_mode():
        expected = model(batch, capture=("representation",))[1]["representation"].numpy()
    computed = np.array([vectors[index] for index in rows], np.float32)
    np.testing.assert_allclose(computed, expected, atol=tolerance(expected), rtol=0)
    assert not journal.exists()
