"""The objectives of segmentation: exact losses, ignored pixels, gradients everywhere, what the loop needs of them."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import vitkit
from tests.model.kinds import make
from vitkit.config.schema import SGD, Fit, Segment
from vitkit.data.masks.ignore import IGNORE
from vitkit.errors import ConfigError
from vitkit.model.mask_queries import QueryPrediction
from vitkit.train import checkpoint
from vitkit.train.cuda_graph import should_capture
from vitkit.train.distributed import Processes
from vitkit.train.dry_run import dry_run, random_batch
from vitkit.train.initial_model import initial_model
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.base import Objective
from vitkit.train.objectives.mask_losses import class_loss, dice_loss, mask_losses, point_cross_entropy, set_loss
from vitkit.train.objectives.mask_matching import Matches, match, pair_costs
from vitkit.train.objectives.mask_points import neighbours, sample_logits, uncertain_points
from vitkit.train.objectives.segmentation import (
    MaskSet,
    PixelLabels,
    build_segmentation,
    mask_probabilities,
    pixel_accuracy,
    pixel_loss,
)
from vitkit.train.optimizer import build_optimizer

CPU = torch.device("cpu")
KINDS = ["linear", "queries", "queries like DINOv3"]
CLASSES = 10  # of `make`


def masks_like(objective: Objective, images: int = 2, *, ignored: float = 0.2) -> Tensor:
    """Return random masks of the model's image size, with a share of ignored pixels."""
    size = (images, *objective.model.config.image)
    targets = torch.randint(0, CLASSES, size, dtype=torch.uint8)
    return targets.masked_fill(torch.rand(size) < ignored, IGNORE)


def batch_for(objective: Objective, images: int = 2) -> tuple[Tensor, Tensor]:
    config = objective.model.config
    return torch.rand(images, config.channels, *config.image), masks_like(objective, images)


