"""Fast on request: what is chosen, what is refused, that answers stay those of the exact model; nothing is timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitkit
from tests.model.kinds import KINDS, images_for, make
from vitkit.compute import int8
from vitkit.data.sources.fashion import open_fashion
from vitkit.predict import engines, fast
from vitkit.predict.engines import Compute, Way
from vitkit.predict.fast import agreement, quicken
from vitkit.predict.samples import inside

VITS = [kind for kind in KINDS if kind not in ("ResNet", "no head", "hybrid")]
needs_vnni = pytest.mark.skipif(
    not engines.instructions() & {"avx512_vnni", "amx_int8"}, reason="this CPU does not multiply bytes (no VNNI)"
)


@pytest.fixture
def classifier() -> vitkit.Classifier:
    return vitkit.Classifier(make("token"))


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Ways with made-up speeds, in the order in which they are tried; returns the list that tells which were built."""

    def offer(*offers: tuple[str, float, Callable[[Tensor], Tensor]], slow: tuple[str, ...] = ()) -> list[str]:
        built: list[str] = []
        times: dict[Compute, float] = {}

        def way(name: str, speed: float, change: Callable[[Tensor], Tensor]) -> Way:
            def build(given: vitkit.Classifier) -> Compute:
                built.append(name)
                exact = given.engine.logits

                def compute(images: Tensor) -> Tensor:
                    return change(exact(images))

                times[compute] = speed
                return compute

            return Way(name, build, slow_to_build=name in slow)

        made = [way(*offer) for offer in offers]
        monkeypatch.setattr(fast, "ways", lambda given: made)
        monkeypatch.setattr(fast, "race", lambda exact, other, pictures: (times.get(other, 1.0),) * 2)
        return built

    return offer


def same(logits: Tensor) -> Tensor:
    return logits


def other(logits: Tensor) -> Tensor:
    return logits.roll(1, dims=1)


def broken(logits: Tensor) -> Tensor:
    raise RuntimeError("no such kernel\nand a long tail")


def test_the_fastest_way_that_answers_alike_is_taken(classifier, offered):
    offered(("slow", 1.2, same), ("fast", 2.5, same), ("middling", 1.9, same))
    words = quicken(classifier).words
    assert words.startswith("fast: fast on cpu")
    assert "2.5 times exact on 1 picture, 2.5 times exact on 8 pictures" in words
    assert "same answer for 64 of 64 pictures (fashion, inside the package), probabilities within 0.0001" in words


def test_a_way_that_answers_otherwise_is_dropped_however_fast(classifier, offered):
    offered(("wrong", 9.0, other), ("nan", 9.0, lambda logits: logits * float("nan")), ("right", 1.5, same))
    assert quicken(classifier).words.startswith("fast: right")


def test_where_nothing_helps_exact_stays_and_says_why(classifier, offered):
    offered(("wrong", 9.0, other), ("failing", 9.0, broken), ("no faster", 1.05, same))
    engine = quicken(classifier)
    assert engine.logits is classifier.engine.logits
    assert engine.words.startswith(classifier.engine.words)
    assert "failing failed: RuntimeError: no such kernel" in engine.words
    assert "long tail" not in engine.words
    assert "no faster; 1.1 times exact" in engine.words or "no faster; 1.0 times exact" in engine.words
    assert "wrong; same answer for 0" in engine.words


def test_what_takes_long_to_build_is_tried_only_where_nothing_else_is_worth_it(classifier, offered):
    built = offered(("quick", 1.9, same), ("late", 5.0, same), slow=("late",))
    assert quicken(classifier).words.startswith("fast: quick")
    assert built == ["quick"]
    built = offered(("quick", 1.05, same), ("late", 5.0, same), slow=("late",))
    assert quicken(classifier).words.startswith("fast: late")
    assert built == ["quick", "late"]


def test_given_pictures_are_compared_on_instead_of_those_inside_the_package(classifier, offered):
    offered(("way", 2.0, same))
    words = quicken(classifier, replace(inside(classifier.model), words="given").spread(20)).words
    assert "same answer for 20 of 20 pictures (given)" in words


