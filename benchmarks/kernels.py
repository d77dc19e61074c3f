"""Each hand-written kernel compared with plain torch: milliseconds, and the speed-up.

    python benchmarks/kernels.py [--batch 256] [--tokens 197] [--heads 12] [--tiles] [--json]

The plain version is torch's own operators, compiled together by torch.compile where that helps. Bytes are those that
have to be read and written, so TB/s compared with that of a copy shows how much is left to gain. `--tiles` tries other
tile shapes of attention, for GPUs that these were not chosen on. Needs a GPU and Triton.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import forward
from vitkit.kernels.attention import sdpa
from vitkit.kernels.dispatch import TRITON
from vitkit.kernels.linear import sum_rows
from vitkit.model.attention import split_heads
from vitkit.model.mlp import apply_swiglu
from vitkit.model.rotary import turn
from vitkit.train.fused_adamw import FusedAdamW
from vitkit.train.mixed_precision import Bf16Copies

Work = Callable[[], Any]
ROUNDS = 30


@dataclass(frozen=True)
class Case:
    name: str
    plain: Work
    ours: Work
    moved: int  # bytes that have to be read and written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=197)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (torch.cuda.is_available() and TRITON):
        sys.exit("benchmarks/kernels.py: needs a CUDA device and Triton")
    torch.manual_seed(0)
    large = torch.empty(2**28, dtype=torch.bfloat16, device="cuda")
    copies = 2 * large.nbytes / milliseconds(large.clone) / 1e9
    del large
    rows = [
        {
            "name": case.name,
            "plain_ms": (plain := milliseconds(case.plain)),
            "ours_ms": (ours := milliseconds(case.ours)),
            "times": plain / ours,
            "ours_tb_per_second": case.moved / ours / 1e9,
        }
        for case in cases(options)
    ]
    tiles = [asdict(one) for one in time_tiles(options)] if options.tiles else []
    if options.json:
        print(
            json.dumps(
                {
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "copy_tb_per_second": copies,
                    "kernels": rows,
                    "tiles": tiles,
                },
                indent=2,
            )
        )
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a copy moves {copies:.2f} TB/s")
    for row in rows:
        print(
            f"{row['name']:<44} {row['plain_ms']:.4f} ms → {row['ours_ms']:.4f}   x {row['times']:.2f}   "
            f"{row['ours_tb_per_second']:.2f} TB/s"
        )
    for one in tiles:
        print(f"{one['kernel']:<36} {one['shape']}   {one['ns_each']:.0f} ns a token")


def cases(options: argparse.Namespace) -> list[Case]:
    return [
        attention(options),
        *gelus(options),
        *norms(options),
        norm_backward(options),
        crops(options),
        *swiglus(options),
        *rotary(options),
        bias(options),
        *products(options),
        adam(options),
    ]


def attention(options: argparse.Namespace) -> Case:
    from vitkit.kernels.attention_triton import attention_backward

    grad, qkv, mixed, logs = attended(options)
    packed = qkv.clone().requires_grad_()
    out = sdpa(*split_heads(packed, options.heads)).transpose(1, 2).flatten(2)

    def plain() -> Tensor:
        (qkv_grad,) = torch.autograd.grad(out, packed, grad, retain_graph=True)
        return qkv_grad.flatten(0, 1).sum(dim=0, dtype=torch.float32)

    def ours() -> Tensor:
        return attention_backward(grad, qkv, mixed, logs)[1].sum(dim=0)

    return Case("attention, backward to packed qkv and bias", plain, ours, 2 * qkv.nbytes + 2 * grad.nbytes)


def attended(options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a gradient, packed qkv, the output of attention and the log-sum-exp of its logits."""
    shape = (options.batch, options.tokens, 64 * options.heads)
    qkv, grad = random(*shape[:2], 3 * shape[2]), random(*shape)
    outputs = torch.ops.aten._scaled_dot_product_cudnn_attention(*split_heads(qkv, options.heads), None, True)
    return grad, qkv, outputs[0].transpose(1, 2).flatten(2), outputs[1].squeeze(-1)


