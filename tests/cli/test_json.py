"""`--json` has one form: an object on a line, with the verb, the version and the keys of docs/command-line.md."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.predict.small_model import LABELS, real_images, small_model
from vitkit.cli.main import VERBS, main

PAGE = (Path(vitkit.__file__).parents[1] / "docs" / "command-line.md").read_text(encoding="utf-8")
ROW = ["image", "error", "label", "probability", "answers"]  # of predict, its files and the server


def documented() -> dict[str, set[str]]:
    """Return the keys of each verb in the page's table."""
    table = PAGE.split("## `--json`")[1].split("## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|$", table, re.MULTILINE)
    return {verb: set(re.findall(r"`(.*?)`", keys)) for verbs, keys in rows for verb in re.findall(r"`(.*?)`", verbs)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run, and data with a train and a test split."""
    folder = tmp_path_factory.mktemp("json")
    vitkit.save(small_model(), folder / "run")
    for split in ("train", "test"):
        for name in LABELS:
            (folder / "data" / split / name).mkdir(parents=True)
            real_images(folder / "data" / split / name, 2)
    model = 'weights = "none"\nmodel = "mu/4"\nimage = 16\nsteps = 1\nbatch = 4\nworkers = 0\n'
    shared = f'data = "{folder / "data"}"\n{model}'
    (folder / "rates.toml").write_text(f"seeds = 1\n[axes]\nlr = [0.1, 0.2]\n[settings]\n{shared}")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, Any]:
    """Run a verb and return its object; it is all that stdout holds."""
    with contextlib.suppress(SystemExit) if words[0] == "check" else contextlib.nullcontext():  # its images are alike
        main([str(word) for word in words])
    (line,) = capsys.readouterr().out.splitlines()
    content: dict[str, Any] = json.loads(line)
    return content


def assert_documented(content: dict[str, Any], verb: str) -> None:
    assert list(content)[:2] == ["verb", "vitkit"]
    assert (content["verb"], content["vitkit"]) == (verb.split()[0], vitkit.__version__)
    assert content.keys() - {"verb", "vitkit"} == documented()[verb]


def test_the_page_lists_every_verb():
    assert {verb.split()[0] for verb in documented()} == set(VERBS)


@pytest.mark.parametrize(
    "command",
    [
        "cost B/16 --images 10",
        "list settings",
        "list recipes",
        "list models",
        "convert RUN OUT/timm --to timm",
        "check DATA --sheet OUT/check.png --image 32",
        "shard DATA OUT/shards",
        "evaluate RUN DATA --device cpu --workers 0",
        "probe RUN DATA --method knn --device cpu --workers 0",
        "inspect RUN DATA/test --out OUT/inspect --device cpu",
        "predict RUN DATA/test gone.jpg --out OUT/answers.csv --device cpu",
        "embed RUN DATA/test gone.jpg --out OUT/vectors.npy --device cpu",
        "export RUN --to pt2 --out OUT/model.pt2 --data DATA",
        "grid TOML --out OUT/rates --device cpu",
        "paper",
        "bench mu/4 --image 16 --batch 1 --what latency --device cpu --precision fp32",
    ],
)
def test_a_verb_prints_the_keys_of_the_page(
    command: str, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    verb = command.split()[0]
    words = [
        word.replace("RUN", str(files / "run"))
        .replace("DATA", str(files / "data"))
        .replace("OUT", str(tmp_path))
        .replace("TOML", str(files / "rates.toml"))
        for word in command.split()
    ]
    content = printed(capsys, *words, "--json")
    assert_documented(content, {"predict": "predict --out", "list": command}.get(verb, verb))
    if "failures" in content:
        assert content["failed"] == len(content["failures"]) == (1 if verb in ("predict", "embed") else 0)


def test_runs_print_the_same_keys(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    settings = ["--model", "mu/4", "--weights", "none", "--image", "16", "--steps", "2", "--batch", "4"]
    run = tmp_path / "run"
    words = ["fit", files / "data", *settings, "--device", "cpu", "--workers", "0", "--out", run, "--json"]
    content = printed(capsys, *words)
    assert_documented(content, "fit")
    assert content["evaluation"]["images"] == 2 * len(LABELS)
    monkeypatch.setattr("vitkit.run.start_run", lambda *arguments, **options: run)
    monkeypatch.setattr("vitkit.run.resume", lambda *arguments, **options: run)
    monkeypatch.setattr("vitkit.demo.demo", lambda *arguments: tmp_path)
    shutil.copytree(run, tmp_path / "classifier")
    for other in (["pretrain", "fashion"], ["resume", run], ["demo"]):
        same = printed(capsys, *other, "--json")
        assert_documented(same, str(other[0]))
        assert same["evaluation"] == content["evaluation"]


def test_a_server_prints_the_keys_of_the_page(files: Path):
    pytest.importorskip("fastapi", reason="needs fastapi, of the serve extra")
    from tests.serve.servers import ServerProcess

    with ServerProcess(files / "run") as server:
        assert_documented(server.startup, "serve")


def test_a_row_is_the_same_on_stdout_in_a_file_and_from_the_server(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("fastapi", reason="needs fastapi, of the serve extra")
    from tests.serve.asgi_client import send
    from tests.serve.servers import make_pool

    image, out = sorted((files / "data" / "test").rglob("*.png"))[0], tmp_path / "answers.jsonl"
    words = ["predict", files / "run", image, "gone.jpg", "--top", "3", "--device", "cpu"]
    main([*map(str, words), "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    main([*map(str, words), "--out", str(out)])
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    assert [list(row) for row in rows] == [ROW, ROW]
    upload = [("images", (str(name), name.read_bytes() if name.exists() else b"", "image/png")) for name in (image,)]
    pool = make_pool(run=vitkit.Classifier(files / "run"))
    (answer,) = send("POST", "/v1/predict?top=3", pool=pool, files=upload).json()["predictions"]
    assert list(answer) == ROW
    assert answer["label"] == rows[0]["label"]
    assert all(each.keys() >= {"label", "probability", "index"} for each in answer["answers"] + rows[0]["answers"])
    assert [set(failure) for failure in (rows[1],)] == [set(ROW)]
    shown = [json.loads(line) for line in re.findall(r'^\{"image".*\}$', PAGE, re.MULTILINE)]
    assert [list(row) for row in shown] == [ROW, ROW]
    assert shown[1]["error"].startswith(rows[1]["error"].split(":")[0])
