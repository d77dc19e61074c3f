"""A run from end to end: settings → a run folder with a trained model, its score and its report."""

import contextlib
import os
import platform
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import vitkit
from vitkit.atomic import write_text
from vitkit.compute.split_logits import collect_logits
from vitkit.config import toml
from vitkit.config.recipes import RECIPES
from vitkit.config.resolve import resolve
from vitkit.config.schema import Fit
from vitkit.data.contents import UNSEEN, ContentsRecord, Reading, changed_images, contents_record
from vitkit.data.fingerprint import FingerprintCache
from vitkit.data.groups import KeptTogether, compared_splits, keep_together, record_of, restore, should_find_copies
from vitkit.data.label_check import label_warnings
from vitkit.data.loader import TooManyFailures, advised_max_failed
from vitkit.data.partition import Partition, fingerprint, is_fingerprint, is_held_out, partition
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import training_split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.subset import subset_size
from vitkit.devices import cores, describe_machine, pick_device, pick_workers
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.rare_classes import recall_warning
from vitkit.evaluate.thresholds import choose_thresholds
from vitkit.inspect.inspection import rollout_overlays
from vitkit.messages import say
from vitkit.model.build import Model
from vitkit.progress import PrintLine, no_progress, show_progress
from vitkit.report.card import write_card
from vitkit.report.page import write_report
from vitkit.report.usage import shell_commands
from vitkit.run_folder import CARD, CONFIG, EVALUATION, MODEL, RECORD, REPORT, RunError, RunFolder
from vitkit.text import counted, duration, few
from vitkit.train.distributed import Processes, lost_peer, process_group
from vitkit.train.lr_search import search_lr
from vitkit.train.tracking import check_installed
from vitkit.train.trainer import train
from vitkit.weights.load import load
from vitkit.weights.save import save

MIN_IMAGES_FROM_SCRATCH = 100_000  # fewer are worth a warning
PRIORS = {
    "balanced": "probabilities assume the weighted classes of balance, not the data's shares: those of rare classes "
    "may be too high. --set priors=data corrects that, and finds fewer of the rare ones",
    "data": "probabilities are corrected to the data's own shares when training ends; --set priors=balanced finds more "
    "of the rare classes",
}


def start_run(settings: Mapping[str, Any], explicit: Mapping[str, Any], output: TextIO, command: str) -> Path:
    """Resolve the settings and run them; a mistake is an error before anything is written.

    `explicit` are those that the user made just now and not in a file.
    """
    toml.check(settings)

    def resolved() -> tuple[Fit, Data, str]:
        config, data, reason = resolve(settings, explicit)
        check_installed(config.track)
        return config, data, reason

    return _start(resolved, settings.get("device") or "auto", output, command)


def run_training(config: Fit, data: Data, reason: str, output: TextIO, command: str) -> Path:
    """Run resolved settings and print decisions and results to `output`."""
    return _start(lambda: (config, data, reason), config.device, output, command)


def _start(resolved: Callable[[], tuple[Fit, Data, str]], device: str, output: TextIO, command: str) -> Path:
    """Create a run folder, train, score and report."""
    with contextlib.ExitStack() as held:
        with process_group(pick_device(device)) as processes:
            print_line = _line_printer(processes, output)
            config, data, reason = processes.all_or_raise(resolved)  # data may be missing on one machine of several
            kept = _keep_together(config, data, processes)
            path = Path(processes.broadcast(config.out or unused_path(_default_folder(config))))
            config = replace(config, out=str(path))
            folder = processes.on_rank_zero(lambda: RunFolder.create(path)) or RunFolder(path)
            held.callback(folder.close)
            try:
                contents = _contents(config, kept.data, processes)
                processes.on_rank_zero(lambda: _write_record(config, kept, contents, folder, reason, command))
                splits = _train(config, kept, folder, processes, print_line, reason)
            except BaseException as error:
                if processes.is_rank_zero:
                    folder.discard()
                if isinstance(error, TooManyFailures):
                    error.add(or_=_advice_to_skip(error.share, path))
                raise
        if processes.is_rank_zero:
            _finish_run(config, kept.data, splits, folder, print_line)
    return folder.path


