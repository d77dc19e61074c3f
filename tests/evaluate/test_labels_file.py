"""`--labels FILE` holds class names, one on each line, without duplicates."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.errors import ConfigError
from vitkit.evaluate.matching import read_labels

NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)


@given(names=st.lists(NAMES, min_size=1, max_size=20))
def test_names_are_read_if_no_two_are_the_same(names: list[str], tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("labels") / "names.txt"
    path.write_text("\n".join(f" {name} " for name in names) + "\n", encoding="utf-8")
    if len(set(names)) == len(names):
        assert read_labels(path, len(names)) == tuple(names)
    else:
        with pytest.raises(ConfigError, match="more than once"):
            read_labels(path, len(names))


def test_duplicates_are_named_with_their_lines_and_what_to_do(tmp_path: Path):
    path = tmp_path / "imagenet.txt"
    path.write_text("tench\ncrane\nmaillot\nbus\ncrane\nmaillot\nmaillot\n")
    with pytest.raises(ConfigError) as error:
        read_labels(path, 7)
    assert str(error.value).splitlines() == [
        f"{path} names 2 classes more than once.",
        "  found  lines 2 and 5: crane",
        "         lines 3 and 6 and 7: maillot",
        "  try    names that differ, such as crane (bird) and crane (machine)",
    ]
