"""Files that are whole or not there, whatever happens while they are written."""

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vitreous.files import check_file, check_folder, path_of, read_json, replace_file, write_json


def test_a_file_is_written_with_its_folders(tmp_path):
    replace_file(tmp_path / "a" / "b" / "x.txt", lambda part: part.write_text("new"))
    assert (tmp_path / "a" / "b" / "x.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x.txt"]


def test_a_file_may_be_read_by_whom_the_user_lets_read_new_ones(tmp_path):
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "x", lambda part: save_file({"a": torch.zeros(2)}, part))  # which keeps it to the owner
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
    (tmp_path / "x").chmod(0o600)
    replace_file(tmp_path / "x", lambda part: part.write_text("mine"))
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600  # an old file's stays


def full(part):
    part.write_text("half")
    raise OSError(errno.ENOSPC, "No space left on device")


def torchs_way(part):
    try:
        full(part)
    finally:
        raise RuntimeError("[enforce fail at inline_container.cc:664]\nand a trace of C++")


def safetensors_way(part):
    part.write_text("half")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (full, "No space left on device"),
        (torchs_way, "No space left on device"),
        (safetensors_way, r"No space left on device \(os error 28\)"),
    ],
)
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, write, reason):
    file = tmp_path / "x.txt"
    file.write_text("old")
    with pytest.raises(OSError, match=rf"^cannot write {file}: {reason}$") as caught:
        replace_file(file, write)
    assert "\n" not in str(caught.value) and caught.value.__cause__.errno == errno.ENOSPC  # which has a way out
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError("CUDA error: an")],
)
def test_an_error_of_another_kind_is_not_told_as_a_full_disk_and_leaves_the_old_file_too(tmp_path, error):
    file = tmp_path / "x.txt"
    file.write_text("old")

    def fail(part):
        part.write_text("half")
        raise error

    with pytest.raises(type(error)) as caught:
        replace_file(file, fail)
    assert caught.value is error
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_the_content_is_on_the_disk_before_it_takes_the_place(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda number: (calls.append("fsync"), fsync(number)))
    monkeypatch.setattr(Path, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    write_json(tmp_path / "x.json", {"a": [1, None]})
    assert calls == ["fsync", "replace", "fsync"]  # the last one is of the folder
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1, None]}


def test_a_link_stays_a_link_to_the_new_file(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "x.txt").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "x.txt")
    (tmp_path / "new").symlink_to(tmp_path / "far" / "y.txt")  # where nothing is yet
    for name in ("link", "new"):
        replace_file(tmp_path / name, lambda part: part.write_text("new"))
        assert (tmp_path / name).is_symlink() and (tmp_path / name).read_text() == "new"
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["x.txt", "y.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "x.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_file(pipe, ".html", "mark")
    replace_file(pipe, lambda part: part.write_text("new"))
    assert os.read(reader, 100) == b"new" and pipe.is_fifo()
    os.close(reader)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
def test_the_commands_own_output_is_written_to_even_where_it_goes_to_a_file(tmp_path):
    code = "from pathlib import Path; from vitreous.files import check_file, replace_file; out = Path('/dev/stdout')\n"
    code += "check_file(out, '.csv', 'mark'); replace_file(out, lambda part: part.write_text('new'))"
    with (tmp_path / "x").open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=60)
    assert (tmp_path / "x").read_text() == "new" and Path("/dev/stdout").is_symlink()


