"""Files that are whole or not there, whatever happens while they are written."""

import errno
import json
import os
from pathlib import Path

import pytest

from vitreous.files import replace_file, write_json


def test_a_file_is_written_with_its_folders(tmp_path):
    replace_file(tmp_path / "a" / "b" / "x.txt", lambda part: part.write_text("new"))
    assert (tmp_path / "a" / "b" / "x.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x.txt"]


def full(part):
    part.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def torchs_way(part):
    part.write_text("half")
    raise RuntimeError("[enforce fail at inline_container.cc:664]\nand a trace of C++")


@pytest.mark.parametrize(
    ("write", "reason"), [(full, "No space left on device"), (torchs_way, r"\[enforce fail at .*")]
)
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, write, reason):
    file = tmp_path / "x.txt"
    file.write_text("old")
    with pytest.raises(OSError, match=rf"^cannot write {file}: {reason}$") as caught:
        replace_file(file, write)
    assert "\n" not in str(caught.value)
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_an_error_of_another_kind_leaves_the_old_file_too(tmp_path):
    file = tmp_path / "x.txt"
    file.write_text("old")

    def interrupted(part):
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(file, interrupted)
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_the_content_is_on_the_disk_before_it_takes_the_place(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (calls.append("fsync"), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    write_json(tmp_path / "x.json", {"a": [1, None]})
    assert calls == ["fsync", "replace", "fsync"]  # the last one is of the folder
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1, None]}


def test_memory_that_ran_out_while_writing_is_not_blamed_on_the_file(tmp_path):
    def write(part):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(RuntimeError, match="can't allocate memory"):
        replace_file(tmp_path / "x", write)
    assert not list(tmp_path.iterdir())
