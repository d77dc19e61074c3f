"""The cost of claims before they run, and the tables that need no training, against what other libraries count."""

from __future__ import annotations

import pytest
import torch
import transformers

from vitkit.model.sizes import SIZES as MODEL_SIZES
from vitkit.paper.catalogue import all_claims, find_claims
from vitkit.paper.closed_forms import closed_forms
from vitkit.paper.datasets import KNOWN
from vitkit.paper.rough_cost import SIZES, rough_cost, rough_duration
from vitkit.paper.study import SCALES


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("claim", [pytest.param(claim, id=claim.name) for claim in all_claims()])
def test_every_claim_has_a_cost_at_every_scale_and_a_recipe_for_each_of_its_models(claim, scale):
    cost = rough_cost(claim, scale)
    assert cost.seconds > 0
    assert (cost.runs == 0) == (cost.images == 0)
    assert cost.runs or claim.measure


def test_every_data_set_has_a_size():
    assert KNOWN.keys() - {"pets-trimaps"} <= SIZES.keys()


def test_images_are_steps_times_batch_or_epochs_times_images():
    (axial,) = find_claims("axial")
    assert rough_cost(axial, "smoke").images == 3 * 2 * 16 * 32  # arms, seeds, steps, batch
    assert rough_cost(axial, "small").images == 3 * 5 * 6 * 100_000  # arms, seeds, epochs, images


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (17.2, "17 s"),
        (99, "99 s"),
        (678, "11 min"),
        (8000, "2 h"),
        (105_000, "29 h"),
        (3.3e8, "3,800 days"),
    ],
)
def test_rough_times_have_one_unit_and_two_figures(seconds, text):
    assert rough_duration(seconds) == text


def test_table_1_counts_the_parameters_of_transformers_models():
    rows = {row.name: row.ours for row in closed_forms()[0].rows}
    for name, ours in rows.items():
        size, patch = MODEL_SIZES[name[0]], int(name[2:])
        config = transformers.ViTConfig(
            num_hidden_layers=size.depth,
            hidden_size=size.width,
            intermediate_size=size.mlp,
            num_attention_heads=size.heads,
            patch_size=patch,
            num_labels=1000,
        )
        with torch.device("meta"):
            model = transformers.ViTForImageClassification(config)
        assert ours * 1e6 == pytest.approx(sum(one.numel() for one in model.parameters()), abs=0.5)


def test_the_tables_say_how_many_rows_agree():
    table1, table6 = closed_forms()
    assert table1.verdict == "3 of 3 rows within 1 %"
    assert all(row.agrees or row.remark for row in table6.rows)  # what differs is explained, or said not to be
