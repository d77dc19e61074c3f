"""Check the data before training: decode every image once and name what would hurt training."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitkit.data.decode_memory import decode_memory
from vitkit.data.duplicates import identical_images, near_duplicates
from vitkit.data.fingerprint import FingerprintCache, Fingerprints, identity_of, read_fingerprints, read_threads
from vitkit.data.groups import keep_together
from vitkit.data.image_info import ImageInfo, ImageInfoCache
from vitkit.data.label_check import label_warnings
from vitkit.data.mask_check import MaskReport, check_masks
from vitkit.data.partition import partition
from vitkit.data.sources.class_labels import missing_class_note
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.splits import TRAINING_SPLITS
from vitkit.progress import Progress, no_progress
from vitkit.text import counted, few

CHUNK = 2_000  # images between saves of the cache
FEW = 10  # images of a class, under which the report has a remark
LARGE = 4_000_000  # median pixels, from which the report has a remark: 20 ms of a core per image and epoch
KEPT_TOGETHER = "fit keeps copies on one side of every split that it makes"

# Storage modes that ordinary tools get wrong; vitkit reads them, so the report only counts them.
ODD_MODES = {
    "CMYK": "CMYK",
    "I": "16-bit or deeper",
    "F": "floats",
    "1": "black and white",
    "LAB": "Lab colours",
    "YCbCr": "YCbCr",
    **dict.fromkeys(("P", "PA"), "palette"),
    **dict.fromkeys(("RGBA", "LA"), "with transparency"),
    **dict.fromkeys(("I;16", "I;16B", "uint16"), "16-bit"),
}

EIGHT_BITS = {"RGB", "L", "P", "PA", "RGBA", "LA", "CMYK", "YCbCr", "LAB", "1"}


@dataclass(frozen=True)
class ImageRef:
    split: str
    index: int


@dataclass
class DataReport:
    """The result of a check; `problems` would hurt training, `remarks` are worth knowing."""

    name: str
    kind: str
    classes: tuple[str, ...]
    images: dict[str, int]  # split → images
    multilabel: bool = False
    task: str = "classify"  # "segment": classes are those of pixels
    bad: list[tuple[str, str]] = field(default_factory=list)  # key, reason
    odd: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    per_class: dict[str, dict[str, int]] = field(default_factory=dict)  # split → class → images
    duplicates: list[tuple[str, ...]] = field(default_factory=list)  # identical, within a split
    near_duplicates: list[tuple[str, str]] = field(default_factory=list)  # nearly identical, within a split
    leaks: list[tuple[str, str, str]] = field(default_factory=list)  # key in one split, key in another, similarity
    conflicts: list[tuple[str, str]] = field(default_factory=list)  # identical images with different labels
    masks: MaskReport | None = None  # of segmentation data
    fit_refuses: str = ""  # the error of `vitkit fit` with these data
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether nothing was found that would hurt training."""
        return not self.problems


def check(
    data: Data,
    *,
    channels: int = 3,
    workers: int = 4,
    cache: ImageInfoCache | None = None,
    fingerprint_cache: FingerprintCache | None = None,
    progress: Progress = no_progress,
) -> DataReport:
    """Decode every image in parallel and report what is wrong; images in the caches are not decoded again."""
    cache, fingerprint_cache = cache or ImageInfoCache(), fingerprint_cache or FingerprintCache()
    refs = [ImageRef(name, index) for name, split in data.splits.items() for index in range(len(split))]

    def examine(ref: ImageRef) -> ImageInfo:
        split = data.splits[ref.split]
        try:
            with decode_memory.hold():
                content = split.read(ref.index)
                fingerprint_cache.compute(identity_of(split, ref.index), content)
                return cache.lookup(content, channels)
        except DataError as error:
            return ImageInfo(error=str(error).splitlines()[0].removeprefix(f"{_key(data, ref)} "))

    threads = read_threads([*data.splits.values()], workers)
    infos = list(progress(_in_parallel(examine, refs, threads, (cache, fingerprint_cache)), len(refs), "decoding"))
    fingerprints = read_fingerprints(list(data.splits.values()), workers=workers, cache=fingerprint_cache)
    report = DataReport(
        name=data.name,
        kind=data.kind,
        classes=data.classes,
        multilabel=data.multilabel,
        task=data.task,
        images={name: len(split) for name, split in data.splits.items()},
        remarks=list(data.notes),
    )
    _check_files(report, data, refs, infos)
    if data.task == "segment":
        _check_masks(report, data, refs, infos, workers, progress)
    grouped = data
    with contextlib.suppress(DataError):  # without a training split; the check of the classes says so
        grouped = keep_together(data, workers=workers, cache=fingerprint_cache).data  # as `fit` does
    _check_classes(report, grouped)
    _check_duplicates(report, data, refs, infos, fingerprints)
    return report


