"""The recipes against the paper's Tables 3 and 4, copied from the paper; the others are complete and run."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import replace
from typing import Any

import pytest

from vitkit.cli.main import main
from vitkit.cli.training_options import TrainingOptions
from vitkit.config.recipes import RECIPES, has_row, pick_recipe, recipe
from vitkit.config.resolve import resolve
from vitkit.config.schema import SGD, Adam, AdamW, Fit, Masked
from vitkit.config.toml import from_tables, write
from vitkit.errors import ConfigError
from vitkit.model.config import ResNetConfig
from vitkit.model.variants import NAMED, configure
from vitkit.weights.label_free import label_free_family

# Table 3. model: epochs (the paper's alternatives), learning rate, decay, weight decay, dropout
JFT = {
    "B/32": ({7}, 8e-4, "linear", 0.1, 0.0),
    "B/16": ({7}, 8e-4, "linear", 0.1, 0.0),
    "L/32": ({7}, 6e-4, "linear", 0.1, 0.0),
    "L/16": ({7, 14}, 4e-4, "linear", 0.1, 0.0),
    "H/14": ({14}, 3e-4, "linear", 0.1, 0.0),
    "R50x1": ({7}, 1e-3, "linear", 0.1, 0.0),
    "R50x2": ({7}, 1e-3, "linear", 0.1, 0.0),
    "R101x1": ({7}, 8e-4, "linear", 0.1, 0.0),
    "R152x1": ({7}, 6e-4, "linear", 0.1, 0.0),
    "R152x2": ({7}, 6e-4, "linear", 0.1, 0.0),
    "R50+B/32": ({7}, 8e-4, "linear", 0.1, 0.0),
    "R50+B/16": ({7}, 8e-4, "linear", 0.1, 0.0),
    "R50+L/32": ({7}, 2e-4, "linear", 0.1, 0.0),
    "R50+L/16": ({7, 14}, 4e-4, "linear", 0.1, 0.0),
}
IMAGENET_21K = {
    "B/32": ({90}, 1e-3, "linear", 0.03, 0.1),
    "B/16": ({90}, 1e-3, "linear", 0.03, 0.1),
    "L/32": ({30, 90}, 1e-3, "linear", 0.03, 0.1),
    "L/16": ({30, 90}, 1e-3, "linear", 0.03, 0.1),
}
IMAGENET = {model: ({300}, 3e-3, "cosine", 0.3, 0.1) for model in ("B/32", "B/16", "L/32", "L/16")}
TABLE_3 = {
    (f"{start}_{epochs}ep" if start != "imagenet_pretrain" else start, model): (epochs, *row[1:])
    for start, rows in {
        "jft_pretrain": JFT,
        "imagenet21k_pretrain": IMAGENET_21K,
        "imagenet_pretrain": IMAGENET,
    }.items()
    for model, row in rows.items()
    for epochs in sorted(row[0])
}

# Table 4 and, for ImageNet at 512 and 518 px, Table 2.
# recipe: steps, learning rates to choose from, warm-up (Google's code), image, Polyak averaging
FOUR = {0.001, 0.003, 0.01, 0.03}
TABLE_4 = {
    "imagenet_transfer_384": (20_000, {0.003, 0.01, 0.03, 0.06}, 500, 384, 0.0),
    "imagenet_transfer_512": (20_000, {0.003, 0.01, 0.03, 0.06}, 500, 512, 0.9999),
    "imagenet_transfer_518": (20_000, {0.003, 0.01, 0.03, 0.06}, 500, 518, 0.9999),
    "cifar_transfer": (10_000, FOUR, 500, 384, 0.0),
    "pets_transfer": (500, FOUR, 100, 384, 0.0),
    "flowers_transfer": (500, FOUR, 100, 384, 0.0),
    "vtab_transfer": (2_500, {0.01}, 500, 384, 0.0),
}


def test_table_3_has_26_rows():
    assert len(TABLE_3) == 16 + 6 + 4


@pytest.mark.parametrize(("name", "model"), TABLE_3)
def test_pre_training_is_as_in_table_3(name: str, model: str):
    epochs, rate, decay, weight_decay, dropout = TABLE_3[name, model]
    config = recipe(name, model)
    assert config.model == model
    assert config.weights == "none"
    assert config.objective == "labels"
    assert (config.batch, config.image) == (4096, (224, 224))
    assert (config.epochs, config.steps) == (epochs, None)
    assert (config.lr, config.schedule.kind, config.schedule.warmup) == (rate, decay, 10_000)
    # Adam, with the decoupled weight decay of big_vision, Google's later code
    assert config.optimizer == AdamW(betas=(0.9, 0.999), weight_decay=weight_decay)
    assert (config.dropout or 0.0) == dropout
    assert config.clip == (1.0 if name == "imagenet_pretrain" else 0.0)


def test_the_recipes_of_table_3_have_no_other_rows():
    names = {name for name, _ in TABLE_3} - {"imagenet_pretrain"}
    rows = {(name, model) for name in names for model in NAMED if has_row(name, model)}
    assert rows == {row for row in TABLE_3 if row[0] in names}


@pytest.mark.parametrize("name", TABLE_4)
@pytest.mark.parametrize("model", ["B/16", "L/16", "R50+B/16", "R152x2", "H/14"])
def test_fine_tuning_is_as_in_table_4(name: str, model: str):
    steps, rates, warmup, side, average = TABLE_4[name]
    config = recipe(name, model)
    stride = {"H/14": 14, "R152x2": 1}.get(model, 16)
    side = side // stride * stride
    assert config.model == model
    assert (config.batch, config.image) == (512, (side, side))
    assert (config.steps, config.epochs) == (steps, None)
    assert set(config.lr_candidates or [config.lr]) == rates
    assert config.lr in rates
    assert (config.schedule.kind, config.schedule.warmup) == ("cosine", warmup)
    assert config.optimizer == SGD(momentum=0.9, weight_decay=0.0)
    assert config.clip == 1.0
    assert not config.dropout
    assert config.average == average


def test_table_2s_rows_are_l16_at_512_and_h14_at_518():
    rows = {name: recipe(name) for name in ("imagenet_transfer_512", "imagenet_transfer_518")}
    assert {(row.model, row.image) for row in rows.values()} == {("L/16", (512, 512)), ("H/14", (518, 518))}


# Google's ImageNet-21k checkpoints of the paper, on the hub: ViT-B_16.npz and so on
PAPERS_WEIGHTS = {
    "B/16": "hf:google/vit-base-patch16-224-in21k",
    "B/32": "hf:google/vit-base-patch32-224-in21k",
    "L/16": "hf:google/vit-large-patch16-224-in21k",
    "L/32": "hf:google/vit-large-patch32-224-in21k",
    "H/14": "hf:google/vit-huge-patch14-224-in21k",
    "R50+B/16": "hf:timm/vit_base_r50_s16_224.orig_in21k",
}


@pytest.mark.parametrize("name", TABLE_4)
def test_fine_tuning_starts_from_the_papers_own_weights_where_they_are_public(name: str):
    for model in NAMED:
        assert recipe(name, model).weights == PAPERS_WEIGHTS.get(model, "default")


def test_masked_patch_prediction_is_as_in_the_appendix():
    config = recipe("masked_patch_pretrain")
    assert (config.model, config.objective, config.weights) == ("B/16", "masked-patch", "none")
    assert (config.batch, config.steps, config.lr) == (4096, 1_000_000, 2e-4)
    assert (config.schedule.kind, config.schedule.warmup) == ("cosine", 10_000)
    assert config.masked == Masked(rate=0.5, target="colour")


def test_igpts_pre_training_is_as_in_its_paper():
    config = recipe("igpt_pretrain")
    assert (config.model, config.objective, config.weights) == ("iGPT-S/32", "next-pixel", "none")
    assert (config.batch, config.steps) == (128, 1_000_000)
    assert config.optimizer == Adam(betas=(0.9, 0.95))
    assert config.schedule.kind == "cosine"
    assert not config.dropout
    assert recipe("small_masked_pixel").masked.rate == 0.15  # as in OpenAI's code


# a number of images for which a recipe is picked
PICKED_AT = {
    "small_transfer": 500,
    "medium_transfer": 5_000,
    "large_transfer": 50_000,
    "small_layerwise_transfer": 500,
    "medium_layerwise_transfer": 5_000,
    "large_layerwise_transfer": 50_000,
    "small_segmentation": 500,
    "medium_segmentation": 5_000,
    "large_segmentation": 50_000,
    "small_scratch": 5_000,
    "medium_scratch": 50_000,
    "large_scratch": 1_000_000,
    "small_masked_patch": 500,
    "small_next_pixel": 500,
    "small_masked_pixel": 500,
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_complete_run_that_survives_toml(name: str):
    config = recipe(name)
    assert isinstance(config, Fit)
    assert config.recipe == name
    assert (config.steps is None) != (config.epochs is None)
    assert from_tables(tomllib.loads(write(config))) == config
    image = {} if config.image is None else {"image": config.image}
    configure(config.model, **image, **config.options)  # raises an error for an unknown model or a size it cannot take


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_a_command_that_leads_to_it(name: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[dict[str, Any]] = []

    def start_training(options: TrainingOptions, *, pretraining: bool = False, **flags: Any) -> None:
        calls.append({**vars(options), **flags})

    for verb in ("fit", "pretrain"):
        monkeypatch.setattr(f"vitkit.cli.{verb}.start_training", start_training)
    command = re.search(r"^ +(vitkit (?:fit|pretrain) .*?)(?:   |$)", RECIPES[name].__doc__ or "", re.MULTILINE)
    assert command, "no command"
    main(shlex.split(command[1])[1:])
    flags = calls.pop()
    assert flags["data"]
    picked = (
        flags["recipe"]
        or pick_recipe(
            PICKED_AT[name],
            objective=flags.get("objective") or recipe(name).objective,  # which the data decide, with masks or without
            from_scratch=flags["weights"] == "none",
            label_free=label_free_family(flags["weights"] or "default"),
        )[0]
    )
    assert picked == name


@pytest.mark.parametrize(
    ("images", "transfer", "scratch"),
    [
        (1, "small_transfer", "small_scratch"),
        (1_999, "small_transfer", "small_scratch"),
        (2_000, "medium_transfer", "small_scratch"),
        (19_999, "medium_transfer", "small_scratch"),
        (20_000, "large_transfer", "medium_scratch"),
        (499_999, "large_transfer", "medium_scratch"),
        (500_000, "large_transfer", "large_scratch"),
        (10**8, "large_transfer", "large_scratch"),
    ],
)
def test_a_recipe_is_picked_by_the_number_of_images(images: int, transfer: str, scratch: str):
    for from_scratch, name in ((False, transfer), (True, scratch)):
        picked, reason = pick_recipe(images, objective="labels", from_scratch=from_scratch)
        assert picked == name
        assert f"{images:,} images" in reason
        assert (recipe(picked).weights == "none") == from_scratch
    for objective in ("masked-patch", "next-pixel", "masked-pixel"):
        assert pick_recipe(images, objective=objective, from_scratch=True)[0] == f"small_{objective.replace('-', '_')}"


@pytest.mark.parametrize("name", ["small_transfer", "medium_transfer", "large_transfer"])
def test_fine_tuning_by_size_of_data_keeps_the_image_size_of_the_weights(name: str):
    assert recipe(name).image is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("jft_pretrain_7ep", "Ti/16"),
        ("jft_pretrain_7ep", "H/14"),
        ("jft_pretrain_14ep", "R200x3"),
        ("imagenet21k_pretrain_30ep", "B/16"),
        ("imagenet21k_pretrain_90ep", "H/14"),
    ],
)
def test_a_model_that_a_table_lacks_is_an_error_with_its_rows(name: str, model: str):
    with pytest.raises(ConfigError) as error:
        recipe(name, model)
    assert f"Table 3 has no row for {model}" in str(error.value)
    rows = {row for recipe_name, row in TABLE_3 if recipe_name == name}
    assert rows == set(str(error.value).split("rows")[1].replace(",", " ").split())


def test_an_unknown_recipe_is_an_error_with_the_nearest_name():
    with pytest.raises(ConfigError, match="there is no recipe 'pets_trnasfer'; did you mean pets_transfer"):
        recipe("pets_trnasfer")


# an old name, a model: the recipe
RENAMED = {
    ("imagenet_transfer", None): "imagenet_transfer_384",
    ("imagenet_transfer", "L/16"): "imagenet_transfer_384",
    ("jft_pretrain", None): "jft_pretrain_7ep",
    ("jft_pretrain", "B/32"): "jft_pretrain_7ep",
    ("jft_pretrain", "L/16"): "jft_pretrain_14ep",
    ("jft_pretrain", "H/14"): "jft_pretrain_14ep",
    ("imagenet21k_pretrain", None): "imagenet21k_pretrain_90ep",
    ("imagenet21k_pretrain", "L/16"): "imagenet21k_pretrain_90ep",
}


@pytest.mark.parametrize(("name", "model"), RENAMED)
def test_a_recipe_is_found_under_the_name_that_it_had(name: str, model: str | None):
    assert recipe(name, model) == recipe(RENAMED[name, model], model)
    settings = {"data": "fashion", "recipe": name, **({"model": model} if model else {})}
    config, _, reason = resolve(settings)
    assert config.recipe == RENAMED[name, model]
    assert f"{name} is now" in reason
    assert RENAMED[name, model] in reason


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {name for name, _ in TABLE_3} | {"imagenet_pretrain"}))
def test_other_recipes_take_any_model(name: str):
    """Their settings differ only where a model has no dropout or its patches do not divide the image size."""
    for model in NAMED:
        config, usual, built = recipe(name, model), recipe(name), configure(model)
        if isinstance(built, ResNetConfig):
            assert config.dropout in (None, usual.dropout)
            usual = replace(usual, dropout=config.dropout)
        elif usual.image is not None and usual.image[0] >= 384:
            configure(model, image=config.image)
            side = 384 if name == "bit_hyperrule" else TABLE_4[name][3]
            assert 0 <= side - config.image[0] < built.stride
            usual = replace(usual, image=config.image)
        plain: dict[str, Any] = {"model": "", "options": {}, "weights": ""}
        assert replace(config, **plain) == replace(usual, **plain)


def test_the_learning_rate_is_validated_on_the_papers_shares():
    """B.1.1: 10 % of Pets and Flowers, 2 % of CIFAR, 1 % of ImageNet."""
    shares = {"pets_transfer": 0.1, "flowers_transfer": 0.1, "cifar_transfer": 0.02, "imagenet_transfer_384": 0.01}
    assert {name: recipe(name).lr_dev for name in shares} == shares


@pytest.mark.parametrize(("model", "width"), [("B/16", 768), ("L/16", 1024), ("R50+B/32", 768), ("R50x1", None)])
def test_pre_training_has_the_papers_hidden_layer_and_a_resnet_has_none(model: str, width: int | None):
    assert recipe("jft_pretrain_7ep", model).options == ({"representation": width} if width else {})
