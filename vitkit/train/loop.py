"""The training loop: optimizer steps, validation, checkpoints, early stopping and roll-back.

No random generator has a state to save: order and augmentation are functions of (seed, epoch, image), mixing and
dropout of (seed, micro-batch, rank). So a step is the same whether or not the run was interrupted before it.
"""

import contextlib
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.config.schema import Fit
from vitkit.data.batch import Batch
from vitkit.data.failures import allowed_failures, too_many_failures
from vitkit.data.loader import Loader
from vitkit.run_folder import RunError, RunFolder
from vitkit.text import counted
from vitkit.train import checkpoint
from vitkit.train.checkpoint import TrainState, averaged_steps
from vitkit.train.checkpoint_writer import CheckpointWriter
from vitkit.train.display import Display
from vitkit.train.distributed import Processes
from vitkit.train.ema import EMA
from vitkit.train.inputs import build_inputs
from vitkit.train.objectives.base import Objective
from vitkit.train.optimizer import set_lr
from vitkit.train.plan import Plan
from vitkit.train.prefetch import InputPipeline
from vitkit.train.save_schedule import SaveSchedule
from vitkit.train.schedule import lr_factor
from vitkit.train.signals import StopRequest, interrupted
from vitkit.train.step import MicroBatch, Step, StepResult
from vitkit.train.tracking import Trackers
from vitkit.weights.run_checkpoints import CheckpointRecord, damage, read_record

STEPS_BETWEEN_READS = 10  # on a GPU: the host reads the losses of so many steps at once
MAX_NON_FINITE = 3  # steps that may be skipped for a loss or gradient that is not finite, among the last WINDOW
WINDOW = 1_000  # a long run may meet a bad batch now and then
VALIDATIONS, SPEED_LINES = 20, 10  # in a run, by default

Validate = Callable[[], dict[str, float]]  # returns "score", the higher the better, and metrics to log


@dataclass(frozen=True)
class _UnreadStep:
    """A step whose loss and metrics are still on the device."""

    step: int
    lr: float
    result: StepResult


class Diverged(RunError):
    """Training that keeps producing losses or gradients that are not finite."""


class NonFinite(Exception):
    """A loss or gradient norm that is not finite, at a step."""

    def __init__(self, step: int, what: str):
        super().__init__(f"{what} at step {step}")
        self.step, self.what = step, what


