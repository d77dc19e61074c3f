"""`vitkit cost` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from vitkit.cli.main import main
from vitkit.cost import cost
from vitkit.model.variants import configure


def test_costs_need_no_torch():
    script = "import sys; from vitkit.cli.main import main; main(['cost', 'B/16']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode == 0


def test_costs_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]):
    main(["cost", "B/16", "R50x1", "--images", "303000000", "--epochs", "7", "--batch", "256"])
    table = capsys.readouterr().out
    assert "86,567,656" in table
    assert "17.56" in table
    assert "223.5" in table
    assert max(map(len, table.splitlines())) <= 80


def test_costs_are_printed_as_json(capsys: pytest.CaptureFixture[str]):
    main(["cost", "B/16", "--image", "224", "320", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["image"] == [224, 320]
    assert content["models"][0]["tokens"] == 14 * 20 + 1
    assert "exaflops" not in content["models"][0]


def test_options_shapes_and_sizes_are_counted_together(capsys: pytest.CaptureFixture[str]):
    models = ["Ti/8", "Ti/8,axial=true,pool=gap", "Ti/8,depth=24", "R50x1"]
    main(["cost", *models, "--image", "64", "--image", "96", "128", "--json"])
    content = json.loads(capsys.readouterr().out)
    assert content["image"] is None
    rows = content["models"]
    assert [(row["model"], row["image"]) for row in rows] == [
        (model, size) for model in models for size in ([64, 64], [96, 128])
    ]
    by_model = {row["model"]: row for row in rows if row["image"] == [64, 64]}
    plain = cost(configure("Ti/8", image=64))
    axial = cost(configure("Ti/8", image=64, axial=True, pool="gap"))
    assert by_model["Ti/8"]["macs"] == plain.macs
    assert by_model["Ti/8,axial=true,pool=gap"]["macs"] == axial.macs
    assert axial.macs / 1e9 == pytest.approx(0.687, abs=5e-4)  # known of this shape
    assert by_model["Ti/8,depth=24"]["parameters"] - plain.parameters == 12 * (12 * 192**2 + 13 * 192)
    assert by_model["R50x1"]["padding_macs"] > 0


def test_set_is_that_of_fit_and_for_all_models(capsys: pytest.CaptureFixture[str]):
    words = ["--set", "options.positions=relative", "options.width=96", "--set", "channels=1", "options.heads=4"]
    main(["cost", "Ti/8", "S/8,width=192", "--image", "64", *words, "--json"])
    content = json.loads(capsys.readouterr().out)
    first, second = content["models"]
    assert content["set"] == [word for word in words if word != "--set"]
    options = {"image": 64, "positions": "relative", "heads": 4, "channels": 1}
    assert first["parameters"] == cost(configure("Ti/8", width=96, **options)).parameters
    assert second["parameters"] == cost(configure("S/8", width=192, **options)).parameters  # its own wins


def test_several_sizes_are_printed_without_cutting_a_cell(capsys: pytest.CaptureFixture[str]):
    main(["cost", "Ti/8,axial=true,pool=gap", "R152x2", "--image", "64", "--image", "96", "128", "--memory", "16"])
    text = capsys.readouterr().out
    assert "…" not in text
    assert "96 x 128" in text
    estimate = cost(configure("R152x2", image=64)).largest_batch(16 * 2**30, bytes_per_number=2)
    assert f"{estimate:,}" in text


def test_table_6_is_printed_beside_ours(capsys: pytest.CaptureFixture[str]):
    main(["cost", "--table6"])
    text = capsys.readouterr().out
    rows = {tuple(line.split()[:2]): line.split() for line in text.splitlines()}
    assert rows["R152x2", "14"] == ["R152x2", "14", "1,126", "1,116.8", "0.992", "1,166.1", "1.036"]
    assert rows["L/16", "7"][2:5] == ["783", "783.3", "1.000"]
    assert rows["R50+L/16*", "7"][2:5] == ["859", "832.5", "0.969"]
    assert "* R50+L/16: the table's own row of 14 epochs, 1668, is twice 834" in text
    main(["cost", "--table6", "R50x1", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["table6"]
    assert row["ratio"] == pytest.approx(1.0049, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Ti/8", "--set", "axial=true"], "there is no setting axial; did you mean options.axial?"),
        (["Ti/8", "--set", "lr=1"], "lr is a setting of training, not of the model"),
        (["Ti/8", "--set", "options.dept=3"], "Ti/8 has no option 'dept'; did you mean depth"),
        (["Ti/8,axial=true"], "a class token is in neither"),
        (["Ti/8,axial"], "a setting is KEY=VALUE"),
        (["Ti/8,image=64"], "the image size has an option of its own"),
        (["R50x1", "--set", "options.depth=3"], "R50x1, a ResNet, has no option 'depth'"),
        (["Ti/8", "--memory", "0"], "--memory 0"),
        (["--table6", "--images", "9"], "--table6 is the paper's"),
        (["--table6", "Ti/8"], "Table 6 has no Ti/8"),
    ],
)
def test_a_mistake_in_the_options_of_a_model_is_a_message(words: list[str], message: str, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["cost", *words])
    assert message in capsys.readouterr().err
