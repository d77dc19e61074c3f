"""inspect.html and the command, for every kind of model."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.model.kinds import DISTINCT_FIRST, OTHER_ATTENTION, make
from tests.pages.browser import check_on_a_phone
from vitkit.cli.main import main
from vitkit.inspect.image_set import open_images
from vitkit.inspect.inspection import inspect_model
from vitkit.inspect.page import write_page
from vitkit.inspect.summary import print_summary
from vitkit.model.options import INSIDE_ATTENTION


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index, name in enumerate(["a.png", "<b>&amp;.png", "sub/고양이.png"]):
        Image.fromarray(rng.integers(0, 256, (40 + 9 * index, 60, 3), dtype=np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    vitkit.save(make("token"), tmp_path / "run", format="vitkit")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "kind", [kind for kind in DISTINCT_FIRST if "five channels" not in getattr(kind, "values", ())]
)
def test_every_kind_of_model_gets_a_page(kind: str, photos: Path, tmp_path: Path):
    model = make(kind)
    inspection = inspect_model(model, open_images(model, [photos]))
    files = write_page(inspection, tmp_path / "out", "weights.npz")
    page = files[0].read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in files}
    for path in files[1:]:
        with Image.open(path) as image:
            assert min(image.size) > 1
    assert "&lt;b&gt;&amp;amp;.png" in page
    assert "고양이.png" in page
    assert 'src="http' not in page
    attends, classifies = kind != "ResNet", kind not in ("ResNet", "no head", *OTHER_ATTENTION)
    assert ("<h2>Attention distance</h2>" in page) == attends
    assert ("although weights sum to 1" in page) == attends
    assert ("Relevance for the predicted class" in page) == classifies
    positioned = kind != "ResNet" and model.config.positions not in ("none", *INSIDE_ATTENTION)
    assert ("<h2>Position embeddings</h2>" in page) == positioned
    assert ("<h2>Omitted</h2>" in page) == (not (classifies and positioned))
    assert len(re.findall(r"<figcaption>", page)) >= 4


def test_the_command_writes_into_the_run_folder_and_prints_a_summary(
    photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    main(["inspect", str(weights), str(photos), "--token", "1", "2", "3", "0", "--layer", "1", "--head", "0"])
    printed = capsys.readouterr().out
    assert "images     3\n" in printed
    assert "broken.jpg (" in printed
    assert f"written    {weights / 'inspect' / 'inspect.html'}" in printed
    names = {path.name for path in (weights / "inspect").iterdir()}
    assert {"attention-1-1-2.png", "attention-3-3-0.png", "distance.png", "filters.png", "positions.png"} <= names
    page = (weights / "inspect" / "inspect.html").read_text(encoding="utf-8")
    assert "the patch in row 3, column 0" in page
    assert "broken.jpg" in page


def test_json_holds_the_numbers(photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["inspect", str(weights), str(photos / "a.png"), "--out", str(tmp_path), "--image", "32", "64", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["grid"] == [4, 8]
    assert np.shape(content["attention_distance"]["heads"]) == (2, 2)
    assert len(content["position_similarity_by_steps"]) == 4 + 8 - 1
    assert content["answers"][0]["image"] == "a.png"
    assert all(Path(name).is_file() for name in [content["page"], *content["figures"]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "no images named"),
        (["RUN", "nowhere.jpg"], "nowhere.jpg: No such file or directory"),
        (["RUN", "memory://cat.jpg"], "memory://cat.jpg: there is no such object"),
        (["RUN", "PHOTOS", "--token", "1"], "class, mean, or the row and column"),
        (["RUN", "PHOTOS", "--token", "9", "9"], "no patch at row 9"),
        (["RUN", "PHOTOS", "--layer", "7"], "no layer 7"),
        (["RUN", "PHOTOS", "--head", "7"], "no head 7"),
        (["RUN", "BROKEN"], "no image could be read"),
    ],
)
def test_user_mistakes_are_plain_messages(
    arguments: list[str], message: str, photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    (photos.parent / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    paths = {"RUN": str(weights), "PHOTOS": str(photos), "BROKEN": str(photos.parent / "broken.jpg")}
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *(paths.get(argument, argument) for argument in arguments)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (weights / "inspect").exists()


def error_message(arguments: list[str | Path], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *map(str, arguments)])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "image-1.png",
        "inspect.html",
        "Image-2.PNG",
        "attention-3-class.png",
        "attention-1-10-2.png",
        "distance-far.png",
        "filters.png",
        "positions.png",
    ],
)
def test_files_that_inspect_has_not_made_are_never_replaced(
    name: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(photos / "a.png", folder / name)
    (folder / "notes.txt").write_text("mine")
    before = contents(folder)
    message = error_message([__file__, photos, "--out", folder], capsys)  # before it is read as weights
    assert f"{folder} holds files that inspect has not made" in message
    assert name in message
    assert "--out DIR" in message
    assert contents(folder) == before


def test_folders_links_and_pipes_with_the_name_of_a_figure_are_not_replaced(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for number, make_one in enumerate((Path.mkdir, lambda path: path.symlink_to("nowhere"), os.mkfifo)):
        folder = tmp_path / str(number)
        folder.mkdir()
        make_one(folder / "image-1.png")
        assert "has not made" in error_message([__file__, photos, "--out", folder], capsys)
    (tmp_path / "file").touch()
    assert "Not a directory" in error_message([__file__, photos, "--out", tmp_path / "file"], capsys)


def test_earlier_figures_are_replaced_but_not_files_of_others(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(photos / "a.png", folder / "image-of-mine.png")  # not the name of a figure
    arguments = [weights, photos / "a.png", "--out", folder]
    main(["inspect", *map(str, arguments)])
    first = contents(folder)
    main(["inspect", str(weights), str(photos), "--out", str(folder)])
    second = contents(folder)
    replaced = {path.name for path in first if first[path] != second[path]}
    assert replaced >= {"inspect.html", "image-1.png", "distance.png"}
    assert second[folder / "image-of-mine.png"] == (photos / "a.png").read_bytes()
    shutil.copy(photos / "a.png", folder / "filters.png")
    before = contents(folder)
    assert "filters.png" in error_message(arguments, capsys)
    assert contents(folder) == before


def test_the_python_function_refuses_to_replace_files_too(photos: Path, tmp_path: Path):
    shutil.copy(photos / "a.png", tmp_path / "distance.png")
    model = make("token")
    inspection = inspect_model(model, open_images(model, [photos]))
    with pytest.raises(vitkit.VitkitError, match=r"has not made(.|\n)*distance\.png"):
        write_page(inspection, tmp_path, "run")
    assert (tmp_path / "distance.png").read_bytes() == (photos / "a.png").read_bytes()
    assert not (tmp_path / "inspect.html").exists()


@pytest.mark.parametrize(
    ("source", "out"),
    [
        (".", "."),
        (".", "new"),
        (".", "sub/deeper"),
        ("sub", "sub"),
        ("a.png", "."),
        ("*.png", "."),
        ("sub/*.png", "sub"),
        ("**/*.png", "new"),
        ("../photos", "."),
        ("../folder", "../photos"),
    ],
)
def test_figures_are_not_written_among_the_images(
    source: str, out: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (photos.parent / "folder").symlink_to(photos)
    monkeypatch.chdir(photos)
    before = contents(photos)
    message = error_message([__file__, source, "--out", out], capsys)
    assert "the next inspection would read the figures as images" in message
    assert contents(photos) == before
    assert not (photos / "new").exists()


@pytest.mark.parametrize(
    ("source", "out"), [("a.png", "new"), ("*.png", "new"), ("sub", "new"), ("sub", "."), ("sub/**/*.png", "new")]
)
def test_figures_may_be_next_to_the_images(
    source: str, out: str, photos: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(photos)
    main(["inspect", str(weights), source, "--out", out])
    assert (photos / out / "inspect.html").is_file()


def test_the_page_fits_a_phone_and_fetches_nothing(photos: Path, tmp_path: Path):
    model = make("non-square, one channel")
    check_on_a_phone(write_page(inspect_model(model, open_images(model, [photos])), tmp_path, "x" * 200)[0], "dark")


@pytest.mark.parametrize("kind", ["non-square, one channel", "ResNet", "no head"])
def test_the_code_on_the_page_runs(kind: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where photos/ is
    model = make(kind)
    vitkit.save(model, "it's a run")
    page = write_page(inspect_model(model, open_images(model, [photos])), tmp_path / "out", "it's a run")[0]
    code = re.search(r"<code>(.*?)</code>", page.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict = {}
    exec(html.unescape(code[1]), namespace)
    assert namespace["images"].shape == (3, model.config.channels, *model.config.image)


@pytest.mark.parametrize("name", ["patches.project.weight", "head.logits.bias"])
def test_non_finite_outputs_are_an_error(name: str, photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]):
    model = make("token")
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = float("nan")
    vitkit.save(model, weights)
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", str(weights), str(photos), "--json"])
    assert stopped.value.code == 2
    assert "are not finite" in capsys.readouterr().err
    assert not (weights / "inspect").exists()


def test_an_axial_model_is_compared_layer_by_layer(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Rows of the first layer are not compared with columns of the last, which depend on the image's shape."""
    model = make("axial")
    inspection = inspect_model(model, open_images(model, [photos]))
    files = write_page(inspection, tmp_path, "run")
    print_summary(inspection, files)
    per_head = inspection.distance.per_head
    first, last = (per_head[2 * layer : 2 * layer + 2].mean() for layer in (0, model.config.depth - 1))
    assert f"{first:.0f} px in the first layer, {last:.0f} px in the last" in capsys.readouterr().out
    page = files[0].read_text(encoding="utf-8")
    assert f"{first:.0f} → {last:.0f} px" in page
    assert "one line of patches only" in page


def test_a_new_head_has_no_relevance(photos: Path):
    model = make("token")
    model.replace_head(5)
    inspection = inspect_model(model.eval(), open_images(model, [photos]))
    assert inspection.relevance is None
    assert "a new head, whose weights are zero" in inspection.not_applicable[0]


def test_a_large_folder_is_sampled_from_end_to_end(photos: Path):
    image_set = open_images(make("token"), [photos], most=2)
    assert [image.name for image in image_set.images] == ["<b>&amp;.png", "고양이.png"]
    assert image_set.total == 3
