"""An output folder of part files: Parquet files of consecutive images, written whole, whose presence means done.

manifest.json records what the rows depend on and how the images are cut into parts; the parts of any number of
processes fit together, because the cut depends on the list of images alone. The names of parts have a hash of the
manifest: parts of another model are never taken for these.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypedDict

from vitkit.errors import ConfigError, VitkitError
from vitkit.output_folder import OutputFolder, open_output_folder
from vitkit.predict.journal import MOST_BATCH, BlockT, Trait, differences
from vitkit.predict.resumable_file import BlockFormat, digest
from vitkit.stored_json import parse_json
from vitkit.text import valid_utf8

VERSION = 1
MANIFEST, PARTS, IMAGES = "manifest.json", "parts", "images"
MOST_PARTS = 1024  # of a job, as long as a part has at most
MOST_IMAGES = 32_768  # images: more would take long to repeat after a kill, and much memory as vectors


@dataclass(frozen=True)
class PartPlan:
    """Images cut into consecutive parts; each but the last has whole batches.

    So every batch has the images that it would have in one process, and its results have the same bits.
    """

    images: int
    batch: int
    size: int  # images of a part

    @classmethod
    def of(cls, images: int, batch: int) -> "PartPlan":
        batches = min(-(-images // (batch * MOST_PARTS)), max(MOST_IMAGES // batch, 1))
        return cls(images, batch, max(batches, 1) * batch)

    def __len__(self) -> int:
        return -(-self.images // self.size)

    def images_of(self, part: int) -> range:
        return range(part * self.size, min((part + 1) * self.size, self.images))


class _Manifest(TypedDict):
    version: int
    traits: dict[str, tuple[str | int, str]]
    images: int
    batch: int
    part: int


class PartFolder(Generic[BlockT]):
    """The parts of one job in an output folder."""

    def __init__(self, name: str, plan: PartPlan, key: str, format: BlockFormat[BlockT]):
        self.name, self.plan, self.key, self.format = name, plan, key, format
        self.parts = parts_folder(name)

    def part_name(self, part: int) -> str:
        images = self.plan.images_of(part)
        return f"part-{images.start:012d}-{images.stop:012d}-{self.key}.parquet"

    def exists(self, part: int) -> bool:
        return self.parts.exists(self.part_name(part))

    def missing(self, parts: Iterable[int]) -> list[int]:
        """Return those of the parts that are not there."""
        there = set(self.parts.names("part-"))
        return [part for part in parts if self.part_name(part) not in there]

    def write(self, part: int, names: Sequence[str], blocks: Sequence[BlockT]) -> None:
        self.parts.write(self.part_name(part), self.format.part(names, blocks))

    def read(self, part: int, names: Sequence[str]) -> BlockT | None:
        """Return the rows of a part, or None for one that is damaged or not of these images."""
        content = self.parts.read(self.part_name(part))
        try:
            stored, block = self.format.read_part(content)
        except VitkitError:
            return None
        return block if stored == [*map(valid_utf8, names)] else None

    def batches(self, block: BlockT) -> list[BlockT]:
        """Return the rows of a part as they were computed, batch by batch."""
        batch = self.plan.batch
        return [block.select(first, min(first + batch, len(block))) for first in range(0, len(block), batch)]

    def delete(self, part: int) -> None:
        self.parts.delete(self.part_name(part))

    def delete_foreign(self) -> None:
        """Remove parts of another manifest, which two processes may begin at once in a store without locks."""
        own = {self.part_name(part) for part in range(len(self.plan))}
        for name in self.parts.names("part-"):
            if name not in own:
                self.parts.delete(name)


def parts_folder(name: str) -> OutputFolder:
    return open_output_folder(os.path.join(name, PARTS))


def open_parts(
    name: str,
    traits: Mapping[str, Trait],
    images: int,
    batch: int,
    format: BlockFormat[BlockT],
    *,
    overwrite: bool = False,
) -> PartFolder[BlockT]:
    """Open the folder of a job, begin it where it is new, and refuse it where it is that of another job.

    The batch size becomes that which the folder was begun with.
    """
    folder = open_output_folder(name)
    if overwrite:
        remove_parts(name)
    asked = PartPlan.of(images, batch)
    _refuse_other_files(folder)
    manifest = _Manifest(version=VERSION, traits={**traits}, images=images, batch=batch, part=asked.size)
    content = folder.create(MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    stored = _read_manifest(content, f"{folder.where}/{MANIFEST}")
    old = {key: Trait(*trait) for key, trait in stored["traits"].items()}
    if different := differences(old, traits):
        raise ConfigError(
            f"{folder.where} was begun with another model, other settings or other images.",
            found=different,
            try_="another --out, or --overwrite to begin again",
        )
    plan = PartPlan(images, stored["batch"], stored["part"])
    values = {key: trait.value for key, trait in old.items()}
    key = digest([json.dumps([values, images, plan.batch, plan.size], sort_keys=True).encode()])[:8]
    return PartFolder(name, plan, key, format)


def remove_parts(name: str) -> None:
    """Remove the manifest first, then the parts: what remains after a kill belongs to no job."""
    folder, parts = open_output_folder(name), parts_folder(name)
    folder.delete(MANIFEST)
    for part in parts.names("part-"):
        parts.delete(part)


def has_parts(name: str) -> bool:
    """Return whether the folder has been begun."""
    return open_output_folder(name).exists(MANIFEST)


def _refuse_other_files(folder: OutputFolder) -> None:
    """Refuse a folder of other things, such as the images themselves."""
    names = (
        [] if folder.exists(MANIFEST) else [name for name in folder.names() if name not in (MANIFEST, PARTS, IMAGES)]
    )
    if names:
        raise ConfigError(
            f"--out {folder.where} is a folder with other files in it.",
            found=", ".join(names[:3]) + (" …" if len(names) > 3 else ""),
            try_="a new folder, or the name of a file",
        )


def _read_manifest(content: bytes, name: str) -> _Manifest:
    manifest: _Manifest = parse_json(content, _Manifest, name, error=ConfigError)
    batch, part = manifest["batch"], manifest["part"]
    if manifest["version"] != VERSION or not 1 <= batch <= MOST_BATCH or part < batch or part % batch:
        raise ConfigError(f"{name} is not of this version of vitkit.", try_="another --out, or --overwrite")
    return manifest
