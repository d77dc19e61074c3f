"""A run that its own command continues: after a requeue, after a restart of torchrun, or with `--resume`.

The command is that of the run if it resolves to the settings that the run was asked for; the settings that do not
change the result may differ, and those of the command count.
"""

from dataclasses import replace

from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.run_folder import CARD, MODEL, REPORT, RunError, RunFolder
from vitkit.train.trainer import CHANGEABLE_ON_RESUME

# seconds to wait for the lock: the process before may still be ending, and a file server keeps the locks of a machine
# that was lost until its lease is over, 90 seconds with NFS 4
LOCK_PATIENCE = 150.0


def continued_config(asked: Fit, folder: RunFolder) -> Fit:
    """Return the settings to continue the run of a folder with; raise if the command asks for another run."""
    current = folder.config()
    before_tables = folder.record().get("asked")
    # without a record the process was killed before it had one, and nothing is decided yet
    before = current if before_tables is None else toml.from_tables(before_tables)
    if changed := toml.differences(before, asked, CHANGEABLE_ON_RESUME):
        raise RunError(
            f"{folder.path} holds a run that was started with other settings; nothing was changed.",
            changed=changed,
            try_=f"--out another folder, or vitkit resume {folder.path} for the settings before",
        )
    changed_ones = [name for name in CHANGEABLE_ON_RESUME if getattr(asked, name) != getattr(before, name)]
    return replace(current, **{name: getattr(asked, name) for name in [*changed_ones, "out"]})


def is_finished(folder: RunFolder) -> bool:
    """Return whether a run is trained, scored and reported."""
    return "finished" in folder.record() and all((folder.path / name).is_file() for name in (MODEL, REPORT, CARD))
