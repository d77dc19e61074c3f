"""Paths → splits and classes: CLASS/**/a.jpg, SPLIT/CLASS/**/a.jpg, SPLIT/a.jpg or just a.jpg.

Paths are relative and sorted, with "/" between; folders on disk and folders inside a tar file read the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vitkit.data.sources.base import DataError
from vitkit.data.sources.splits import WHOLE, canonical, refuse_two_spellings
from vitkit.text import counted, few, printable


@dataclass
class Layout:
    rows: dict[str, list[int]] = field(default_factory=dict)  # split → which of the paths
    labels: dict[str, list[str | None]] = field(default_factory=dict)  # split → their classes
    notes: list[str] = field(default_factory=list)

    @property
    def labelled(self) -> bool:
        return any(label is not None for labels in self.labels.values() for label in labels)


def arrange(source: str, paths: Sequence[str], folders: Iterable[str] = (), *, packed: bool = False) -> Layout:
    """`folders` are those that exist, so that classes without pictures can be named. What is `packed` has, often, the
    folder around it that was packed."""
    layout = Layout()
    prefix = _wrapper(paths, packed)
    if prefix:
        layout.notes.append(f"splits or classes found in the folder {printable(prefix.rstrip('/'))}")
    inner = [path.removeprefix(prefix).split("/") for path in paths]
    exist = [folder.removeprefix(prefix).split("/") for folder in folders if folder.startswith(prefix)]
    tops = {parts[0] for parts in inner if len(parts) > 1}
    deep = {parts[0] for parts in inner if len(parts) > 2}  # folders that hold folders of pictures
    splits = _split_folders(source, tops, deep, layout)
    if not splits:
        _add(layout, WHOLE, "", list(range(len(inner))), inner, [parts[0] for parts in exist])
        return layout
    outside = [row for row, parts in enumerate(inner) if len(parts) == 1]
    if outside:
        layout.notes.append(
            f"beside the folders of splits, left out: {counted(len(outside), 'picture')}: "
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
                    f"{split} has no folders of classes: its {counted(len(labels), 'picture')} "
                    f"{'is' if len(labels) == 1 else 'are'} unlabelled"
                )
    return layout


def _wrapper(paths: Sequence[str], packed: bool) -> str:
    """ "photos/" where everything lies in photos/train/ and photos/test/, as archives often unpack; inside of one, also
    where it lies in photos/cat/ and photos/dog/. On a disk, cat/2020/ and cat/2021/ are a class in two parts.
    """
    seconds = {path.split("/")[1] for path in paths if path.count("/") >= 2}
    tops = {path.split("/")[0] for path in paths}
    if len(tops) != 1 or any(path.count("/") < 2 for path in paths):
        return ""
    (top,) = tops
    return f"{top}/" if not canonical(top) and ((packed and len(seconds) > 1) or all(map(canonical, seconds))) else ""


def _split_folders(source: str, tops: set[str], deep: set[str], layout: Layout) -> dict[str, str]:
    """Folder → split. One folder called `train` among others is a class (trains are things to take pictures of), unless
    it alone holds folders of its own: then those are the classes, and what lies beside it is something else.
    """
    splits = {top: split for top in tops if (split := canonical(top))}
    others = sorted(tops - splits.keys())
    if not splits:
        return {}
    lonely = others and len(set(splits.values())) < 2
    if lonely and deep & splits.keys() and deep & set(others):
        raise DataError(
            f"{source} can be read in two ways: {few(sorted(splits))} as a split, or as a class beside "
            f"{few([*map(printable, others)])}.",
            found="folders of pictures inside both",
            try_="the split's own folder, or rename it if it is a class",
        )
    if lonely and not deep & splits.keys():
        layout.notes.append(
            f"{few(sorted(splits))} is taken as a class, since {few(others)} "
            f"{'lies' if len(others) == 1 else 'lie'} beside it"
        )
        return {}
    refuse_two_spellings(source, splits)
    if others:
        layout.notes.append(f"folders beside the splits, left out: {few([*map(printable, others)])}")
    return splits


def _add(layout: Layout, split: str, where: str, rows: list[int], inner: Sequence[list[str]], exist: list[str]) -> None:
    """One split: `inner` are the parts of its paths below it, `exist` the folders that stand right below it."""
    loose = [row for row, parts in zip(rows, inner, strict=True) if len(parts) == 1]
    counts = Counter(parts[0] for parts in inner if len(parts) > 1)
    if len(loose) > counts.total():  # mostly loose pictures: the few folders are no classes
        layout.rows[split], layout.labels[split] = rows, [None] * len(rows)
        if counts:
            layout.notes.append(
                f"{counted(len(loose), 'picture')} outside folders and {counts.total():,} inside "
                f"{few([where + printable(name) for name in sorted(counts)])}: taken as unlabelled"
            )
        return
    if loose:
        layout.notes.append(
            f"beside the folders of classes{f' in {where}' if where else ''}, left out: "
            + counted(len(loose), "picture")
        )
    empty = sorted({where + name for name in exist} - {where + name for name in counts})
    if empty and counts:
        layout.notes.append(f"folders without pictures, no classes of their own: {few([*map(printable, empty)])}")
    kept = [(row, parts[0]) for row, parts in zip(rows, inner, strict=True) if len(parts) > 1]
    if any(canonical(parts[1]) for parts in inner if len(parts) > 2):
        layout.notes.append(
            f"folders named like splits inside classes{f' of {where}' if where else ''}: "
            "taken as part of their class; SPLIT/CLASS is read, CLASS/SPLIT is not"
        )
    layout.rows[split] = [row for row, _ in kept]
    layout.labels[split] = [name for _, name in kept]