@pytest.fixture
def kept(tmp_path):
    """A run, a trained model by itself and an evaluation, as far as their names tell them."""
    run = ("run/recipe.yaml", "run/data.json", "run/report.html", "run/model/config.json")
    for name in (*run, "bundle/config.json", "eval/evaluation.json", "photo.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{\n  "preprocess": {}\n}' if name.endswith("config.json") else "{}")
    (tmp_path / "link.csv").symlink_to(tmp_path / "photo.png")
    (tmp_path / "latest.html").symlink_to(tmp_path / "run" / "report.html")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "suffix", "reason"),
    [
        ("photo.png", ".html", "photo.png does not end in .html, as what is written there must: name another file"),
        ("link.csv", ".csv", "link.csv does not end in .csv"),
        ("latest.html", ".html", "run holds a run, whose files stay as they are: name another place"),
        ("bundle", ".html", "bundle is a folder: name a file, such as "),
        ("run/report.html", ".html", "run holds a run, whose files stay as they are: name another place"),
        ("bundle/x.html", ".html", "bundle holds a trained model, whose files stay as they are: name another place"),
        ("eval/report.html", ".html", "eval holds an evaluation, whose files stay as they are: name another place"),
        ("photo.png/x.html", ".html", "photo.png is a file, and no folder to write into: name another place"),
    ],
)
def test_a_file_takes_the_place_of_nothing_else(kept, file, suffix, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_file(kept / file, suffix, None)


def test_a_file_that_is_there_is_written_over_where_the_same_command_wrote_it(tmp_path):
    file = tmp_path / "x.csv"
    mine = {"file,label\n": False, "image,rank,checked\n1,2,yes\n": False, "a,b\nimage,rank\n": False}
    for content, free in ({"": True, "image,rank\n1,2\n": True, "\ufeffimage,rank\r\n": True} | mine).items():
        file.write_text(content, encoding="utf-8", newline="")
        if free:
            check_file(file, ".csv", "image,rank")
        else:
            with pytest.raises(ValueError, match=r"x\.csv holds something else, which stays as it is: name"):
                check_file(file, ".csv", "image,rank")
            check_file(file, ".csv", None)


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("run/report.html", "report.html is a file: name a folder with --out"),
        ("run", "run holds a run, whose files stay as they are: name another place"),
        ("run/new", "run holds a run"),
        ("run/model", "model holds a trained model"),
        ("bundle", "bundle holds a trained model"),
        ("photo.png/new", "photo.png is a file, and no folder to write into: name another place"),
    ],
)
def test_a_folder_to_write_is_no_runs_and_no_models(kept, folder, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_folder(kept / folder)


def test_other_places_are_free(kept):
    (kept / "recipe.yaml").write_text("epochs: 3")  # of the user's
    (kept / "hub").mkdir()
    (kept / "hub" / "config.json").write_text('{"label2id": {"preprocess": 0}}')
    for file in ("x.html", "X.HTML", "new/x.html", "hub/x.html"):
        check_file(kept / file, ".html", "mark")
    for folder in ("new", "hub", "run/export/onnx", "eval", "."):
        check_folder(kept / folder)


def test_a_place_that_may_not_be_written_to_is_told_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "x.csv").touch()
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    for check in (lambda: check_file(tmp_path / "new" / "x.csv", ".csv", "mark"), lambda: check_folder(tmp_path / "a")):
        with pytest.raises(ValueError, match=rf"^{tmp_path} may not be written into: allow it, as by chmod, or name"):
            check()
    check_file(tmp_path / "x.csv", ".csv", None)  # which grows where it is


def test_json_that_is_none_is_named(tmp_path):
    for content in ("{", "\xff", "[" * 100_000):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ValueError, match=r"x\.json is not JSON: "):
            read_json(tmp_path / "x.json")


def test_of_two_that_write_at_once_each_file_is_whole(tmp_path):
    file = tmp_path / "x.txt"

    def slowly(part):
        part.write_text("first, ")
        replace_file(file, lambda other: other.write_text("second"))
        part.write_text(part.read_text() + "still")

    replace_file(file, slowly)
    assert file.read_text() == "first, still" and list(tmp_path.iterdir()) == [file]


def test_a_folder_that_may_be_written_and_not_read_is_no_error(tmp_path, monkeypatch):
    opened = os.open

    def unreadable(path, *options):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *options)

    monkeypatch.setattr(os, "open", unreadable)
    replace_file(tmp_path / "x.txt", lambda part: part.write_text("new"))
    assert (tmp_path / "x.txt").read_text() == "new"


def test_a_file_system_that_cannot_flush_a_folder_is_no_error(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", only_files)
    replace_file(tmp_path / "x.txt", lambda part: part.write_text("new"))
    assert (tmp_path / "x.txt").read_text() == "new"


def test_a_tilde_is_a_home_folder_only_where_there_is_one(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert path_of("~/x") == Path("/home/me/x") and path_of("~nobody-is-called-so/x") == Path("~nobody-is-called-so/x")
