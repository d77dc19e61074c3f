"""Write docs/settings.md, the list of all settings of a run, from the fields of vitkit/config/schema.py.

python docs/settings.py            prints it
python docs/settings.py --write    writes docs/settings.md
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
TABLES = {
    "": "The run",
    "optimizer": "Optimizer",
    "schedule": "Learning rate schedule",
    "augment": "Augmentation",
    "masked": "Masked patch prediction",
    "segment": "Segmentation",
}
HEAD = """# Settings

Every setting of `vitkit fit` and `vitkit pretrain`, with the recipes that do not leave it at its default. A recipe is
chosen by the size of the data, or by `--recipe`. Set others on the command line, or in a file:

```sh
vitkit fit photos/ --set augment.mixup=0.2 balance=0.5
vitkit fit photos/ --config settings.toml
vitkit list settings mixup
```

```toml
balance = 0.5

[augment]
mixup = 0.2
```

`python docs/settings.py --write` writes this page.
"""


def page() -> str:
    """Return the page: a table of settings for each table of config.toml."""
    sys.path.insert(0, str(DOCS.parent))
    from vitkit.config.listing import list_settings, recipes_by_value

    settings, lines = list_settings(), [HEAD]
    for table, title in TABLES.items():
        lines += [
            f"## {title}\n",
            "| setting | meaning | default | range | recipes |",
            "| --- | --- | --- | --- | --- |",
        ]
        for setting in settings:
            if setting.name.rpartition(".")[0] == table:
                cells = (setting.meaning, setting.default, setting.range, recipes_by_value(setting))
                lines.append(f"| `{setting.name}` | {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Escape what Markdown would read as the end of a cell or as emphasis."""
    return text.replace("|", "\\|").replace("*", "\\*")


def main() -> None:
    if "--write" in sys.argv:
        (DOCS / "settings.md").write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