def _in_parallel(
    examine: Callable[[ImageRef], ImageInfo],
    refs: list[ImageRef],
    workers: int,
    caches: tuple[ImageInfoCache, FingerprintCache],
) -> Iterator[ImageInfo]:
    """Examine the images in order, a chunk at a time; the caches are saved after each, also if interrupted."""
    with ThreadPoolExecutor(max(workers, 1)) as pool:  # decoding releases the GIL, so threads are enough
        for first in range(0, len(refs), CHUNK):
            try:
                yield from pool.map(examine, refs[first : first + CHUNK])
            finally:
                for cache in caches:
                    cache.save()


def _check_files(report: DataReport, data: Data, refs: list[ImageRef], infos: list[ImageInfo]) -> None:
    report.bad = [(_key(data, ref), info.error) for ref, info in zip(refs, infos, strict=True) if info.error]
    decoded = [info for info in infos if not info.error]
    if report.bad:
        report.problems.append(f"{len(report.bad):,} of {len(infos):,} images cannot be decoded")
    if not decoded:
        report.problems.append("no image can be decoded")
        return
    odd = Counter(ODD_MODES[info.mode] for info in decoded if info.mode in ODD_MODES)
    odd.update(
        {
            "turned upright by Exif": sum(info.turned for info in decoded),
            "animated, first frame used": sum(info.frames > 1 for info in decoded),
        }
    )
    report.odd = {mode: count for mode, count in odd.most_common() if count}
    heights, widths = (np.array([getattr(info, side) for info in decoded]) for side in ("height", "width"))
    ratios = widths / heights
    report.sizes = {
        "smallest": _size_at(heights, widths, int((heights * widths).argmin())),
        "median": [int(np.median(heights)), int(np.median(widths))],
        "largest": _size_at(heights, widths, int((heights * widths).argmax())),
        "widest": round(float(ratios.max()), 2),
        "tallest": round(float(ratios.min()), 2),
    }
    shrinkable = [info.height * info.width for info in decoded if info.mode in EIGHT_BITS]
    if len(shrinkable) > len(decoded) / 2 and (pixels := float(np.median(shrinkable))) > LARGE:
        report.remarks.append(
            f"half of the images have more than {pixels / 1e6:.0f} megapixels, which every epoch decodes again; "
            "vitkit shard DATA small/ --side 512 downscales them once"
        )


def _check_masks(
    report: DataReport, data: Data, refs: list[ImageRef], infos: list[ImageInfo], workers: int, progress: Progress
) -> None:
    sizes: dict[str, list[tuple[int, int]]] = {name: [] for name in data.splits}
    for ref, info in zip(refs, infos, strict=True):
        sizes[ref.split].append((info.height, info.width))
    report.masks = check_masks(data, sizes, workers=workers, progress=progress)
    report.problems += report.masks.problems
    report.remarks += report.masks.remarks


def _check_classes(report: DataReport, data: Data) -> None:
    _check_trainable(report, data)
    if data.task == "segment":  # its classes are those of pixels, which the check of the masks has counted
        return
    if not data.classes:
        report.remarks.append("unlabelled: good for pre-training, not for fitting a classifier")
        return
    for name, split in data.splits.items():
        per_class = split.per_class(len(data.classes)).tolist()
        report.per_class[name] = dict(zip(data.classes, per_class, strict=True))
    training = next((name for name in TRAINING_SPLITS if name in data.splits), None)
    if training is None:  # which is a problem by now
        return
    counts = report.per_class[training]
    missing = [label for label, count in counts.items() if not count]
    if missing:
        note = missing_class_note(training, missing)
        report.problems.append(note)
        report.remarks = [remark for remark in report.remarks if remark != note]  # data.notes has it too
    scarce = [label for label, count in counts.items() if 0 < count < FEW]
    if scarce:
        report.remarks.append(
            f"{counted(len(scarce), 'class has', 'classes have')} fewer than {FEW} images in {training}: {few(scarce)}"
        )
    report.remarks += label_warnings(data)