@dataclass
class TrainingLoop:
    """The state of a run in memory, and the loop that trains it to the last step."""

    config: Fit
    plan: Plan
    objective: Objective
    wrapped: nn.Module  # the objective in mixed precision and wrapped for DDP or FSDP, as a step calls it
    optimizer: torch.optim.Optimizer
    ema: EMA | None
    loader: Loader
    processes: Processes
    folder: RunFolder  # written by rank zero only
    stop: StopRequest
    validate: Validate | None
    trackers: Trackers
    resumed: Path | None = None  # the checkpoint to begin with; None for a new run
    captured: bool = False  # forward and backward are replayed as a CUDA graph
    meanwhile: Callable[[], None] | None = None  # called in a thread of its own while the steps after the first compute
    state: TrainState = field(default_factory=TrainState)

    def __post_init__(self) -> None:
        self.score_every = self.config.score_every or max(self.plan.steps // VALIDATIONS, 1)
        self.log_speed_every = self.config.save_every or max(self.plan.steps // SPEED_LINES, 1)
        self.read_every = STEPS_BETWEEN_READS if self.processes.device.type == "cuda" else 1
        self.step = Step(
            self.wrapped,
            self.optimizer,
            clip=self.config.clip,
            accumulate=self.plan.accumulate,
            captured=self.captured,
        )
        make_inputs = build_inputs(self.config, self.objective.model.config, self.processes.rank)
        self.inputs = InputPipeline(make_inputs, self.processes, self.config.seed)
        self.unread: list[_UnreadStep] = []
        self.failed_images = self._logged_failures()
        self.kept_step = self.state.step  # whose weights the finished run has
        self.lost_best = ""  # why those are not the best ones

    def run(self) -> None:
        """Train from a checkpoint, if there is one, to the last step."""
        self.save_schedule = SaveSchedule(self.config.save_every, time.monotonic())
        if self.resumed is not None:
            self._resume(self.resumed)
        with CheckpointWriter(self.folder, self.processes, self._tensors) as self.writer:
            if self.resumed is None:
                self._begin()
            with Display(
                step=self.state.step, steps=self.plan.steps, batch=self.plan.batch, shown=self.processes.is_rank_zero
            ) as self.display:
                while self._incomplete():
                    try:
                        self._train()
                    except NonFinite as error:
                        self._roll_back(error)
        self.checkpoint_wait = self.writer.wait_of(time.monotonic() - self.save_schedule.started)
        self.kept_step = self.state.step
        if self.config.patience and self.state.best_step:
            self._load_best(self.folder.checkpoints / f"step-{self.state.best_step:08d}")

    def _incomplete(self) -> bool:
        return self.state.step < self.plan.steps and not self.state.stopped

    def _train(self) -> None:
        self.loader.start = self.state.step * self.plan.accumulate
        self.loader.wait_seconds, self.started = 0.0, time.perf_counter()
        with contextlib.closing(iter(self.loader)) as batches:
            while self._incomplete():
                if self.state.step in self.state.skipped:
                    for _ in range(self.plan.accumulate):
                        next(batches)
                else:
                    self.unread.append(self._step(self.state.step, batches))
                self._after_step()

    def _step(self, step: int, batches: Iterator[Batch]) -> _UnreadStep:
        lr = self.config.lr * lr_factor(self.config.schedule, step, self.plan.steps)
        set_lr(self.optimizer, lr)
        self.objective.at_step(step, self.plan.steps)
        result = self.step(self._micro_batches(step, batches))
        if self.ema is not None:
            self.ema.update()
        return _UnreadStep(step + 1, lr, result)

    def _micro_batches(self, step: int, batches: Iterator[Batch]) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of a step; no reference keeps one in memory while the next is computed."""
        for number in range(step * self.plan.accumulate, (step + 1) * self.plan.accumulate):
            yield self.inputs(number, next(batches))

    def _after_step(self) -> None:
        """Read losses, validate, save and stop, each at steps that all ranks agree on."""
        self.state = replace(self.state, step=self.state.step + 1)
        step, last = self.state.step, self.state.step == self.plan.steps
        if self.meanwhile is not None:
            threading.Thread(target=self.meanwhile, name="vitkit-meanwhile", daemon=True).start()
            self.meanwhile = None
        validate = self.validate is not None and (step % self.score_every == 0 or last)
        save = self.save_schedule.at_step(step)
        stop = 0
        log_speed = step % self.log_speed_every == 0
        if validate or save or last or log_speed or step % self.read_every == 0:
            self._read_losses()
            stop, due, failed = self._agree()
            if failed:
                self.writer.wait()  # raises the error
            save = save or stop > 0 or due
        paused = time.perf_counter()
        if validate:
            save = self._validate() or save
        if save or (not self._incomplete() and self._saves_last_step()):
            self._save()
        self.display.paused += time.perf_counter() - paused
        if stop and not last:
            self.writer.wait()
            raise interrupted(
                f"saved at step {step:,} of {self.plan.steps:,}; "
                f"vitkit resume {shlex.quote(str(self.folder.path))} continues from there",
                stop,
            )

    def _agree(self) -> tuple[int, bool, bool]:
        """Return on all ranks what rank zero and the others know.

        The signal that asks one of them to stop, or 0; whether rank zero finds a checkpoint due; whether a write has
        failed. All ranks exit with the code of that signal, so that `srun` and batch scripts see it.
        """
        left = (self.plan.steps - self.state.step) / (self.plan.steps - self.display.first_step)
        due = self.processes.is_rank_zero and self.save_schedule.at_time(time.monotonic(), self.writer, left)
        flags = self.processes.all_reduce_max(float(self.stop.signal or 0), float(due), float(self.writer.failed))
        return int(flags[0]), bool(flags[1]), bool(flags[2])

    def _saves_last_step(self) -> bool:
        at_end = self.processes.is_rank_zero and self.save_schedule.at_end(time.monotonic(), self.writer)
        return bool(self.processes.all_reduce_max(float(at_end))[0])

    def _read_losses(self) -> None:
        """Read the losses of the last steps, averaged over ranks; log them, and raise if one is not finite."""
        if not self.unread:
            return
        results = [one.result for one in self.unread]
        names = sorted(results[0].metrics)
        table = torch.stack(
            [torch.stack([one.loss.float(), *(one.metrics[name].float() for name in names)]) for one in results]
        )
        rows = self.processes.all_reduce_mean(table).tolist()
        norms = torch.stack([one.norm.float() for one in results]).tolist()
        steps, self.unread = self.unread, []
        for one, (loss, *values), norm in zip(steps, rows, norms, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient norm is {norm}"
                raise NonFinite(one.step, what)
            metrics = dict(zip(names, values, strict=True))
            self._log("step", one.step, loss=loss, lr=one.lr, norm=norm, **metrics)
        step = steps[-1].step
        self._log_failures(step)
        elapsed = time.perf_counter() - self.started
        wait = self.loader.wait_seconds / elapsed if elapsed > 0 else 0.0
        self.display.update(step, loss, metrics, wait)
        if step % self.log_speed_every == 0 or step == self.plan.steps:
            seconds = time.perf_counter() - self.display.started
            self._log(
                "speed",
                step,
                seconds=round(seconds, 3),
                images_per_second=round(self.display.rate(step), 1),
                data_wait=round(wait, 4),
                checkpoint_wait=round(self.writer.waited / seconds, 4),
            )

    def _log_failures(self, step: int) -> None:
        """Log the images that failed to decode on any rank; raise if they are too many altogether."""
        split = self.loader.dataset.split
        failures = {split.keys[index]: reason for index, reason in self.loader.failures.items()}
        new = {key: reason for key, reason in failures.items() if key not in self.failed_images}
        if not self.processes.all_reduce_max(float(len(new)))[0]:
            return
        for gathered in self.processes.gather(new):
            for key, reason in gathered.items():
                if key not in self.failed_images:
                    self.failed_images.add(key)
                    self._log("left-out", step, image=key, reason=reason)
        if len(self.failed_images) > allowed_failures(len(split), self.config.max_failed):
            raise too_many_failures(len(self.failed_images), len(split), self.config.max_failed)

    def _logged_failures(self) -> set[str]:
        # "picture": as vitkit 0.1.0 wrote it
        return {
            line["image"] if "image" in line else line["picture"]
            for line in self.folder.metrics()
            if line["kind"] == "left-out"
        }

    def _validate(self) -> bool:
        """Score the EMA weights, or the weights where there is no EMA; return whether a checkpoint must keep them."""
        assert self.validate is not None
        with self.ema.swapped_in() if self.ema is not None else contextlib.nullcontext():
            metrics = self.validate()
        score, step, patience = metrics.pop("score"), self.state.step, self.config.patience
        self._log("score", step, **metrics)
        self.state = self.state.after_validation(score, patience)
        best = self.state.best_step
        if self.state.stopped:
            validations = counted(patience, "validation")
            self.display.message(
                f"early stopping at step {step:,}: no better score in {validations}, best at step {best:,}"
            )
        return best == step and patience > 0

    def _begin(self) -> None:
        """Save the state before the first step, so that there is one to roll back to.

        Where an earlier process was killed before that checkpoint was complete, its metrics are dropped.
        """
        if self.processes.is_rank_zero and any(self.folder.metrics()):
            self.folder.truncate_metrics(0)
        self.failed_images = set()
        self._save()

    def _save(self) -> None:
        best = (self.state.best_step,) if self.config.patience else ()
        self.writer.save(self._record(), kept=best)
        self.save_schedule.last = time.monotonic()

    def _tensors(self) -> dict[str, Tensor]:
        return checkpoint.state_of(self.objective, self.optimizer, self.ema)

    def _record(self) -> dict[str, Any]:
        averaged = {"averaged": self.ema.updates} if self.ema is not None else {}
        return {**self.state.to_record(), **averaged, "processes": self.processes.world_size}

    def _load(self, path: Path) -> CheckpointRecord:
        """Load a checkpoint's tensors and return its record."""
        self.unread = []
        record = checkpoint.load(path, self.objective, self.optimizer, self.ema, self.processes)
        if self.ema is not None:
            self.ema.updates = averaged_steps(record)
        return record

    def _load_best(self, path: Path) -> None:
        """Load the checkpoint with the best validation score, which early stopping keeps.

        Where it is damaged, the weights of the last step, which are in memory, are a usable model and stay.
        """
        try:
            problem = damage(path, read_record(path, RunError), self.processes.rank, self.processes.world_size)
        except RunError as error:
            problem = error.what
        if problems := [text for text in self.processes.gather(problem) if text]:
            self.lost_best = (
                f"{path}, the checkpoint with the best score, is damaged ({problems[0]}): the weights of the last "
                f"step, {self.state.step:,}, are kept instead, and the model may be worse than the best one was"
            )
            return
        self._load(path)
        self.kept_step = self.state.best_step

    def _resume(self, path: Path) -> None:
        """Continue from a checkpoint, and drop the metrics of later steps."""
        self.state = TrainState.from_record(self._load(path))
        if self.processes.is_rank_zero:
            self.folder.truncate_metrics(self.state.step, self.state.skipped)
        self.processes.barrier()
        self.failed_images, self.loader.failures = self._logged_failures(), {}  # dropped ones will be logged again

    def _roll_back(self, error: NonFinite) -> None:
        """Resume from the latest checkpoint and skip the step that was not finite."""
        skipped = (*self.state.skipped, error.step - 1)
        recent = [step + 1 for step in skipped if step + WINDOW >= error.step]
        if len(recent) > MAX_NON_FINITE:
            raise Diverged(
                f"training diverges: the {error.what} at step {error.step}, the last of {len(recent)} such steps "
                f"({', '.join(map(str, recent))}).",
                kept=f"{self.folder.checkpoints} holds earlier states",
                try_=f"a lower --lr (it was {self.config.lr:g}), a longer warm-up, --precision fp32",
            )
        self.writer.wait()
        latest, warnings = checkpoint.intact_checkpoint(self.folder.checkpoints, self.processes)
        for text in warnings:
            self.display.message(text)
        self._resume(latest)
        self.state = replace(self.state, skipped=skipped)
        self._log("rolled-back", error.step, to=self.state.step, what=error.what)
        if self.processes.is_rank_zero:
            files = {"files": record["files"]} if "files" in (record := read_record(latest, RunError)) else {}
            checkpoint.write_record(latest, {**self._record(), **files})  # so that a resumed run skips the step, too
        self.display.message(
            f"the {error.what} at step {error.step:,}: rolled back to step {self.state.step:,}, skipping that step"
        )

    def _log(self, kind: str, step: int, **values: Any) -> None:
        if self.processes.is_rank_zero:
            self.folder.log(kind, step, **values)
            self.trackers.log(kind, step, values)
