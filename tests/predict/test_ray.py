"""Jobs on a local Ray cluster give the rows of one process, whatever dies."""

from __future__ import annotations

import csv
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest

import vitkit
from tests.predict.small_model import real_images, rounding, small_model
from vitkit.cli.main import main
from vitkit.errors import ConfigError
from vitkit.predict import ray_cluster
from vitkit.predict.listed_images import BLOCK, NameSpool
from vitkit.predict.ray_cluster import check_versions, own_versions

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model, and images in class folders, a few of them broken."""
    root = tmp_path_factory.mktemp("ray")
    model = small_model()
    vitkit.save(model, root / "model")
    (root / "all").mkdir()
    for number, path in enumerate(real_images(root / "all", 90)):
        target = root / "photos" / "test" / model.metadata.labels[number % 7] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        target.write_bytes(content[: len(content) // 2 - 100] if number % 40 == 5 else content)
    return root


@pytest.fixture
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return folder


def run(*words: str) -> None:
    main([*words, "--max-failed", "0.2"])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def test_a_cluster_gives_the_rows_and_the_scores_of_one_process(in_folder: Path, capsys: pytest.CaptureFixture[str]):
    """Start Ray once for all that needs it: predict, evaluate and the example of a pipeline."""
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    except Exception as error:  # Ray gives its helpers 15 s to start, whatever else the machine does (its issue 65983)
        ray.shutdown()
        if "timed out" not in str(error):
            raise
        pytest.skip(f"Ray does not start on this machine: {error}")
    try:
        run("predict", "model", "photos", "--engine", "ray", "--out", "ray.csv")
        run("evaluate", "model", "photos", "--engine", "ray", "--json", "--out", "ray.json")
        answers = run_example(in_folder)
    finally:
        ray.shutdown()
    output = capsys.readouterr().out
    assert "ray.csv: 90 images; 3 could not be read" in output
    run("predict", "model", "photos", "--out", "alone.csv", "--device", "cpu")
    run("evaluate", "model", "photos", "--json", "--out", "alone.json", "--device", "cpu")
    alone = rows_of(in_folder / "alone.csv")
    same_rows(rows_of(in_folder / "ray.csv"), alone)
    assert not (in_folder / "ray.csv.parts").exists()
    same_scores(json.loads((in_folder / "ray.json").read_text()), json.loads((in_folder / "alone.json").read_text()))
    expected = {row["image"]: (row["label_1"] or None, row["error"] or None) for row in alone}
    assert len(answers) == 45
    assert sum(row["error"] is not None for row in answers.values()) == 3
    for name, row in answers.items():
        assert (row["label"], row["error"]) == expected[name]


def run_example(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the answers of the example of a user's own pipeline, by image; it has rows for broken ones, too."""
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "cluster" / "ray_predict.py"))
    example["predict"]("model", "photos/**/*.jpg", str(folder / "example"))
    return {row["path"]: row for row in pyarrow.parquet.read_table(folder / "example").to_pylist()}


def same_rows(rows: list[dict[str, str]], expected: list[dict[str, str]]) -> None:
    tolerance = max(rounding(small_model()), 1e-5)
    assert [(row["image"], row["error"]) for row in rows] == [(row["image"], row["error"]) for row in expected]
    for row, other in zip(rows, expected, strict=True):
        for rank in range(1, 6):
            if not row["error"]:
                first, second = float(row[f"probability_{rank}"]), float(other[f"probability_{rank}"])
                assert first == pytest.approx(second, abs=tolerance)
                assert row[f"label_{rank}"] == other[f"label_{rank}"]


