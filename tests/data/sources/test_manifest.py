from __future__ import annotations

import csv
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sources.sample_sources import png, write_files
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data

names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=12)
labels = names.map(str.strip).filter(bool)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path, {f"{name}.png": png(seed) for seed, name in enumerate("abc")})


def listed(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding, newline="")
    return path


def error_of(path: Path, **options: str) -> str:
    with pytest.raises(DataError) as error:
        open_data(path, **options)
    return str(error.value)


@given(
    rows=st.lists(
        st.tuples(names, labels, st.sampled_from(["train", "Valid", "TEST"])),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[0],
    ),
    delimiter=st.sampled_from(",;\t"),
    lines=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_any_paths_and_labels_survive_csv(tmp_path_factory, rows, delimiter: str, lines: str, encoding: str):
    root = tmp_path_factory.mktemp("csv")
    rows = [(f"p/{name}.png", label, split) for name, label, split in rows]
    write_files(root, {path: png(seed) for seed, (path, _, _) in enumerate(rows)})
    with (root / "list.csv").open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator=lines)
        writer.writerows([("Path", "Label", "split", "remark"), *((*row, "") for row in rows)])
    check(root / "list.csv", rows)


@given(
    rows=st.lists(
        st.tuples(names, labels | st.integers(-5, 5), st.sampled_from(["training", "dev", "Test"])),
        min_size=1,
        max_size=8,
        unique_by=lambda row: row[0],
    ),
    ascii=st.booleans(),
)
def test_any_paths_and_labels_survive_jsonl(tmp_path_factory, rows, ascii: bool):
    root = tmp_path_factory.mktemp("jsonl")
    rows = [(f"p/{name}.png", label, split) for name, label, split in rows]
    write_files(root, {path: png(seed) for seed, (path, _, _) in enumerate(rows)})
    (root / "list.jsonl").write_text(
        "\n".join(
            json.dumps({"file_name": path, "category": label, "split": split, "other": [1]}, ensure_ascii=ascii)
            for path, label, split in rows
        ),
        encoding="utf-8",
    )
    check(root / "list.jsonl", rows)


def check(manifest: Path, rows: list[tuple[str, str | int, str]]) -> None:
    data = open_data(manifest)
    assert data.kind == "manifest"
    rows = [(path, unicodedata.normalize("NFC", str(label)), split) for path, label, split in rows]
    assert set(data.classes) == {label for _, label, _ in rows}
    content = {path: png(seed) for seed, (path, _, _) in enumerate(rows)}
    loaded = {
        (part.keys[index], data.classes[part.labels[index]], split[:2], part.read(index))
        for split, part in data.splits.items()
        for index in range(len(part))
    }
    usual = {"dev": "val", "Valid": "val"}
    assert loaded == {(path, label, usual.get(split, split).lower()[:2], content[path]) for path, label, split in rows}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "image,labels\na.png,red|big\nb.png,\nc.png,big;old\n"),
        ("list.csv", 'image;tags\na.png;"red;big"\nb.png;""\nc.png;big|old\n'),
        (
            "list.jsonl",
            '{"image": "a.png", "labels": ["red", "big"]}\n{"image": "b.png", "labels": []}\n'
            '{"image": "c.png", "labels": ["big", "old"]}\n',
        ),
    ],
)
def test_several_labels_per_row_are_multi_label(name: str, text: str, folder: Path):
    data = open_data(listed(folder / name, text))
    assert (data.multilabel, data.classes) == (True, ("big", "old", "red"))
    assert data.splits["all"].labels.dense().tolist() == [
        [True, False, True],
        [False, False, False],
        [True, True, False],
    ]


def test_an_empty_cell_is_an_unlabelled_image(folder: Path):
    data = open_data(listed(folder / "list.csv", "path,label\na.png,x\nb.png,\nc.png,y\n"))
    assert data.splits["all"].labels.tolist() == [0, -1, 1]
    assert "all has 1 image without a label" in data.notes


def test_a_manifest_without_labels_is_unlabelled(folder: Path):
    data = open_data(listed(folder / "list.csv", "filename\na.png\nb.png\na.png\n"))
    assert (data.classes, data.splits["all"].labels.tolist()) == ((), [-1, -1, -1])
    assert "1 line repeats an earlier path" in data.notes


