"""BiT-HyperRule against the rule of the BiT paper (section 3.3), typed out, and from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.config.recipes import recipe
from vitkit.config.resolve import resolve
from vitkit.config.schema import SGD
from vitkit.data.image_sizes import DataSize
from vitkit.errors import ConfigError
from vitkit.train.schedule import lr_factor

# images: steps, mixup, Google's warm-up. "small tasks with fewer than 20 k labeled examples, medium with fewer than
# 500 k, and larger": 500, 10 k and 20 k steps; "MixUp with alpha 0.1 for medium and large tasks"
RULE = {
    1: (500, 0.0, 100),
    1_000: (500, 0.0, 100),
    19_999: (500, 0.0, 100),
    20_000: (10_000, 0.1, 500),
    499_999: (10_000, 0.1, 500),
    500_000: (20_000, 0.1, 500),
    1_281_167: (20_000, 0.1, 500),
}
# height, width: resized to, cropped to. "images with area smaller than 96 x 96 pixels are resized to 160 x 160 and
# cropped to 128 x 128; we resize larger images to 448 x 448 and take a 384 x 384-sized crop"
SIZES = {
    (32, 32): (160, 128),
    (64, 128): (160, 128),
    (96, 95): (160, 128),
    (96, 96): (448, 384),
    (375, 500): (448, 384),
}


@pytest.mark.parametrize("images", RULE)
@pytest.mark.parametrize("sides", SIZES)
@pytest.mark.parametrize("model", ["R50x1", "R152x2"])
def test_the_rule_is_that_of_the_paper(images: int, sides: tuple[int, int], model: str):
    data = DataSize(images=images, height=sides[0], width=sides[1], short_side=min(sides))
    config = recipe("bit_hyperrule", model, data)
    steps, mixup, warmup = RULE[images]
    resized, cropped = SIZES[sides]
    assert (config.model, config.recipe, config.weights) == (model, "bit_hyperrule", "default")
    assert (config.steps, config.batch, config.lr) == (steps, 512, 0.003)
    assert (config.augment.mixup, config.schedule.warmup) == (mixup, warmup)
    assert (config.image, config.augment.precrop, config.augment.crop) == ((cropped, cropped), resized, None)
    assert config.augment.flip
    assert config.resize == "squash"
    assert config.optimizer == SGD(momentum=0.9, weight_decay=0.0)
    assert config.clip == 0.0


@pytest.mark.parametrize("images", [1_000, 100_000, 1_000_000])
def test_the_rate_falls_to_a_tenth_after_30_60_and_90_percent(images: int):
    config = recipe("bit_hyperrule", data=DataSize(images=images, height=500, width=500, short_side=500))
    steps = config.steps or 0
    rates = [config.lr * lr_factor(config.schedule, step, steps) for step in range(steps)]
    for share, rate in ((0.29, 3e-3), (0.31, 3e-4), (0.59, 3e-4), (0.61, 3e-5), (0.89, 3e-5), (0.91, 3e-6)):
        assert rates[int(share * steps)] == pytest.approx(rate)
    falls = [step for step in range(1, steps) if rates[step] < 0.2 * rates[step - 1]]
    assert falls == [0.3 * steps, 0.6 * steps, 0.9 * steps]


@pytest.mark.parametrize(("side", "image"), [(32, 128), (120, 384)])
def test_the_recipe_takes_number_and_size_of_the_images_from_the_data(side: int, image: int, tmp_path: Path):
    pixels = np.zeros((side, side, 3), np.uint8)
    for index in range(8):
        (tmp_path / "photos" / "ab"[index % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels + np.uint8(index)).save(tmp_path / f"photos/{'ab'[index % 2]}/{index}.png")
    config, _, reason = resolve({"data": str(tmp_path / "photos"), "recipe": "bit_hyperrule"})
    assert (config.model, config.steps, config.image) == ("R50x1", 500, (image, image))
    assert f"images of {side} x {side} px" in reason
    asked, _, _ = resolve({"data": str(tmp_path / "photos"), "recipe": "bit_hyperrule", "steps": 7, "image": (64, 64)})
    assert (asked.steps, asked.image) == (7, (64, 64))


def test_another_crop_beside_the_rules_is_refused(tmp_path: Path):
    settings = {"data": "fashion", "recipe": "bit_hyperrule", "augment": {"crop": [0.5, 1.0]}}
    with pytest.raises(ConfigError, match=r"augment.crop would change nothing here: it is for augment.precrop = false"):
        resolve(settings)
