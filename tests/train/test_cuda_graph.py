"""CUDA graphs of forward and backward: when they are captured, and that results are those of eager execution."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import vitkit
from tests.model.kinds import KINDS, images_for
from tests.train.runs import losses, toy, train_run, weights
from vitkit.cli.main import main
from vitkit.config.schema import SGD, AdamW, Augmentation, Fit, Masked, Schedule
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.train import cuda_graph
from vitkit.train.activation_checkpointing import set_recompute
from vitkit.train.cuda_graph import WARM_UPS
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.labels import Labels
from vitkit.train.objectives.masked_patch import MaskedPatch
from vitkit.train.optimizer import build_optimizer
from vitkit.train.plan import Plan
from vitkit.train.step import Step

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAN = {"steps": 10, "images": 64, "batch": 16, "processes": 1}
LR, STEPS = 1e-3, WARM_UPS + 5
TF32 = 2**-11  # unit roundoff


def needs_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


@pytest.mark.parametrize(
    ("device", "micro", "parallelism", "recompute", "reason"),
    [
        (CPU, 16, "none", False, "CUDA device"),
        (CUDA, 16, "ddp", False, "single process"),
        (CUDA, 8, "none", False, "gradient accumulation"),
        (CUDA, 16, "none", True, "recompute"),
    ],
)
def test_where_capture_is_impossible_auto_does_without_and_yes_is_an_error(
    device: torch.device, micro: int, parallelism: Any, recompute: bool, reason: str
):
    model = _model("token")
    set_recompute(model, recompute)
    arguments = (_labels(model), Plan(micro=micro, **PLAN), Processes(device), "bf16", parallelism)
    assert not cuda_graph.should_capture("auto", *arguments)
    assert not cuda_graph.should_capture("no", *arguments)
    with pytest.raises(ConfigError, match=reason):
        cuda_graph.should_capture("yes", *arguments)


@pytest.mark.parametrize(("gigabytes", "expected"), [(0.001, False), (100, True)])
def test_a_graph_is_captured_where_memory_allows(gigabytes: float, expected: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_graph, "free_memory", lambda device: gigabytes * 2**30)
    arguments = (_labels(_model("token")), Plan(micro=16, **PLAN), Processes(CUDA), "bf16", "none")
    assert cuda_graph.should_capture("auto", *arguments) == expected
    assert cuda_graph.should_capture("yes", *arguments)
    assert not cuda_graph.should_capture("no", *arguments)


class FakeGraph:
    """Stands in for a CUDA graph on a CPU: runs the work again and copies outputs and gradients to the first ones."""

    def __init__(self, work: Callable[[], Any], objective: Objective):
        self.work, self.parameters, self.replays = work, list(objective.parameters()), 0
        self.output = self._run()
        self.grads = [parameter.grad for parameter in self.parameters]

    def replay(self) -> None:
        (loss, metrics), (first_loss, first_metrics) = self._run(), self.output
        first_loss.copy_(loss)
        for name, value in metrics.items():
            first_metrics[name].copy_(value)
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            grad.copy_(parameter.grad)
        self.replays += 1

    def _run(self) -> Any:
        for parameter in self.parameters:
            parameter.grad = None
        return self.work()


@pytest.mark.parametrize("optimizer", [AdamW(), SGD()])
def test_a_step_uses_the_gradients_of_the_replayed_graph(optimizer: AdamW | SGD, monkeypatch: pytest.MonkeyPatch):
    graphs, results = [], []

    def capture(work: Callable[[], Any], stream: object) -> tuple[Any, Any]:
        graphs.append(FakeGraph(work, objectives[-1]))
        return graphs[-1], graphs[-1].output

    monkeypatch.setattr(cuda_graph, "capture", capture)
    monkeypatch.setattr(cuda_graph, "capture_stream", lambda device: None)
    objectives = []
    for captured in (False, True):
        torch.manual_seed(0)
        objectives.append(_labels(_model("token")))
        step = Step(
            objectives[-1],
            build_optimizer(objectives[-1], Fit(optimizer=optimizer, lr=1e-3), fused=False),
            clip=0.3,
            captured=captured,
        )
        losses = []
        for number in range(WARM_UPS + 3):
            pixels = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(number))
            pixels = pixels[:3] if number == WARM_UPS + 1 else pixels  # another shape, once
            losses.append(step(iter([(pixels, torch.eye(10)[: len(pixels)])])).loss)
        results.append([*losses, *objectives[-1].parameters()])
    assert [graph.replays for graph in graphs] == [2]
    for one, other in zip(*results, strict=True):
        assert_close(one, other, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("kind", "error"), [(RuntimeError, ConfigError), (torch.OutOfMemoryError, torch.OutOfMemoryError)]
)
def test_a_failed_capture_says_what_to_do(kind: Any, error: Any, monkeypatch: pytest.MonkeyPatch):
    def capture(work: object, stream: object) -> None:
        raise kind("operation not permitted when stream is capturing\nand a long tail")

    monkeypatch.setattr(cuda_graph, "capture", capture)
    monkeypatch.setattr(cuda_graph, "capture_stream", lambda device: None)
    objective = _labels(_model("token"))
    step = Step(objective, build_optimizer(objective, Fit(optimizer=SGD()), fused=False), clip=1.0, captured=True)
    micro_batch = torch.rand(2, 3, 32, 32), torch.eye(10)[:2]
    for _ in range(WARM_UPS):
        step(iter([micro_batch]))
    with pytest.raises(error, match="cuda_graph=no" if error is ConfigError else "not permitted"):
        step(iter([micro_batch]))


def test_a_run_that_captures_a_graph_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    requests, printed = [], []

    def should_capture(requested: str, *arguments: object) -> bool:
        requests.append(requested)
        return True

    def capture(work: object, stream: object) -> None:
        raise RuntimeError("there is no GPU here")

    monkeypatch.setattr(cuda_graph, "should_capture", should_capture)
    monkeypatch.setattr(cuda_graph, "capture", capture)
    monkeypatch.setattr(cuda_graph, "capture_stream", lambda device: None)
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match="there is no GPU here"):
        train_run(
            toy(run, steps=WARM_UPS + 2, micro=None, cuda_graph="auto"),
            print_line=lambda name, text: printed.append(f"{name} {text}"),
        )
    assert requests == ["auto"]
    assert "precision fp32, CUDA graph" in printed
    assert 'cuda_graph = "auto"' in (run / "config.toml").read_text()
    monkeypatch.undo()
    settings = (run / "config.toml").read_text().replace('cuda_graph = "auto"', 'cuda_graph = "no"')
    (run / "config.toml").write_text(settings)
    main(["resume", str(run)])
    assert (run / "model.safetensors").exists()


@needs_gpu
@pytest.mark.parametrize("kind", ["token", "gap", "attention pool", "axial", "relative", "hybrid", "ResNet"])
@pytest.mark.parametrize(("precision", "optimizer"), [("bf16", AdamW()), ("bf16", SGD()), ("fp32", AdamW())])
def test_replayed_steps_are_those_of_eager_execution(kind: str, precision: str, optimizer: AdamW | SGD):
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        objective = _labels(_model(kind, **{} if kind == "ResNet" else {"dropout": 0.1, "stochastic_depth": 0.1}))
        results.append(_train(objective, precision, optimizer, captured))
    (eager_losses, eager), (replayed_losses, replayed) = results
    assert len(set(eager_losses)) == len(eager_losses)
    rounding = gradient_rounding(precision, convolutions=kind in ("hybrid", "ResNet"))
    tolerance = math.log(10) * (40 * 2**-23 if rounding < TF32 else TF32)  # the losses are about log 10
    assert_close(replayed_losses, eager_losses, atol=tolerance, rtol=0)
    assert_weights_close(replayed, eager, optimizer, rounding=rounding, steps=STEPS, mean=kind != "ResNet")


def gradient_rounding(precision: str, *, convolutions: bool) -> float:
    """Return the unit roundoff of a gradient's sum.

    bf16 rounds every product's factors, TF32 (cuDNN's default in fp32) likewise, and both accumulate in fp32. Without
    convolutions fp32 rounds n additions, which add up to about √n roundoffs; no sum here has more than 2^16 terms.
    """
    if precision == "bf16":
        return 2**-8
    return TF32 if convolutions else 2**-24 * math.sqrt(2**16)


def assert_weights_close(
    ours: dict[str, Tensor],
    theirs: dict[str, Tensor],
    optimizer: AdamW | SGD,
    *,
    rounding: float,
    steps: int,
    mean: bool = True,
) -> None:
    """Assert that two trainings, whose gradients differ by rounding only, have ended with the same weights.

    cuDNN and cuBLAS may add in another order in every call: a gradient has a relative error of some 16 roundoffs, one
    for each layer it passes through.

    A step of SGD is linear in the gradient, whose norm is at most 1 here: after t steps the velocity is at most
    (1 - 0.9^t) / 0.1, and the weights differ by the relative error of lr times the sum of the velocities.

    A step of Adam is lr · m / √v, whatever the gradient's size, and at most 1.07 lr in the first 12 steps (Cauchy-
    Schwarz over the two moving averages): an element whose gradient is about zero may move by lr in one training and by
    -lr in the other. So single elements differ by up to 2 · 1.07 · lr · steps. They are rare: the share of gradients
    below the rounding error is about that relative error, so the mean difference is lr · steps times the error. The
    key's bias has no gradient but rounding (softmax does not see it), and does not count.
    """
    error = 16 * rounding
    if isinstance(optimizer, SGD):
        path = LR * sum((1 - 0.9**step) / 0.1 for step in range(1, steps + 1))
        difference = torch.cat([(ours[name] - theirs[name]).flatten() for name in ours])
        assert difference.norm() <= path * error
        return
    differences = {name: (ours[name] - theirs[name]).abs() for name in ours}
    assert max(difference.max() for difference in differences.values()) <= 2 * 1.07 * LR * steps
    for name, difference in differences.items():
        if name.endswith("qkv.bias"):
            differences[name] = difference.view(3, -1)[[0, 2]]
        elif name.endswith("key_value.bias"):
            differences[name] = difference.view(2, -1)[1]
    if mean:
        assert torch.cat([difference.flatten() for difference in differences.values()]).mean() <= LR * steps * error


def test_the_tolerance_of_weights_sees_a_wrong_step():
    theirs = {"weight": torch.randn(1000)}
    for optimizer in (AdamW(), SGD()):
        for rounding in (2**-8, TF32):
            assert_weights_close(theirs, theirs, optimizer, rounding=rounding, steps=STEPS)
            moved = {"weight": theirs["weight"] + LR}  # one step of Adam too many
            with pytest.raises(AssertionError):
                assert_weights_close(moved, theirs, optimizer, rounding=rounding, steps=STEPS)


@pytest.mark.parametrize("target", ["colour", "4x4", "pixels"])
@needs_gpu
def test_every_replay_masks_other_patches(target: Any):
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        results.append(_train(MaskedPatch(_model("gap"), Masked(target=target)), "bf16", AdamW(), captured)[0])
    assert len(set(results[1])) == len(results[1])
    assert_close(results[1], results[0], atol=1e-3, rtol=0)


@needs_gpu
def test_a_replay_sees_weights_that_were_changed_outside():
    step, objective, micro_batches = _build_step(_labels(_model("token")), "bf16", AdamW(), captured=True)
    for _ in range(WARM_UPS + 2):
        step(micro_batches())
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.zero_()
    assert_close(step(micro_batches()).loss.item(), torch.tensor(10.0).log().item())


@needs_gpu
def test_another_shape_runs_eagerly():
    step, objective, micro_batches = _build_step(_labels(_model("token")), "bf16", AdamW(), captured=True)
    for _ in range(WARM_UPS + 2):
        step(micro_batches())
    pixels, targets = next(micro_batches())
    before = [parameter.clone() for parameter in objective.parameters()]
    assert step(iter([(pixels[:1], targets[:1])])).loss.isfinite()
    assert any(not torch.equal(one, other) for one, other in zip(objective.parameters(), before, strict=True))
    step(micro_batches())


@needs_gpu
@pytest.mark.parametrize("compile_", ["no", "yes"])
def test_a_run_with_a_cuda_graph_is_the_same_run(compile_: str, tmp_path: Path):
    settings: dict[str, Any] = {
        "steps": 12,
        "save_every": 4,
        "lr": 1e-3,
        "optimizer": AdamW(weight_decay=0.1),
        "dev": 0.1,
        "micro": None,
        "schedule": Schedule(warmup=2),
        "augment": Augmentation(mixup=0.2),
        "device": "cuda",
        "precision": "bf16",
        "average": 0.9,
        "score_every": 3,
        "dropout": 0.1,
        "compile": compile_,
    }
    eager = train_run(toy(tmp_path / "plain", cuda_graph="no", **settings))
    replayed = train_run(toy(tmp_path / "ours", cuda_graph="yes", **settings))
    assert_close(losses(replayed), losses(eager), atol=2e-3, rtol=0)
    assert_weights_close(weights(replayed), weights(eager), AdamW(), rounding=2**-8, steps=12)


def _model(kind: str, **options: Any) -> Model:
    name, own = KINDS[kind]
    return vitkit.create(name, **{"classes": 10, **own, **options})


def _labels(model: Model) -> Labels:
    torch.nn.init.normal_(model.head.logits.weight, std=0.02)
    return Labels(model.train(), multilabel=False, smoothing=0.0, weights=None)


def _train(
    objective: Objective, precision: str, optimizer: SGD | AdamW, captured: bool
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses of some steps and the weights after them."""
    step, objective, micro_batches = _build_step(objective, precision, optimizer, captured=captured)
    losses = []
    for number in range(STEPS):
        torch.manual_seed(100 + number)
        losses.append(step(micro_batches()).loss)
    assert (step.captured is not None and step.captured.graph is not None) == captured
    weights = {name: parameter.detach() for name, parameter in objective.named_parameters()}
    return torch.stack(losses).tolist(), weights


def _build_step(objective: Objective, precision: Any, optimizer: SGD | AdamW, *, captured: bool) -> Any:
    objective = objective.to(CUDA)
    wrapped = parallelize(objective, "none", Processes(CUDA), precision)
    torch_optimizer = build_optimizer(objective, Fit(optimizer=optimizer, lr=LR), fused=True)
    step = Step(wrapped, torch_optimizer, clip=1.0, captured=captured)
    pixels = images_for(objective.model, 4).to(CUDA)
    return step, objective, lambda: iter([(pixels, torch.eye(10, device=CUDA)[:4])])
