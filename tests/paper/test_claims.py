"""Claims of the paper: settings that exist at every scale, verdicts from planted numbers, and one run end to end."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.runs import Command
from vitkit.cli.main import main
from vitkit.config import toml
from vitkit.config.recipes import RECIPES
from vitkit.config.resolve import resolve
from vitkit.cost import cost
from vitkit.data.sources.fashion import open_fashion
from vitkit.errors import ConfigError
from vitkit.grid.arm import trials_of
from vitkit.grid.runner import Runner
from vitkit.grid.verdict import Verdict
from vitkit.model.variants import configure
from vitkit.paper.catalogue import all_claims, find_claims
from vitkit.paper.claim import Claim
from vitkit.paper.datasets import KNOWN, Datasets
from vitkit.paper.evidence import ClaimLog, describe_time, device_seconds, total_device_seconds
from vitkit.paper.markdown import paper_markdown
from vitkit.paper.page import judged, write_page
from vitkit.paper.run_claim import run_claim
from vitkit.paper.study import SCALES, latest_logs

ROOT = Path(__file__).parents[2]
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
    arms = [*dict.fromkeys(trial.arm for trial in trials_of(setup.arms, [0]))]  # with those that others start from
    assert len({arm.name for arm in arms}) == len(arms)
    for arm in arms:
        toml.check(arm.settings)
        assert arm.settings["recipe"] in RECIPES
        if arm.weights_from is not None:  # they come with the weights
            assert not arm.settings.keys() & {"model", "options", "weights", "channels"}
        if "image" in arm.settings and arm.weights_from is None:
            options = {**arm.settings.get("options", {}), "image": tuple(arm.settings["image"])}
            configure(arm.settings["model"], **options)


@pytest.mark.parametrize("claim", TRAINED)
@pytest.mark.parametrize("scale", SCALES)
def test_no_setting_of_an_arm_is_unused(claim: Claim, scale: Any, datasets: Datasets):
    """`resolve` refuses what would change nothing; here with other data than those of the claim."""
    setup = claim.setup(scale, datasets)
    fashion = open_fashion()
    for trial in trials_of(setup.arms, [0]):
        weights = {} if trial.needs is None else {"weights": str(datasets.folder / "run")}
        config, _, _ = resolve({**trial.settings(), **weights}, open_data=lambda *_, **__: fashion)
        assert config.start == "full"
        assert config.steps or config.epochs


def test_numbers_and_names_are_unique():
    claims = all_claims()
    assert len({claim.number for claim in claims}) == len({claim.name for claim in claims}) == len(claims)
    assert find_claims("positions") == find_claims("6")
    assert [claim.number for claim in find_claims("4,axial,2,9")] == [4, 9, 2]


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


def numbers_in(name: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"[\d,.]*\d", name)]


def test_a_planted_gap_that_closes_with_data_is_found(datasets: Datasets):
    def score(slope: float, at_fewest: float) -> Any:
        """Plant ViT minus ResNet: so much with 5,000 images, and `slope` more with ten times as many."""

        def of_arm(number: int, name: str, seed: int) -> float:
            (images,) = numbers_in(name)
            gap = at_fewest + slope * np.log10(images / 5_000)
            return 40 + (gap if name.startswith("ViT") else 0) + noise(100 * number + seed)

        return of_arm

    assert planted("data_size", score(6, -5), datasets) is Verdict.CONFIRMED
    assert planted("data_size", score(6, 5), datasets) is Verdict.REFUTED  # ahead from the start
    assert planted("data_size", score(-6, -5), datasets) is Verdict.REFUTED
    (claim,) = find_claims("data_size")
    crossing = judged(claim, log_of(claim, "small", datasets, score(6, -5)))[0][-1]
    assert len(crossing.by_seed) == 3
    # zero at log10(n / 5,000) = 5 / 6, and a line through log n is the planted curve itself
    assert crossing.interval.mean == pytest.approx(5_000 * 10 ** (5 / 6), rel=0.1)
    none = judged(claim, log_of(claim, "small", datasets, score(1, -5)))[0][-1]
    assert none.by_seed == {}
    assert "0 of 3 seeds" in none.question


def test_a_planted_need_for_more_data_is_found(datasets: Datasets):
    def score(gain: float) -> Any:
        return lambda number, name, seed: (
            40 + gain * (name.startswith("larger") and numbers_in(name) == [100_000]) + noise(100 * number + seed)
        )

    assert planted("larger_model", score(3), datasets) is Verdict.CONFIRMED
    assert planted("larger_model", score(-3), datasets) is Verdict.REFUTED
    assert planted("larger_model", score(0), datasets) is not Verdict.CONFIRMED


def test_planted_curves_over_compute_are_compared_at_equal_flops(datasets: Datasets):
    """Scores are planted as functions of FLOPs; what differs between models is then the function alone."""
    (claim,) = find_claims("compute")
    setup = claim.setup("small", datasets)
    batch = 256

    def log(vit: float, hybrid: float, hybrid_slope: float) -> ClaimLog:
        logged = log_of(claim, "small", datasets, lambda *key: 0.0)
        for number, (arm, one) in enumerate(zip(setup.arms, logged["arms"], strict=True)):
            options = dict(arm.settings.get("options", {}))
            one["macs"] = cost(configure(arm.settings["model"], image=(64, 64), classes=200, **options)).macs
            one["images"] = arm.settings["steps"] * batch
            decades = np.log10(6.0 * one["macs"] * one["images"]) - 14
            family = {"R": 0.0, "h": hybrid + hybrid_slope * decades}.get(arm.name[0], vit)
            one["scores"] = {
                seed: 30 + 10 * decades + family + noise(100 * number + int(seed)) for seed in one["scores"]
            }
        return logged

    findings, verdict = judged(claim, log(vit=2, hybrid=4, hybrid_slope=-2))
    assert verdict is Verdict.CONFIRMED
    assert findings[0].interval.mean == pytest.approx(2, abs=0.2)
    assert judged(claim, log(vit=-2, hybrid=0, hybrid_slope=-2))[1] is Verdict.REFUTED  # ResNets ahead
    assert judged(claim, log(vit=2, hybrid=4, hybrid_slope=2))[1] is Verdict.REFUTED  # hybrids gain with compute


def test_a_planted_difference_of_optimizers_is_found_at_their_best_rates(datasets: Datasets):
    def score(adam: float) -> Any:
        return lambda number, name, seed: (
            50
            + adam * name.startswith("Adam")
            - 20 * ("rate 0.0003" in name or "rate 0.1" in name)
            + noise(100 * number + seed)
        )

    assert planted("adam_or_sgd", score(1), datasets) is Verdict.CONFIRMED
    assert planted("adam_or_sgd", score(-1), datasets) is Verdict.REFUTED
    (claim,) = find_claims("adam_or_sgd")
    finding = judged(claim, log_of(claim, "small", datasets, score(1)))[0][0]
    assert "(0.001, 0.03)" in finding.question
    assert finding.interval.mean == pytest.approx(1, abs=0.2)


def test_planted_ablations_of_masked_patches_have_verdicts_of_their_own(datasets: Datasets):
    scores = {
        "scratch": 40.0,
        "masked: colour": 44.0,
        "masked: 4x4 colours": 44.0,
        "masked: L2": 45.0,  # against the paper
        "masked: colour, 15 %": 43.0,
        "supervised": 50.0,
    }
    (claim,) = find_claims("masked_patch")
    log = log_of(claim, "small", datasets, lambda number, name, seed: scores[name] + noise(100 * number + seed))
    findings, verdict = judged(claim, log)
    assert verdict is Verdict.CONFIRMED
    assert [finding.verdict for finding in findings[2:5]] == [Verdict.CONFIRMED, Verdict.REFUTED, Verdict.EQUAL]
    worse = {**scores, "masked: colour": 39.0}
    assert planted("masked_patch", lambda n, name, s: worse[name] + noise(100 * n + s), datasets) is Verdict.REFUTED


@pytest.mark.parametrize(
    ("gain", "fall", "verdict"),
    [
        (4, 2, Verdict.CONFIRMED),  # helps where images are few
        (0, 0, Verdict.REFUTED),  # equal throughout
        (4, 0, Verdict.UNDECIDED),  # helps, whatever the number of images
        (-4, -2, Verdict.REFUTED),
    ],
)
def test_planted_positions_answer_the_question_of_small_transfers(
    gain: float, fall: float, verdict: Verdict, datasets: Datasets
):
    def score(number: int, name: str, seed: int) -> float:
        images = numbers_in(name)[1]
        planted_gain = gain - fall * np.log10(images / 5)
        return 30 + planted_gain * name.startswith("2-D") + noise(100 * number + seed)

    assert planted("positions_transfer", score, datasets) is verdict


def test_claims_on_data_and_compute_share_their_runs(datasets: Datasets):
    def settings(*names: str) -> set[str]:
        setups = [find_claims(name)[0].setup("small", datasets) for name in names]
        trials = [trial for setup in setups for trial in trials_of(setup.arms, [0])]
        return {json.dumps(trial.settings(), sort_keys=True) for trial in trials if trial.needs is None}

    assert len(settings("data_size") & settings("compute")) == 2  # Ti/8 and R50x1 on all images
    assert len(settings("larger_model") & settings("compute")) == 2
    assert len(settings("adam_or_sgd") & settings("data_size")) == 1  # R50x1 with Adam
    assert len(settings("masked_patch") & settings("compute")) == 1  # supervised
    assert len(settings("positions_transfer") & settings("data_size")) == 1  # 1-D positions


def test_planted_gains_of_transfer_and_resolution_are_found(datasets: Datasets):
    def transfer(scratch: float, pets: float = 93.0) -> Any:
        def score(number: int, name: str, seed: int) -> float:
            planted_score = scratch if "scratch" in name else pets if "Pets" in name else 85.0
            return planted_score + noise(100 * number + seed)

        return score

    assert planted("transfer", transfer(50), datasets) is Verdict.CONFIRMED
    assert planted("transfer", transfer(70), datasets) is Verdict.REFUTED  # 15 points on CIFAR-100
    assert planted("transfer", transfer(50, pets=90), datasets) is Verdict.REFUTED  # under 91 on Pets
    scores = {"same resolution": 90.0, "interpolated in 2-D": 91.5, "stretched in 1-D": 91.0, "fresh": 89.0}

    def resolution(**changes: float) -> Any:
        return lambda number, name, seed: {**scores, **changes}[name] + noise(100 * number + seed)

    assert planted("resolution", resolution(), datasets) is Verdict.CONFIRMED
    assert planted("resolution", resolution(fresh=92.0), datasets) is Verdict.REFUTED


@pytest.mark.parametrize(("gain", "verdict"), [(1.4, Verdict.CONFIRMED), (0.7, Verdict.REFUTED)])
def test_planted_attention_on_the_object_is_found(gain: float, verdict: Verdict, datasets: Datasets, tmp_path: Path):
    (claim,) = find_claims("rollout")
    log = log_of(claim, "small", datasets, None)
    for seed in log["seeds"]:
        area = np.random.default_rng(seed).uniform(0.1, 0.6, 100)
        values: dict[str, Any] = {"area": [*area.tolist(), 0.0, None], "examples": []}  # no object, nothing at all
        for name in ("mass", "mass_literal", "mass_of_mean", "mass_random"):
            values[name] = [*(gain * area).tolist(), 0.0, None]
        log["measured"][str(seed)] = values
    findings, found = judged(claim, log)
    assert found is verdict
    assert findings[0].interval.mean == pytest.approx(gain)
    assert findings[-1].interval.mean == (100 if gain > 1 else 0)
    write_page(tmp_path, [log])


def test_claims_on_the_public_weights_share_their_runs(datasets: Datasets):
    def settings(name: str, scale: Any) -> set[str]:
        setup = find_claims(name)[0].setup(scale, datasets)
        trials = trials_of(setup.arms, [0])
        return {json.dumps(trial.settings(), sort_keys=True) for trial in trials if trial.needs is None}

    assert len(settings("transfer", "small") & settings("resolution", "small")) == 1  # Pets at 224 px
    assert len(settings("transfer", "smoke") & settings("resolution", "smoke")) == 1  # the toy from scratch


def test_attention_on_objects_is_measured_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["paper", "13", "--out", str(tmp_path), "--device", "cpu", "--json"])
    assert json.loads(capsys.readouterr().out)["claims"].keys() == {"rollout"}
    (log,) = latest_logs(tmp_path)
    assert "synthetic" in log["differs"]
    for numbers in log["measured"].values():
        assert len(numbers["area"]) == len(numbers["mass"]) == len(numbers["mass_literal"]) == 8
        assert all(0 < share < 1 for name in ("area", "mass", "mass_literal") for share in numbers[name])
    assert "data:image/png;base64" in (tmp_path / "paper.html").read_text()


def test_the_list_says_what_every_claim_costs_and_which_tables_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    main(["paper", "--out", str(tmp_path), "--json"])
    content = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in content["claims"]] == [claim.name for claim in all_claims()]
    assert all({*row["cost"]} == {"smoke", "small", "paper"} and row["paper"] for row in content["claims"])
    assert [table["name"] for table in content["tables"]] == ["table1", "table6"]
    main(["paper", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("not run here") == len(all_claims())
    assert "16 of 18 rows" in printed


def test_a_dry_run_names_every_arm_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["paper", "axial", "--out", str(tmp_path / "out"), "--device", "cpu", "--dry-run"])
    printed = capsys.readouterr().out
    for name in ("plain", "axial", "plain, twice as deep"):
        assert f"  {name}: 2 runs of 16 steps, 512 images, about" in printed
    assert not (tmp_path / "out").exists()


KILLS = [
    ("vitkit.grid.trial_runner:start_run", 2),
    ("vitkit.run:log_warnings", 1),  # before the first checkpoint
    ("vitkit.run_score:write_report", 2),
    ("vitkit.paper.run_claim:write_log", 1),
    ("vitkit.paper.study:write_page", 1),
]


@pytest.mark.slow
def test_killed_five_times_a_claim_goes_on_to_the_same_table(tmp_path: Path):
    def command(out: str) -> list[str]:
        return ["paper", "axial", "--out", str(tmp_path / out), "--device", "cpu", "--json"]

    undisturbed = Command(command("undisturbed"), tmp_path / "undisturbed.txt")
    assert undisturbed.wait() == 0, undisturbed.output
    for number, (dies_at, after) in enumerate(KILLS):
        killed = Command(command("killed"), tmp_path / f"{number}.txt", dies_at=dies_at, after=after)
        assert killed.wait() == -9, killed.output
    resumed = Command(command("killed"), tmp_path / "resumed.txt")
    assert resumed.wait() == 0, resumed.output
    (expected,), (found,) = latest_logs(tmp_path / "undisturbed"), latest_logs(tmp_path / "killed")
    assert [arm["scores"] for arm in found["arms"]] == [arm["scores"] for arm in expected["arms"]]
    names = [sorted(run.name for run in (tmp_path / out / "runs").iterdir()) for out in ("undisturbed", "killed")]
    assert names[0] == names[1]


@pytest.mark.parametrize("scale", ["small", "smoke"])
def test_the_page_of_the_documentation_is_that_of_its_logs(scale: Any, datasets: Datasets, tmp_path: Path):
    documentation = runpy.run_path(str(ROOT / "docs/paper.py"))
    written = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    assert written == documentation["page"](), "python docs/paper.py --write updates docs/paper.md"
    (claim,) = find_claims("positions")
    log = log_of(claim, scale, datasets, lambda number, name, seed: 60 + 3 * (name != "none") + noise(seed))
    (tmp_path / "positions.json").write_text(json.dumps(log))
    if scale == "smoke":  # no result
        with pytest.raises(ConfigError, match="says nothing about a claim"):
            documentation["page"](tmp_path)
        return
    assert "**confirmed** at small scale" in documentation["page"](tmp_path)


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


def test_the_time_of_runs_at_the_same_time_is_shared_out():
    log: ClaimLog = {"seconds": 600.0}  # type: ignore[typeddict-item]
    assert (device_seconds(log), describe_time(log)) == (600, "10 min 0 s")
    log["device_seconds"] = 200.0
    assert describe_time(log) == "10 min 0 s of runs, several at a time: about 3 min 20 s"


def test_a_run_that_claims_share_counts_once_in_their_time():
    one: ClaimLog = {"seconds": 70.0, "run_seconds": {"a": 40.0, "b": 30.0}}  # type: ignore[typeddict-item]
    other: ClaimLog = {"seconds": 50.0, "run_seconds": {"b": 30.0, "c": 15.0}}  # type: ignore[typeddict-item]
    measured: ClaimLog = {"seconds": 7.0}  # type: ignore[typeddict-item]
    assert total_device_seconds([one, other, measured]) == pytest.approx(40 + 30 + 15 + 5 + 7)


def test_a_claim_that_starts_from_its_own_pretraining_runs_end_to_end(tmp_path: Path):
    """One seed of masked patches: pre-training without labels or scores, then fine-tuning, log, verdict and page."""
    (claim,) = find_claims("masked_patch")
    one_seed = replace(claim, setup=lambda *scale: replace(claim.setup(*scale), seeds=(0,)))
    ran: list[bool] = []

    def run() -> ClaimLog:
        ran.clear()
        return run_claim(
            one_seed,
            "smoke",
            Runner(tmp_path, ["cpu"]),
            Datasets(tmp_path),
            command="vitkit paper masked_patch",
            versions={},
            report=lambda trial, outcome, now: ran.append(now),
        )

    log = run()
    assert ran == [True] * 11  # scratch, and five times pre-training and fine-tuning
    arms = {arm["name"]: arm for arm in log["arms"]}
    for name, arm in arms.items():
        without_labels = name.startswith("masked") and name.endswith("pre-training")
        assert (arm["scores"] == {}) == without_labels
        assert arm["diverged"] == []
        assert arm["images"] > 0
        assert arm["macs"] > 0
    assert arms["masked: L2"]["settings"]["weights"] == "those of masked: L2: pre-training"
    assert judged(claim, log)[1] is Verdict.UNDECIDED  # one seed decides nothing
    page = write_page(tmp_path, [log]).read_text()
    assert "ablation: colour over L2" in page
    again = run()
    assert ran == [False] * 11
    assert again["arms"] == log["arms"]


@pytest.mark.slow
def test_all_claims_run_at_smoke_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["paper", "all", "--out", str(tmp_path), "--device", "cpu", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["claims"].keys() == {claim.name for claim in all_claims()}