def gelus(options: argparse.Namespace) -> list[Case]:
    from vitkit.kernels.gelu_triton import gelu, gelu_backward

    before = random(options.batch * options.tokens, 256 * options.heads)
    grad = torch.randn_like(before)

    def backward() -> tuple[Tensor, Tensor, Tensor]:
        below = torch.ops.aten.gelu_backward(grad, before, approximate="tanh")
        return below, F.gelu(before, approximate="tanh"), below.sum(dim=0, dtype=torch.float32)

    compiled = torch.compile(backward)
    return [
        Case("GELU, tanh", lambda: F.gelu(before, approximate="tanh"), lambda: gelu(before, "tanh"), 2 * before.nbytes),
        Case("GELU, erf", lambda: F.gelu(before), lambda: gelu(before, "exact"), 2 * before.nbytes),
        Case(
            "GELU, backward, its output, bias", compiled, lambda: gelu_backward(grad, before, "tanh"), 4 * before.nbytes
        ),
    ]


def crops(options: argparse.Namespace) -> Case:
    """Random crops of a batch, from images of 500 x 400 that are in GPU memory."""
    from vitkit.data.crop_resize import Crops, crop_resize
    from vitkit.kernels.crop_resize_triton import crop_resize_on_gpu

    side, count = (400, 500), options.batch
    pixels = torch.randint(0, 256, (count * side[0] * side[1] * 3,), dtype=torch.uint8, device="cuda")
    heights = torch.randint(100, side[0] + 1, (count,), device="cuda")
    widths = torch.randint(100, side[1] + 1, (count,), device="cuda")
    boxes = Crops(
        start=torch.arange(count, device="cuda") * side[0] * side[1] * 3,
        stride=torch.full((count,), side[1] * 3, device="cuda"),
        height=heights,
        width=widths,
        flipped=torch.rand(count, device="cuda") < 0.5,
        most=(int(heights.max()), int(widths.max())),
    )
    moved = int((heights * (widths + 2 * 224)).sum()) * 3 + count * 224 * 224 * 3
    return Case(
        "crop and resize",
        lambda: crop_resize(pixels, boxes, (224, 224), 3),
        lambda: crop_resize_on_gpu(pixels, boxes, (224, 224), 3),
        moved,
    )


def swiglus(options: argparse.Namespace) -> list[Case]:
    from vitkit.kernels.swiglu_triton import swiglu, swiglu_backward

    gate_up = random(options.batch * options.tokens, 256 * options.heads)
    grad = random(len(gate_up), 128 * options.heads)

    def backward() -> tuple[Tensor, Tensor, Tensor]:
        gate, up = gate_up.chunk(2, dim=-1)
        below = torch.cat([torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)], dim=-1)
        return below, apply_swiglu(gate_up), below.sum(dim=0, dtype=torch.float32)

    plain, moved = torch.compile(lambda: apply_swiglu(gate_up)), gate_up.nbytes + grad.nbytes
    return [
        Case("SwiGLU", plain, lambda: swiglu(gate_up), moved),
        Case(
            "SwiGLU, backward, its output, bias",
            torch.compile(backward),
            lambda: swiglu_backward(grad, gate_up),
            moved + gate_up.nbytes + grad.nbytes,
        ),
    ]


def rotary(options: argparse.Namespace) -> list[Case]:
    """Queries and keys of the patches turned inside of a packed projection, after which attention reads it."""
    from vitkit.kernels.rotary_triton import rotate

    heads = options.heads
    qkv = random(options.batch, options.tokens, 3 * 64 * heads)
    angles = torch.rand(options.tokens - 5, 64, device="cuda")  # a class token and four registers are not turned
    tables = angles.cos(), angles.sin()

    def forwards() -> tuple[Tensor, Tensor]:
        query, key, _ = split_heads(qkv, heads)
        return turn(query, *tables, "half"), turn(key, *tables, "half")

    def backwards() -> tuple[Tensor, Tensor]:
        both = qkv[..., : 128 * heads].unflatten(-1, (2 * heads, -1)).transpose(1, 2)
        back = turn(both, tables[0], -tables[1], "half").transpose(1, 2).flatten(2)
        return torch.cat([back, qkv[..., 128 * heads :]], dim=-1), back.sum(dim=(0, 1), dtype=torch.float32)

    moved = 4 * qkv.nbytes // 3
    return [
        Case("rotary positions", torch.compile(forwards), lambda: rotate(qkv, *tables, heads, False, False), moved),
        Case(
            "rotary positions, backward, bias",
            torch.compile(backwards),
            lambda: rotate(qkv, *tables, heads, False, True),
            moved,
        ),
    ]


