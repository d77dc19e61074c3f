"""The times of checkpoints: every so many steps, or by time, so that they take no more than 3 % of a run.

By time, the pause between two is a tenth of what has been trained so far, at least one and at most ten minutes: a kill
loses a tenth of the work or ten minutes, and a short run writes few. It grows where saving is expensive.
"""

from vitkit.train.checkpoint_writer import CheckpointWriter

MOST_SHARE = 0.03  # of the run's time
SHORTEST, LONGEST = 60.0, 600.0  # seconds between checkpoints
SHARE_AT_RISK = 0.1  # of the work so far, which a kill may lose


class SaveSchedule:
    """A schedule of saves: `every` so many steps, or by time where that is None.

    Clocks of ranks differ: what depends on time is for rank zero to decide and for the others to follow.
    """

    def __init__(self, every: int | None, now: float):
        self.every = every
        self.started = self.last = now

    def at_step(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0

    def at_time(self, now: float, writer: CheckpointWriter, share_left: float) -> bool:
        """Return whether a checkpoint is due for the time since the last one; with `every`, after ten minutes.

        `share_left` is the part of the session's steps that is left: the run would wait for a write at its very end.
        """
        pause = now - self.last
        if self.every is not None:
            return pause > LONGEST
        if writer.busy or pause < min(max(SHARE_AT_RISK * (now - self.started), SHORTEST), LONGEST):
            return False
        cost = writer.expected_cost()
        left = share_left / max(1 - share_left, 1e-9) * (now - self.started)
        return cost.writing < left and self._affords(now, writer, cost.copying + cost.processor)

    def at_end(self, now: float, writer: CheckpointWriter) -> bool:
        """Return whether the last step gets a checkpoint; the run waits for it, and saves the model right after it."""
        if self.every is not None:
            return True
        cost = writer.expected_cost()
        return not writer.busy and self._affords(now, writer, cost.copying + cost.writing)

    def _affords(self, now: float, writer: CheckpointWriter, seconds: float) -> bool:
        """Return whether all saves take their share at most, with a processor's work counted as if training waited."""
        return writer.waited + writer.processor + seconds <= MOST_SHARE * (now - self.started)
