"""`vitkit bench` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.cli.main import main
from vitkit.cost import cost
from vitkit.model.variants import configure


def test_json_output():
    """mu/4 at 32 px: 64 patches of 48 values and a class token, width 32, MLP 128, two layers, 1,000 classes."""
    arguments = ["bench", "mu/4", "--image", "32", "--device", "cpu", "--batch", "4", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "vitkit", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    layer = 65 * 4 * 32**2 + 2 * 65**2 * 32 + 65 * 2 * 32 * 128
    macs = 64 * 48 * 32 + 2 * layer + 32 * 1000
    assert content["flops"] == {"training": 6 * macs, "inference": 2 * macs}
    assert content["image"] == [32, 32]
    assert content["rows"][0]["what"] == "training"
    assert {row["what"] for row in content["rows"]} == {"training", "inference", "latency"}
    for row in content["rows"]:
        batch = 1 if row["what"] == "latency" else 4
        assert row["batch"] == batch
        assert row["images_per_second"] == pytest.approx(1000 * batch / row["milliseconds"])
        operations = (6 if row["what"] == "training" else 2) * macs * row["images_per_second"]
        assert row["share_of_ceiling"] == pytest.approx(operations / content["ceiling"]["flops_per_second"])
        assert row["fastest_milliseconds"] <= row["milliseconds"] <= row["slowest_milliseconds"]
        assert row["compile_seconds"] is None


def test_printed_table(capsys: pytest.CaptureFixture[str]):
    main(["bench", "mu/4", "--image", "32", "--device", "cpu", "--what", "latency", "training", "--precision", "fp32"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("model    mu/4 at 32 x 32 px, 0.1M parameters")
    assert [line.split()[0] for line in lines[-2:]] == ["training", "latency"]
    assert max(map(len, lines)) <= 90


def test_a_weights_file_can_be_measured(fixtures: Path, capsys: pytest.CaptureFixture[str]):
    main(
        [
            "bench",
            str(fixtures / "google_token_weights.npz"),
            "--device",
            "cpu",
            "--precision",
            "fp32",
            "--batch",
            "2",
            "--json",
        ]
    )
    content = json.loads(capsys.readouterr().out)
    assert content["image"] == [32, 32]
    assert content["classes"] == 10
    assert len(content["rows"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["B/17x"], "there is no model 'B/17x'; did you mean B/16"),
        (["B/16", "--image", "250"], "250 x 250 image cannot be cut into 16-pixel patches"),
        (["mu/4", "--image", "32", "--batch", "0"], "--batch 0: 1 or more"),
        (["mu/4", "--image", "32", "--batch", "100000000"], "does not fit into"),
        (["mu/4", "--image", "32", "--device", "gpu"], "device = 'gpu' is not known"),
        (["mu/4", "--image", "32", "--device", "cuda:99"], "device = cuda"),
        (["mu/4", "--image", "32", "--precision", "fp8", "--what", "training"], "fp8 is for inference"),
        (["mu/4", "--image", "32", "--precision", "fp8"], "cpu does not multiply fp8"),
        (["mu/4", "--what", "speed"], "training"),
        (["no/such/run"], "there is no model"),
    ],
)
def test_an_error_is_a_message_and_exit_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--device", "cpu", *arguments] if "--device" not in arguments else ["bench", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["nowhere.npz", "./nowhere"])
def test_a_missing_file_is_not_taken_for_a_model_name(missing: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["bench", missing])
    assert ended.value.code == 2
    assert "does not exist" in capsys.readouterr().err


def test_several_models_and_sizes_are_measured_in_turn(capsys: pytest.CaptureFixture[str]):
    models = ("mu/4,dropout=0.1", "mu/4,axial=true")
    words = ["bench", *models, "--image", "16", "--image", "16", "24", "--set", "options.pool=gap"]
    main([*words, "--what", "latency", "--device", "cpu", "--precision", "fp32", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert "rows" not in content
    found = [(one["model"], one["image"]) for one in content["models"]]
    assert found == [(model, size) for model in models for size in ([16, 16], [16, 24])]
    for one in content["models"]:
        options = {"image": tuple(one["image"]), "pool": "gap", "axial": "axial" in one["model"]}
        assert one["flops"]["inference"] == 2 * cost(configure("mu/4", **options)).macs
        assert [row["what"] for row in one["rows"]] == ["latency"]


def test_the_largest_batch_on_a_cpu_is_an_estimate(capsys: pytest.CaptureFixture[str]):
    words = ["bench", "Ti/16", "--image", "224", "--image", "384", "--largest-batch", "--device", "cpu"]
    main([*words, "--precision", "fp32", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert "ceiling" not in content
    for one in content["models"]:
        training, inference = one["rows"]
        estimate = cost(configure("Ti/16", image=tuple(one["image"])))
        most = estimate.largest_batch(training["memory_bytes"], bytes_per_number=4)
        assert training["estimate"] == min(most, 1 << 15)
        assert training["largest_batch"] is inference["largest_batch"] is None
        assert training["estimate"] < inference["estimate"]
    main(["bench", "mu/4", "--image", "32", "--largest-batch", "--device", "cpu", "--what", "training"])
    assert "not tried" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no model named"),
        (["mu/4", "--largest-batch", "--batch", "2"], "--largest-batch finds the batch"),
        (["mu/4", "--largest-batch", "--what", "latency"], "--largest-batch finds the batch"),
        (["ti16", "--set", "options.depth=3"], "--set is for models without weights, and ti16 has some"),
    ],
)
def test_options_that_do_not_go_together_are_a_message(words: list[str], message: str, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *words, "--device", "cpu"])
    assert message in capsys.readouterr().err
