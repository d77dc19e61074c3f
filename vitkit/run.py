"""A run from end to end: settings → a run folder with a trained model, its score and its report."""

import contextlib
import platform
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import vitkit
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.split_logits import load_inputs_ahead
from vitkit.config import toml
from vitkit.config.resolve import resolve
from vitkit.config.schema import Fit
from vitkit.continued_run import LOCK_PATIENCE, continued_config, is_finished
from vitkit.data.contents import ContentsRecord
from vitkit.data.failures import TooManyFailures, advised_max_failed
from vitkit.data.groups import KeptTogether, record_of, restore
from vitkit.data.partition import Partition
from vitkit.data.sources.dataset import Data
from vitkit.data.training_images import join_validation
from vitkit.devices import describe_machine, pick_device, pick_workers
from vitkit.errors import ConfigError, VitkitError
from vitkit.launcher import restart, unused_tasks
from vitkit.messages import say
from vitkit.model.build import Model
from vitkit.progress import PrintLine
from vitkit.run_dataset import check_data_unchanged, contents_of_run, describe_data, keep_copies_together
from vitkit.run_folder import CONFIG, RunError, RunFolder
from vitkit.run_warnings import log_warnings
from vitkit.shared_data import SharedData
from vitkit.storage.failures import StorageError
from vitkit.storage.repeats import repeated_requests
from vitkit.storage.urls import refuse_credentials, refuse_run_folder
from vitkit.text import counted, utc_timestamp
from vitkit.train.cache import SharedCaches
from vitkit.train.distributed import Processes, lost_peer, process_group
from vitkit.train.lr_search import search_lr
from vitkit.train.prepare_gpu import prepare_gpu
from vitkit.train.tracking import check_installed
from vitkit.train.trainer import train

# they load the images of the final score beside the steps, and hold the interpreter's lock at times
SCORING_THREADS = 4


def start_run(
    settings: Mapping[str, Any],
    explicit: Mapping[str, Any],
    output: TextIO,
    command: str,
    *,
    pretraining: bool = False,
    shared: SharedData | None = None,
    resume: bool = False,
) -> Path:
    """Resolve the settings and run them; a mistake is an error before anything is written.

    explicit   the settings that the user made just now and not in a file
    shared     data that several runs of this process have in common
    resume     continue the run in the folder `out` if it is that of these settings, as after a requeue
    """
    shared = shared or SharedData()
    toml.check(settings)
    refuse_run_folder(settings.get("out") or "")
    for name in ("data", "weights"):
        refuse_credentials(name, str(settings.get(name) or ""))

    def resolved() -> tuple[Fit, Data, str]:
        config, data, reason = resolve(settings, explicit, pretraining=pretraining, open_data=shared.open)
        check_installed(config.track)
        if resume and not config.out:
            raise ConfigError("--resume continues the run in a folder, and none is named", try_="--out DIR")
        return config, data, reason

    why = "the same command again" if resume else restart()
    return _start(resolved, settings.get("device") or "auto", output, command, shared, why)


def run_training(config: Fit, data: Data, reason: str, output: TextIO, command: str) -> Path:
    """Run resolved settings and print decisions and results to `output`."""
    return _start(lambda: (config, data, reason), config.device, output, command, SharedData())


@dataclass(frozen=True)
class _Trained:
    """A trained model that is left to score and report."""

    config: Fit
    data: Data
    splits: Partition


def _start(
    resolved: Callable[[], tuple[Fit, Data, str]],
    device: str,
    output: TextIO,
    command: str,
    shared: SharedData,
    again: str = "",
) -> Path:
    """Create a run folder, train, score and report; started `again`, continue the run that the folder holds."""
    prepare_gpu(pick_device(device))
    with contextlib.ExitStack() as held:
        with process_group(pick_device(device)) as processes:
            print_line = _line_printer(processes, output)
            if tasks := unused_tasks():
                unused = f"{counted(tasks, 'task')} of this Slurm job {'is' if tasks == 1 else 'are'} unused"
                print_line("note", f"{unused}: start the command with srun to use all")
            config, data, reason = processes.all_or_raise(resolved)  # data may be missing on one machine of several
            if again and not config.out:
                print_line("note", f"{again}, and a new run: without --out, no run is continued")
            path = Path(processes.broadcast(config.out or unused_path(_default_folder(config))))
            trained: _Trained | None
            if again and config.out and processes.broadcast((path / CONFIG).is_file()):
                folder = _open_folder(path, held, processes, patience=LOCK_PATIENCE)
                config = processes.broadcast(processes.on_rank_zero(lambda: continued_config(config, folder)))
                print_line("continued", f"{path}: {again}")
                if processes.broadcast("asked" in folder.record()):
                    trained = _continue(config, lambda: data, folder, processes, print_line, shared)
                else:  # killed before its record was written
                    trained = _begin(config, data, reason, command, folder, processes, print_line, shared)
            else:
                folder = processes.on_rank_zero(lambda: RunFolder.create(path)) or RunFolder(path)
                held.callback(folder.close)
                config = replace(config, out=str(path))
                trained = _begin(config, data, reason, command, folder, processes, print_line, shared)
        if processes.is_rank_zero and trained is not None:
            _finish(trained.config, trained.data, trained.splits, folder, print_line, shared.images.inputs)
    return folder.path


