"""`--fast`: which engine is chosen and which is rejected. Timings and CPU instructions are faked; nothing is timed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitkit
from tests.compute.test_int8 import use_plain_int8_product
from tests.model.kinds import make
from tests.predict.small_model import rounding
from vitkit.data.sources.fashion import open_fashion
from vitkit.predict import engines, fast
from vitkit.predict.agreement import measure_agreement
from vitkit.predict.engines import Compute, Engine, EngineCandidate
from vitkit.predict.samples import Samples, package_samples

VNNI, BF16 = {"avx512_vnni"}, {"avx512_bf16"}


@pytest.fixture
def classifier() -> vitkit.Classifier:
    return vitkit.Classifier(make("token"))


def fastest_engine(classifier: vitkit.Classifier, samples: Samples | None = None) -> Engine:
    return fast.fastest_engine(classifier.model, classifier.device, samples=samples)


@pytest.fixture
def offer(classifier: vitkit.Classifier, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Offer candidates with fake speedups, in the order of trying them; return the list of those that were built."""

    def offer(*offers: tuple[str, float, Callable[[Tensor], Tensor]], slow: tuple[str, ...] = ()) -> list[str]:
        built: list[str] = []
        speedups: dict[Compute, float] = {}

        def candidate(name: str, speedup: float, change: Callable[[Tensor], Tensor]) -> EngineCandidate:
            def build() -> Compute:
                built.append(name)

                def compute(images: Tensor) -> Tensor:
                    return change(classifier.engine.logits(images))

                speedups[compute] = speedup
                return compute

            return EngineCandidate(name, build, slow_to_build=name in slow)

        candidates = [candidate(*each) for each in offers]
        monkeypatch.setattr(fast, "engine_candidates", lambda model, device: candidates)
        monkeypatch.setattr(fast, "measure_speedups", lambda exact, other, images: (speedups.get(other, 1.0),) * 2)
        return built

    return offer


def same(logits: Tensor) -> Tensor:
    return logits


def shifted(logits: Tensor) -> Tensor:
    return logits.roll(1, dims=1)


def failing(logits: Tensor) -> Tensor:
    raise RuntimeError("no such kernel\nand a long tail")


def test_the_fastest_engine_that_agrees_is_chosen(classifier, offer):
    offer(("slow", 1.2, same), ("fast", 2.5, same), ("middling", 1.9, same))
    description = fastest_engine(classifier).description
    assert description.startswith("fast: fast on cpu")
    assert "the model alone: 2.5 times exact on 1 image, 2.5 times exact on 8 images" in description
    assert "same class for 64 of 64 images (fashion, inside the package), probabilities within 0.0001" in description


def test_an_engine_that_disagrees_is_rejected_however_fast(classifier, offer):
    offer(("wrong", 9.0, shifted), ("nan", 9.0, lambda logits: logits * float("nan")), ("right", 1.5, same))
    assert fastest_engine(classifier).description.startswith("fast: right")


def test_if_nothing_is_better_the_exact_engine_stays_and_says_why(classifier, offer):
    offer(("wrong", 9.0, shifted), ("failing", 9.0, failing), ("no faster", 1.05, same))
    description = fastest_engine(classifier).description
    assert description.startswith(f"{classifier.engine.description}, because --fast found nothing better: ")
    assert "failing failed: RuntimeError: no such kernel" in description
    assert "long tail" not in description
    assert re.search(r"no faster; the model alone: 1\.[01] times exact", description)
    assert "wrong; same class for 0" in description


def test_an_engine_that_is_slow_to_build_is_tried_only_if_no_other_is_fast_enough(classifier, offer):
    built = offer(("quick", 1.9, same), ("late", 5.0, same), slow=("late",))
    assert fastest_engine(classifier).description.startswith("fast: quick")
    assert built == ["quick"]
    built = offer(("quick", 1.05, same), ("late", 5.0, same), slow=("late",))
    assert fastest_engine(classifier).description.startswith("fast: late")
    assert built == ["quick", "late"]