def _check_trainable(report: DataReport, data: Data) -> None:
    """Name what `vitkit fit` would refuse; for unlabelled data, what `vitkit pretrain` would refuse is a problem."""
    report.fit_refuses = _refusal(data, "segment" if data.task == "segment" else "labels")
    refused = report.fit_refuses if data.classes else _refusal(data, "masked-patch")
    if refused:
        report.problems.append(f"vitkit {'fit' if data.classes else 'pretrain'} refuses these data: {refused}")


def _refusal(data: Data, objective: str) -> str:
    try:
        partition(data, objective=objective)
    except DataError as error:
        return error.what
    return ""


def _check_duplicates(
    report: DataReport, data: Data, refs: list[ImageRef], infos: list[ImageInfo], fingerprints: Fingerprints
) -> None:
    for group in identical_images(infos):
        members = [refs[index] for index in group]
        by_split: dict[str, list[ImageRef]] = {}
        for member in members:
            by_split.setdefault(member.split, []).append(member)
        report.duplicates += [tuple(_key(data, ref) for ref in same) for same in by_split.values() if len(same) > 1]
        first, *others = [same[0] for same in by_split.values()]
        report.leaks += [(_key(data, first), _key(data, other), "identical") for other in others]
        conflicting = next((ref for ref in members if not _same_label(data, members[0], ref)), None)
        if conflicting:
            report.conflicts.append((_key(data, members[0]), _key(data, conflicting)))
    for one, other in _near_pairs(refs, infos, fingerprints):
        keys = (_key(data, refs[one]), _key(data, refs[other]))
        if refs[one].split == refs[other].split:
            report.near_duplicates.append(keys)
        else:
            report.leaks.append((*keys, "nearly identical"))
    exact = sum(similarity == "identical" for *_, similarity in report.leaks)
    if exact:
        report.problems.append(f"{counted(exact, 'image is', 'images are')} in two splits: scores on them mean nothing")
    if len(report.leaks) > exact:
        report.remarks.append(
            f"{counted(len(report.leaks) - exact, 'image looks', 'images look')} nearly the same in two splits"
        )
    if report.conflicts:
        report.problems.append(
            f"{counted(len(report.conflicts), 'image has', 'images have')} a copy with another label"
        )
    if report.duplicates:
        extra = sum(len(group) - 1 for group in report.duplicates)
        report.remarks.append(
            f"{counted(extra, 'image is', 'images are')} identical to others in their split; {KEPT_TOGETHER}"
        )
    if report.near_duplicates:
        number = len(report.near_duplicates)
        report.remarks.append(
            f"{counted(number, 'image is', 'images are')} nearly identical to others in their split; {KEPT_TOGETHER}"
        )


def _near_pairs(refs: list[ImageRef], infos: list[ImageInfo], fingerprints: Fingerprints) -> Iterator[tuple[int, int]]:
    """Yield pairs of near duplicates, the most similar one for each image, one in another split before one in its own.

    Identical images are not included.
    """
    # one image of each set of identical ones per split: a thousand copies are one duplicate
    chosen = np.array(
        sorted(
            {
                (info.pixels, ref.split): index for index, (info, ref) in enumerate(zip(infos, refs, strict=True))
            }.values()
        )
    )
    chosen = chosen[fingerprints.decoded[chosen]]
    pairs = near_duplicates(fingerprints.thumbnails[chosen])
    rows = zip(chosen[pairs.first].tolist(), chosen[pairs.second].tolist(), pairs.correlation.tolist(), strict=True)
    best: dict[int, tuple[bool, float, int]] = {}
    for one, other, correlation in rows:
        if infos[one].pixels != infos[other].pixels:
            candidate = (refs[one].split != refs[other].split, correlation, -one)
            best[other] = max(best.get(other, candidate), candidate)
    yield from ((-one, other) for other, (_, _, one) in sorted(best.items()))


def _same_label(data: Data, one: ImageRef, other: ImageRef) -> bool:
    first, second = (np.asarray(data.splits[ref.split].labels[ref.index]) for ref in (one, other))
    unlabelled = not data.multilabel and (first < 0 or second < 0)
    return bool(unlabelled or np.array_equal(first, second))


def _key(data: Data, ref: ImageRef) -> str:
    return data.splits[ref.split].keys[ref.index]


def _size_at(heights: np.ndarray, widths: np.ndarray, index: int) -> list[int]:
    return [int(heights[index]), int(widths[index])]
