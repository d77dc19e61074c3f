"""Looking into a model and extracting its features on a CUDA device, beside the same on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluate.small import small_model, some_fashion
from tests.inspect.test_attention import TRANSFORMERS
from tests.model.kinds import images_for, make
from vitkit.evaluate.features import Extractor
from vitkit.evaluate.linear import regress
from vitkit.inspect.attention import attention_maps
from vitkit.inspect.dense import dense_features
from vitkit.inspect.distance import attention_distance
from vitkit.inspect.embeddings import filter_components, position_similarity
from vitkit.inspect.relevance import relevance
from vitkit.inspect.rollout import rollout

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def exactly() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_every_analysis_is_that_of_the_cpu(kind: str):
    model = make(kind)
    images = images_for(model, 3)

    def look() -> dict[str, np.ndarray]:
        found = {
            "attention": attention_maps(model, images),
            "rollout": rollout(model, images),
            "literal": rollout(model, images, identity=False),
            "dense": dense_features(model, images),
            "distance": attention_distance(model, images).pictures,
            "filters": filter_components(model).components,
        }
        if model.config.classes:
            found["relevance"] = relevance(model, images, classes=3).maps
        if model.config.positions not in ("none", "relative"):
            found["positions"] = position_similarity(model)
        return found

    here = look()
    model.to(DEVICE)
    for name, there in look().items():
        np.testing.assert_allclose(there, here[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_features_and_a_linear_probe_are_those_of_the_cpu(tmp_path: Path):
    split = some_fashion().splits["test"]
    here, there = (
        Extractor(model=small_model(), device=device, place=tmp_path / device)(split) for device in ("cpu", DEVICE)
    )
    np.testing.assert_allclose(there.values, here.values, rtol=1e-3, atol=1e-4)
    one, other = (regress(here.values, here.labels, 0.01, device=device) for device in ("cpu", DEVICE))
    np.testing.assert_allclose(other.weights.cpu(), one.weights, atol=1e-4)
    assert other.classify(here.values).tolist() == one.classify(here.values).tolist()
