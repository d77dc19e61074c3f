"""Compiles every kernel for GPUs that are not here, and says what each takes. Run by test_compiles.py in a process of
its own: a compiler that fails may take its process along."""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vitkit.kernels import adam_triton as adam
from vitkit.kernels import attention_triton as attention
from vitkit.kernels import crop_resize_triton as crop_resize
from vitkit.kernels import gelu_triton as gelu
from vitkit.kernels import norm_backward_triton as norm_backward
from vitkit.kernels import norm_triton as norm
from vitkit.kernels import rotary_triton as rotary
from vitkit.kernels import sums_triton as sums
from vitkit.kernels import swiglu_triton as swiglu

BF16, FP32, FP8 = "*bf16", "*fp32", "*fp8e4nv"
HEAD = {"T": 197, "H": 12, "d": 64}

# kernel → types of what it is given by name, constants, and how it is launched
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "Adam": (
        adam.adam_kernel,
        {
            "addresses": "*i64",
            "rates": FP32,
            "scale": FP32,
            "tensors": "*i32",
            "starts": "*i64",
            "sizes": "*i64",
            "n": "i32",
        },
        {
            "BETA1": 0.9,
            "BETA2": 0.999,
            "EPS": 1e-8,
            "DECOUPLED": True,
            "LOW_PRECISION": adam.TRITON_DTYPES[torch.bfloat16],
            "CHUNK": adam.CHUNK,
            "STEP": adam.STEP,
            "num_warps": adam.WARPS,
        },
    ),
    "attention, queries": (
        attention.query_backward_kernel,
        {
            "qkv": BF16,
            "mixed": BF16,
            "grad": BF16,
            "lse": FP32,
            "deltas": FP32,
            "out": BF16,
            "sums": FP32,
            "tiles": "i32",
        },
        {**HEAD, "LAST": 16, "TAIL": 16, **attention.QUERY_TILES},
    ),
    "attention, keys": (
        attention.key_backward_kernel,
        {
            "qkv": BF16,
            "grad": BF16,
            "lse": FP32,
            "deltas": FP32,
            "out": BF16,
            "sums": FP32,
            "skipped": "i32",
            "tiles": "i32",
        },
        {**HEAD, "N": 64, "STEP": 64, "FULL": True, "TAIL": 16, **attention.KEY_TILES},
    ),
    "attention, the last keys": (
        attention.key_backward_kernel,
        {
            "qkv": BF16,
            "grad": BF16,
            "lse": FP32,
            "deltas": FP32,
            "out": BF16,
            "sums": FP32,
            "skipped": "i32",
            "tiles": "i32",
        },
        {**HEAD, "N": 16, "STEP": 64, "FULL": False, "TAIL": 16, **attention.TAIL_KEYS},
    ),
    "GELU": (
        gelu.forward_kernel,
        {"before": BF16, "out": BF16, "count": "i32"},
        {"KIND": "exact", "BLOCK": 2048, "num_warps": 4},
    ),
    "GELU, backward": (
        gelu.backward_kernel,
        {"before": BF16, "grad": BF16, "grad_before": BF16, "after": BF16, "sums": FP32, "R": "i32", "C": "i32"},
        {
            "KIND": "tanh",
            "ROWS": gelu.TILE_ROWS,
            "COLUMNS": gelu.TILE_COLUMNS,
            "ROWS_PER_PROGRAM": gelu.PROGRAM_ROWS,
            "num_warps": 4,
        },
    ),
    "norm": (
        norm.norm_kernel,
        {
            "stream": BF16,
            "branch": BF16,
            "shift": FP32,
            "weight": BF16,
            "bias": BF16,
            "total": BF16,
            "out": BF16,
            "scales": BF16,
            "R": "i32",
            "D": "i32",
            "eps": "fp32",
        },
        {"ADD": False, "SHIFT": True, "QUANTIZE": False, "COLUMNS": 1024, **norm.NORM_TILES},
    ),
    "norm, nothing added": (
        norm.norm_kernel,
        {
            "stream": BF16,
            "branch": BF16,
            "shift": BF16,
            "weight": BF16,
            "bias": BF16,
            "total": BF16,
            "out": BF16,
            "scales": BF16,
            "R": "i32",
            "D": "i32",
            "eps": "fp32",
        },
        {"ADD": False, "SHIFT": False, "QUANTIZE": False, "COLUMNS": 1024, **norm.NORM_TILES},
    ),
    "norm, backward": (
        norm_backward.backward_kernel,
        {
            "x_in": BF16,
            "weight": BF16,
            "grad_residual": BF16,
            "grad_normed": BF16,
            "out": BF16,
            "sums": FP32,
            "R": "i32",
            "D": "i32",
        },
        {"EPS": 1e-6, "COLUMNS": 1024, **norm_backward.FULL},
    ),
    "norm, backward, of 768": (
        norm_backward.backward_kernel,
        {
            "x_in": BF16,
            "weight": BF16,
            "grad_residual": BF16,
            "grad_normed": BF16,
            "out": BF16,
            "sums": FP32,
            "R": "i32",
            "D": "i32",
        },
        {"EPS": 1e-6, "COLUMNS": 1024, **norm_backward.PADDED},
    ),
    "norm, fp8": (
        norm.norm_kernel,
        {
            "stream": BF16,
            "branch": BF16,
            "shift": BF16,
            "weight": BF16,
            "bias": BF16,
            "total": BF16,
            "out": FP8,
            "scales": FP32,
            "R": "i32",
            "D": "i32",
            "eps": "fp32",
        },
        {"ADD": True, "SHIFT": False, "QUANTIZE": True, "COLUMNS": 1024, **norm.NORM_TILES},
    ),
    "rotary": (
        rotary.rotate_kernel,
        {"qkv": BF16, "cos": FP32, "sin": FP32, "sums": FP32, "R": "i32", "T": "i32", "special": "i32"},
        {
            "H": 12,
            "d": 64,
            "STEP": 1,
            "DISTANCE": 32,
            "INVERSE": True,
            "PAIRS": 32,
            "num_warps": 4,
            "ROWS": rotary.TILE_ROWS,
            "ROWS_PER_PROGRAM": rotary.PROGRAM_ROWS,
        },
    ),
    "crop and resize, across": (
        crop_resize.across_kernel,
        {
            **dict.fromkeys(("starts", "strides", "heights", "widths", "first"), "*i64"),
            "pixels": "*u8",
            "between": "*u8",
            "weights": "*i32",
            "precision": "*i32",
            **dict.fromkeys(("H", "width", "C", "K"), "i32"),
        },
        crop_resize.TILES,
    ),
    "crop and resize, down": (
        crop_resize.down_kernel,
        {
            "between": "*u8",
            "heights": "*i64",
            "first": "*i64",
            "weights": "*i32",
            "precision": "*i32",
            "flipped": "*u8",
            "out": "*u8",
            **dict.fromkeys(("H", "height", "width", "C", "K"), "i32"),
        },
        crop_resize.TILES,
    ),
    "SwiGLU": (
        swiglu.forward_kernel,
        {"gate_up": BF16, "out": BF16, "R": "i32", "M": "i32"},
        {"ROWS": swiglu.FORWARD_ROWS, "COLUMNS": swiglu.TILE_COLUMNS, "num_warps": 4},
    ),
    "SwiGLU, backward": (
        swiglu.backward_kernel,
        {"gate_up": BF16, "grad": BF16, "grad_gate_up": BF16, "after": BF16, "sums": FP32, "R": "i32", "M": "i32"},
        {
            "ROWS": swiglu.TILE_ROWS,
            "COLUMNS": swiglu.TILE_COLUMNS,
            "ROWS_PER_PROGRAM": swiglu.PROGRAM_ROWS,
            "num_warps": 4,
        },
    ),
    "quick GELU": (
        gelu.forward_kernel,
        {"before": BF16, "out": BF16, "count": "i32"},
        {"KIND": "quick", "BLOCK": 2048, "num_warps": 4},
    ),
    "sums": (
        sums.sum_kernel,
        {"x": BF16, "sums": FP32, "R": "i32", "C": "i32"},
        {"ROWS": sums.TILE_ROWS, "COLUMNS": sums.TILE_COLUMNS, "ROWS_PER_PROGRAM": sums.PROGRAM_ROWS, "num_warps": 4},
    ),
    "fp8": (
        norm.quantize_kernel,
        {"before": BF16, "out": FP8, "scales": FP32, "R": "i32", "M": "i32"},
        {"GELU": "tanh", "COLUMNS": 4096, **norm.QUANTIZE_TILES},
    ),
}


def main(ability: int) -> None:
    for name, (kernel, types, settings) in KERNELS.items():
        if FP8 in types.values() and ability < 90:
            continue
        launched = {key: settings[key] for key in ("num_warps", "num_stages") if key in settings}
        constants = {(kernel.arg_names.index(key),): value for key, value in settings.items() if key not in launched}
        signature = {key: types.get(key, "constexpr") for key in kernel.arg_names}
        made = triton.compile(
            ASTSource(kernel, signature, constants), target=GPUTarget("cuda", ability, 32), options=launched
        )
        print(f"{name}: {made.metadata.shared} bytes on chip, {len(made.asm['cubin'])} of code")


if __name__ == "__main__":
    main(int(sys.argv[1]))
