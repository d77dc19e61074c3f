"""Recipes of papers beside ViT's, typed from their authors' scripts."""

from __future__ import annotations

from dataclasses import replace

from vitkit.config.recipes import recipe
from vitkit.config.schema import SGD
from vitkit.cost import cost
from vitkit.model.variants import configure


def test_two_by_two_is_as_in_the_authors_script():
    """epfml/attention-cnn, runs/quadratic/run.sh and the defaults of train.py."""
    config = recipe("two_by_two")
    assert config.optimizer == SGD(momentum=0.9, weight_decay=1e-4)
    assert (config.lr, config.batch, config.epochs, config.dropout) == (0.1, 100, 300, 0.1)
    assert (config.schedule.kind, config.schedule.warmup) == ("cosine", 0.05)
    built = configure(config.model, image=32, classes=10, **config.options)
    assert (built.depth, built.width, built.mlp, built.heads, built.patch) == (6, 400, 512, 9, 2)
    # counted in their code: BertEncoder, features_upscale and classifier
    for positions, parameters in (
        ("quadratic", 12_086_844),
        ("quadratic-general", 12_087_006),
        ("relative-2d", 12_278_682),
    ):
        assert cost(replace(built, positions=positions)).parameters == parameters