def norms(options: argparse.Namespace) -> list[Case]:
    width = 64 * options.heads
    stream, shift = random(options.batch * options.tokens, width), torch.randn(width, device="cuda")
    branch, layer = torch.randn_like(stream), torch.nn.LayerNorm(width, device="cuda", dtype=torch.bfloat16)
    layer.requires_grad_(False)
    hidden = random(len(stream), 4 * width)

    def normed(x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), (width,), layer.weight.float(), layer.bias.float(), layer.eps)

    def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
        scales = x.abs().amax(dim=1, keepdim=True).div(448).clamp_min(1e-12)
        return (x / scales).to(torch.float8_e4m3fn), scales

    plain = torch.compile(lambda: normed(stream + shift).bfloat16())
    plain_rounded = torch.compile(lambda: (stream + branch, rounded(normed(stream + branch))))
    plain_gelu = torch.compile(lambda: rounded(F.gelu(hidden.float(), approximate="tanh")))
    return [
        Case(
            "LayerNorm of stream + shift",
            plain,
            lambda: forward.shifted_layer_norm(stream, shift, layer),
            2 * stream.nbytes,
        ),
        Case(
            "residual, LayerNorm, fp8",
            plain_rounded,
            lambda: forward.add_layer_norm_fp8(stream, branch, layer),
            3 * stream.nbytes + stream.nbytes // 2,
        ),
        Case(
            "GELU, fp8",
            plain_gelu,
            lambda: forward.activate_fp8(hidden, "tanh"),
            hidden.nbytes + hidden.nbytes // 2,
        ),
    ]


def bias(options: argparse.Namespace) -> Case:
    rows = random(options.batch * options.tokens, 64 * options.heads)
    return Case("gradient of a bias", lambda: rows.sum(dim=0), lambda: sum_rows(rows), rows.nbytes)


def norm_backward(options: argparse.Namespace) -> Case:
    from vitkit.kernels.norm_backward_triton import norm_backward as fused

    rows, width = options.batch * options.tokens, 64 * options.heads
    x, past, through, weight = random(rows, width), random(rows, width), random(rows, width), random(width)
    held = [tensor.clone().requires_grad_() for tensor in (x, weight, torch.zeros_like(weight))]
    normed = F.layer_norm(held[0], (width,), held[1], held[2], 1e-6)

    def plain() -> Tensor:
        x_grad, _, _ = torch.autograd.grad(normed, held, through, retain_graph=True)
        return x_grad + past

    return Case(
        "LayerNorm, backward, with the residual", plain, lambda: fused(past, through, x, weight, 1e-6), 4 * x.nbytes
    )


def adam(options: argparse.Namespace) -> Case:
    """AdamW of twelve blocks from bf16 gradients to bf16 weights: with torch's casts and fused."""
    width = 64 * options.heads
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (width,), (width,)] * 12
    sides = [[torch.nn.Parameter(torch.randn(*shape, device="cuda")) for shape in shapes] for _ in range(2)]
    theirs, ours = (torch.optim.AdamW(weights, fused=True) for weights in sides)
    grads = [torch.randn_like(weight, dtype=torch.bfloat16) for weight in sides[0]]
    scale, copies = torch.ones((), device="cuda"), Bf16Copies()
    fused_step = FusedAdamW(copies, ours)
    copies(sides[1])
    for weight, grad in zip(sides[1], grads, strict=True):
        weight.grad = grad
    for weight in sides[0]:
        weight.grad = torch.empty_like(weight)
    theirs.grad_scale = scale  # type: ignore[attr-defined]
    bf16_copies = [torch.empty_like(grad) for grad in grads]

    def plain() -> None:
        torch._foreach_copy_([weight.grad for weight in sides[0]], grads)
        theirs.step()
        torch._foreach_copy_(bf16_copies, [weight.detach() for weight in sides[0]])

    return Case(
        "Adam, twelve blocks", plain, lambda: fused_step(scale), 28 * sum(weight.numel() for weight in sides[0])
    )


