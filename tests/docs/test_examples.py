"""Every code block of the README, the docs and the help runs; what a test cannot run is listed with the reason."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.docs import examples
from tests.docs.stand_ins import NO_WARMUP, SMALL, SMALL_MODEL, make_template, prepare, replace_option, smaller
from vitkit.cli.main import main, verb_function
from vitkit.config import toml
from vitkit.grid.grid_file import parse_grid
from vitkit.paper.vtab_tasks import find_tasks

# Commands that no test of this module runs, by how they begin; those of vitkit are still parsed by its own parser.
NOT_RUN = {
    "pip install": "it needs the network; tests/test_packaging.py builds and installs the package",
    "pip install pre-commit": "it needs the network",
    "make ": "it would make an environment and run this suite; tests/test_packaging.py checks the targets",
    ".venv/bin/python -m pytest": "it would run this suite",
    "torchrun --nproc-per-node=8": "it needs eight processes; tests/train/test_distributed.py starts two",
    "srun ": "it needs Slurm; tests/train/test_slurm.py runs steps of two tasks",
    "sbatch ": "it needs Slurm; tests/train/test_slurm.py submits the script",
    "mpirun ": "it needs Open MPI; tests/test_launcher.py sets its variables",
    "vitkit demo": "it takes a minute and a half; test_the_demo_runs, which is slow, runs it",
    "vitkit evaluate hf:": "it needs the network and ImageNet",
    "vitkit grid examples/": "it needs the network and minutes of a GPU; tests/grid/test_related.py checks the arms",
    "vitkit grid docs/related/sets.toml": "it takes minutes; tests/grid/test_related.py builds the models of its arms",
    "python benchmarks/": "it measures time, for minutes",
    "vitkit convert hf:": "it needs the network; the same verb converts a local file",
    "vitkit serve": "it runs until it is stopped; test_the_server_of_the_examples_answers starts each",
    "vitkit predict runs/photos photos/ --engine ray": "it starts Ray; tests/predict/test_ray.py does it once",
    "vitkit embed runs/photos photos/ --engine ray": "it starts Ray; a slow test of test_ray.py does it",
    "vitkit evaluate runs/photos photos/ --engine ray": "it starts Ray; tests/predict/test_ray.py does it once",
    "curl ": "it needs that server; test_the_server_of_the_examples_answers sends it",
}
# Python that is compiled and not run, by what is in it.
PYTHON_NOT_RUN = {
    "ray.data.from_items(": "it starts Ray; tests/predict/test_ray.py runs such a pipeline",
    "httpx.post(": "it needs a server; tests/serve/test_masks.py reads masks in the same way",
    "CLIPModel.from_pretrained(": "it needs the network; tests/weights/test_zero_shot.py does it with random weights",
}
SLOW = (  # another one of the verb runs in the default suite
    "find new -name '*.jpg' -mtime -1 | vitkit predict runs/photos - --out",
    "vitkit bench",
    "vitkit export runs/pets --to onnx",
    "vitkit fit hf:cifar10 --recipe two_by_two --set",
    "vitkit fit pets --weights",
    "vitkit fit photos/ --out runs/photos --resume",
    "vitkit fit photos/ --model BoT50",
    "vitkit fit photos/ --model R50x1 --weights none",
    "vitkit inspect runs/pets",
    "vitkit inspect ViT-B_16.npz",
    "vitkit probe runs/pre photos/ --method linear",
    "vitkit probe ViT-B_16.npz",
    "vitkit paper positions --scale smoke",
)
WRITE = (
    "check",
    "fit",
    "pretrain",
    "resume",
    "inspect",
    "export",
    "shard",
    "convert",
    "embed",
)  # verbs that leave a new file
COMMANDS = examples.commands()
PAGES_WITH_PYTHON = sorted({block.page for block in examples.all_blocks() if block.language == "python"})
REQUESTS = [command for command in COMMANDS if command.startswith("curl ")]
STARTED = ("vitkit serve runs/photos", "vitkit serve runs/streets")  # by default; the others with --slow
SERVERS = [command for command in COMMANDS if command.startswith("vitkit serve")]
# commands with a URL need a store; tests/storage/test_object_store.py runs such commands on a local S3 server
RUN = [command for command in COMMANDS if not command.startswith(tuple(NOT_RUN)) and "://" not in command]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def sandbox(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the stand-ins, which is the current directory."""
    shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "here"


def test_every_command_is_run_or_listed():
    assert len(RUN) >= 30
    known = ("vitkit ", "find ", *NOT_RUN)
    assert [command for command in COMMANDS if not command.startswith(known)] == []
    unused = [start for start in NOT_RUN if not any(command.startswith(start) for command in COMMANDS)]
    assert unused in ([], ["pip install pre-commit"])


