"""Copies and groups of images are on one side of every split, over random folders with planted copies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.data.sample_images import encode
from tests.data.test_duplicates import COPIES, photo
from tests.data.test_partition import data as unreadable_data
from tests.data.test_partition import each
from vitkit.data.copies import Copies, group_copies
from vitkit.data.duplicates import Pairs
from vitkit.data.groups import Leak, keep_together, record_of, restore
from vitkit.data.partition import Partition, held_out_test, partition
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.dataset import Data, DataError, PackedStrings, Split
from vitkit.data.sources.open import open_data
from vitkit.data.stratified import stratified
from vitkit.errors import ConfigError


class Images:
    """A store of encoded images in memory."""

    def __init__(self, contents: list[bytes]):
        self.contents = contents

    def read(self, row: int) -> bytes:
        return self.contents[row]


POOL = [photo(seed, 134 + seed % 9, 140 - seed % 7) for seed in range(60)]
KINDS = ("identical", *(name for name in COPIES if name not in ("a quarter", "four times")))


def random_data(seed: int) -> tuple[Data, np.ndarray]:
    """Return data without splits, and for each image the number of the original that it is or is a copy of."""
    rng = np.random.default_rng(seed)
    contents, labels, originals = [], [], []
    classes = int(rng.integers(2, 4))
    for original in rng.permutation(len(POOL))[: int(rng.integers(6, 24))].tolist():
        label = int(rng.integers(classes)) if len(labels) >= 3 * classes else len(labels) % classes
        first = encode(POOL[original], "JPEG", quality=int(rng.integers(70, 96)))
        copies = [first]
        for _ in range(int(rng.integers(0, 3)) if rng.random() < 0.5 else 0):
            kind = KINDS[int(rng.integers(len(KINDS)))]
            small = COPIES.get(kind, COPIES["as it is"])(POOL[original])
            options: dict[str, Any] = {"quality": int(rng.integers(40, 96))} if rng.random() < 0.7 else {}
            copies.append(first if kind == "identical" else encode(small, "JPEG" if options else "PNG", **options))
        contents += copies
        labels += [label] * len(copies)
        originals += [original] * len(copies)
    order = rng.permutation(len(contents))
    split = Split(
        PackedStrings(f"{row}.jpg" for row in range(len(order))),
        np.array(labels)[order],
        Images([contents[row] for row in order]),
        np.arange(len(order)),
    )
    names = tuple("abc"[:classes])
    return Data("random", "class folders", names, {"all": split}, ()), np.array(originals)[order]


def twins_across(splits: Partition, originals: np.ndarray) -> int:
    """Count the images of validation and test whose original or copy is in another of the three splits."""
    sides = [splits.train, splits.validation, splits.test]
    kept = [set(originals[side.rows].tolist()) for side in sides if side is not None]
    return sum(len(one & other) for place, one in enumerate(kept) for other in kept[place + 1 :])


def count_twins(folders: range) -> tuple[int, int]:
    """Return the number of twins over splits of random folders, with vitkit's groups and without."""
    together, ignored = 0, 0
    for seed in folders:
        data, originals = random_data(seed)
        for options in ({"dev": 0.0}, {"dev": 0.25}):
            settings = {**options, "test": 0.25, "split_seed": seed}
            try:
                together += twins_across(partition(keep_together(data).data, **settings), originals)
                ignored += twins_across(partition(data, **settings), originals)
            except DataError:  # too few images that are no copies
                continue
    return together, ignored


def test_no_copy_is_on_two_sides_of_a_split():
    together, ignored = count_twins(range(40))
    assert together == 0
    assert ignored > 40  # the folders hold copies that an ordinary split separates


@pytest.mark.slow
def test_no_copy_is_on_two_sides_of_a_split_in_200_folders():
    together, ignored = count_twins(range(200))
    assert together == 0
    assert ignored > 200


@given(seed=st.integers(0, 200))
def test_copies_are_together_and_different_images_are_not(seed: int):
    data, originals = random_data(seed)
    groups = keep_together(data).data.splits["all"].groups
    if groups is None:
        assert len(set(originals.tolist())) == len(originals)
        return
    assert len(set(zip(groups.tolist(), originals.tolist(), strict=True))) == len(set(groups.tolist()))
    assert len(set(groups.tolist())) == len(set(originals.tolist()))


@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 9),
    order=st.randoms(),
)
def test_groups_of_single_images_change_nothing(counts: list[int], share: float, seed: int, order: Any):
    labels = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(labels))
    order.shuffle(numbers)
    for ours, theirs in zip(stratified(labels, share, seed, numbers), stratified(labels, share, seed), strict=True):
        assert np.array_equal(ours, theirs)


