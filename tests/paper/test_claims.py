"""Claims of the paper: settings that exist at every scale, verdicts from planted numbers, and one run end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitkit.cli.main import main
from vitkit.config import toml
from vitkit.config.recipes import RECIPES
from vitkit.grid.verdict import Verdict
from vitkit.model.variants import configure
from vitkit.paper.catalogue import all_claims, find_claims
from vitkit.paper.claim import Claim
from vitkit.paper.datasets import KNOWN, Datasets
from vitkit.paper.evidence import ClaimLog
from vitkit.paper.markdown import paper_markdown
from vitkit.paper.page import judged, write_page
from vitkit.paper.study import SCALES, latest_logs

CLAIMS = [pytest.param(claim, id=claim.name) for claim in all_claims()]
TRAINED = [pytest.param(claim, id=claim.name) for claim in all_claims() if claim.measure is None]


@pytest.fixture
def datasets(tmp_path: Path) -> Datasets:
    for note in KNOWN.values():
        (tmp_path / "data" / note.names[0]).mkdir(parents=True)
    return Datasets(tmp_path / "data")


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("scale", SCALES)
def test_the_settings_of_every_arm_are_those_of_a_run(claim: Claim, scale: Any, datasets: Datasets):
    setup = claim.setup(scale, datasets)
    assert setup.differs
    assert len({arm.name for arm in setup.arms}) == len(setup.arms)
    for arm in setup.arms:
        toml.check(arm.settings)
        assert arm.settings["recipe"] in RECIPES
        if "image" in arm.settings and arm.weights_from is None:
            options = {**arm.settings.get("options", {}), "image": tuple(arm.settings["image"])}
            configure(arm.settings["model"], **options)


def test_numbers_and_names_are_unique():
    claims = all_claims()
    assert len({claim.number for claim in claims}) == len({claim.name for claim in claims}) == len(claims)
    assert find_claims("positions") == find_claims("6")


def log_of(claim: Claim, scale: Any, datasets: Datasets, score: Any) -> ClaimLog:
    """Return a log with made-up scores: `score` of the number of the arm, its name and the seed."""
    setup = claim.setup(scale, datasets)
    return {
        "claim": claim.name,
        "scale": scale,
        "seeds": list(setup.seeds),
        "differs": setup.differs,
        "arms": [
            {
                "name": arm.name,
                "settings": {},
                "scores": {str(seed): score(number, arm.name, seed) for seed in setup.seeds},
                "diverged": [],
                "seconds": dict.fromkeys(map(str, setup.seeds), 1.0),
                "step_seconds": dict.fromkeys(map(str, setup.seeds), 0.5),
                "images": 100,
                "macs": 10**6 * (number + 1),
                "parameters": 10**4,
            }
            for number, arm in enumerate(setup.arms)
        ],
        "measured": {},
        "seconds": 3.0,
        "device": "cpu",
        "command": f"vitkit paper {claim.name}",
        "date": "2026-01-01T00:00:00+00:00",
        "versions": {},
    }


@pytest.mark.parametrize("claim", TRAINED)
def test_any_scores_give_findings_and_a_page(claim: Claim, datasets: Datasets, tmp_path: Path):
    random = np.random.default_rng(0)
    log = log_of(claim, "small", datasets, lambda *key: float(random.uniform(10, 90)))
    findings, verdict = judged(claim, log)
    assert isinstance(verdict, Verdict)
    assert any(finding.verdict is not None for finding in findings)
    page = write_page(tmp_path, [log]).read_text()
    assert claim.statement.split(",")[0] in page
    assert page == write_page(tmp_path, [log]).read_text()
    assert paper_markdown([log]) == paper_markdown([log])
    for arm in log["arms"]:  # everything diverged
        arm["scores"], arm["diverged"] = {}, list(log["seeds"])
    assert judged(claim, log)[1] is Verdict.UNDECIDED
    write_page(tmp_path, [log])


def noise(seed: int) -> float:
    return float(np.random.default_rng(seed).normal(0, 0.05))


def planted(name: str, score: Any, datasets: Datasets) -> Verdict:
    (claim,) = find_claims(name)
    return judged(claim, log_of(claim, "small", datasets, score))[1]


def test_planted_differences_are_found(datasets: Datasets):
    def position(number: int, name: str, seed: int) -> float:
        return (60 if name == "none" else 63) + noise(100 * number + seed)

    assert planted("positions", position, datasets) is Verdict.CONFIRMED
    assert planted("positions", lambda n, name, s: -position(n, name, s), datasets) is Verdict.REFUTED
    axial = {"plain": 50.0, "axial": 52.0, "plain, twice as deep": 53.0}
    assert planted("axial", lambda n, name, s: axial[name] + noise(10 * n + s), datasets) is Verdict.CONFIRMED
    token = planted(
        "class_token",
        lambda n, name, s: (
            60 - 3 * abs(np.log10(float(name.split()[-1]) / (1e-3 if "token" in name else 3e-4))) + noise(10 * n + s)
        ),
        datasets,
    )
    assert token is Verdict.CONFIRMED


def test_a_missing_data_set_is_named_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["paper", "axial", "--scale", "small", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "Tiny-ImageNet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["nonsense"], ["axial", "--steps", "3"], ["axial", "folder"], ["vtab", "x", "--jobs", "2"]]
)
def test_a_mistake_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["paper", *words])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("vitkit paper")


def test_a_claim_runs_end_to_end_and_its_runs_are_there_the_next_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["paper", "axial", "--out", str(tmp_path), "--device", "cpu", "--json"]
    main(command)
    captured = capsys.readouterr()
    first = json.loads(captured.out)
    assert captured.err.count("already run") == 0
    assert Path(first["page"]).is_file()
    assert len(list((tmp_path / "runs").iterdir())) == 6
    main(command)
    captured = capsys.readouterr()
    assert json.loads(captured.out)["claims"] == first["claims"]
    assert captured.err.count("already run") == 6
    (log,) = latest_logs(tmp_path)
    assert {arm["name"] for arm in log["arms"]} == {"plain", "axial", "plain, twice as deep"}
    main(["paper", "--out", str(tmp_path)])
    assert f"{first['claims']['axial']['verdict']} at smoke scale" in capsys.readouterr().out


@pytest.mark.slow
def test_all_claims_run_at_smoke_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["paper", "all", "--out", str(tmp_path), "--device", "cpu", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["claims"].keys() == {claim.name for claim in all_claims()}
