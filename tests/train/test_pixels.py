"""Next- and masked-pixel prediction: the losses by hand, a run that beats a histogram, and what its model can do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import vitkit
from tests.model.kinds import randomise
from tests.model.test_igpt import make
from vitkit.cli.main import main
from vitkit.config.resolve import resolve
from vitkit.config.schema import Masked
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError
from vitkit.model.igpt import ImageGPT
from vitkit.model.igpt_sampling import bits_per_pixel
from vitkit.train.objectives.labels import Labels
from vitkit.train.objectives.pixels import LabelsAndPixels, MaskedPixel, NextPixel

SIDE, COLOURS = 6, 16
TINY = {"depth": 1, "width": 32, "mlp": 64, "heads": 2, "colours": COLOURS}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return images of stripes along rows or columns, two classes: pixels tell the next one, a position nothing."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", 600), ("test", 100)):
        labels = rng.integers(2, size=count)
        lines = rng.integers(0, 256, (count, SIDE, 3)).repeat(SIDE, axis=1).reshape(count, SIDE, SIDE, 3)
        lines = np.where(labels[:, None, None, None] == 0, lines, lines.swapaxes(1, 2))
        arrays |= {f"x_{split}": lines.astype(np.uint8), f"y_{split}": labels}
    path = tmp_path_factory.mktemp("stripes") / "stripes.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def pretrained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> vitkit.Run:
    out = tmp_path_factory.mktemp("runs") / "pre"
    settings: dict[str, Any] = {"objective": "next-pixel", "model": f"iGPT-mu/{SIDE}", "options": TINY}
    settings |= {"steps": 150, "batch": 64, "lr": 1e-2, "weights": "none", "workers": 0, "augment": {"crop": None}}
    return vitkit.fit(data, out=out, **settings)


def inputs(model: ImageGPT, path: Path, split: str) -> torch.Tensor:
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    with np.load(path) as arrays:
        return torch.stack([transform(image) for image in arrays[f"x_{split}"]])


def test_the_loss_of_the_next_pixel_is_its_likelihood_written_out():
    model = randomise(make(classes=0, image=(2, 3)))
    pixels = torch.rand(3, 3, 2, 3)
    loss, metrics = NextPixel(model)(pixels)
    tokens = model.quantise(pixels * 2 - 1)
    logs = []
    for image in tokens:
        for pixel in range(6):
            logits = model.next_colour(model.encode(model.embed(image[None])))[0, pixel].double()
            logs.append(logits[image[pixel]] - logits.exp().sum().log())
    torch.testing.assert_close(loss.double(), -torch.stack(logs).mean(), atol=1e-5, rtol=0)
    torch.testing.assert_close(metrics["bits_per_pixel"], bits_per_pixel(model, tokens).mean(), atol=1e-5, rtol=0)


def test_masked_pixels_are_counted_and_the_visible_ones_are_not_scored():
    model = randomise(make(classes=0, causal=False, image=(4, 5)))
    objective = MaskedPixel(model, Masked(rate=0.15))
    seen: list[torch.Tensor] = []
    embed = model.embed
    model.embed = lambda tokens, hidden=None: seen.append(hidden) or embed(tokens, hidden)  # type: ignore[method-assign]
    pixels = torch.rand(8, 3, 4, 5)
    torch.manual_seed(3)
    loss, _ = objective(pixels)
    (hidden,) = seen
    assert hidden.sum(1).tolist() == [3] * 8  # 15 % of 20
    tokens = model.quantise(pixels * 2 - 1)
    logs = model.next_colour(model.encode(embed(tokens, hidden))).log_softmax(-1)
    expected = -logs.gather(-1, tokens[..., None])[..., 0][hidden].mean()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)


def test_the_joint_loss_is_the_sum_of_both_and_trains_every_layer():
    model = randomise(make())
    pixels, targets = torch.rand(4, 3, 5, 7), torch.eye(10)[:4]
    labels = {"multilabel": False, "smoothing": 0.1, "weights": None}
    joint, metrics = LabelsAndPixels(model, generative=0.5, **labels)(pixels, targets)
    joint.backward()
    assert all(one.grad is not None for one in model.parameters() if one is not model.embedding.palette)
    alone, _ = Labels(model, **labels)(pixels, targets)
    assert not model.next_colour.weight.requires_grad  # labels alone do not need it
    generative, expected = NextPixel(model)(pixels)
    torch.testing.assert_close(joint, alone + 0.5 * generative)
    torch.testing.assert_close(metrics["bits_per_pixel"], expected["bits_per_pixel"])
    with pytest.raises(ConfigError, match="this is a ViT"):
        LabelsAndPixels(vitkit.create("mu/4", image=8), generative=1.0, **labels)


def test_an_objective_refuses_the_model_that_is_not_its_own():
    with pytest.raises(ConfigError, match="this is a ViT"):
        NextPixel(vitkit.create("mu/4", image=8))
    with pytest.raises(ConfigError, match="causal = false"):
        NextPixel(make(causal=False))
    with pytest.raises(ConfigError, match="causal = true"):
        MaskedPixel(make(), Masked())


def test_settings_give_each_objective_its_model_and_refuse_what_it_does_not_read(data: Path):
    base = {"data": str(data), "model": f"iGPT-mu/{SIDE}", "weights": "none"}
    config, _, _ = resolve({**base, "objective": "masked-pixel"}, pretraining=True)
    assert config.options == {"causal": False}
    assert config.image == (SIDE, SIDE)
    assert resolve({**base, "objective": "next-pixel"}, pretraining=True)[0].options == {}
    for objective, masked in (("masked-pixel", {"target": "4x4"}), ("next-pixel", {"rate": 0.2})):
        with pytest.raises(ConfigError, match="would change nothing"):
            resolve({**base, "objective": objective, "masked": masked}, pretraining=True)


def test_bits_per_pixel_fall_below_those_of_a_histogram_for_each_position(pretrained: vitkit.Run, data: Path):
    model = pretrained.model
    assert isinstance(model, ImageGPT)
    train, test = (model.quantise(inputs(model, data, split)) for split in ("train", "test"))
    counts = torch.stack([column.bincount(minlength=COLOURS) for column in train.T]) + 1.0  # (N, K), add-one smoothing
    shares = counts / counts.sum(1, keepdim=True)
    histogram = -shares[torch.arange(SIDE**2), test].log2().mean().item()
    assert histogram > 3.8  # of log2(16) = 4: a position tells nothing
    assert bits_per_pixel(model, test).mean().item() < 0.75 * histogram
    palette = model.embedding.palette
    assert len(palette.unique(dim=0)) == COLOURS
    assert palette.abs().max() <= 1


def test_a_stopped_run_goes_on_with_its_own_palette(pretrained: vitkit.Run, data: Path, tmp_path: Path):
    settings = {"objective": "next-pixel", "model": f"iGPT-mu/{SIDE}", "options": TINY, "weights": "none", "workers": 0}
    whole = vitkit.fit(data, out=tmp_path / "whole", steps=6, batch=16, save_every=3, **settings)
    # the model alone is removed: resuming starts from the last checkpoint, in which the palette has to be
    for name in ("model.safetensors", "model.json"):
        (tmp_path / "whole" / name).unlink()
    expected = whole.model.state_dict()
    assert main(["resume", str(tmp_path / "whole"), "--workers", "0"]) in (0, None)
    for name, tensor in vitkit.load(tmp_path / "whole").state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_fine_tuned_model_answers_alike_in_python_and_onnx(pretrained: vitkit.Run, data: Path, tmp_path: Path):
    run = vitkit.fit(data, weights=pretrained.source, out=tmp_path / "fine", steps=40, batch=64, lr=0.05, workers=0)
    assert run.evaluate(data).top1.value > 0.8  # two classes; chance is a half
    exported = tmp_path / "model.onnx"
    run.export(exported)
    with np.load(data) as arrays:
        images = arrays["x_test"][:5]
    probabilities, _ = onnxruntime.InferenceSession(exported).run(None, {"images": images})
    model = run.model
    with torch.no_grad():
        logits = model(inputs(model, data, "test")[:5])
    np.testing.assert_allclose(probabilities, logits.softmax(-1).numpy(), atol=1e-4)


def test_every_layer_is_probed_and_the_best_is_chosen_on_dev_images(
    pretrained: vitkit.Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    alone = [pretrained.probe(data, "linear", layers=[0], workers=0)]
    both = pretrained.probe(data, "linear", layers="all", workers=0)
    assert [score.layer for score in both.layers] == ["block0"]
    assert both.top1 == alone[0].top1
    vit = randomise(vitkit.create("mu/3", image=6, classes=2))
    vitkit.save(vit, tmp_path / "vit")
    arguments = ["probe", str(tmp_path / "vit"), str(data), "--method", "linear", "--layer", "all", "--workers", "0"]
    main([*arguments, "--out", str(tmp_path / "curve.png")])
    printed = capsys.readouterr().out
    assert "block0" in printed
    assert "block1" in printed
    assert printed.count("best on the dev images") == 1
    assert (tmp_path / "curve.png").stat().st_size > 1000
    result = vitkit.Run(tmp_path / "vit").probe(data, "linear", layers="all", workers=0)
    best = max(result.layers, key=lambda score: score.dev)
    assert (result.layer, result.top1) == (best.layer, best.top1)
    with pytest.raises(ConfigError, match="--method linear"):
        pretrained.probe(data, "knn", layers="all")
    with pytest.raises(ConfigError, match="there is no layer 7"):
        pretrained.probe(data, "linear", layers=[7])


def test_inspect_draws_the_completions_and_only_of_models_that_make_them(
    pretrained: vitkit.Run, data: Path, tmp_path: Path
):
    from PIL import Image

    (tmp_path / "images").mkdir()
    with np.load(data) as arrays:
        for index in range(2):
            Image.fromarray(arrays["x_test"][index]).save(tmp_path / "images" / f"{index}.png")
    page = pretrained.inspect(tmp_path / "images", tmp_path / "out", sampling={"samples": 3, "temperature": 0.5})
    drawn = page.inspection.completions
    assert drawn is not None
    assert drawn.completed.shape == (2, 3, SIDE, SIDE, 3)
    upper = SIDE // 2
    assert (drawn.completed[:, :, :upper] == drawn.original[:, None, :upper]).all()
    assert math.isfinite(page.record()["completions"]["bits_per_pixel"][0])
    with Image.open(tmp_path / "out/completions.png") as sheet:
        assert sheet.width > sheet.height  # original, given half and three samples; two images
    assert "sample 3" in page.path.read_text(encoding="utf-8")
    vitkit.save(vitkit.create("mu/3", image=6), tmp_path / "vit")
    with pytest.raises(vitkit.VitkitError, match="a ViT does not predict pixels"):
        vitkit.Run(tmp_path / "vit").inspect(tmp_path / "images", tmp_path / "other", sampling={"samples": 1})
