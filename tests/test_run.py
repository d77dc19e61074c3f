"""`vitkit fit` as a user meets it: from a folder of images to a run folder, from a mistake to the right command."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitkit
from tests.data.sample_images import encode
from vitkit.cli.main import main
from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import Interrupted
from vitkit.run_folder import RunError, RunFolder

COLOURS = {"ant": 0, "bee": 1, "cow": 2}  # each class is bright in another channel
TINY = ("--weights", "none", "--model", "mu/4", "--image", "16", "--steps", "3", "--batch", "6", "--workers", "0")
COMPLETE = {
    "model.safetensors",
    "model.json",
    "config.toml",
    "metrics.jsonl",
    "run.json",
    "evaluation.json",
    "report.html",
    "README.md",
    "checkpoints",
}


def image_bytes(seed: int, channel: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 120, (20, 24, 3), dtype=np.uint8)
    pixels[..., channel] += 120
    return encode(pixels, "PNG")


def write_photos(root: Path, each: int, classes: dict[str, int] = COLOURS) -> Path:
    for name, channel in classes.items():
        (root / name).mkdir(parents=True)
        for index in range(each):
            (root / name / f"{index}.png").write_bytes(image_bytes(10 * index + channel, channel))
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", 10)


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that several tests read and none changes."""
    run = tmp_path_factory.mktemp("finished") / "run"
    main(["fit", str(photos), *TINY, "--out", str(run)])
    return run


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a directory of its own."""
    monkeypatch.chdir(tmp_path)


def fit(*words: str | Path) -> None:
    main(["fit", *map(str, words)])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_fit_from_python_is_the_same_run(finished: Path, photos: Path, tmp_path: Path):
    run = vitkit.fit(photos, weights="none", model="mu/4", image=16, steps=3, batch=6, workers=0, out=tmp_path / "run")
    assert run.path == Path(run) == tmp_path / "run"
    assert {entry.name for entry in run.path.iterdir()} >= COMPLETE
    ours, theirs = weights(run.path), weights(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert vitkit.Classifier(run)(photos / "ant" / "0.png").label in COLOURS
    assert read(run / "run.json")["command"].startswith(f"vitkit.fit('{photos}', weights='none', model='mu/4', image=")
    with pytest.raises(vitkit.VitkitError, match=r"augment\.mixupp"):
        vitkit.fit(photos, weights="none", augment={"mixupp": 0.2})


def test_a_folder_of_class_folders_becomes_a_complete_run_folder(finished: Path):
    assert {entry.name for entry in finished.iterdir()} >= COMPLETE
    assert [line["step"] for line in metrics(finished) if line["kind"] == "step"] == [1, 2, 3]
    record = read(finished / "run.json")
    assert record["data"]["pictures"] == {"all": 30}
    assert record["plan"]["steps"] == 3
    assert "torch" in record["versions"]
    assert read(finished / "evaluation.json")["images"] == 6
    for page in ("report.html", "README.md"):
        assert "mu/4" in (finished / page).read_text(encoding="utf-8")
    assert "Attention rollout" in (finished / "report.html").read_text(encoding="utf-8")
    assert not [path for path in finished.rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".pkl")]  # no pickles


def test_the_trained_model_knows_the_classes_and_the_preprocessing(finished: Path):
    model = vitkit.load(finished)
    assert model.metadata.labels == ("ant", "bee", "cow")
    assert (model.config.image, model.config.classes) == ((16, 16), 3)
    assert model.metadata.preprocessing == Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)
    fresh = vitkit.create("mu/4", image=16, classes=3)
    assert model(torch.randn(2, 3, 16, 16)).shape == fresh(torch.randn(2, 3, 16, 16)).shape
    assert model.head.logits.weight.abs().sum() > 0  # it was zero at the start


def test_the_settings_are_written_out_resolved(finished: Path, photos: Path):
    config = tomllib.loads((finished / "config.toml").read_text(encoding="utf-8"))
    assert config["data"] == str(photos)
    assert (config["model"], config["image"], config["steps"], config["batch"]) == ("mu/4", [16, 16], 3, 6)
    assert config["recipe"] == "small_scratch"


def test_a_finished_runs_settings_run_again_to_the_same_bits(finished: Path, tmp_path: Path):
    fit("--config", finished / "config.toml", "--out", tmp_path / "again")
    one, other = weights(finished), weights(tmp_path / "again")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    fit("--config", finished, "--out", tmp_path / "other", "--seed", "1")  # the run folder stands for its settings
    assert any(not torch.equal(one[name], tensor) for name, tensor in weights(tmp_path / "other").items())


def test_with_json_stdout_holds_nothing_else(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(photos, *TINY, "--out", tmp_path / "run", "--json")
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert content["run"] == str(tmp_path / "run")
    assert content["evaluation"] == read(tmp_path / "run" / "evaluation.json")
    assert Path(content["report"]).is_file()
    assert "plan      3 steps, batch 6" in printed.err


def test_evaluating_on_the_same_folder_scores_only_what_was_held_out(
    finished: Path, photos: Path, capsys: pytest.CaptureFixture[str]
):
    main(["evaluate", str(finished), str(photos), "--workers", "0", "--json"])
    result, first = json.loads(capsys.readouterr().out), read(finished / "evaluation.json")
    assert result["images"] == 6
    assert result["top1"] == first["top1"]
    assert result["loss"] == pytest.approx(first["loss"])


def test_decisions_are_printed_before_training(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(photos, *TINY, "--out", tmp_path / "run")
    printed = capsys.readouterr().out
    for text in (
        "why       small_scratch: 30 images",
        "warning   30 images are few to train from scratch",
        "data      photos: 24 train, 6 test",
        "3 classes",
        "model     mu/4 at 16 px",
        "learning rate 0.001",
        "device    ",
        "images    ",
        "precision fp32",
        "plan      3 steps, batch 6",
        "score     ",
        "report    ",
        f"next      vitkit predict {tmp_path / 'run'} IMAGES ",
        f"\n          vitkit serve {tmp_path / 'run'} ",
    ):
        assert text in printed


def test_the_image_size_need_not_be_square(photos: Path):
    fit(photos, *TINY, "--image", "16", "24", "--out", "run")
    assert vitkit.load("run").config.image == (16, 24)
    assert vitkit.load("run").config.grid == (4, 6)
    assert read(Path("run/evaluation.json"))["images"] == 6


@pytest.mark.parametrize("resize", ["squash", "letterbox"])
def test_images_are_resized_as_asked(resize: str, photos: Path):
    fit(photos, *TINY, "--set", f"resize={resize}", "augment.crop=false", "--out", "run")
    assert vitkit.load("run").metadata.preprocessing.resize == resize


def test_train_val_and_test_folders_are_each_used_for_one_purpose(tmp_path: Path):
    for name, each in (("train", 6), ("val", 2), ("test", 3)):
        write_photos(tmp_path / "photos" / name, each)
    fit("photos", *TINY, "--out", "run")
    assert read(Path("run/evaluation.json"))["images"] == 9
    assert read(Path("run/run.json"))["data"]["pictures"] == {"train": 18, "val": 6, "test": 9}
    assert any(line["kind"] == "score" for line in metrics(Path("run")))


def test_a_column_of_labels_is_chosen_by_name(photos: Path):
    rows = [
        f"{photos}/{name}/{index}.png,{name},{'small' if name != 'cow' else 'large'}"
        for name in COLOURS
        for index in range(10)
    ]
    Path("list.csv").write_text("\n".join(["path,label,category", *rows]), encoding="utf-8")
    fit("list.csv", *TINY, "--label", "category", "--out", "run")
    assert vitkit.load("run").metadata.labels == ("large", "small")


def test_several_labels_per_image_are_learned(photos: Path):
    rows = [
        f"{photos}/{name}/{index}.png,{tags}"
        for name, tags in (("ant", "six legs|wild"), ("bee", "six legs"), ("cow", ""))
        for index in range(10)
    ]
    Path("list.csv").write_text("\n".join(["path,labels", *rows]), encoding="utf-8")
    fit("list.csv", *TINY, "--out", "run")
    assert vitkit.load("run").metadata.labels == ("six legs", "wild")
    assert read(Path("run/evaluation.json"))["multilabel"] is True


def test_fine_tuning_goes_on_at_the_size_of_its_weights(photos: Path, finished: Path, tmp_path: Path):
    write_photos(tmp_path / "other", 5, {"red": 0, "green": 1})
    fit("other", "--weights", finished, "--steps", "2", "--workers", "0", "--out", "run")
    model = vitkit.load("run")
    assert (model.config.image, model.metadata.labels) == ((16, 16), ("green", "red"))
    config = tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))
    assert config["weights"] == str(finished)  # absolute


def test_pretraining_on_leave_out_masks_leads_to_fitting(photos: Path):
    images = Path("flat")
    images.mkdir()
    for index in range(8):
        (images / f"{index}.png").write_bytes(image_bytes(index, index % 3))
    main(
        [
            "pretrain",
            "flat",
            "--model",
            "mu/4",
            "--image",
            "16",
            "--steps",
            "2",
            "--batch",
            "4",
            "--workers",
            "0",
            "--out",
            "pre",
        ]
    )
    assert vitkit.load("pre").config.classes == 0
    assert {"model.safetensors", "report.html", "README.md"} <= {entry.name for entry in Path("pre").iterdir()}
    fit(photos, "--weights", "pre", "--steps", "2", "--workers", "0", "--out", "run")
    assert vitkit.load("run").metadata.labels == ("ant", "bee", "cow")


def test_the_learning_rate_is_chosen_on_images_outside_the_test_split(photos: Path, capsys: pytest.CaptureFixture[str]):
    fit(photos, *TINY, "--lr", "auto", "--set", "lr_candidates=[0.001, 0.003]", "--out", "run")
    printed = capsys.readouterr().out
    assert printed.count("tried     learning rate") == 2
    chosen = tomllib.loads(Path("run/config.toml").read_text(encoding="utf-8"))
    assert chosen["lr"] in (0.001, 0.003)
    assert f"chosen    learning rate {chosen['lr']:g}" in printed
    assert "24 train, 6 test" in printed  # the last run trains on all images of the trials


def test_runs_without_a_name_are_numbered(photos: Path):
    for _ in range(2):
        fit(photos, *TINY)
    assert sorted(entry.name for entry in Path("runs").iterdir()) == ["photos-mu-4", "photos-mu-4-2"]


def test_a_run_is_never_overwritten(photos: Path, finished: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    with pytest.raises(SystemExit, match="2"):
        fit(photos, *TINY, "--out", finished)
    printed = capsys.readouterr().err
    assert "holds a finished run already; nothing was changed" in printed
    assert "vitkit resume" not in printed
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_finished_run_has_nothing_to_resume(finished: Path, capsys: pytest.CaptureFixture[str]):
    main(["resume", str(finished), "--json"])
    printed = capsys.readouterr()
    assert f"finished  {finished} is finished; nothing is left to do" in printed.err
    result = json.loads(printed.out)
    assert result["run"] == str(finished)
    assert result["evaluation"]["images"] > 0


@pytest.fixture
def mistaken(photos: Path, tmp_path: Path) -> Path:
    """Create the data of the commands below."""
    (tmp_path / "photos").symlink_to(photos)
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(image_bytes(0, 0))
    write_photos(tmp_path / "one", 3, {"ant": 0})
    write_photos(tmp_path / "few", 1)
    Path("bad.toml").write_text("bacth = 3\n", encoding="utf-8")
    Path("two.csv").write_text("path,label,category\nflat/a.png,x,y\n", encoding="utf-8")
    return tmp_path


MISTAKES = {  # command: message
    "fit": "no data named",
    "fit nowhere": "nowhere does not exist",
    "fit phtos": "phtos does not exist; did you mean photos",
    "fit empty": "empty has no usable images",
    f"fit flat {' '.join(TINY)}": "flat has no labels to train on",
    f"fit one {' '.join(TINY)}": "training images of one class only, ant",
    f"fit few {' '.join(TINY)}": "too few to hold some out for testing",
    f"fit two.csv {' '.join(TINY)}": "more than one label column: label, category",
    f"fit photos {' '.join(TINY)} --label x": "photos has no columns",
    "fit photos --weights none --model mu/4x": "there is no model 'mu/4x'; did you mean mu/4",
    "fit photos --model mu/4": "no public weights are known for mu/4",
    "fit photos --recipe pets_trnsfer": "there is no recipe 'pets_trnsfer'; did you mean pets_transfer",
    "fit photos --recipe jft_pretrain --model mu/4": "Table 3 has no row for mu/4",
    "fit photos --modle B/16": "--model",
    "fit photos --precision fp16": "fp16",
    f"fit photos {' '.join(TINY)} --set bacth=3": "there is no setting bacth; did you mean batch",
    f"fit photos {' '.join(TINY)} --set batch=many": "batch = 'many' should be a whole number",
    f"fit photos {' '.join(TINY)} --set nonsense": "a setting is KEY=VALUE",
    f"fit photos {' '.join(TINY)} --set batch=0 --set seed=1": "batch = 0",  # the first of two counts as well
    "fit --set data=3": "data = 3 should be text",
    "fit photos --set recipe=3": "recipe = 3 should be text",
    f"fit photos {' '.join(TINY)} --config bad.toml": "there is no setting bacth",
    f"fit photos {' '.join(TINY)} --config nowhere.toml": "nowhere.toml cannot be read",
    f"fit photos {' '.join(TINY)} --epochs 2": "steps = 3 and epochs = 2: a run has one length",
    f"fit photos {' '.join(TINY)} --steps 0": "steps = 0: more than 0 is needed",
    f"fit photos {' '.join(TINY)} --lr fast": "--lr fast is no learning rate",
    f"fit photos {' '.join(TINY)} --lr 0": "lr = 0.0: more than 0 is needed",
    f"fit photos {' '.join(TINY)} --batch 0": "batch = 0: more than 0 is needed",
    f"fit photos {' '.join(TINY)} --image": "--image takes a side, or height and width; found 0 numbers",
    f"fit photos {' '.join(TINY)} --image 0": "--image 0: 1 or more is needed",
    f"fit photos {' '.join(TINY)} --image 18": "18 x 18 image cannot be cut into 4-pixel patches; use 16 x 16",
    f"fit photos {' '.join(TINY)} --workers -1": "workers = -1: 0 or more is needed",
    f"fit photos {' '.join(TINY)} --device gpu": "device = 'gpu' is not known",
    f"fit photos {' '.join(TINY)} --set schedule.warmup=3": "the warm-up of 3 steps is as long as the run, which has 3",
    f"fit photos {' '.join(TINY)} --set patience=2": "patience = 2",
    f"fit photos {' '.join(TINY)} --set augment.mixup=-1": "augment.mixup = -1",
    f"fit photos {' '.join(TINY)} --set freeze=7": "freeze = 7, but the model has 2 blocks",
    f"fit photos {' '.join(TINY)} --set options.classes=7": "the number of classes comes from the data",
    "fit photos --weights none --model mu/4 --image 16 --epochs 1 --batch 128": "less than one step of batch 128",
    "fit photos --weights nowhere.npz": "nowhere.npz does not exist",
    "fit photos --weights empty": "empty",
    f"fit photos {' '.join(TINY)} --out bad.toml": "bad.toml is a file, not a folder",
    "pretrain": "no data named",
    "pretrain flat --model mu/4 --image 16 --lr auto": "--lr auto needs labels; this run has none",
    "resume nowhere": "nowhere does not exist",
    "resume photos": "photos is not a run folder",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_clear_message_and_leaves_no_files(
    typed: str, mistaken: Path, capsys: pytest.CaptureFixture[str]
):
    before = {path.name for path in mistaken.iterdir()}
    with pytest.raises(SystemExit) as stopped:
        main(typed.split())
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert MISTAKES[typed] in printed
    assert "Traceback" not in printed
    assert printed.count("vitkit fit: ") <= 1
    assert {path.name for path in mistaken.iterdir()} - {"runs"} == before
    assert not list(mistaken.glob("runs/*"))


@pytest.mark.parametrize("mistake", [["--image", "18"], ["--set", "freeze=7"], ["--weights", "nowhere.npz"]])
def test_the_corrected_command_works_in_the_same_place(mistake: list[str], photos: Path):
    with pytest.raises(SystemExit, match="2"):
        fit(photos, *TINY, "--out", "run", *mistake)
    fit(photos, *TINY, "--out", "run")
    assert vitkit.load("run").metadata.labels == ("ant", "bee", "cow")


def test_a_folder_with_other_files_is_not_touched(photos: Path, capsys: pytest.CaptureFixture[str]):
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/checkpoints/mine.pt").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        fit(photos, *TINY, "--out", "run")
    assert "run is not empty" in capsys.readouterr().err
    assert [path.name for path in Path("run").rglob("*")] == ["checkpoints", "mine.pt"]


@pytest.mark.parametrize("form", ["run", "run/model.safetensors", "alone.safetensors", "google.npz"])
def test_fitting_starts_from_weights_of_any_form(photos: Path, form: str):
    fit(photos, *TINY, "--out", "run")
    model = vitkit.load("run")
    vitkit.save(model, "alone.safetensors")
    vitkit.save(model, "google.npz", format="google")
    fit(photos, "--weights", form, "--steps", "2", "--batch", "6", "--workers", "0", "--out", "next")
    assert vitkit.load("next").config.patch == 4


def test_a_damaged_weights_file_is_a_message(photos: Path, capsys: pytest.CaptureFixture[str]):
    Path("half.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00 half of a head")
    with pytest.raises(SystemExit, match="2"):
        fit(photos, "--weights", "half.safetensors", "--steps", "2", "--out", "run")
    assert "half.safetensors" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_failed_start_leaves_an_empty_folder_empty(photos: Path):
    Path("run").mkdir()
    with pytest.raises(SystemExit, match="2"):
        fit(photos, *TINY, "--out", "run", "--image", "18")
    assert not list(Path("run").iterdir())
    fit(photos, *TINY, "--out", "run")


def test_weights_of_a_run_that_trained_on_the_test_images_cause_a_warning(
    photos: Path, capsys: pytest.CaptureFixture[str]
):
    fit(photos, *TINY, "--out", "first")
    fit(photos, *TINY, "--weights", "first", "--out", "same", "--set", "seed=3")
    assert "was trained on these data" not in capsys.readouterr().out
    fit(photos, *TINY, "--weights", "first", "--out", "other", "--set", "split_seed=3")
    printed = capsys.readouterr().out
    assert "was trained on these data" in printed
    assert "not used in training" not in printed


@pytest.mark.parametrize("verb", ["fit", "pretrain", "resume"])
def test_help_fits_a_narrow_terminal_and_names_its_input(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    printed = capsys.readouterr().out
    assert stopped.value.code == 0
    assert ("RUN" if verb == "resume" else "DATA") in printed.splitlines()[0]
    assert "None" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_list_of_verbs_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]):
    main(["--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_run_that_is_stopped_during_scoring_can_be_resumed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    with monkeypatch.context() as stopped:
        stopped.setattr("vitkit.run_score._score_and_report", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Interrupted) as kept:  # held on to, as a notebook does
            vitkit.fit(photos, weights="none", model="mu/4", image=16, steps=3, batch=6, workers=0, out=run)
    assert "vitkit resume" in str(kept.value)
    main(["resume", str(run)])
    assert {path.name for path in run.iterdir()} >= COMPLETE


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_resumed_run_says_which_weights_it_began_with(
    pretrained: bool,
    photos: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    run, start = tmp_path / "run", tmp_path / "start"
    shutil.copytree(finished, start)
    options = ("--weights", start, "--steps", "3", "--batch", "6", "--workers", "0") if pretrained else TINY
    with monkeypatch.context() as stopped:
        stopped.setattr("vitkit.run_score._score_and_report", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            fit(photos, *options, "--out", run)
    shutil.rmtree(start)  # resuming does not need them
    capsys.readouterr()
    main(["resume", str(run)])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("model ")]
    assert line.endswith(
        f"; resumed, began with weights {start}" if pretrained else "; resumed, began randomly initialised"
    )
    assert line.removeprefix("model").strip() in dict(read(run / "run.json")["decisions"])["model"]


def test_a_run_that_cannot_write_its_record_leaves_no_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(folder: RunFolder, **added: Any) -> None:
        raise RunError(f"{folder.path / 'run.json'} cannot be written: No space left on device.")

    monkeypatch.setattr(RunFolder, "add_to_record", full)
    with pytest.raises(SystemExit):
        fit(photos, *TINY, "--out", tmp_path / "run")
    assert "No space left" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_error_that_stopped_a_run_is_printed_even_if_its_time_cannot_be_recorded(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    original = RunFolder.add_to_record

    def full(folder: RunFolder, **added: Any) -> None:
        if "seconds" in added:
            raise RunError("run.json cannot be written")
        original(folder, **added)

    def stopped(*given: object) -> None:
        raise RunError("the checkpoint of step 3 cannot be written")

    monkeypatch.setattr(RunFolder, "add_to_record", full)
    monkeypatch.setattr("vitkit.train.checkpoint.write", stopped)
    with pytest.raises(SystemExit):
        fit(photos, *TINY, "--out", tmp_path / "run")
    assert "the checkpoint of step 3 cannot be written" in capsys.readouterr().err