def test_samples_are_compared_on_instead_of_the_images_inside_the_package(classifier, offer):
    offer(("candidate", 2.0, same))
    samples = replace(package_samples(classifier.model), description="samples").spread(20)
    assert "same class for 20 of 20 images (samples)" in fastest_engine(classifier, samples).description


def test_ties_agree_and_nan_does_not():
    exact = np.array([[0.5, 0.48, 0.02], [0.9, 0.05, 0.05]], np.float32)
    turned = np.array([[0.49, 0.5, 0.01], [0.9, 0.05, 0.05]], np.float32)
    agreement = measure_agreement(exact, turned, tie=fast.TIE)
    assert (agreement.same, agreement.agree, fast.agrees(agreement)) == (1, 2, True)
    description = fast.describe_agreement(agreement, "data")
    assert description.startswith("same class for 1 and one about as likely for 1 of 2 images (data)")
    assert agreement.largest == pytest.approx(0.02, abs=float(np.finfo(np.float32).eps))
    for pair in ((exact, np.full_like(exact, np.nan)), (np.full_like(exact, np.nan), exact)):
        nothing = measure_agreement(*pair, tie=fast.TIE)
        assert (nothing.same, nothing.agree, fast.agrees(nothing)) == (0, 0, False)


def test_timing_compares_the_best_rounds_and_takes_turns():
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
    other = taking("other", itertools.cycle([7.0, 2.0]))
    assert fast.measure_speedups(exact, other, torch.zeros(3, 1, 2, 2), lambda: now) == (2.0, 2.0)
    assert order[:4] == ["other1", "exact1", "other1", "exact1"]
    assert order[-1] == "other8"


