"""Infer splits and classes from paths: CLASS/**/a.jpg, SPLIT/CLASS/**/a.jpg, SPLIT/a.jpg or just a.jpg.

Paths are relative and sorted, with "/"; the rules are the same for folders on disk and inside an archive.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.splits import ALL, canonical_split, check_split_spellings
from vitkit.text import counted, few, printable


@dataclass
class FolderLayout:
    rows: dict[str, list[int]] = field(default_factory=dict)  # split → indices of the paths
    labels: dict[str, list[str | None]] = field(default_factory=dict)  # split → their classes
    notes: list[str] = field(default_factory=list)

    @property
    def labelled(self) -> bool:
        return any(label is not None for labels in self.labels.values() for label in labels)


def infer_layout(
    source: str, paths: Sequence[str], folders: Iterable[str] = (), *, packed: bool = False
) -> FolderLayout:
    """Infer the layout of image paths.

    `folders` are those that exist, to name classes without images. An archive (`packed`) often has one folder around
    everything.
    """
    layout = FolderLayout()
    prefix = _wrapper(paths, packed)
    if prefix:
        layout.notes.append(f"splits or classes found in the folder {printable(prefix.rstrip('/'))}")
    inner = [path.removeprefix(prefix).split("/") for path in paths]
    exist = [folder.removeprefix(prefix).split("/") for folder in folders if folder.startswith(prefix)]
    tops = {parts[0] for parts in inner if len(parts) > 1}
    deep = {parts[0] for parts in inner if len(parts) > 2}  # folders that hold folders of images
    splits = _split_folders(source, tops, deep, layout)
    if not splits:
        _add(layout, ALL, "", list(range(len(inner))), inner, [parts[0] for parts in exist])
        return layout
    outside = [row for row, parts in enumerate(inner) if len(parts) == 1]
    if outside:
        layout.notes.append(
            f"next to the split folders, skipped: {counted(len(outside), 'image')}: "
            + few([printable(paths[row]) for row in outside])
        )
    for folder in sorted(splits):
        rows = [row for row, parts in enumerate(inner) if len(parts) > 1 and parts[0] == folder]
        _add(
            layout,
            splits[folder],
            f"{folder}/",
            rows,
            [inner[row][1:] for row in rows],
            [parts[1] for parts in exist if len(parts) > 1 and parts[0] == folder],
        )
    if layout.labelled:
        for split, labels in layout.labels.items():
            if labels and all(label is None for label in labels):
                layout.notes.append(
                    f"{split} has no class folders: its {counted(len(labels), 'image')} "
                    f"{'is' if len(labels) == 1 else 'are'} unlabelled"
                )
    return layout


def _wrapper(paths: Sequence[str], packed: bool) -> str:
    """Return "photos/" if everything is in photos/train/ and photos/test/, as archives often unpack, else "".

    Inside an archive, photos/cat/ and photos/dog/ count too. On disk, cat/2020/ and cat/2021/ are one class.
    """
    seconds = {path.split("/")[1] for path in paths if path.count("/") >= 2}
    tops = {path.split("/")[0] for path in paths}
    if len(tops) != 1 or any(path.count("/") < 2 for path in paths):
        return ""
    (top,) = tops
    return (
        f"{top}/"
        if not canonical_split(top) and ((packed and len(seconds) > 1) or all(map(canonical_split, seconds)))
        else ""
    )


def _split_folders(source: str, tops: set[str], deep: set[str], layout: FolderLayout) -> dict[str, str]:
    """Return folder → split.

    A single folder called `train` among others is a class (of trains), unless it alone contains folders: then those are
    the classes, and the other folders are something else.
    """
    splits = {top: split for top in tops if (split := canonical_split(top))}
    others = sorted(tops - splits.keys())
    if not splits:
        return {}
    ambiguous = others and len(set(splits.values())) < 2
    if ambiguous and deep & splits.keys() and deep & set(others):
        raise DataError(
            f"{source} can be read in two ways: {few(sorted(splits))} as a split, or as a class next to "
            f"{few([*map(printable, others)])}.",
            found="folders of images inside both",
            try_="the split's own folder, or rename it if it is a class",
        )
    if ambiguous and not deep & splits.keys():
        layout.notes.append(
            f"{few(sorted(splits))} is read as a class, since {few(others)} "
            f"{'is' if len(others) == 1 else 'are'} next to it"
        )
        return {}
    check_split_spellings(source, splits)
    if others:
        layout.notes.append(f"folders next to the splits, skipped: {few([*map(printable, others)])}")
    return splits


def _add(
    layout: FolderLayout, split: str, prefix: str, rows: list[int], inner: Sequence[list[str]], exist: list[str]
) -> None:
    """Add a split: `inner` are the parts of the paths below it, `exist` the folders directly below it."""
    loose = [row for row, parts in zip(rows, inner, strict=True) if len(parts) == 1]
    counts = Counter(parts[0] for parts in inner if len(parts) > 1)
    if len(loose) > counts.total():  # mostly loose images: the few folders are not classes
        layout.rows[split], layout.labels[split] = rows, [None] * len(rows)
        if counts:
            layout.notes.append(
                f"{counted(len(loose), 'image')} outside folders and {counts.total():,} inside "
                f"{few([prefix + printable(name) for name in sorted(counts)])}: read as unlabelled"
            )
        return
    if loose:
        layout.notes.append(
            f"next to the class folders{f' in {prefix}' if prefix else ''}, skipped: " + counted(len(loose), "image")
        )
    empty = sorted({prefix + name for name in exist} - {prefix + name for name in counts})
    if empty and counts:
        layout.notes.append(f"folders without images, not classes: {few([*map(printable, empty)])}")
    kept = [(row, parts[0]) for row, parts in zip(rows, inner, strict=True) if len(parts) > 1]
    if any(canonical_split(parts[1]) for parts in inner if len(parts) > 2):
        layout.notes.append(
            f"folders named like splits inside classes{f' of {prefix}' if prefix else ''}: "
            "read as part of their class; SPLIT/CLASS is read, CLASS/SPLIT is not"
        )
    layout.rows[split] = [row for row, _ in kept]
    layout.labels[split] = [name for _, name in kept]
