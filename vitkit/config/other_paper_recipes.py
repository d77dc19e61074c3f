"""Recipes of other papers on attention between patches or sets of them: Cordonnier et al. (2020), the Set Transformer.

No figure here is ours yet; docs/related/two-by-two.md and docs/related/set-transformer.md say what was run.
"""

from dataclasses import replace

from vitkit.config.expectations import Figure, expect
from vitkit.config.schema import SGD, Augmentation, Fit, Schedule
from vitkit.config.size_recipes import medium_scratch


@expect(
    Figure(
        value="93.8",
        on="CIFAR-10",
        model="6 layers of width 400, 2x2 patches",
        pretrained_on="nothing",
        source="Cordonnier et al. 2020, quadratic positions alone",
    )
)
def two_by_two(model: str = "Ti/2") -> Fit:
    """Train on CIFAR-10 as Cordonnier et al. (2020): 2x2 patches, quadratic positions alone, 300 epochs of SGD.

    vitkit fit hf:cifar10 --recipe two_by_two      for learned ones: --set options.positions=relative-2d
    """
    return Fit(
        model=model,
        options={
            "depth": 6,
            "width": 400,
            "mlp": 512,
            "heads": 9,
            "positions": "quadratic",
            "content": False,
            "norm": "post",
            "gelu": "exact",
            "pool": "gap",
        },
        weights="none",
        image=(32, 32),
        batch=100,
        epochs=300,
        lr=0.1,
        dropout=0.1,
        clip=0.0,
        optimizer=SGD(momentum=0.9, weight_decay=1e-4),
        schedule=Schedule(kind="cosine", warmup=0.05),
        augment=Augmentation(crop=None, precrop=36),
    )


def set_transformer(model: str = "Ti/4") -> Fit:
    """Train a set of patches from scratch: no positions, 16 inducing points in each layer, 4 seeds for pooling.

    vitkit fit hf:cifar10 --recipe set_transformer      100 epochs of AdamW, as medium_scratch
    """
    options = {"positions": "none", "induced": 16, "pool": "seeds", "seeds": 4, "depth": 6}
    return replace(medium_scratch(model), options=options)
