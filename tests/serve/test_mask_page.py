"""The web page of a segmentation model in a real browser: the mask over its image, the legend, and every control."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import vitkit
from tests.data.sample_images import encode, oriented, scene
from tests.predict.small_segmenter import CLASSES, PALETTE, small_segmenter
from tests.serve.accessibility import LOW_CONTRAST_TEXTS, controls_without_name, tab_through
from tests.serve.browser import Visit, make_image, server_with_key, visiting
from tests.serve.servers import TIMEOUT, small_run
from vitkit.pages.mask_overlay import colour_mask
from vitkit.predict.segmentation import ImageSegmenter, SegmentedImage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("fastapi", reason="needs fastapi, of the serve extra")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the dev extra")
expect = sync_api.expect
expect.set_options(timeout=1000 * TIMEOUT)
TRAINED = (60, 80)
FIRST, SECOND = make_image(1, (90, 120)), make_image(2, (100, 70))
CANVAS = """() => {
    const canvas = document.getElementById("mask"), { width, height } = canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    return [height, width, Array.from(copy.getImageData(0, 0, width, height).data)];
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "streets"
    vitkit.save(small_segmenter(TRAINED), folder)
    return folder


@pytest.fixture(scope="module")
def address(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    other = small_run(tmp_path_factory.mktemp("runs") / "photos")
    with server_with_key(str(run), str(other), "--limit", f"seconds={TIMEOUT}") as address:
        yield address


@pytest.fixture(scope="module")
def segmenter(run: Path) -> ImageSegmenter:
    return ImageSegmenter(run)


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    with visiting(browser, address) as visit:
        yield visit


def drop(visit: Visit, name: str, content: bytes, kind: str = "image/png") -> None:
    visit.drop(name, content, kind)
    wait_for_mask(visit, name)


def wait_for_mask(visit: Visit, name: str) -> None:
    expect(visit.page.locator("#caption")).to_contain_text(f"{name} · answered in")
    visit.page.locator("#mask").wait_for()


def drawn(visit: Visit) -> NDArray[np.uint8]:
    """Return the canvas, (h, w, 4)."""
    height, width, values = visit.page.evaluate(CANVAS)
    return np.array(values, np.uint8).reshape(height, width, 4)


def assert_drawn(visit: Visit, segmented: SegmentedImage) -> None:
    """The canvas has the colours of the mask, but for pixels of two classes with the same score."""
    shown = drawn(visit)
    assert shown.shape[:2] == segmented.mask.shape
    assert (shown[..., 3] == 255).all()
    assert (shown[..., :3] == colour_mask(segmented.mask, PALETTE)).all(axis=2).mean() > 0.999


def shares(segmented: SegmentedImage) -> list[str]:
    texts = [f"{share:.1%}".replace("%", " %") for share in segmented.shares.values()]
    return [text if text != "0.0 %" else "< 0.1 %" for text in texts]


def place(visit: Visit, x: float, y: float) -> tuple[float, float]:
    """Return the point of the page that is at these shares of the mask's sides."""
    visit.page.locator("#mask").scroll_into_view_if_needed()
    box = visit.page.locator("#mask").bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def class_at(segmented: SegmentedImage, x: float, y: float) -> str:
    height, width = segmented.mask.shape
    return CLASSES[segmented.mask[int(y * height), int(x * width)]]


def test_the_mask_is_drawn_over_the_image_with_a_legend_of_its_classes(visit: Visit, segmenter: ImageSegmenter):
    drop(visit, "first.png", FIRST)
    segmented = segmenter(FIRST)
    assert_drawn(visit, segmented)
    assert visit.page.locator("#bars bdi").all_inner_texts() == list(segmented.shares)
    assert visit.page.locator("#bars .number").all_inner_texts() == shares(segmented)
    swatches = visit.page.eval_on_selector_all("#bars .swatch", "all => all.map(one => one.style.background)")
    assert swatches == [f"rgb{PALETTE[CLASSES.index(name)]}" for name in segmented.shares]
    largest = next(iter(segmented.shares))
    assert visit.text("#headline bdi") == largest
    assert f"of the model’s {len(CLASSES)} classes" in visit.text("#headline")
    assert largest in visit.text("#status")
    expect(visit.page.locator("#attention")).to_be_hidden()
    same = (
        "(id) => { const box = document.getElementById(id).getBoundingClientRect(); return [box.x, box.y, box.width]; }"
    )
    assert visit.page.evaluate(same, "mask") == visit.page.evaluate(same, "preview")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("dot.png", encode(scene(1, 1), "PNG"), "image/png"),
        ("line.png", encode(scene(3, 500), "PNG"), "image/png"),
        ("turned.jpg", oriented("JPEG", 6, quality=95), "image/jpeg"),
        ("windows.png", encode(scene(300, 200), "PNG"), "image/png"),
        ("hidden.tiff", encode(scene(), "TIFF"), "image/tiff"),  # which the browser cannot show
    ],
)
def test_images_of_every_shape_have_their_mask(
    visit: Visit, segmenter: ImageSegmenter, name: str, content: bytes, kind: str
):
    drop(visit, name, content, kind)
    segmented = segmenter(content)
    assert_drawn(visit, segmented)
    assert (f"computed in {segmented.windows} windows" in visit.text("#caption")) == (segmented.windows > 1)
    box = visit.page.locator("#mask").bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 48


