"""The experiments that `vitkit paper` knows, with the paper's figures; this file imports nothing heavy."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    meaning: str
    paper: str  # its figures, with their table
    command: str


EXPERIMENTS = (
    Experiment(
        name="vtab",
        meaning="fine-tune on 1,000 examples of each task in a folder; means over all tasks and over their groups",
        paper="77.63 (H/14, JFT), 76.28 (L/16, JFT), 72.72 (L/16, ImageNet-21k) on 19 tasks: Table 2",
        command="vitkit paper vtab tasks/ --weights RUN",
    ),
)