def test_possible_label_columns_are_noted_with_the_option_to_choose_one(folder: Path):
    path = listed(folder / "list.csv", "filename,breed,split,weight\na.png,Korat,train,4\nb.png,Manx,train,5\n")
    [note] = open_data(path).notes
    assert note.startswith("no label column (label, class, ")
    assert note.endswith("unlabelled; --label COLUMN uses another column: breed, weight")
    named = open_data(path, label="breed")
    assert (named.classes, named.notes) == (("Korat", "Manx"), ())
    [note] = open_data(listed(folder / "list.csv", "filename,split\na.png,train\n")).notes
    assert note.endswith("unlabelled")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "list.csv",
            'path,labels\na.png,"cat, cute"\nb.png,cat|old\n',
            "labels such as 'cat, cute' are one class each; several labels in a cell are separated by | or ;",
        ),
        (
            "list.csv",
            'path,label\na.png,dog\nb.png,"cat, cute"\n',
            "labels such as 'cat, cute' are one class each; several labels in a cell need a column called "
            "labels or tags, separated by | or ;",
        ),
        (
            "list.csv",
            "path,label\na.png,dog\nb.png,cat|cute\n",
            "labels such as 'cat|cute' are one class each; several labels in a cell need a column called "
            "labels or tags, separated by | or ;",
        ),
        ("list.csv", "path,labels\na.png,cat|cute\nb.png,cat;old\n", None),
        ("list.jsonl", '{"path": "a.png", "labels": ["cat, cute", "old"]}\n{"path": "b.png", "labels": []}\n', None),
        ("list.jsonl", '{"path": "a.png", "label": 3}\n{"path": "b.png", "label": "x"}\n', None),
    ],
)
def test_cells_that_may_mean_several_labels_are_noted(name: str, text: str, message: str | None, folder: Path):
    data = open_data(listed(folder / name, text))
    assert data.notes == (() if message is None else (message,))
    if message is not None:
        assert message.split("'")[1] in data.classes


@pytest.mark.parametrize("caption", ["a cat, " + "very " * 100 + "tired", "a,cat" + ",very" * 100 + ",tired"])
def test_a_long_label_is_shortened_in_the_note(caption: str, folder: Path):
    data = open_data(listed(folder / "list.csv", f'path,label\na.png,"{caption}"\nb.png,dog\n'))
    assert caption in data.classes
    [note] = data.notes
    assert note.split("'")[1] == caption[:60] + "…"


def test_paths_are_relative_to_the_manifest_or_absolute(folder: Path, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "x.png").write_bytes(png(7))
    data = open_data(listed(folder / "list.csv", f"path,label\n./a.png,x\n{elsewhere}/x.png,y\n"))
    assert [data.splits["all"].read(index) for index in (0, 1)] == [png(0), png(7)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("list.csv", "", "lists no images"),
        ("list.csv", "path,label\n", "nothing below the header line"),
        ("list.csv", "a.png,x\nb.png,y\n", "a first line that names the columns"),
        ("list.csv", "path,label\na.png,x\nb.png,y,z\n", "line 3: 3 cells under 2 columns"),
        ("list.csv", "path,label\na.png,x\nb.png\n", "line 3: 1 cell under 2 columns"),
        ("list.csv", "path,label\na.png,x\n,y\n", "line 3: no path in the column path"),
        ("list.csv", "path,label,split\na.png,x,train\nb.png,y,holdout\n", "line 3: 'holdout' is not a split"),
        ("list.csv", "path,path\na.png,x\n", "names a column twice"),
        ("list.csv", "path,label,class\na.png,x,y\n", "more than one label column: label, class"),
        ("list.csv", 'path,label\n"a.png"z,x\n', "line 2: not CSV"),
        ("list.jsonl", '{"path": "a.png", "label": "x"}\n{"path": \n', "line 2: not JSON"),
        ("list.jsonl", '["a.png"]\n', "line 1: a JSON list, not an object"),
        ("list.jsonl", '{"path": "a.png", "label": 0.5}\n', "line 1: 0.5 is not a label"),
        ("list.jsonl", '{"path": "a.png", "labels": null}\n', "line 1: None is not a list of labels"),
        ("list.jsonl", '{"path": 3, "label": "x"}\n', "line 1: no path in the column path: 3"),
        ("list.jsonl", "[" * 100_000, "line 1: not JSON"),
    ],
)
def test_errors_name_the_line(name: str, text: str, message: str, folder: Path):
    assert message in error_of(listed(folder / name, text))


def test_text_that_is_not_utf8_is_an_error_with_its_line(folder: Path):
    (folder / "list.csv").write_bytes("path,label\na.png,x\nb.png,café\n".encode("latin-1"))
    assert "line 3: not UTF-8 text" in error_of(folder / "list.csv")


