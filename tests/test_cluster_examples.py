"""The examples for clusters: Kubernetes' files are parsed and their commands run; Slurm's scripts are valid shell.

tests/train/test_slurm.py runs the scripts that train.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.data.sample_images import encode, scene
from tests.fake_slurm import FakeSlurm
from tests.train.runs import TOY, Command, command_line
from vitkit.cli.main import main, verb_function
from vitkit.cli.other_tools import option_names

EXAMPLES = Path(__file__).parents[1] / "examples" / "cluster"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
VARIABLE = re.compile(r"\$\((\w+)\)")  # as Kubernetes replaces them in `command` and `args`
SHARDS = "shard" in option_names(verb_function("predict"))[0]


def job_of(manifest: Path) -> dict[str, Any]:
    (job,) = yaml.safe_load_all(manifest.read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    return job


def container_of(manifest: Path) -> dict[str, Any]:
    (container,) = job_of(manifest)["spec"]["template"]["spec"]["containers"]
    return container


def words_of(manifest: Path, environment: dict[str, str], places: dict[str, str]) -> list[str]:
    """Return the command of the container as Kubernetes starts it, with our folders in place of its volumes."""
    container = container_of(manifest)
    words = [
        VARIABLE.sub(lambda match: environment[match[1]], word) for word in container["command"] + container["args"]
    ]
    for mounted, folder in places.items():
        words = [re.sub(rf"^{mounted}(?=/|$)", folder, word) for word in words]
    return words


def test_the_readme_lists_every_example():
    readme = (EXAMPLES / "README.md").read_text()
    assert {path.name for path in [*SCRIPTS, *MANIFESTS]} <= set(re.findall(r"\]\(([\w.-]+)\)", readme))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_shell_and_may_be_run(script: Path):
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)
    directives = re.findall(r"^#SBATCH --([\w-]+)", script.read_text(), re.MULTILINE)
    assert {"job-name", "time", "output", "cpus-per-task"} <= set(directives)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_every_mounted_volume_exists(manifest: Path):
    pod = job_of(manifest)["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container_of(manifest)["volumeMounts"]} == volumes


def test_a_pod_that_replaces_another_continues_its_run(tmp_path: Path):
    """The command of the file, twice: the first process is killed, the second starts with the same words."""
    manifest = EXAMPLES / "kubernetes-train.yaml"
    places = {"/data/photos": "fashion", "/runs": str(tmp_path)}
    program, *words = words_of(manifest, {}, places)
    assert program == "vitkit"
    out = words[words.index("--out") + 1]
    small = {**TOY, "steps": 6, "subset": 0.05, "duplicates": "ignore"}
    words += command_line(Path(out), **small)[4:]
    del words[words.index("--model") : words.index("--model") + 2]
    first = Command(words, tmp_path / "log", dies_at="vitkit.train.checkpoint:keep_only", after=1)
    assert first.wait() < 0, first.output
    second = Command(words, tmp_path / "log")
    assert second.wait() == 0, second.output
    assert f"continued {out}: the same command again" in second.output
    assert (Path(out) / "report.html").is_file()
    rules = job_of(manifest)["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [2, 3]  # docs/command-line.md: what no further pod would mend


def test_the_index_of_a_pod_is_its_shard():
    manifest = EXAMPLES / "kubernetes-predict.yaml"
    completions = job_of(manifest)["spec"]["completions"]
    words = [words_of(manifest, {"JOB_COMPLETION_INDEX": str(index)}, {}) for index in range(completions)]
    assert [each[each.index("--shard") + 1] for each in words] == [
        f"{index}/{completions}" for index in range(completions)
    ]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(20):
        (folder / f"{index:02d}.png").write_bytes(encode(np.roll(scene(32, 32), index, axis=1), "PNG"))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not SHARDS, reason="predict has no --shard here")
def test_the_tasks_of_an_array_predict_each_image_once(images: Path, tmp_path: Path):
    slurm, out = FakeSlurm(tmp_path / "slurm"), tmp_path / "answers.csv"
    arguments = ["ti16", str(images), "--out", str(out), "--device", "cpu"]
    job = slurm.sbatch("--array=0-1", str(EXAMPLES / "slurm-array-predict.sh"), *arguments)
    assert job.wait(300) == 0, slurm.log
    main(["predict", *arguments])
    rows = out.read_text().splitlines()[1:]
    assert sorted(Path(row.split(",")[0]).name for row in rows) == sorted(path.name for path in images.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not SHARDS, reason="predict has no --shard here")
def test_the_pods_of_an_indexed_job_predict_each_image_once(images: Path, tmp_path: Path):
    places = {"/runs/photos": "ti16", "/data/images": str(images), "/runs": str(tmp_path)}
    manifest = EXAMPLES / "kubernetes-predict.yaml"
    for index in range(job_of(manifest)["spec"]["completions"]):
        program, *words = words_of(manifest, {"JOB_COMPLETION_INDEX": str(index)}, places)
        assert program == "vitkit"
        subprocess.run([sys.executable, "-m", "vitkit", *words, "--device", "cpu"], check=True, timeout=300)
    shard = words.index("--shard")
    main([*words[:shard], *words[shard + 2 :], "--device", "cpu"])
    rows = (tmp_path / "answers.csv").read_text().splitlines()[1:]
    assert sorted(Path(row.split(",")[0]).name for row in rows) == sorted(path.name for path in images.iterdir())
