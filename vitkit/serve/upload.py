"""One uploaded image, with the pixels that its header states: read once, in the thread that parses the request."""

from dataclasses import dataclass, field

from vitkit.serve.pixel_count import stated_pixels


@dataclass(frozen=True)
class Upload:
    """One image of a request. To make one takes time for some headers, so the event loop leaves it to a thread."""

    content: bytes
    name: str | None = None  # the client's name of the file: text to repeat, never a path to open
    pixels: int = field(init=False)  # as the header states them; 0 where it states nothing

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", stated_pixels(self.content))
