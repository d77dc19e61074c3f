"""The command line as a user meets it."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vitkit
from tests.model.kinds import images_for, make
from vitkit.cli.main import VERBS, main

# Few flags: a new one is a decision, made here as well.
OPTIONS = {
    "check": ["data", "image", "resize", "channels", "sheet", "label", "workers", "json"],
    "fit": [
        "data",
        "model",
        "weights",
        "image",
        "steps",
        "epochs",
        "batch",
        "lr",
        "recipe",
        "out",
        "config",
        "set_",
        "label",
        "seed",
        "device",
        "precision",
        "workers",
        "track",
        "json",
    ],
    "pretrain": [
        "data",
        "objective",
        "model",
        "weights",
        "image",
        "steps",
        "epochs",
        "batch",
        "lr",
        "recipe",
        "out",
        "config",
        "set_",
        "label",
        "seed",
        "device",
        "precision",
        "workers",
        "track",
        "json",
    ],
    "resume": ["run", "device", "workers", "json"],
    "demo": ["out", "json"],
    "shard": ["data", "folder", "megabytes", "side", "label", "workers", "json"],
    "cost": ["models", "image", "classes", "batch", "precision", "images", "epochs", "json"],
    "convert": ["source", "out", "to", "grid", "heads", "lossy", "overwrite", "json"],
    "evaluate": [
        "run",
        "data",
        "split",
        "labels",
        "label",
        "real",
        "image",
        "batch",
        "device",
        "precision",
        "workers",
        "out",
        "json",
    ],
    "probe": [
        "run",
        "data",
        "method",
        "shots",
        "seeds",
        "neighbours",
        "image",
        "label",
        "features",
        "batch",
        "device",
        "precision",
        "workers",
        "json",
    ],
    "predict": [
        "run",
        "images",
        "top",
        "out",
        "overwrite",
        "labels",
        "image",
        "fast",
        "device",
        "workers",
        "csv",
        "json",
    ],
    "export": ["run", "to", "out", "input", "int8", "max_drop", "data", "pictures", "image", "overwrite", "json"],
    "serve": ["runs", "host", "port", "batch", "fast", "device", "key_file", "cors", "limit", "json"],
    "inspect": ["run", "images", "out", "image", "layer", "head", "token", "device", "json"],
    "bench": ["model", "image", "batch", "what", "device", "precision", "compile", "json"],
}


def test_the_options_are_these_and_no_others():
    assert {verb: list(inspect.signature(function).parameters) for verb, function in VERBS.items()} == OPTIONS


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vitkit", *words], capture_output=True, text=True, timeout=120)


def test_help_names_every_verb_and_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['vitkit', '--help']; from vitkit.cli.main import main; main(); "
        "sys.exit(str({'torch', 'numpy', 'PIL', 'matplotlib', 'huggingface_hub'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "set()"
    assert all(verb in result.stdout for verb in VERBS)


def test_help_tells_of_every_verb_in_a_whole_sentence(capsys: pytest.CaptureFixture[str]):
    main(["--help"])
    listing = capsys.readouterr().out.split("--help\n")[1].split("--version")[0]
    told = dict(part.split(maxsplit=1) for part in re.split(r"\n  (?=\w)", listing)[1:])
    assert told.keys() == VERBS.keys()
    for verb, sentence in told.items():
        sentence = " ".join(sentence.split())
        assert re.fullmatch(r"[A-Z].*[^.]\.", sentence)
        assert len(sentence) < 130
        assert " ".join((VERBS[verb].__doc__ or "").split()).startswith(sentence.replace("few- shot", "few-shot"))


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_no_words_of_pythons(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    options = capsys.readouterr().out.partition("-h, --help")[2]
    assert ended.value.code == 0
    assert options
    assert "None" not in options


def test_costs_need_no_torch():
    script = "import sys; from vitkit.cli.main import main; main(['cost', 'B/16']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode == 0


def test_costs_as_a_table(capsys: pytest.CaptureFixture[str]):
    main(["cost", "B/16", "R50x1", "--images", "303000000", "--epochs", "7", "--batch", "256"])
    table = capsys.readouterr().out
    assert "86,567,656" in table
    assert "17.56" in table
    assert "223.5" in table
    assert max(map(len, table.splitlines())) <= 80


def test_costs_as_json(capsys: pytest.CaptureFixture[str]):
    main(["cost", "B/16", "--image", "224", "320", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["image"] == [224, 320]
    assert content["models"][0]["tokens"] == 14 * 20 + 1
    assert "exaflops" not in content["models"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cots"], "there is no verb 'cots'; did you mean cost"),
        (["cost", "B/17x"], "there is no model 'B/17x'; did you mean B/16"),
        (["cost", "B/16", "--imag", "384"], "--image"),
        (["cost", "B/16", "--image", "250"], "250 x 250 image cannot be cut into 16-pixel patches; use 240 x 240"),
        (["cost", "B/16", "--image", "1", "2", "3"], "found 3 numbers"),
        (["cost", "B/16", "--batch", "0"], "--batch 0: 1 or more"),
        (["cost"], "no model named"),
        (["cost", "B/16", "--epochs", "7"], "--epochs 7 needs --images"),
        (["cost", "B/16", "--images", "9", "--epochs", "nan"], "--epochs nan"),
        (["convert", "a.safetensors", "out", "--to", "google"], "one .npz file; out is named otherwise"),
        (["convert", "nowhere.npz", "out", "--to", "timm"], "nowhere.npz does not exist"),
        (["convert", "a.npz", "out", "--to", "tim"], "timm"),
        (["cost", "B/16", "--batch", "2.5"], "a whole number is needed, not '2.5'"),
        (["cost", "B/16", "--images", "many"], "a whole number is needed, not 'many'"),
        (["cost", "B/16", "--images", "9", "--epochs", "two"], "a number is needed, not 'two'"),
        (["cost", "B/16", "--image", "64x96"], "a whole number is needed, not '64x96'; several are"),
        (["fit", "fashion", "--image", "224", "wide"], "a whole number is needed, not 'wide'"),
        (["convert", "a.npz", "out", "--to", "timm", "--grid", "14", "x"], "a whole number is needed, not 'x'"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_verbs_that_are_not_for_torchrun_say_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("WORLD_SIZE", "2")
    main(["cost", "B/16"])  # some scripts set it for everything
    with pytest.raises(SystemExit):
        main(["fit", "fashion", "--weights", "none", "--model", "mu/4", "--image", "28"])
    assert "and RANK, which torchrun sets for each of them, is not there" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        main(["cost", "B/16"])
    assert "vitkit cost …, without torchrun" in capsys.readouterr().err


def test_a_mistake_shows_no_traceback(tmp_path: Path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and then nothing")
    result = run("convert", str(tmp_path / "broken.npz"), str(tmp_path / "out"), "--to", "timm")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("vitkit convert: ")


def test_converting_says_what_was_read_and_written(fixtures: Path, tmp_path: Path):
    result = run("convert", str(fixtures / "google_token_weights.npz"), str(tmp_path / "out"), "--to", "timm")
    assert result.returncode == 0, result.stderr
    assert "32 x 32 px, 10 classes" in result.stdout
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]


def test_converting_as_json(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["convert", str(fixtures / "google_hybrid_weights.npz"), str(tmp_path / "out"), "--to", "vitkit", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["to"] == "vitkit"
    assert summary["classes"] == 10


def test_heads_and_grid_reach_the_loader(fixtures: Path, tmp_path: Path):
    model = make("non-square, one channel")
    vitkit.save(model, tmp_path / "in.npz", format="google")
    main(["convert", str(tmp_path / "in.npz"), str(tmp_path / "a"), "--to", "vitkit", "--grid", "2", "5"])
    images = images_for(model)
    assert torch.equal(vitkit.load(tmp_path / "a")(images), model(images))
    source = str(fixtures / "timm_token_weights.safetensors")
    main(["convert", source, str(tmp_path / "b"), "--to", "hf", "--heads", "3"])
    assert vitkit.load(tmp_path / "b").config.heads == 3


def test_nothing_is_overwritten_unasked(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = str(fixtures / "google_token_weights.npz"), tmp_path / "out.npz"
    np.savez(out, precious=np.ones(3))
    with pytest.raises(SystemExit, match="2"):
        main(["convert", source, str(out), "--to", "google"])
    assert "exists already; nothing was written" in capsys.readouterr().err
    with np.load(out) as kept:
        assert kept.files == ["precious"]
    main(["convert", source, str(out), "--to", "google", "--overwrite"])
    with np.load(out) as replaced:
        assert "cls" in replaced.files
