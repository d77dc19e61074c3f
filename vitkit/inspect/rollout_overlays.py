"""Where a model looks in a few pictures of a split: attention rollout over what it sees, for the report of a run."""

from __future__ import annotations

import torch

from vitkit.data.decode import decode
from vitkit.data.sources.base import DataError, Split
from vitkit.data.transforms import Exact
from vitkit.errors import DecodeError
from vitkit.inspect.applies import DoesNotApply
from vitkit.inspect.pictures import Picture
from vitkit.inspect.rasters import enlarged, lit
from vitkit.inspect.rollout import rollout
from vitkit.model.build import Model
from vitkit.report.pictures import SIDE, Look, spread_over_classes


def looks(model: Model, split: Split) -> list[Look]:
    """Spread over the classes, broken pictures passed over; none for a model without attention."""
    exact = Exact(image=model.config.image, preprocessing=model.metadata.preprocessing)
    pictures = []
    for index in spread_over_classes(split):
        try:
            pixels = decode(split.read(index), channels=model.config.channels)
        except (DecodeError, DataError):
            continue
        pictures.append(Picture(split.keys[index], exact.frame(pixels)))
    if not pictures:
        return []
    try:
        maps = rollout(model, torch.stack([exact.normalise(picture.framed) for picture in pictures]))
    except DoesNotApply:
        return []
    shown = [enlarged(picture.pixels, SIDE) for picture in pictures]
    return [
        Look(picture.name, photo, lit(photo, weights))
        for picture, photo, weights in zip(pictures, shown, maps, strict=True)
    ]