def products(options: argparse.Namespace) -> list[Case]:
    """Epilogues of cuBLAS compared with kernels of their own."""
    width = 64 * options.heads
    rows, hidden = random(options.batch * options.tokens, width), random(options.batch * options.tokens, 4 * width)
    up, down = random(4 * width, width) / width**0.5, random(width, 4 * width) / (4 * width) ** 0.5
    bias, down_bias, stream = random(4 * width), random(width), torch.randn_like(rows)
    moved = rows.nbytes + hidden.nbytes
    return [
        Case(
            "product, GELU",
            lambda: F.gelu(torch.addmm(bias, rows, up.t()), approximate="tanh"),
            lambda: forward.linear_activation(rows, up, bias, "tanh"),
            moved,
        ),
        Case(
            "product into the stream",
            lambda: stream + torch.addmm(down_bias, hidden, down.t()),
            lambda: stream.addmm_(hidden, down.t()),
            moved + rows.nbytes,
        ),
    ]


@dataclass(frozen=True)
class Tile:
    kernel: str
    shape: dict[str, int]
    ns_each: float  # token: shapes cover different numbers of tokens


def time_tiles(options: argparse.Namespace) -> list[Tile]:
    """Return the shapes of each kernel, fastest first."""
    from vitkit.kernels import attention_triton as own

    grad, qkv, mixed, logs = attended(options)
    deltas, out = torch.empty_like(logs), torch.empty_like(qkv)
    timings = []
    for query_side, programs, inner, stages in itertools.product((True, False), (16, 64, 128), (32, 64), (1, 2)):
        shape = {"T": options.tokens, "H": options.heads, "d": 64, "REST": own.rest(options.tokens, inner)}
        last, filled = programs == 16, options.tokens // programs
        if not filled or (last and (query_side or own.rest(options.tokens, own.TILE) != 16)):
            continue  # only the key kernel has a separate launch for the last tokens
        tiles = -(-options.tokens // programs) if query_side else 1 if last else filled
        sums = torch.empty(options.batch * -(-options.tokens // programs), qkv.shape[2], device="cuda")
        settings = {"num_warps": max(programs // 16, 1), "num_stages": stages}
        settings |= {"M": programs, "N": inner} if query_side else {"M": inner, "N": programs}
        if query_side:
            kernel, arguments = own.query_backward_kernel, (qkv, mixed, grad, logs, deltas, out, sums, tiles)
            shape |= {"LAST": own.rest(options.tokens, programs)}
        else:
            kernel, arguments = own.key_backward_kernel, (qkv, grad, logs, deltas, out, sums, filled * last, tiles)
            shape |= {"EACH": programs, "WHOLE": not last}
        tokens = options.tokens if query_side else options.tokens % own.TILE if last else filled * programs
        launch = partial(kernel[(options.batch * options.heads * tiles,)], *arguments, **shape, **settings)
        try:
            elapsed = milliseconds(launch)
        except Exception as error:  # out of registers or shared memory
            print(f"{kernel.__name__} {settings}: {type(error).__name__}", file=sys.stderr)
            continue
        timings.append(Tile(f"{kernel.__name__}{', the last few' * last}", settings, 1e6 * elapsed / tokens))
    return sorted(timings, key=lambda one: (one.kernel, one.ns_each))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def milliseconds(work: Work) -> float:
    for _ in range(3):
        work()
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS)] for _ in range(2))
    for start, end in zip(starts, ends, strict=True):
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))


if __name__ == "__main__":
    main()
