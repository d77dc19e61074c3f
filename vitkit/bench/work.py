"""The work that is timed: the training step of `vitkit fit` and the inference of `vitkit predict`, on random images.

Shapes: B images, K classes.
"""

from itertools import repeat
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.bench.timing import Work
from vitkit.compute.fused_vit import reason_to_decline
from vitkit.compute.inference import Precision, inference
from vitkit.config.schema import AdamW, Fit
from vitkit.cost import cost
from vitkit.devices import TrainPrecision
from vitkit.model.build import Model, build
from vitkit.model.config import ModelConfig
from vitkit.model.segmenter import Segmenter
from vitkit.model.variants import configure
from vitkit.train import cuda_graph
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.labels import Labels
from vitkit.train.objectives.segmentation import build_segmentation
from vitkit.train.optimizer import build_optimizer
from vitkit.train.plan import Plan
from vitkit.train.step import Step

What = Literal["training", "inference", "latency"]

SETTINGS = Fit(optimizer=AdamW(weight_decay=0.1), lr=1e-4, clip=1.0)


def untrained_model(name: str, *, image: int | tuple[int, int], **options: Any) -> Model:
    """Return a new model of a name and options with random logits."""
    return with_random_logits(configure(name, image=image, **options))


def with_random_logits(config: ModelConfig) -> Model:
    """Return a new model with random logits: zero-initialised ones would make the first gradients zero, too."""
    torch.manual_seed(0)
    model = build(config)
    for layer in model.head.logits.modules():
        if isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, std=0.02)
    return model


def training_step(model: Model, device: torch.device, precision: TrainPrecision, *, batch: int, compiled: bool) -> Work:
    """Return a step of forward, backward, gradient clipping at 1 and AdamW."""
    objective = _objective(model.train()).to(device)
    wrapped = parallelize(objective, "none", Processes(device), precision, compiled=compiled)
    optimizer = build_optimizer(objective, SETTINGS, fused=device.type == "cuda")
    plan = Plan(steps=1, images=batch, batch=batch, micro=batch, processes=1)
    captured = cuda_graph.should_capture("auto", objective, plan, Processes(device), precision, "none")
    step = Step(wrapped, optimizer, clip=SETTINGS.clip, captured=captured)
    micro_batches = repeat(_training_batch(objective, batch, device))
    return lambda: step(micro_batches)


def _objective(model: Model) -> Objective:
    if isinstance(model, Segmenter):
        return build_segmentation(model)
    return Labels(model, multilabel=False, smoothing=0.0, weights=None)


def _training_batch(objective: Objective, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return random pixels and targets: a random class for each image, or for a segmenter every class in a mask."""
    config = objective.model.config
    if isinstance(objective.model, Segmenter):
        return random_images(config, batch, device), objective.example_targets(batch)
    return labelled_batch(config, batch, device)


def inference_call(
    model: Model, device: torch.device, precision: Precision, *, batch: int, compiled: bool, graph: bool = False
) -> Work:
    """Return a forward pass of a batch of images."""
    compute = inference(model.eval(), device, precision, compiled=compiled, graph=graph)
    images = random_images(model.config, batch, device)
    if precision != "fp32":
        images = images.bfloat16()

    def call() -> Tensor:
        with torch.inference_mode():
            return compute(images)

    return call


def compiles(model: Model, what: What, precision: Precision) -> bool:
    """Return whether torch.compile applies: inference of plain ViTs in bf16 and fp8 uses hand-written kernels."""
    return what == "training" or precision == "fp32" or reason_to_decline(model) is not None


def labelled_batch(config: ModelConfig, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return random pixels in 0 … 1 (B, C, height, width) and one-hot targets (B, K)."""
    classes = torch.randint(config.classes, (batch,), device=device)
    return random_images(config, batch, device), F.one_hot(classes, config.classes).float()


def random_images(config: ModelConfig, batch: int, device: torch.device) -> Tensor:
    return torch.rand(batch, config.channels, *config.image, device=device)


def flops(config: ModelConfig, what: What) -> int:
    """Return the operations of one image: two for a multiply-add; backward takes twice those of forward."""
    return 2 * cost(config).macs * (3 if what == "training" else 1)
