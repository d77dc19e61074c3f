"""Passes that are recorded once and launched as one: when, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import vitkit
from tests.model.kinds import KINDS, images_for
from tests.train.runs import losses, toy, trained, weights
from vitkit.cli.main import main
from vitkit.config.schema import SGD, AdamW, Augmentation, Fit, Masked, Schedule
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.train import cuda_graph
from vitkit.train.cuda_graph import WARM_UPS
from vitkit.train.distributed import Processes, share
from vitkit.train.objectives.labels import Labels, Objective
from vitkit.train.objectives.masked_patch import MaskedPatch
from vitkit.train.optimizer import build_optimizer
from vitkit.train.plan import Plan
from vitkit.train.step import Step

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAN = {"steps": 10, "pictures": 64, "batch": 16, "processes": 1}


def on_a_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


@pytest.mark.parametrize(
    ("device", "micro", "sharing", "recompute", "why"),
    [
        (CPU, 16, "none", False, "CUDA device"),
        (CUDA, 16, "ddp", False, "one process"),
        (CUDA, 8, "none", False, "one part"),
        (CUDA, 16, "none", True, "recompute"),
    ],
)
def test_where_it_cannot_be_it_is_left_alone_and_refused_to_those_who_ask(
    device: torch.device, micro: int, sharing: Any, recompute: bool, why: str
):
    model = _model("token")
    model.encoder.recompute = recompute
    given = (_labels(model), Plan(micro=micro, **PLAN), Processes(device), "bf16", sharing)
    assert not cuda_graph.decide("auto", *given)
    assert not cuda_graph.decide("no", *given)
    with pytest.raises(ConfigError, match=why):
        cuda_graph.decide("yes", *given)


@pytest.mark.parametrize(("gigabytes", "expected"), [(0.001, False), (100, True)])
def test_it_is_taken_where_there_is_room(gigabytes: float, expected: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_graph, "free_memory", lambda device: gigabytes * 2**30)
    given = (_labels(_model("token")), Plan(micro=16, **PLAN), Processes(CUDA), "bf16", "none")
    assert cuda_graph.decide("auto", *given) == expected
    assert cuda_graph.decide("yes", *given)
    assert not cuda_graph.decide("no", *given)


class Again:
    """In the place of a CUDA graph: does the work again, and leaves its gradients where the first time left them."""

    def __init__(self, work: Callable[[], Any], objective: Objective):
        self.work, self.parameters, self.times = work, list(objective.parameters()), 0
        self.found = self._done()
        self.held = [parameter.grad for parameter in self.parameters]

    def replay(self) -> None:
        (loss, measures), (held, told) = self._done(), self.found
        held.copy_(loss)
        for name, value in measures.items():
            told[name].copy_(value)
        for parameter, place in zip(self.parameters, self.held, strict=True):
            place.copy_(parameter.grad)
        self.times += 1

    def _done(self) -> Any:
        for parameter in self.parameters:
            parameter.grad = None
        return self.work()


@pytest.mark.parametrize("optimizer", [AdamW(), SGD()])
def test_gradients_come_from_where_the_graph_leaves_them(optimizer: AdamW | SGD, monkeypatch: pytest.MonkeyPatch):
    graphs, found = [], []

    def record(work: Callable[[], Any], aside: object) -> tuple[Any, Any]:
        graphs.append(Again(work, objectives[-1]))
        return graphs[-1], graphs[-1].found

    monkeypatch.setattr(cuda_graph, "record", record)
    monkeypatch.setattr(cuda_graph, "stream_apart", lambda device: None)
    objectives = []
    for recorded in (False, True):
        torch.manual_seed(0)
        objectives.append(_labels(_model("token")))
        step = Step(
            objectives[-1],
            build_optimizer(objectives[-1], Fit(optimizer=optimizer, lr=1e-3), fused=False),
            clip=0.3,
            recorded=recorded,
        )
        losses = []
        for number in range(WARM_UPS + 3):
            pixels = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(number))
            few = pixels[:3] if number == WARM_UPS + 1 else pixels  # of another shape, once
            losses.append(step(iter([(few, torch.eye(10)[: len(few)])])).loss)
        found.append([*losses, *objectives[-1].parameters()])
    assert [graph.times for graph in graphs] == [2]
    for one, other in zip(*found, strict=True):
        assert_close(one, other, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("kind", "error"), [(RuntimeError, ConfigError), (torch.OutOfMemoryError, torch.OutOfMemoryError)]
)
def test_what_cannot_be_recorded_says_what_to_do(kind: Any, error: Any, monkeypatch: pytest.MonkeyPatch):
    def record(work: object, aside: object) -> None:
        raise kind("operation not permitted when stream is capturing\nand a long tail")

    monkeypatch.setattr(cuda_graph, "record", record)
    monkeypatch.setattr(cuda_graph, "stream_apart", lambda device: None)
    objective = _labels(_model("token"))
    step = Step(objective, build_optimizer(objective, Fit(optimizer=SGD()), fused=False), clip=1.0, recorded=True)
    part = torch.rand(2, 3, 32, 32), torch.eye(10)[:2]
    for _ in range(WARM_UPS):
        step(iter([part]))
    with pytest.raises(error, match="cuda_graph=no" if error is ConfigError else "not permitted"):
        step(iter([part]))


def test_a_run_for_which_it_was_decided_records_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked, said = [], []

    def decide(how: str, *given: object) -> bool:
        asked.append(how)
        return True

    def record(work: object, aside: object) -> None:
        raise RuntimeError("there is no GPU here")

    monkeypatch.setattr(cuda_graph, "decide", decide)
    monkeypatch.setattr(cuda_graph, "record", record)
    monkeypatch.setattr(cuda_graph, "stream_apart", lambda device: None)
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match="there is no GPU here"):
        trained(toy(run, steps=WARM_UPS + 2, micro=None, cuda_graph="auto"), say=lambda name, text: said.append(text))
    assert asked == ["auto"]
    assert any("each pass launched as one" in text for text in said)
    assert 'cuda_graph = "auto"' in (run / "config.toml").read_text()
    monkeypatch.undo()
    settings = (run / "config.toml").read_text().replace('cuda_graph = "auto"', 'cuda_graph = "no"')
    (run / "config.toml").write_text(settings)
    main(["resume", str(run)])
    assert (run / "model.safetensors").exists()


@on_a_gpu
@pytest.mark.parametrize("kind", ["token", "gap", "attention pool", "axial", "relative", "hybrid", "ResNet"])
@pytest.mark.parametrize(("precision", "optimizer"), [("bf16", AdamW()), ("bf16", SGD()), ("fp32", AdamW())])
def test_steps_are_those_of_passes_kernel_by_kernel(kind: str, precision: str, optimizer: AdamW | SGD):
    found = []
    for recorded in (False, True):
        torch.manual_seed(0)
        objective = _labels(_model(kind, **{} if kind == "ResNet" else {"dropout": 0.1, "stochastic_depth": 0.1}))
        found.append(_stepped(objective, precision, optimizer, recorded))
    (plain, others), (ours, own) = found
    assert len(set(plain)) == len(plain)
    exact = precision == "fp32" and kind not in ("hybrid", "ResNet")  # cuDNN adds up convolutions in any order
    assert_close(ours, plain, atol=1e-5 if exact else 1e-3, rtol=0)
    if kind != "ResNet" or optimizer == SGD():  # Adam takes whole steps along gradients that are but rounding
        for one, other in zip(own, others, strict=True):
            assert_close(one, other, atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("target", ["colour", "pixels"])
@on_a_gpu
def test_patches_are_masked_anew_in_every_pass(target: Any):
    found = []
    for recorded in (False, True):
        torch.manual_seed(0)
        found.append(_stepped(MaskedPatch(_model("gap"), Masked(target=target)), "bf16", AdamW(), recorded)[0])
    assert len(set(found[1])) == len(found[1])
    assert_close(found[1], found[0], atol=1e-3, rtol=0)


@on_a_gpu
def test_weights_that_somebody_else_changed_are_seen():
    step, objective, parts = _ready(_labels(_model("token")), "bf16", AdamW(), recorded=True)
    for _ in range(WARM_UPS + 2):
        step(parts())
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.zero_()
    assert_close(step(parts()).loss.item(), torch.tensor(10.0).log().item())


@on_a_gpu
def test_another_shape_goes_through_as_it_is():
    step, objective, parts = _ready(_labels(_model("token")), "bf16", AdamW(), recorded=True)
    for _ in range(WARM_UPS + 2):
        step(parts())
    pixels, targets = next(parts())
    before = [parameter.clone() for parameter in objective.parameters()]
    assert step(iter([(pixels[:1], targets[:1])])).loss.isfinite()
    assert any(not torch.equal(one, other) for one, other in zip(objective.parameters(), before, strict=True))
    step(parts())


@on_a_gpu
@pytest.mark.parametrize("compile_", ["no", "yes"])
def test_a_run_is_the_same_run(compile_: str, tmp_path: Path):
    how: dict[str, Any] = {
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
    plain = trained(toy(tmp_path / "plain", cuda_graph="no", **how))
    ours = trained(toy(tmp_path / "ours", cuda_graph="yes", **how))
    assert_close(losses(ours), losses(plain), atol=2e-3, rtol=0)
    for name, tensor in weights(plain).items():
        assert_close(weights(ours)[name], tensor, atol=2e-3, rtol=2e-2)


def _model(kind: str, **options: Any) -> Model:
    name, own = KINDS[kind]
    return vitkit.create(name, **{"classes": 10, **own, **options})


def _labels(model: Model) -> Labels:
    torch.nn.init.normal_(model.head.logits.weight, std=0.02)
    return Labels(model.train(), multilabel=False, smoothing=0.0, weights=None)


def _stepped(
    objective: Objective, precision: str, optimizer: SGD | AdamW, recorded: bool
) -> tuple[list[float], list[Tensor]]:
    """The losses of some steps, and the weights after them."""
    step, objective, parts = _ready(objective, precision, optimizer, recorded=recorded)
    found = []
    for number in range(WARM_UPS + 5):
        torch.manual_seed(100 + number)
        found.append(step(parts()).loss)
    assert (step.recorded is not None and step.recorded.graph is not None) == recorded
    return torch.stack(found).tolist(), [parameter.detach() for parameter in objective.parameters()]


def _ready(objective: Objective, precision: Any, optimizer: SGD | AdamW, *, recorded: bool) -> Any:
    objective = objective.to(CUDA)
    shared = share(objective, "none", Processes(CUDA), precision)
    step = Step(
        shared, build_optimizer(objective, Fit(optimizer=optimizer, lr=1e-3), fused=True), clip=1.0, recorded=recorded
    )
    pixels = images_for(objective.model, 4).to(CUDA)
    return step, objective, lambda: iter([(pixels, torch.eye(10, device=CUDA)[:4])])
