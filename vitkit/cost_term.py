"""The piece of cost that all models are summed from."""

from typing import NamedTuple


class CostTerm(NamedTuple):
    """The cost of a piece of a model; pieces add up."""

    parameters: int = 0
    macs: int = 0
    activations: int = 0
    statistics: int = 0
    kernels: int = 0
    padding_macs: int = 0
