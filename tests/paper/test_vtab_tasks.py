"""The tasks of a folder: their names, groups, crops and flips; mistakes in folder and file are errors in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitkit.cli.main import main
from vitkit.errors import VitkitError
from vitkit.paper.vtab_tasks import KNOWN, find_tasks, known_name

# Zhai et al. (2020), Table 1
NATURAL = "caltech101 cifar100 dtd flowers102 pets sun397 svhn"
SPECIALIZED = "patch_camelyon eurosat resisc45 diabetic_retinopathy"
STRUCTURED = (
    "clevr_count clevr_distance dmlab kitti_distance dsprites_location dsprites_orientation smallnorb_azimuth "
    "smallnorb_elevation"
)
# Kolesnikov et al. (2020), supplement F: "we disable random horizontal flipping as preprocessing for
# dSprites-orientation, SmallNORB-azimuth and dSprites-location tasks. Random cropping preprocessing is disabled for
# Clevr-count, Clevr-distance, DMLab, KITTI-distance and dSprites-location tasks."
NOT_FLIPPED = {"dsprites_orientation", "smallnorb_azimuth", "dsprites_location"}
NOT_CROPPED = {"clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location"}
# the folders of the VTAB-1k that is passed around as one archive
ARCHIVE = (
    "caltech101 cifar clevr_count clevr_dist diabetic_retinopathy dmlab dsprites_loc dsprites_ori dtd eurosat kitti "
    "oxford_flowers102 oxford_iiit_pet patch_camelyon resisc45 smallnorb_azi smallnorb_ele sun397 svhn"
)


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_the_19_tasks_have_the_groups_of_vtab_and_the_images_of_bit(tmp_path: Path):
    tasks = find_tasks(make(tmp_path, *NATURAL.split(), *SPECIALIZED.split(), *STRUCTURED.split()))
    groups = {"natural": NATURAL, "specialized": SPECIALIZED, "structured": STRUCTURED}
    assert {group: {task.name for task in tasks if task.group == group} for group in groups} == {
        group: {*names.split()} for group, names in groups.items()
    }
    assert {task.name for task in tasks if not task.flip} == NOT_FLIPPED
    assert {task.name for task in tasks if not task.crop} == NOT_CROPPED
    assert [task.known for task in tasks] == [task.name for task in tasks]
    assert len(tasks) == len(KNOWN) == 19


def test_other_spellings_are_the_same_tasks(tmp_path: Path):
    tasks = find_tasks(make(tmp_path, *ARCHIVE.split()))
    assert {task.known for task in tasks} == KNOWN.keys()
    for name, known in {"dSprites-loc": "dsprites_location", "CIFAR-100": "cifar100", "Oxford Pets": "pets"}.items():
        assert known_name(name) == known
    assert known_name("birds") is None


def test_folders_of_groups_and_the_file_describe_other_tasks(tmp_path: Path):
    make(tmp_path, "natural/birds", "structured/angles", "cifar100")
    (tmp_path / "cells.npz").write_bytes(b"")
    (tmp_path / "README.md").write_text("not a task")
    (tmp_path / "vtab.toml").write_text(
        '[cells]\ngroup = "specialized"\nlabel = "kind"\n[angles]\nflip = false\n'
        '[far]\ngroup = "natural"\ndata = "../elsewhere/far.zip"\n[hub]\ngroup = "natural"\ndata = "hf:owner/name"\n'
    )
    tasks = {task.name: task for task in find_tasks(tmp_path)}
    assert [*tasks] == ["birds", "cifar100", "far", "hub", "cells", "angles"]
    assert (tasks["cells"].data, tasks["cells"].label) == (str(tmp_path / "cells.npz"), "kind")
    assert (tasks["angles"].group, tasks["angles"].crop, tasks["angles"].flip) == ("structured", True, False)
    assert tasks["far"].data == str(tmp_path.parent / "elsewhere/far.zip")
    assert tasks["hub"].data == "hf:owner/name"


def test_a_path_is_the_same_however_the_folder_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path, "tasks/dtd", "elsewhere")
    (tmp_path / "blob").write_bytes(b"")
    (tmp_path / "tasks/svhn.npz").symlink_to(tmp_path / "blob")  # only its own name has the ending
    (tmp_path / "tasks/vtab.toml").write_text('[far]\ngroup = "natural"\ndata = "../elsewhere/far.zip"\n')
    (tmp_path / "link").symlink_to(tmp_path / "tasks")
    expected = find_tasks(tmp_path / "tasks")
    assert [Path(task.data).name for task in expected] == ["dtd", "far.zip", "svhn.npz"]
    monkeypatch.chdir(tmp_path / "elsewhere")
    for spelled in ("../tasks", "../link", "../tasks/../tasks", str(tmp_path / "link")):
        assert find_tasks(Path(spelled)) == expected
    monkeypatch.chdir(tmp_path / "tasks")
    assert find_tasks(Path()) == expected


@pytest.mark.parametrize(
    ("names", "file", "message"),
    [
        ((), "", "holds no tasks"),
        (("birds",), "", "the group of birds is not known"),
        (("train", "test"), "", "looks like a single task: it has test"),
        (("natural/birds", "birds"), "", "two tasks are called birds"),
        (("dtd",), '[birds]\ngroup = "natural"', "describes birds, not in"),
        (("dtd",), "[dtd]\nflipp = false", "[dtd] has no key flipp; did you mean flip?"),
        (("dtd",), '[dtd]\nflip = "no"', "flip = 'no' of [dtd] is not known"),
        (("dtd",), '[dtd]\ngroup = "nature"', "natural, specialized, structured"),
        (("dtd",), "flip = false", "flip = False belongs to no task"),
        (("dtd",), "[dtd", "is not TOML"),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_do(names: tuple[str, ...], file: str, message: str, tmp_path: Path):
    make(tmp_path, *names)
    if file:
        (tmp_path / "vtab.toml").write_text(file)
    with pytest.raises(VitkitError) as raised:
        find_tasks(tmp_path)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vtap", "tasks"], "there is no experiment 'vtap'; did you mean vtab?"),
        (["vtab"], "vitkit paper vtab needs the folder of its tasks"),
        (["vtab", "nowhere"], "nowhere does not exist"),
        (["vtab", ".", "--set", "recipe=pets_transfer"], "--set recipe: an option of its own or the task decides it"),
        (["vtab", ".", "--set", "epochs=3"], "in steps"),
        (["vtab", ".", "--set", "stepz=3"], "there is no setting stepz"),
        (["vtab", ".", "--method", "linear", "--steps", "5"], "steps is for fine-tuning"),
        (["vtab", ".", "--method", "linear", "--weights", "none"], "needs pre-trained weights"),
        (["vtab", ".", "--steps", "0"], "--steps 0: 1 or more is needed"),
    ],
)
def test_a_mistake_on_the_command_line_is_exit_code_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["paper", *words])
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_the_verb_alone_lists_the_experiments(capsys: pytest.CaptureFixture[str]):
    main(["paper"])
    printed = capsys.readouterr().out
    assert "vtab\n" in printed
    for figure in ("77.63", "76.28", "72.72"):  # Table 2, VTAB row
        assert figure in printed
