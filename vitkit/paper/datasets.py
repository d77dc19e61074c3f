"""The data sets of the experiments, found by name in one folder that the user names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitkit.errors import ConfigError

SUFFIXES = ("", ".tar", ".zip", ".npz", "-shards")


@dataclass(frozen=True)
class DatasetNote:
    names: tuple[str, ...]  # of the folder or file, the usual one first
    description: str


KNOWN = {
    "tiny-imagenet": DatasetNote(("tiny-imagenet-200", "tiny-imagenet", "tiny"), "Tiny-ImageNet: 200 classes, 64 px"),
    "cifar10": DatasetNote(("cifar10", "cifar-10"), "CIFAR-10"),
    "cifar100": DatasetNote(("cifar100", "cifar-100"), "CIFAR-100"),
    "pets": DatasetNote(("pets", "oxford-iiit-pet"), "Oxford-IIIT Pets, full size"),
    "flowers": DatasetNote(("flowers", "flowers102", "oxford-flowers"), "Oxford Flowers-102"),
    "pets-trimaps": DatasetNote(("trimaps", "pets-trimaps"), "the trimaps of Oxford-IIIT Pets, a PNG for each image"),
    "imagenet": DatasetNote(("imagenet", "imagenet-1k", "ilsvrc2012"), "ImageNet, ILSVRC-2012"),
    "imagenet21k": DatasetNote(("imagenet21k", "imagenet-21k"), "ImageNet-21k"),
    "jft": DatasetNote(("jft", "jft-300m"), "JFT-300M, or your own set of its size"),
}


@dataclass(frozen=True)
class Datasets:
    """A folder that holds data sets under their usual names, each in any form that vitkit opens."""

    folder: Path

    def find(self, name: str, *, as_published: bool = False) -> str:
        """Return the path of a data set, or raise an error that says where it belongs.

        as_published   images without class folders will do: beside annotations/, they would be read as one class
        """
        note = KNOWN[name]
        for candidate in note.names:
            for suffix in SUFFIXES:
                path = self.folder / f"{candidate}{suffix}"
                if path.exists():
                    if (path / "annotations").is_dir() and not as_published:
                        raise ConfigError(
                            f"{path} holds annotations/ beside its images, and would be read as classes of that name",
                            expected=f"{path}/trainval/CLASS/*.jpg and test/CLASS/*.jpg",
                            try_=f"move annotations/trimaps to {self.folder / KNOWN['pets-trimaps'].names[0]}",
                        )
                    return str(path.absolute())
        raise ConfigError(
            f"this needs {note.description}, and {self.folder} has none",
            looked_for=f"{self.folder / note.names[0]}, a folder, .tar, .zip, .npz or shards",
            try_="--data the folder that holds it, or --scale smoke, which needs no data",
        )