def test_ties_agree_and_nan_does_not():
    exact = np.array([[0.5, 0.48, 0.02], [0.9, 0.05, 0.05]], np.float32)
    turned = np.array([[0.49, 0.5, 0.01], [0.9, 0.05, 0.05]], np.float32)
    found = agreement(exact, turned, "here")
    assert (found.same, found.agree, found.enough) == (1, 2, True)
    assert found.words.startswith("same answer for 1 and about as likely a one for 1 of 2 pictures (here)")
    assert found.farthest == pytest.approx(0.02, abs=1e-6)
    nothing = agreement(exact, np.full_like(exact, np.nan), "here")
    assert (nothing.same, nothing.agree, nothing.enough) == (0, 0, False)


def test_a_race_compares_the_best_rounds_and_takes_turns():
    order: list[str] = []
    now = 0.0

    def taking(name: str, seconds: Iterator[float]) -> Compute:
        def compute(images: Tensor) -> Tensor:
            nonlocal now
            order.append(f"{name}{len(images)}")
            now += next(seconds)
            return images

        return compute

    exact = taking("exact", itertools.cycle([4.0, 9.0]))
    quick = taking("quick", itertools.cycle([7.0, 2.0]))
    assert fast.race(exact, quick, torch.zeros(3, 1, 2, 2), lambda: now) == (2.0, 2.0)
    assert order[:4] == ["quick1", "exact1", "quick1", "exact1"]
    assert order[-1] == "quick8"