@given(
    sizes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=4),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 9),
)
def test_whole_groups_are_held_out_near_to_the_share_of_each_class(sizes: list[list[int]], share: float, seed: int):
    labels = np.concatenate([np.full(size, label) for label, own in enumerate(sizes) for size in own])
    groups = np.concatenate([np.full(size, number) for number, size in enumerate(np.concatenate(sizes))])
    rest, held_out = stratified(labels, share, seed, groups)
    assert sorted([*rest, *held_out]) == list(range(len(labels)))
    assert not set(groups[rest]) & set(groups[held_out])
    for label, own in enumerate(sizes):
        taken = int((labels[held_out] == label).sum())
        assert (0 < taken < sum(own)) if len(own) > 1 else taken == 0
        if len(own) > 1:
            assert abs(taken - share * sum(own)) <= max(own) + 1


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=6, max_size=60), st.integers(0, 5))
def test_groups_of_several_classes_leave_every_class_in_training(images: list[tuple[int, int]], seed: int):
    groups, labels = np.array(images).T
    rest, held_out = stratified(labels, 0.3, seed, groups)
    assert not set(groups[rest]) & set(groups[held_out])
    assert set(labels[rest]) == set(labels)


def test_what_was_found_is_restored_from_json_without_reading_an_image():
    data, _ = random_data(3)
    kept = keep_together(data)
    record = json.loads(json.dumps(record_of(kept)))
    unread = replace(data, splits={"all": replace(data.splits["all"], store=None)})
    again = restore(unread, record)
    assert again.lines == kept.lines
    assert np.array_equal(again.data.splits["all"].groups, kept.data.splits["all"].groups)
    first, second = partition(kept.data, dev=0.2), partition(again.data, dev=0.2)
    assert first.held_out == second.held_out
    assert first.held_out is not None
    assert list(first.test.keys) == list(second.test.keys)
    recovered = held_out_test(again.data, first.held_out)
    assert recovered is not None
    assert list(recovered.splits["test"].keys) == list(first.test.keys)
    assert held_out_test(data, first.held_out) is None  # without the groups, it cannot be known
    changed = replace(data, splits={"all": data.splits["all"].select(np.arange(len(data.splits["all"]))[::-1])})
    assert restore(changed, record).data.splits["all"].groups is None


def test_a_run_from_before_groups_were_kept_has_its_own_split():
    data, originals = random_data(8)
    before = partition(data)
    kept = keep_together(data).data
    assert twins_across(before, originals) > 0
    assert list(partition(kept).test.keys) != list(before.test.keys)
    recovered = held_out_test(kept, before.held_out)
    assert list(recovered.splits["test"].keys) == list(before.test.keys)
    assert restore(kept, None).data.splits["all"].groups is None


def pairs(first: list[int], second: list[int]) -> Pairs:
    return Pairs(np.array(first), np.array(second), np.linspace(1, 0.997, len(first)))


def test_a_chain_of_near_duplicates_does_not_take_up_a_class():
    split = unreadable_data(all=[0] * 100 + [1] * 30).splits["all"]
    chain = Copies(np.arange(130), pairs([*range(129)], [*range(1, 130)]))
    groups, apart = group_copies(split, chain)
    assert groups is not None
    for label, images in ((0, 100), (1, 30)):
        largest = np.unique(groups[split.labels == label], return_counts=True)[1].max()
        assert 2 <= largest <= images // 2
    assert apart > 0
    _, held_out = stratified(split.labels, 0.2, 0, groups)
    assert set(split.labels[held_out]) == {0, 1}


def test_identical_images_and_groups_of_the_user_have_no_limit():
    split = unreadable_data(all=[0] * 40 + [1] * 10).splits["all"]
    content = np.arange(50)
    content[:40] = 0
    groups, apart = group_copies(
        replace(split, groups=np.repeat([7, 8, 9], [40, 9, 1])), Copies(content, pairs([], []))
    )
    assert np.unique(groups, return_counts=True)[1].tolist() == [40, 9, 1]
    assert apart == 0


def test_a_class_of_copies_of_one_image_stays_in_training_and_that_is_said():
    source = unreadable_data(all=each(6))
    groups = np.where(source.splits["all"].labels == 2, 100, np.arange(18))
    result = partition(replace(source, splits={"all": replace(source.splits["all"], groups=groups)}))
    assert result.test.per_class(3).tolist() == [1, 1, 0]
    assert result.notes == ("no image of owl is scored: all of its images are copies of each other or of one group",)


def leaking(tmp_path: Path) -> Path:
    """Write train and test folders; of 6 test images, 2 are identical to training images and 1 is mirrored."""
    for seed in range(16):
        split = "train" if seed < 13 else "test"
        path = tmp_path / "photos" / split / ("cat", "dog")[seed % 2] / f"patient{seed // 2}_{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(POOL[seed], "JPEG"))
    for seed in (0, 1):
        path = tmp_path / "photos" / "test" / ("cat", "dog")[seed] / f"copy{seed}.jpg"
        path.write_bytes(encode(POOL[seed], "JPEG"))
    mirrored = POOL[2].transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    (tmp_path / "photos" / "test" / "cat" / "mirrored.png").write_bytes(encode(mirrored, "PNG"))
    return tmp_path / "photos"


