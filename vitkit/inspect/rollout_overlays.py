"""Attention rollout over a few images of a split, as a report shows it."""

from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import EvalTransform
from vitkit.inspect.heatmaps import enlarge_pixels, overlay
from vitkit.inspect.image_set import ImageSet, InspectedImage
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.rollout import rollout
from vitkit.model.build import Model, TokenModel
from vitkit.model.segmenter import Segmenter
from vitkit.pages.inline_images import THUMBNAIL, ImagePair, decode_sample, inline_image, sample_indices


def rollout_overlays(model: Model, split: Split) -> list[ImagePair]:
    """Return a few of a split's images with rollout over them, for a report; none for a model without attention.

    None for a causal model: its maps are bright where pixels come early, which says nothing about the images. None for
    a segmenter: its masks say more.
    """
    if isinstance(model, Segmenter) or (isinstance(model, TokenModel) and model.config.input_delay):
        return []
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    images = []
    for index in sample_indices(split):
        pixels = decode_sample(split, index, model.config.channels)
        if pixels is not None:
            images.append(InspectedImage(split.keys[index], transform.resize_only(pixels)))
    if not images:
        return []
    try:
        maps = rollout(model, ImageSet(transform, images, len(split)).batch(images))
    except DoesNotApply:
        return []
    enlarged = [enlarge_pixels(image.rgb, THUMBNAIL) for image in images]
    return [
        ImagePair(image.name, inline_image(pixels), inline_image(overlay(pixels, weights)))
        for image, pixels, weights in zip(images, enlarged, maps, strict=True)
    ]
