"""Weights of DINOv2, DINOv3, MAE, I-JEPA and DeiT in every verb: fine-tuned, then used as any other run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.docs.stand_ins import NO_WARMUP, SMALL, write_images
from tests.weights.families import save
from vitkit.cost import cost

FAMILIES = [
    "DINOv2 with registers, classifier",
    "DINOv3 with SwiGLU",
    "DeiT with teacher",
    *(pytest.param(family, marks=pytest.mark.slow) for family in ("DINOv2", "MAE", "I-JEPA")),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verbs") / "photos"
    write_images(folder, 0)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_every_family_go_through_every_verb(
    family: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save(family, tmp_path / "weights")
    settings: dict[str, Any] = {**SMALL, **NO_WARMUP, "image": 40, "start": "full", "layer_decay": 0.75}
    run = vitkit.fit(photos, weights=tmp_path / "weights", out=tmp_path / "run", **settings)
    before, after = vitkit.load(tmp_path / "weights", image=40), run.model
    assert after.config.classes == 3
    assert after.metadata.preprocessing.mean == (0.485, 0.456, 0.406)
    assert after.metadata.interpolation == before.metadata.interpolation
    trained = dict(before.named_parameters())
    assert any(not torch.equal(value, trained[name]) for name, value in after.named_parameters() if name in trained)

    image = photos / "cat" / "0.jpg"
    (prediction,) = run.predict(image)
    assert prediction.label in ("cat", "dog", "owl")
    assert run.embed(image).shape == (1, after.representation_width)
    assert 0 <= run.probe(photos, "knn").top1.value <= 1
    assert vitkit.Run(tmp_path / "weights").probe(photos, "knn").top1.value >= 0  # before any training, too
    assert run.inspect(image, tmp_path / "inspect").path.is_file()
    assert run.export(tmp_path / "model.pt2").path.is_file()
    assert cost(after.config).parameters == sum(parameter.numel() for parameter in after.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_answers_with_weights_of_every_family(family: str, tmp_path: Path):
    pytest.importorskip("fastapi")
    from tests.serve.asgi_client import JPEG_IMAGE, send
    from tests.serve.servers import image_form, make_pool

    save(family, tmp_path)
    classifier = vitkit.Classifier(vitkit.load(tmp_path, classes=3))
    answer = send("POST", "/v1/predict", pool=make_pool(small=classifier), files=image_form(JPEG_IMAGE))
    assert answer.status_code == 200, answer.text
