"""The tasks of a VTAB: those of a folder, their groups, and the random crops and flips that their labels bear.

A folder of tasks has an entry for each task, any DATA that vitkit opens: tasks/cifar100/, tasks/dtd.npz. The 19 of
VTAB are known by their names. Others are in a folder of their group (tasks/natural/birds/), or in tasks/vtab.toml:

    [birds]
    group = "natural"       # natural, specialized or structured
    crop = true             # false where a random crop would change the label: a location, a count, a distance
    flip = true             # false where a mirrored image has another label: an orientation, a direction
    data = "hf:OWNER/NAME"  # where the images are not in the folder; a path begins there
    label = "species"       # the column that holds the classes, in a manifest or hf: set
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vitkit.config import toml
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.hub import PREFIX
from vitkit.data.sources.image_files import is_image, is_system_file
from vitkit.data.sources.manifest import ENDINGS
from vitkit.data.sources.splits import canonical_split
from vitkit.errors import ConfigError, did_you_mean
from vitkit.text import few

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = get_args(Group)
FILE = "vtab.toml"
FILE_ENDINGS = (*ENDINGS, ".npz", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")


@dataclass(frozen=True)
class KnownTask:
    """A task of VTAB, and what BiT does with its images (Kolesnikov et al. 2020, supplement F)."""

    group: Group
    crop: bool = True
    flip: bool = True
    aliases: str = ""  # other names that are in use, without signs between letters and digits


KNOWN = {
    "caltech101": KnownTask("natural", aliases="caltech"),
    "cifar100": KnownTask("natural", aliases="cifar"),
    "dtd": KnownTask("natural", aliases="describabletextures"),
    "flowers102": KnownTask("natural", aliases="flowers oxfordflowers oxfordflowers102"),
    "pets": KnownTask("natural", aliases="pet oxfordpets oxfordpet oxfordiiitpet oxfordiiitpets"),
    "sun397": KnownTask("natural"),
    "svhn": KnownTask("natural", aliases="svhncropped"),
    "patch_camelyon": KnownTask("specialized", aliases="camelyon pcam"),
    "eurosat": KnownTask("specialized"),
    "resisc45": KnownTask("specialized", aliases="resisc"),
    "diabetic_retinopathy": KnownTask("specialized", aliases="retinopathy diabeticretinopathydetection"),
    "clevr_count": KnownTask("structured", crop=False, aliases="clevrcountall"),
    "clevr_distance": KnownTask("structured", crop=False, aliases="clevrdist clevrclosestobjectdistance"),
    "dmlab": KnownTask("structured", crop=False),
    "kitti_distance": KnownTask("structured", crop=False, aliases="kitti kittidist kitticlosestvehicledistance"),
    "dsprites_location": KnownTask(
        "structured", crop=False, flip=False, aliases="dspritesloc dspritesxpos dspriteslabelxposition"
    ),
    "dsprites_orientation": KnownTask("structured", flip=False, aliases="dspritesori dspriteslabelorientation"),
    "smallnorb_azimuth": KnownTask(
        "structured", flip=False, aliases="smallnorbazi smallnorbazim smallnorblabelazimuth snorbazim"
    ),
    "smallnorb_elevation": KnownTask(
        "structured", aliases="smallnorbele smallnorbelev smallnorblabelelevation snorbelev"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Task:
    name: str
    data: str  # as `open_data` takes it; a path is absolute
    group: Group
    crop: bool  # whether a random crop keeps the label
    flip: bool  # whether a mirrored image keeps the label
    label: str | None = None
    known: str | None = None  # its name among VTAB's 19


def known_name(name: str) -> str | None:
    """Return the name of a task among VTAB's 19: "dsprites_location" for "dSprites-loc", None for others."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return next(
        (known for known, task in KNOWN.items() if plain == known.replace("_", "") or plain in task.aliases.split()),
        None,
    )


def absolute_data(data: str) -> str:
    """Return data as they are called from any directory: one spelling for each path.

    The last name stays, also that of a link: its ending says what kind of file it is.
    """
    path = Path(data)
    return data if data.startswith(PREFIX) else str(path.parent.resolve() / path.name)