@given(
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    batch=st.integers(1, 3),
    ignored=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_the_loss_of_pixels_is_torchs_cross_entropy_of_labelled_pixels(
    grid: tuple[int, int], size: tuple[int, int], batch: int, ignored: float, seed: int
):
    torch.manual_seed(seed)
    scores = torch.randn(batch, CLASSES, *grid)
    targets = torch.randint(0, CLASSES, (batch, *size)).masked_fill(torch.rand(batch, *size) < ignored, IGNORE)
    loss = pixel_loss(scores, targets.to(torch.uint8))
    labelled = int((targets != IGNORE).sum())
    assert torch.isfinite(loss)
    if not labelled:
        assert loss == 0
        return
    upsampled = F.interpolate(scores, size, mode="bilinear")
    mean = F.cross_entropy(upsampled, targets, ignore_index=IGNORE)
    assert_close(loss, mean * labelled / targets.numel())


def test_two_micro_batches_average_to_the_full_batch_in_evaluation_mode():
    model = make("linear")  # whose batch normalisation has fixed statistics
    objective = PixelLabels(model).eval()
    pixels, targets = batch_for(objective, 4)
    parts = [objective(pixels[half], targets[half])[0] for half in (slice(0, 2), slice(2, 4))]
    assert_close(torch.stack(parts).mean(), objective(pixels, targets)[0])


def test_pixel_accuracy_counts_labelled_cells():
    scores = torch.tensor([[[[3.0, 0.0]], [[0.0, 3.0]]]])  # (1, 2, 1, 2): class 0, then class 1
    assert pixel_accuracy(scores, torch.tensor([[[0, 0]]], dtype=torch.uint8)) == 0.5
    assert pixel_accuracy(scores, torch.tensor([[[IGNORE, 1]]], dtype=torch.uint8)) == 1
    assert pixel_accuracy(scores, torch.full((1, 1, 2), IGNORE, dtype=torch.uint8)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given_masks", ["random", "one class", "all ignored", "one image ignored", "last class only"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_is_finite_and_every_parameter_has_a_gradient(kind: str, given_masks: str, precision: str):
    objective = build_segmentation(make(kind).train())
    pixels, targets = batch_for(objective)
    if given_masks == "one class":
        targets.zero_()
    elif given_masks == "last class only":
        targets.fill_(CLASSES - 1)
    elif given_masks == "all ignored":
        targets.fill_(IGNORE)
    elif given_masks == "one image ignored":
        targets[0] = IGNORE
    wrapped = MixedPrecision(objective) if precision == "bf16" else objective
    loss, metrics = wrapped(pixels, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(torch.isfinite(value) for value in (loss, *metrics.values()))
    for name, parameter in objective.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@given(queries=st.integers(1, 5), classes=st.integers(1, 4), seed=st.integers(0, 99))
def test_matching_is_the_cheapest_of_all_assignments(queries: int, classes: int, seed: int):
    torch.manual_seed(seed)
    prediction = QueryPrediction(torch.randn(1, queries, classes + 1), 3 * torch.randn(1, queries, 4, 4))
    targets = torch.randint(0, classes, (1, 8, 8), dtype=torch.uint8)
    present = targets.unique().tolist()
    torch.manual_seed(seed)
    found = match(prediction, targets, 50)
    torch.manual_seed(seed)
    points = torch.rand(1, 50, 2)
    costs = pair_costs(prediction, neighbours(targets, torch.tensor([0]), points), points, classes)[0].numpy()
    pairs = min(queries, len(present))
    cheapest = min(
        sum(costs[query, one] for query, one in zip(chosen, ordered, strict=True))
        for chosen in itertools.combinations(range(queries), pairs)
        for ordered in itertools.permutations(present, pairs)
    )
    assert len(found.queries.unique()) == len(found.classes.unique()) == len(found.queries) == pairs
    assert costs[found.queries, found.classes].sum() == pytest.approx(cheapest, abs=1e-4)


def test_a_query_that_predicts_a_mask_is_matched_with_it():
    targets = torch.zeros(1, 16, 16, dtype=torch.uint8)
    targets[:, :, 8:] = 2
    masks = torch.full((1, 3, 16, 16), -9.0)
    masks[0, 2, :, :8], masks[0, 0, :, 8:] = 9.0, 9.0
    found = match(QueryPrediction(torch.zeros(1, 3, 4), masks), targets, 100)
    assert sorted(zip(found.queries.tolist(), found.classes.tolist(), strict=True)) == [(0, 2), (2, 0)]
    swapped = found._replace(classes=found.classes.flip(0))
    for right, wrong in zip(*(mask_losses(masks, targets, one, 100) for one in (found, swapped)), strict=True):
        assert right < 0.2 * wrong


def test_predictions_that_are_not_finite_are_matched_last():
    targets = torch.zeros(1, 8, 8, dtype=torch.uint8)
    masks = torch.zeros(1, 3, 8, 8)
    masks[0, 0] = torch.nan
    masks[0, 1] = torch.inf
    found = match(QueryPrediction(torch.zeros(1, 3, 2), masks), targets, 20)
    assert found.queries.tolist() == [2]


def test_dice_of_sharp_masks_is_the_closed_form():
    logits = torch.tensor([[50.0, 50.0, -50.0, -50.0], [50.0, 50.0, 50.0, 50.0], [-50.0, -50.0, -50.0, -50.0]])
    members = torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    ones = torch.ones_like(members)
    # 1 - (2·|A ∩ B| + 1) / (|A| + |B| + 1)
    assert_close(dice_loss(logits, members, ones), torch.tensor([1 - 3 / 5, 0.0, 0.0]))
    assert_close(point_cross_entropy(logits, members, ones), torch.tensor([25.0, 0.0, 0.0]))


@given(seed=st.integers(0, 99), height=st.integers(1, 9), width=st.integers(1, 9))
def test_membership_at_points_is_torchs_grid_sample_of_binary_masks(seed: int, height: int, width: int):
    torch.manual_seed(seed)
    targets = torch.randint(0, 4, (2, height, width), dtype=torch.uint8)
    targets[targets == 3] = IGNORE
    images, classes = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2])
    points = torch.rand(3, 40, 2)
    around = neighbours(targets, images, points)
    binary = (targets[images] == classes[:, None, None]).float()
    assert_close(around.membership(classes), sample_logits(binary[:, None], points)[:, 0], atol=1e-5, rtol=0)
    ignored, all_pixels = (targets[images] == IGNORE).float(), torch.ones(3, height, width)
    ignored, inside = (sample_logits(one[:, None], points)[:, 0] for one in (ignored, all_pixels))
    assert_close(around.labelled(), 1 - ignored / inside, atol=1e-5, rtol=0)


def test_what_is_predicted_of_ignored_pixels_does_not_matter():
    targets = torch.zeros(1, 32, 32, dtype=torch.uint8)
    targets[:, 8:] = 1
    targets[:, :, 16:] = IGNORE
    masks = torch.randn(1, 4, 32, 32)
    changed = masks.clone()
    changed[..., 18:] += 100 * torch.randn(1, 4, 32, 14)
    classes = torch.randn(1, 4, 3)
    points = torch.rand(1, 300, 2)
    around = neighbours(targets, torch.tensor([0]), points)
    assert_close(
        pair_costs(QueryPrediction(classes, masks), around, points, 2),
        pair_costs(QueryPrediction(classes, changed), around, points, 2),
    )
    members, labelled = around.membership(torch.tensor([1])), around.labelled()
    logits = [sample_logits(one, points)[:, 0] for one in (masks, changed)]
    for loss in (dice_loss, point_cross_entropy):
        assert_close(*(loss(one, members, labelled) for one in logits))


def test_most_points_are_uncertain_and_none_of_those_is_ignored():
    masks = torch.full((1, 16, 16), 9.0)
    masks[:, 8:, 8:] = 0.1  # uncertain in a quarter, of which half is ignored
    targets = torch.zeros(1, 16, 16, dtype=torch.uint8)
    targets[:, 12:] = IGNORE
    points = uncertain_points(masks, targets, torch.tensor([0]), 100)
    assert points.shape == (1, 100, 2)
    x, y = points[0, :25].T  # of 300 points about 38 lie there
    assert (x > 0.45).all()
    assert ((y > 0.45) & (y <= 0.75)).all()


def test_the_class_loss_is_weighted_cross_entropy():
    logits = torch.randn(2, 3, 5)
    matches = Matches(torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1]), torch.tensor([3, 0, 1]))
    targets = torch.tensor([[4, 4, 3], [0, 1, 4]])
    log_p = logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]
    weights = torch.where(targets == 4, 0.1, 1.0)
    assert_close(class_loss(logits, matches), -(weights * log_p).sum() / weights.sum())


