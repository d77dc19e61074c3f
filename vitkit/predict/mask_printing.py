"""Segmented images printed for people: the classes found and their shares, bars for a few images, a line for many."""

from collections.abc import Iterable, Sequence

from vitkit.messages import print_line
from vitkit.predict.printing import FEW, NAME, bar, common_folder, short_name
from vitkit.predict.segmentation import SegmentedImage
from vitkit.text import counted, printable


def print_segmented(images: Iterable[SegmentedImage], names: Sequence[str], top: int) -> None:
    """Print the largest classes of each image; `names` are those of all, so that columns are aligned."""
    if len(names) <= FEW:
        for index, image in enumerate(images):
            for line in [""] * (index > 0) + _bars(image, top):
                print_line(line)
        return
    common = common_folder(names)
    width = min(max(len(short_name(name, common)) for name in names), NAME)
    for image in images:
        name = short_name(image.name or "", common)
        name = name if len(name) <= width else "…" + name[1 - width :]
        print_line(_line(image, f"{name:<{width}}", top))


def _bars(image: SegmentedImage, top: int) -> list[str]:
    if image.error is not None:
        return [image.name or "", f"  no mask: {image.error}"]
    height, width = image.mask.shape
    head = f"{image.name or ''}  {height} x {width}{_windows(image)}"
    shares = list(image.shares.items())
    more = [f"  and {counted(len(shares) - top, 'class')} more"] if len(shares) > top else []
    return [head, *(f"  {share:7.1%}  {bar(share)}  {name}" for name, share in shares[:top]), *more]


def _line(image: SegmentedImage, name: str, top: int) -> str:
    if image.error is not None:
        return f"{name}  no mask: {image.error}"
    shares = list(image.shares.items())
    classes = "  ".join(f"{printable(label)} {share:.1%}" for label, share in shares[:top])
    return f"{name}  {classes}{'  …' if len(shares) > top else ''}{_windows(image)}"


def _windows(image: SegmentedImage) -> str:
    return f", in {image.windows} windows" if image.windows > 1 else ""