def same_scores(scores: dict[str, Any], expected: dict[str, Any]) -> None:
    assert scores.keys() == expected.keys()
    for name in ("images", "confusion", "left_out", "top1", "per_class"):
        assert scores[name] == expected[name]
    assert scores["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("column", ["path", "bytes"])
def test_a_batch_keeps_its_columns_and_a_missing_image_is_a_row(column: str, in_folder: Path):
    from vitkit.predict.ray import BatchEmbedder, Predictor

    good = in_folder / "all" / "000.png"
    batch = {
        "path": {"path": np.array([str(good), "missing.jpg", None], dtype=object)},
        "bytes": {"bytes": np.array([good.read_bytes(), b"\xff\xd8", None], dtype=object)},
    }[column] | {"id": np.arange(3)}
    predictor, embedder = Predictor("model", 2, device="cpu"), BatchEmbedder("model", device="cpu", normalise=True)
    answers, vectors = predictor(batch), embedder(batch)
    expected = vitkit.Classifier("model")(good)
    assert answers["id"].tolist() == [0, 1, 2]
    assert answers["label"].tolist() == [expected.label, None, None]
    assert answers["labels"][0] == [answer.label for answer in expected.top(2)]
    assert [error is None for error in answers["error"]] == [True, False, False]
    np.testing.assert_allclose(
        vectors["vector"][0], vitkit.Classifier("model").embed(good, normalise=True)[0], atol=1e-6
    )
    assert np.isnan(vectors["vector"][1:]).all()
    assert [error is None for error in vectors["error"]] == [True, False, False]
    assert predictor({"path": np.array([], dtype=object)}).keys() == {"path"}
    with pytest.raises(ConfigError, match='needs a column "path" or "bytes"'):
        predictor({"image": np.arange(2)})


def test_an_unreachable_cluster_is_one_message_within_seconds(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"  # bound, but nobody listens
        for given in (address, f"ray://{address}", "nonsense", "http://x"):
            monkeypatch.setenv("RAY_ADDRESS", given)
            with pytest.raises(SystemExit) as stopped:
                run("predict", "model", "photos", "--engine", "ray", "--out", "x.csv")
            error = capsys.readouterr().err
            assert stopped.value.code == 2
            assert f"there is no Ray cluster at RAY_ADDRESS={given}" in error
            assert "Traceback" not in error


def test_a_server_that_is_not_ray_is_one_message_within_seconds(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The port of Ray's dashboard, say: Ray itself would wait for it for longer than anybody."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for prefix in ("", "ray://"):
            monkeypatch.setenv("RAY_ADDRESS", f"{prefix}127.0.0.1:{server.server_port}")
            with pytest.raises(SystemExit) as stopped:
                run("predict", "model", "photos", "--engine", "ray", "--out", "x.csv")
            assert stopped.value.code == 2
            assert "what listens there is not Ray" in capsys.readouterr().err
        server.shutdown()


def test_a_full_object_store_is_one_message(monkeypatch: pytest.MonkeyPatch):
    def put(value: object) -> None:
        raise failure

    monkeypatch.setattr(ray, "put", put)
    for failure in (ray.exceptions.OutOfDiskError("full"), ray.exceptions.ObjectStoreFullError("full")):
        with pytest.raises(ConfigError, match="the object store of the Ray cluster is full"):
            ray_cluster.put("model")
        in_worker = ray.exceptions.RayTaskError("put", "Traceback …", failure)
        assert "the object store of the Ray cluster is full" in str(ray_cluster.store_full(in_worker))
    failure = ray.exceptions.RaySystemError("another reason")
    assert ray_cluster.store_full(failure) is None
    with pytest.raises(ray.exceptions.RaySystemError, match="another reason"):
        ray_cluster.put("model")


def test_a_missing_extra_is_named(in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "ray", None)
    for verb, out in (("predict", "x.csv"), ("embed", "x.npy"), ("evaluate", "x.json")):
        with pytest.raises(SystemExit) as stopped:
            run(verb, "model", "photos", "--engine", "ray", "--out", out)
        assert stopped.value.code == 2
        assert 'pip install "vitkit[ray]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "ray"], "--engine ray needs --out"),
        (["--engine", "ray", "--out", "x", "--shard", "0/2"], "--engine ray decides about --shard itself"),
        (["--engine", "ray", "--out", "x", "--device", "cuda"], "--engine ray decides about --device itself"),
        (["--engine", "ray", "--out", "x", "--fast"], "--engine ray decides about --fast itself"),
    ],
)
def test_options_that_mean_nothing_to_a_cluster_are_refused(
    words: list[str], message: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        run("predict", "model", "photos", *words)
    assert message in capsys.readouterr().err


def test_other_versions_on_a_worker_are_one_message():
    check_versions(own_versions(), own_versions(), "node-1")
    with pytest.raises(ConfigError, match="on node-1 do not have the versions of the driver") as failed:
        check_versions(own_versions(), {**own_versions(), "vitkit": "0.0.1"}, "node-1")
    assert f"pip install vitkit=={vitkit.__version__} on every node" in str(failed.value)
    with pytest.raises(ConfigError, match="torch is not installed"):
        check_versions(own_versions(), {"vitkit": vitkit.__version__}, "node-1")


def test_the_names_of_images_are_stored_in_blocks_and_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vitkit.predict.listed_images.BLOCK", 7)
    assert BLOCK > 7
    names = [f"{number}.jpg" for number in range(23)] + [os.fsdecode(b"\xff.jpg")]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    spool = NameSpool([str(tmp_path / name) for name in names])
    stored = spool.store(str(tmp_path / "out"))
    assert len(stored) == 24
    for first, stop in ((0, 24), (3, 7), (5, 9), (7, 14), (13, 22), (23, 24), (0, 1)):
        assert [*stored.split(range(first, stop)).keys] == [str(tmp_path / name) for name in names[first:stop]]
    assert len(list((tmp_path / "out" / "images").iterdir())) == 4
    stored.delete()
    assert not list((tmp_path / "out" / "images").iterdir())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a cluster of three nodes on this machine."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.slow
def test_20_000_rows_survive_the_death_of_nodes_and_of_the_driver(in_folder: Path, cluster: Any):
    """Of 20,000 images, 200 are broken; the driver is killed once, and a node twice."""
    (in_folder / "many").mkdir()
    for number, path in enumerate(real_images(in_folder / "many", 20_000)):
        if number % 100 == 37:
            path.write_bytes(path.read_bytes()[:200])
    command = [sys.executable, "-m", "vitkit", "predict", "model", "many", "--engine", "ray", "--out", "killed"]
    parts = in_folder / "killed" / "parts"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--max-failed", "0.2"])

    def wait_for(count: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 600
        while len([*parts.glob("part-*")]) < count:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill_a_node() -> None:
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        cluster.add_node(num_cpus=1)

    process = start()
    wait_for(20, process)
    process.kill()
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in parts.glob("part-*")}
    process = start()
    wait_for(len(kept) + 40, process)
    kill_a_node()
    wait_for(len(kept) + 120, process)
    kill_a_node()
    assert process.wait(timeout=1200) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    run("predict", "model", "many", "--out", "alone.parquet", "--device", "cpu", "--workers", "0")
    rows, expected = (pandas.read_parquet(name) for name in ("killed/parts", "alone.parquet"))
    assert len(rows) == 20_000
    for column in ("image", "error", "label"):
        assert rows[column].tolist() == expected[column].tolist()
    assert rows["error"].notna().sum() == 200
    np.testing.assert_allclose(rows["probability"], expected["probability"], atol=1e-5)
    run("embed", "model", "many", "--engine", "ray", "--out", "ray.npy")
    run("embed", "model", "many", "--out", "alone.npy", "--device", "cpu", "--workers", "0")
    np.testing.assert_allclose(np.load("ray.npy"), np.load("alone.npy"), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_driver_of_another_version_is_refused_by_the_nodes(
    in_folder: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(vitkit, "__version__", "0.0.1")
    with pytest.raises(SystemExit) as stopped:
        run("predict", "model", "photos", "--engine", "ray", "--out", "other.csv")
    assert stopped.value.code == 2
    assert "do not have the versions of the driver" in capsys.readouterr().err
