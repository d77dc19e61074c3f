"""transformers' preprocessor_config.json ↔ Preprocessing: what its image processors do, by their own defaults."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from vitkit.data.geometry import resize_target
from vitkit.data.preprocessing import Interpolation, Preprocessing
from vitkit.errors import WeightsError
from vitkit.model.build import Model
from vitkit.stored_json import conform

RESAMPLE: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's codes

_HALF = (0.5, 0.5, 0.5)  # transformers' IMAGENET_STANDARD_MEAN and _STD
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

log = logging.getLogger("vitkit")


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The defaults of a class of image processors; a file may leave out what it does not change."""

    size: Mapping[str, int]
    crop: int | None = None  # the centre that is cut out
    resample: int = 3
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF
    square: bool = True  # what a size of one number means: a square, or else the short side


class _Settings(TypedDict, total=False):
    """The part of preprocessor_config.json that is read."""

    size: int | dict[str, int] | list[int] | None
    crop_size: int | dict[str, int] | None
    resample: int
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None
    rescale_factor: float | None
    vitkit: dict[str, Any]


_SQUARE, _SHORT = {"height": 224, "width": 224}, {"shortest_edge": 224}
_CLIP = Processor(size=_SHORT, crop=224, mean=_CLIP_MEAN, std=_CLIP_STD, square=False)
PROCESSORS = {
    "ViT": Processor(size=_SQUARE, resample=2),
    "DeiT": Processor(size={"height": 256, "width": 256}, crop=224),
    "Beit": Processor(size=_SQUARE),
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": Processor(size=_SQUARE, square=False),
    "DINOv3ViT": Processor(size=_SQUARE, resample=2, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
}


def preprocessing_of(
    settings: Mapping[str, Any] | None, channels: int, published: Preprocessing | None = None
) -> Preprocessing:
    """Return what a file describes; without one, what was published or else what transformers does with a ViT."""
    if settings is None and published and len(published.mean) == channels:
        return published
    if settings is None:
        vit = PROCESSORS["ViT"]
        return Preprocessing(
            resize="squash",
            interpolation=RESAMPLE[vit.resample],
            mean=vit.mean[:1] * channels,
            std=vit.std[:1] * channels,
            rounding="transformers",
            origin="transformers' default for ViTs, there is no preprocessor_config.json",
        )
    settings = conform(settings, _Settings, "preprocessor_config.json", error=WeightsError)
    if "vitkit" in settings:  # written by vitkit: exact where transformers' whole pixels are not
        return Preprocessing.from_record(settings["vitkit"])
    processor = _processor(settings)
    size, cut = _size(settings, processor), _crop_size(settings, processor)
    short = size.get("shortest_edge")
    side = short or min(size.get("height", 0), size.get("width", 0))
    if not side or (cut or 0) > side or not settings.get("do_resize", True):
        log.warning(
            "of the preprocessor_config.json, vitkit does not know size %s with crop_size %s and do_resize %s; images "
            "will be resized to the model's size",
            dict(size),
            cut,
            settings.get("do_resize", True),
        )
        cut = None
    resample = settings.get("resample", processor.resample)
    if resample not in RESAMPLE:
        log.warning("vitkit does not have Pillow's filter %s; images will be resized bicubically", resample)
    mean, std = _normalisation(settings, processor)
    return Preprocessing(
        resize="crop" if short else "squash",
        crop=cut / side if cut else 1.0,
        interpolation=RESAMPLE.get(resample, "bicubic"),
        mean=mean,
        std=std,
        rounding="transformers",
    )


def _processor(settings: Mapping[str, Any]) -> Processor:
    kind = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "ViTImageProcessor")
    name = kind.removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if name not in PROCESSORS:
        log.warning("vitkit does not know the image processor %s; it is read as a ViTImageProcessor", kind)
    return PROCESSORS.get(name, PROCESSORS["ViT"])


def _size(settings: Mapping[str, Any], processor: Processor) -> Mapping[str, int]:
    size = settings.get("size") or processor.size
    if isinstance(size, int):
        return {"height": size, "width": size} if processor.square else {"shortest_edge": size}
    return size if isinstance(size, Mapping) else dict(zip(("height", "width"), size, strict=False))


def _crop_size(settings: Mapping[str, Any], processor: Processor) -> int | None:
    """Return the side of the centre that is cut out, the shorter one, or None where nothing is."""
    if not settings.get("do_center_crop", processor.crop is not None):
        return None
    size = settings.get("crop_size") or processor.crop or 224
    return size if isinstance(size, int) else min(size.values())


def _normalisation(settings: Mapping[str, Any], processor: Processor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std for values on 0 to 1, whatever the scale on which the file has them."""
    mean, std = settings.get("image_mean") or processor.mean, settings.get("image_std") or processor.std
    if not settings.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    factor = settings.get("rescale_factor") or 1 / 255 if settings.get("do_rescale", True) else 1.0
    scale = 255 * factor  # of values on 0 to 1 to those that the file's numbers belong to
    if abs(scale - 1) < 1e-6:
        return tuple(mean), tuple(std)
    return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def preprocessor_of(model: Model) -> dict[str, Any]:
    preprocessing, (height, width) = model.metadata.preprocessing, model.config.image
    record: dict[str, Any] = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "rescale_factor": 1 / 255,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "resample": {name: number for number, name in RESAMPLE.items()}[preprocessing.interpolation],
        "vitkit": asdict(preprocessing),
    }
    target = resize_target(model.config.image, preprocessing)
    crop_size = {"height": height, "width": width}
    if preprocessing.resize == "squash":
        record |= {"image_processor_type": "ViTImageProcessor", "size": {"height": target[0], "width": target[1]}}
        if target == model.config.image:
            return record
        return record | {"image_processor_type": "DeiTImageProcessor", "do_center_crop": True, "crop_size": crop_size}
    # transformers' ViT processor cannot crop; CLIP's is the same with a crop
    return record | {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_center_crop": True,
        "size": {"shortest_edge": min(target)},
        "crop_size": crop_size,
    }
