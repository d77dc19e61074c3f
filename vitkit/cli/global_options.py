"""The options of every verb: how much is printed about the work, and in which form."""

import os
from typing import Any, cast

from vitkit import messages
from vitkit.errors import ConfigError, did_you_mean

LOG_LEVEL, LOG_FORMAT = "VITKIT_LOG_LEVEL", "VITKIT_LOG_FORMAT"
GLOBAL_HELP = "--quiet, --verbose and --log-format json go with every verb: vitkit --help"
FLAGS = {"--quiet": "quiet", "-q": "quiet", "--verbose": "verbose", "-v": "verbose"}
FORMAT_OPTION = "--log-format"


def take_global_options(arguments: list[str]) -> list[str]:
    """Apply the options of every verb, wherever they stand, and return the others; the environment has defaults."""
    verbosity = _choice(LOG_LEVEL, os.environ.get(LOG_LEVEL) or "normal", messages.VERBOSITIES)
    log_format = _choice(LOG_FORMAT, os.environ.get(LOG_FORMAT) or "plain", messages.LOG_FORMATS)
    messages.configure(verbosity, log_format)  # for the errors below
    rest: list[str] = []
    chosen: set[str] = set()
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if argument == "--":  # what follows are no options
            rest += [argument, *remaining]
        elif argument in FLAGS:
            verbosity = FLAGS[argument]
            chosen.add(verbosity)
        elif name == FORMAT_OPTION:
            log_format = _choice(FORMAT_OPTION, value if equals else next(remaining, ""), messages.LOG_FORMATS)
        else:
            rest.append(argument)
    if len(chosen) > 1:
        raise ConfigError("--quiet and --verbose exclude each other")
    messages.configure(cast(Any, verbosity), cast(Any, log_format))
    return rest


def _choice(name: str, value: str, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise ConfigError(
            f"{name} {value or 'without a value'}{did_you_mean(value, choices)}", try_=" or ".join(choices)
        )
    return value
