"""The training loop: batches in, steps, and now and then a look at the dev pictures and a checkpoint.

Nothing random has a state: order and augmentation are functions of (seed, epoch, picture), mixing and dropout of
(seed, pass, process). So a step is what it is whether the run came to it in one go or was killed on the way.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.config.schema import Fit
from vitkit.data.augment import Augment, augment, mix
from vitkit.data.loader import ALWAYS_FORGIVEN, Batch, Loader, too_many_broken
from vitkit.run_folder import RunError, RunFolder
from vitkit.train import checkpoint
from vitkit.train.display import Display
from vitkit.train.distributed import Processes
from vitkit.train.ema import EMA
from vitkit.train.objectives.labels import Objective
from vitkit.train.optimizer import set_rate
from vitkit.train.place import Place, place_of
from vitkit.train.plan import Plan
from vitkit.train.prefetch import Sender
from vitkit.train.schedule import factor
from vitkit.train.signals import StopRequest
from vitkit.train.step import Part, Step, Stepped
from vitkit.train.tracking import Trackers
from vitkit.weights.run_checkpoints import whole_ones

BETWEEN_READINGS = 10  # steps whose losses stay on a GPU before the host asks for them
BETWEEN_SAVES = 600.0  # seconds
PATIENCE_WITH_INFINITY = 3  # steps of the last LATELY left out for a loss that is no number, before the run gives up
LATELY = 1_000  # a long run may meet a bad batch now and then
LOOKS, SAVES = 20, 10  # in a run, unless said

Look = Callable[[], dict[str, float]]  # at the dev pictures; "score" is to be as high as possible


@dataclass(frozen=True)
class _Reading:
    """What a step measured, not read yet."""

    step: int
    rate: float
    found: Stepped


class Diverged(RunError):
    """A run that keeps losing its way to losses that are no numbers."""


class NotFinite(Exception):
    def __init__(self, step: int, what: str):
        super().__init__(f"{what} at step {step}")
        self.step, self.what = step, what


@dataclass
class Training:
    config: Fit
    plan: Plan
    objective: Objective
    shared: nn.Module  # the objective as it is called in a step: itself, or wrapped for many processes
    optimizer: torch.optim.Optimizer
    average: EMA | None
    loader: Loader
    processes: Processes
    folder: RunFolder  # written by the first process alone
    stop: StopRequest
    look: Look | None
    trackers: Trackers
    recorded: bool = False  # passes are launched as one
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        self.score_every = self.config.score_every or max(self.plan.steps // LOOKS, 1)
        self.save_every = self.config.save_every or max(self.plan.steps // SAVES, 1)
        self.read_every = BETWEEN_READINGS if self.processes.device.type == "cuda" else 1
        self.step = Step(
            self.shared, self.optimizer, clip=self.config.clip, parts=self.plan.accumulate, recorded=self.recorded
        )
        self.send = Sender(self.processes.device)
        how = self.config.augment
        self.augment = Augment(randaugment=how.randaugment, erase=how.erase, mixup=how.mixup, cutmix=how.cutmix)
        self.unread: list[_Reading] = []
        self.saved = time.monotonic()
        self.left_out = self._known_left_out()

    def run(self) -> None:
        """From the latest checkpoint, if there is one, to the last step."""
        if found := whole_ones(self.folder.checkpoints):
            self._return_to(found[-1].name)
        else:
            self._save()  # what cannot be written is known now, and there is a state to roll back to
        with Display(
            step=self.place.step, steps=self.plan.steps, batch=self.plan.batch, shown=self.processes.first
        ) as self.display:
            while self.place.step < self.plan.steps and not self.place.stopped:
                try:
                    self._go_on()
                except NotFinite as trouble:
                    self._roll_back(trouble)
        if self.config.patience and self.place.best_step:
            self._return_to(f"step-{self.place.best_step:08d}", forget=False)

    def _go_on(self) -> None:
        self.loader.start = self.place.step * self.plan.accumulate
        self.loader.waited, self.since = 0.0, time.perf_counter()
        with contextlib.closing(iter(self.loader)) as batches:
            while self.place.step < self.plan.steps and not self.place.stopped:
                if self.place.step in self.place.skipped:
                    for _ in range(self.plan.accumulate):
                        next(batches)
                else:
                    self.unread.append(self._step(self.place.step, batches))
                self._advance()

    def _step(self, step: int, batches: Iterator[Batch]) -> _Reading:
        rate = self.config.lr * factor(self.config.schedule, step, self.plan.steps)
        set_rate(self.optimizer, rate)
        found = self.step(self._parts(step, batches))
        if self.average is not None:
            self.average.update(step)
        return _Reading(step + 1, rate, found)

    def _parts(self, step: int, batches: Iterator[Batch]) -> Iterator[Part]:
        """This process's parts of a batch, in turn; none of them is held here while a step is at it."""
        for number in range(step * self.plan.accumulate, (step + 1) * self.plan.accumulate):
            yield self._part(number, next(batches))

    def _part(self, number: int, batch: Batch) -> Part:
        """Augmented and mixed where the step runs, and what the pass is about to draw settled by its number."""
        seed, rank = self.config.seed, self.processes.rank
        batch = self.send(batch)
        pixels = augment(batch.images, batch.indices, self.augment, seed=seed, epoch=batch.epochs.numpy())
        targets = self._targets(batch.labels)
        if targets.ndim == 2:
            pixels, targets = mix(pixels, targets, self.augment, seed=seed, step=number, rank=rank)
        torch.manual_seed(address(seed, number, rank))
        return pixels, targets

    def _targets(self, labels: Tensor) -> Tensor:
        if self.config.objective != "labels" or labels.ndim == 2:
            return labels
        return F.one_hot(labels, self.objective.model.config.classes).float()

    def _advance(self) -> None:
        """After a step: read, look, save, stop; each at steps that all processes agree on."""
        self.place = replace(self.place, step=self.place.step + 1)
        step, end = self.place.step, self.place.step == self.plan.steps
        look = self.look is not None and (step % self.score_every == 0 or end)
        save = step % self.save_every == 0 or end
        stop = False
        if look or save or step % self.read_every == 0:
            self._read()
            late = time.monotonic() - self.saved > BETWEEN_SAVES
            asked, overdue = self.processes.most(float(self.stop.asked), float(self.processes.first and late))
            stop, save = bool(asked), save or bool(asked) or bool(overdue)
        aside = time.perf_counter()
        if look:
            save = self._look() or save or self.place.stopped
        if save:
            self._save()
        self.display.aside += time.perf_counter() - aside
        if stop and not end:
            raise self.stop.interrupted(
                f"saved at step {step:,} of {self.plan.steps:,}; "
                f"vitkit resume {shlex.quote(str(self.folder.path))} goes on from there"
            )

    def _read(self) -> None:
        """The losses of the last steps, averaged over processes: into the log, and checked."""
        if not self.unread:
            return
        measured = [one.found for one in self.unread]
        names = sorted(measured[0].measures)
        table = torch.stack(
            [torch.stack([one.loss.float(), *(one.measures[name].float() for name in names)]) for one in measured]
        )
        rows = self.processes.mean(table).tolist()
        norms = torch.stack([one.norm.float() for one in measured]).tolist()
        readings, self.unread = self.unread, []
        for reading, (loss, *values), norm in zip(readings, rows, norms, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient norm is {norm}"
                raise NotFinite(reading.step, what)
            measures = dict(zip(names, values, strict=True))
            self._log("step", reading.step, loss=loss, lr=reading.rate, norm=norm, **measures)
        self._count_failures(readings[-1].step)
        elapsed = time.perf_counter() - self.since
        wait = self.loader.waited / elapsed if elapsed > 0 else 0.0
        self.display.update(readings[-1].step, loss, measures, wait)
        if readings[-1].step % self.save_every == 0 or readings[-1].step == self.plan.steps:
            self._log(
                "speed",
                readings[-1].step,
                seconds=round(time.perf_counter() - self.display.started, 3),
                images_per_second=round(self.display.rate(readings[-1].step), 1),
                data_wait=round(wait, 4),
            )

    def _count_failures(self, step: int) -> None:
        """Each process knows of its own broken pictures; the limit is on all of them."""
        split = self.loader.reader.split
        news = {
            split.keys[index]: reason
            for index, reason in self.loader.failures.items()
            if split.keys[index] not in self.left_out
        }
        if not self.processes.most(float(len(news)))[0]:
            return
        for found in self.processes.everyones(news):
            for picture, reason in found.items():
                if picture not in self.left_out:
                    self.left_out.add(picture)
                    self._log("left-out", step, picture=picture, reason=reason)
        if len(self.left_out) > max(self.config.max_failed * len(split), ALWAYS_FORGIVEN):
            raise too_many_broken(len(self.left_out), len(split), self.config.max_failed)

    def _known_left_out(self) -> set[str]:
        return {line["picture"] for line in self.folder.metrics() if line["kind"] == "left-out"}

    def _look(self) -> bool:
        """At the dev pictures, with the averaged weights if there are any; whether the state must be kept."""
        assert self.look is not None
        with self.average.swapped_in() if self.average is not None else contextlib.nullcontext():
            found = self.look()
        score, step = found.pop("score"), self.place.step
        self._log("score", step, **found)
        better = score > self.place.best
        if better:
            self.place = replace(self.place, best=score, best_step=step, since_best=0)
        else:
            self.place = replace(self.place, since_best=self.place.since_best + 1)
        patience = self.config.patience
        if patience and self.place.since_best >= patience:
            self.place = replace(self.place, stopped=True)
            self.display.say(
                f"stopped at step {step:,}: no better for {patience} looks, best at step {self.place.best_step:,}"
            )
        return better and patience > 0

    def _save(self) -> None:
        if self.processes.first:
            self.folder.sync_metrics()
        checkpoint.save(
            self.folder.checkpoints,
            checkpoint.state_of(self.objective, self.optimizer, self.average),
            self._record(),
            self.processes,
        )
        if self.processes.first:
            before = [int(path.name[5:]) for path in whole_ones(self.folder.checkpoints)]
            best = [self.place.best_step] if self.config.patience else []
            checkpoint.keep_only(self.folder.checkpoints, [*best, *[s for s in before if s <= self.place.step][-2:]])
        self.saved = time.monotonic()

    def _record(self) -> dict[str, Any]:
        return {**self.place.record(), "processes": self.processes.world_size}

    def _return_to(self, name: str, *, forget: bool = True) -> None:
        """The state of a checkpoint; with `forget`, the run is there again."""
        record = checkpoint.load(
            self.folder.checkpoints / name, self.objective, self.optimizer, self.average, self.processes
        )
        self.unread = []
        if not forget:
            return
        record.pop("processes")
        self.place = place_of(record)
        if self.processes.first:
            self.folder.forget_after(self.place.step, self.place.skipped)
        self.processes.barrier()
        self.left_out, self.loader.failures = self._known_left_out(), {}  # those of forgotten steps are named again

    def _roll_back(self, trouble: NotFinite) -> None:
        """To the latest checkpoint; the step that went wrong is left out the next time."""
        skipped = (*self.place.skipped, trouble.step - 1)
        lately = [step + 1 for step in skipped if step + LATELY >= trouble.step]
        if len(lately) > PATIENCE_WITH_INFINITY:
            raise Diverged(
                f"the {trouble.what} at step {trouble.step}, and {len(lately)} steps went that way lately "
                f"({', '.join(map(str, lately))}): this run diverges.",
                kept=f"{self.folder.checkpoints}, before it did",
                try_=f"a lower --lr (it was {self.config.lr:g}), a longer warm-up, --precision fp32",
            )
        latest = whole_ones(self.folder.checkpoints)[-1]
        self._return_to(latest.name)
        self.place = replace(self.place, skipped=skipped)
        self._log("rolled-back", trouble.step, to=self.place.step, what=trouble.what)
        if self.processes.first:
            checkpoint.write_record(latest, self._record())  # a kill from here on does not bring the step back
        self.display.say(
            f"the {trouble.what} at step {trouble.step:,}: back to step {self.place.step:,}, and on without that one"
        )

    def _log(self, kind: str, step: int, **values: Any) -> None:
        if self.processes.first:
            self.folder.log(kind, step, **values)
            self.trackers.log(kind, step, values)


def address(seed: int, number: int, rank: int) -> int:
    """A seed for torch's generators that depends on the place alone."""
    state = np.random.SeedSequence((seed % 2**64, 0xD0, number, rank)).generate_state(1, np.uint64)[0]
    return int(state) >> 1  # torch takes 63 bits