def _open_folder(path: Path, held: contextlib.ExitStack, processes: Processes, *, patience: float) -> RunFolder:
    """Open the folder of a run, locked on rank zero."""
    folder = processes.on_rank_zero(lambda: RunFolder.open(path, patience)) or RunFolder(path)
    held.callback(folder.close)
    return folder


def _begin(
    config: Fit,
    data: Data,
    reason: str,
    command: str,
    folder: RunFolder,
    processes: Processes,
    print_line: PrintLine,
    shared: SharedData,
) -> _Trained:
    """Record a new run and train; one that fails before its first step leaves no files."""
    try:
        kept = shared.kept_together(config, data, lambda: keep_copies_together(config, data, processes))
        contents = shared.contents(config, kept.data, lambda: contents_of_run(config, kept.data, processes))
        processes.on_rank_zero(lambda: _write_record(config, kept, contents, folder, reason, command))
        return _Trained(config, kept.data, _train(config, kept, folder, processes, print_line, reason, shared))
    except BaseException as error:
        if processes.is_rank_zero:
            folder.discard()
        if isinstance(error, TooManyFailures):
            error.add(or_=_advice_to_skip(error.share, folder.path))
        raise


def _continue(
    config: Fit,
    open_data: Callable[[], Data],
    folder: RunFolder,
    processes: Processes,
    print_line: PrintLine,
    shared: SharedData,
) -> _Trained | None:
    """Train from the last checkpoint, or from the start where there is none; return None if the run is finished."""
    if processes.broadcast(is_finished(folder)):
        print_line("finished", f"{folder.path} is finished; nothing is left to do")
        return None
    data = open_data()
    check_data_unchanged(data, folder, processes, print_line)
    record = folder.record()
    kept = restore(data, record.get("together"))
    try:
        splits = _train(config, kept, folder, processes, print_line, record.get("recipe_reason", ""), shared)
    except TooManyFailures as error:
        error.add(or_=_advice_to_skip(error.share, folder.path))
        raise
    return _Trained(config, kept.data, splits)


def _write_record(
    config: Fit, kept: KeptTogether, contents: ContentsRecord, folder: RunFolder, reason: str, command: str
) -> None:
    folder.write_config(config)
    folder.add_to_record(
        command=command,
        started=utc_timestamp(),
        recipe_reason=reason,
        data={**describe_data(kept.data), "contents": contents},
        together=record_of(kept),
        asked=toml.to_tables(config),
        settings=toml.to_tables(config),
        versions=versions(),
        machine=describe_machine(),
    )


def resume(
    path: Path,
    output: TextIO,
    *,
    device: str | None = None,
    workers: int | None = None,
    shared: SharedData | None = None,
) -> Path:
    """Continue a run that was stopped from its last checkpoint, to the same result as if it had not stopped.

    Of a finished run, nothing is left to do.
    """
    config = RunFolder(path).config() if (path / CONFIG).is_file() else Fit()
    config = replace(
        config, device=device or config.device, workers=config.workers if workers is None else workers, out=str(path)
    )

    shared = shared or SharedData()

    def opened() -> Data:
        data = shared.open(config.data, label=config.label, task=config.data_task)
        return join_validation(data) if config.train_on_val else data

    with contextlib.ExitStack() as held:
        with process_group(pick_device(config.device)) as processes:
            print_line = _line_printer(processes, output)
            folder = _open_folder(path, held, processes, patience=LOCK_PATIENCE if restart() else 0.0)
            trained = _continue(config, opened, folder, processes, print_line, shared)
        if processes.is_rank_zero and trained is not None:
            _finish(trained.config, trained.data, trained.splits, folder, print_line, shared.images.inputs)
    return path


