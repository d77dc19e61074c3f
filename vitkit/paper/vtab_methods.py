"""The two ways to score a task of VTAB: the paper's fine-tuning, an ordinary run, and a linear probe."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TextIO

from vitkit.compute.features import FeatureExtractor
from vitkit.config import toml
from vitkit.config.image_size import fitting_side
from vitkit.config.recipes import recipe
from vitkit.config.resolve import DEFAULT_MODEL, resolve
from vitkit.config.schema import Fit
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import validation_split
from vitkit.data.training_images import has_labelled_test, join_validation
from vitkit.devices import pick_device, pick_workers
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.vtab import EXAMPLES, probe_task
from vitkit.messages import say
from vitkit.model.config import ModelConfig
from vitkit.model.variants import configure
from vitkit.paper.vtab_record import OF_THE_MACHINE
from vitkit.paper.vtab_scores import TaskScore
from vitkit.paper.vtab_tasks import Task
from vitkit.progress import show_progress
from vitkit.run import resume, start_run
from vitkit.run_folder import CARD, CONFIG, EVALUATION, MODEL, RECORD, REPORT, RunError, RunFolder, require_empty
from vitkit.text import few
from vitkit.weights.load import load

RECIPE = "vtab_transfer"
SIDE = 384  # px, for all tasks (B.1.1)
PRECROP = 448 / 384  # BiT's side before the random crop, over the side after it
WARMUP = 5  # the warm-up is the fifth part of the steps: 500 of 2,500
OF_THE_TASK = ("data", "label", "out", "recipe", "weights", "objective")  # settings that a task or an option decides
SCORED = ("val", "held-out")  # `Partition.test_name` of tasks without a test split
NOT_COMPARED = (
    *OF_THE_TASK,
    *OF_THE_MACHINE,
    *"model channels options seed split_seed save_every score_every subset_images".split(),
)


class Scorer(Protocol):
    """A way to score a task, and what about it is not as in the paper."""

    def __call__(self, task: Task) -> TaskScore: ...

    def differs(self, done: Sequence[TaskScore]) -> list[str]: ...


class FineTuning:
    """The paper's protocol: each task is a run folder, made or resumed by the ordinary run."""

    def __init__(
        self, weights: str, settings: Mapping[str, Any], tasks: Sequence[Task], out: Path, output: TextIO, command: str
    ):
        self.weights, self.settings, self.out, self.output, self.command = weights, settings, out, output, command
        self.tasks = {task.name: task for task in tasks}
        self.model = _model_config(weights, settings)
        self.on_val: set[str] = set()  # tasks whose val is scored, and cannot be trained on
        for task in tasks:  # a mistake in the last one should not be found after hours
            if not _is_finished(out / task.name):
                _check_own(out / task.name)
                data = open_data(task.data, label=task.label, group=settings.get("group"))
                check_data(task, data)
                if validation_split(data) and not has_labelled_test(data):
                    self.on_val.add(task.name)
                config, data, _ = resolve(self.settings_of(task), settings, open_data=lambda *_, data=data, **__: data)
                partition(data, **config.partition)

    def __call__(self, task: Task) -> TaskScore:
        path = self.out / task.name
        if _is_finished(path):
            say("done", f"{path} is finished", file=self.output)
        elif _is_begun(path):
            resume(path, self.output, device=self.settings.get("device"), workers=self.settings.get("workers"))
        else:
            _remove_killed_start(path)
            start_run(self.settings_of(task), self.settings, self.output, self.command)
        folder, evaluation = RunFolder(path), Evaluation.read(path / EVALUATION)
        augment, counts = folder.config().augment, folder.record().get("trained_counts")
        if evaluation.top1 is None or counts is None:  # multi-label tasks are refused before
            raise RunError(
                f"{path} is damaged: its record lacks the score, or the images that it was trained on.",
                try_=f"remove {path}, then the same command trains it again",
            )
        return TaskScore(
            task=task.name,
            group=task.group,
            classes=len(evaluation.classes),
            trained=sum(counts.values()),
            scored=evaluation.images,
            top1=evaluation.top1,
            crop=augment.crop is not None or augment.precrop is not None,
            flip=augment.flip,
            run=str(path),
        )

    def settings_of(self, task: Task) -> dict[str, Any]:
        """Return the settings of a task's run: the paper's, with those that were asked for in their place."""
        tables = toml.to_tables(_paper_settings(self.model))
        names = ("recipe", "image", "resize", "subset_images")
        settings: dict[str, Any] = {name: tables[name] for name in names}
        settings |= {"data": task.data, "weights": self.weights, "out": str(self.out / task.name)}
        settings["train_on_val"] = task.name not in self.on_val
        if task.label:
            settings["label"] = task.label
        image = self.settings.get("image", settings["image"])
        crop = {"precrop": _precrop(image)} if task.crop else {}
        if "crop" in self.settings.get("augment", {}):  # of the user's own kind
            crop = {}
        settings["augment"] = {"crop": False, "flip": task.flip, **crop}
        if "steps" in self.settings:
            settings["schedule"] = {"warmup": self.settings["steps"] // WARMUP}
        return toml.merge(settings, self.settings)

    def differs(self, done: Sequence[TaskScore]) -> list[str]:
        """Return the settings that are not the paper's, and tasks with fewer images or without a test split."""
        changed: dict[str, list[str]] = {}
        on_val, held_out = [], []
        for score in done:
            folder, task = RunFolder(self.out / score.task), self.tasks[score.task]
            config, paper = folder.config(), _paper_settings(self.model)
            crop = _precrop(config.image or paper.image) if task.crop else None
            paper = replace(paper, augment=replace(paper.augment, precrop=crop, flip=task.flip))
            if config.steps != paper.steps and config.steps is not None:  # the share of the warm-up is what counts
                paper = replace(paper, schedule=replace(paper.schedule, warmup=config.steps // WARMUP))
            if not config.train_on_val and "train_on_val" not in self.settings:
                paper = replace(paper, train_on_val=False)
                on_val.append(score.task)
            for line in toml.differences(paper, config, NOT_COMPARED):
                changed.setdefault(line, []).append(score.task)
            if folder.record().get("split"):
                held_out.append(score.task)
        lines = [line if len(names) == len(done) else f"{line} ({few(names)})" for line, names in changed.items()]
        if self.weights == "none":
            lines.insert(0, "from scratch: no pre-trained weights")
        return [*lines, *_without_test(on_val, held_out), *_fewer(done)]


class LinearProbe:
    """A linear layer on frozen features, its regularisation chosen on 200 of the 1,000 images."""

    def __init__(self, weights: str, settings: Mapping[str, Any], tasks: Sequence[Task], before: Sequence[TaskScore]):
        self.examples, self.seed = settings.get("subset_images") or EXAMPLES, settings.get("split_seed", 0)
        self.before = {score.task: score for score in before}
        device = pick_device(settings.get("device") or "auto")
        self.extract = FeatureExtractor(
            model=load(weights, image=settings.get("image")).to(device),
            device=device,
            workers=pick_workers(settings.get("workers"), device, 1),
            progress=show_progress,
        )
        self.scored: dict[str, str] = {}
        for task in tasks:
            data = open_data(task.data, label=task.label)
            check_data(task, data)
            self.scored[task.name] = partition(_to_probe(data)).test_name

    def __call__(self, task: Task) -> TaskScore:
        if task.name in self.before:
            return replace(self.before[task.name], group=task.group)
        data = _to_probe(open_data(task.data, label=task.label))
        result = probe_task(self.extract, data, self.seed, examples=self.examples)
        return TaskScore(
            task=task.name,
            group=task.group,
            classes=result.classes,
            trained=result.fitted,
            scored=result.images,
            top1=result.top1,
            crop=False,
            flip=False,
            l2=result.l2,
        )

    def differs(self, done: Sequence[TaskScore]) -> list[str]:
        on_val, held_out = ([score.task for score in done if self.scored[score.task] == name] for name in SCORED)
        first = "a linear probe on frozen features, where the paper fine-tunes all weights"
        return [first, *_without_test(on_val, held_out), *_fewer(done)]


def check_data(task: Task, data: Data) -> None:
    """Raise an error for data that cannot be a task."""
    if data.multilabel:
        raise DataError(f"images of {task.data} have several labels; a task of VTAB has one label per image.")
    if not data.classes:
        raise DataError(f"images of {task.data} have no labels.", expected="class folders, or a column of labels")


def _to_probe(data: Data) -> Data:
    """Return the data with val among the images to train on, unless it is what can be scored."""
    return join_validation(data) if has_labelled_test(data) else data


def _without_test(on_val: Sequence[str], held_out: Sequence[str]) -> list[str]:
    lines = []
    if on_val:
        lines.append(f"no test split with labels, so val was scored and not trained on: {few(on_val)}")
    if held_out:
        lines.append(f"no test split, so some of the images were held out to be scored: {few(held_out)}")
    return lines


def _paper_settings(model: ModelConfig) -> Fit:
    """Return the settings of Table 4 with BiT's images; 384 px, or a little less for patches that do not divide it."""
    side = fitting_side(model, SIDE)
    settings = replace(recipe(RECIPE), image=(side, side), resize="squash", train_on_val=True, subset_images=EXAMPLES)
    return replace(settings, augment=replace(settings.augment, crop=None, precrop=_precrop((side, side))))


def _precrop(image: Any) -> int:
    return round((image if isinstance(image, int) else max(image)) * PRECROP)


def _model_config(weights: str, settings: Mapping[str, Any]) -> ModelConfig:
    if weights == "none":
        image = {"image": settings["image"]} if "image" in settings else {}
        return configure(settings.get("model") or DEFAULT_MODEL, **image)
    return load(weights).config


def _is_finished(path: Path) -> bool:
    """Return whether a run is trained, scored and reported."""
    complete = all((path / name).is_file() for name in (MODEL, EVALUATION, REPORT, CARD))
    return complete and "finished" in RunFolder(path).record()


def _is_begun(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / RECORD).is_file()


def _check_own(path: Path) -> None:
    """Raise an error where the folder for a run has files that are not a run's; they are never removed."""
    if path.is_dir() and not _is_begun(path) and not _is_killed_start(path):
        require_empty(path)


def _is_killed_start(path: Path) -> bool:
    """Return whether a folder holds no more than what a run leaves that is killed while it begins, or is given up."""
    visible = [entry for entry in path.iterdir() if not entry.name.startswith(".")] if path.is_dir() else []
    return len(visible) == 1 and visible[0].name in (CONFIG, RECORD) and visible[0].is_file()


def _remove_killed_start(path: Path) -> None:
    """Remove what a killed start left, and no other file: whatever else is there, the new run refuses the folder."""
    if _is_killed_start(path):
        for name in (CONFIG, RECORD):
            (path / name).unlink(missing_ok=True)


def _fewer(done: Sequence[TaskScore]) -> list[str]:
    fewer = [f"{score.task} {score.trained:,}" for score in done if score.trained != EXAMPLES]
    return [f"training examples, not {EXAMPLES:,}: {few(fewer)}"] if fewer else []
