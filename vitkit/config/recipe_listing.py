"""A recipe as people read it: what it holds, what it costs, what to expect of it; and its settings in TOML."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from inspect import cleandoc
from typing import Any

from vitkit.config import toml
from vitkit.config.expectations import EXPECTED, IMAGES, Expectation, Figure
from vitkit.config.listing import as_text
from vitkit.config.objectives import OBJECTIVES
from vitkit.config.recipes import BY_DATA, RECIPES, RENAMED, has_row, recipe
from vitkit.config.schema import Fit
from vitkit.cost import FLOPS_PER_TRAINED_MAC, cost
from vitkit.data.image_sizes import DataSize
from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.variants import NAMED, configure
from vitkit.weights.public import DEFAULTS, PUBLIC

# shown even where they are the defaults: who reads a recipe looks for them
SHOWN = ("recipe", "model", "weights", "image", "start", "batch", "lr", "clip", "optimizer", "schedule", "augment")
UNITS = (("exaFLOPs", 1), ("petaFLOPs", 1e3), ("teraFLOPs", 1e6))
UNIT = 1_000  # images, where a recipe does not say how many
DATA_SIZES = tuple(  # of which the rules of BY_DATA make something different
    DataSize(images=images, height=side, width=side, short_side=side)
    for images in (10**3, 10**5, 10**6)
    for side in (32, 512)
)


@dataclass(frozen=True, kw_only=True)
class RecipeCost:
    """The compute of one training with a recipe: forward and backward, at six operations per multiply-add."""

    flops_per_image: int
    images: int  # that the model sees: in all, or for UNIT training images where the recipe is for any number of them
    scale: str  # in words

    @property
    def exaflops(self) -> float:
        return self.flops_per_image * self.images / 1e18

    def __str__(self) -> str:
        each = f"{self.flops_per_image / 1e9:,.4g} GFLOPs each"
        return f"{flops(self.exaflops)}: {self.scale}, {each}, forward and backward"


@dataclass(frozen=True, kw_only=True)
class ListedRecipe:
    name: str
    meaning: str  # the first paragraph of its docstring
    command: str
    remark: str  # the rest
    settings: Fit
    by_data: frozenset[str]  # settings that the data decide, such as "steps" or "augment.mixup"
    rows: dict[str, str]  # model → learning rate and cost, where the recipe is for the models of a table only
    cost: RecipeCost
    figures: tuple[Figure, ...]

    @property
    def holds(self) -> str:
        """The settings that tell recipes apart, on one line."""
        config = self.settings
        length = f"{config.steps:,} steps" if config.steps else f"{config.epochs:g} epochs"
        kind = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[toml.optimizer_kind(config.optimizer)]
        candidates = f" (--lr auto: of {as_text(config.lr_candidates)})" if config.lr_candidates else ""
        average = f", EMA {config.average}" if config.average else ""
        objective = "" if config.labelled else f", {OBJECTIVES[config.objective].title}"
        follows = "image" in self.by_data and config.image is None
        size = "the data's size, at most 224 px," if follows else _side(config)
        return (
            f"{config.model} at {size} {_start(config)}{objective}; {length}, batch {config.batch:,}; "
            f"{kind} at {config.lr:g}{candidates}, {config.schedule.kind}{average}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "meaning": self.meaning,
            "command": self.command,
            "remark": self.remark,
            "holds": self.holds,
            "rows": self.rows,
            "cost": {**asdict(self.cost), "exaflops": self.cost.exaflops},
            "expect": [asdict(figure) for figure in self.figures],
            "by_data": sorted(self.by_data),
            "settings": shown_settings(self.settings),
        }


def flops(exaflops: float) -> str:
    """Return compute in the unit that suits it, such as "1,567 exaFLOPs" or "0.226 petaFLOPs"."""
    unit, factor = next(((unit, factor) for unit, factor in UNITS if exaflops * factor >= 0.01), UNITS[-1])
    amount = exaflops * factor
    return f"{amount:,.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"


def list_recipes(pattern: str = "") -> list[ListedRecipe]:
    """Return the recipe of that name, or of an earlier one, or those that contain the pattern; none is an error."""
    if pattern in RENAMED:
        return [describe(name) for name in RENAMED[pattern][0]]
    if pattern in RECIPES:
        return [describe(pattern)]
    found = [one for one in map(describe, RECIPES) if pattern.lower() in _text(one).lower()]
    if not found:
        raise ConfigError(
            f"no recipe has {pattern!r} in its name or description{did_you_mean(pattern, [*RECIPES, *RENAMED])}",
            try_="vitkit list recipes",
        )
    return found


def describe(name: str) -> ListedRecipe:
    """Return a recipe with its default model."""
    config = recipe(name)
    meaning, _, rest = cleandoc(RECIPES[name].__doc__ or "").partition("\n\n")
    command, _, remark = " ".join(rest.split("\n")).partition("      ")
    expected = EXPECTED.get(name, Expectation((), None))
    models = [model for model in NAMED if has_row(name, model)]
    rows = [recipe(name, model) for model in models] if len(models) < len(NAMED) else []
    return ListedRecipe(
        name=name,
        meaning=" ".join(meaning.split()),
        command=command.strip(),
        remark=re.sub(" +", " ", remark).strip(),
        settings=config,
        by_data=_decided_by_data(name),
        rows={row.model: f"at {row.lr:g}, {flops(_cost(row, expected.data).exaflops)}" for row in rows},
        cost=_cost(config, expected.data),
        figures=expected.figures,
    )


def as_toml(listed: ListedRecipe) -> str:
    """Return the settings as a file for --config; what the data decide is left to them, as a comment."""
    tables = shown_settings(listed.settings)
    free: dict[str, Any] = {}
    for path in sorted(listed.by_data):
        *parents, last = path.split(".")
        table = tables
        for name in parents:
            table = table[name]
        if last in table:
            free[path] = table.pop(last)
    lines = [f"# {path} = {as_text(value)}: decided by the data, unless you set it\n" for path, value in free.items()]
    text = re.sub(r"\[\n((?: +[^\[\]\n]+,\n)+)\]", _on_one_line, toml.dumps(tables))
    return "".join(lines) + "\n" * bool(lines) + text


def shown_settings(config: Fit) -> dict[str, Any]:
    """Return the settings that the recipe decides, as tables for TOML: the others are at their defaults."""
    tables, defaults = toml.to_tables(config), toml.to_tables(Fit())
    shown = {name: value for name, value in tables.items() if name in SHOWN or value != defaults.get(name)}
    kinds = {"timescale": "rsqrt", "drops": "step"}  # of schedules, that have these settings
    shown["schedule"] = {
        name: value
        for name, value in tables["schedule"].items()
        if kinds.get(name, config.schedule.kind) == config.schedule.kind
    }
    return shown


def _on_one_line(array: re.Match[str]) -> str:
    return f"[{', '.join(item.strip().rstrip(',') for item in array[1].splitlines())}]"


def _decided_by_data(name: str) -> frozenset[str]:
    config = recipe(name)
    if name in BY_DATA:
        flat = [toml.flat(toml.to_tables(recipe(name, data=size))) for size in DATA_SIZES]
        return frozenset(key for key in flat[0] if len({str(one.get(key)) for one in flat}) > 1)
    return frozenset({"image", "model"}) if config.weights == "none" and config.image is None else frozenset()


def _cost(config: Fit, data: str | None) -> RecipeCost:
    chosen = {"image": config.image, "channels": config.channels}
    size: Mapping[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    per_image = FLOPS_PER_TRAINED_MAC * cost(configure(config.model, **size, **config.options)).macs
    if config.steps:
        scale = f"{config.steps:,} steps of {config.batch:,} images"
        return RecipeCost(flops_per_image=per_image, images=config.steps * config.batch, scale=scale)
    epochs = config.epochs or 0
    images = IMAGES[data] if data else UNIT
    scale = f"{epochs:g} epochs of {f'{data}, ' if data else 'each '}{images:,} images"
    return RecipeCost(flops_per_image=per_image, images=round(epochs * images), scale=scale)


def _side(config: Fit) -> str:
    height, width = config.image or (224, 224)
    return f"{height} px" if height == width else f"{height} x {width} px"


def _start(config: Fit) -> str:
    if config.weights == "none":
        return "from scratch"
    public = DEFAULTS.get(config.model)
    if config.weights != "default":
        public = next((one for one in PUBLIC.get(config.model, ()) if one.source == config.weights), None)
    if public is None:
        return "from weights"
    return f"from {public.source} ({public.trained_by}'s weights, {public.trained_on})"


def _text(listed: ListedRecipe) -> str:
    return "\n".join(
        [listed.name, listed.meaning, listed.command, listed.remark, listed.holds, *map(str, listed.figures)]
    )