@pytest.mark.parametrize("command", [c for c in COMMANDS | examples.inline_commands() if examples.vitkit_words(c)])
def test_every_command_is_parsed_as_it_stands(command: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    def recording(verb: str) -> Callable[..., None]:
        @functools.wraps(verb_function(verb))  # tyro sees the verb's own options
        def record(*arguments: Any, **named: Any) -> None:
            calls.append((arguments, named))

        return record

    monkeypatch.setattr("vitkit.cli.main.verb_function", recording)
    main(examples.vitkit_words(command))
    assert len(calls) == 1


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, marks=[pytest.mark.slow] * command.startswith(SLOW), id=command) for command in RUN],
)
def test_every_command_runs(command: str, sandbox: Path):
    if "|" in command:
        run_in_shell(command)
        return
    words = smaller(examples.vitkit_words(command) or [])
    prepare(words)
    before = {*sandbox.rglob("*")}
    assert exit_code(words) in ((0, 1) if words[0] == "check" else (0,))  # check may find something in a few images
    if words[0] in WRITE:
        assert {*sandbox.rglob("*")} - before


def exit_code(words: list[str]) -> int | str | None:
    try:
        main(words)
    except SystemExit as stopped:
        return stopped.code
    return 0


def run_in_shell(command: str) -> None:
    python = shlex.quote(sys.executable)
    script = f'set -euo pipefail; vitkit() {{ {python} -m vitkit "$@"; }}; {command}'
    root = str(examples.ROOT)
    result = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] * (c not in STARTED), id=c) for c in SERVERS]
)
def test_the_server_of_the_examples_answers(command: str, sandbox: Path):
    words = examples.vitkit_words(command) or []
    pytest.importorskip("fastapi")
    from tests.serve.servers import ServerProcess

    with ServerProcess(*replace_option(words[1:], "port", None)) as server:
        for request in (request for request in REQUESTS if words[1:] == [server_of(request)]):
            sent = re.sub(r"http://127\.0\.0\.1:\d+", server.address.rstrip("/"), request)
            answer = subprocess.run(["bash", "-c", sent], capture_output=True, text=True, timeout=300, check=True)
            if " -o " in request:
                assert Image.open(request.split()[-1]).mode == "P"
                continue
            assert json.loads(answer.stdout)
            assert ("sky" if "street" in request else "cat") in answer.stdout


def server_of(request: str) -> str:
    """Return the run whose server a request of the documentation is for, as its image says."""
    return "runs/streets" if "street.jpg" in request else "runs/photos"


@pytest.mark.slow
def test_the_demo_runs(sandbox: Path):
    main(["demo"])
    assert (sandbox / "runs/demo/classifier/report.html").is_file()


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON)
def test_the_python_of_each_page_runs(page: str, sandbox: Path, monkeypatch: pytest.MonkeyPatch):
    """The blocks of a page share their names, as the cells of a notebook do."""
    code = [block for block in examples.all_blocks() if block.page == page and block.language == "python"]
    train_in_seconds(monkeypatch)
    shutil.rmtree("runs/photos")
    namespace: dict[str, Any] = {}
    for block in code:
        compiled = compile(block.text, f"{page}: {block.text.splitlines()[0]}", "exec")
        if not any(text in block.text for text in PYTHON_NOT_RUN):
            exec(compiled, namespace)
        if not Path("runs/photos").exists() and "run" in namespace:
            shutil.copytree(namespace["run"], "runs/photos")  # the page calls it by that name from here on


@pytest.mark.slow
@pytest.mark.parametrize("verb", examples.help_code())
def test_the_code_in_the_help_runs(verb: str, sandbox: Path):
    import torch

    for format in ("onnx", "pt2"):
        vitkit.Run("runs/photos").export(f"model.{format}")
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(examples.help_code()[verb], f"vitkit {verb} --help", "exec"), namespace)
    ours = vitkit.Run("runs/photos").predict("image.jpg")[0].probabilities
    np.testing.assert_allclose(namespace["probabilities"][0], ours, atol=1e-4)


def test_blocks_have_a_language_that_is_tested_or_show_output():
    for block in examples.all_blocks():
        assert block.language in ("sh", "python", "toml", ""), block
        if block.language == "":  # shown output, or a drawing
            assert not re.search(r"^\s*(\$ |vitkit \w+(\s|$)|import |from \w+ import )", block.text, re.MULTILINE), (
                block
            )


def test_the_settings_in_toml_are_those_of_a_run_a_comparison_or_vtab(sandbox: Path):
    for block in examples.all_blocks():
        if block.language != "toml":
            continue
        tables = tomllib.loads(block.text)
        if block.page == "vtab.md":
            (sandbox / "tasks/vtab.toml").write_text(block.text)
            assert {task.name for task in find_tasks(sandbox / "tasks")} >= tables.keys()
        elif "settings" in tables:
            parse_grid(tables, Path(block.page))
        else:
            toml.check(tables)


def train_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `vitkit.fit` train a small model for two steps, whatever an example asks for."""
    fit = vitkit.fit

    def small_fit(data: Any, **settings: Any) -> vitkit.Run:
        chosen = {name: value for name, value in settings.items() if name != "epochs"}
        start = {} if "weights" in settings else SMALL_MODEL
        return fit(data, **{**chosen, **SMALL, **start, **NO_WARMUP})

    monkeypatch.setattr(vitkit, "fit", small_fit, raising=False)