def test_fewer_threads_are_taken_where_they_are_faster(classifier, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    speeds = iter([(1.5, 1.3), (1.4, 0.9)])
    monkeypatch.setattr(fast, "race", lambda exact, other, pictures: next(speeds))
    engine = fast.with_fewer_threads(classifier.engine, torch.zeros(8, 3, 32, 32))
    assert engine.words.endswith("; then with 4 threads 1.5, 1.3 times")
    engine.logits(torch.zeros(1, 3, 32, 32))
    assert seen == [4, 8]


def test_without_instructions_and_packages_exact_stays_with_a_hint(classifier, monkeypatch):
    monkeypatch.setattr(engines, "instructions", set)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    engine = quicken(classifier)
    assert engine.logits is classifier.engine.logits
    assert 'onnx and onnxscript and onnxruntime not installed: pip install "vitkit[export]"' in engine.words


def test_ways_follow_the_instructions_and_the_model(classifier, monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    resnet = vitkit.Classifier(vitkit.create("R50x1", image=32, classes=2))
    for flags, vit, convolutions in (
        ({"avx512_vnni"}, 1, 0),
        ({"avx512_bf16"}, 1, 1),
        ({"amx_int8", "amx_bf16"}, 2, 1),
        ({"avx2"}, 0, 0),
    ):
        monkeypatch.setattr(engines, "instructions", lambda flags=flags: flags)
        assert (len(engines.ways(classifier)), len(engines.ways(resnet))) == (vit, convolutions)


@pytest.mark.slow
def test_onnxruntime_gives_the_exact_answers(classifier):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    compute = engines._onnxruntime(classifier)
    for batch in (1, 3):
        images = torch.randn(batch, 3, 32, 32)
        torch.testing.assert_close(compute(images), classifier.engine.logits(images), atol=1e-4, rtol=1e-4)


@needs_vnni
@pytest.mark.parametrize(
    ("layer", "gain"),
    [(int8.ByToken, 1e-3), (int8.ByToken, 1.0), (int8.ByToken, 300.0), (int8.AfterGelu, 1.0), (int8.AfterGelu, 300.0)],
)
def test_a_layer_in_bytes_is_within_the_rounding_of_its_numbers(layer, gain):
    dense = nn.Linear(64, 48)
    x = torch.randn(2, 5, 64) * gain
    x = nn.functional.gelu(x) if layer is int8.AfterGelu else x
    with torch.inference_mode():
        truth, told = dense(x), layer(dense)(x.clone())
    # half a step of each of 64 numbers and weights, at the most
    reach = x.abs().amax() + 0.2
    steps = 64 * (0.5 * reach / 126 * dense.weight.abs().max() + 0.5 * dense.weight.abs().max() / 127 * x.abs().max())
    assert (told - truth).abs().max() < steps
    assert (told - truth).norm() < 0.03 * (truth - dense.bias).norm() + 1e-3


@needs_vnni
@pytest.mark.parametrize(
    "x",
    [torch.zeros(3, 64), torch.full((3, 64), 2.0), torch.full((3, 64), -2.0)],
    ids=["zeros", "all above", "all below"],
)
def test_numbers_of_one_sign_and_zeros_do_not_wrap_around(x):
    dense = nn.Linear(64, 16)
    with torch.inference_mode():
        torch.testing.assert_close(int8.ByToken(dense)(x), dense(x), atol=0.05, rtol=0.02)


@needs_vnni
@pytest.mark.parametrize("kind", VITS)
def test_every_vit_in_bytes_computes_nearly_what_it_did(kind):
    model = make(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = images_for(model, 11)
    with torch.inference_mode():
        truth = model(images)
        quick = int8.in_bytes(model)
        told = quick(images)
        assert told.shape == truth.shape
        assert (told - truth).norm() < 0.12 * (truth - truth.mean(0)).norm() + 0.02 * truth.norm()
        kept = {id(parameter) for parameter in model.parameters()}
        assert all(id(parameter) in kept for parameter in quick.parameters()), "weights were copied"
        torch.testing.assert_close(model(images), truth, atol=0, rtol=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@needs_vnni
def test_no_answer_in_bytes_depends_on_its_neighbours():
    model = make("token")
    images = images_for(model, 6)
    images[0] *= 50
    quick = int8.in_bytes(model)
    with torch.inference_mode():
        alone = torch.cat([quick(image) for image in images.split(1)])
        torch.testing.assert_close(quick(images), alone, atol=1e-4, rtol=1e-4)


@needs_vnni
def test_a_model_that_knows_its_pictures_answers_them_as_before(monkeypatch):
    """Random features, a head fitted in closed form: most of fashion is told apart, by margins wide and narrow."""
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    model = vitkit.create("mu/8", image=32, classes=10, pool="gap").eval()
    classifier = vitkit.Classifier(model)
    train = open_fashion().splits["train"].select(np.arange(0, 6000, 10))
    images = torch.stack([classifier.see(np.asarray(train.read(row))) for row in range(len(train))])
    features = torch.from_numpy(classifier.embed(images)).double()
    targets = nn.functional.one_hot(torch.from_numpy(train.labels), 10).double() * 20 - 2
    padded = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    solved = torch.linalg.solve(padded.T @ padded + 1e-2 * torch.eye(padded.shape[1]), padded.T @ targets).float()
    with torch.no_grad():
        model.head.logits.weight.copy_(solved[:-1].T)
        model.head.logits.bias.copy_(solved[-1])
    exact = classifier.engine.logits(images).argmax(1)
    assert (exact.numpy() == train.labels).mean() > 0.6
    monkeypatch.setattr(fast, "race", lambda exact, other, pictures: (2.0, 2.0))
    engine = quicken(classifier)
    assert engine.words.startswith("fast: int8 matrices")
    for batch in (1, 5, 64):
        told = torch.cat([engine.logits(part) for part in images[:128].split(batch)]).argmax(1)
        assert (told == exact[:128]).float().mean() >= 0.97


def test_a_classifier_asked_to_be_fast_says_how_it_computes(offered):
    offered(("way", 2.0, same))
    asked = vitkit.Classifier(make("gap"), fast=True)
    assert asked.engine.words.startswith("fast: way")
    assert len(asked([np.zeros((9, 9, 3), np.uint8)] * 3)) == 3
