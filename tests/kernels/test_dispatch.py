"""The kernels apply on supported GPUs only, and everything works without them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.model.kinds import make
from vitkit.compute.inference import supported_precisions
from vitkit.kernels.dispatch import TRITON, operator, operator_or_function, triton_applies
from vitkit.predict import engines


def test_the_kernels_do_not_apply_on_a_cpu():
    assert not TRITON
    assert not triton_applies(torch.zeros(2, dtype=torch.bfloat16))


def test_a_cuda_build_of_torch_without_triton_uses_torchs_own_kernels():
    code = """
import sys
sys.modules["triton"] = None
import torch
torch.version.cuda = "13.0"
import vitkit
from vitkit.compute.inference import for_inference
from vitkit.kernels.dispatch import TRITON
assert not TRITON
model = vitkit.create("mu/8", image=32, classes=5)
model(torch.rand(2, 3, 32, 32)).sum().backward()
for precision in ("bf16", "fp8"):
    assert for_inference(model, precision)(torch.rand(2, 3, 32, 32)).shape == (2, 5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_with_triton_nothing_of_torchs_compiler_is_imported_before_a_graph_is_compiled():
    pytest.importorskip("triton")
    code = """
import sys
import torch
torch.version.cuda = "13.0"
import vitkit.train.trainer
from vitkit.kernels import attention_triton, crop_resize_triton, gelu_triton, norm_backward_triton, swiglu_triton
from vitkit.kernels.dispatch import TRITON
assert TRITON
slow = [name for name in ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "sympy") if name in sys.modules]
assert not slow, slow
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_compiled_graph_calls_the_custom_operator_and_eager_code_the_function():
    @operator
    def tripled_in_a_test(x: torch.Tensor, launch: Any = None) -> torch.Tensor:
        return 3 * x

    def forward(x: torch.Tensor) -> torch.Tensor:
        return operator_or_function(tripled_in_a_test)(x).sin()

    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    x = torch.randn(4)
    assert operator_or_function(tripled_in_a_test) is tripled_in_a_test
    assert torch.equal(torch.compile(forward, backend=backend, fullgraph=True)(x), (3 * x).sin())
    assert "vitkit.tripled_in_a_test" in [str(node.target) for node in graphs[0].graph.nodes]


@pytest.mark.parametrize(
    ("capability", "precisions", "offered"),
    [
        ((7, 5), ("fp32",), []),
        ((8, 0), ("fp32", "bf16"), ["bf16"]),
        ((8, 9), ("fp32", "bf16"), ["bf16"]),
        ((9, 0), ("fp32", "bf16", "fp8"), ["bf16", "fp8 matrices"]),
    ],
)
def test_a_gpu_is_offered_only_the_precisions_that_it_supports(capability, precisions, offered, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert supported_precisions(torch.device("cuda")) == precisions
    candidates = engines.engine_candidates(make("token"), torch.device("cuda"))
    assert [candidate.description for candidate in candidates] == offered


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_without_triton_gives_the_same_results(monkeypatch):
    from vitkit.compute.inference import for_inference
    from vitkit.train.mixed_precision import MixedPrecision
    from vitkit.train.objectives.labels import Labels

    model = make("token").cuda()
    images = torch.rand(4, 3, 32, 32, device="cuda")
    objective = Labels(model, multilabel=False, smoothing=0.0, weights=None).cuda()
    results = []
    for available in (TRITON, False):
        monkeypatch.setattr("vitkit.kernels.dispatch.TRITON", available)
        loss, _ = MixedPrecision(objective)(images, torch.eye(10, device="cuda")[:4])
        loss.backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        model.zero_grad()
        with torch.inference_mode():
            results.append((loss.detach(), gradient, for_inference(model, "bf16")(images)))
    for fused, plain in zip(*results, strict=True):
        assert (fused - plain).norm() < 0.05 * plain.norm()