def test_fewer_threads_are_used_if_they_are_faster(classifier, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    speedups = iter([(1.5, 1.3), (1.4, 0.9)])
    monkeypatch.setattr(fast, "measure_speedups", lambda exact, other, images: next(speedups))
    engine = fast.with_fewer_threads(classifier.engine, torch.zeros(8, 3, 32, 32))
    assert engine.description.endswith("; then with 4 threads 1.5, 1.3 times")
    engine.logits(torch.zeros(1, 3, 32, 32))
    assert threads == [4, 8]


@pytest.fixture
def fake_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fake the instructions of the CPU, the installed packages and the speedups of the engines that it then offers."""

    def fake(instructions: set[str], missing: tuple[str, ...] = ("onnx",), **speedups: float) -> None:
        times: dict[Compute, float] = {}

        def timed(candidate: EngineCandidate) -> EngineCandidate:
            def build() -> Compute:
                compute = candidate.build()
                times[compute] = speedups[candidate.description.split()[0]]
                return compute

            return replace(candidate, build=build)

        use_plain_int8_product(monkeypatch)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        monkeypatch.setattr(engines, "cpu_instructions", lambda: instructions)
        for module in (engines, fast):
            monkeypatch.setattr(module, "missing_packages", lambda: list(missing))
        candidates = engines.engine_candidates
        monkeypatch.setattr(fast, "engine_candidates", lambda *args: [timed(one) for one in candidates(*args)])
        monkeypatch.setattr(fast, "measure_speedups", lambda exact, other, images: (times[other],) * 2)

    return fake


def test_without_instructions_and_packages_the_exact_engine_stays_with_a_hint(classifier, fake_cpu):
    fake_cpu({"avx2"}, missing=("onnx", "onnxscript", "onnxruntime"))
    description = fastest_engine(classifier).description
    assert description.startswith("exact: float32 on cpu, 1 thread, because --fast found nothing better")
    assert 'onnx and onnxscript and onnxruntime not installed: pip install "vitkit[export]"' in description


def test_candidates_depend_on_the_instructions_and_the_model(fake_cpu):
    vit, resnet = make("token"), vitkit.create("R50x1", image=32, classes=2)
    for instructions, of_vit, of_resnet in (
        (VNNI, ["int8 matrices"], []),
        (BF16, ["bf16"], ["bf16"]),
        ({"amx_int8", "amx_bf16"}, ["int8 matrices", "int8 matrices, bf16 attention", "bf16"], ["bf16"]),
        ({"avx2"}, [], []),
    ):
        fake_cpu(instructions)
        for model, expected in ((vit, of_vit), (resnet, of_resnet)):
            candidates = engines.engine_candidates(model, torch.device("cpu"))
            assert [candidate.description for candidate in candidates] == expected
    fake_cpu({"avx2"}, missing=())
    [last] = engines.engine_candidates(resnet, torch.device("cpu"))
    assert (last.description, last.slow_to_build) == ("onnxruntime, float32", True)


@pytest.mark.slow
def test_onnxruntime_gives_the_exact_logits(classifier):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    compute = engines._onnxruntime(classifier.model)
    for batch in (1, 3):
        images = torch.randn(batch, 3, 32, 32)
        exact = classifier.engine.logits(images)
        tolerance = rounding(classifier.model) * exact.abs().max().item()
        torch.testing.assert_close(compute(images), exact, atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def trained() -> vitkit.Classifier:
    """Random features with a head fitted in closed form: it tells most of fashion apart, by wide and narrow margins."""
    torch.manual_seed(0)
    model = vitkit.create("mu/8", image=32, classes=10, pool="gap").eval()
    classifier = vitkit.Classifier(model)
    images, labels = fashion(classifier)
    features = torch.from_numpy(classifier.embed(images)).double()
    targets = nn.functional.one_hot(labels, 10).double() * 20 - 2
    padded = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    solved = torch.linalg.solve(padded.T @ padded + 1e-2 * torch.eye(padded.shape[1]), padded.T @ targets).float()
    with torch.no_grad():
        model.head.logits.weight.copy_(solved[:-1].T)
        model.head.logits.bias.copy_(solved[-1])
    return classifier


def fashion(classifier: vitkit.Classifier) -> tuple[Tensor, Tensor]:
    split = open_fashion().splits["train"].select(np.arange(0, 6000, 10))
    images = torch.stack([classifier.preprocess(np.asarray(split.read(index))) for index in range(len(split))])
    return images, torch.from_numpy(split.labels)


@pytest.mark.parametrize(
    ("instructions", "speedups", "chosen"),
    [
        (VNNI, {"int8": 2.0}, "fast: int8 matrices"),
        (VNNI, {"int8": 1.0}, "exact: "),
        (BF16, {"bf16": 2.0}, "fast: bf16"),
        (BF16, {"bf16": 1.0}, "exact: "),
        (VNNI | BF16, {"int8": 3.0, "bf16": 2.0}, "fast: int8 matrices"),
        (VNNI | BF16, {"int8": 2.0, "bf16": 3.0}, "fast: bf16"),
        (VNNI | BF16, {"int8": 1.0, "bf16": 1.0}, "exact: "),
        (set(), {}, "exact: "),
    ],
)
def test_measured_speed_decides_and_a_trained_model_predicts_as_before(
    trained, fake_cpu, instructions, speedups, chosen
):
    images, labels = fashion(trained)
    exact = trained.engine.logits(images).argmax(1)
    assert (exact == labels).double().mean() > 0.6
    fake_cpu(instructions, **speedups)
    engine = fastest_engine(trained)
    assert engine.description.startswith(chosen)
    for batch in (1, 5, 64):
        predicted = torch.cat([engine.logits(part) for part in images[:128].split(batch)]).argmax(1)
        assert (predicted == exact[:128]).double().mean() >= 0.97


def test_a_fast_classifier_says_which_engine_it_uses(classifier, offer):
    offer(("candidate", 2.0, same))
    made = vitkit.Classifier(classifier.model, fast=True)
    assert made.engine.description.startswith("fast: candidate")
    assert len(made([np.zeros((9, 9, 3), np.uint8)] * 3)) == 3
