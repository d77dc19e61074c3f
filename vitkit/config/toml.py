"""Settings in TOML or as KEY=VALUE, to the dataclasses of a run and back.

No key is ignored: one that no field has is an error that suggests the nearest name.
"""

import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

import tomli_w

from vitkit.config.schema import SGD, Adam, AdamW, Augmentation, Fit, Masked, Schedule, Segment
from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.config import ViTConfig
from vitkit.stored_json import conform, read_bytes, read_json

# by the run itself, when it starts
DECIDED = ("steps", "epochs", "schedule.warmup", "micro", "precision", "start", "recompute", "compile")
OPTIMIZERS: dict[str, type[SGD | Adam | AdamW]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}

MOST_RECORD = 1 << 28  # bytes of run.json: it names the groups of millions of images


class _Asked(TypedDict):
    asked: dict[str, Any]
    settings: dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file, or the config.toml of a run folder, as nested tables without validation."""
    path = path / "config.toml" if path.is_dir() else path
    try:
        text = read_bytes(path, error=ConfigError).decode("utf-8-sig")  # some editors begin a file with such a mark
        tables: dict[str, Any] = conform(tomllib.loads(text), dict[str, Any], str(path), error=ConfigError)
        return tables
    except FileNotFoundError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is damaged: it is nested too deeply.") from error
    except ConfigError:
        raise
    except ValueError as error:  # also of an integer with thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_for_new_run(path: Path) -> dict[str, Any]:
    """Read settings to start a new run with; those that an old run decided itself are reset to what it was asked for.

    What a run decides depends on its data and its machine. A decided setting that was edited since keeps its new value.
    """
    tables = read(path)
    record = (path if path.is_dir() else path.parent) / "run.json"
    try:
        content = read_json(record, _Asked, most=MOST_RECORD)
    except (OSError, ValueError):  # not of a run, or of a version that did not record it
        return tables
    asked, decided = flat(content["asked"]), flat(content["settings"])
    current = flat(tables)
    changed = {key for key in DECIDED if current.get(key) != decided.get(key)}
    if changed & {"steps", "epochs"}:
        changed |= {"steps", "epochs"}  # a run has one length
    for key in DECIDED:
        if key not in changed:
            *parents, last = key.split(".")
            table: Any = tables
            for name in parents:
                table = table.setdefault(name, {})
            if not isinstance(table, dict):
                continue  # the validation names it
            table.pop(last, None)
            if key in asked:
                table[last] = asked[key]
    return tables


def assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse ["schedule.warmup=10", "model=B/16"] into nested tables; values as in TOML, bare words are strings."""
    tables: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {pair}: a setting is KEY=VALUE", try_="--set schedule.warmup=100")
        *parents, last = key.strip().split(".")
        table = tables
        for name in parents:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {pair}: {name} was given a value already")
        table[last] = _value(text.strip())
    return tables


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables, the later ones winning; another kind of optimizer drops the settings of the first."""
    merged = dict(base)
    for name, value in override.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if name == "optimizer" and "kind" in old and value.get("kind", old["kind"]) != old["kind"]:
                old = {}
            merged[name] = merge(old, value)
        else:
            merged[name] = value
    if "steps" in override and "epochs" not in override:  # a run has one length; the later one wins
        merged.pop("epochs", None)
    elif "epochs" in override and "steps" not in override:
        merged.pop("steps", None)
    return merged


def from_tables(tables: Mapping[str, Any]) -> Fit:
    """Validate nested tables and return them as settings."""
    return _dataclass(Fit, tables, "")


def check(tables: Mapping[str, Any]) -> None:
    """Validate settings before their recipe is known; without the optimizer, whose kind the recipe may determine."""
    from_tables({name: value for name, value in tables.items() if name != "optimizer"})


def to_tables(config: Fit) -> dict[str, Any]:
    """Return settings as nested tables for TOML; None, which TOML lacks, is left out or false."""
    tables = _tables(config)
    tables["optimizer"] = {"kind": optimizer_kind(config.optimizer), **tables["optimizer"]}
    return tables


def write(config: Fit) -> str:
    return dumps(to_tables(config))


def dumps(tables: Mapping[str, Any]) -> str:
    return tomli_w.dumps(tables)


def differences(before: Fit, after: Fit, ignore: Iterable[str] = ()) -> list[str]:
    """Return a line such as "schedule.warmup: 100 → 50" for every setting that differs."""
    old, new = (flat(to_tables(config)) for config in (before, after))
    return [
        f"{key}: {old.get(key, 'not set')} → {new.get(key, 'not set')}"
        for key in sorted(old.keys() | new.keys())
        if key.split(".")[0] not in ignore and old.get(key) != new.get(key)
    ]


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, by dotted names such as "schedule.warmup"."""
    values = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            values.update(flat(value, f"{prefix}{name}."))
        else:
            values[f"{prefix}{name}"] = value
    return values


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError as error:
        raise ConfigError(f"the value {text[:60]}… is nested too deeply") from error
    except ValueError:
        return {"True": True, "False": False}.get(text.strip(), text)  # as Python writes them


