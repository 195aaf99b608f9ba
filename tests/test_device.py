"""Where to compute and how precisely: one choice, and refusals that name what is there."""

import os
import platform
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from vitreous.device import (
    autocast,
    cores,
    has_amx,
    has_fast_bf16,
    has_wide_bf16,
    peak_memory,
    pick_device,
    pick_precision,
    widest_float,
)

CPU = torch.device("cpu")


@pytest.fixture
def only_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_is_the_cpu_where_there_is_nothing_else(only_cpu):
    assert pick_device() == pick_device("auto") == pick_device("cpu") == CPU


def test_auto_leaves_apples_gpu_alone(only_cpu, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device() == CPU and pick_device("mps").type == "mps"


def test_auto_is_the_gpu_where_there_is_one_whose_float32_is_float32(only_cpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert pick_device("cpu") == CPU and torch.backends.cudnn.allow_tf32
    assert pick_device().type == "cuda" and not torch.backends.cudnn.allow_tf32
    assert pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"^device 'cuda:2' is not available: there are 2, from cuda:0$"):
        pick_device("cuda:2")


@pytest.mark.parametrize(
    ("own", "built_for", "able"),
    [
        ((7, 0), ["sm_75", "sm_90", "sm_120", "compute_120"], False),
        ((7, 5), ["sm_120", "sm_75"], True),
        ((9, 0), ["sm_100"], False),
        ((9, 0), ["sm_90a", "sm_100"], True),
        ((6, 1), ["sm_50", "sm_60", "sm_90"], True),
        ((9, 0), ["gfx90a"], True),
    ],
)
def test_a_gpu_older_than_torchs_build_is_left_alone_and_refused_if_asked_for(
    only_cpu, monkeypatch, own, built_for, able
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: own)
    assert pick_device().type == ("cuda" if able else "cpu")
    if able:
        assert pick_device("cuda:0") == torch.device("cuda:0")
    else:
        with pytest.raises(ValueError, match=r"needs \d+\.\d or more: install torch's build .*, or use --device cpu$"):
            pick_device("cuda:0")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "meta", "gpu", "", "cuda:x"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(only_cpu, name):
    with pytest.raises(ValueError, match=rf"^device '{name}' is not available: use cpu or auto$"):
        pick_device(name)


@pytest.mark.parametrize(
    ("features", "precision"),
    [
        ({}, "float32"),
        ({"avx512_f": True}, "float32"),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, "bf16"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, "float32"),  # at half the speed of float32 there
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "bf16"),
    ],
)
def test_auto_precision_follows_the_processor(monkeypatch, features, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert pick_precision("auto", CPU) == precision
    assert has_fast_bf16(CPU) is (precision == "bf16")
    assert has_amx() is ("amx_bf16" in features)


@pytest.mark.parametrize(
    ("features", "wide"),
    [
        ({}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, False),  # Zen 4
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True, "avx512_vp2intersect": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "avx512_vp2intersect": True}, False),
        ({"cpu_name": "Intel Xeon", "amx_bf16": True}, True),
    ],
)
def test_bf16_is_wide_with_amx_and_from_zen_5_on(monkeypatch, features, wide):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert has_wide_bf16() is wide


def test_a_gpu_that_only_emulates_bf16_computes_in_float32_whichever_is_the_current_one(monkeypatch):
    native, current = {"cuda:0": True, "cuda:1": False}, ["cuda:0"]

    @contextmanager
    def device(wanted):
        before, current[0] = current[0], str(wanted)
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native[current[0]]
    )
    assert [pick_precision("auto", torch.device(name)) for name in native] == ["bf16", "float32"]


def test_sums_are_float64_but_on_apples_gpus_which_lack_it():
    kinds = {name: widest_float(torch.device(name)) for name in ("cpu", "cuda", "mps")}
    assert kinds == {"cpu": torch.float64, "cuda": torch.float64, "mps": torch.float32}


def test_a_named_precision_is_taken_as_it_is():
    assert [pick_precision(name, CPU) for name in ("float32", "bf16", "float16")] == ["float32", "bf16", "float16"]


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match=r"^unknown precision 'fp16': use auto, float32, bf16, float16$"):
        pick_precision("fp16", CPU)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("float16", torch.float16)]
)
def test_autocast_computes_products_in_the_precision(precision, dtype):
    linear = torch.nn.Linear(4, 4)
    with autocast(CPU, precision):
        assert linear(torch.ones(1, 4)).dtype == dtype
    assert linear.weight.dtype == torch.float32


def test_the_peak_of_memory_is_in_bytes():
    now = psutil.Process().memory_info().rss
    assert 0.9 * now < peak_memory(CPU) < psutil.virtual_memory().total


def test_the_peak_of_memory_is_known_where_the_system_keeps_no_such_line(monkeypatch):
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda self: read(self).replace("VmHWM", "VmOther"))  # as gVisor
    assert 0.9 * psutil.Process().memory_info().rss < peak_memory(CPU) < psutil.virtual_memory().total


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
def test_on_a_cpu_the_next_step_gets_the_memory_of_the_last():
    code = """
import resource, torch
from vitreous.device import pick_device

def faults():
    for _ in range(5):
        torch.ones(2**23).add(torch.ones(2**23))  # three blocks of 32 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

first = faults()
print(faults() - first)
pick_device("cpu")
first = faults()
print(faults() - first)
"""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    for asked, kept in (({}, True), ({"MALLOC_MMAP_THRESHOLD_": "100000"}, False)):  # the environment comes first
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain | asked, timeout=120)
        before, after = map(int, done.stdout.split())
        if not before:
            pytest.skip("this system counts no page faults")
        assert (after < before / 10) == kept


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to cores")
def test_only_the_cores_that_a_process_was_given_count():
    given = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(given)})
    try:
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, given)
    assert cores() == len(given)
