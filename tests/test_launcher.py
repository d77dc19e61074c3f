"""The launcher of a process is recognised by its variables; a batch script without srun is one process."""

from __future__ import annotations

import subprocess
from itertools import product

import pytest

from vitkit import launcher, slurm
from vitkit.errors import ConfigError
from vitkit.launcher import MPIRUN, SRUN, TORCHRUN, Launch, check_complete, launch, restart, unused_tasks

# as srun sets them for the third of three tasks on two nodes, in a job of four nodes
STEP = {
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "gpu[01-04]",
    "SLURM_NTASKS": "3",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[02-03]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_TASKS_PER_NODE": "2,1",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
# as slurmd sets them for the script of sbatch --ntasks=3: no variable of a step but those of its first process
BATCH = {
    "SLURM_JOB_ID": "123456",
    "SLURM_JOB_NODELIST": "gpu[01-04]",
    "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "1(x3)",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
TORCH = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29400",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}

# the first lines: manual pages of Slurm (sbatch, slurm.conf, Slurm::Hostlist) and of python-hostlist
HOSTLISTS = {
    "linux[1-3,6]": "linux1 linux2 linux3 linux6",
    "tux[0-3,12,20-21]": "tux0 tux1 tux2 tux3 tux12 tux20 tux21",
    "node1,node[2-5,12]": "node1 node2 node3 node4 node5 node12",
    "linux[00-03]": "linux00 linux01 linux02 linux03",
    "rack[0-1]_blade[0-2]": "rack0_blade0 rack0_blade1 rack0_blade2 rack1_blade0 rack1_blade1 rack1_blade2",
    "n[9-11],d[01-02]": "n9 n10 n11 d01 d02",
    "lx[15,18,32-33]": "lx15 lx18 lx32 lx33",
    "node[001-003,7],gpu-a[1-2]-ib": "node001 node002 node003 node7 gpu-a1-ib gpu-a2-ib",
    "cn[098-101]": "cn098 cn099 cn100 cn101",
    "c[1-2]n[08-09].cluster": "c1n08.cluster c1n09.cluster c2n08.cluster c2n09.cluster",
    "login.example.org": "login.example.org",
    "a, b,,c": "a b c",
    "": "",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the launcher that may have started the tests."""
    for name in [*STEP, *TORCH, *MPI, *launcher.RESTARTS, "SLURM_CPUS_PER_TASK", "SLURM_NODELIST"]:
        monkeypatch.delenv(name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, *tables: dict[str, str]) -> None:
    for table in tables:
        for name, value in table.items():
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("text", "hosts"), HOSTLISTS.items(), ids=lambda value: value or "empty")
def test_a_hostlist_expands_as_slurm_says(text: str, hosts: str):
    assert slurm.expand_hostlist(text) == hosts.split()


@pytest.mark.parametrize("text", ["n[", "n]", "n[]", "n[1-", "n[[1]]", "n[a]", "n[3-1]", "n[1-999999999]", "n[-1]"])
def test_a_damaged_hostlist_is_an_error_that_names_the_variable_to_set(text: str):
    with pytest.raises(ConfigError, match="MASTER_ADDR=HOST"):
        slurm.expand_hostlist(text)


def test_brackets_expand_as_those_of_the_shell():
    for prefix, (low, high), suffix in product(("n", "gpu-a"), ((1, 3), (8, 11), (98, 101)), ("", "-ib", ".x")):
        shell = f"echo {prefix}{{{low:03d}..{high:03d}}}{suffix}"
        expected = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.split()
        assert slurm.expand_hostlist(f"{prefix}[{low:03d}-{high:03d}]{suffix}") == expected


def test_without_a_launcher_a_process_is_alone():
    assert launch() == Launch()
    assert not restart()
    assert unused_tasks() == 0


def test_a_task_of_srun_finds_its_rank_and_the_first_node_of_its_step(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, STEP)
    here = launch()
    assert (here.launcher, here.rank, here.world_size, here.local_rank, here.local_world_size) == (SRUN, 2, 3, 0, 1)
    assert here.address == "gpu02"
    assert here.port < 32_768  # below Linux's ephemeral ports
    monkeypatch.setenv("MASTER_PORT", "4711")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    assert (launch().address, launch().port) == ("elsewhere", 4711)
    check_complete(launch())


def test_the_variables_of_the_job_are_enough_where_no_others_are_passed_on(monkeypatch: pytest.MonkeyPatch):
    passed = {name: STEP[name] for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID")}
    set_all(monkeypatch, passed, {"SLURM_NODELIST": "gpu[02-03]"})
    here = launch()
    assert (here.launcher, here.rank, here.world_size, here.address) == (SRUN, 2, 3, "gpu02")
    monkeypatch.setenv("SLURM_NNODES", "1")
    assert launch().address == "127.0.0.1"


def test_a_step_on_one_node_needs_no_name_server(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, STEP, {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_NODEID": "0"})
    assert (launch().address, launch().local_world_size) == ("127.0.0.1", 3)


def test_jobs_and_steps_that_may_share_a_node_have_ports_of_their_own():
    ports = [
        slurm.step_port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job, step in product(range(5_000_000, 5_000_400), range(31))
    ]
    assert len(set(ports)) == len(ports)
    assert slurm.FIRST_PORT <= min(ports) <= max(ports) < 32_768
    assert slurm.step_port({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "4294967290"}) < 32_768  # an interactive step


def test_the_script_of_sbatch_is_one_process_and_says_how_many_tasks_are_unused(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, BATCH)
    assert launch() == Launch()
    assert unused_tasks() == 2


def test_the_shell_of_salloc_is_one_process(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, {name: value for name, value in BATCH.items() if name != "SLURM_PROCID"})
    assert launch() == Launch()
    # with use_interactive_step the shell is a step of one task, and SLURM_NTASKS is that of the job
    set_all(monkeypatch, BATCH, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290"})
    assert (launch().world_size, launch().rank, unused_tasks()) == (1, 0, 2)


def test_torchrun_and_mpirun_under_srun_set_the_ranks(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, STEP, MPI)
    here = launch()
    assert (here.launcher, here.rank, here.world_size, here.address) == (MPIRUN, 1, 2, "127.0.0.1")
    set_all(monkeypatch, TORCH)
    here = launch()
    assert (here.launcher, here.rank, here.world_size, here.local_rank) == (TORCHRUN, 5, 8, 1)
    assert (here.local_world_size, here.address, here.port) == (4, "head", 29400)
    set_all(monkeypatch, {"RANK": "0", "WORLD_SIZE": "1"})  # torchrun of one process in a step of three
    assert launch().world_size == 1


def test_a_script_that_exports_some_of_torchs_variables_leaves_the_ranks_to_srun(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, STEP, {"WORLD_SIZE": "3", "MASTER_ADDR": "gpu02", "MASTER_PORT": "4711"})
    here = launch()
    assert (here.launcher, here.rank, here.address, here.port) == (SRUN, 2, "gpu02", 4711)


def test_mpirun_on_several_machines_needs_an_address(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    with pytest.raises(ConfigError, match="MASTER_ADDR=HOST"):
        check_complete(launch())
    monkeypatch.setenv("MASTER_ADDR", "head")
    check_complete(launch())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID is 3, and SLURM_STEP_NUM_TASKS is 3"),
        ({"SLURM_PROCID": "two"}, "SLURM_PROCID is 'two', which is no whole number"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "numbers such as 2"),
        ({"SLURM_STEP_NODELIST": "gpu["}, "cannot be read"),
    ],
)
def test_variables_that_do_not_fit_are_an_error(changed: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, STEP, changed)
    with pytest.raises(ConfigError, match=message):
        launch()
    assert launcher.process_rank() == 0


@pytest.mark.parametrize(
    ("per_task", "cores", "sharing"),
    [("", 96, 8), ("12", 96, 8), ("12", 12, 1), ("12", 24, 2), ("1", 96, 8), ("12", 4, 1)],
)
def test_tasks_that_are_bound_to_their_cores_share_them_with_nobody(
    per_task: str, cores: int, sharing: int, monkeypatch: pytest.MonkeyPatch
):
    tasks = {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_CPUS_PER_TASK": per_task}
    set_all(monkeypatch, STEP, tasks)
    assert launch().sharing(cores) == sharing


def test_a_restart_is_recognised(monkeypatch: pytest.MonkeyPatch):
    set_all(monkeypatch, {"SLURM_RESTART_COUNT": "2"})
    assert restart() == "requeue 2 of Slurm"
    set_all(monkeypatch, {"TORCHELASTIC_RESTART_COUNT": "0", "SLURM_RESTART_COUNT": "0"})
    assert not restart()
    set_all(monkeypatch, {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert restart() == "restart 1 of torchrun"
