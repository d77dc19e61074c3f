"""Random combinations of options: every way to compute a model agrees with it, or declines by name."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitkit
from tests.model import reference
from tests.model.kinds import images_for, randomise
from vitkit.compute import fused_vit
from vitkit.cost import cost
from vitkit.errors import ConfigError
from vitkit.kernels.fuse import fuse
from vitkit.model.build import build
from vitkit.model.config import from_dict, to_dict
from vitkit.model.variants import configure
from vitkit.model.vit import VisionTransformer

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])

CHOICES: dict[str, list[Any]] = {
    "positions": ["none", "1d", "2d", "sincos", "sincos1d", "relative"],
    "inject": ["stem", "every", "shared"],
    "rotary": ["none", "centred", "index"],
    "rotary_base": [100.0, 10_000.0],
    "rotary_layout": ["half", "interleaved"],
    "pool": ["token", "gap", "gap-norm", "token-gap", "attention"],
    "class_token": [True, False],
    "class_position": [True, False],
    "distillation": ["none", "token", "heads"],
    "registers": [0, 1, 3],
    "representation": [None, 12],
    "projection": [None, 20],
    "norm": ["pre", "post"],
    "ln_pre": [False, True],
    "axial": [False, True],
    "query_bias": [True, False],
    "key_bias": [True, False],
    "value_bias": [True, False],
    "swiglu": [False, True],
    "gelu": ["tanh", "exact", "quick"],
    "layer_scale": [None, 0.5],
    "patch_bias": [True, False],
    "image": [(16, 16), (16, 24)],
    "classes": [0, 5],
}


@st.composite
def models(draw: st.DrawFn) -> VisionTransformer:
    """Draw a value of every option, in random order, and leave out those that contradict the ones before."""
    options: dict[str, Any] = {"image": (16, 16), "classes": 5, "width": 16, "mlp": 24}
    for name in draw(st.permutations(sorted(CHOICES))):
        more = {**options, name: draw(st.sampled_from(CHOICES[name]))}
        with contextlib.suppress(ConfigError):
            configure("mu/8", **more)
            options = more
    torch.manual_seed(0)
    model = vitkit.create("mu/8", **options)
    assert isinstance(model, VisionTransformer)
    return randomise(model.eval())


@QUICK
@given(models())
def test_logits_are_those_of_the_equations_written_out(model: VisionTransformer):
    model, images = model.double(), images_for(model).double()
    expected = torch.stack([reference.forward(model.state_dict(), model.config, image) for image in images])
    torch.testing.assert_close(model(images), expected, **CLOSE)


@QUICK
@given(models())
def test_fused_paths_agree_or_decline(model: VisionTransformer):
    images = images_for(model)
    expected = model(images)
    if fused_vit.reason_to_decline(model) is None:
        with torch.inference_mode():
            torch.testing.assert_close(fused_vit.FusedViT(model, torch.float32)(images), expected, **CLOSE)
    fuse(fused := copy.deepcopy(model), class_token_only=True)
    torch.testing.assert_close(fused(images), expected, **CLOSE)


@QUICK
@given(models())
def test_a_model_is_its_record_and_its_tensors(model: VisionTransformer):
    twin = build(from_dict(to_dict(model.config))).eval()
    twin.load_state_dict(model.state_dict())
    images = images_for(model)
    assert torch.equal(twin(images), model(images))
    assert cost(model.config).parameters == sum(parameter.numel() for parameter in model.parameters())


@QUICK
@given(models(), st.sampled_from([(8, 32), (24, 24)]))
def test_a_resized_model_computes_and_keeps_everything_but_positions(model: VisionTransformer, image: tuple[int, int]):
    before = {name: tensor for name, tensor in model.state_dict().items() if "positions" not in name}
    model.resize(image)
    images = images_for(model)
    expected = reference.forward(model.double().state_dict(), model.config, images[0].double())
    torch.testing.assert_close(model(images.double())[0], expected, **CLOSE)
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor.double()) for name, tensor in before.items())


@FEW
@given(models())
def test_exported_programs_agree(model: VisionTransformer):
    program = torch.export.export(model, (images_for(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    images = images_for(model, batch=3)
    torch.testing.assert_close(program.module()(images), model(images), **CLOSE)


@pytest.mark.slow
@FEW
@given(models())
def test_onnx_graphs_agree(model: VisionTransformer):
    onnxruntime = pytest.importorskip("onnxruntime")
    program = torch.onnx.export(model, (images_for(model),), dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    images = images_for(model)
    (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), model(images).detach(), **CLOSE)


@pytest.mark.slow
@FEW
@given(models())
def test_compiled_models_agree(model: VisionTransformer):
    torch.compiler.reset()
    images = images_for(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images), **CLOSE)
