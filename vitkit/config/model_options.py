"""The architecture that settings describe: `fit`, `pretrain`, `cost` and `bench` take the same options of a model."""

from collections.abc import Mapping
from typing import Any

from vitkit.config import toml
from vitkit.errors import ConfigError, SizeError
from vitkit.model.config import ModelConfig
from vitkit.model.variants import configure

OWN_SETTINGS = ("image", "channels", "dropout", "stochastic_depth")  # beside options.NAME


def configure_model(name: str, settings: Mapping[str, Any], *, classes: int) -> ModelConfig:
    """Return the configuration of a named model with the `options` and own settings of a run; None is not set."""
    options = settings.get("options") or {}
    for option in options:
        if option == "classes":
            raise ConfigError("options.classes: the number of classes comes from the data")
        if option in OWN_SETTINGS:
            raise ConfigError(f"options.{option} is a setting of its own", try_=f"--set {option}={options[option]}")
    own = {key: settings[key] for key in OWN_SETTINGS if settings.get(key) is not None}
    return configure(name, classes=classes, **own, **options)


def read_model(text: str, assignments: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of "Ti/8" or "Ti/8,axial=true,pool=gap", over those of --set KEY=VALUE."""
    name, *pairs = text.split(",")
    own = [pair if pair.partition("=")[0] in OWN_SETTINGS else f"options.{pair}" for pair in map(str.strip, pairs)]
    settings = toml.assignments(assignments)
    for key in settings:
        if key not in ("options", *OWN_SETTINGS):
            toml.check({key: settings[key]})  # raises its own error for an unknown name
            raise ConfigError(
                f"{key} is a setting of training, not of the model",
                settings_of_the_model=", ".join(("options.NAME", *OWN_SETTINGS)),
            )
    settings = toml.merge(settings, toml.assignments(own))
    toml.check(settings)
    if "image" in settings:
        raise ConfigError("the image size has an option of its own", try_="--image")
    return name.strip(), settings


def configure_variant(
    text: str, assignments: tuple[str, ...], image: tuple[int, int] | None, classes: int
) -> ModelConfig:
    """Return the configuration of a model of the command line; an error names the model that it is about."""
    name, settings = read_model(text, assignments)
    try:
        return configure_model(name, {**settings, "image": image}, classes=classes)
    except SizeError as error:
        raise ConfigError.around(text, error) from error
