"""What the doctor says of a machine."""

import itertools
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from vitreous import doctor
from vitreous.device import NO_MPS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(doctor, "SIDE", 64)


def test_versions_devices_and_rates_are_told(capsys):
    doctor.examine()
    text = capsys.readouterr().out
    for part in ("Python 3.", f"torch {torch.__version__.partition('+')[0]}", "cpu: ", "GFLOP/s in float32", "in bf16"):
        assert part in text
    assert "precision auto is " in text and "device auto is " in text and "GiB memory free" in text


@pytest.mark.parametrize(("threads", "said"), [(1, ", 1 thread, "), (3, ", 3 threads, ")])
def test_the_number_of_threads_is_told(monkeypatch, capsys, threads, said):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    doctor.examine()
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("bf16", "told"), [(150, False), (400, False), (840, True)])
def test_a_precision_that_is_faster_than_auto_is_told(monkeypatch, capsys, bf16, told):
    monkeypatch.setattr(doctor, "matmul_rate", lambda _, dtype: bf16 if dtype == torch.bfloat16 else 280)
    monkeypatch.setattr(doctor, "pick_precision", lambda *_: "float32")
    doctor.examine()
    assert ("precision=bf16 may train faster" in capsys.readouterr().out) is told


def test_an_optional_package_that_is_missing_is_told_with_its_pip_line(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "OPTIONAL", {"track": ("no-such-package",)})
    doctor.examine()
    said = f'optional no-such-package: not installed: {sys.executable} -m pip install "vitreous[track]"'
    assert said in capsys.readouterr().out


def test_a_torchvision_that_falls_over_itself_is_told(tmp_path, monkeypatch):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text('raise AttributeError("partially initialized")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(doctor, "installed", lambda name: "1.0")
    said = "torchvision does not import beside this torch (partially initialized); vitreous does not need it"
    assert said in doctor.findings()


def test_a_slow_processor_and_a_gpu_that_does_not_show_are_found(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    monkeypatch.setattr(doctor, "has_fast_bf16", lambda device: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert doctor.findings() == [
        "this processor has no fast bf16 and there is no CUDA GPU: training runs in float32",
        NO_MPS,
        "torch is built for CUDA 13.0 but sees no GPU: check the driver (nvidia-smi), or, for an older one, install "
        "torch's build for CUDA 12.6 (see README.md, Install)",
    ]


@pytest.mark.parametrize(("cuda", "driver", "told"), [(None, True, True), (None, False, False), ("13.0", True, False)])
def test_a_torch_without_cuda_beside_a_gpu_is_told(monkeypatch, cuda, driver, told):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if driver else None)
    assert any("this torch is built for CPUs alone" in finding for finding in doctor.findings()) is told


def test_a_gpu_older_than_bf16_is_told_of_float16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    advice = "this GPU has no bf16 units, so auto means float32: precision=float16 may train faster"
    for fast in (False, True):
        monkeypatch.setattr(doctor, "has_fast_bf16", lambda device, fast=fast: fast)
        assert (advice in doctor.findings()) is not fast


def test_a_gpu_that_this_torch_is_not_built_for_is_told_and_not_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    doctor.examine()
    said = capsys.readouterr().out
    assert "note: the GPU's compute capability is 7.0, and this torch needs 7.5 or more: install torch's" in said
    assert "device auto is cpu" in said and "float16 may train faster" not in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rate_counts_a_multiply_add_as_two(monkeypatch, dtype):
    monkeypatch.setattr(doctor, "SIDE", 1024)
    ticks = itertools.count(step=0.04)  # a product takes 40 ms, so that the first side is the last
    monkeypatch.setattr(doctor, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert doctor.matmul_rate(torch.device("cpu"), dtype) == pytest.approx(2 * 256**3 / 0.04 / 1e9)


def test_a_package_that_is_not_there_has_no_version():
    assert doctor.installed("no-such-package") is None