def test_more_classes_than_queries_leaves_some_without_a_query():
    targets = torch.arange(16, dtype=torch.uint8).view(1, 4, 4)
    prediction = QueryPrediction(torch.randn(1, 3, 17), torch.randn(1, 3, 4, 4))
    found = match(prediction, targets, 30)
    assert len(found.queries) == 3
    assert torch.isfinite(set_loss([prediction], targets)[0])


def test_masked_attention_is_annealed_as_in_eomts_recipe_for_ade20k():
    steps, starts, ends = 39_120, (6520, 13040, 19560, 26080), (13040, 19560, 26080, 32600)
    for step in (0, 6519, 6520, 10_000, 13_040, 20_000, 30_000, 32_600, 39_119):
        expected = [
            (1 - np.clip((step - start) / (end - start), 0, 1)) ** 0.9 for start, end in zip(starts, ends, strict=True)
        ]
        assert mask_probabilities(step, steps, 4) == pytest.approx(expected)


def test_the_loop_anneals_masked_attention_by_the_step():
    objective = build_segmentation(make("queries").train())
    assert isinstance(objective, MaskSet)
    objective.at_step(0, 90)
    assert objective.mask_probability.tolist() == [1.0]
    objective.at_step(45, 90)
    assert objective.mask_probability.tolist() == pytest.approx([0.5**0.9])
    objective.at_step(89, 90)
    assert objective.mask_probability.tolist() == [0.0]
    assert "mask_probability" not in objective.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_loss_and_gradients(kind: str):
    objective = build_segmentation(make(kind).train())
    pixels, targets = batch_for(objective)
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        loss, _ = objective(pixels, targets)
        results.append((loss, *torch.autograd.grad(loss, list(objective.parameters()))))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_other_models_and_objectives_are_declined_with_the_reason():
    with pytest.raises(ConfigError, match="this is a ViT"):
        build_segmentation(make("token"))


