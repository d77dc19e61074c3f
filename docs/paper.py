"""Write docs/paper.md, the paper's claims with our verdicts, from the logs of claims in docs/paper/.

python docs/paper.py            prints it
python docs/paper.py --write    writes docs/paper.md

A log is a file of runs/paper/claims/, copied as it is. Those of the smoke scale are refused: they are no results.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from vitkit.errors import ConfigError  # noqa: E402
from vitkit.paper.evidence import ClaimLog, read_log  # noqa: E402
from vitkit.paper.markdown import paper_markdown  # noqa: E402


def page(folder: Path = DOCS / "paper") -> str:
    """Return the page of the logs in a folder."""
    return paper_markdown(published_logs(folder))


def published_logs(folder: Path) -> list[ClaimLog]:
    """Return the logs of a folder, one for each claim."""
    logs: dict[str, ClaimLog] = {}
    for path in sorted(folder.glob("*.json")):
        log = read_log(path, path.stem.rsplit("-", 1)[0])
        if log["scale"] == "smoke":
            raise ConfigError(f"{path} is of the smoke scale, which says nothing about a claim", try_="remove it")
        if log["claim"] in logs:
            raise ConfigError(f"{path} is a second log of the claim {log['claim']}", try_="keep the larger scale")
        logs[log["claim"]] = log
    return [*logs.values()]


def main() -> None:
    if "--write" in sys.argv:
        (DOCS / "paper.md").write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
