"""A real Chromium on the page of a real server: send files to the page, and read what it shows."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.serve.servers import TIMEOUT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KEY = "open-sesame"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
SEND_FILE = """([event, name, type, content]) => {
    const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, { type }));
    document.body.dispatchEvent(event === "paste"
        ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true })
        : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@contextmanager
def server_with_key(*arguments: str) -> Iterator[str]:
    """Yield the address of a server in a process of its own, which requires the key."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VITKIT_API_KEY": KEY}
    server = subprocess.Popen(
        [sys.executable, "-m", "vitkit", "serve", *arguments, "--port", "0"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    try:
        assert server.stdout is not None
        output = []
        for line in server.stdout:
            output.append(line)
            if match := re.search(r"http://\S+?:\d+", line):
                yield match[0]
                return
        raise AssertionError("the server did not start:\n" + "".join(output))
    finally:
        server.terminate()
        server.wait(timeout=TIMEOUT)


@dataclass
class Visit:
    """An open page, with the URLs that it requested and the messages on its console."""

    page: Page
    address: str
    requested_urls: list[str] = field(default_factory=list)
    console_messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(1000 * TIMEOUT)
        self.page.on("request", lambda request: self.requested_urls.append(request.url))
        self.page.on("console", lambda message: self.console_messages.append(message.text))
        self.page.on("pageerror", lambda error: self.console_messages.append(str(error)))
        self.page.goto(self.address)
        self.page.locator("#model-info").wait_for()

    def drop(self, name: str, content: bytes, kind: str = "image/png") -> None:
        self.page.evaluate(SEND_FILE, ["drop", name, kind, base64.b64encode(content).decode()])

    def paste(self, name: str, content: bytes) -> None:
        self.page.evaluate(SEND_FILE, ["paste", name, "image/png", base64.b64encode(content).decode()])

    def wait_for_prediction(self, name: str) -> None:
        """Wait until the page shows the prediction and the attention of the image with this name."""
        from playwright.sync_api import expect

        expect(self.page.locator("#caption")).to_contain_text(f"{name} · answered in")
        self.page.locator("#attention-view").wait_for()

    def overlay(self) -> NDArray[np.uint8]:
        address: str = self.page.evaluate("document.getElementById('overlay').toDataURL()")
        return pixels(base64.b64decode(address.partition(",")[2]))

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def foreign_urls(self) -> list[str]:
        own = (self.address, "data:", f"blob:{self.address}")
        return [url for url in self.requested_urls if not url.startswith(own)]


@contextmanager
def visiting(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    """Open the page; at the end, it must have requested nothing from other hosts, and the console must be empty."""
    defaults = {"viewport": {"width": 1000, "height": 800}, "extra_http_headers": {"Authorization": f"Bearer {KEY}"}}
    page: Page = browser.new_page(**{**defaults, **options})
    visit = Visit(page, address)
    yield visit
    assert visit.foreign_urls() == []
    assert visit.console_messages == []
    page.close()


def pixels(content: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def make_image(seed: int, size: tuple[int, int] = (48, 60)) -> bytes:
    """Return a few blots of colour, different for each seed."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(small).resize((size[1], size[0]), Image.Resampling.BICUBIC).save(content, "PNG")
    return content.getvalue()


def write_models(folder: Path) -> dict[str, Path]:
    """Write a ViT with class names that are hard to show, a ResNet, and a multi-label model."""
    from dataclasses import replace

    import torch

    import vitkit
    from tests.model.kinds import randomise
    from vitkit.model.build import build
    from vitkit.model.config import ResNetConfig
    from vitkit.model.conv_config import ConvConfig

    torch.manual_seed(0)
    names = ("cat", "<b>dog</b> & co", "고양이", "w" * 120, "a name of many words that goes on and on", "bird", "7")
    vit = vitkit.create("mu/4", image=32, classes=len(names), depth=3)
    multilabel_vit = vitkit.create("mu/8", image=32, classes=3)
    resnet = build(ResNetConfig(body=ConvConfig.bit((1, 1, 1, 1), 32), image=(32, 32), classes=3))
    paths = {}
    provenance = {"multilabel": True, "thresholds": [0.99, 0.01, 0.3]}
    for name, model, labels, multilabel in (
        ("vit", vit, names, False),
        ("resnet", resnet, ("a", "b", "c"), False),
        ("multilabel", multilabel_vit, ("sun", "sea", "sand"), True),
    ):
        randomise(model).metadata = replace(model.metadata, labels=labels, provenance=provenance if multilabel else {})
        paths[name] = folder / name
        vitkit.save(model, paths[name])
    return paths
