"""The recipe under which ViT and the systems named beside it are compared: small models, small images, from scratch.

No figures of all 60 epochs yet; docs/related.md has those of 10, of the arms of examples/related.toml.
"""

from vitkit.config.schema import AdamW, Augmentation, Fit, Schedule


def cifar_scratch(model: str = "Ti/4") -> Fit:
    """Train a small model on CIFAR-10 from scratch at 32 px: 60 epochs of AdamW, light augmentation.

    vitkit fit hf:cifar10 --recipe cifar_scratch      the arms of examples/related.toml, each at 122 MMACs
    """
    return Fit(
        model=model,
        weights="none",
        image=(32, 32),
        batch=512,
        epochs=60,
        lr=1e-3,
        lr_candidates=(3e-4, 1e-3, 3e-3),
        optimizer=AdamW(weight_decay=0.05),
        clip=1.0,
        schedule=Schedule(kind="cosine", warmup=0.1),
        augment=Augmentation(crop=(0.4, 1.0)),
        label_smoothing=0.1,
    )
