"""Every figure of the paper that is quoted stands beside its weights: table, model and pre-training set.

The figures are typed from the paper, not from the code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vitkit.config import other_paper_recipes, pretraining_recipes, size_recipes, transfer_recipes
from vitkit.config.expectations import EXPECTED, IMAGES, Figure
from vitkit.config.recipes import RECIPES, recipe
from vitkit.model.variants import configure

ROOT = Path(__file__).parents[2]
MODULES = (pretraining_recipes, transfer_recipes, size_recipes, other_paper_recipes)

# (table, data, pre-trained on): {model: figure}
PAPER = {
    ("Table 2", "ImageNet", "JFT-300M"): {"H/14": "88.55", "L/16": "87.76"},
    ("Table 2", "ImageNet", "ImageNet-21k"): {"L/16": "85.30"},
    ("Table 2", "CIFAR-10", "ImageNet-21k"): {"L/16": "99.15"},
    ("Table 2", "CIFAR-100", "ImageNet-21k"): {"L/16": "93.25"},
    ("Table 2", "Pets", "ImageNet-21k"): {"L/16": "94.67"},
    ("Table 2", "Flowers-102", "ImageNet-21k"): {"L/16": "99.61"},
    ("Table 2", "VTAB", "ImageNet-21k"): {"L/16": "72.72"},
    ("Table 2", "VTAB", "JFT-300M"): {"L/16": "76.28", "H/14": "77.63"},
    ("Table 5", "ImageNet", "ImageNet"): {"B/16": "77.91", "B/32": "73.38", "L/16": "76.53", "L/32": "71.16"},
    ("Table 5", "ImageNet", "ImageNet-21k"): {
        "B/16": "83.97",
        "B/32": "81.28",
        "L/16": "85.15",
        "L/32": "80.99",
        "H/14": "85.13",
    },
    ("Table 5", "ImageNet", "JFT-300M"): {
        "B/16": "84.15",
        "B/32": "80.73",
        "L/16": "87.12",
        "L/32": "84.37",
        "H/14": "88.04",
    },
    ("Table 5", "Pets", "ImageNet"): {"B/16": "93.81"},
    ("Table 5", "Pets", "ImageNet-21k"): {"B/16": "94.43"},
    ("Table 5", "Pets", "JFT-300M"): {"B/16": "95.80"},
    ("Table 5", "CIFAR-10", "ImageNet-21k"): {"B/16": "98.95"},
    ("Table 5", "CIFAR-100", "ImageNet-21k"): {"B/16": "91.67"},
    ("Table 5", "Flowers-102", "ImageNet-21k"): {"B/16": "99.38"},
    ("Table 7", "the average of Table 7", "JFT-300M"): {"R50x1": "89.33", "R152x2": "94.01"},
    ("B.1.2", "ImageNet", "JFT-300M"): {"B/16": "79.9"},
}
OTHERS = {"76.5", "93.8"}  # big_vision's S/16; Cordonnier et al., Table 1
QUOTED = {figure for row in PAPER.values() for figure in row.values()}
SETS = ("ImageNet-21k", "JFT", "ImageNet")
PAGES = [
    "README.md",
    "README.ko.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
]


def figures() -> list[tuple[str, Figure]]:
    return [(name, figure) for name, expected in EXPECTED.items() for figure in expected.figures]


def papers() -> list[tuple[str, Figure]]:
    return [(name, figure) for name, figure in figures() if figure.source.startswith("the paper")]


@pytest.mark.parametrize(("name", "figure"), papers())
def test_a_figure_of_the_paper_is_that_of_its_table_model_and_pre_training_set(name: str, figure: Figure):
    table = re.search(r"Table \d|B\.1\.2", figure.source)
    assert table
    scored = next(data for data in ("ImageNet", "VTAB", figure.on) if figure.on.startswith(data))
    assert PAPER[table[0], scored, figure.pretrained_on][figure.model] == figure.value
    assert "its authors' weights" in figure.source
    configure(figure.model)


def test_figures_belong_to_recipes_and_say_whose_they_are():
    assert {name for name, _ in figures()} <= RECIPES.keys()
    assert len(papers()) >= 25
    for _, figure in figures():
        assert figure.source == "ours" or figure.source.startswith(
            ("the paper, ", "big_vision, ", "Chen et al. 2020, ", "Cordonnier et al. 2020, ")
        )
        assert all((figure.value, figure.on, figure.model, figure.pretrained_on))


def test_a_recipe_that_quotes_the_paper_on_imagenet_21k_starts_from_the_papers_weights():
    quoting = {(name, one.model) for name, one in papers() if recipe(name).weights != "none"}
    for name, model in quoting:
        source = recipe(name, model).weights
        assert source.startswith("hf:google/vit-") or (name, model) == ("bit_hyperrule", "R50x1"), (name, source)
    # the ResNets' own weights are not public, and the figure says so
    assert "not public" in next(one.note for name, one in papers() if name == "bit_hyperrule")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_figure_of_the_paper_is_quoted_outside_of_expect(module: object):
    """`expect` cannot be written without table, model and pre-training set; a docstring could."""
    for name, function in vars(module).items():
        if name in RECIPES:
            numbers = set(re.findall(r"\d+\.\d+", function.__doc__ or ""))
            assert not numbers & (QUOTED | OTHERS), name


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_quotes_a_figure_of_the_paper_names_its_weights(page: str):
    """In the same paragraph or table row: the table, the model and the pre-training set."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.split(r"\n(?:\s*\n|(?=\|))", text):
        for number in set(re.findall(r"(?<![\d.,])\d\d\.\d+(?![\d.])", block)) & QUOTED:
            if re.search(rf"paper[^.|]*{re.escape(number)}|{re.escape(number)}[^.|]*paper", block):
                assert re.search(r"Table \d|B\.1\.2", block), (number, block)
                assert any(name in block for name in SETS), (number, block)
                assert re.search(r"\b(?:Ti|S|B|L|H)/\d+|R\d+x\d", block), (number, block)


def test_the_sizes_of_the_sets_are_those_of_their_papers():
    assert IMAGES == {"JFT-300M": 303_000_000, "ImageNet-21k": 14_197_122, "ImageNet": 1_281_167}
