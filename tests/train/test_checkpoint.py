"""A checkpoint is whole or not there, brings the random generators back, and says so when it is damaged."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from tiny import EVERYTHING

from vitreous.augment import draw
from vitreous.train import checkpoint
from vitreous.train.checkpoint import load_checkpoint, random_state, save_checkpoint
from vitreous.train.order import balanced_order, epoch_order

CPU = torch.device("cpu")
CONTENT = {
    "data": {"train": "ab12"},
    "model": {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(7)},
    "optimizers": [{"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
    "state": {"epoch": 3, "best": [0.5, -1.25], "history": [{"epoch": 1, "loss": 0.1 + 0.2}]},
}


def test_what_is_saved_is_loaded(tmp_path):
    save_checkpoint(tmp_path / "new" / "last.pt", CONTENT, [random_state(CPU)])
    loaded = load_checkpoint(tmp_path / "new" / "last.pt", CPU)
    assert torch.equal(loaded["model"].pop("weight"), CONTENT["model"]["weight"])
    assert loaded["model"]["count"] == 7 and loaded["optimizers"] == CONTENT["optimizers"]
    assert loaded["state"] == CONTENT["state"] and loaded["data"] == CONTENT["data"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["last.pt"]


def test_random_numbers_go_on_where_they_were(tmp_path):
    torch.manual_seed(5)
    torch.rand(3)
    save_checkpoint(tmp_path / "last.pt", CONTENT, [random_state(CPU)])
    expected = torch.cat([torch.rand(4), torch.randn(2), torch.randperm(10)])
    torch.manual_seed(99)
    load_checkpoint(tmp_path / "last.pt", CPU)
    assert torch.equal(torch.cat([torch.rand(4), torch.randn(2), torch.randperm(10)]), expected)


def test_a_gpu_goes_on_with_its_own_random_numbers(tmp_path, monkeypatch):
    states = {torch.device("cuda", i): torch.tensor([i], dtype=torch.uint8) for i in range(2)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    second = torch.device("cuda", 1)
    save_checkpoint(tmp_path / "last.pt", CONTENT, [random_state(second)])
    states[second] = torch.tensor([9], dtype=torch.uint8)
    load_checkpoint(tmp_path / "last.pt", second)
    assert [state.item() for state in states.values()] == [0, 1]


def test_a_checkpoint_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    save_checkpoint(tmp_path / "last.pt", CONTENT, [random_state(CPU)])
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"last.pt is of another version of vitreous: go on with that one, or start"):
        load_checkpoint(tmp_path / "last.pt", CPU)


def test_what_a_resumed_run_draws_changes_with_the_format_alone():
    drawn = draw(EVERYTHING, 8, 0, 3), epoch_order(50, 0, 3), balanced_order(torch.arange(20) % 3, 0, 3)
    content = torch.cat([part.flatten().double() for part in drawn]).numpy().round(5).tobytes()
    assert (checkpoint.FORMAT, hashlib.sha256(content).hexdigest()[:16]) == (7, "fa5f9962ede9c730")


@pytest.mark.parametrize("function", ["save", "fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch, function):
    file = tmp_path / "last.pt"
    save_checkpoint(file, CONTENT, [random_state(CPU)])
    before = file.read_bytes()

    def write_half(content, opened):
        opened.write(b"half a file")
        raise OSError("power cut")

    def fail(*_):
        raise OSError("power cut")

    if function == "save":
        monkeypatch.setattr(torch, "save", write_half)
    elif function == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="power cut"):
        save_checkpoint(file, {"state": {"epoch": 4}}, [random_state(CPU)])
    monkeypatch.undo()
    assert file.read_bytes() == before and load_checkpoint(file, CPU)["state"]["epoch"] == 3
    save_checkpoint(file, {"state": {"epoch": 5}}, [random_state(CPU)])  # the rest of the crash is in nobody's way
    assert load_checkpoint(file, CPU)["state"]["epoch"] == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"",
        lambda whole: b"no checkpoint at all",
        lambda whole: whole[:300] + bytes(300) + whole[600:],
    ],
    ids=["cut", "empty", "text", "overwritten"],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, damage):
    file = tmp_path / "last.pt"
    save_checkpoint(file, CONTENT, [random_state(CPU)])
    file.write_bytes(damage(file.read_bytes()))
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"last\.pt is damaged \(\w+\): remove it to start the run again$") as caught:
        load_checkpoint(file, CPU)
    assert "\n" not in str(caught.value) and torch.equal(torch.get_rng_state(), state)


def test_code_in_a_file_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    torch.save({"random": Evil()}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(tmp_path / "last.pt", CPU)
    assert not (tmp_path / "owned").exists()


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    save_checkpoint(tmp_path / "last.pt", CONTENT, [random_state(CPU)])
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(PermissionError):
        load_checkpoint(tmp_path / "last.pt", CPU)
