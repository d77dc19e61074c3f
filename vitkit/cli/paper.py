"""The verb `paper`: the paper's experiments."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

from vitkit.cli import options, paper_claims
from vitkit.cli.options import option
from vitkit.cli.training_options import Device, Workers, log_stream
from vitkit.errors import ConfigError
from vitkit.paper.experiments import EXPERIMENTS


def paper(
    experiment: Annotated[
        Positional[str],
        option("a claim's name or number, several as 2,3,4, all, or vtab; without one, all are listed", "[EXPERIMENT]"),
    ] = "",
    folder: Annotated[
        Positional[Path | None],
        option("vtab: the tasks, each any DATA, under its name or in natural/, specialized/, structured/", "[FOLDER]"),
    ] = None,
    *,
    scale: Annotated[
        Literal["smoke", "small", "paper"],
        arg(help="of a claim: seconds on a CPU; minutes on a GPU; the paper's own settings"),
    ] = "smoke",
    data: Annotated[
        Path, arg(help="folder that holds the data sets of claims, such as cifar100/", metavar="DIR")
    ] = Path("data"),
    dry_run: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="print runs, steps, images and time of a claim, and run nothing")
    ] = False,
    jobs: Annotated[
        int | None, option("runs of a claim at a time, also several on a GPU; default: one for each GPU", "N")
    ] = None,
    weights: Annotated[str, option("vtab: where to start; default: ti16", "RUN|hf:OWNER/NAME|ti16|none")] = "ti16",
    method: Annotated[
        Literal["fine-tune", "linear"],
        arg(help="vtab: all weights, as the paper; or a linear probe on frozen features"),
    ] = "fine-tune",
    image: Annotated[
        tuple[int, ...] | None, option("vtab: image side; default: 384, of a probe the model's own", "PX")
    ] = None,
    steps: Annotated[int | None, option("vtab: of each task; default: 2500", "N")] = None,
    batch: Annotated[int | None, option("vtab: images per step; default: 512", "N")] = None,
    lr: Annotated[float | None, option("vtab: learning rate; default: 0.01", "RATE")] = None,
    seed: Annotated[int | None, option("vtab: of all randomness but the draw of examples; default: 0", "N")] = None,
    out: Annotated[
        Path | None, option("folder of all runs and results; default: runs/paper, runs/vtab-WEIGHTS", "DIR")
    ] = None,
    set_: Annotated[
        tuple[tuple[str, ...], ...],
        tyro.conf.UseAppendAction,
        arg(name="set", help="vtab: any other setting of the runs", metavar="KEY=VALUE…", help_behavior_hint=""),
    ] = (),
    device: Device = None,
    workers: Workers = None,
    json: options.Json = False,
) -> None:
    """Run the paper's experiments, or list them.

    A claim: train its arms over seeds, and print a verdict beside the paper's number.
    Stopped anywhere, the same command goes on. paper.html shows all claims.

    VTAB: fine-tune on 1,000 examples of each task in a folder, as in Table 4.
    2,500 steps at 0.01, batch 512, 384 px; the means of tasks and groups.

    The 19 tasks are known by name. FOLDER/vtab.toml describes others:
    [TASK]   group = "natural"   crop = false   flip = false

    The same command goes on after an interruption.

    vitkit paper

    vitkit paper positions --scale smoke

    vitkit paper vtab tasks/ --weights runs/photos

    vitkit paper vtab tasks/ --weights runs/photos --method linear
    """
    if not experiment:
        _list(out, json)
        return
    options.at_least(1, jobs=jobs)
    known = {one.name: one for one in EXPERIMENTS}
    if experiment not in known:
        from vitkit.paper.catalogue import find_claims

        find_claims(experiment)  # a name that is not known is the first mistake to speak of
        of_vtab = {"FOLDER": folder, "image": image, "steps": steps, "batch": batch, "lr": lr, "seed": seed}
        for name, value in {**of_vtab, "set": set_ or None, "workers": workers}.items():
            if value is not None:
                raise ConfigError(f"--{name} is for vitkit paper vtab: a claim has its own settings")
        paper_claims.run(
            experiment, scale=scale, data=data, out=out, dry_run=dry_run, jobs=jobs, device=device, json=json
        )
        return
    if dry_run or jobs:
        raise ConfigError("--dry-run and --jobs are for claims", try_="vitkit paper, which lists them")
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


def _list(out: Path | None, json: bool) -> None:
    from dataclasses import asdict

    from vitkit.messages import print_line
    from vitkit.paper.closed_forms import closed_forms

    claims, tables = paper_claims.claim_rows(out), closed_forms()
    if json:
        content = {
            "claims": claims,
            "tables": paper_claims.closed_form_rows(tables),
            "experiments": [asdict(experiment) for experiment in EXPERIMENTS],
        }
        options.print_json("paper", content)
        return
    paper_claims.print_claims(claims)
    print_line("")
    print_line("Free of training:")
    paper_claims.print_closed_forms(tables)
    for experiment in EXPERIMENTS:
        print_line("")
        print_line(experiment.name)
        for name in ("meaning", "paper", "command"):
            print_line(f"  {name:<9}{getattr(experiment, name)}")
    print_line("")
    print_line("vitkit paper NAME --dry-run measures here what a run takes; --scale small needs a GPU and data")
