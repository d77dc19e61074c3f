"""Public checkpoints of other families than Google's: self-supervised, distilled and image-text models, by name.

Licences are those that the cards state, or the publishers' own repositories where these differ; a note says so. The
image size is the one that a checkpoint was published for. This file does not import torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ListedCheckpoint:
    """A public checkpoint as `vitkit list models` shows it."""

    source: str  # the name that `vitkit.load` takes
    family: str  # "the paper", "AugReg", "DINOv2" …: who trained it, and how
    variant: str  # the size and the patch side: B/16
    image: int
    licence: str
    trained_on: str
    gated: bool = False  # its conditions have to be accepted on the Hub before the download
    note: str = ""


def _family(
    family: str, owner: str, rows: str, *, licence: str, trained_on: str, gated: bool = False, note: str = ""
) -> Iterator[ListedCheckpoint]:
    """Yield the checkpoints of a family; each row is a repository's name, its variant and its image size."""
    for row in rows.strip().splitlines():
        name, variant, image = row.split()
        yield ListedCheckpoint(
            source=f"hf:{owner}/{name}",
            family=family,
            variant=variant,
            image=int(image),
            licence=licence,
            trained_on=trained_on,
            gated=gated,
            note=note,
        )


FAMILIES: tuple[ListedCheckpoint, ...] = (
    *_family(
        "DINO",
        "facebook",
        """
        dino-vits16 S/16 224
        dino-vits8 S/8 224
        dino-vitb16 B/16 224
        dino-vitb8 B/8 224
        """,
        licence="Apache-2.0",
        trained_on="ImageNet-1k, without labels",
    ),
    *_family(
        "DINOv2",
        "facebook",
        """
        dinov2-small S/14 518
        dinov2-base B/14 518
        dinov2-large L/14 518
        dinov2-giant giant2/14 518
        """,
        licence="Apache-2.0",
        trained_on="LVD-142M, without labels",
    ),
    *_family(
        "DINOv2 with registers",
        "facebook",
        """
        dinov2-with-registers-small S/14 518
        dinov2-with-registers-base B/14 518
        dinov2-with-registers-large L/14 518
        dinov2-with-registers-giant giant2/14 518
        """,
        licence="Apache-2.0",
        trained_on="LVD-142M, without labels",
    ),
    *_family(
        "DINOv3",
        "facebook",
        """
        dinov3-vits16-pretrain-lvd1689m S/16 224
        dinov3-vits16plus-pretrain-lvd1689m S+/16 224
        dinov3-vitb16-pretrain-lvd1689m B/16 224
        dinov3-vitl16-pretrain-lvd1689m L/16 224
        dinov3-vith16plus-pretrain-lvd1689m H+/16 224
        dinov3-vit7b16-pretrain-lvd1689m 7B/16 224
        """,
        licence="DINOv3 License",
        trained_on="LVD-1689M, without labels",
        gated=True,
    ),
    *_family(
        "DINOv3",
        "facebook",
        "dinov3-vitl16-pretrain-sat493m L/16 224",
        licence="DINOv3 License",
        trained_on="SAT-493M, satellite images, without labels",
        gated=True,
    ),
    *_family(
        "MAE",
        "facebook",
        """
        vit-mae-base B/16 224
        vit-mae-large L/16 224
        vit-mae-huge H/14 224
        """,
        licence="CC-BY-NC-4.0",
        trained_on="ImageNet-1k, without labels",
        note="the licence is that of the authors' repository; the card on the Hub states Apache-2.0",
    ),
    *_family(
        "I-JEPA",
        "facebook",
        """
        ijepa_vith14_1k H/14 224
        ijepa_vith16_1k H/16 448
        """,
        licence="CC-BY-NC-4.0",
        trained_on="ImageNet-1k, without labels",
    ),
    *_family(
        "I-JEPA",
        "timm",
        """
        vit_huge_patch14_gap_224.in22k_ijepa H/14 224
        vit_giant_patch16_gap_224.in22k_ijepa g/16 224
        """,
        licence="CC-BY-NC-4.0",
        trained_on="ImageNet-21k, without labels",
    ),
    *_family(
        "DeiT",
        "timm",
        """
        deit_tiny_patch16_224.fb_in1k Ti/16 224
        deit_small_patch16_224.fb_in1k S/16 224
        deit_base_patch16_224.fb_in1k B/16 224
        deit_base_patch16_384.fb_in1k B/16 384
        """,
        licence="Apache-2.0",
        trained_on="ImageNet-1k",
    ),
    *_family(
        "DeiT, distilled",
        "timm",
        """
        deit_tiny_distilled_patch16_224.fb_in1k Ti/16 224
        deit_small_distilled_patch16_224.fb_in1k S/16 224
        deit_base_distilled_patch16_224.fb_in1k B/16 224
        deit_base_distilled_patch16_384.fb_in1k B/16 384
        """,
        licence="Apache-2.0",
        trained_on="ImageNet-1k",
        note="with a distillation token",
    ),
    *_family(
        "DeiT-III",
        "timm",
        """
        deit3_small_patch16_224.fb_in1k S/16 224
        deit3_base_patch16_224.fb_in1k B/16 224
        deit3_large_patch16_224.fb_in1k L/16 224
        deit3_huge_patch14_224.fb_in1k H/14 224
        """,
        licence="Apache-2.0",
        trained_on="ImageNet-1k",
    ),
    *_family(
        "DeiT-III",
        "timm",
        """
        deit3_small_patch16_224.fb_in22k_ft_in1k S/16 224
        deit3_base_patch16_224.fb_in22k_ft_in1k B/16 224
        deit3_large_patch16_224.fb_in22k_ft_in1k L/16 224
        deit3_huge_patch14_224.fb_in22k_ft_in1k H/14 224
        """,
        licence="Apache-2.0",
        trained_on="ImageNet-21k, then ImageNet-1k",
    ),
    *_family(
        "CLIP of OpenAI",
        "openai",
        """
        clip-vit-base-patch32 B/32 224
        clip-vit-base-patch16 B/16 224
        clip-vit-large-patch14 L/14 224
        clip-vit-large-patch14-336 L/14 336
        """,
        licence="MIT",
        trained_on="400M pairs of image and text (WIT)",
        note="the licence is that of OpenAI's repository; the card on the Hub states none",
    ),
    *_family(
        "OpenCLIP",
        "laion",
        """
        CLIP-ViT-B-32-laion2B-s34B-b79K B/32 224
        CLIP-ViT-L-14-laion2B-s32B-b82K L/14 224
        CLIP-ViT-H-14-laion2B-s32B-b79K H/14 224
        """,
        licence="MIT",
        trained_on="LAION-2B, pairs of image and text",
    ),
    *_family(
        "MetaCLIP",
        "facebook",
        """
        metaclip-b16-fullcc2.5b B/16 224
        metaclip-l14-fullcc2.5b L/14 224
        metaclip-h14-fullcc2.5b H/14 224
        """,
        licence="CC-BY-NC-4.0",
        trained_on="CommonCrawl, 2.5B pairs of image and text",
    ),
    *_family(
        "MetaCLIP",
        "facebook",
        "metaclip-b16-400m B/16 224",
        licence="CC-BY-NC-4.0",
        trained_on="CommonCrawl, 400M pairs of image and text",
    ),
    *_family(
        "DFN",
        "timm",
        """
        vit_base_patch16_clip_224.dfn2b B/16 224
        vit_large_patch14_clip_224.dfn2b L/14 224
        """,
        licence="apple-amlr",
        trained_on="DFN-2B, pairs of image and text",
        note="the licence is that of Apple's own cards; timm's copies name the earlier apple-ascl",
    ),
    *_family(
        "DFN",
        "timm",
        """
        vit_huge_patch14_clip_224.dfn5b H/14 224
        vit_huge_patch14_clip_378.dfn5b H/14 378
        """,
        licence="apple-amlr",
        trained_on="DFN-5B, pairs of image and text",
        note="the licence is that of Apple's own cards; timm's copies name the earlier apple-ascl",
    ),
    *_family(
        "SigLIP",
        "google",
        """
        siglip-base-patch16-224 B/16 224
        siglip-base-patch16-384 B/16 384
        siglip-large-patch16-256 L/16 256
        siglip-large-patch16-384 L/16 384
        siglip-so400m-patch14-224 SO400M/14 224
        siglip-so400m-patch14-384 SO400M/14 384
        """,
        licence="Apache-2.0",
        trained_on="WebLI, pairs of image and text",
    ),
    *_family(
        "SigLIP 2",
        "google",
        """
        siglip2-base-patch16-224 B/16 224
        siglip2-base-patch16-384 B/16 384
        siglip2-large-patch16-256 L/16 256
        siglip2-large-patch16-384 L/16 384
        siglip2-so400m-patch14-224 SO400M/14 224
        siglip2-so400m-patch14-384 SO400M/14 384
        siglip2-so400m-patch16-256 SO400M/16 256
        """,
        licence="Apache-2.0",
        trained_on="WebLI, pairs of image and text",
    ),
)
