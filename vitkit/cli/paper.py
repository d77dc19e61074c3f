"""The verb `paper`: the paper's experiments."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit.cli import options
from vitkit.cli.options import option
from vitkit.cli.training_options import Device, Workers, log_stream
from vitkit.errors import ConfigError, did_you_mean
from vitkit.paper.experiments import EXPERIMENTS


def paper(
    experiment: Annotated[
        Positional[str], option("its name; without one, all of them are listed", "[EXPERIMENT]")
    ] = "",
    folder: Annotated[
        Positional[Path | None],
        option("vtab: the tasks, each any DATA, under its name or in natural/, specialized/, structured/", "[FOLDER]"),
    ] = None,
    *,
    weights: Annotated[str, option("where to start; default: ti16", "RUN|hf:OWNER/NAME|ti16|none")] = "ti16",
    method: Annotated[
        Literal["fine-tune", "linear"], arg(help="all weights, as the paper; or a linear probe on frozen features")
    ] = "fine-tune",
    image: Annotated[
        tuple[int, ...] | None, option("image side; default: 384, of a probe the model's own", "PX")
    ] = None,
    steps: Annotated[int | None, option("of each task; default: 2500", "N")] = None,
    batch: Annotated[int | None, option("images per step; default: 512", "N")] = None,
    lr: Annotated[float | None, option("learning rate; default: 0.01", "RATE")] = None,
    seed: Annotated[int | None, option("of all randomness but the draw of examples; default: 0", "N")] = None,
    out: Annotated[
        Path | None, option("folder of the runs and of vtab.json; default: runs/vtab-WEIGHTS", "DIR")
    ] = None,
    set_: Annotated[
        tuple[tuple[str, ...], ...],
        tyro.conf.UseAppendAction,
        arg(name="set", help="any other setting of the runs", metavar="KEY=VALUE…", help_behavior_hint=""),
    ] = (),
    device: Device = None,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Run the paper's experiments, or list them.

    VTAB: fine-tune on 1,000 examples of each task in a folder, as in Table 4.
    2,500 steps at 0.01, batch 512, 384 px; the means of tasks and groups.

    The 19 tasks are known by name. FOLDER/vtab.toml describes others:
    [TASK]   group = "natural"   crop = false   flip = false

    The same command goes on after an interruption.

    vitkit paper

    vitkit paper vtab tasks/ --weights runs/photos

    vitkit paper vtab tasks/ --weights runs/photos --method linear
    """
    if not experiment:
        _list(json)
        return
    known = {one.name: one for one in EXPERIMENTS}
    if experiment not in known:
        raise ConfigError(
            f"there is no experiment {experiment!r}{did_you_mean(experiment, known)}", try_="vitkit paper"
        )
    if folder is None:
        raise ConfigError(f"vitkit paper {experiment} needs the folder of its tasks", try_="vitkit paper vtab FOLDER")
    options.at_least(1, steps=steps, batch=batch)
    options.at_least(0, workers=workers)

    from vitkit.config import toml
    from vitkit.paper.vtab import result_path, run_vtab

    flags: dict[str, Any] = {
        "image": None if image is None else options.image_size(image),
        "steps": steps,
        "batch": batch,
        "lr": lr,
        "seed": seed,
        "device": device,
        "workers": workers,
    }
    settings = {name: value for name, value in flags.items() if value is not None}
    settings = toml.merge(settings, toml.assignments(sum(set_, ())))
    scores = run_vtab(
        folder,
        weights=weights,
        method=method,
        settings=settings,
        out=out,
        output=log_stream(json),
        command=shlex.join(["vitkit", *sys.argv[1:]]),
    )
    if json:
        options.print_json("paper", {"experiment": experiment, **scores.to_dict()})
        return
    from vitkit.messages import print_line

    print_line("")
    for line in scores.table():
        print_line(line)
    print_line("")
    print_line(f"paper     {known[experiment].paper}")
    print_line(f"results   {result_path(weights, method, out)}")


def _list(json: bool) -> None:
    from dataclasses import asdict

    from vitkit.messages import print_line

    if json:
        options.print_json("paper", {"experiments": [asdict(experiment) for experiment in EXPERIMENTS]})
        return
    for experiment in EXPERIMENTS:
        print_line(experiment.name)
        for name in ("meaning", "paper", "command"):
            print_line(f"  {name:<9}{getattr(experiment, name)}")
