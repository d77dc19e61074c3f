"""Settings as people write them, in TOML or as KEY=VALUE, into the dataclasses of a run, and back.

Nothing is ignored: a key that no field has is an error with the nearest name.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

from vitkit.config.schema import SGD, Adam, AdamW, Augmentation, Fit, Masked, Schedule
from vitkit.errors import ConfigError, did_you_mean

DECIDED = ("steps", "epochs", "schedule.warmup", "micro", "precision", "recompute", "compile")  # by a run that begins
OPTIMIZERS: dict[str, type[SGD | Adam | AdamW]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def read(path: Path) -> dict[str, Any]:
    """A TOML file as nested tables, unchecked; of a run folder, its config.toml."""
    path = path / "config.toml" if path.is_dir() else path
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_for_another(path: Path) -> dict[str, Any]:
    """`read`, where a run's settings begin another run: what that one has counted or decided itself, for its pictures
    and its machine, is what it was asked for again, unless somebody has changed it since."""
    tables = read(path)
    record = (path if path.is_dir() else path.parent) / "run.json"
    try:
        told = json.loads(record.read_text(encoding="utf-8"))
        asked, decided = _flat(told["asked"]), _flat(told["settings"])
    except (OSError, ValueError, KeyError):  # no run's, or of a version that did not tell
        return tables
    found = _flat(tables)
    changed = {key for key in DECIDED if found.get(key) != decided.get(key)}
    if changed & {"steps", "epochs"}:
        changed |= {"steps", "epochs"}  # a run has one length
    for key in DECIDED:
        if key not in changed:
            *above, last = key.split(".")
            table = tables
            for name in above:
                table = table.setdefault(name, {})
            table.pop(last, None)
            if key in asked:
                table[last] = asked[key]
    return tables


def assignments(words: Iterable[str]) -> dict[str, Any]:
    """["schedule.warmup=10", "model=B/16"] → nested tables; values as in TOML, and bare words are strings."""
    tables: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {word}: a setting is KEY=VALUE", try_="--set schedule.warmup=100")
        *above, last = key.strip().split(".")
        table = tables
        for name in above:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {word}: {name} was given a value already")
        table[last] = _value(text.strip())
    return tables


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables over each other; a change of optimizer drops what the other kind had."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if name == "optimizer" and "kind" in old and value.get("kind", old["kind"]) != old["kind"]:
                old = {}
            merged[name] = merge(old, value)
        else:
            merged[name] = value
    if "steps" in above and "epochs" not in above:  # a run has one length; the later word counts
        merged.pop("epochs", None)
    elif "epochs" in above and "steps" not in above:
        merged.pop("steps", None)
    return merged


def from_tables(tables: Mapping[str, Any]) -> Fit:
    return _dataclass(Fit, tables, "")


def check(tables: Mapping[str, Any]) -> None:
    """Names and types of settings that a recipe is still to be put under; which optimizer's they are, it may say."""
    from_tables({name: value for name, value in tables.items() if name != "optimizer"})


def to_tables(config: Fit) -> dict[str, Any]:
    """The inverse of `from_tables`, ready for TOML; None, which TOML lacks, is left out or false."""
    tables = _tables(config)
    tables["optimizer"] = {"kind": _kind(config.optimizer), **tables["optimizer"]}
    return tables


def write(config: Fit) -> str:
    return tomli_w.dumps(to_tables(config))


def differences(before: Fit, after: Fit, ignore: Iterable[str] = ()) -> list[str]:
    """ "schedule.warmup: 100 → 50", a line for every setting that differs."""
    one, other = (_flat(to_tables(config)) for config in (before, after))
    return [
        f"{key}: {one.get(key, 'not set')} → {other.get(key, 'not set')}"
        for key in sorted(one.keys() | other.keys())
        if key.split(".")[0] not in ignore and one.get(key) != other.get(key)
    ]


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{above}{name}."))
        else:
            flat[f"{above}{name}"] = value
    return flat


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return {"True": True, "False": False}.get(text.strip(), text)  # as Python writes them


def _kind(optimizer: SGD | Adam | AdamW) -> str:
    return next(name for name, kind in OPTIMIZERS.items() if type(optimizer) is kind)


def _tables(config: Any) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value):
            tables[one.name] = _tables(value)
        elif value is None:
            if one.default is not None:
                tables[one.name] = False
        else:
            tables[one.name] = _plain(value)
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
    """The names nearest to a wrong one; people write `warmup` for schedule.warmup."""
    inside = [] if where else [f"{table}.{name}" for table, names in _INSIDE.items() if name in names]
    return f"; did you mean {' or '.join(inside)}?" if inside else did_you_mean(name, known)


_INSIDE = {
    "optimizer": {name for kind in OPTIMIZERS.values() for name in get_type_hints(kind)},
    "schedule": get_type_hints(Schedule),
    "augment": get_type_hints(Augmentation),
    "masked": get_type_hints(Masked),
}


def _optimizer(tables: Any) -> Any:
    if not isinstance(tables, Mapping) or tables.get("kind", "sgd") not in OPTIMIZERS:
        raise ConfigError(
            f"optimizer = {tables!r} is not known",
            try_='[optimizer] kind = "adamw", or --set optimizer.kind=adamw',
            kinds=", ".join(OPTIMIZERS),
        )
    rest = {name: value for name, value in tables.items() if name != "kind"}
    return _dataclass(OPTIMIZERS[tables.get("kind", "sgd")], rest, "optimizer")


def _typed(hint: Any, value: Any, where: str) -> Any:
    """The value as the field's type wants it, or an error that names the setting."""
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
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    raise ConfigError(f"{where} = {value!r} should be {_WORDS.get(hint, 'a table')}")


_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


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