def test_the_slider_fades_the_mask(visit: Visit):
    drop(visit, "first.png", FIRST)
    opacity = "getComputedStyle(document.getElementById('mask')).opacity"
    slider = visit.page.get_by_role("slider", name="Opacity of the mask")
    assert visit.page.evaluate(opacity) == "0.6"
    slider.press("ArrowRight")
    assert visit.page.evaluate(opacity) == "0.65"
    assert visit.text("#opacity-name") == "65 %"
    slider.press("Home")
    assert visit.page.evaluate(opacity) == "0"
    drop(visit, "second.png", SECOND)
    assert visit.page.evaluate(opacity) == "0"  # the choice stays for another image


def test_the_class_of_a_pixel_is_named_under_the_mouse_and_by_arrow_keys(visit: Visit, segmenter: ImageSegmenter):
    drop(visit, "first.png", FIRST)
    segmented, named = segmenter(FIRST), visit.page.locator("#pixel-class")
    expect(named).to_contain_text("Point at the image")
    for x, y in ((0.1, 0.1), (0.9, 0.2), (0.3, 0.9)):
        visit.page.mouse.move(*place(visit, x, y))
        expect(named).to_have_text(class_at(segmented, x, y))
    expect(visit.page.locator("#point")).to_be_hidden()
    visit.page.mouse.move(0, 0)
    expect(named).to_contain_text("Point at the image")
    visit.page.locator("#mask").focus()
    for _ in range(10):
        visit.page.keyboard.press("ArrowLeft")
    visit.page.keyboard.press("ArrowUp")
    expect(named).to_have_text(class_at(segmented, 0.3, 0.48))
    expect(visit.page.locator("#point")).to_be_visible()
    for _ in range(60):
        visit.page.keyboard.press("ArrowDown")
    expect(named).to_have_text(class_at(segmented, 0.3, 0.999))


def test_a_touch_names_the_class(browser: Browser, address: str, segmenter: ImageSegmenter):
    with visiting(browser, address, viewport={"width": 390, "height": 700}, is_mobile=True, has_touch=True) as visit:
        drop(visit, "first.png", FIRST)
        expect(visit.page.locator("#pixel-class")).to_contain_text("Touch the image")
        visit.page.touchscreen.tap(*place(visit, 0.25, 0.75))
        expect(visit.page.locator("#pixel-class")).to_have_text(class_at(segmenter(FIRST), 0.25, 0.75))
        expect(visit.page.locator("#point")).to_be_visible()


def test_a_class_of_the_legend_is_shown_alone(visit: Visit, segmenter: ImageSegmenter):
    drop(visit, "first.png", FIRST)
    mask, names = segmenter(FIRST).mask, list(segmenter(FIRST).shares)
    first, second = (visit.page.locator("#bars button", has_text=name) for name in names[:2])

    def shown() -> set[int]:
        return set(np.unique(mask[drawn(visit)[..., 3] == 255]).tolist())

    first.press("Enter")
    assert shown() == {CLASSES.index(names[0])}
    expect(first).to_have_attribute("aria-pressed", "true")
    second.press("Space")
    assert shown() == {CLASSES.index(names[1])}
    expect(first).to_have_attribute("aria-pressed", "false")
    first.hover()  # while it is pointed at
    assert shown() == {CLASSES.index(names[0])}
    visit.page.mouse.move(0, 0)
    assert shown() == {CLASSES.index(names[1])}
    second.press("Enter")
    assert shown() == {CLASSES.index(name) for name in names}


