"""Output folders on a file system: whole files only, one creator, locks that end with their process."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vitkit.errors import ConfigError
from vitkit.output_folder import open_output_folder

HOLD = """
import sys
from vitkit.output_folder import open_output_folder
with open_output_folder(sys.argv[1]).lock("shard") as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def test_a_folder_lists_reads_replaces_and_removes_whole_files(tmp_path: Path):
    folder = open_output_folder(tmp_path / "not" / "yet")
    assert folder.names() == []
    folder.write("part-1", b"one")
    folder.write("part-0", b"zero")
    folder.write("part-0", b"zero again")
    folder.write("manifest", b"{}")
    assert folder.names("part-") == ["part-0", "part-1"]
    assert (folder.read("part-0"), folder.exists("part-1"), folder.exists("part-2")) == (b"zero again", True, False)
    folder.delete("part-0")
    folder.delete("part-0")
    assert folder.names() == ["manifest", "part-1"]
    assert {path.name for path in (tmp_path / "not" / "yet").iterdir()} == {"manifest", "part-1"}
    with pytest.raises(ConfigError, match="part-0 cannot be read"):
        folder.read("part-0")


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"file.below cannot be"):
        open_output_folder(tmp_path / "file" / "below").write("name", b"")


def test_of_many_creators_all_get_the_content_of_one(tmp_path: Path):
    folder = open_output_folder(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        contents = {*threads.map(lambda number: folder.create("manifest", b"%d" % number), range(32))}
    assert contents == {folder.read("manifest")}


def test_a_lock_is_seen_by_others_and_ends_with_a_killed_process(tmp_path: Path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        folder = open_output_folder(tmp_path)
        with folder.lock("shard") as held:
            assert not held
        with folder.lock("another shard") as held:
            assert held
        holder.kill()
    with folder.lock("shard") as held:
        assert held
    assert folder.names() == []
