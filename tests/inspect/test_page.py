"""The page and the verb, for every kind of model."""

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
from tests.model.kinds import KINDS, make
from tests.report.test_browser import QUIET
from vitkit.cli.main import main
from vitkit.inspect.findings import look_inside
from vitkit.inspect.page import write_page
from vitkit.inspect.pictures import open_gallery
from vitkit.inspect.summary import print_findings


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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "five channels"])
def test_every_kind_of_model_gets_a_page(kind: str, photos: Path, tmp_path: Path):
    model = make(kind)
    found = look_inside(model, open_gallery(model, [photos]))
    files = write_page(found, tmp_path / "out", "weights.npz")
    page = files[0].read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in files}
    for path in files[1:]:
        with Image.open(path) as picture:
            assert min(picture.size) > 1
    assert "&lt;b&gt;&amp;amp;.png" in page
    assert "고양이.png" in page
    assert 'src="http' not in page
    attends, classifies = kind != "ResNet", kind not in ("ResNet", "no head")
    assert ("How far it looks" in page) == attends
    assert ("although weights sum to 1" in page) == attends
    assert ("speaks for the model’s answer" in page) == classifies
    placed = kind != "ResNet" and model.config.positions not in ("none", "relative")
    assert ("Where things are" in page) == placed
    assert ("What is not here" in page) == (not (classifies and placed))
    assert len(re.findall(r"<figcaption>", page)) >= 4


