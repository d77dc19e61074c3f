"""The verb `resume`: continue a run that was stopped."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitkit.cli.options import Json
from vitkit.cli.training_options import Device, Workers, log_stream, print_result


def resume(
    run: Annotated[Positional[Path], arg(metavar="RUN", help="the folder of a run that was stopped")],
    device: Device = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Continue a run that was stopped or killed, exactly, from its last checkpoint.

    vitkit resume runs/photos
    """
    from vitkit.run import resume as resume_run

    print_result("resume", resume_run(run, log_stream(json), device=device, workers=workers), json)
