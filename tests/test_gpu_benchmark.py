"""benchmarks/gpu.py on a CPU at toy size: every part leaves its figures, and goes on where it stopped."""

import json
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec

import gpu
import pytest
import tables
import torch
from measure import RESULTS

from vitreous.recipe import read_recipe
from vitreous.train.run import Run
from vitreous.train.state import State


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Run a part at toy size; `refuse` makes any training an error."""

    def run(*words, refuse=False):
        if refuse:
            monkeypatch.setattr(gpu, "fit", lambda *_, **__: pytest.fail("trained again"))
        monkeypatch.setattr(sys, "argv", ["gpu.py", *words, "--toy", "--work", str(tmp_path / "work")])
        gpu.main()
        return tmp_path / "work" / "out"

    return run


def test_its_help_names_every_part(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        gpu.main()
    said = " ".join(capsys.readouterr().out.split())
    for part in (gpu.throughput, gpu.sweep, gpu.final, gpu.time_to):
        assert part.__doc__.splitlines()[0] in said


def test_the_pass_that_is_timed_does_all_that_the_recipe_may_do_and_another_one_is_profiled(monkeypatch, tmp_path):
    def pretend(recipe, *_, on_step, on_epoch, **__):
        asked.append((recipe.augment.mix_until, recipe.augment.shrink))
        for epoch, seconds in enumerate((9.0, 12.0, 14.0, 41.0, 43.0, 45.0, 47.0, 99.0)):
            for step in range(1, 6):
                torch.ones(2).cumsum(0) if epoch == 7 and step < 4 else torch.ones(2).cumprod(0)
                on_step(State(epoch=epoch, step=step), None)
            on_epoch({"seconds": seconds})

    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(gpu, "fit", pretend)
    recipe = read_recipe("cifar10", ["model.image_size=32"])
    assert recipe.augment.mix_until < 1 and recipe.augment.shrink < 1
    profile = tmp_path / "profile.txt"
    assert gpu.time_loop(recipe, 5 * 512, torch.device("cpu"), profile) == 5 * 512 / 2.0 and asked == [(1.0, 1.0)]
    assert "aten::cumsum" in profile.read_text() and "aten::cumprod" not in profile.read_text()


def test_throughput_is_measured_of_models_stages_and_the_loop(part):
    out = part("throughput", "--peak", "0.5")
    content = json.loads((out / "throughput.json").read_text())
    ours = [row for row in content["models"] if row["form"] == "ours"]
    assert [row["name"] for row in ours] == ["recipe", "B/16", "small"]
    theirs = [row for row in content["models"] if row["form"] == "timm"]
    assert [row["name"] for row in theirs] == (["B/16", "small"] if find_spec("timm") else [])
    for row in content["models"]:
        assert row["training_images_per_second"] > 0 and row["inference_images_per_second"] > 0
        assert row["mfu"] == pytest.approx(row["training_images_per_second"] * 3 * row["flops"] / 0.5e12)
    assert {"Muon", "Muon, torch's", "average", "clip"} < content["stages_ms"].keys()
    assert min(content["stages_ms"].values()) > 0 and content["loop_images_per_second"] > 0
    assert "Optimizer.step#Muon.step" in (out / "profile.txt").read_text()

    rates = {"matmul_gflops": {"float32": 1, "bf16": 2}, "torch": "2", "processor": "x", "threads": 1}
    shown = content | {"machine": content["machine"] | rates}
    to_94 = tables.saved()["time-to-94"]
    assert "of 0.5 TFLOP/s" in tables.gpu_table(shown, to_94)
    assert "TFLOP/s | inference" in tables.gpu_table(shown | {"peak_tflops": None}, to_94)

    record, mfu = out.parent / "throughput.json", content["models"][0]["mfu"]
    part("throughput", "--peak", "1", refuse=True)
    assert json.loads(record.read_text())["models"][0]["mfu"] == pytest.approx(mfu / 2)
    content["models"] = [row for row in content["models"] if row["name"] != "small"]
    record.write_text(json.dumps(content))
    part("throughput", "--peak", "0.5", refuse=True)
    again = json.loads((out / "throughput.json").read_text())
    assert [row for row in again["models"] if row["name"] != "small"] == content["models"]
    assert next(row["form"] for row in again["models"] if row["name"] == "small") == "ours"


def test_throughput_of_another_machine_is_not_mixed_in(part, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "throughput.json").write_text(json.dumps({"machine": {"device": "H100"}, "models": []}))
    with pytest.raises(ValueError, match=r"has figures of H100: give another --work$"):
        part("throughput", refuse=True)


def test_throughput_begins_nothing_after_its_time(part):
    content = json.loads((part("throughput", "--minutes", "0", refuse=True) / "throughput.json").read_text())
    assert content["models"] == []
    assert content.keys() == {"machine", "models", "peak_tflops", "precision"}


def test_toys_lie_where_no_real_run_finds_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "sweep", "cifar10", "--toy", "--minutes", "0"])
    gpu.main()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["gpu-toy"]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_every_arm_of_the_sweep_is_another_recipe(name):
    recipes = [read_recipe(name, arm).model_dump_json() for arm in gpu.ARMS]
    assert recipes[0] == read_recipe(name).model_dump_json() and len(set(recipes)) == len(recipes)


def test_a_sweep_notes_a_line_a_run_and_skips_what_is_done(part, monkeypatch):
    tests, fit = [], gpu.fit
    monkeypatch.setattr(
        gpu, "fit", lambda recipe, data, **options: tests.append(data.test) or fit(recipe, data, **options)
    )
    arms = ["--arm", "optim.muon_split_qkv=true", "--arm", "optim.name=adamw optim.learning_rate=0.01"]
    out = part("sweep", "cifar10", "optim.clip=2", *arms[:2])
    out = part("sweep", "cifar10", *arms, "optim.clip=2")  # where the override stands does not matter
    first, second = gpu.read_lines(out / "sweep.jsonl")
    assert tests == [None, None]  # the test images are not even there
    assert first["changes"][0] == "optim.clip=2" and first["changes"][-1] == "optim.muon_split_qkv=true"
    assert second["changes"][-2:] == ["optim.name=adamw", "optim.learning_rate=0.01"]
    assert 0 <= first["val_top1"] <= 1 and first["train_seconds"] > first["compile_seconds"] == 0
    part("sweep", "cifar10", "optim.clip=2", *arms, refuse=True)


def test_a_sweep_begins_nothing_after_its_time(part, capsys):
    out = part("sweep", "cifar10", "--minutes", "0", refuse=True)
    assert not (out / "sweep.jsonl").exists() and "go on by the same command" in capsys.readouterr().out


def test_a_whole_run_goes_on_where_its_time_was_over_and_leaves_a_small_model(part, capsys, tmp_path, monkeypatch):
    def record(recipe, **options):
        checkpoint = options["out"] / "checkpoints" / "last.pt"
        found.append(checkpoint.read_bytes() if checkpoint.exists() else None)
        return fit(recipe, **options)

    found, fit = [], gpu.fit
    monkeypatch.setattr(gpu, "fit", record)
    monkeypatch.setattr(gpu, "PART", 10_000)
    out = part("final", "cifar10", "--minutes", "0")
    assert "go on by the same command" in capsys.readouterr().out
    (home,) = out.iterdir()
    parts = sorted((home / "checkpoints").iterdir())
    assert len(parts) > 1 and all(path.stat().st_size <= 10_000 for path in parts)
    run = out.parent / "cifar10-0"
    whole = (run / "checkpoints" / "last.pt").read_bytes()
    shutil.rmtree(run)
    shutil.copytree(home, run)  # as on another machine
    part("final", "cifar10")
    assert found == [None, whole] and not home.exists()
    home = out / "cifar10-0"
    results = json.loads((home / "results.json").read_text())
    assert results["epochs"] == 3 and results["test"]["count"] == results["float16"]["count"] == 360
    assert len((home / "metrics.csv").read_text().splitlines()) == 4
    assert {path.name for path in home.iterdir()} >= {"model.safetensors", "config.json", "results.json", "metrics.csv"}
    assert all(path.stat().st_size < 16e6 for path in home.iterdir())
    part("final", "cifar10", refuse=True)


def test_what_is_brought_home_of_an_unfinished_run_has_its_best_weights(tmp_path):
    for file in ("checkpoints/last.pt", "model/config.json", "recipe.yaml"):
        (tmp_path / "run" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / file).write_text(file)
    gpu.bring_unfinished(tmp_path / "run", tmp_path / "home")
    brought = {str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*") if path.is_file()}
    assert brought == {"checkpoints/last.pt.0000", "model/config.json", "recipe.yaml"}


def test_a_run_that_comes_back_goes_on_from_what_came(part, monkeypatch):
    out = part("final", "cifar10", "--minutes", "0")
    checkpoints = out.parent / "cifar10-0" / "checkpoints"
    (checkpoints / "last.pt.0000").write_bytes(b"from ")
    (checkpoints / "last.pt.0001").write_bytes(b"elsewhere")
    monkeypatch.setattr(gpu, "fit", lambda *_, out, **__: Run(out))
    part("final", "cifar10")
    assert {file.name: file.read_bytes() for file in checkpoints.iterdir()} == {"last.pt": b"from elsewhere"}


def test_the_time_to_94_is_that_of_several_seeds_without_compiling(part, monkeypatch):
    trained, fit = [], gpu.fit

    def record(*args, **options):
        run = fit(*args, **options)
        trained.append(run.results["train_seconds"])
        return replace(run, results=run.results | {"compile_seconds": 0.01})

    monkeypatch.setattr(gpu, "fit", record)
    out = part("time-to-94", "--seeds", "1")
    part("time-to-94", "--seeds", "2")
    content = json.loads((out / "time-to-94.json").read_text())
    assert content["n"] == 2 and content["mean_top1"] == pytest.approx(sum(content["top1"]) / 2)
    assert content["reached"] is (content["mean_top1"] >= 0.94)
    assert min(content["seconds"]) > 0 and content["compile_seconds"] == [0.01, 0.01]
    assert content["seconds"] == pytest.approx([seconds - 0.01 for seconds in trained])
    notes = out / "time-to-94.jsonl"
    assert [line["seed"] for line in gpu.read_lines(notes)] == [0, 1]
    part("time-to-94", "--seeds", "2", refuse=True)
    for file in (notes, out.parent / notes.name):  # those of another device count for themselves
        file.write_text(file.read_text().replace('"device": "cpu"', '"device": "another"'))
    monkeypatch.setattr(gpu, "fit", record)
    part("time-to-94", "--seeds", "1")
    assert json.loads((out / "time-to-94.json").read_text())["n"] == 1 and len(gpu.read_lines(notes)) == 3


def test_an_arm_that_fails_is_noted_and_ends_no_other(part, monkeypatch):
    fit = gpu.fit

    def fail(recipe, *args, **options):
        if recipe.optim.clip == 3:
            raise FloatingPointError("the loss is nan")
        return fit(recipe, *args, **options)

    monkeypatch.setattr(gpu, "fit", fail)
    words = [
        "sweep",
        "cifar10-94",
        "--arm",
        "data.crop_fraction=0.95",
        "--arm",
        "optim.clip=3",
        "--arm",
        "optim.clip=4",
    ]
    refused, failed, done = gpu.read_lines(part(*words) / "sweep.jsonl")
    assert "data.crop_fraction" in refused["error"]  # where nothing is cropped in training
    assert failed["error"] == "the loss is nan" and failed["changes"][-1] == "optim.clip=3"
    assert done["changes"][-1] == "optim.clip=4" and "val_top1" in done
    part(*words, refuse=True)


def test_an_arm_that_takes_the_device_down_is_not_tried_again(part, monkeypatch):
    def fail(*_, **__):
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(gpu, "fit", fail)
    with pytest.raises(torch.AcceleratorError):
        part("sweep", "cifar10", "--arm", "optim.clip=3")
    part("sweep", "cifar10", "--arm", "optim.clip=3", refuse=True)


def test_the_table_of_the_documents_is_made_of_what_is_left(part):
    out = part("throughput", "--peak", "0.5")
    part("time-to-94", "--seeds", "1")
    throughput, to_94 = (json.loads((out / f"{name}.json").read_text()) for name in ("throughput", "time-to-94"))
    assert part("throughput") and json.loads((out / "throughput.json").read_text())["peak_tflops"] == 0.5  # as before
    throughput["machine"] = json.loads((RESULTS / "throughput-cuda.json").read_text())["machine"]
    del throughput["machine"]["number"]
    lines = tables.gpu_table(throughput, to_94).splitlines()
    head = "model | form | batch | training, images/s | training, TFLOP/s | of 0.5 TFLOP/s | inference, images/s"
    assert lines[0] == f"| {head} |" and lines[2].startswith("| recipe `cifar10` | ours | 8 | ")
    assert lines[-1].startswith("Machine: NVIDIA H200, ") and "others" not in lines[-1]