def test_the_verb_writes_beside_the_run_and_says_so(photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    main(["inspect", str(weights), str(photos), "--token", "1", "2", "3", "0", "--layer", "1", "--head", "0"])
    printed = capsys.readouterr().out
    assert "pictures   3\n" in printed
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
    assert content["answers"][0]["picture"] == "a.png"
    assert all(Path(name).is_file() for name in [content["page"], *content["figures"]])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN"], "no pictures named"),
        (["RUN", "nowhere.jpg"], "nowhere.jpg does not exist"),
        (["RUN", "https://example.org/cat.jpg"], "https://example.org/cat.jpg is a URL, and those are not read"),
        (["RUN", "PHOTOS", "--token", "1"], "class, mean, or the row and column"),
        (["RUN", "PHOTOS", "--token", "9", "9"], "no patch at row 9"),
        (["RUN", "PHOTOS", "--layer", "7"], "no layer 7"),
        (["RUN", "PHOTOS", "--head", "7"], "no head 7"),
        (["RUN", "BROKEN"], "no picture could be used"),
    ],
)
def test_mistakes_are_messages(
    words: list[str], message: str, photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    (photos.parent / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    places = {"RUN": str(weights), "PHOTOS": str(photos), "BROKEN": str(photos.parent / "broken.jpg")}
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *(places.get(word, word) for word in words)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (weights / "inspect").exists()


def refused(words: list[str | Path], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *map(str, words)])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "picture-1.png",
        "inspect.html",
        "Picture-2.PNG",
        "attention-3-class.png",
        "attention-1-10-2.png",
        "distance-far.png",
        "filters.png",
        "positions.png",
    ],
)
def test_what_inspect_has_not_made_is_never_replaced(
    name: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    album = tmp_path / "album"
    album.mkdir()
    shutil.copy(photos / "a.png", album / name)
    (album / "notes.txt").write_text("mine")
    before = contents(album)
    told = refused(["nowhere.npz", photos, "--out", album], capsys)  # said before the weights are looked for
    assert f"{album} holds files that inspect has not made" in told
    assert name in told
    assert "--out DIR" in told
    assert contents(album) == before


def test_folders_links_and_pipes_in_the_place_of_a_figure_are_left_alone(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for number, make_one in enumerate((Path.mkdir, lambda path: path.symlink_to("nowhere"), os.mkfifo)):
        album = tmp_path / str(number)
        album.mkdir()
        make_one(album / "picture-1.png")
        assert "has not made" in refused(["nowhere.npz", photos, "--out", album], capsys)
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(["nowhere.npz", photos, "--out", tmp_path / "file"], capsys)


def test_an_earlier_look_is_replaced_but_not_what_came_between(
    photos: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    album = tmp_path / "album"
    album.mkdir()
    shutil.copy(photos / "a.png", album / "picture-of-mine.png")  # in nobody's way
    words = [weights, photos / "a.png", "--out", album]
    main(["inspect", *map(str, words)])
    first = contents(album)
    main(["inspect", str(weights), str(photos), "--out", str(album)])
    second = contents(album)
    replaced = {path.name for path in first if first[path] != second[path]}
    assert replaced >= {"inspect.html", "picture-1.png", "distance.png"}
    assert second[album / "picture-of-mine.png"] == (photos / "a.png").read_bytes()
    shutil.copy(photos / "a.png", album / "filters.png")
    before = contents(album)
    assert "filters.png" in refused(words, capsys)
    assert contents(album) == before


def test_python_is_refused_as_the_verb_is(photos: Path, tmp_path: Path):
    shutil.copy(photos / "a.png", tmp_path / "distance.png")
    model = make("token")
    found = look_inside(model, open_gallery(model, [photos]))
    with pytest.raises(vitkit.VitkitError, match=r"has not made(.|\n)*distance\.png"):
        write_page(found, tmp_path, "run")
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
        ("../album", "../photos"),
    ],
)
def test_figures_are_not_put_among_the_pictures(
    source: str, out: str, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (photos.parent / "album").symlink_to(photos)
    monkeypatch.chdir(photos)
    before = contents(photos)
    assert "the next look would take the figures for some" in refused(["nowhere.npz", source, "--out", out], capsys)
    assert contents(photos) == before
    assert not (photos / "new").exists()


@pytest.mark.parametrize(
    ("source", "out"), [("a.png", "new"), ("*.png", "new"), ("sub", "new"), ("sub", "."), ("sub/**/*.png", "new")]
)
def test_figures_may_lie_beside_the_pictures(
    source: str, out: str, photos: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(photos)
    main(["inspect", str(weights), source, "--out", out])
    assert (photos / out / "inspect.html").is_file()


def test_the_page_fits_a_phone_and_fetches_nothing(photos: Path, tmp_path: Path):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    model = make("non-square, one channel")
    address = write_page(look_inside(model, open_gallery(model, [photos])), tmp_path, "x" * 200)[0].as_uri()
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme="dark")
        asked: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert [url for url in asked if not url.startswith("data:")] == [address]
        assert not complaints
        assert page.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
        browser.close()


@pytest.mark.parametrize("kind", ["non-square, one channel", "ResNet", "no head"])
def test_the_code_on_the_page_runs_as_it_stands(
    kind: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # where photos/ is
    model = make(kind)
    vitkit.save(model, "it's a run")
    page = write_page(look_inside(model, open_gallery(model, [photos])), tmp_path / "out", "it's a run")[0]
    code = re.search(r"<code>(.*?)</code>", page.read_text(encoding="utf-8"), re.DOTALL)
    there: dict = {}
    exec(html.unescape(code[1]), there)
    assert there["images"].shape == (3, model.config.channels, *model.config.image)


@pytest.mark.parametrize("part", ["patches.project.weight", "head.logits.bias"])
def test_weights_that_give_no_numbers_are_said(
    part: str, photos: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    model = make("token")
    with torch.no_grad():
        model.get_parameter(part).view(-1)[0] = float("nan")
    vitkit.save(model, weights)
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", str(weights), str(photos), "--json"])
    assert stopped.value.code == 2
    assert "no finite numbers" in capsys.readouterr().err
    assert not (weights / "inspect").exists()


def test_an_axial_model_is_compared_layer_by_layer(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Not the rows of the first layer with the columns of the last, which are as far as the picture is wide or high."""
    model = make("axial")
    found = look_inside(model, open_gallery(model, [photos]))
    files = write_page(found, tmp_path, "run")
    print_findings(found, files)
    first, last = (found.distance.heads[2 * layer : 2 * layer + 2].mean() for layer in (0, model.config.depth - 1))
    assert f"{first:.0f} px in the first layer, {last:.0f} px in the last" in capsys.readouterr().out
    page = files[0].read_text(encoding="utf-8")
    assert f"{first:.0f} → {last:.0f} px" in page
    assert "one line of patches only" in page


def test_a_new_head_has_nothing_to_say(photos: Path):
    model = make("token")
    model.replace_head(5)
    found = look_inside(model.eval(), open_gallery(model, [photos]))
    assert found.relevance is None
    assert "a head that is new, all zeros" in found.not_here[0]


def test_a_large_folder_is_sampled_from_end_to_end(photos: Path):
    gallery = open_gallery(make("token"), [photos], most=2)
    assert [picture.name for picture in gallery.pictures] == ["<b>&amp;.png", "고양이.png"]
    assert gallery.found == 3
