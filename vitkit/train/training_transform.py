"""The transform of a run's training images: what data workers, or a cache, do before batches reach the device."""

from vitkit.config.schema import Fit
from vitkit.data.image_sizes import measure_size
from vitkit.data.masked_transforms import MaskedTrainTransform
from vitkit.data.resize import Size
from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import TrainTransform
from vitkit.model.build import Model


def training_transform(config: Fit, model: Model, split: Split) -> TrainTransform:
    if config.segments:
        canvas = canvas_size(split, model.config.image, config.augment.scale[1])
        return MaskedTrainTransform(image=canvas, preprocessing=model.metadata.preprocessing)
    return TrainTransform(
        image=model.config.image,
        crop=config.augment.crop,
        precrop=config.augment.precrop,
        aspect=config.augment.aspect,
        flip=config.augment.flip,
        preprocessing=model.metadata.preprocessing,
    )


def canvas_size(split: Split, image: Size, largest_scale: float) -> Size:
    """Return the size that images and masks are resized to before they are scaled and cropped at random.

    It is that of the model's input, or larger where images have more pixels and `largest_scale` would magnify them.
    """
    measured = measure_size(split)
    detail = 1.0 if measured is None else min(measured.height / image[0], measured.width / image[1])
    factor = max(min(detail, largest_scale), 1.0)
    return round(image[0] * factor), round(image[1] * factor)
