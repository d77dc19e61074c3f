"""The web page in a real browser, on a real server: every control, and predictions equal to the classifier's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import vitkit
from tests.serve.accessibility import LOW_CONTRAST_TEXTS, controls_without_name, tab_through
from tests.serve.browser import KEY, Visit, make_image, server_with_key, visiting, write_models
from tests.serve.servers import TIMEOUT
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.heatmaps import overlay
from vitkit.inspect.rollout import rollout
from vitkit.predict.inputs import pixels_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("fastapi", reason="needs fastapi, of the serve extra")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")

expect = sync_api.expect
expect.set_options(timeout=1000 * TIMEOUT)
LEVELS = 3  # of 255: the server rounds attention weights to six decimals
FIRST, SECOND = make_image(1), make_image(2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    with server_with_key(*map(str, runs.values()), "--limit", "body=1", f"seconds={TIMEOUT}") as address:
        yield address


@pytest.fixture(scope="module")
def classifier(runs: dict[str, Path]) -> vitkit.Classifier:
    return vitkit.Classifier(runs["vit"])


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as visit:
        yield visit


def test_a_dropped_image_gets_the_prediction_of_the_classifier(visit: Visit, classifier: vitkit.Classifier):
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    best = classifier(FIRST).top(5)
    names = visit.page.locator("#bars li bdi").all_inner_texts()
    assert names == [answer.label for answer in best]
    assert visit.page.locator("#bars .number").all_inner_texts() == [
        f"{answer.probability:.1%}".replace("%", " %") for answer in best
    ]
    assert visit.text("#headline bdi") == names[0]
    assert f"{best[0].probability:.1%}".replace("%", " %") in visit.text("#headline")
    assert names[0] in (visit.page.get_attribute("#preview", "alt") or "")
    assert names[0] in visit.text("#status")
    visit.page.get_by_role("button", name="Show 7").click()
    expect(visit.page.locator("#bars li")).to_have_count(7)


def test_the_overlay_equals_that_of_vitkit_inspect(visit: Visit, classifier: vitkit.Classifier):
    image = classifier.preprocess(FIRST)[None]
    maps = attention_maps(classifier.model, image)[0]
    framed = classifier.transform.resize_only(pixels_of(FIRST)).round().clip(0, 255).byte().permute(1, 2, 0).numpy()
    background = framed.repeat(16, axis=0).repeat(16, axis=1)

    def assert_shown(weights: Any) -> None:
        drawn = visit.overlay().astype(int)
        assert drawn.shape == background.shape
        np.testing.assert_allclose(drawn, overlay(background, weights).astype(int), atol=LEVELS)

    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    assert_shown(rollout(classifier.model, image)[0])
    visit.page.locator("#layer").press("Home")
    assert_shown(maps[0].mean(axis=0))
    visit.page.get_by_label("1", exact=True).check()
    assert_shown(maps[0, 1])


def test_layers_heads_and_rollout_are_chosen_by_keyboard(visit: Visit):
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    rollout_map = visit.overlay()
    visit.page.locator("#layer").press("ArrowLeft")
    layer = visit.overlay()
    expect(visit.page.locator("#map-title")).to_have_text("Layer 1, mean of 2 heads")
    expect(visit.page.get_by_label("one layer")).to_be_checked()
    visit.page.get_by_label("mean of all").press("ArrowRight")
    head = visit.overlay()
    expect(visit.page.locator("#map-title")).to_have_text("Layer 1, head 0")
    visit.page.get_by_label("one layer").press("ArrowLeft")
    expect(visit.page.locator("#map-title")).to_have_text("All layers: rollout")
    assert (visit.overlay() == rollout_map).all()
    for one, other in ((rollout_map, layer), (layer, head), (head, rollout_map)):
        assert (one != other).mean() > 0.05
    # the choice stays for another image
    visit.page.get_by_label("one layer").check()
    visit.drop("second.png", SECOND)
    visit.wait_for_prediction("second.png")
    expect(visit.page.locator("#map-title")).to_have_text("Layer 1, head 0")


def test_an_image_can_be_pasted_or_chosen(visit: Visit, classifier: vitkit.Classifier):
    visit.paste("pasted.png", SECOND)
    visit.wait_for_prediction("pasted.png")
    assert visit.text("#headline bdi") == classifier(SECOND).label
    visit.page.set_input_files("#file", {"name": "chosen.png", "mimeType": "image/png", "buffer": FIRST})
    visit.wait_for_prediction("chosen.png")
    assert visit.text("#headline bdi") == classifier(FIRST).label
    assert classifier(FIRST).label != classifier(SECOND).label


def test_a_file_that_is_no_image_gets_an_error(visit: Visit):
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    visit.drop("notes.txt", b"milk, eggs", "text/plain")
    alert = visit.page.get_by_role("alert")
    expect(alert).to_contain_text("notes.txt cannot be used: not an image")
    expect(visit.page.locator("#prediction")).to_be_hidden()  # the previous prediction belongs to another image
    visit.drop("large.png", bytes(1_500_000))
    expect(alert).to_contain_text("large.png has 1.5 MB; this server accepts up to 1 MB.")
    visit.page.evaluate("""() => {
        const transfer = new DataTransfer();
        transfer.setData("text/uri-list", "https://example.org/cat.jpg");
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
    }""")
    expect(alert).to_contain_text("That is not a file.")
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    expect(alert).to_be_empty()
    assert [re.search(r"status of \d+", line)[0] for line in visit.console_messages] == ["status of 422"]  # type: ignore[index]
    visit.console_messages.clear()  # the browser's own message about every 422


def test_a_late_prediction_never_appears_next_to_another_image(visit: Visit, classifier: vitkit.Classifier):
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
    visit.wait_for_prediction("second.png")
    rows = visit.page.locator("#result-list li")
    expect(rows.nth(1)).to_contain_text("waiting")
    held[0].continue_()
    expect(rows.nth(1)).to_contain_text(classifier(FIRST).label)
    assert visit.text("#caption").startswith("second.png")
    assert visit.text("#headline bdi") == classifier(SECOND).label
    assert sum("/v1/attention" in url for url in visit.requested_urls) == 1


def test_one_image_after_another_keeps_the_earlier_answers(visit: Visit, classifier: vitkit.Classifier):
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    expect(visit.page.locator("#results")).to_be_hidden()  # one image needs no list
    first_overlay = visit.overlay()
    visit.drop("second.png", SECOND)
    visit.wait_for_prediction("second.png")
    rows = visit.page.locator("#result-list li")
    expect(rows).to_have_count(2)
    for row, name, image in ((rows.nth(0), "second.png", SECOND), (rows.nth(1), "first.png", FIRST)):
        answer = classifier(image).top(1)[0]
        expect(row).to_contain_text(name)
        expect(row).to_contain_text(answer.label)
        expect(row).to_contain_text(f"{answer.probability:.1%}".replace("%", " %"))
    visit.page.get_by_role("button", name="first.png").press("Enter")
    visit.wait_for_prediction("first.png")
    assert visit.text("#headline bdi") == classifier(FIRST).label
    assert (visit.overlay() == first_overlay).all()
    pressed = [row.get_by_role("button").get_attribute("aria-pressed") for row in rows.all()]
    assert pressed == ["false", "true"]
    assert controls_without_name(visit.page) == []


def test_several_images_at_once_are_all_answered(visit: Visit, classifier: vitkit.Classifier, runs: dict[str, Path]):
    images = {f"{seed}.png": make_image(seed) for seed in range(9)}
    files = [{"name": name, "mimeType": "image/png", "buffer": content} for name, content in images.items()]
    visit.page.set_input_files("#file", [*files, {"name": "x.png", "mimeType": "image/png", "buffer": b"x"}])
    visit.wait_for_prediction("0.png")  # the first of them is shown in full
    expect(visit.page.locator("#results-title")).to_have_text("10 images, 1 cannot be used")
    rows = visit.page.locator("#result-list li").all()
    assert [row.locator(".name").inner_text() for row in rows] == [*images, "x.png"]
    answers = [row.locator(".answer").inner_text() for row in rows]
    assert answers == [*(classifier(image).label for image in images.values()), "cannot be used"]
    visit.page.get_by_role("button", name="x.png").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("x.png cannot be used: not an image")
    expect(visit.page.locator("#prediction")).to_be_hidden()
    visit.page.get_by_role("button", name="4.png").click()
    visit.wait_for_prediction("4.png")
    expect(visit.page.get_by_role("alert")).to_be_empty()
    visit.page.get_by_label("Model", exact=True).select_option("resnet")  # answers all of them
    expect(visit.page.locator("#results-title")).to_have_text("10 images, 1 cannot be used")
    other = vitkit.Classifier(runs["resnet"])
    expect(visit.page.locator("#result-list .answer")).to_have_text(
        [*(other(image).label for image in images.values()), "cannot be used"]
    )
    visit.console_messages.clear()  # the browser's own message about every 422


def test_a_busy_server_is_asked_again_for_all_images(visit: Visit):
    busy = {"status": 503, "headers": {"Retry-After": "3"}, "json": {"error": "The queue is full.", "try": None}}
    visit.page.route("**/v1/predict?*", lambda route: route.fulfill(**busy))
    files = [{"name": f"{seed}.png", "mimeType": "image/png", "buffer": make_image(seed)} for seed in range(5)]
    visit.page.set_input_files("#file", files)
    expect(visit.page.locator("#results-title")).to_have_text("5 images, 5 cannot be used")
    visit.page.unroute("**/v1/predict?*")
    visit.page.get_by_role("button", name="Try again").click()
    expect(visit.page.locator("#results-title")).to_have_text("5 images")
    visit.console_messages.clear()


def test_a_request_to_a_busy_server_can_be_repeated(visit: Visit):
    busy = {"status": 503, "headers": {"Retry-After": "3"}, "json": {"error": "The queue is full.", "try": None}}
    visit.page.route("**/v1/predict?*", lambda route: route.fulfill(**busy))
    visit.drop("first.png", FIRST)
    expect(visit.page.get_by_role("alert")).to_contain_text("The queue is full. Try again in 3 s.")
    visit.page.unroute("**/v1/predict?*")
    visit.page.get_by_role("button", name="Try again").click()
    visit.wait_for_prediction("first.png")
    visit.console_messages.clear()


def test_the_camera_takes_a_photo(visit: Visit):
    visit.page.get_by_role("button", name="Use the camera").click()
    shutter = visit.page.get_by_role("button", name="Take the photo")
    expect(shutter).to_be_focused()
    shutter.press("Enter")
    visit.wait_for_prediction("camera.jpg")
    expect(visit.page.locator("#camera-dialog")).to_be_hidden()
    assert visit.page.evaluate("document.getElementById('video').srcObject") is None
    visit.page.get_by_role("button", name="Use the camera").click()
    expect(shutter).to_be_focused()
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator("#camera-dialog")).to_be_hidden()


def test_the_page_explains_why_it_cannot_use_the_camera(visit: Visit):
    visit.page.evaluate("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    visit.page.get_by_role("button", name="Use the camera").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("only over https")


def test_a_phone_opens_its_camera_app(browser: Browser, address: str):
    with visiting(browser, address, viewport={"width": 375, "height": 700}, is_mobile=True, has_touch=True) as visit:
        assert visit.page.get_by_text("Choose images, or take a photo.").is_visible()
        with visit.page.expect_file_chooser() as chooser:
            visit.page.get_by_role("button", name="Use the camera").tap()
        assert chooser.value.element.get_attribute("capture") == "environment"
        chooser.value.set_files({"name": "snap.png", "mimeType": "image/png", "buffer": SECOND})
        visit.wait_for_prediction("snap.png")


def test_another_model_classifies_the_same_image(visit: Visit, runs: dict[str, Path]):
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    visit.page.get_by_label("Model", exact=True).select_option("resnet")
    expect(visit.page.locator("#headline")).to_contain_text("the most probable of 3 classes")
    assert visit.text("#headline bdi") == vitkit.Classifier(runs["resnet"])(FIRST).label
    expect(visit.page.locator("#no-attention")).to_be_visible()
    expect(visit.page.locator("#overlay")).to_be_hidden()
    expect(visit.page.locator("#controls")).to_be_hidden()
    expect(visit.page.get_by_role("img", name="The image as the model sees it, 32 x 32 pixels")).to_be_visible()
    visit.page.get_by_label("Model", exact=True).select_option("multilabel")
    expect(visit.page.locator("#multilabel-note")).to_contain_text("predicted on its own")
    likely = [answer.label for answer in vitkit.Classifier(runs["multilabel"])(FIRST).predicted]
    assert "sea" in likely  # its threshold is 1 %
    assert "sun" not in likely  # its threshold is 99 %
    expect(visit.page.locator("#headline")).to_contain_text("of 3 classes at their thresholds or above")
    assert visit.text("#headline bdi") == (", ".join(likely) or "None of its classes")
    visit.page.get_by_label("Model", exact=True).select_option("vit")
    expect(visit.page.locator("#overlay")).to_be_visible()
    expect(visit.page.get_by_role("slider", name="Layer")).to_have_value("2")  # its last layer; "multilabel" has two


def test_the_page_asks_for_the_key_and_does_not_store_it(browser: Browser, address: str):
    page = browser.new_page()
    page.goto(address)
    field = page.get_by_label("This server requires a key.")
    expect(field).to_be_focused()
    field.fill("wrong-sesame")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("did not accept this key")
    field.fill(KEY)
    field.press("Enter")
    expect(page.locator("#key")).to_be_hidden()
    page.set_input_files("#file", {"name": "first.png", "mimeType": "image/png", "buffer": FIRST})
    page.locator("#attention-view").wait_for()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    page.reload()
    expect(field).to_be_focused()
    page.close()


def test_a_request_to_a_server_that_does_not_respond_can_be_repeated(visit: Visit):
    visit.page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    visit.drop("first.png", FIRST)
    expect(visit.page.get_by_role("alert")).to_contain_text("The server does not respond.")
    visit.page.unroute("**/v1/**")
    visit.page.get_by_role("button", name="Try again").press("Enter")
    visit.wait_for_prediction("first.png")
    expect(visit.page.get_by_role("button", name="Choose images")).to_be_focused()  # the button "Try again" is gone
    visit.console_messages.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_has_enough_contrast(browser: Browser, address: str, scheme: str):
    options = {"viewport": {"width": 375, "height": 700}, "color_scheme": scheme, "reduced_motion": "reduce"}
    with visiting(browser, address, **options) as visit:
        page = visit.page
        page.evaluate("document.querySelector('details').open = true")
        states = [page.evaluate(LOW_CONTRAST_TEXTS), page.evaluate("document.documentElement.scrollWidth")]
        visit.drop("second.png", SECOND)
        visit.wait_for_prediction("second.png")
        visit.drop("x" * 150 + ".png", FIRST)
        visit.wait_for_prediction("x" * 150 + ".png")
        states += [page.evaluate(LOW_CONTRAST_TEXTS), page.evaluate("document.documentElement.scrollWidth")]
        assert states == [[], 375, [], 375]
        assert page.evaluate("document.getAnimations().length") == 0  # the user prefers reduced motion


def test_every_control_has_a_name_and_is_reached_by_tab(visit: Visit):
    visit.drop("first.png", FIRST)
    visit.wait_for_prediction("first.png")
    assert controls_without_name(visit.page) == []
    reached = tab_through(visit.page)
    assert reached == ["model", "choose", "camera", "more", "rollout", "layer", "mean", "summary"]
