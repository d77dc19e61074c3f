"""The launcher that has started this process: torchrun, Open MPI's mpirun or Slurm's srun, from the environment.

This is the only place that knows their variables. The first launcher in `LAUNCHERS` whose rank is set counts: torchrun
may run under srun, and so may mpirun, which then sets the ranks. Of Slurm, only a job step has ranks: the script of
`sbatch` and the shell of `salloc` are one process each, however many tasks the job has.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vitkit.errors import ConfigError
from vitkit.slurm import integer, step_address, step_port, step_variables, tasks_on_node

Variables = Mapping[str, str]
THIS_MACHINE = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The command of a launcher, the names of its variables, and where its processes meet by default."""

    command: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: Callable[[Variables, int], int]
    address: Callable[[Variables], str]  # of rank 0, where MASTER_ADDR does not say; "": not known
    port: Callable[[Variables], int]  # where MASTER_PORT does not say; 0: not known
    cores: Callable[[Variables], int] = lambda variables: 0  # of each process; 0: not known
    owned_devices: bool = False  # each process may see its own devices only
    unset: str = ""  # how to hide variables that a shell has inherited, from a step that it is not in


TORCHRUN = Launcher(  # also Kubeflow's PyTorchJob, and whoever sets the variables of torch.distributed
    command="torchrun",
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size=lambda variables, world_size: integer(variables, "LOCAL_WORLD_SIZE", world_size),
    address=lambda variables: "",
    port=lambda variables: 0,
)
MPIRUN = Launcher(
    command="mpirun",
    rank="OMPI_COMM_WORLD_RANK",
    world_size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size=lambda variables, world_size: integer(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", world_size),
    address=lambda variables: (
        THIS_MACHINE if variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == variables["OMPI_COMM_WORLD_SIZE"] else ""
    ),
    port=step_port,
)
SRUN = Launcher(  # SLURM_NTASKS is set outside of steps, too, and SLURM_PROCID in the script of sbatch
    command="srun",
    rank="SLURM_PROCID",
    world_size="SLURM_STEP_NUM_TASKS",
    local_rank="SLURM_LOCALID",
    local_world_size=tasks_on_node,
    address=lambda variables: THIS_MACHINE if variables.get("SLURM_STEP_NUM_NODES") == "1" else step_address(variables),
    port=step_port,
    cores=lambda variables: integer(variables, "SLURM_CPUS_PER_TASK", 0),
    owned_devices=True,
    unset="unset SLURM_STEP_NUM_TASKS",
)
LAUNCHERS = (TORCHRUN, MPIRUN, SRUN)
VARIABLES = tuple(
    """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
    SLURM_CPUS_PER_TASK SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_LOCALID SLURM_NNODES SLURM_NODEID SLURM_NODELIST
    SLURM_NTASKS SLURM_PROCID SLURM_RESTART_COUNT SLURM_TASKS_PER_NODE
    SLURM_STEP_ID SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE
    """.split()
)
RESTARTS = {"TORCHELASTIC_RESTART_COUNT": "restart {} of torchrun", "SLURM_RESTART_COUNT": "requeue {} of Slurm"}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place of this process among those that a launcher has started; without a launcher, a world of one."""

    launcher: Launcher | None = None
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    address: str = ""  # of rank 0
    port: int = 0
    cores: int = 0  # that the launcher gives each process; 0: not known

    def device_index(self, visible: int) -> int:
        """Return the index of this process's GPU among the visible ones.

        As a rule each process sees the GPUs of its node and takes that of its local rank. Slurm may show each process
        its own only (`--gpus-per-task=1`): the second process then has a single device, number 0.
        """
        if self.launcher is not None and self.launcher.owned_devices and visible:
            return self.local_rank % visible
        return self.local_rank

    def sharing(self, cores: int) -> int:
        """Return how many processes share the cores that this one may use.

        Those of its node do, unless the launcher binds each of them to its own (`--cpus-per-task=12`).
        """
        return max(1, min(self.local_world_size, cores // self.cores)) if self.cores else self.local_world_size


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return the place of this process in a distributed run."""
    variables = _variables(environment)
    for launcher in LAUNCHERS:
        if launcher.rank in variables and launcher.world_size in variables:
            return _launch(launcher, variables)
    return Launch()


def process_rank() -> int:
    """Return the rank of this process for messages; 0 where the variables are of no use."""
    try:
        return launch().rank
    except ConfigError:
        return 0


def check_complete(here: Launch) -> None:
    """Raise if the environment has only some of what the processes of a run need to meet."""
    variables = _variables()
    world_size = integer(variables, TORCHRUN.world_size, 1)
    if here.launcher is None and world_size > 1:
        raise _not_set(TORCHRUN.rank, world_size)
    if here.world_size == 1 or (here.address and here.port):
        return
    if here.launcher is TORCHRUN:
        raise _not_set("MASTER_PORT" if here.address else "MASTER_ADDR", here.world_size)
    raise ConfigError(
        f"the address of rank 0 of the {here.world_size} processes is not known.",
        try_="export MASTER_ADDR=HOST, the host of rank 0",
    )


def restart() -> str:
    """Return what has started this process again after it was stopped or lost, or ""."""
    variables = _variables()
    counts = {what: integer(variables, name, 0) for name, what in RESTARTS.items()}
    return next((what.format(count) for what, count in counts.items() if count > 0), "")


def unused_tasks() -> int:
    """Return how many tasks of a Slurm job are left unused because `srun` has not started this command."""
    here = launch()
    if here.world_size > 1 or here.launcher not in (None, SRUN):
        return 0
    return max(integer(_variables(), "SLURM_NTASKS", 1) - 1, 0)


def _launch(launcher: Launcher, variables: Variables) -> Launch:
    rank, world_size = integer(variables, launcher.rank, 0), integer(variables, launcher.world_size, 1)
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"{launcher.rank} is {rank}, and {launcher.world_size} is {world_size}: ranks are counted from 0.",
            try_=f"start the command with {launcher.command}, or unset {launcher.rank} for one process",
        )
    single = world_size == 1  # and needs no address
    return Launch(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=max(integer(variables, launcher.local_rank, 0), 0),
        local_world_size=max(launcher.local_world_size(variables, world_size), 1),
        address="" if single else variables.get("MASTER_ADDR") or launcher.address(variables),
        port=0 if single else integer(variables, "MASTER_PORT", 0) or launcher.port(variables),
        cores=launcher.cores(variables),
    )


def _not_set(name: str, world_size: int) -> ConfigError:
    return ConfigError(
        f"WORLD_SIZE is {world_size}, but {name}, which torchrun sets for each process, is not set.",
        try_=[f"torchrun --nproc-per-node={world_size} -m vitkit …", "unset WORLD_SIZE, for one process"],
    )


def _variables(environment: Mapping[str, str] = os.environ) -> Variables:
    """Return the variables of all launchers that are set; one without a value counts as not set."""
    variables = {name: environment[name] for name in VARIABLES if environment.get(name)}
    return variables | step_variables(variables)
