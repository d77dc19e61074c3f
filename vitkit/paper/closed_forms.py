"""Tables of the paper that need no training: parameters of Table 1 and compute of Table 6, beside our closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.cost import cost
from vitkit.model.variants import configure
from vitkit.table6 import compare

TOLERANCE = 0.01  # by which a number may differ from the printed one
TABLE_1 = {"B/16": 86, "L/16": 307, "H/14": 632}  # million parameters, as printed
REMARKS_1 = {"L/16": "the table names no patch size; L/32 has 306.5 million, which is its 307"}


@dataclass(frozen=True)
class TableRow:
    name: str
    paper: float
    ours: float
    remark: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.paper

    @property
    def agrees(self) -> bool:
        return abs(self.ratio - 1) <= TOLERANCE


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """A table of the paper whose numbers follow from the models' shapes."""

    name: str
    statement: str
    source: str
    unit: str
    command: str
    rows: Sequence[TableRow]

    @property
    def verdict(self) -> str:
        """The result in words: how many of the rows agree."""
        agreeing = sum(row.agrees for row in self.rows)
        return f"{agreeing} of {len(self.rows)} rows within {100 * TOLERANCE:g} %"


def closed_forms() -> list[ClosedForm]:
    return [_table_1(), _table_6()]


def _table_1() -> ClosedForm:
    rows = [
        TableRow(name, paper, cost(configure(name)).parameters / 1e6, REMARKS_1.get(name, ""))
        for name, paper in TABLE_1.items()
    ]
    return ClosedForm(
        name="table1",
        statement="The parameters of ViT-Base, -Large and -Huge, with 1,000 classes.",
        source="Table 1",
        unit="million parameters",
        command="vitkit cost B/16 L/16 H/14 L/32",
        rows=rows,
    )


def _table_6() -> ClosedForm:
    rows = [TableRow(f"{row.model}, {row.epochs} epochs", row.paper, row.exaflops, row.remark) for row in compare()]
    return ClosedForm(
        name="table6",
        statement="The compute of pre-training on JFT-300M.",
        source="Table 6",
        unit="exaFLOPs",
        command="vitkit cost --table6",
        rows=rows,
    )
