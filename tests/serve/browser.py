"""A real Chromium on the page of a real server: how tests hand it pictures, and what they read off it."""

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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = "open-sesame"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
HAND_OVER = """([way, name, type, content]) => {
    const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
    const carried = new DataTransfer();
    carried.items.add(new File([bytes], name, { type }));
    const event = way === "paste"
        ? new ClipboardEvent("paste", { clipboardData: carried, bubbles: true, cancelable: true })
        : new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);
}"""


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of a server in a process of its own, which asks for the key."""
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
        said = []
        for line in server.stdout:
            said.append(line)
            if found := re.search(r"http://\S+?:\d+", line):
                yield found[0]
                return
        raise AssertionError("the server did not start:\n" + "".join(said))
    finally:
        server.terminate()
        server.wait(timeout=30)


@dataclass
class Visit:
    """A page that is open, what it asked for and what it complained of."""

    page: Page
    address: str
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(15_000)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(self.address)
        self.page.locator("#expects").wait_for()

    def drop(self, name: str, content: bytes, kind: str = "image/png") -> None:
        self.page.evaluate(HAND_OVER, ["drop", name, kind, base64.b64encode(content).decode()])

    def paste(self, name: str, content: bytes) -> None:
        self.page.evaluate(HAND_OVER, ["paste", name, "image/png", base64.b64encode(content).decode()])

    def answered(self, name: str) -> None:
        """Waits until the answer to the picture of this name, and where the model looks, are there."""
        from playwright.sync_api import expect

        expect(self.page.locator("#given-name")).to_contain_text(f"{name} · answered in")
        self.page.locator("#sights").wait_for()

    def overlay(self) -> NDArray[np.uint8]:
        address: str = self.page.evaluate("document.getElementById('overlay').toDataURL()")
        return pixels(base64.b64decode(address.partition(",")[2]))

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def foreign(self) -> list[str]:
        return [url for url in self.asked if not url.startswith((self.address, "data:", "blob:" + self.address))]


def pixels(content: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def picture(seed: int, size: tuple[int, int] = (48, 60)) -> bytes:
    """A few blots of colour; of each seed, another one."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(small).resize((size[1], size[0]), Image.Resampling.BICUBIC).save(content, "PNG")
    return content.getvalue()


def write_models(folder: Path) -> dict[str, Path]:
    """A ViT with names that try the page, a ResNet, and one whose classes are judged each on its own."""
    from dataclasses import replace

    import torch

    import vitkit
    from tests.model.kinds import randomise
    from vitkit.model.build import build
    from vitkit.model.config import ConvConfig, ResNetConfig

    torch.manual_seed(0)
    names = ("cat", "<b>dog</b> & co", "고양이", "w" * 120, "a name of many words that goes on and on", "bird", "7")
    vit = vitkit.create("mu/4", image=32, classes=len(names), depth=3)
    several = vitkit.create("mu/8", image=32, classes=3)
    resnet = build(ResNetConfig(body=ConvConfig.bit((1, 1, 1, 1), 32), image=(32, 32), classes=3))
    written = {}
    for name, model, labels, multilabel in (
        ("vit", vit, names, False),
        ("resnet", resnet, ("a", "b", "c"), False),
        ("several", several, ("sun", "sea", "sand"), True),
    ):
        randomise(model).metadata = replace(model.metadata, labels=labels, provenance={"multilabel": multilabel})
        written[name] = folder / name
        vitkit.save(model, written[name])
    return written
