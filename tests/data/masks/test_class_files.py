"""Files that name classes, in the forms that people have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data.masks.class_files import find_class_file, read_class_file
from vitkit.data.masks.class_table import NamedClass
from vitkit.data.masks.data_yaml import read_data_yaml
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.file_tree import FolderTree

ROAD, SKY = NamedClass("road"), NamedClass("sky")
COLOURED = [NamedClass("road", colour=(128, 64, 128)), NamedClass("night sky", colour=(70, 130, 180))]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("classes.txt", "road\nsky\n", [ROAD, SKY]),
        ("classes.txt", "\ufeffroad\r\n\r\nsky\r\n", [ROAD, SKY]),
        ("labels.txt", "0 road\n5: sky\n", [NamedClass("road", 0), NamedClass("sky", 5)]),
        ("class_dict.csv", "name,r,g,b\nroad,128,64,128\nnight sky, 70, 130, 180\n", COLOURED),
        ("classes.csv", "road;128;64;128\nnight sky;70;130;180\n", COLOURED),
        ("classes.csv", "id,name\n4,road\n2,sky", [NamedClass("road", 4), NamedClass("sky", 2)]),
        ("label_colors.txt", "128 64 128\troad\n70 130 180\t\tnight sky\n", COLOURED),
        ("labelmap.txt", "# label:color_rgb:parts:actions\nroad:128,64,128::\nnight sky:70,130,180::", COLOURED),
        ("classes.json", '["road", "sky"]', [ROAD, SKY]),
        ("classes.json", '{"0": "road", "7": "sky"}', [NamedClass("road", 0), NamedClass("sky", 7)]),
        ("labels.json", '{"road": 0, "sky": 7}', [NamedClass("road", 0), NamedClass("sky", 7)]),
        ("data.yaml", "names:\n  0: road\n  7: sky\n", [NamedClass("road", 0), NamedClass("sky", 7)]),
    ],
)
def test_a_file_of_class_names_is_read(name: str, text: str, expected: list[NamedClass], tmp_path: Path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_class_file(FolderTree(str(tmp_path)), name) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("class_dict.csv", b"name,r,g,b\nroad,1,2", "line 2 of class_dict.csv is not a class"),
        ("class_dict.csv", b"name,r,g,b\nroad,1,2,900", "line 2 of class_dict.csv is not a class: road,1,2,900"),
        ("classes.txt", b"\n\n", "classes.txt names no class"),
        ("classes.txt", b"caf\xe9", "is not text in UTF-8"),
        ("classes.json", b'{"0": ["road"]}', "classes.json is damaged"),
        ("classes.json", b'{"road": "sky"}', 'has "road" where a class number should be'),
        ("classes.json", b"[", "not JSON"),
        ("data.yaml", b"train: x\n", "data.yaml has no names of classes"),
        ("data.yaml", b"names: [a, b\n", "ends inside the list of names"),
        ("data.yaml", b"names: road\n", "line 1 of data.yaml should list the names"),
        ("data.yaml", b"names:\n  road\n", "line 2 of data.yaml is not a class: road"),
        ("data.yaml", b"names\n", "line 1 of data.yaml is not key: value"),
    ],
)
def test_a_file_that_names_no_classes_is_an_error_with_the_line(
    name: str, content: bytes, message: str, tmp_path: Path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_class_file(FolderTree(str(tmp_path)), name)


def test_files_with_colours_and_files_near_the_top_come_first():
    assert find_class_file(["masks/class_dict.csv", "classes.txt", "notes.txt"]) == "classes.txt"
    assert find_class_file(["classes.txt", "class_dict.csv"]) == "class_dict.csv"
    assert find_class_file(["train.txt"]) is None


names = st.lists(st.text("abc éß'#:,[]{}\"-", min_size=1, max_size=8).map(str.strip).filter(bool), min_size=1)


@given(names, st.sampled_from(["list", "flow", "mapping"]))
def test_data_yaml_is_read_as_yaml_does(tmp_path_factory: pytest.TempPathFactory, some: list[str], form: str):
    content = {"path": "../data", "names": dict(enumerate(some)) if form == "mapping" else some, "nc": len(some)}
    path = tmp_path_factory.mktemp("yolo") / "data.yaml"
    path.write_text(
        yaml.safe_dump(content, default_flow_style=None if form == "flow" else False, allow_unicode=True, width=9999)
    )
    found = read_data_yaml(FolderTree(str(path.parent)), "data.yaml")
    assert list(found.names.values()) == some


def test_comments_and_lists_over_several_lines_are_read(tmp_path: Path):
    text = "# data\npath: ../coco  # root\nnames: ['cat', # furry\n  \"dog\"]\nval: images/val#1\n"
    (tmp_path / "data.yaml").write_text(text)
    found = read_data_yaml(FolderTree(str(tmp_path)), "data.yaml")
    assert found.names == {0: "cat", 1: "dog"}
    assert found.values == {"path": "../coco", "val": "images/val#1"}
