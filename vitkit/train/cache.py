"""The choice to keep a run's decoded images in memory, and where: the GPU's, the host's, or nowhere.

Crops of a cache are those of the images at the size that it stores (`vitkit.data.image_cache.STORED_SIDE`), so a run
that began with one stays with that size: a resumed run whose images no longer fit takes the same pixels from another
memory, or decodes every image in each epoch and resizes it as the cache would have.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from vitkit import devices
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.data.image_cache import ImageCache, estimate_bytes, fill_cache, stored_transform
from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import TrainTransform
from vitkit.errors import ConfigError
from vitkit.kernels.dispatch import TRITON
from vitkit.launcher import launch
from vitkit.progress import no_progress, show_progress
from vitkit.text import binary_size, counted
from vitkit.train.distributed import Processes

Memory = Literal["gpu", "ram", "no"]
Request = Literal["auto", "gpu", "ram", "no"]

RAM_SHARE = 0.5  # of the host memory that is free, divided by the processes of the host
GPU_SHARE = 0.25  # of the GPU memory that is free once the model is on it; the rest is for the micro-batch
MIN_EPOCHS = 2  # with fewer, most images are decoded once anyway
MAX_SHARED = 4  # caches that a process keeps for later runs; each took its share of what was free
NAMES = {"gpu": "GPU memory", "ram": "host memory"}


@dataclass(frozen=True, kw_only=True)
class CacheChoice:
    """The memory that keeps a run's images, the transform that belongs to it, and the choice in words."""

    memory: Memory  # which the run records, so that it can be resumed
    transform: TrainTransform
    cache: ImageCache | None
    description: str


@dataclass(frozen=True, kw_only=True)
class ImagesInMemory:
    """The images that a run keeps in memory, or that several runs of a process share.

    caches   decoded training images, where several runs share them
    inputs   of the model, for validation and scoring
    """

    caches: SharedCaches | None = None
    inputs: KeptInputs = field(default_factory=KeptInputs)


