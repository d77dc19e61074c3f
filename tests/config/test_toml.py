"""Settings survive TOML unchanged, and no key is ignored."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sources.sample_sources import png, write_files
from vitkit import run
from vitkit.cli.main import main
from vitkit.config.schema import SGD, Adam, AdamW, Augmentation, Fit, Masked, Schedule, Segment
from vitkit.config.toml import assignments, check, differences, from_tables, merge, read, to_tables, write
from vitkit.data.sources.dataset import Data
from vitkit.errors import ConfigError

POSITIVE = st.floats(1e-9, 1e9)
ZERO_OR_MORE = st.floats(0, 1e9)
SHARE = st.floats(0, 1, exclude_max=True)
INSIDE = st.floats(0.01, 0.99)
COUNT = st.integers(1, 10**6)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
RANGE = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda pair: (min(pair), max(pair)))


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


SGDS = {"momentum": SHARE, "weight_decay": ZERO_OR_MORE}
ADAMS = {"betas": st.tuples(SHARE, SHARE), "eps": POSITIVE, "weight_decay": ZERO_OR_MORE}
SCHEDULES = {
    "kind": st.sampled_from(["cosine", "linear", "rsqrt", "constant", "step"]),
    "warmup": SHARE | COUNT,
    "timescale": COUNT,
    "drops": st.lists(INSIDE, max_size=4).map(tuple),
    "cooldown": st.integers(0, 10**6),
}
AUGMENTATIONS = {
    "crop": maybe(RANGE),
    "precrop": maybe(COUNT),
    "aspect": RANGE,
    "scale": RANGE,
    "colour": ZERO_OR_MORE,
    "flip": st.booleans(),
    "randaugment": maybe(st.tuples(st.integers(1, 9), st.floats(0, 30))),
    "erase": SHARE,
    "mixup": SHARE,
    "cutmix": SHARE,
}
MASKED = {"rate": INSIDE, "target": st.sampled_from(["colour", "4x4", "pixels"])}
SEGMENTS = {
    "head": st.sampled_from(["auto", "linear", "queries"]),
    "queries": COUNT,
    "query_blocks": COUNT,
}
OPTION = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
FITS = {
    "data": TEXT,
    "label": maybe(TEXT),
    "task": st.sampled_from(["auto", "classify", "segment"]),
    "out": TEXT,
    "objective": st.sampled_from(["labels", "masked-patch"]),
    "recipe": TEXT,
    "seed": st.integers(0, 2**63 - 1),
    "split_seed": st.integers(0, 2**63 - 1),
    "model": TEXT,
    "options": st.dictionaries(TEXT, OPTION | st.lists(OPTION, max_size=3), max_size=3),
    "weights": TEXT,
    "load_positions": st.sampled_from(["interpolate", "stretch", "keep", "fresh"]),
    "image": maybe(st.tuples(COUNT, COUNT)),
    "channels": maybe(COUNT),
    "resize": st.sampled_from([None, "crop", "squash", "letterbox"]),
    "dropout": maybe(SHARE),
    "stochastic_depth": maybe(SHARE),
    "start": st.sampled_from(["auto", "head", "full"]),
    "freeze": st.integers(-1, 40),
    "batch": COUNT,
    "micro": maybe(COUNT),
    "steps": st.none(),
    "epochs": st.none(),
    "lr": POSITIVE,
    "choose_lr": st.booleans(),
    "lr_candidates": st.lists(POSITIVE, max_size=4).map(tuple),
    "lr_dev": st.floats(0.01, 0.9),
    "optimizer": st.builds(SGD, **SGDS) | st.builds(Adam, **ADAMS) | st.builds(AdamW, **ADAMS),
    "schedule": st.builds(Schedule, **SCHEDULES),
    "clip": ZERO_OR_MORE,
    "layer_decay": st.floats(0.01, 1),
    "average": SHARE,
    "label_smoothing": SHARE,
    "balance": ZERO_OR_MORE,
    "generative": ZERO_OR_MORE,
    "priors": st.sampled_from(["balanced", "data"]),
    "augment": st.builds(Augmentation, **AUGMENTATIONS),
    "masked": st.builds(Masked, **MASKED),
    "segment": st.builds(Segment, **SEGMENTS),
    "test": INSIDE,
    "dev": SHARE,
    "subset": maybe(st.floats(0.001, 1)),
    "subset_per_class": st.none(),  # a run has one of the three
    "train_on_val": st.booleans(),
    "subset_images": st.none(),
    "group": maybe(TEXT),
    "duplicates": st.sampled_from(["auto", "together", "ignore"]),
    "score_every": maybe(COUNT),
    "patience": st.integers(0, 100),
    "save_every": maybe(COUNT),
    "max_failed": SHARE,
    "device": TEXT,
    "precision": st.sampled_from(["auto", "bf16", "fp32"]),
    "parallel": st.sampled_from(["auto", "ddp", "fsdp"]),
    "compile": st.sampled_from(["auto", "yes", "no"]),
    "cache": st.sampled_from(["auto", "gpu", "ram", "no"]),
    "recompute": st.sampled_from(["auto", "yes", "no"]),
    "fp8": st.booleans(),
    "cuda_graph": st.sampled_from(["auto", "yes", "no"]),
    "workers": maybe(st.integers(0, 64)),
    "shuffle": st.sampled_from(["auto", "full", "computed", "shards"]),
    "shuffle_buffer": COUNT,
    "track": st.lists(st.sampled_from(["tensorboard", "wandb"]), max_size=2).map(tuple),
}
LENGTH = (
    st.just({})
    | st.builds(lambda steps: {"steps": steps}, COUNT)
    | st.builds(lambda epochs: {"epochs": epochs}, POSITIVE)
)


def test_the_random_settings_cover_every_field():
    for kind, drawn in (
        (Fit, FITS),
        (SGD, SGDS),
        (Adam, ADAMS),
        (AdamW, ADAMS),
        (Schedule, SCHEDULES),
        (Augmentation, AUGMENTATIONS),
        (Masked, MASKED),
        (Segment, SEGMENTS),
    ):
        assert {item.name for item in fields(kind)} == drawn.keys()


@given(config=st.builds(Fit, **FITS), length=LENGTH)
def test_any_settings_survive_toml(config: Fit, length: dict[str, float]):
    config = replace(config, **length)
    assert from_tables(tomllib.loads(write(config))) == config


@given(config=st.builds(Fit, **FITS))
def test_settings_do_not_differ_from_themselves(config: Fit):
    assert differences(config, from_tables(tomllib.loads(write(config)))) == []


# setting: what a user types after "--set …=", what it becomes
TYPED: dict[str, tuple[str, Any]] = {
    "data": ("photos/", "photos/"),
    "label": ("species", "species"),
    "task": ("segment", "segment"),
    "out": ("runs/a", "runs/a"),
    "objective": ("masked-patch", "masked-patch"),
    "recipe": ("pets_transfer", "pets_transfer"),
    "seed": ("7", 7),
    "split_seed": ("7", 7),
    "model": ("R50+B/16", "R50+B/16"),
    "options": ("{pool = 'gap'}", {"pool": "gap"}),
    "weights": ("hf:a/b", "hf:a/b"),
    "load_positions": ("stretch", "stretch"),
    "image": ("[160, 224]", (160, 224)),
    "channels": ("1", 1),
    "resize": ("squash", "squash"),
    "dropout": ("0.1", 0.1),
    "stochastic_depth": ("0.2", 0.2),
    "start": ("head", "head"),
    "freeze": ("-1", -1),
    "batch": ("64", 64),
    "micro": ("8", 8),
    "steps": ("1_000", 1000),
    "epochs": ("2.5", 2.5),
    "lr": ("1e-3", 0.001),
    "choose_lr": ("true", True),
    "lr_candidates": ("[0.1, 1]", (0.1, 1)),
    "lr_dev": ("0.02", 0.02),
    "optimizer.kind": ("adamw", None),
    "optimizer.momentum": ("0.8", 0.8),
    "optimizer.weight_decay": ("0.1", 0.1),
    "optimizer.betas": ("[0.8, 0.9]", (0.8, 0.9)),
    "optimizer.eps": ("1e-6", 1e-6),
    "schedule.kind": ("rsqrt", "rsqrt"),
    "schedule.warmup": ("0.1", 0.1),
    "schedule.timescale": ("500", 500),
    "schedule.drops": ("[0.5, 0.75]", (0.5, 0.75)),
    "schedule.cooldown": ("50", 50),
    "clip": ("0", 0),
    "layer_decay": ("0.75", 0.75),
    "average": ("0.9999", 0.9999),
    "label_smoothing": ("0.1", 0.1),
    "balance": ("1", 1),
    "generative": ("0.5", 0.5),
    "priors": ("data", "data"),
    "augment.crop": ("false", None),
    "augment.precrop": ("448", 448),
    "augment.aspect": ("[1, 1.5]", (1, 1.5)),
    "augment.scale": ("[0.5, 2]", (0.5, 2)),
    "augment.colour": ("0.5", 0.5),
    "augment.flip": ("false", False),
    "augment.randaugment": ("[2, 9]", (2, 9)),
    "augment.erase": ("0.25", 0.25),
    "augment.mixup": ("0.2", 0.2),
    "augment.cutmix": ("1.0", 1.0),
    "masked.rate": ("0.15", 0.15),
    "masked.target": ("pixels", "pixels"),
    "segment.head": ("queries", "queries"),
    "segment.queries": ("50", 50),
    "segment.query_blocks": ("3", 3),
    "test": ("0.3", 0.3),
    "dev": ("0.1", 0.1),
    "subset": ("0.01", 0.01),
    "subset_per_class": ("20", 20),
    "train_on_val": ("true", True),
    "subset_images": ("1000", 1000),
    "group": (r"(patient\d+)", r"(patient\d+)"),
    "duplicates": ("ignore", "ignore"),
    "score_every": ("10", 10),
    "patience": ("5", 5),
    "save_every": ("20", 20),
    "max_failed": ("0.1", 0.1),
    "device": ("cuda:1", "cuda:1"),
    "precision": ("bf16", "bf16"),
    "parallel": ("fsdp", "fsdp"),
    "compile": ("no", "no"),
    "cache": ("ram", "ram"),
    "recompute": ("yes", "yes"),
    "fp8": ("true", True),
    "cuda_graph": ("no", "no"),
    "workers": ("0", 0),
    "shuffle": ("shards", "shards"),
    "shuffle_buffer": ("20000", 20000),
    "track": ("wandb", ("wandb",)),
}


def names_of(kind: type, above: str = "") -> set[str]:
    """Every setting by its full name; the optimizer is any of three."""
    names = set()
    for item in fields(kind):
        value = item.default_factory() if callable(item.default_factory) else item.default  # type: ignore[misc]
        if item.name == "optimizer":
            names |= {f"optimizer.{name}" for optimizer in (SGD, Adam, AdamW) for name in names_of(optimizer)}
        elif is_dataclass(value):
            names |= names_of(type(value), f"{item.name}.")
        else:
            names.add(above + item.name)
    return names


def test_the_table_of_typed_settings_is_complete():
    assert names_of(Fit) | {"optimizer.kind"} == TYPED.keys()


@pytest.mark.parametrize("name", TYPED)
def test_every_setting_can_be_reached_from_the_command_line(name: str):
    text, value = TYPED[name]
    kind = ["optimizer.kind=adam"] if name in ("optimizer.betas", "optimizer.eps") else []
    config = from_tables(assignments([*kind, f"{name}={text}"]))
    if name == "optimizer.kind":
        assert type(config.optimizer) is AdamW
        return
    result: Any = config
    for attribute in name.split("."):
        result = getattr(result, attribute)
    assert result == value
    assert config != Fit()


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("bacth=3", "there is no setting bacth; did you mean batch"),
        ("schedule.warmpu=3", "there is no setting schedule.warmpu; did you mean warmup?"),
        ("warmup=3", "there is no setting warmup; did you mean schedule.warmup?"),
        ("warmupp=3", "there is no setting warmupp; did you mean schedule.warmup"),
        ("mixpu=0.2", "there is no setting mixpu; did you mean augment.mixup"),
        ("mixup=0.2", "there is no setting mixup; did you mean augment.mixup?"),
        ("weight_decay=0.1", "there is no setting weight_decay; did you mean optimizer.weight_decay?"),
        ("optimizer.betas=[0.9, 0.99]", "there is no setting optimizer.betas"),  # SGD has none
        ("augment.zoom=1", "there is no setting augment.zoom"),
    ],
)
def test_an_unknown_setting_is_an_error_with_the_nearest_name(typed: str, nearest: str):
    with pytest.raises(ConfigError) as error:
        from_tables(assignments([typed]))
    assert nearest in str(error.value)
    assert max(map(len, str(error.value).splitlines())) <= 120


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("batch=many", "batch = 'many' should be a whole number"),
        ("batch=1.5", "batch = 1.5 should be a whole number"),
        ("batch=true", "batch = True should be a whole number"),
        ("lr=fast", "lr = 'fast' should be a number"),
        ("model=16", "model = 16 should be text"),
        ("choose_lr=1", "choose_lr = 1 should be true or false"),
        ("image=[1, 2, 3]", "image = [1, 2, 3] should be a list of 2"),
        ("augment.crop=[0.5]", "augment.crop = [0.5] should be a list of 2"),
        ("augment.randaugment=[2.5, 9]", "augment.randaugment = 2.5 should be a whole number"),
        ("augment=strong", "augment is a table of settings, not 'strong'"),
        ("optimizer=adamw", "--set optimizer.kind=adamw"),
        ("optimizer.kind=adamwx", "sgd, adam, adamw"),
        ("precision=fp16", "precision = 'fp16' is not known"),
        ("track=tensorbord", "track = 'tensorbord' is not known; did you mean tensorboard?"),
        ("options=3", "options = 3 should be a table"),
        ("batch=0", "batch = 0: more than 0 is needed"),
        ("lr=0", "lr = 0: more than 0 is needed"),
        ("lr=nan", "lr = nan: more than 0 is needed"),
        ("lr_candidates=[0.1, -1]", "lr_candidates = -1: more than 0 is needed"),
        ("dropout=1", "dropout = 1: 0 or more and under 1 is needed"),
        ("optimizer.momentum=1", "optimizer.momentum = 1: 0 or more and under 1 is needed"),
        ("schedule.warmup=-1", "schedule.warmup = -1: 0 or more is needed"),
        ("masked.rate=1", "masked.rate = 1"),
        ("test=0", "test = 0: more than 0 and under 1 is needed"),
        ("layer_decay=0", "layer_decay = 0: more than 0 and at most 1 is needed"),
        ("freeze=-2", "freeze = -2"),
        ("seed=-1", "seed = -1: 0 or more and under 2**63 is needed"),
        ("seed=9999999999999999999999", "0 or more and under 2**63 is needed"),
        ("epochs=inf", "epochs = inf: more than 0 is needed"),
        ("image=[224, 0]", "image = 0: more than 0 is needed"),
        ("augment.crop=[0.5, 0.2]", "augment.crop = [0.5, 0.2]: [least, greatest], each more than 0 and at most 1"),
        ("augment.crop=[0.5, 2]", "augment.crop = [0.5, 2]: [least, greatest], each more than 0 and at most 1"),
        ("augment.aspect=[1, inf]", "augment.aspect = [1, inf]: [least, greatest], each more than 0 is needed"),
        ("augment.randaugment=[2, 31]", "augment.randaugment = [2, 31]: [1 or more, 0 or more and at most 30]"),
        ("augment.erase=2", "augment.erase = 2: 0 or more and at most 1 is needed"),
        ("optimizer.momentum=1", "meaning  share of the last update that the next one keeps"),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_that_names_its_setting(typed: str, message: str):
    with pytest.raises(ConfigError) as error:
        from_tables(assignments([typed]))
    assert message in str(error.value)


@pytest.mark.parametrize("typed", ["nonsense", "=3", " =3"])
def test_an_assignment_without_key_or_value_is_an_error_with_an_example(typed: str):
    with pytest.raises(ConfigError, match=r"KEY=VALUE[\s\S]*--set schedule.warmup=100"):
        assignments([typed])


def test_a_table_and_a_value_of_the_same_name_contradict_each_other():
    with pytest.raises(ConfigError, match="schedule was given a value already"):
        assignments(["schedule=fast", "schedule.warmup=3"])


def test_the_later_length_replaces_the_earlier_one():
    assert merge({"steps": 500, "lr": 1}, {"epochs": 3}) == {"epochs": 3, "lr": 1}
    assert merge({"epochs": 3}, {"steps": 500}) == {"steps": 500}
    with pytest.raises(ConfigError, match="a run has one length"):
        from_tables(merge({}, {"steps": 500, "epochs": 3}))


def test_another_kind_of_optimizer_does_not_inherit_the_settings_of_the_first():
    sgd = to_tables(Fit(optimizer=SGD(momentum=0.5, weight_decay=0.3)))
    assert from_tables(merge(sgd, {"optimizer": {"kind": "adamw"}})).optimizer == AdamW()
    assert from_tables(merge(sgd, {"optimizer": {"kind": "adamw", "eps": 0.1}})).optimizer == AdamW(eps=0.1)
    assert from_tables(merge(sgd, {"optimizer": {"kind": "sgd", "momentum": 0.7}})).optimizer == SGD(
        momentum=0.7, weight_decay=0.3
    )
    assert from_tables(merge(sgd, {"optimizer": {"weight_decay": 0.1}})).optimizer == SGD(
        momentum=0.5, weight_decay=0.1
    )


def test_a_kind_of_optimizer_set_later_keeps_settings_made_without_one():
    file = {"optimizer": {"weight_decay": 0.2}}
    assert from_tables(merge(file, assignments(["optimizer.kind=adamw"]))).optimizer == AdamW(weight_decay=0.2)


def test_settings_are_checked_before_a_recipe_is_known():
    check({"optimizer": {"betas": [0.9, 0.99]}, "batch": 3})  # valid for Adam, if the recipe uses it
    with pytest.raises(ConfigError, match="data = 3 should be text"):
        check({"data": 3})


def test_differences_are_named_one_by_one():
    before = Fit(lr=0.1, steps=10, augment=Augmentation(mixup=0.2))
    after = replace(before, lr=0.3, steps=None, epochs=2, optimizer=AdamW(), augment=Augmentation(crop=None, mixup=0.2))
    assert differences(before, after, ignore=["optimizer"]) == [
        "augment.crop: [0.05, 1.0] → False",
        "epochs: not set → 2",
        "lr: 0.1 → 0.3",
        "steps: 10 → not set",
    ]
    assert "optimizer.kind: sgd → adamw" in differences(before, after)


Resolved = Callable[..., Fit]


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Resolved:
    """Return a function that gives the settings of `vitkit VERB WORDS` without training."""
    configs: list[Fit] = []

    def start(resolved: Callable[[], tuple[Fit, Data, str]], *_: object) -> Path:
        configs.append(resolved()[0])
        return tmp_path

    monkeypatch.setattr(run, "_start", start)

    def resolve(*words: str) -> Fit:
        main(list(words))
        return configs.pop()

    return resolve


def test_a_file_overrides_the_recipe_flags_override_the_file_and_set_overrides_all(resolved: Resolved, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('weights = "none"\nbatch = 3\nlr = 0.5\nclip = 7\n[schedule]\nkind = "linear"\n', encoding="utf-8")
    words = ["fit", "fashion", "--recipe", "pets_transfer", "--config", str(file)]
    config = resolved(*words)
    assert (config.steps, config.batch, config.lr, config.clip) == (500, 3, 0.5, 7)
    assert config.schedule == Schedule(kind="linear", warmup=100)
    config = resolved(*words, "--batch", "4", "--lr", "0.25")
    assert (config.batch, config.lr, config.clip) == (4, 0.25, 7)
    config = resolved(*words, "--batch", "4", "--lr", "0.25", "--set", "batch=5", "clip=8", "--set", "lr=1")
    assert (config.batch, config.lr, config.clip) == (5, 1, 8)
    assert resolved(*words, "--epochs", "2").steps is None
    assert resolved(*words, "--epochs", "2", "--set", "steps=9").epochs is None


@pytest.mark.parametrize(
    ("unused", "message", "used"),
    [
        (
            "masked.rate=0.3",
            "masked would change nothing here: it is for objective = masked-patch",
            ["pretrain", "fashion", "--objective", "masked-patch"],
        ),
        (
            "schedule.timescale=5",
            "schedule.timescale would change nothing here: it is for schedule.kind = rsqrt",
            ["fit", "fashion", "--set", "weights=none", "schedule.kind=rsqrt"],
        ),
        (
            "schedule.drops=[0.5]",
            "schedule.drops would change nothing here: it is for schedule.kind = step",
            ["fit", "fashion", "--set", "weights=none", "schedule.kind=step"],
        ),
        ("test=0.9", "test would change nothing here: it is for data without a test or val split", ["fit", "PHOTOS"]),
    ],
)
def test_a_setting_without_effect_is_refused(
    unused: str, message: str, used: list[str], resolved: Resolved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_files(tmp_path / "photos", {f"{'ab'[index % 2]}/{index}.png": png(index) for index in range(40)})
    with pytest.raises(SystemExit, match="2"):
        resolved("fit", "fashion", "--set", "weights=none", unused)
    assert message in capsys.readouterr().err
    words = [str(tmp_path / "photos") if word == "PHOTOS" else word for word in used]
    config = resolved(*words, "--set", "weights=none", unused)
    another = replace(config, objective="labels", schedule=replace(config.schedule, kind="cosine"))
    (tmp_path / "another.toml").write_text(write(another))
    assert resolved("fit", "fashion", "--config", str(tmp_path / "another.toml"))  # from a run that used it


def test_a_file_alone_can_name_the_data(resolved: Resolved, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('data = "fashion"\nweights = "none"\nmodel = "mu/4"\n', encoding="utf-8-sig")  # as Notepad saves it
    assert resolved("fit", "--config", str(file)).data == "fashion"


def test_weights_none_can_be_spelled_as_in_python(resolved: Resolved):
    assert resolved("fit", "fashion", "--weights", "None").weights == "none"


def test_auto_searches_for_a_learning_rate(resolved: Resolved):
    assert resolved("fit", "fashion", "--weights", "none", "--lr", "auto").choose_lr
    assert not resolved("fit", "fashion", "--weights", "none", "--lr", "0.1").choose_lr


def test_pretraining_learns_from_leave_out_masks_by_default(resolved: Resolved, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text("batch = 3\n", encoding="utf-8")
    assert resolved("pretrain", "fashion").objective == "masked-patch"
    assert resolved("pretrain", "fashion", "--config", str(file)).objective == "masked-patch"
    assert resolved("pretrain", "fashion", "--objective", "labels").objective == "labels"
    assert resolved("pretrain", "fashion", "--recipe", "imagenet_pretrain").objective == "labels"
    file.write_text('recipe = "imagenet_pretrain"\n', encoding="utf-8")
    assert resolved("pretrain", "fashion", "--config", str(file)).objective == "labels"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"batch = \n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_not_toml_is_an_error_with_its_name(content: bytes | None, message: str, tmp_path: Path):
    file = tmp_path / "mine.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)
