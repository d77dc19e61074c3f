"""The page in a real browser, on a real server: what a person does with it, and that it answers as the model does."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vitkit
from tests.report.test_browser import QUIET
from tests.serve.browser import CAMERA, KEY, Visit, picture, serving, write_models
from tests.serve.seen import CONTRAST, tab_through, unnamed
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.rasters import lit
from vitkit.inspect.rollout import rollout

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("fastapi", reason="needs fastapi, of the serve extra")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("needs a browser: apt-get install chromium", allow_module_level=True)

expect = sync_api.expect
expect.set_options(timeout=15_000)  # machines may be busy
FIRST, SECOND = picture(1), picture(2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    with serving(*map(str, runs.values()), "--limit", "body=1") as address:
        yield address


@pytest.fixture(scope="module")
def classifier(runs: dict[str, Path]) -> vitkit.Classifier:
    return vitkit.Classifier(runs["vit"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, *CAMERA])
        yield browser
        browser.close()


@contextlib.contextmanager
def visiting(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    """Whatever else a test looks at: nothing is asked of others, and the browser has nothing to complain of."""
    usual = {"viewport": {"width": 1000, "height": 800}, "extra_http_headers": {"Authorization": f"Bearer {KEY}"}}
    page: Page = browser.new_page(**{**usual, **options})
    visit = Visit(page, address)
    yield visit
    assert visit.foreign() == []
    assert visit.complaints == []
    page.close()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as visit:
        yield visit


def test_a_dropped_picture_is_answered_as_the_classifier_answers(visit: Visit, classifier: vitkit.Classifier):
    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    best = classifier(FIRST).top(5)
    names = visit.page.locator("#bars li bdi").all_inner_texts()
    assert names == [one.label for one in best]
    assert visit.page.locator("#bars .number").all_inner_texts() == [
        f"{one.probability:.1%}".replace("%", " %") for one in best
    ]
    assert visit.text("#headline bdi") == names[0]
    assert f"{best[0].probability:.1%}".replace("%", " %") in visit.text("#headline")
    assert names[0] in (visit.page.get_attribute("#given", "alt") or "")
    assert names[0] in visit.text("#status")
    visit.page.get_by_role("button", name="Show 7").click()
    expect(visit.page.locator("#bars li")).to_have_count(7)


def test_the_overlay_is_drawn_as_the_figures_of_inspect_are(visit: Visit, classifier: vitkit.Classifier):
    image = classifier.see(FIRST)[None]
    maps = attention_maps(classifier.model, image)[0]
    framed = classifier.frame(FIRST).round().clip(0, 255).byte().permute(1, 2, 0).numpy()
    photo = framed.repeat(16, axis=0).repeat(16, axis=1)

    def assert_shown(weights: Any) -> None:
        drawn = visit.overlay().astype(int)
        assert drawn.shape == photo.shape
        np.testing.assert_allclose(drawn, lit(photo, weights).astype(int), atol=3)  # six decimals travel

    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    assert_shown(rollout(classifier.model, image)[0])
    visit.page.locator("#layer").press("Home")
    assert_shown(maps[0].mean(axis=0))
    visit.page.get_by_label("1", exact=True).check()
    assert_shown(maps[0, 1])


def test_layers_heads_and_rollout_are_chosen_by_keyboard(visit: Visit):
    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    rolled = visit.overlay()
    visit.page.locator("#layer").press("ArrowLeft")
    layer = visit.overlay()
    expect(visit.page.locator("#shown")).to_have_text("Layer 1, mean of 2 heads")
    expect(visit.page.get_by_label("one layer")).to_be_checked()
    visit.page.get_by_label("mean of all").press("ArrowRight")
    head = visit.overlay()
    expect(visit.page.locator("#shown")).to_have_text("Layer 1, head 0")
    visit.page.get_by_label("one layer").press("ArrowLeft")
    expect(visit.page.locator("#shown")).to_have_text("All layers: rollout")
    assert (visit.overlay() == rolled).all()
    for one, other in ((rolled, layer), (layer, head), (head, rolled)):
        assert (one != other).mean() > 0.05
    # another picture is looked at in the same way
    visit.page.get_by_label("one layer").check()
    visit.drop("second.png", SECOND)
    visit.answered("second.png")
    expect(visit.page.locator("#shown")).to_have_text("Layer 1, head 0")


def test_a_picture_can_be_pasted_or_chosen(visit: Visit, classifier: vitkit.Classifier):
    visit.paste("pasted.png", SECOND)
    visit.answered("pasted.png")
    assert visit.text("#headline bdi") == classifier(SECOND).label
    visit.page.set_input_files("#file", {"name": "chosen.png", "mimeType": "image/png", "buffer": FIRST})
    visit.answered("chosen.png")
    assert visit.text("#headline bdi") == classifier(FIRST).label
    assert classifier(FIRST).label != classifier(SECOND).label


def test_what_is_no_picture_is_told_in_words(visit: Visit):
    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    visit.drop("notes.txt", b"milk, eggs", "text/plain")
    alert = visit.page.get_by_role("alert")
    expect(alert).to_contain_text("notes.txt cannot be used: not a picture")
    expect(visit.page.locator("#answer")).to_be_hidden()  # the answer of before belongs to another picture
    visit.drop("large.png", bytes(1_500_000))
    expect(alert).to_contain_text("large.png has 1.5 MB; this server takes up to 1 MB.")
    visit.page.evaluate("""() => {
        const carried = new DataTransfer();
        carried.setData("text/uri-list", "https://example.org/cat.jpg");
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true }));
    }""")
    expect(alert).to_contain_text("That is not a file.")
    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    expect(alert).to_be_empty()
    assert [re.search(r"status of \d+", line)[0] for line in visit.complaints] == ["status of 422"]  # type: ignore[index]
    visit.complaints.clear()  # the browser's own line on every 422


def test_a_late_answer_does_not_come_beside_another_picture(visit: Visit, classifier: vitkit.Classifier):
    held: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    visit.page.route("**/v1/predict?*", hold_the_first)
    with visit.page.expect_request("**/v1/predict?*"):
        visit.drop("first.png", FIRST)
    visit.drop("second.png", SECOND)
    visit.answered("second.png")
    held[0].continue_()
    visit.page.wait_for_timeout(300)
    assert visit.text("#given-name").startswith("second.png")
    assert visit.text("#headline bdi") == classifier(SECOND).label
    assert sum("/v1/attention" in url for url in visit.asked) == 1


def test_a_busy_server_is_asked_again(visit: Visit):
    busy = {"status": 503, "headers": {"Retry-After": "3"}, "json": {"error": "The queue is full.", "try": None}}
    visit.page.route("**/v1/predict?*", lambda route: route.fulfill(**busy))
    visit.drop("first.png", FIRST)
    expect(visit.page.get_by_role("alert")).to_contain_text("The queue is full. Try again in 3 s.")
    visit.page.unroute("**/v1/predict?*")
    visit.page.get_by_role("button", name="Try again").click()
    visit.answered("first.png")
    visit.complaints.clear()


def test_the_camera_takes_a_picture(visit: Visit):
    visit.page.get_by_role("button", name="Use the camera").click()
    shoot = visit.page.get_by_role("button", name="Take the picture")
    expect(shoot).to_be_focused()
    shoot.press("Enter")
    visit.answered("camera.jpg")
    expect(visit.page.locator("#booth")).to_be_hidden()
    assert visit.page.evaluate("document.getElementById('video').srcObject") is None
    visit.page.get_by_role("button", name="Use the camera").click()
    expect(shoot).to_be_focused()
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator("#booth")).to_be_hidden()


def test_a_page_without_a_camera_says_why(visit: Visit):
    visit.page.evaluate("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    visit.page.get_by_role("button", name="Use the camera").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("only over https")


def test_a_phone_opens_its_own_camera(browser: Browser, address: str):
    with visiting(browser, address, viewport={"width": 375, "height": 700}, is_mobile=True, has_touch=True) as visit:
        assert visit.page.get_by_text("Choose a picture, or take one.").is_visible()
        with visit.page.expect_file_chooser() as chooser:
            visit.page.get_by_role("button", name="Use the camera").tap()
        assert chooser.value.element.get_attribute("capture") == "environment"
        chooser.value.set_files({"name": "snap.png", "mimeType": "image/png", "buffer": SECOND})
        visit.answered("snap.png")


def test_another_model_is_asked_about_the_same_picture(visit: Visit, runs: dict[str, Path]):
    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    visit.page.get_by_label("Model").select_option("resnet")
    expect(visit.page.locator("#headline")).to_contain_text("the likeliest of 3 classes")
    assert visit.text("#headline bdi") == vitkit.Classifier(runs["resnet"])(FIRST).label
    expect(visit.page.locator("#blind")).to_be_visible()
    expect(visit.page.locator("#overlay")).to_be_hidden()
    expect(visit.page.locator("#controls")).to_be_hidden()
    expect(visit.page.get_by_role("img", name="The picture as the model sees it, 32 x 32 pixels")).to_be_visible()
    visit.page.get_by_label("Model").select_option("several")
    expect(visit.page.locator("#bars-note")).to_contain_text("judged on its own")
    likely = [one.label for one in vitkit.Classifier(runs["several"])(FIRST).top() if one.probability >= 0.5]
    assert visit.text("#headline bdi") == (", ".join(likely) or "Nothing it knows")
    visit.page.get_by_label("Model").select_option("vit")
    expect(visit.page.locator("#overlay")).to_be_visible()
    expect(visit.page.get_by_role("slider", name="Layer")).to_have_value("2")  # its last, where "several" has two


def test_the_key_is_asked_for_and_not_kept(browser: Browser, address: str):
    page = browser.new_page()
    page.goto(address)
    field = page.get_by_label("This server asks for a key.")
    expect(field).to_be_focused()
    field.fill("wrong-sesame")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("did not accept this key")
    field.fill(KEY)
    field.press("Enter")
    expect(page.locator("#key")).to_be_hidden()
    page.set_input_files("#file", {"name": "first.png", "mimeType": "image/png", "buffer": FIRST})
    page.locator("#sights").wait_for()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    expect(field).to_be_focused()
    page.close()


def test_a_server_that_is_gone_is_told_and_found_again(visit: Visit):
    visit.page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    visit.drop("first.png", FIRST)
    expect(visit.page.get_by_role("alert")).to_contain_text("The server does not answer.")
    visit.page.unroute("**/v1/**")
    visit.page.get_by_role("button", name="Try again").press("Enter")
    visit.answered("first.png")
    expect(visit.page.get_by_role("button", name="Choose a picture")).to_be_focused()  # "Try again" is gone
    visit.complaints.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_fits_a_phone_and_can_be_read(browser: Browser, address: str, scheme: str):
    options = {"viewport": {"width": 375, "height": 700}, "color_scheme": scheme, "reduced_motion": "reduce"}
    with visiting(browser, address, **options) as visit:
        page = visit.page
        page.evaluate("document.querySelector('details').open = true")
        states = [page.evaluate(CONTRAST), page.evaluate("document.documentElement.scrollWidth")]
        visit.drop("x" * 150 + ".png", FIRST)
        visit.answered("x" * 150 + ".png")
        states += [page.evaluate(CONTRAST), page.evaluate("document.documentElement.scrollWidth")]
        assert states == [[], 375, [], 375]
        assert page.evaluate("document.getAnimations().length") == 0  # motion is not wanted


def test_every_control_has_a_name_and_is_reached_by_tab(visit: Visit):
    visit.drop("first.png", FIRST)
    visit.answered("first.png")
    assert unnamed(visit.page) == []
    reached = tab_through(visit.page)
    assert reached == ["model", "choose", "camera", "more", "rollout", "layer", "mean", "summary"]
