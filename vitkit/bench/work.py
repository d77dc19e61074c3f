"""What is measured: the very step that training takes and the very answers that inference gives, on random pictures.

Shapes: B pictures, K classes.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.bench.timing import Work
from vitkit.compute.fused_vit import applies
from vitkit.compute.inference import Numbers, inference
from vitkit.config.schema import AdamW, Fit
from vitkit.cost import cost
from vitkit.devices import Precision
from vitkit.model.build import Model, create
from vitkit.model.config import ModelConfig
from vitkit.train import cuda_graph
from vitkit.train.distributed import Processes, share
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import build_optimizer
from vitkit.train.plan import Plan
from vitkit.train.step import Step

What = Literal["training", "inference", "latency"]

SETTINGS = Fit(optimizer=AdamW(weight_decay=0.1), lr=1e-4, clip=1.0)


def untrained(name: str, *, image: int | tuple[int, int], **options: Any) -> Model:
    """As `create` makes it, but for the logits, whose zeros would make the first gradients zeros too."""
    torch.manual_seed(0)
    model = create(name, image=image, **options)
    logits: Any = model.head.logits
    torch.nn.init.normal_(logits.weight, std=0.02)
    return model


def training(model: Model, device: torch.device, precision: Precision, *, batch: int, compiled: bool) -> Work:
    """Forward, backward, clipping at 1 and AdamW."""
    objective = Labels(model.train(), multilabel=False, smoothing=0.0, weights=None).to(device)
    shared = share(objective, "none", Processes(device), precision, compiled=compiled)
    optimizer = build_optimizer(objective, SETTINGS, fused=device.type == "cuda")
    plan = Plan(steps=1, pictures=batch, batch=batch, micro=batch, processes=1)
    recorded = cuda_graph.decide("auto", objective, plan, Processes(device), precision, "none")
    step = Step(shared, optimizer, clip=SETTINGS.clip, recorded=recorded)
    parts = repeat(labelled(model.config, batch, device))
    return lambda: step(parts)


def answering(
    model: Model, device: torch.device, numbers: Numbers, *, batch: int, compiled: bool, graph: bool = False
) -> Work:
    compute = inference(model.eval(), device, numbers, compiled=compiled, graph=graph)
    pictures = random_pictures(model.config, batch, device)
    if numbers != "fp32":
        pictures = pictures.bfloat16()

    def answer() -> Tensor:
        with torch.inference_mode():
            return compute(pictures)

    return answer


def compiles(model: Model, what: What, numbers: Numbers) -> bool:
    """Whether torch.compile has anything to do: plain ViTs answer in narrow numbers as they were laid out by hand."""
    return what == "training" or numbers == "fp32" or not applies(model)


def labelled(config: ModelConfig, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels of 0 … 1 (B, C, height, width), and one class each as shares (B, K)."""
    classes = torch.randint(config.classes, (batch,), device=device)
    return random_pictures(config, batch, device), F.one_hot(classes, config.classes).float()


def random_pictures(config: ModelConfig, batch: int, device: torch.device) -> Tensor:
    return torch.rand(batch, config.channels, *config.image, device=device)


def flops(config: ModelConfig, what: What) -> int:
    """Of one picture: two for a multiply-add, and backward is two more of forward."""
    return 2 * cost(config).macs * (3 if what == "training" else 1)