def test_the_mask_is_downloaded_as_it_came_from_the_server(visit: Visit, segmenter: ImageSegmenter):
    drop(visit, "street.view.png", FIRST)
    with visit.page.expect_download() as download:
        visit.page.get_by_role("link", name="Download the mask").click()
    assert download.value.suggested_filename == "street.view_mask.png"
    image = Image.open(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert image.mode == "P"
    assert (np.asarray(image) == segmenter(FIRST).mask).mean() > 0.999
    palette = image.getpalette()
    assert palette is not None
    assert palette[: 3 * len(CLASSES)] == [value for colour in PALETTE for value in colour]


def test_classes_of_the_same_colour_are_told_apart(browser: Browser, tmp_path: Path, segmenter: ImageSegmenter):
    model = small_segmenter()
    model.metadata.provenance["palette"] = [[90, 90, 90]] * len(CLASSES)
    vitkit.save(model, tmp_path / "grey")
    segmented = ImageSegmenter(tmp_path / "grey")(FIRST)
    with server_with_key(str(tmp_path / "grey")) as address, visiting(browser, address) as visit:
        drop(visit, "first.png", FIRST)
        for x, y in ((0.1, 0.1), (0.9, 0.2), (0.3, 0.9)):
            visit.page.mouse.move(*place(visit, x, y))
            expect(visit.page.locator("#pixel-class")).to_have_text(class_at(segmented, x, y))


def test_several_images_are_in_a_list_each_with_its_largest_class(visit: Visit, segmenter: ImageSegmenter):
    images = {"0.png": FIRST, "1.png": SECOND, "2.png": make_image(3)}
    files = [{"name": name, "mimeType": "image/png", "buffer": content} for name, content in images.items()]
    visit.page.set_input_files("#file", [*files, {"name": "x.png", "mimeType": "image/png", "buffer": b"x"}])
    wait_for_mask(visit, "0.png")
    expect(visit.page.locator("#results-title")).to_have_text("4 images, 1 cannot be used")
    answers = visit.page.locator("#result-list .answer").all_inner_texts()
    assert answers == [*(next(iter(segmenter(image).shares)) for image in images.values()), "cannot be used"]
    visit.page.get_by_role("button", name="1.png").click()
    wait_for_mask(visit, "1.png")
    assert_drawn(visit, segmenter(SECOND))
    visit.page.get_by_role("button", name="x.png").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("x.png cannot be used: not an image")
    expect(visit.page.locator("#mask")).to_be_hidden()
    visit.console_messages.clear()  # the browser's own message about the 422


def test_a_model_that_classifies_answers_the_same_image(visit: Visit, segmenter: ImageSegmenter):
    drop(visit, "first.png", FIRST)
    visit.page.get_by_label("Model", exact=True).select_option("photos")
    visit.wait_for_prediction("first.png")
    for hidden in ("#mask", "#mask-controls", "#pixel", "#legend-note"):
        expect(visit.page.locator(hidden)).to_be_hidden()
    expect(visit.page.locator("#headline")).to_contain_text("the most probable of 10 classes")
    visit.page.get_by_label("Model", exact=True).select_option("streets")
    wait_for_mask(visit, "first.png")
    assert_drawn(visit, segmenter(FIRST))
    expect(visit.page.locator("#attention")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_masks_fit_a_phone_and_texts_have_enough_contrast(browser: Browser, address: str, scheme: str):
    options = {"viewport": {"width": 390, "height": 800}, "color_scheme": scheme, "reduced_motion": "reduce"}
    with visiting(browser, address, **options) as visit:
        drop(visit, "first.png", FIRST)
        visit.page.evaluate("document.querySelector('details').open = true")
        assert visit.page.evaluate(LOW_CONTRAST_TEXTS) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
        drop(visit, "line.png", encode(scene(3, 500), "PNG"))
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 390


def test_every_control_of_a_mask_has_a_name_and_is_reached_by_tab(visit: Visit, segmenter: ImageSegmenter):
    drop(visit, "first.png", FIRST)
    assert controls_without_name(visit.page) == []
    legend = ["button"] * len(segmenter(FIRST).shares)
    assert tab_through(visit.page) == ["model", "choose", "camera", "mask", "opacity", "download", *legend, "summary"]


def test_the_answer_of_the_page_is_the_png_in_base64(visit: Visit):
    """So that a mask of many megapixels needs no second request."""
    with visit.page.expect_response("**/v1/predict?*") as response:
        drop(visit, "first.png", FIRST)
    (row,) = response.value.json()["predictions"]
    assert base64.b64decode(row["mask"]).startswith(b"\x89PNG")
    assert sum("/v1/predict" in url for url in visit.requested_urls) == 1