def _keep_together(config: Fit, data: Data, processes: Processes) -> KeptTogether:
    """Find the copies among the images, on all ranks together, so that every split has them on one side."""
    if config.objective != "labels":  # nothing is held out or scored
        return KeptTogether(data, ())
    progress = show_progress if processes.is_rank_zero else no_progress
    return keep_together(data, duplicates=config.duplicates, progress=progress, **vars(_reading(processes)))


def _contents(config: Fit, data: Data, processes: Processes) -> ContentsRecord:
    """Return the contents of the images that the run uses: in full where copies were looked for, else in samples."""
    labels = config.objective == "labels"
    splits = compared_splits(data) if labels else [training_split(data)]
    hashed = labels and should_find_copies(data, config.duplicates) and FingerprintCache().table is not None
    return contents_record(data, splits, "bytes" if hashed else "sample", _reading(processes))


def _reading(processes: Processes) -> Reading:
    """Return this rank's share of the reading, with the cores of its machine divided among the ranks on it."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes.world_size))
    return Reading(cores() // here, processes.rank, processes.world_size, processes.gather)


def _write_record(
    config: Fit, kept: KeptTogether, contents: ContentsRecord, folder: RunFolder, reason: str, command: str
) -> None:
    folder.write_config(config)
    folder.add_to_record(
        command=command,
        started=_now(),
        recipe_reason=reason,
        data={**_describe_data(kept.data), "contents": contents},
        together=record_of(kept),
        asked=toml.to_tables(config),
        settings=toml.to_tables(config),
        versions=_versions(),
        machine=describe_machine(),
    )


def resume(path: Path, output: TextIO, *, device: str | None = None, workers: int | None = None) -> Path:
    """Continue a run that was stopped from its last checkpoint, to the same result as if it had not stopped."""
    config = RunFolder(path).config() if (path / CONFIG).is_file() else Fit()
    config = replace(
        config, device=device or config.device, workers=config.workers if workers is None else workers, out=str(path)
    )
    with contextlib.ExitStack() as held:
        with process_group(pick_device(config.device)) as processes:
            print_line = _line_printer(processes, output)
            folder = processes.on_rank_zero(lambda: RunFolder.open(path)) or RunFolder(path)
            held.callback(folder.close)
            if "finished" in folder.record() and all((path / name).is_file() for name in (MODEL, REPORT, CARD)):
                raise RunError(
                    f"{path} is finished; there is nothing to resume.",
                    report=str(path / "report.html"),
                    more=f"vitkit fit DATA --weights {path}",
                )
            data = open_data(config.data, label=config.label)
            _check_data(data, folder, processes, print_line)
            record = folder.record()
            kept = restore(data, record.get("together"))
            try:
                splits = _train(config, kept, folder, processes, print_line, record.get("recipe_reason", ""))
            except TooManyFailures as error:
                error.add(or_=_advice_to_skip(error.share, path))
                raise
        if processes.is_rank_zero:
            _finish_run(config, kept.data, splits, folder, print_line)
    return path


def _advice_to_skip(share: float, run: Path) -> str:
    """Return how to allow that share of failed images, or twice as many; a run that never began left no folder."""
    allowed = max(0.2, advised_max_failed(share))
    if not (run / CONFIG).is_file():
        return f"--set max_failed={allowed:g} skips them"
    return f"max_failed = {allowed:g} in {run / CONFIG}, then vitkit resume {shlex.quote(str(run))}: skips them"


def _train(
    config: Fit, kept: KeptTogether, folder: RunFolder, processes: Processes, print_line: PrintLine, reason: str
) -> Partition:
    began, data = time.monotonic(), kept.data
    decisions: list[tuple[str, str]] = []

    def log(label: str, text: str) -> None:
        decisions.append((label, text))
        print_line(label, text)

    def record_time() -> None:
        """Add the time of this session to that of earlier ones."""
        if processes.is_rank_zero:
            before = folder.record().get("seconds", 0.0)
            folder.add_to_record(decisions=decisions, seconds=round(before + time.monotonic() - began, 1))

    log("why", reason)
    for text in data.notes:
        log("note", text)
    for label, text in kept.lines:
        log(label, text)
    _warn(config, data, log)
    try:
        if config.choose_lr:
            config = search_lr(config, data, folder, processes, log)
        splits = train(config, data, folder, processes, log)
    except BaseException as error:
        with contextlib.suppress(VitkitError):  # on a full disk, the first error is the one to report
            record_time()
        if processes.world_size > 1 and lost_peer(error):
            raise RunError(
                "another process of this run has ended, and this one cannot continue without it.",
                found="".join(str(error).splitlines()[:1]),
                then=f"vitkit resume {shlex.quote(str(folder.path))}, started with the same torchrun command",
            ) from error
        raise
    record_time()
    return splits


def _warn(config: Fit, data: Data, log: PrintLine) -> None:
    available = len(data.splits[training_split(data)])
    images = subset_size(available, len(data.classes), config.subset, config.subset_per_class)
    if config.weights == "none" and config.objective == "labels" and images < MIN_IMAGES_FROM_SCRATCH:
        log(
            "warning",
            f"{images:,} images are few to train from scratch. On the 3,680 of Pets, Ti/16 reached 11.8 % from scratch "
            "and 91.3 % from pre-trained weights: --weights hf:… or PATH",
        )
    slow = pick_device(config.device).type == "cpu" and config.start == "full" and _leaves_start_open(config)
    if slow and config.weights != "none":
        log(
            "note",
            "all weights are trained, which is slow on a CPU; --set start=head trains the head alone, in seconds",
        )
    for warning in label_warnings(data, balance=config.balance) if config.objective == "labels" else ():
        log("warning", warning)
    if config.objective == "labels" and config.balance:
        log("priors", PRIORS[config.priors])
    if config.objective == "labels" and (warning := _leak_warning(config, data)):
        log("warning", warning)


def _leaves_start_open(config: Fit) -> bool:
    return config.recipe in RECIPES and RECIPES[config.recipe]().start == "auto"


def _leak_warning(config: Fit, data: Data) -> str:
    """Return a warning where the weights come from a run that trained on images of the test split, else ""."""
    held_out, run = partition(data, **config.partition).held_out, RunFolder.from_weights(config.weights)
    if held_out is None or run is None:
        return ""
    record = run.record()
    if record.get("settings", {}).get("data") != config.data:
        return ""
    if (before := record.get("split")) is not None and is_held_out(before, data, held_out):
        return ""
    note = "" if record.get("objective") == "labels" else ", though without labels"
    return f"{config.weights} was trained on these data{note}, test images included: the score may be too high"


def _finish_run(config: Fit, data: Data, splits: Partition, folder: RunFolder, print_line: PrintLine) -> None:
    """Score the model on the test split and write the report."""
    try:
        _score_and_report(config, data, splits, folder, print_line)
    except KeyboardInterrupt:
        raise Interrupted(
            f"trained but not scored; vitkit resume {shlex.quote(str(folder.path))} finishes the run", 130
        ) from None


def _score_and_report(config: Fit, data: Data, splits: Partition, folder: RunFolder, print_line: PrintLine) -> None:
    began, device = time.monotonic(), pick_device(config.device)
    model = load(folder.path).to(device)
    if data.multilabel and config.objective == "labels":
        _choose_thresholds(model, config, splits, folder, print_line)
    if splits.test is not None:
        scored = replace(data, splits={splits.test_name: splits.test})
        # the report lists images that failed to decode: hours of training are not lost over them
        evaluation = evaluate(
            model,
            scored,
            splits.test_name,
            device=device,
            max_failed=1.0,
            workers=pick_workers(config.workers, device, 1),
            progress=show_progress,
        )
        write_text(folder.path / EVALUATION, evaluation.to_json() + "\n", RunError)
        print_line("score", _describe_score(evaluation) + _describe_unseen(config, data, splits.test, evaluation))
        counts = dict(zip(data.classes, splits.train.per_class(len(data.classes)).tolist(), strict=True))
        folder.add_to_record(trained_counts=counts)
        if warning := recall_warning(evaluation, counts, config.balance):
            print_line("warning", warning)
    folder.add_to_record(finished=_now())
    split = splits.train if splits.test is None else splits.test
    report = write_report(folder.path, split, rollout_overlays(model, split))
    write_card(folder.path)
    print_line(
        "took",
        f"{duration(folder.record()['seconds'])} to train, {duration(time.monotonic() - began)} to score and report",
    )
    print_line("report", str(report))
    commands = shell_commands(folder.path, classifies=config.objective == "labels")[:4]  # the report has all of them
    if "head" in folder.record():
        purpose = f"fine-tune all weights, about {duration(folder.record()['fine_tuning_seconds'])} here"
        run, full = shlex.quote(str(folder.path)), shlex.quote(f"{folder.path}-full")
        commands.insert(0, (purpose, f"vitkit fit --config {run} --set start=full --out {full}"))
    column = max(len(command) for _, command in commands)
    for number, (purpose, command) in enumerate(commands):
        print_line("" if number else "next", f"{command:<{column}}  # {purpose}")


def _choose_thresholds(model: Model, config: Fit, splits: Partition, folder: RunFolder, print_line: PrintLine) -> None:
    """Choose the thresholds of a multi-label model on validation images, and save them with its weights."""
    split = splits.to_choose_by
    if split is None or not len(split):
        text = "0.5 for each class: there are no validation images to choose by; --set dev=0.1 holds some out"
    else:
        device = pick_device(config.device)
        result = collect_logits(
            model,
            split,
            device=device,
            max_failed=1.0,
            workers=pick_workers(config.workers, device, 1),
            progress=show_progress,
        )
        assert isinstance(result.labels, SparseLabels)
        chosen = choose_thresholds(result.logits.sigmoid().numpy(), result.labels)
        provenance = {**model.metadata.provenance, "thresholds": [round(value, 6) for value in chosen.values]}
        model.metadata = replace(model.metadata, provenance=provenance)
        saved = load(folder.path)  # on the CPU
        saved.metadata = model.metadata
        save(saved, folder.path)
        text = str(chosen)
    folder.add_to_record(thresholds=text)
    print_line("threshold", text)


def _describe_score(evaluation: Evaluation) -> str:
    best = evaluation.headline
    name = "mean average precision" if evaluation.multilabel else "top-1"
    macro = f"; macro-F1 {evaluation.macro_f1.value:.1%}" if evaluation.macro_f1 else ""
    return (
        f"{best.value:.2%} {name} ({best.low:.1%} to {best.high:.1%}){macro} on {counted(evaluation.images, 'image')}"
    )


def _describe_unseen(config: Fit, data: Data, test: Split, evaluation: Evaluation) -> str:
    """Return the end of the score line: what is known about the images that were scored."""
    if evaluation.leaked is not None:
        return f", of which {evaluation.leaked.sentence()}"
    if _leak_warning(config, data):
        return ""
    compared = test.leaked is not None
    return " not used in training" if compared else "; copies of training images may be among them"


def _check_data(data: Data, folder: RunFolder, processes: Processes, print_line: PrintLine) -> None:
    """Raise if images, classes or contents of images are not those that the run was started with."""
    record = folder.record().get("data", {})
    expected = record.get("fingerprint")
    if expected is not None and not is_fingerprint(expected, data, training_split(data)):
        raise RunError(
            f"{data.name} is not what {folder.path} was started with: images or classes have changed.",
            try_="restore the data, or start a new run",
        )
    contents: ContentsRecord | None = record.get("contents")
    if contents is None:  # of an earlier version
        return
    if changed := changed_images(data, contents, _reading(processes)):
        raise RunError(
            f"{data.name} is not what {folder.path} was started with: the content of {counted(len(changed), 'image')} "
            "has changed, under the same name.",
            such_as=few(changed),
            try_="restore these images, or start a new run",
            or_=f'remove "contents" from "data" in {folder.path / RECORD} to go on with the images as they are; the '
            "result is then that of neither",
        )
    images = sum(len(data.splits[name]) for name in contents["splits"] if name in data.splits)
    print_line("unchanged", f"{counted(images, 'image')}: {UNSEEN[contents['compared']]}")


def _line_printer(processes: Processes, output: TextIO) -> PrintLine:
    def print_line(label: str, text: str) -> None:
        if processes.is_rank_zero:
            say(label, text, file=output)

    return print_line


def _describe_data(data: Data) -> dict[str, Any]:
    return {
        "name": data.name,
        "kind": data.kind,
        "classes": len(data.classes),
        "notes": list(data.notes),
        "pictures": {name: len(split) for name, split in data.splits.items()},
        "fingerprint": fingerprint(data, training_split(data)),
        "counts": {
            name: dict(zip(data.classes, split.per_class(len(data.classes)).tolist(), strict=True))
            for name, split in data.splits.items()
            if data.classes
        },
    }


def _versions() -> dict[str, str]:
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