def test_missing_files_are_listed_with_their_lines(folder: Path):
    rows = "".join(f"no{number}.png,x\n" for number in range(9))
    message = error_of(listed(folder / "list.csv", "path,label\na.png,x\n" + rows))
    assert "9 of 10 images are not where the manifest says" in message
    assert "line 3: no0.png" in message
    assert "and 4 more" in message
    assert "write / instead of" in error_of(listed(folder / "list.csv", "path,label\nx\\a.png,x\n"))


def test_the_label_column_can_be_named(folder: Path):
    path = listed(folder / "list.csv", "path,label,class\na.png,1,cat\nb.png,2,dog\n")
    assert open_data(path, label="class").classes == ("cat", "dog")
    assert "did you mean class?" in error_of(path, label="clas")
    assert "has no columns" in error_of(folder, label="class")


ONE_HOT = "image_id,healthy,multiple_diseases,rust,scab\n"  # the header of Plant Pathology 2020


def test_columns_of_zero_and_one_are_classes_as_scikit_learn_encodes_them(folder: Path):
    """A column for each class, as OneHotEncoder and pandas.get_dummies write it."""
    from sklearn.preprocessing import LabelBinarizer

    truth = ["scab", "rust", "healthy", "scab"]
    binarizer = LabelBinarizer().fit(["healthy", "multiple_diseases", "rust", "scab"])
    rows = [
        f"{image},{','.join(map(str, row))}"
        for image, row in zip(("a", "b", "c", "a"), binarizer.transform(truth).tolist(), strict=True)
    ]
    data = open_data(listed(folder / "train.csv", ONE_HOT + "\n".join(rows)))
    assert not data.multilabel
    assert [data.classes[label] for label in data.splits["all"].labels] == truth
    assert data.splits["all"].read(1) == png(1)  # b is b.png
    assert "4 columns of 0 and 1 are the classes (healthy, multiple_diseases, rust, scab), one class per image" in (
        data.notes
    )


@pytest.mark.parametrize("rows", ["a.png,1,1\nb.png,0,1\nc.png,0,0\n", "a.png,1.0,1.0\nb.png,0.0,1.0\nc.png,0.0,0.0\n"])
def test_columns_of_zero_and_one_with_several_ones_in_a_row_are_multi_label(rows: str, folder: Path):
    data = open_data(listed(folder / "list.csv", "image,day,indoors\n" + rows))
    assert data.multilabel
    assert data.splits["all"].labels.dense().tolist() == [[True, True], [False, True], [False, False]]


def test_columns_beside_the_classes_are_named_as_not_read(folder: Path):
    text = "StudyUID,image,split,MEL,NV,PatientID\nx7,a,train,1,0,p1\nx8,b,train,0,1,p2\n"
    data = open_data(listed(folder / "list.csv", text))
    assert (data.classes, list(data.splits)) == (("MEL", "NV"), ["train"])
    assert any(note.endswith("one class per image; not read: StudyUID, PatientID") for note in data.notes)
    assert open_data(folder / "list.csv", label="PatientID").classes == ("p1", "p2")


def test_one_column_of_zero_and_one_is_not_taken_for_the_classes(folder: Path):
    data = open_data(listed(folder / "list.csv", "image,treated\na.png,1\nb.png,0\n"))
    assert data.classes == ()
    assert "--label COLUMN uses another column: treated" in data.notes[0]


@pytest.mark.parametrize("gap", ["", "-1", "-1.0", "nan"])
def test_columns_of_zero_and_one_with_gaps_are_an_error(gap: str, folder: Path):
    message = error_of(listed(folder / "list.csv", f"image,edema,fracture\na.png,1,0\nb.png,{gap},1\n"))
    assert "columns of 0 and 1 with other values" in message
    assert f"edema, line 3: {gap or 'an empty cell'}" in message


def test_a_name_without_an_extension_is_found_next_to_the_manifest_or_one_folder_below(folder: Path):
    write_files(folder / "images", {"d.png": png(3)})
    data = open_data(listed(folder / "list.csv", "id,breed\na,x\nd,y\nimages/d,z\n"), label="breed")
    assert list(data.splits["all"].keys) == ["a.png", "images/d.png", "images/d.png"]
    assert "3 names without an extension found as files such as a.png" in data.notes


def test_a_name_that_two_files_have_is_an_error(folder: Path):
    write_files(folder / "other", {"a.png": png(3)})
    message = error_of(listed(folder / "list.csv", "image,label\na,x\nb,y\n"))
    assert "line 2: a could be any of 2 files" in message
    assert "other/a.png" in message
    assert "line 2: nowhere" in error_of(listed(folder / "list.csv", "image,label\nnowhere,x\nb,y\n"))