class SharedCaches:
    """The caches that runs of this process have filled, the latest ones: runs on the same images share them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[Split, ImageCache]] = {}  # the split, too, whose store's id is a key

    def find(self, key: tuple[Any, ...]) -> ImageCache | None:
        return self._kept[key][1] if key in self._kept else None

    def keep(self, key: tuple[Any, ...], split: Split, cache: ImageCache) -> None:
        self._kept[key] = split, cache
        while len(self._kept) > MAX_SHARED:
            del self._kept[next(iter(self._kept))]


def choose_cache(
    requested: Request,
    split: Split,
    transform: TrainTransform,
    channels: int,
    processes: Processes,
    *,
    epochs: float,
    is_new: bool,
    shared: SharedCaches | None = None,
) -> CacheChoice:
    """Decide where the images are kept, and decode them to there; every rank takes the same decision.

    A resumed run asks for the memory that it recorded; where it says auto, a version without caches began it.
    """
    if requested == "auto" and not is_new:
        requested = "no"
    if requested == "gpu" and is_new and processes.device.type != "cuda":
        raise ConfigError(
            f"cache = gpu: this run computes on {processes.device.type}, which has no memory of its own",
            try_="--set cache=ram",
        )
    if requested == "no":
        return _uncached(transform, "as set")
    if requested == "auto" and epochs < MIN_EPOCHS:
        return _uncached(transform, f"the run has fewer than {MIN_EPOCHS} epochs")
    stored = stored_transform(transform)
    needed = estimate_bytes(split, stored, channels)
    refused = []
    for memory in _candidates(requested, processes.device):
        if needed is None:
            refused.append("no image of a sample has a readable size")
            break
        room = _room(memory, processes)
        key = None if shared is None else _identity(memory, split, stored, channels, processes.device)
        found = None if shared is None or key is None else shared.find(key)
        if found is not None:
            description = f"{_size(found, memory)}, as in an earlier run"
            return CacheChoice(memory=memory, transform=stored, cache=found, description=description)
        cache, seconds = None, time.perf_counter()
        if needed <= room.allowed:
            cache = _fill(memory, split, stored, channels, processes, room.allowed)
        if cache is not None:
            seconds = time.perf_counter() - seconds
            if shared is not None and key is not None:
                shared.keep(key, split, cache)
            return CacheChoice(
                memory=memory, transform=stored, cache=cache, description=_describe(cache, memory, room, seconds)
            )
        refused.append(f"about {binary_size(needed)} in {NAMES[memory]}, and {room.limit}")
    return _uncached(transform if is_new else stored, "; ".join(refused))  # a resumed run keeps its pixels


@dataclass(frozen=True)
class _Room:
    allowed: int  # bytes that the cache may take
    free: int
    limit: str  # in words


def _room(memory: Memory, processes: Processes) -> _Room:
    """Return what may be used on every rank: the smallest share among them."""
    free = devices.free_memory(processes.device) if memory == "gpu" else devices.available_memory()
    free = int(processes.all_reduce_min(float(free))[0])
    if memory == "gpu":
        return _Room(
            int(GPU_SHARE * free), free, f"at most {GPU_SHARE:.0%} of the free {binary_size(free)} may be used"
        )
    # the ranks of a host, each of which keeps all images: the order takes any of them to any
    here = int(processes.all_reduce_max(float(launch().local_world_size))[0])
    each = f", divided by {here} processes" if here > 1 else ""
    limit = f"at most {RAM_SHARE:.0%} of the free {binary_size(free)}{each} may be used"
    return _Room(int(RAM_SHARE * free / here), free, limit)


def _candidates(requested: Request, device: torch.device) -> list[Memory]:
    """Return the kinds of memory to try, in their order; host memory stands in for that of a GPU."""
    return ["gpu", "ram"] if requested in ("auto", "gpu") and device.type == "cuda" else ["ram"]


def _fill(
    memory: Memory,
    split: Split,
    transform: TrainTransform,
    channels: int,
    processes: Processes,
    allowed: int,
) -> ImageCache | None:
    """Decode the images to this memory; None, on every rank, if they need more memory than was estimated.

    Images for a GPU are decoded to host memory first, and must have room there, too.
    """
    budget = min(allowed, _room("ram", processes).allowed) if memory == "gpu" else allowed
    threads = devices.cores() // devices.processes_sharing_cores()  # nothing else computes yet
    progress = show_progress if processes.is_rank_zero else no_progress
    with devices.use_threads(1):  # of torch, under each of ours
        cache = fill_cache(split, transform, channels, budget=budget, threads=threads, progress=progress)
    if not processes.all_reduce_min(float(cache is not None))[0]:
        return None
    return to_gpu(cache, processes.device) if cache is not None and memory == "gpu" else cache


def to_gpu(cache: ImageCache, device: torch.device) -> ImageCache:
    """Return the cache in the memory of a GPU, where the Triton kernels crop it, or torch's operators."""
    if not TRITON:
        return cache.to(device)
    from vitkit.kernels.crop_resize_triton import crop_resize_on_gpu

    return cache.to(device, crop_resize_on_gpu)


def _uncached(transform: TrainTransform, reason: str) -> CacheChoice:
    description = f"none ({reason}): every image is decoded in each epoch"
    return CacheChoice(memory="no", transform=transform, cache=None, description=description)


def _describe(cache: ImageCache, memory: Memory, room: _Room, seconds: float) -> str:
    return f"{_size(cache, memory)} ({room.limit}); decoded once, in {seconds:.1f} s"


def _size(cache: ImageCache, memory: Memory) -> str:
    return f"{counted(len(cache.sizes), 'image')} in {NAMES[memory]}, {binary_size(cache.pixels.numel())}"


def _identity(
    memory: Memory, split: Split, transform: TrainTransform, channels: int, device: torch.device
) -> tuple[Any, ...]:
    """Return what tells whether two runs keep the same pixels in the same memory."""
    rows = hashlib.sha256(np.ascontiguousarray(split.rows).tobytes()).hexdigest()
    return memory, device, id(split.store), rows, channels, transform.preparation
