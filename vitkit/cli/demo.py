"""The verb `demo`: check, pre-train, fit and score in two minutes."""

from pathlib import Path
from typing import Annotated

from vitkit.cli.options import Json, option
from vitkit.cli.training_options import log_stream, print_result


def demo(
    out: Annotated[Path | None, option("the folder to create; default: a new one, runs/demo", "DIR")] = None,
    json: Json = False,
) -> None:
    """Show it all in two minutes: check, pre-train, fit, score and report, on images inside the package.

    vitkit demo
    """
    from vitkit.demo import demo as run_demo

    print_result("demo", run_demo(out, log_stream(json)) / "classifier", json)
