"""Slurm's commands for tests on one machine, with the variables of the real ones: `sbatch`, `srun`, `scontrol requeue`.

The variables are those that slurmd and srun set (the manual pages of sbatch and srun): a batch script has SLURM_NTASKS
and SLURM_PROCID of its only process, a task also the SLURM_STEP_ variables. `sbatch` waits for its job, which the real
one does with --wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SBATCH = r"""
import os, re, subprocess, sys, time
from pathlib import Path

home = Path(os.environ["FAKE_SLURM"])
words, options = sys.argv[1:], {}
while words and words[0].startswith("-"):
    name, _, value = words.pop(0).removeprefix("--").partition("=")
    options[name] = value
script, arguments = words[0], words[1:]
for line in Path(script).read_text().splitlines():
    if line.startswith("#SBATCH "):
        name, _, value = line.removeprefix("#SBATCH ").split("#")[0].strip().removeprefix("--").partition("=")
        options.setdefault(name, value)
    elif line and not line.startswith("#"):
        break
nodes = int(options.get("nodes", 1))
tasks = int(options.get("ntasks") or nodes * int(options.get("ntasks-per-node", 1)))
job = 1 + len(list(home.glob("job-*")))
(home / f"job-{job}").touch()
first, _, last = options.get("array", "-").partition("-")
code = 0
for task in range(int(first or 0), int(last or 0) + 1):
    variables = {
        "SLURM_JOB_ID": str(job), "SLURM_JOBID": str(job), "SLURM_JOB_NAME": options["job-name"],
        "SLURM_JOB_NODELIST": f"127.0.0.[1-{nodes}]", "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks), "SLURM_TASKS_PER_NODE": f"{tasks // nodes}(x{nodes})",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_CPUS_PER_TASK": options.get("cpus-per-task", ""),
    }
    if first:
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_MIN": first,
            "SLURM_ARRAY_TASK_MAX": last, "SLURM_ARRAY_TASK_COUNT": str(int(last) - int(first) + 1),
            "SLURM_ARRAY_TASK_STEP": "1",
        }
    restarts = 0
    while True:
        if restarts:
            variables["SLURM_RESTART_COUNT"] = str(restarts)
        mode = "ab" if options.get("open-mode") == "append" else "wb"
        with open(home / f"{job}.log", mode) as log:
            environment = {**os.environ, **variables}
            ended = subprocess.run(["bash", script, *arguments], env=environment, stdout=log, stderr=log)
        with open(home / "codes", "a") as codes:
            codes.write(f"{ended.returncode}\n")
        requeued = home / f"requeue-{job}"
        if not (requeued.exists() and "requeue" in options):
            break
        requeued.unlink()
        restarts += 1
    code = max(code, ended.returncode)
sys.exit(code)
"""

SRUN = r"""
import os, sys
from pathlib import Path

from vitkit.cli.main import main
import vitkit.run, torch._dynamo  # once for all tasks, which are forked: importing takes most of the time of a test

home, words, options = Path(os.environ["FAKE_SLURM"]), sys.argv[1:], {}
while words and words[0].startswith("-"):
    name, _, value = words.pop(0).removeprefix("--").partition("=")
    options[name] = value
tasks = int(options.get("ntasks") or os.environ.get("SLURM_NTASKS", 1))
nodes = min(int(os.environ.get("SLURM_NNODES", 1)), tasks)
on_node = tasks // nodes
step = {
    "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_NTASKS": str(tasks),
    "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NODELIST": f"127.0.0.[1-{nodes}]",
    "SLURM_STEP_TASKS_PER_NODE": f"{on_node}(x{nodes})",
}
assert words[0] == "vitkit"
started = []
for rank in range(tasks):
    place = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % on_node, "SLURM_NODEID": rank // on_node}
    if pid := os.fork():
        started.append(pid)
        continue
    os.setsid()
    os.environ.update(step | {name: str(value) for name, value in place.items()})
    sys.argv = words
    main()
    sys.exit()
partial = home / "tasks.new"
partial.write_text(" ".join(map(str, started)))
partial.rename(home / "tasks")
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
(home / "tasks").unlink()
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""

SCONTROL = r"""
import os, sys
from pathlib import Path

assert sys.argv[1] == "requeue"
(Path(os.environ["FAKE_SLURM"]) / f"requeue-{sys.argv[2]}").touch()
"""

VITKIT = "from vitkit.cli.main import main\nmain()\n"


class FakeSlurm:
    """The commands in a folder of their own, and the jobs that were submitted there."""

    def __init__(self, folder: Path):
        self.folder = folder
        commands = folder / "bin"
        commands.mkdir(parents=True)
        for name, source in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL), ("vitkit", VITKIT)):
            (commands / name).write_text(f"#!{sys.executable}\n{source}")
            (commands / name).chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_"))}
        self.environment = {
            **inherited,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "FAKE_SLURM": str(folder),
            "OMP_NUM_THREADS": "1",
        }

    def sbatch(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self.folder / "bin" / "sbatch", *words], env=self.environment)

    def srun(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / "srun", *words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def signal(self, number: signal.Signals, ranks: list[int]) -> None:
        """Signal tasks of the running step, as --signal does."""
        tasks = [int(pid) for pid in (self.folder / "tasks").read_text().split()]
        for rank in ranks:
            os.kill(tasks[rank], number)

    @property
    def codes(self) -> list[int]:
        """The exit codes of all attempts."""
        return [int(line) for line in (self.folder / "codes").read_text().split()]

    @property
    def log(self) -> str:
        """What all jobs printed."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def wait_for(condition: Callable[[], bool], job: subprocess.Popen[bytes], slurm: FakeSlurm) -> None:
    """Wait until a condition holds while a job runs."""
    deadline = time.monotonic() + 120
    while not condition():
        assert job.poll() is None, slurm.log
        assert time.monotonic() < deadline, slurm.log
        time.sleep(0.01)
