"""Make vitkit/weights/ti16 from the float32 weights with timm's names and from timm's lists of ImageNet's classes.

python -m tests.weights.make_ti16 WEIGHTS.safetensors TIMM/data/_info vitkit/weights/ti16

Two files: model.safetensors holds the tensors and no record, model.json the record, so that the record can change
without another copy of the tensors. `--record-only` writes model.json alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import vitkit
from vitkit.data.preprocessing import Preprocessing
from vitkit.model.base import Metadata
from vitkit.weights import native

DTYPE = torch.float16  # bfloat16 changes the logits seven times as much; no weight exceeds float16's range

# Classes whose first word in WordNet is also that of another class, or differs from it only in a capital letter.
AMBIGUOUS = {
    "n02012849": "crane (bird)",
    "n03126707": "crane (machine)",
    "n02113186": "Cardigan Welsh corgi",
    "n02963159": "cardigan",
    "n03710637": "maillot (tights)",
    "n03710721": "maillot (tank suit)",
}


def class_names(info: Path) -> tuple[str, ...]:
    """Return the first word of WordNet for each of ImageNet's 1,000 synsets, in the order of the logits."""
    synsets = (info / "imagenet_synsets.txt").read_text(encoding="utf-8").split()
    lines = (info / "imagenet_synset_to_lemma.txt").read_text(encoding="utf-8").splitlines()
    words = dict(line.split("\t") for line in lines)
    names = tuple(AMBIGUOUS.get(synset) or words[synset].split(", ")[0] for synset in synsets)
    assert len({name.lower() for name in names}) == len(names) == 1000
    return names


def main(source: Path, info: Path, target: Path, *, record_only: bool = False) -> None:
    model = vitkit.load(source)
    model.metadata = Metadata(
        labels=class_names(info),
        preprocessing=Preprocessing(crop=0.9, rounding="timm"),  # timm's for its AugReg models of 224 pixels
        provenance={
            "name": "ti16",
            "title": "Ti/16 of AugReg, ImageNet-1k",
            "publisher": "Google Research",
            "paper": "How to train your ViT? Data, Augmentation, and Regularization in Vision Transformers, "
            "https://arxiv.org/abs/2106.10270",
            "license": "Apache-2.0",
            "source": {"format": "timm", "dtype": "float32", "sha256": hashlib.sha256(source.read_bytes()).hexdigest()},
            "dtype": str(DTYPE).removeprefix("torch."),
            "changes": "rounded to float16, tensors renamed; class names and preprocessing added",
        },
    )
    record = native.record_of(model)
    del record["vitkit"]  # the record is the same for every version
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (target / "model.json").write_text(text, encoding="utf-8")
    if not record_only:
        tensors = {name: tensor.to(DTYPE) for name, tensor in native.tensors_of(model).items()}
        assert all(tensor.isfinite().all() for tensor in tensors.values())
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
        (target / "model.safetensors").chmod(0o644)  # safetensors creates files that only their owner can read


if __name__ == "__main__":
    paths = [Path(argument) for argument in sys.argv[1:] if argument != "--record-only"]
    main(*paths, record_only="--record-only" in sys.argv)
