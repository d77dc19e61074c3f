"""`vitkit list recipes`: what each holds, costs and gives; and its TOML, which gives the same run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.data.mask_images import write_masked_folder
from vitkit.cli.main import main
from vitkit.config.expectations import EXPECTED
from vitkit.config.recipe_listing import RecipeCost, describe, flops
from vitkit.config.recipes import RECIPES, recipe
from vitkit.config.resolve import resolve
from vitkit.config.toml import read_for_new_run
from vitkit.errors import VitkitError


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    main(["list", "recipes", *words])
    return capsys.readouterr().out


def test_every_recipe_says_what_it_holds_costs_and_gives(capsys: pytest.CaptureFixture[str]):
    blocks = {block.split("\n")[0]: block for block in listed(capsys).split("\n\n")}
    for name in RECIPES:
        text, config = " ".join(blocks[name].split()), recipe(name)
        length = f"{config.steps:,} steps" if config.steps else f"{config.epochs:g} epochs"
        assert f"holds {config.model} at" in text
        for part in (length, f"batch {config.batch:,}", f" at {config.lr:g}", config.schedule.kind, "FLOPs: "):
            assert part in text, (name, part)
        for figure in EXPECTED[name].figures if name in EXPECTED else ():
            assert str(figure) in text
        assert "expect" in text
        assert max(map(len, blocks[name].split("\n"))) <= 120


@pytest.mark.parametrize("name", RECIPES)
def test_the_toml_of_a_recipe_gives_the_same_run(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "recipe.toml"
    file.write_text(listed(capsys, name), encoding="utf-8")
    segments = recipe(name).objective == "segment"
    data = str(write_masked_folder(tmp_path / "shapes", 2)) if segments else "fashion"
    settings = {"data": data, **read_for_new_run(file)}
    try:
        by_name = resolve({"data": data, "recipe": name})
    except VitkitError as error:  # demo_fit: mu/7 has no public weights
        with pytest.raises(type(error), match="no public weights"):
            resolve(settings, {"data": data})
        return
    assert resolve(settings, {"data": data})[::2] == by_name[::2]


def test_a_changed_file_changes_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(listed(capsys, "pets_transfer").replace("steps = 500", "steps = 50"))
    assert resolve({"data": "fashion", **read_for_new_run(file)}, {"data": "fashion"})[0].steps == 50


def test_the_list_as_json_has_settings_costs_and_figures(capsys: pytest.CaptureFixture[str]):
    (row,) = json.loads(listed(capsys, "pets_transfer", "--json"))["recipes"]
    assert row["name"] == "pets_transfer"
    assert row["command"] == "vitkit fit pets/ --recipe pets_transfer --lr auto"
    assert row["settings"]["steps"] == 500
    figure = row["expect"][0]
    assert (figure["value"], figure["model"], figure["pretrained_on"]) == ("94.43", "B/16", "ImageNet-21k")
    assert row["cost"]["images"] == 256_000
    # 55.48 GMACs at 384 px, 2 operations each, forward and twice as many backward
    assert row["cost"]["exaflops"] == pytest.approx(6 * 55.48e9 * 256_000 / 1e18, rel=1e-3)
    everything = json.loads(listed(capsys, "--json"))["recipes"]
    assert [one["name"] for one in everything] == list(RECIPES)
    assert tomllib.loads(listed(capsys, "pets_transfer"))["steps"] == 500


# Table 6, in exaFLOPs; cost.py says how far ResNets and hybrids are from it
TABLE_6 = {
    "jft_pretrain_7ep": {"B/32": 55, "B/16": 224, "L/32": 196, "L/16": 783},
    "jft_pretrain_14ep": {"L/16": 1567, "H/14": 4262},
}


@pytest.mark.parametrize("name", TABLE_6)
def test_the_costs_of_pre_training_on_jft_are_those_of_table_6(name: str):
    rows = describe(name).rows
    for model, exaflops in TABLE_6[name].items():
        printed = float(rows[model].split(", ", 1)[1].removesuffix(" exaFLOPs").replace(",", ""))
        assert printed == pytest.approx(exaflops, rel=0.025)


@pytest.mark.parametrize(
    ("amount", "text"), [(1567.3, "1,567 exaFLOPs"), (0.0852, "0.0852 exaFLOPs"), (2.26e-4, "0.226 petaFLOPs")]
)
def test_compute_is_printed_in_a_unit_that_suits_it(amount: float, text: str):
    assert flops(amount) == text


def test_a_cost_is_images_times_operations():
    cost = RecipeCost(flops_per_image=10**12, images=10**6, scale="all of them")
    assert cost.exaflops == 1.0
    assert str(cost) == "1 exaFLOPs: all of them, 1,000 GFLOPs each, forward and backward"


def test_what_the_data_decide_is_left_to_them(capsys: pytest.CaptureFixture[str]):
    text = listed(capsys, "bit_hyperrule")
    assert "# steps = 20_000: decided by the data" in text
    assert {"steps", "image"}.isdisjoint(tomllib.loads(text))
    assert "model" not in tomllib.loads(listed(capsys, "small_scratch"))


def test_an_old_name_leads_to_the_new_ones(capsys: pytest.CaptureFixture[str]):
    main(["list", "recipes", "imagenet_transfer"])
    out, err = capsys.readouterr()
    assert tomllib.loads(out)["recipe"] == "imagenet_transfer_384"
    assert "imagenet_transfer is now imagenet_transfer_384" in err
    both = listed(capsys, "jft_pretrain")
    assert both.startswith("jft_pretrain_14ep\n")
    assert "\njft_pretrain_7ep\n" in both


def test_an_unknown_name_is_an_error_with_the_nearest_one(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["list", "recipes", "imagenet_transfer_513"])
    assert "did you mean imagenet_transfer_518 or imagenet_transfer_512" in capsys.readouterr().err
