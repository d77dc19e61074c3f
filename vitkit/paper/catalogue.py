"""All claims, in the order of their numbers; a new claim is a module in claims/ and a name here."""

from __future__ import annotations

from importlib import import_module

from vitkit.errors import ConfigError, did_you_mean
from vitkit.paper.claim import Claim
from vitkit.paper.experiments import EXPERIMENTS

MODULES = (
    "transfer",
    "data_size",
    "larger_model",
    "compute",
    "adam_or_sgd",
    "positions",
    "shape",
    "class_token",
    "axial",
    "resolution",
    "masked_patch",
    "figure7",
    "rollout",
    "pre_norm",
    "size_or_patch",
    "positions_transfer",
)


def all_claims() -> list[Claim]:
    claims = [import_module(f"vitkit.paper.claims.{name}").CLAIM for name in MODULES]
    return sorted(claims, key=lambda claim: claim.number)


def find_claims(names: str) -> list[Claim]:
    """Return the claims of one or more names or numbers ("2,3,compute"), once each, or all of them for "all"."""
    claims = all_claims()
    if names == "all":
        return claims
    chosen: dict[str, Claim] = {}
    for name in names.split(","):
        found = next((claim for claim in claims if name in (claim.name, str(claim.number))), None)
        if found is None:
            known = [*(claim.name for claim in claims), *(experiment.name for experiment in EXPERIMENTS)]
            near = did_you_mean(name, known)
            raise ConfigError(f"there is no experiment {name!r}{near}", try_="vitkit paper", or_="all")
        chosen[found.name] = found
    return [*chosen.values()]
