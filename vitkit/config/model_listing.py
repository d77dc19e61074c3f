"""The public checkpoints as people read them: size, image size, licence, training data, origin, and our own score."""

from dataclasses import asdict, dataclass
from typing import Any

from vitkit.cost import cost
from vitkit.errors import ConfigError, did_you_mean
from vitkit.model.variants import NAMED, configure
from vitkit.weights.public import KNOWN
from vitkit.weights.public_families import ListedCheckpoint

# top-1 on Oxford-IIIT Pet after fine-tuning, mean and deviation of three seeds: docs/pets.md, 224 px
PETS = {"ti16": "91.72 ± 0.17"}
COUNTED = ("Ti", "S", "B", "L", "H")  # sizes that have one meaning in all families; g and those with a + differ
PREFIX = "hf:"


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A public checkpoint with what follows from its name."""

    checkpoint: ListedCheckpoint

    @property
    def name(self) -> str:
        return self.checkpoint.source

    @property
    def parameters(self) -> int | None:
        """Return the number of parameters without a head, or None where our table of sizes does not tell it."""
        size = self.checkpoint.variant.rpartition("/")[0]
        if self.checkpoint.variant not in NAMED and size not in COUNTED:
            return None
        return cost(configure(self.checkpoint.variant, classes=0, image=self.checkpoint.image)).parameters

    @property
    def pets(self) -> str | None:
        """Return our own measured top-1 on Pets, in percent."""
        return PETS.get(self.name)

    @property
    def origin(self) -> str:
        repository = self.name.removeprefix(PREFIX)
        return f"https://huggingface.co/{repository}" if self.name.startswith(PREFIX) else "inside the package"

    @property
    def command(self) -> str:
        return f"vitkit fit DATA --weights {self.name}"

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self.checkpoint)
        del fields["source"]
        computed = {"parameters": self.parameters, "pets": self.pets, "origin": self.origin, "command": self.command}
        return {"name": self.name, **fields, **computed}


def list_models(pattern: str = "") -> list[ListedModel]:
    """Return the checkpoints whose name, family or size contains the pattern; of an exact name, that one alone."""
    models = [ListedModel(checkpoint=checkpoint) for checkpoint in KNOWN.values()]
    exact = [model for model in models if pattern in (model.name, model.name.removeprefix(PREFIX))]
    found = exact or [model for model in models if any(pattern.lower() in text.lower() for text in _searched(model))]
    if not found and not untrained_variants(pattern):
        names = [
            *KNOWN,
            *(name.removeprefix(PREFIX) for name in KNOWN),
            *NAMED,
            *{one.family for one in KNOWN.values()},
        ]
        raise ConfigError(f"no model contains {pattern!r}{did_you_mean(pattern, names)}", try_="vitkit list models")
    return found


def untrained_variants(pattern: str = "") -> list[str]:
    """Return the names of models without public weights, for `vitkit.create` and `--model`."""
    trained = {checkpoint.variant for checkpoint in KNOWN.values()}
    return [name for name in NAMED if name not in trained and pattern.lower() in name.lower()]


def _searched(model: ListedModel) -> tuple[str, str, str]:
    return model.name, model.checkpoint.family, model.checkpoint.variant