def find_tasks(folder: Path) -> tuple[Task, ...]:
    """Return the tasks of a folder, by group and name."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder." if folder.exists() else f"{folder} does not exist.",
            expected="a folder with an entry for each task: a folder, .zip, manifest, .npz or shards",
        )
    described = _read_file(folder / FILE)
    entries = {name: (path, group) for name, path, group in _entries(folder)}
    missing = [name for name, keys in described.items() if name not in entries and "data" not in keys]
    if missing:
        raise DataError(
            f"{folder / FILE} describes {few(missing)}, not in {folder}{did_you_mean(missing[0], entries)}",
            found=few([*entries]) or "no tasks",
            try_='their name, or data = "…" where the images are elsewhere',
        )
    if not entries and not described:
        raise DataError(
            f"{folder} holds no tasks.",
            expected=f"{folder}/TASK/train/CLASS/*.jpg and {folder}/TASK/test/…, or other data: .npz, .zip, shards",
        )
    tasks = [_task(folder, name, entries.get(name), described.get(name, {})) for name in sorted({*entries, *described})]
    if ungrouped := [name for name, task in tasks if task is None]:
        raise ConfigError(
            f"the group of {few(ungrouped)} is not known.",
            try_=f"{folder}/natural/{ungrouped[0]}, or specialized, or structured",
            or_=f'[{ungrouped[0]}] and group = "natural" in {folder / FILE}',
        )
    grouped = [task for _, task in tasks if task is not None]
    return tuple(sorted(grouped, key=lambda task: (GROUPS.index(task.group), task.name)))


def _entries(folder: Path) -> Iterator[tuple[str, Path, Group | None]]:
    """Yield name, path and group of every entry that can be a task."""
    seen: dict[str, Path] = {}
    for parent, group in ((folder, None), *((folder / group, group) for group in GROUPS)):
        for path in sorted(parent.iterdir()) if parent.is_dir() else ():
            if path.name.startswith(".") or is_system_file(path.name) or (group is None and path.name in GROUPS):
                continue
            if canonical_split(path.name) or is_image(path.name):
                raise DataError(
                    f"{folder} looks like a single task: it has {path.relative_to(folder)}.",
                    expected="a folder of tasks, each with splits and classes of its own",
                    try_=f"{folder.parent if folder.name else '..'}, if that holds the tasks",
                )
            name = _name(path)
            if name is None:
                continue
            if name in seen:
                raise DataError(f"two tasks are called {name}: {seen[name]} and {path}.", try_="rename one of them")
            seen[name] = path
            yield name, path, group


def _name(path: Path) -> str | None:
    """Return the name of a task without the ending of its file; None for a file that is no data."""
    if path.is_dir():
        return path.name
    endings = [ending for ending in FILE_ENDINGS if path.name.lower().endswith(ending)]
    return path.name[: -max(map(len, endings))] if endings else None


def _task(
    folder: Path, name: str, entry: tuple[Path, Group | None] | None, keys: Mapping[str, Any]
) -> tuple[str, Task | None]:
    known = known_name(name)
    usual = KNOWN[known] if known else None
    path, folder_group = entry or (None, None)
    group = keys.get("group") or folder_group or (usual.group if usual else None)
    if group is None:
        return name, None
    data = keys.get("data") or str(path)
    if "data" in keys and not data.startswith(PREFIX):
        data = str(folder / Path(data).expanduser())
    return name, Task(
        name=name,
        data=absolute_data(data),
        group=group,
        crop=keys.get("crop", usual.crop if usual else True),
        flip=keys.get("flip", usual.flip if usual else True),
        label=keys.get("label"),
        known=known,
    )


KEYS: dict[str, tuple[type, str]] = {
    "group": (str, ", ".join(GROUPS)),
    "crop": (bool, "true or false"),
    "flip": (bool, "true or false"),
    "data": (str, "a path or hf:NAME"),
    "label": (str, "the name of a column"),
}


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    tables = toml.read(path)
    for name, keys in tables.items():
        if not isinstance(keys, dict):
            raise ConfigError(f"{path}: {name} = {keys!r} belongs to no task", try_=f"[TASK] above it, then {name} = …")
        for key, value in keys.items():
            if key not in KEYS:
                raise ConfigError(f"{path}: [{name}] has no key {key}{did_you_mean(key, KEYS)}", keys=", ".join(KEYS))
            kind, expected = KEYS[key]
            if not isinstance(value, kind) or (key == "group" and value not in GROUPS):
                raise ConfigError(f"{path}: {key} = {value!r} of [{name}] is not known", expected=expected)
    return tables
