"""A contract test for each private symbol of torch that vitkit relies on: an upgrade of torch names what broke."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing import assert_close
from torch.testing._internal.distributed.fake_pg import FakeStore

import vitkit
from vitkit import torch_private
from vitkit.weights.run_checkpoints import ignore_single_process_warning

EPS = torch.finfo(torch.float32).eps
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
hopper = [*gpu, pytest.mark.skipif("not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0)")]


def test_no_other_file_uses_a_private_symbol_of_torch():
    private = re.compile(
        r"torch\.(\w+\.)*_[a-z]|torch\.ops\.(aten|onednn)|\.(_version|_forward_hooks|_forward_pre_hooks|_backward_hooks|"
        r"_compiled_call_impl|_modules)\b|\w+\.(_parameters|_buffers)\b|realize_reads_threshold"
    )
    root = Path(vitkit.__file__).parent
    users = {
        f"{path.relative_to(root)}: {match[0]}"
        for path in root.rglob("*.py")
        if path.name != "torch_private.py"
        for match in private.finditer(_code(path))
        if not match[0].startswith("self.")  # an attribute of our own
    }
    assert users == set()


def _code(path: Path) -> str:
    """Return the code of a file without comments and docstrings."""
    return ast.unparse(_without_docstrings(ast.parse(path.read_text(encoding="utf-8"))))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_addmm_gelu_is_the_tanh_gelu_of_a_linear_layer(device: str):
    bias, rows, weight = (torch.randn(*shape, device=device).bfloat16() for shape in ((24,), (5, 16), (24, 16)))
    expected = F.gelu(F.linear(rows.float(), weight.float(), bias.float()), approximate="tanh")
    if device == "cpu":  # where torch ignores the tanh form
        expected = F.gelu(F.linear(rows.float(), weight.float(), bias.float()))
    result = torch_private.addmm_gelu(bias, rows, weight).float()
    assert (result - expected).norm() < 2**-7 * expected.norm()  # bf16 has 8 bits


@pytest.mark.parametrize("with_lse", [pytest.param(flag, marks=gpu) for flag in (False, True)])
def test_cudnn_attention_returns_attention_and_log_sum_exp(with_lse: bool):
    query, key, value = torch.randn(3, 2, 4, 17, 64, device="cuda").bfloat16()
    output, lse = torch_private.cudnn_attention(query, key, value, with_lse=with_lse)
    expected = F.scaled_dot_product_attention(query.float(), key.float(), value.float())
    assert (output.float() - expected).norm() < 2**-6 * expected.norm()
    if with_lse:
        scores = query.float() @ key.float().transpose(-2, -1) / 8
        assert_close(lse.squeeze(-1), scores.logsumexp(dim=-1), atol=2**-6, rtol=2**-6)


@pytest.mark.parametrize("rows", [pytest.param(16, marks=hopper)])
def test_scaled_mm_multiplies_fp8_rows_with_a_scale_each(rows: int):
    left, right = (torch.randn(count, 64, device="cuda").to(torch.float8_e4m3fn) for count in (rows, 32))
    scales = [torch.rand(count, 1, device="cuda") + 0.5 for count in (rows, 32)]
    bias = torch.randn(32, device="cuda").bfloat16()
    result = torch_private.scaled_mm(left, scales[0], right, scales[1], bias).float()
    expected = (left.float() * scales[0]) @ (right.float() * scales[1]).t() + bias.float()
    assert (result - expected).norm() < 2**-6 * expected.norm()


def test_int8_linear_multiplies_bytes_with_a_zero_point():
    if not torch_private.has_int8_linear():
        pytest.skip("this build of torch has no oneDNN int8 product")
    rows = torch.randint(0, 128, (5, 16), dtype=torch.uint8)  # 7 bits: without VNNI, sums of 8 bits may saturate
    weight = torch.randint(-64, 64, (8, 16), dtype=torch.int8)
    scales, zeros = torch.rand(8), torch.zeros(8, dtype=torch.int64)
    result = torch_private.int8_linear(rows, 3, torch_private.pack_int8(weight), scales, zeros)
    assert_close(
        result, (rows.float() - 3) @ (weight.float() * scales[:, None]).t(), atol=16 * 2**14 * EPS, rtol=4 * EPS
    )


def test_gelu_in_place_is_the_exact_gelu():
    x = torch.randn(100)
    expected = F.gelu(x)
    assert torch_private.gelu_(x) is x
    assert torch.equal(x, expected)


def test_cpu_instructions_are_names():
    names = torch_private.cpu_instructions()
    assert all(isinstance(name, str) for name in names)


def test_the_probes_of_older_versions_of_torch_give_the_same_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", None, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    assert torch_private.cpu_instructions() == {"avx512_vnni"}


def test_versions_count_writes_in_place():
    tensor = torch.zeros(3)
    before = torch_private.version_of(tensor)
    tensor.add_(1)
    assert torch_private.version_of(tensor) == before + 1
    torch.autograd.graph.increment_version([tensor])
    assert torch_private.version_of(tensor) == before + 2


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_of_every_kind_are_noticed_until_they_are_removed(register: str):
    layer = nn.Linear(2, 2)
    assert not torch_private.has_hooks(layer)
    handle = getattr(layer, register)(lambda *_: None)
    assert torch_private.has_hooks(layer)
    handle.remove()
    assert not torch_private.has_hooks(layer)


def test_swapped_tensors_are_used_and_the_own_ones_come_back():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    slots = torch_private.tensor_slots(module)
    own = torch_private.read_slots(slots)
    assert own.keys() == {name for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    x, others = torch.randn(3, 2), {name: torch.rand_like(tensor) for name, tensor in own.items()}
    expected = torch.func.functional_call(module, others, (x,))
    before = module(x)
    with torch_private.swapped(slots, others):
        assert torch.equal(module(x), expected)
    assert torch.equal(module(x), before)
    with pytest.raises(RuntimeError), torch_private.swapped(slots, others):
        module(torch.randn(3, 5))
    assert all(torch_private.read_slots(slots)[name] is tensor for name, tensor in own.items())


def test_forgetting_undoes_module_compile():
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module, calls = Doubled(2, 2), list[int]()

    def backend(graph, inputs):
        calls.append(1)
        return graph.forward

    module.compile(backend=backend)
    module(torch.rand(1, 2))
    assert calls
    torch_private.forget_compiled(module)
    calls.clear()
    torch.compiler.reset()
    module(torch.rand(1, 2))
    assert not calls


def test_recompilation_limits_are_lifted_inside_only():
    import torch._dynamo

    before = torch._dynamo.config.recompile_limit
    with torch_private.unlimited_recompiles():
        assert torch._dynamo.config.recompile_limit == 1000
    assert torch._dynamo.config.recompile_limit == before


def test_inductor_knows_the_options_that_we_set():
    from torch._inductor import config

    assert all(hasattr(config, name) for name in torch_private.INDUCTOR_OPTIONS)


def test_foreach_functions_do_what_a_loop_does():
    targets, sources = [torch.rand(3), torch.rand(2, 2)], [torch.rand(3), torch.rand(2, 2)]
    lerped = [target.lerp(source, 0.25) for target, source in zip(targets, sources, strict=True)]
    torch_private.foreach_lerp_(targets, sources, 0.25)
    assert_close(targets, lerped)
    torch_private.foreach_add_(targets, 1)
    assert_close(targets, [target + 1 for target in lerped])
    assert_close(list(torch_private.foreach_norm(targets, torch.float64)), [one.double().norm() for one in targets])
    copies = [torch.empty_like(source, dtype=torch.bfloat16) for source in sources]
    torch_private.foreach_copy_(copies, sources)
    assert all(torch.equal(copy, source.bfloat16()) for copy, source in zip(copies, sources, strict=True))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.Adam, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.LBFGS, {"max_iter": 3, "line_search_fn": "strong_wolfe"}),
    ],
)
def test_optimizers_without_the_compiler_take_the_same_steps(
    kind: type[torch.optim.Optimizer], options: dict[str, object]
):
    start, results = torch.randn(3, 4), []
    for one in (kind, torch_private.without_compiler(kind)):
        weight = start.clone().requires_grad_()
        optimizer, losses = one([weight], lr=0.1, **options), []  # type: ignore[call-arg]

        def loss(weight: Tensor = weight, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = (weight**4).sum() + weight.sum()
            value.backward()
            return value

        for _ in range(4):
            losses.append(optimizer.step(loss))
        results.append((one.__name__, weight.detach(), torch.stack(losses)))
        assert torch.is_grad_enabled()
    (name, weight, values), (other_name, other_weight, other_values) = results
    assert name == other_name
    assert torch.equal(weight, other_weight)
    assert torch.equal(values, other_values)


def test_optimizers_without_the_compiler_call_the_hooks_of_a_step():
    called = []
    optimizer = torch_private.without_compiler(torch.optim.SGD)([torch.zeros(1, requires_grad=True)])
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.step()
    assert called == ["before", "after"]


def test_dynamo_calls_a_marked_function_while_it_traces_and_takes_its_result_as_a_constant():
    called = []

    @torch_private.called_while_tracing
    def add_to_list() -> int:
        called.append(True)
        return len(called)

    compiled = torch.compile(lambda x: x * add_to_list(), backend="eager", fullgraph=True)
    assert [compiled(torch.ones(())).item() for _ in range(3)] == [1, 1, 1]
    assert len(called) == 1


def test_the_reader_of_distributed_checkpoints_finds_the_offsets_of_shards(tmp_path: Path):
    whole = torch.arange(30.0).view(10, 3)
    for name, rows, start in (("one", whole[:6], 0), ("other", whole[6:], 6)):
        offsets = {"weight": {torch_private.SAVED_OFFSETS: [start, 0]}}
        metadata = {torch_private.SHARDING_INFO: json.dumps(offsets)}
        save_file({"weight": rows.clone()}, tmp_path / f"{name}.safetensors", metadata=metadata)
    loaded = {"weight": torch.zeros(10, 3)}
    with ignore_single_process_warning():
        state_dict_loader.load(loaded, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert torch.equal(loaded["weight"], whole)


@pytest.mark.parametrize("rank", range(3))
def test_a_sharded_tensor_knows_where_its_shard_begins(rank: int):
    """Ten rows on three ranks: torch.chunk gives four, four and two."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))
        tensor = distribute_tensor(torch.zeros(10, 2), mesh, [Shard(0)], src_data_rank=None)
        assert torch_private.shard_offsets(tensor) == ((0, 0), (4, 0), (8, 0))[rank]
    finally:
        dist.destroy_process_group()
