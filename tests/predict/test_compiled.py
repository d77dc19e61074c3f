"""Compiled models give the same logits as eager ones."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tests.model.kinds import images_for, make
from vitkit.predict.engines import CompiledModel

GPU = pytest.param(
    "inductor", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@pytest.mark.parametrize("backend", ["aot_eager", GPU])
def test_a_compiled_model_gives_the_same_logits_at_more_batch_sizes_than_torch_recompiles_by_default(backend: str):
    model = make("gap").to("cuda" if backend == "inductor" else "cpu")
    compiled = CompiledModel(model)
    compiled.compiled = torch.compile(model, dynamic=False, fullgraph=True, backend=backend)
    with torch.inference_mode():
        for batch in (2, 1, 3) if backend == "inductor" else range(1, 10):
            images = images_for(model, batch).to(next(model.parameters()).device)
            assert_close(compiled(images), model(images), atol=1e-4, rtol=1e-4)
