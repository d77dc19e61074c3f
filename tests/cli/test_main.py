"""The command line as a user meets it: help, options, errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.cli.main import VERBS, main, verb_function

OPTIONS = {  # as --help lists them; few on purpose: a new one is a decision, made here as well
    "demo": "--out --json",
    "check": "DATA --image --resize --channels --sheet --label --task --workers --json",
    "fit": "DATA --model --weights --task --image --steps --epochs --batch --lr --recipe --out --resume --config --set "
    "--label --seed --device --precision --workers --track --json",
    "pretrain": "DATA --objective --model --weights --image --steps --epochs --batch --lr --recipe --out --resume "
    "--config --set --label --seed --device --precision --workers --track --json",
    "resume": "RUN --device --workers --json",
    "evaluate": "RUN DATA --split --labels --label --real --map --image --batch --device --precision --workers "
    "--max-failed --engine --out --json --resize --crop --interpolation --mean --std",
    "probe": "RUN DATA --method --shots --seeds --neighbours --layer --out --image --label --features --batch --device "
    "--precision --workers --max-failed --json --resize --crop --interpolation --mean --std",
    "inspect": "RUN IMAGES… --out --image --layer --head --token --samples --temperature --top-k --seed --device "
    "--json",
    "predict": "RUN IMAGES… --top --out --as --overlay --shard --engine --overwrite --labels --image --fast --device "
    "--workers --max-failed --csv --csv-raw --json --resize --crop --interpolation --mean --std",
    "embed": "RUN IMAGES… --out --pool --normalise --shard --engine --overwrite --image --precision --fast "
    "--device --workers --max-failed --json --resize --crop --interpolation --mean --std",
    "export": "RUN --to --out --input --int8 --max-drop --data --images --image --overwrite --json --resize "
    "--crop --interpolation --mean --std",
    "serve": "RUN…|NAME=RUN… --host --port --batch --fast --device --key-file --cors --limit --json",
    "shard": "DATA DIR --megabytes --side --label --workers --shard --json",
    "list": "models|recipes|settings [PATTERN] --json",
    "cost": "MODEL… --image --set --classes --batch --precision --memory --images --epochs --table6 --json",
    "convert": "IN OUT --to --grid --heads --gelu --text-embeddings --lossy --overwrite --json",
    "grid": "FILE --out --seeds --dry-run --jobs --device --json",
    "paper": "[EXPERIMENT] [FOLDER] --scale --data --dry-run --jobs --weights --method --image --steps --batch --lr "
    "--seed --out --set --device "
    "--workers --json",
    "bench": "MODEL… --image --set --batch --largest-batch --what --device --precision --compile --json",
}
GLOBAL_OPTIONS = ("--quiet", "--verbose", "--log-format")  # of every verb


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def options_of(verb: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the options of a verb in the order of its help."""
    return [word for word in re.findall(r"^[│ ] (\S+)", help_of(verb, capsys), re.MULTILINE) if word != "-h,"]


def test_the_options_are_these_and_no_others(capsys: pytest.CaptureFixture[str]):
    assert set(VERBS) == OPTIONS.keys()
    assert {verb: " ".join(options_of(verb, capsys)) for verb in VERBS} == OPTIONS


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_a_file_named_after_it(verb: str):
    assert verb_function(verb).__name__ == verb
    assert verb_function(verb).__module__ == f"vitkit.cli.{verb}"


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


def test_help_describes_every_verb_in_one_sentence(capsys: pytest.CaptureFixture[str]):
    main(["--help"])
    listing = capsys.readouterr().out.split("--help\n")[1].split("--version")[0]
    sentences = dict(item.split(maxsplit=1) for item in re.split(r"\n  (?=\w)", listing)[1:])
    assert list(sentences) == VERBS
    for verb, sentence in sentences.items():
        sentence = " ".join(sentence.split())
        assert re.fullmatch(r"[A-Z].*[^.]\.", sentence)
        assert len(sentence) < 130
        assert " ".join((verb_function(verb).__doc__ or "").split()).startswith(re.sub(r"(\w-) ", r"\1", sentence))


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_no_python_values(verb: str, capsys: pytest.CaptureFixture[str]):
    options = help_of(verb, capsys).partition("-h, --help")[2]
    assert options
    assert "None" not in options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cots"], "there is no verb 'cots'; did you mean cost"),
        (["train", "photos"], "there is no verb 'train'; did you mean fit?"),
        (["fine_tune"], "did you mean fit?"),
        (["val"], "did you mean evaluate?"),
        (["classify"], "did you mean predict?"),
        (["cost", "B/17x"], "there is no model 'B/17x'; did you mean B/16"),
        (["cost", "B/16", "--imag", "384"], "--image"),
        (["cost", "B/16", "--image", "250"], "250 x 250 image cannot be cut into 16-pixel patches; use 240 x 240"),
        (["cost", "B/16", "--image", "1", "2", "3"], "found 3 numbers"),
        (["cost", "B/16", "--batch", "0"], "--batch 0: 1 or more"),
        (["cost"], "no model named"),
        (["cost", "B/16", "--epochs", "7"], "--epochs 7 needs --images"),
        (["cost", "B/16", "--images", "9", "--epochs", "nan"], "--epochs nan"),
        (["convert", "a.safetensors", "out", "--to", "google"], "one .npz file; out does not end in .npz"),
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


def test_an_old_name_of_an_option_is_accepted_with_a_warning(capsys: pytest.CaptureFixture[str]):
    for words in (["--pictures", "0"], ["--pictures=0"]):
        with pytest.raises(SystemExit, match="2"):
            main(["export", "RUN", "--to", "onnx", "--int8", *words])
        warning, error = capsys.readouterr().err.splitlines()
        assert warning == "warning   --pictures is now --images; the next release drops the old name"
        assert error == "vitkit export: --images 0: 1 or more is needed"


def test_verbs_that_torchrun_cannot_start_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    main(["cost", "B/16"])  # some scripts set it for everything
    with pytest.raises(SystemExit):
        main(["fit", "fashion", "--weights", "none", "--model", "mu/4", "--image", "28"])
    assert "but RANK, which torchrun sets for each process, is not set" in " ".join(capsys.readouterr().err.split())
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
