"""A plain loop with timm: fine-tune Ti/16 on a folder, the images in GPU memory; a peer for `whole_command.py`.

    python benchmarks/timm_loop.py DATA [--image 224] [--steps 500] [--batch 512] [--lr 0.01] [--decoders 16]

DATA has trainval/CLASS/*.jpg and test/CLASS/*.jpg. Every image is decoded once with Pillow, resized to a short side of
8/7 of the input (smaller ones are enlarged) and cut to a square that stays in GPU memory as uint8. Steps are bf16
autocast, SGD with momentum and a cosine schedule after 100 steps of warm-up, a random resized crop and flip for each
image in one grid_sample; the weights are the Ti/16 that is inside vitkit. One accuracy on the test images at the end.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--decoders", type=int, default=16)
    options = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    classes = sorted(path.name for path in (options.data / "trainval").iterdir())
    side = options.image * 8 // 7
    images, labels = split(options.data / "trainval", classes, side, options.decoders, device)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=len(classes)).to(device)
    load_weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    order = torch.empty(0, dtype=torch.long)
    for step in range(options.steps):
        rate = min(step / 100, 1) * (1 + math.cos(math.pi * step / options.steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate
        while len(order) < options.batch:
            order = torch.cat([order, torch.randperm(len(images))])
        chosen, order = order[: options.batch].to(device), order[options.batch :]
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(normalise(crop(images[chosen].float(), options.image))), labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    images, labels = split(options.data / "test", classes, side, options.decoders, device)
    edge = (side - options.image) // 2
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        correct = sum(
            int((model(normalise(part.float()[:, :, edge:-edge, edge:-edge])).argmax(1) == truth).sum())
            for part, truth in zip(images.split(512), labels.split(512), strict=True)
        )
    print(f"score     {correct / len(images):.2%} top-1 on {len(images):,} images")


def split(folder: Path, classes: list[str], side: int, decoders: int, device: torch.device) -> tuple[Tensor, Tensor]:
    paths = [(path, number) for number, name in enumerate(classes) for path in sorted((folder / name).glob("*.jpg"))]

    def decode(path: Path) -> np.ndarray:
        image = Image.open(path).convert("RGB")
        scale = side / min(image.size)
        wide, high = (max(round(length * scale), side) for length in image.size)
        image = image.resize((wide, high), Image.Resampling.BICUBIC)
        left, top = (wide - side) // 2, (high - side) // 2
        return np.asarray(image.crop((left, top, left + side, top + side)))

    with ThreadPoolExecutor(decoders) as pool:
        pixels = np.stack(list(pool.map(lambda item: decode(item[0]), paths)))
    labels = torch.tensor([number for _, number in paths], device=device)
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2), labels


def crop(images: Tensor, size: int) -> Tensor:
    """Take a random resized crop of 5 to 100 % of the area, flipped half of the time, in one grid_sample."""
    count, device = len(images), images.device
    area = torch.empty(count, device=device).uniform_(0.05, 1).sqrt()
    ratio = torch.empty(count, device=device).uniform_(math.log(3 / 4), math.log(4 / 3)).exp().sqrt()
    wide, high = (area * ratio).clamp(max=1), (area / ratio).clamp(max=1)
    flip = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    x, y = ((2 * torch.rand(count, device=device) - 1) * (1 - extent) for extent in (wide, high))
    zero = torch.zeros_like(x)
    matrices = torch.stack([torch.stack([wide * flip, zero, x], 1), torch.stack([zero, high, y], 1)], 1)
    grid = F.affine_grid(matrices, [count, 3, size, size], align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def normalise(images: Tensor) -> Tensor:
    return images / 127.5 - 1


def load_weights(model: torch.nn.Module) -> None:
    """Load the Ti/16 that is inside vitkit, but for its head, with timm's names."""
    import tempfile

    from safetensors.torch import load_file

    import vitkit

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timm"
        vitkit.save(vitkit.load("ti16"), path, format="timm")
        weights = {
            name: tensor
            for name, tensor in load_file(path / "model.safetensors").items()
            if not name.startswith("head.")
        }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) != {"head.weight", "head.bias"}:
        raise SystemExit(f"the weights do not fit: {missing}, {unexpected}")


if __name__ == "__main__":
    main()