def test_without_scipy_queries_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    with pytest.raises(ConfigError, match=r"vitkit\[dense\]"):
        build_segmentation(make("queries"))
    build_segmentation(make("linear"))


def test_a_set_loss_is_no_cuda_graph():
    objective = build_segmentation(make("queries"))
    plan = SimpleNamespace(accumulate=1, micro=1)
    with pytest.raises(ConfigError, match=r"cuda_graph = yes does not go with this objective"):
        should_capture("yes", objective, plan, Processes(torch.device("cuda")), "bf16", "none")  # type: ignore[arg-type]
    assert not should_capture("auto", objective, plan, Processes(torch.device("cuda")), "bf16", "none")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_has_every_class_and_leaves_running_statistics_alone(kind: str):
    objective = build_segmentation(make(kind).train())
    pixels, targets = random_batch(objective, 3, CPU)
    assert targets.dtype == torch.uint8
    assert targets.shape == (3, *objective.model.config.image)
    assert targets.unique().tolist() == list(range(CLASSES))
    before = {name: tensor.clone() for name, tensor in objective.named_buffers()}
    dry_run(objective, objective, 3, CPU)
    assert all(torch.equal(before[name], tensor) for name, tensor in objective.named_buffers())
    objective(pixels, targets)
    changed = [name for name, tensor in objective.named_buffers() if not torch.equal(before[name], tensor)]
    assert bool(changed) == (kind == "linear")


def test_running_statistics_are_the_same_in_mixed_precision_and_part_of_a_checkpoint(tmp_path: Path):
    statistics = {}
    for precision in ("fp32", "bf16"):
        torch.manual_seed(1)
        objective = build_segmentation(make("linear").train())
        wrapped: Any = MixedPrecision(objective) if precision == "bf16" else objective
        wrapped(*batch_for(objective))
        norm = objective.model.head.norm
        statistics[precision] = torch.cat([norm.running_mean, norm.running_var])
    assert statistics["bf16"].dtype == torch.float32
    assert_close(statistics["bf16"], statistics["fp32"], atol=2e-2, rtol=2e-2)  # bf16 has 8 bits
    optimizer = build_optimizer(objective, Fit(optimizer=SGD()), fused=False)
    state = checkpoint.state_of(objective, optimizer, None)
    assert torch.equal(state["weights.model.head.norm.running_mean"], norm.running_mean)
    assert torch.equal(state["weights.model.head.norm.running_var"], norm.running_var)


def test_the_loss_of_pixels_compiles_as_one_graph():
    objective = build_segmentation(make("linear").eval())
    pixels, targets = batch_for(objective)
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    assert_close(compiled(pixels, targets), objective(pixels, targets))


def test_mask_queries_train_compiled_up_to_the_matching():
    objective = build_segmentation(make("queries").train())
    pixels, targets = batch_for(objective)
    plain = copy.deepcopy(objective)
    objective.before_compiling()
    compiled = torch.compile(objective, backend="aot_eager")
    torch.manual_seed(3)
    loss, _ = compiled(pixels, targets)
    loss.backward()
    torch.manual_seed(3)
    expected, _ = plain(pixels, targets)
    assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    assert all(parameter.grad is not None for parameter in objective.parameters())