def test_copies_between_splits_of_the_user_are_counted(tmp_path: Path):
    kept = keep_together(open_data(leaking(tmp_path)))
    test = kept.data.splits["test"]
    kinds = {Path(key).stem: Leak(kind).name for key, kind in zip(test.keys, test.leaked.tolist(), strict=True) if kind}
    assert kinds == {"copy0": "IDENTICAL", "copy1": "IDENTICAL", "mirrored": "NEAR"}
    [(_, warning)] = [line for line in kept.lines if line[0] == "warning"]
    assert warning.startswith(
        "of 6 test images, 3 are copies of training images (2 identical, 1 nearly identical): a score on them"
    )


def test_groups_by_a_pattern_reach_over_splits(tmp_path: Path):
    kept = keep_together(open_data(leaking(tmp_path), group=r"(patient\d+)_"))
    test = kept.data.splits["test"]
    kinds = {Path(key).stem: Leak(kind).name for key, kind in zip(test.keys, test.leaked.tolist(), strict=True) if kind}
    assert kinds == {"copy0": "IDENTICAL", "copy1": "IDENTICAL", "mirrored": "NEAR", "patient6_13": "GROUP"}
    assert any("8 groups of 2 images by (patient\\d+)_" in note for note in kept.data.notes)
    assert any("3 images are in none" in note for note in kept.data.notes)
    numbers = kept.data.splits["train"].groups
    patients = [key.split("patient")[1].split("_")[0] for key in kept.data.splits["train"].keys]
    assert len(set(zip(numbers.tolist(), patients, strict=True))) == len(set(patients)) == len(set(numbers.tolist()))


def test_ignored_copies_are_not_looked_for(monkeypatch: pytest.MonkeyPatch):
    source = unreadable_data(all=each(5))  # whose images cannot be read
    kept = keep_together(source, duplicates="ignore")
    assert kept.data.splits["all"].groups is None
    assert kept.data.splits["all"].leaked is None
    assert kept.lines[0][1].startswith("not looked for (duplicates = ignore)")
    monkeypatch.setattr("vitkit.data.groups.MOST_IMAGES", 10)
    assert "over 10 images" in keep_together(source).lines[0][1]


@pytest.mark.parametrize("setting", [None, "group", "patient"])
def test_a_column_of_a_manifest_names_the_groups(setting: str | None, tmp_path: Path):
    rows = []
    for seed in range(12):
        (tmp_path / f"{seed}.jpg").write_bytes(encode(POOL[seed], "JPEG"))
        rows.append(f"{seed}.jpg,{('cat', 'dog')[seed % 2]},{seed // 4},{'' if seed < 4 else seed // 2}")
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group,patient", *rows]))
    data = open_data(tmp_path / "list.csv", group=setting)
    groups = data.splits["all"].groups
    assert groups is not None
    expected = [0] * 4 + [4] * 4 + [8] * 4 if setting != "patient" else [0, 1, 2, 3, 4, 4, 6, 6, 8, 8, 10, 10]
    assert groups.tolist() == expected
    name = setting or "group"
    assert any(f"by the column {name}" in note for note in data.notes)


def test_shards_keep_the_groups(tmp_path: Path):
    data = open_data(leaking(tmp_path), group=r"(patient\d+)_")
    write_shards(data, tmp_path / "shards")
    shards = open_data(tmp_path / "shards")
    for name, split in data.splits.items():
        assert shards.splits[name].groups.tolist() == split.groups.tolist()
    assert any("11 groups of images" in note for note in shards.notes)  # 8 patients, and 3 images alone


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("patient(", "is not a regular expression"), ("cow", "matches no image of")],
)
def test_a_pattern_that_cannot_be_used_is_an_error(pattern: str, message: str, tmp_path: Path):
    with pytest.raises((ConfigError, DataError), match=message):
        open_data(leaking(tmp_path), group=pattern)


def test_copies_without_texture_stay_together_in_any_lossless_format(tmp_path: Path):
    """Their thumbnails say nothing, and their bytes differ."""
    for number in range(20):
        levels = np.random.default_rng(number).integers(120, 124, (40, 40, 3), np.uint8)
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        for name, options in (("1.png", {"compress_level": 0}), ("2.png", {"compress_level": 9}), ("3.bmp", {})):
            Image.fromarray(levels).save(tmp_path / "photos" / "ab"[number % 2] / f"{number}-{name}", **options)
    kept = keep_together(open_data(tmp_path / "photos"), workers=1)
    splits = partition(kept.data)
    assert splits.test is not None
    train, test = ({key.split("/")[1].split("-")[0] for key in side.keys} for side in (splits.train, splits.test))
    assert not train & test
    assert len(train | test) == 20


def test_identical_images_with_different_labels_are_a_warning(tmp_path: Path):
    for label in "ab":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(6):
            seed = [0, 0] if number == 0 else [ord(label), number]
            noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)
            Image.fromarray(noise).save(tmp_path / "photos" / label / f"{number}.png")
    lines = keep_together(open_data(tmp_path / "photos"), workers=1).lines
    assert any(label == "warning" and "1 image has a copy with another label" in text for label, text in lines)