def _advice_to_skip(share: float, run: Path) -> str:
    """Return how to allow that share of failed images, or twice as many; a run that never began left no folder."""
    allowed = max(0.2, advised_max_failed(share))
    if not (run / CONFIG).is_file():
        return f"--set max_failed={allowed:g} skips them"
    return f"max_failed = {allowed:g} in {run / CONFIG}, then vitkit resume {shlex.quote(str(run))}: skips them"


def _train(
    config: Fit,
    kept: KeptTogether,
    folder: RunFolder,
    processes: Processes,
    print_line: PrintLine,
    reason: str,
    shared: SharedData,
) -> Partition:
    began, data, repeated = time.monotonic(), kept.data, repeated_requests()
    images = shared.images
    decisions: list[tuple[str, str]] = []

    def log(label: str, text: str) -> None:
        decisions.append((label, text))
        print_line(label, text)

    def record_time() -> None:
        """Add the time of this session, and the requests that it repeated, to those of earlier ones."""
        if processes.is_rank_zero:
            record = folder.record()
            requests = record.get("repeated_requests", 0) + repeated_requests() - repeated
            folder.add_to_record(
                decisions=decisions,
                seconds=round(record.get("seconds", 0.0) + time.monotonic() - began, 1),
                **({"repeated_requests": requests} if data.is_remote else {}),
            )

    log("why", reason)
    for text in data.notes:
        log("note", text)
    for label, text in kept.lines:
        log(label, text)
    log_warnings(config, data, log)
    try:
        if config.choose_lr:
            images = replace(images, caches=images.caches or SharedCaches())
            config = search_lr(config, data, folder, processes, log, images)
        scores = processes.is_rank_zero and processes.device.type == "cuda"  # a CPU has no time to spare
        meanwhile = partial(prepare_scoring, config, images.inputs) if scores else None
        splits = train(config, data, folder, processes, log, images, meanwhile)
    except BaseException as error:
        images.inputs.cancel_ahead()
        with contextlib.suppress(VitkitError):  # on a full disk, the first error is the one to report
            record_time()
        if isinstance(error, StorageError) and folder.begun:
            error.add(try_=f"vitkit resume {shlex.quote(str(folder.path))}, which continues after the last checkpoint")
        if processes.world_size > 1 and lost_peer(error):
            raise RunError(
                "another process of this run has ended, and this one cannot continue without it.",
                found="".join(str(error).splitlines()[:1]),
                then=f"vitkit resume {shlex.quote(str(folder.path))}, started by the same launcher",
            ) from error
        raise
    record_time()
    return splits


def prepare_scoring(config: Fit, kept: KeptInputs, model: Model, splits: Partition) -> None:
    """Load the images of the final score and prepare the report while the device computes steps."""
    device = pick_device(config.device)
    threads = min(pick_workers(config.workers, device, 1), SCORING_THREADS)
    test = splits.test if splits.test is not splits.validation else None  # a validation would take them
    if test is not None and not config.segments and threads:
        load_inputs_ahead(model, test, device=device, threads=threads, kept=kept)

    import vitkit.run_score  # noqa: F401
    from vitkit.pages.html import compile_templates

    compile_templates("vitkit.report")


def _finish(
    config: Fit, data: Data, splits: Partition, folder: RunFolder, print_line: PrintLine, kept: KeptInputs
) -> None:
    from vitkit.run_score import finish_run  # late: it draws, and the first step need not wait for matplotlib

    finish_run(config, data, splits, folder, print_line, kept)


def _line_printer(processes: Processes, output: TextIO) -> PrintLine:
    def print_line(label: str, text: str) -> None:
        if processes.is_rank_zero:
            say(label, text, file=output)

    return print_line


def versions() -> dict[str, str]:
    """Return the versions of vitkit, Python and the packages that a result depends on."""
    packages = ("torch", "numpy", "pillow", "simplejpeg", "safetensors")
    return {
        "vitkit": vitkit.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def _default_folder(config: Fit) -> Path:
    model = config.model.replace("/", "-") or Path(config.weights).stem
    return Path(f"runs/{Path(config.data).stem or 'data'}-{model}")


def unused_path(path: Path) -> Path:
    """Return the path, or the first of path-2, path-3, … that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
