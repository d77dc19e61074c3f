"""The public checkpoints that fine-tuning starts from: repository, training data, licence and preprocessing.

They come from Google's own training runs (the paper, AugReg, BiT), are on the Hugging Face Hub in timm's or Google's
format, and take inputs in [-1, 1]; one of Ti/16 is also inside the package. `KNOWN` adds the checkpoints of other
families (vitkit.weights.public_families). This file does not import torch.
"""

from dataclasses import dataclass
from typing import Literal

from vitkit.data.preprocessing import Preprocessing
from vitkit.weights.bundled import TI16
from vitkit.weights.public_families import FAMILIES, ListedCheckpoint


@dataclass(frozen=True, kw_only=True)
class PublicCheckpoint:
    source: str  # the name that `vitkit.load` takes: hf:OWNER/NAME, or that of weights inside the package
    trained_on: str
    trained_by: Literal["the paper", "AugReg", "BiT"]  # its figures hold for these weights only
    image: int = 224
    licence: str = "Apache-2.0"
    preprocessing: Preprocessing

    @property
    def repository(self) -> str | None:
        """Return the repository on the Hub, or None for weights inside the package."""
        return self.source.removeprefix("hf:") if self.source.startswith("hf:") else None


_VIT = Preprocessing(crop=0.9, rounding="timm")
_BIT = Preprocessing(crop=0.875, interpolation="bilinear", rounding="timm")
_SQUASH = Preprocessing(resize="squash", interpolation="bilinear", rounding="transformers")


def _timm(name: str) -> PublicCheckpoint:
    """Return a ViT of timm's: AugReg's, or the paper's where its name says `orig`."""
    return PublicCheckpoint(
        source=f"hf:timm/{name}",
        trained_on="ImageNet-21k",
        trained_by="the paper" if ".orig_" in name else "AugReg",
        preprocessing=_VIT,
    )


def _bit(name: str) -> PublicCheckpoint:
    """Return BiT-M: the architecture of the paper's ResNet baselines, but not their weights, which are not public."""
    return PublicCheckpoint(source=f"hf:timm/{name}", trained_on="ImageNet-21k", trained_by="BiT", preprocessing=_BIT)


def _google(name: str) -> PublicCheckpoint:
    """Return weights of the paper's authors: Google's ImageNet-21k ViT-B_16.npz and so on, in transformers' format."""
    return PublicCheckpoint(
        source=f"hf:google/{name}", trained_on="ImageNet-21k", trained_by="the paper", preprocessing=_SQUASH
    )


# Fine-tuning starts from the first of each. Variants that are missing have no public weights.
PUBLIC = {
    "Ti/16": (
        PublicCheckpoint(source=TI16, trained_on="ImageNet-1k", trained_by="AugReg", preprocessing=_VIT),
        _timm("vit_tiny_patch16_224.augreg_in21k"),
    ),
    "S/32": (_timm("vit_small_patch32_224.augreg_in21k"),),
    "S/16": (_timm("vit_small_patch16_224.augreg_in21k"),),
    "B/32": (_timm("vit_base_patch32_224.augreg_in21k"), _google("vit-base-patch32-224-in21k")),
    "B/16": (_timm("vit_base_patch16_224.augreg_in21k"), _google("vit-base-patch16-224-in21k")),
    "B/8": (_timm("vit_base_patch8_224.augreg_in21k"),),
    "L/32": (_timm("vit_large_patch32_224.orig_in21k"), _google("vit-large-patch32-224-in21k")),
    "L/16": (_timm("vit_large_patch16_224.augreg_in21k"), _google("vit-large-patch16-224-in21k")),
    "H/14": (_timm("vit_huge_patch14_224.orig_in21k"), _google("vit-huge-patch14-224-in21k")),
    "R+Ti/16": (_timm("vit_tiny_r_s16_p8_224.augreg_in21k"),),
    "R26+S/32": (_timm("vit_small_r26_s32_224.augreg_in21k"),),
    "R50+B/16": (_timm("vit_base_r50_s16_224.orig_in21k"),),
    "R50+L/32": (_timm("vit_large_r50_s32_224.augreg_in21k"),),
    "R50x1": (_bit("resnetv2_50x1_bit.goog_in21k"),),
    "R101x1": (_bit("resnetv2_101x1_bit.goog_in21k"),),
    "R152x2": (_bit("resnetv2_152x2_bit.goog_in21k"),),
}

DEFAULTS = {variant: checkpoints[0] for variant, checkpoints in PUBLIC.items()}
# by the name that `vitkit.load` takes
KNOWN: dict[str, ListedCheckpoint] = {
    **{
        checkpoint.source: ListedCheckpoint(
            source=checkpoint.source,
            family=checkpoint.trained_by,
            variant=variant,
            image=checkpoint.image,
            licence=checkpoint.licence,
            trained_on=checkpoint.trained_on,
        )
        for variant, checkpoints in PUBLIC.items()
        for checkpoint in checkpoints
    },
    **{checkpoint.source: checkpoint for checkpoint in FAMILIES},
}
# the ImageNet-21k weights of the paper's own authors, of which its Tables 2 and 5 are
PAPERS_OWN = {
    variant: own[-1]
    for variant, checkpoints in PUBLIC.items()
    if (own := [one for one in checkpoints if one.trained_by == "the paper"])
}
