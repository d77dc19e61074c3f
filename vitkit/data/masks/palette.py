"""Colours of classes, for masks that come without: PASCAL VOC's colormap, which people know and tools share."""

Colour = tuple[int, int, int]
Palette = tuple[Colour, ...]


def default_palette(classes: int) -> Palette:
    """Return a colour for each class number: the bits of the number, spread over the high bits of red, green and blue.

    Class 0 is black, and classes with near numbers have colours that are far apart.
    """
    return tuple(map(_colour, range(classes)))


def _colour(number: int) -> Colour:
    red = green = blue = 0
    for shift in range(7, -1, -1):
        red |= (number & 1) << shift
        green |= (number >> 1 & 1) << shift
        blue |= (number >> 2 & 1) << shift
        number >>= 3
    return red, green, blue