def optimizer_kind(optimizer: SGD | Adam | AdamW) -> str:
    """Return the name of the optimizer in settings: sgd, adam or adamw."""
    return next(name for name, kind in OPTIMIZERS.items() if type(optimizer) is kind)


def _tables(config: Any) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            tables[item.name] = _tables(value)
        elif value is None:
            if item.default is not None:
                tables[item.name] = False
        else:
            tables[item.name] = _plain(value)
    return tables


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def _dataclass(kind: type, tables: Any, where: str) -> Any:
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{where} is a table of settings, not {tables!r}")
    hints = get_type_hints(kind)
    for name in tables:
        if name not in hints:
            raise ConfigError(
                f"there is no setting {_path(where, name)}{_nearest(name, hints, where)}",
                settings=textwrap.wrap(", ".join(hints), 100),
            )
    return kind(**{name: _typed(hints[name], value, _path(where, name)) for name, value in tables.items()})


def _nearest(name: str, known: Iterable[str], where: str) -> str:
    """Suggest the names nearest to a wrong one; people write `warmup` for schedule.warmup."""
    if where:
        return did_you_mean(name, known)
    inside = [f"{table}.{name}" for table, names in _INSIDE.items() if name in names]
    if inside:
        return f"; did you mean {' or '.join(inside)}?"
    return did_you_mean(name, known, {last: f"{table}.{last}" for table, names in _INSIDE.items() for last in names})


_INSIDE = {
    "optimizer": {name for kind in OPTIMIZERS.values() for name in get_type_hints(kind)},
    "schedule": get_type_hints(Schedule),
    "augment": get_type_hints(Augmentation),
    "masked": get_type_hints(Masked),
    "segment": get_type_hints(Segment),
    "options": {field.name for field in fields(ViTConfig)} - set(get_type_hints(Fit)) - {"classes"},
}


def _optimizer(tables: Any) -> Any:
    if not isinstance(tables, Mapping) or tables.get("kind", "sgd") not in [*OPTIMIZERS]:
        raise ConfigError(
            f"optimizer = {tables!r} is not known",
            try_='[optimizer] kind = "adamw", or --set optimizer.kind=adamw',
            kinds=", ".join(OPTIMIZERS),
        )
    rest = {name: value for name, value in tables.items() if name != "kind"}
    return _dataclass(OPTIMIZERS[tables.get("kind", "sgd")], rest, "optimizer")


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return the value as the field's type, or raise an error that names the setting."""
    origin, arguments = get_origin(hint), get_args(hint)
    if where == "optimizer":
        return _optimizer(value)
    if is_dataclass(hint):
        return _dataclass(hint, value, where)  # type: ignore[arg-type]
    if origin in (Union, UnionType) and NoneType in arguments:
        rest = [argument for argument in arguments if argument is not NoneType]
        return None if value is None or value is False else _typed(rest[0], value, where)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(
            f"{where} = {value!r} is not known{did_you_mean(str(value), map(str, arguments))}",
            choose_from=", ".join(map(str, arguments)),
        )
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is Mapping and isinstance(value, Mapping):
        return dict(value)
    if hint in (int, float) and isinstance(value, int) and abs(value) >= _WIDEST:
        raise ConfigError(f"{where} has a number of {len(str(value))} digits, which is too large")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    raise ConfigError(f"{where} = {value!r} should be {_TYPE_NAMES.get(hint, 'a table')}")


_WIDEST = 2**128  # floats can hold integers under it
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    many = len(arguments) == 2 and arguments[1] is Ellipsis
    if where == "image" and isinstance(value, int):
        value = [value, value]
    if isinstance(value, (str, int, float)):
        value = [value]
    if not isinstance(value, (list, tuple)) or not (many or len(value) == len(arguments)):
        raise ConfigError(f"{where} = {value!r} should be a list" + ("" if many else f" of {len(arguments)}"))
    kinds = [arguments[0]] * len(value) if many else arguments
    return tuple(_typed(kind, inner, where) for kind, inner in zip(kinds, value, strict=True))


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
