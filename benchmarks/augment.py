"""The time of augmenting a batch, stage by stage, compared with kornia where it is installed.

    python -m benchmarks.augment [--batch 256] [--image 224] [--repeats 30] [--json]

Each figure is a median over calls, each with new indices, so that no draw is lucky. On a GPU there are three:
`device` is between CUDA events while earlier work keeps the GPU busy, as a training step does, so that the kernels wait
in its queue: what augmentation adds to a step. `idle` is the same on an idle GPU, `host` until the call returns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vitkit.data.augment import Augment, augment, mix

FULL = Augment(randaugment=(2, 9), erase=0.25, mixup=0.2, cutmix=1.0)
STAGES = {
    "scale bytes": Augment(),
    "RandAugment(2, 9)": Augment(randaugment=(2, 9)),
    "erase": Augment(erase=0.25),
    "RandAugment + erase": Augment(randaugment=(2, 9), erase=0.25),
}


def ours(images: Tensor, targets: Tensor) -> Iterator[tuple[str, Callable[[int], object]]]:
    def stage(settings: Augment, images: Tensor) -> Callable[[int], object]:
        return lambda call: augment(images, _indices(call, len(images)), settings, seed=0, epoch=0)

    floats = images.float() / 255
    for name, settings in STAGES.items():
        yield name, stage(settings, images if name == "scale bytes" else floats)
    yield "mixup", lambda call: mix(floats, targets, Augment(mixup=0.2), seed=0, step=call, rank=0)
    yield "cutmix", lambda call: mix(floats, targets, Augment(cutmix=1.0), seed=0, step=call, rank=0)
    yield (
        "everything, from bytes",
        lambda call: mix(
            augment(images, _indices(call, len(images)), FULL, seed=0, epoch=0),
            targets,
            FULL,
            seed=0,
            step=call,
            rank=0,
        ),
    )


def kornias(images: Tensor) -> Iterator[tuple[str, Callable[[int], object]]]:
    try:
        import kornia.augmentation as K
        from kornia.augmentation.auto import RandAugment
    except ImportError:
        return
    floats = images.float() / 255
    for name, transform in (
        ("RandAugment(2, 9)", RandAugment(2, 9)),
        ("erase", K.RandomErasing(p=0.25)),
    ):
        yield f"kornia {name}", lambda call, transform=transform: transform(floats)


def measure(call: Callable[[int], object], repeats: int, gpu: bool) -> dict[str, float]:
    for warm_up in range(3):
        call(warm_up)
    if not gpu:
        return {"host": statistics.median(_timed(call, repeat, None)["host"] for repeat in range(repeats))}
    work = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    idle = [_timed(call, repeat, None) for repeat in range(repeats)]
    queued = [_timed(call, repeat, work) for repeat in range(repeats)]
    return {
        "device": statistics.median(times["device"] for times in queued),
        "idle": statistics.median(times["device"] for times in idle),
        "host": statistics.median(times["host"] for times in idle),
    }


def _timed(call: Callable[[int], object], repeat: int, work: Tensor | None) -> dict[str, float]:
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(15 if work is not None else 0):  # some 20 ms, several times what the host needs for a call
            torch.mm(work, work)
        start.record()
    began = time.perf_counter()
    call(repeat)
    times = {"host": (time.perf_counter() - began) * 1e3}
    if gpu:
        end.record()
        end.synchronize()
        times["device"] = start.elapsed_time(end)
    return times


def _indices(call: int, count: int) -> Tensor:
    return torch.arange(call * count, (call + 1) * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    # coarse noise: flat areas and repeated shades, as photos have; equalize's counting is slowest on those
    coarse = torch.rand(options.batch, 3, 14, 14, device=device)
    images = torch.nn.functional.interpolate(coarse, (options.image,) * 2, mode="bilinear").mul(255).byte()
    targets = torch.eye(1000, device=device)[torch.arange(options.batch, device=device) % 1000]
    results = {name: measure(call, options.repeats, gpu) for name, call in (*ours(images, targets), *kornias(images))}
    machine = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} thread(s)"
    if options.json:
        print(
            json.dumps(
                {
                    "device": machine,
                    "torch": torch.__version__,
                    "batch": options.batch,
                    "image": options.image,
                    "results": results,
                }
            )
        )
        return
    print(f"{options.batch} images of {options.image} px on {machine}, torch {torch.__version__}")
    for name, figures in results.items():
        print(f"{name:<36}" + "   ".join(f"{kind} {value:7.2f} ms" for kind, value in figures.items()))


if __name__ == "__main__":
    main()
