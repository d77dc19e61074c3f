"""Slurm's environment variables: lists of hosts, tasks per node, and a port for each job step.

Compute nodes need not have Slurm's commands (a container has none), so no `scontrol` is called.
"""

import itertools
import re
from collections.abc import Iterator, Mapping

from vitkit.errors import ConfigError

FIRST_PORT, PORTS = 15_000, 17_000  # below Linux's ephemeral ports, which begin at 32,768
STEPS = 31  # of one job whose ports differ from those of the next job; it has no factor in common with PORTS
MAX_HOSTS = 1 << 16  # more than a cluster has: a list that expands to more is a mistake

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand_hostlist(text: str) -> list[str]:
    """Return the hosts of a list such as "node[001-003,7],gpu-a[1-2]-ib", as `scontrol show hostnames` does."""
    hosts: list[str] = []
    for item in _items(text):
        # brackets split an item into literal text and lists of ranges in turn
        parts = re.split(r"\[([^][]*)\]", item)
        if any(bracket in literal for literal in parts[::2] for bracket in "[]"):
            raise _not_a_hostlist(text)
        choices = [list(_expand_ranges(part, text)) if number % 2 else [part] for number, part in enumerate(parts)]
        hosts += ("".join(chosen) for chosen in itertools.islice(itertools.product(*choices), MAX_HOSTS + 1))
        if len(hosts) > MAX_HOSTS:
            raise _not_a_hostlist(text)
    return hosts


def step_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a step where only those of its job are set, as containers and wrappers may pass them.

    Slurm sets SLURM_PROCID and SLURM_NTASKS for the script of `sbatch` too, together with SLURM_TASKS_PER_NODE, and
    that is not a step.
    """
    if "SLURM_STEP_NUM_TASKS" in variables or "SLURM_PROCID" not in variables or "SLURM_NTASKS" not in variables:
        return {}
    if "SLURM_TASKS_PER_NODE" in variables and "SLURM_STEP_ID" not in variables:
        return {}
    of_job = {
        "SLURM_STEP_NUM_TASKS": "SLURM_NTASKS",
        "SLURM_STEP_NUM_NODES": "SLURM_NNODES",
        "SLURM_STEP_NODELIST": "SLURM_NODELIST",
    }
    return {step: variables[job] for step, job in of_job.items() if job in variables and step not in variables}


def tasks_on_node(variables: Mapping[str, str], tasks: int) -> int:
    """Return how many of the step's tasks are on this node, by SLURM_STEP_TASKS_PER_NODE, such as "2(x3),1"."""
    text, per_node = variables.get("SLURM_STEP_TASKS_PER_NODE") or str(tasks), list[int]()
    for item in text.split(","):
        match = _TASKS.fullmatch(item.strip())
        if match is None or int(match[2] or 1) > MAX_HOSTS:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}, and numbers such as 2(x3),1 are expected")
        per_node += [int(match[1])] * int(match[2] or 1)
    node = integer(variables, "SLURM_NODEID", 0)
    return per_node[node] if 0 <= node < len(per_node) else tasks


def step_address(variables: Mapping[str, str]) -> str:
    """Return the first node of a job step, where rank 0 is."""
    hosts = expand_hostlist(variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST") or "")
    return hosts[0] if hosts else ""


def step_port(variables: Mapping[str, str]) -> int:
    """Return the port of a job step; neighbouring jobs, and neighbouring steps of a job, have different ones."""
    job, step = (integer(variables, name, 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return FIRST_PORT + (job * STEPS + step % STEPS) % PORTS


def integer(variables: Mapping[str, str], name: str, default: int) -> int:
    """Return the value of a variable; one that is not set has the default."""
    try:
        return int(variables.get(name, default))
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {variables[name]!r}, which is no whole number") from None


def _items(text: str) -> Iterator[str]:
    """Yield the parts between commas that stand outside of brackets."""
    return (item.strip() for item in re.split(r",(?![^[]*\])", text) if item.strip())


def _expand_ranges(text: str, hostlist: str) -> Iterator[str]:
    """Yield the numbers of "001-003,7", with the leading zeros of the first number of each range."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _not_a_hostlist(hostlist)
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise _not_a_hostlist(hostlist)
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _not_a_hostlist(text: str) -> ConfigError:
    return ConfigError(
        f"Slurm's list of nodes, {text!r}, cannot be read.",
        expected="node[001-003,7],gpu-a[1-2]-ib",
        try_="export MASTER_ADDR=HOST, the host of rank 0",
    )
