"""Analyses and features on a CUDA device, compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluate.small_model import small_model, some_fashion
from tests.inspect import reference
from tests.inspect.test_attention import TRANSFORMERS
from tests.model.kinds import images_for, make
from vitkit.compute.features import FeatureExtractor
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.dense import dense_features
from vitkit.inspect.distance import attention_distance
from vitkit.inspect.embeddings import filter_components, position_similarity
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.relevance import relevance
from vitkit.inspect.rollout import rollout
from vitkit.train.logistic_regression import fit_logistic_regression

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def full_float32_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_every_analysis_equals_the_cpu(kind: str):
    model = make(kind)
    images = images_for(model, 3)

    analyses: dict[str, Callable[[], np.ndarray]] = {
        "attention": lambda: attention_maps(model, images),
        "rollout": lambda: rollout(model, images),
        "rollout without identity": lambda: rollout(model, images, identity=False),
        "dense": lambda: dense_features(model, images),
        "distance": lambda: attention_distance(model, images).per_image,
        "filters": lambda: filter_components(model).components,
        "relevance": lambda: relevance(model, images, classes=3).maps,
        "positions": lambda: position_similarity(model),
    }

    def analyse() -> dict[str, np.ndarray | str]:
        results: dict[str, np.ndarray | str] = {}
        for name, analysis in analyses.items():
            try:
                results[name] = analysis()
            except DoesNotApply as reason:  # which analysis applies to which model is tested on the CPU
                results[name] = str(reason)
        return results

    on_cpu = analyse()
    assert isinstance(on_cpu["distance"], np.ndarray)
    model.to(DEVICE)
    for name, result in analyse().items():
        expected = on_cpu[name]
        if isinstance(expected, str):
            assert result == expected
        else:
            np.testing.assert_allclose(
                result, expected, rtol=8192 * reference.EPS, atol=1024 * reference.EPS, err_msg=name
            )


def test_features_and_a_linear_probe_equal_the_cpu(tmp_path: Path):
    split = some_fashion().splits["test"]
    cpu, cuda = (
        FeatureExtractor(model=small_model(), device=device, cache_folder=tmp_path / device)(split)
        for device in ("cpu", DEVICE)
    )
    np.testing.assert_allclose(cuda.values, cpu.values, rtol=8192 * reference.EPS, atol=1024 * reference.EPS)
    one, other = (fit_logistic_regression(cpu.values, cpu.labels, 0.01, device=device) for device in ("cpu", DEVICE))
    np.testing.assert_allclose(other.weights.cpu(), one.weights, atol=1024 * reference.EPS)
    assert other.classify(cpu.values).tolist() == one.classify(cpu.values).tolist()