@pytest.mark.parametrize(
    ("name", "options"), [("mu/4+linear", {}), ("mu/8+queries", {"queries": 8, "query_blocks": 1})]
)
def test_both_heads_learn_to_tell_a_bright_box_from_a_dark_ground(name: str, options: dict[str, int]):
    torch.manual_seed(0)
    model = vitkit.create(name, classes=2, image=32, **options).train()
    objective = build_segmentation(model)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    for step in range(60):
        corners = torch.randint(0, 2, (8, 2)) * 16
        targets = torch.zeros(8, 32, 32, dtype=torch.uint8)
        for image, (y, x) in enumerate(corners.tolist()):
            targets[image, y : y + 16, x : x + 16] = 1
        pixels = (0.2 + 0.6 * targets[:, None].float()).expand(-1, 3, -1, -1) + 0.05 * torch.randn(8, 3, 32, 32)
        objective.at_step(step, 60)
        loss, metrics = objective(pixels, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert metrics["pixel_accuracy"] > 0.95
    model.eval()
    scores = F.interpolate(model(objective.normalise(pixels)), (32, 32), mode="bilinear")
    assert (scores.argmax(1) == targets).float().mean() > 0.9


@pytest.mark.parametrize("name", ["mu/8+linear", "mu/8+queries"])
def test_a_run_starts_from_the_weights_of_a_segmenter(name: str, tmp_path: Path):
    options = {"query_blocks": 1, "queries": 6} if "queries" in name else {}
    model = vitkit.create(name, classes=3, image=(32, 16), **options)
    with torch.no_grad():
        model.head.logits.weight.normal_()
    vitkit.save(model, tmp_path)
    config = Fit(objective="segment", weights=str(tmp_path), image=(16, 24), stochastic_depth=0.1, channels=1)
    again, _ = initial_model(config, ("sky", "road"), multilabel=False)
    assert again.backbone.config.stochastic_depth == pytest.approx(again.backbone.encoder.blocks[-1].drop) == 0.1
    assert (again.config.image, again.config.channels, again.config.classes) == ((16, 24), 1, 2)
    assert not again.head.logits.weight.any()
    if options:
        assert torch.equal(again.head.queries, model.head.queries)


def test_the_other_head_is_put_on_the_backbone_of_a_segmenter(tmp_path: Path):
    model = vitkit.create("mu/8+linear", classes=3, image=(32, 16))
    vitkit.save(model, tmp_path)
    settings = Segment(head="queries", queries=5, query_blocks=1)
    config = Fit(objective="segment", weights=str(tmp_path), segment=settings)
    again, description = initial_model(config, ("sky", "road"), multilabel=False)
    assert again.config.head == "queries"
    assert "5 mask queries in the last block for 2 classes, new" in description
    for name, tensor in model.backbone.state_dict().items():
        assert torch.equal(again.backbone.state_dict()[name], tensor)


@pytest.mark.parametrize(("asked", "numbers"), [({"queries": 6}, (6, 1)), ({"queries": 9}, (9, 1))])
def test_other_numbers_of_queries_than_those_of_the_weights_make_a_new_head(
    asked: dict[str, int], numbers: tuple[int, int], tmp_path: Path
):
    model = vitkit.create("mu/8+queries", classes=2, image=(32, 16), queries=6, query_blocks=1)
    vitkit.save(model, tmp_path)
    settings = Segment(head="queries", **asked)
    config = Fit(objective="segment", weights=str(tmp_path), segment=settings)
    again, description = initial_model(config, ("sky", "road"), multilabel=False)
    assert (again.config.queries, again.config.query_blocks) == numbers
    assert description.endswith("new") == (numbers != (6, 1))
    assert len(again.head.queries) == numbers[0]
