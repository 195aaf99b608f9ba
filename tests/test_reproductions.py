"""The reproductions: the originals' sizes, each mistake where it was, each fix where it is asked for, real images."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reproduction_runs
import torch
import torch.nn.functional as F
from PIL import Image
from reproduction_speed import looped
from reproduction_tables import filled, table
from tiny import stripes
from torch import nn

from reproductions import experiment as shared
from reproductions.__main__ import EXPERIMENTS, main
from reproductions.behery import counted as behery_counted
from reproductions.experiment import NOTHING, run
from reproductions.lyon import CIFAR10, MNIST, HeadSlices, Lyon
from reproductions.paper_b16 import PaperB16
from reproductions.paper_b16 import counted as paper_counted
from reproductions.tigges import counted as tigges_counted
from vitreous.data.images import ImageSet
from vitreous.data.sources import load
from vitreous.metrics import classification_metrics
from vitreous.model.config import ViTConfig
from vitreous.train.optim import rate_factor

PAIRS = [(name, fix) for name, experiment in EXPERIMENTS.items() for fix in experiment.fixes]


def on_meta(name, *fixes):
    """A setup whose weights are never made."""
    with torch.device("meta"):
        return EXPERIMENTS[name].make(frozenset(fixes))


def weights(model):
    return sum(weight.numel() for weight in model.parameters())


@pytest.fixture
def digits_like(monkeypatch):
    """The data of every experiment: 96 training and 32 test images of ten classes, 28 x 28 gray."""
    pixels = {count: stripes(count, classes=10, side=28, seed=count) for count in (96, 32)}
    image_set = ImageSet.from_arrays(*pixels[96], test=pixels[32])
    monkeypatch.setattr(shared, "load", lambda source: image_set)
    return image_set


@pytest.fixture
def lyon(digits_like):
    return replace(EXPERIMENTS["lyon-mnist"], batch_size=16)


# --- what was built ---


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lyon-mnist", 1_642),
        ("lyon-cifar10", 11_466),
        ("behery-cifar100", 3_291_492),
        ("behery-cifar100-gap", 3_291_492),
        ("tigges-cifar100", 12_862_820),
        ("tigges-cifar10", 3_374_948),
        ("paper-b16-pizza", 85_824_771),
    ],
)
def test_parameters_are_those_of_the_originals(name, parameters):
    assert weights(on_meta(name).model) == EXPERIMENTS[name].parameters == parameters


def test_one_class_token_leaves_the_paper_its_own_parameters():
    assert weights(on_meta("paper-b16-pizza", "class-token").model) == 85_800_963


def test_the_parts_of_the_small_model_are_as_large_as_they_were():
    model = on_meta("lyon-mnist").model
    parts = {name: weights(getattr(model, name)) for name in ("patches", "blocks", "head")}
    assert parts == {"patches": 136, "blocks": 1408, "head": 90} and model.class_token.numel() == 8


def test_multiply_adds_of_the_small_models():
    assert shared.multiply_adds(Lyon(MNIST, NOTHING), 28) == pytest.approx(0.147e6, rel=0.02)
    assert shared.multiply_adds(Lyon(CIFAR10, NOTHING), 32) == pytest.approx(1.22e6, rel=0.02)


@pytest.mark.parametrize(("name", "fix"), PAIRS)
def test_every_fix_alone_changes_what_is_trained_or_how(name, fix):
    def described(setup):
        optimizer = setup.optimizer(nn.Linear(2, 2))
        shapes = [(key, value.shape) for key, value in setup.model.state_dict().items()]
        plain = {key: value for key, value in vars(setup.model).items() if isinstance(value, bool | int | str)}
        fields = {key: value for key, value in vars(setup).items() if key not in ("model", "optimizer")}
        return repr((setup.model, shapes, plain, fields, type(optimizer), len(optimizer.param_groups)))

    if fix == "token-start":
        model = EXPERIMENTS["tigges-cifar10"].make(frozenset([fix])).model
        assert model.class_token.abs().max() == 0 and model.positions.std().item() == pytest.approx(0.02, rel=0.05)
    else:
        assert described(on_meta(name)) != described(on_meta(name, fix))


def test_an_unknown_fix_is_refused_and_the_known_ones_are_named():
    with pytest.raises(ValueError, match="lyon-mnist has no fix 'final_norm': use all, softmax-loss, full-qkv"):
        EXPERIMENTS["lyon-mnist"].named(["final_norm"])
    assert EXPERIMENTS["lyon-mnist"].named(["all"]) == frozenset(EXPERIMENTS["lyon-mnist"].fixes)


# --- their mistakes ---


def test_the_rebuilt_model_answers_as_its_loops_do():
    torch.manual_seed(0)
    for config in (MNIST, CIFAR10):
        model, images = Lyon(config, NOTHING), torch.rand(3, config.channels, *config.image_size)
        slow = looped(model)
        torch.testing.assert_close(slow(images), model(images))
        for answer in (model, slow):
            F.cross_entropy(answer(images), torch.tensor([1, 2, 3])).backward()
        for name, weight in model.named_parameters():
            torch.testing.assert_close(slow.get_parameter(name).grad, weight.grad, msg=name)


def test_a_head_sees_its_own_slice_of_the_token_only():
    x = torch.randn(1, 5, 8, requires_grad=True)
    q, k, v = HeadSlices(8, heads=2)(x).view(1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)  # each (B, h, N, d)
    for part in (q, k, v):
        (gradient,) = torch.autograd.grad(part[:, 1].sum(), x, retain_graph=True)
        assert gradient[..., :4].abs().max() == 0 and gradient[..., 4:].abs().min() > 0


@pytest.mark.parametrize(("classes", "low", "equal", "high"), [(10, 1.461, 2.303, 2.461), (100, 3.622, 4.605, 4.622)])
def test_softmax_before_the_loss_confines_it(classes, low, equal, high):
    label = torch.tensor([0])
    sure = 1e3 * F.one_hot(torch.tensor([0, 1]), classes).float()
    losses = [F.cross_entropy(logits[None].softmax(dim=1), label).item() for logits in (*sure, torch.zeros(classes))]
    assert losses == pytest.approx([low, high, equal], abs=6e-4)
    for experiment in EXPERIMENTS.values():
        if "softmax-loss" in experiment.fixes and experiment.name.endswith(str(classes)):
            assert low < experiment.reported["loss"] < high


def test_the_faithful_model_answers_with_probabilities_and_the_fixed_one_with_logits():
    torch.manual_seed(0)
    images = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(Lyon(MNIST, NOTHING)(images).sum(dim=1), torch.ones(4))
    assert (Lyon(MNIST, frozenset(["softmax-loss"]))(images).sum(dim=1) - 1).abs().min() > 1e-3


def test_the_answer_depends_on_the_place_in_the_batch_until_there_is_one_class_token():
    config = ViTConfig(image_size=32, patch_size=16, num_classes=3, dim=32, depth=1, heads=2)
    images = torch.rand(1, 3, 32, 32).expand(4, -1, -1, -1)
    for fixed, spread in ((NOTHING, True), (frozenset(["class-token"]), False)):
        answers = PaperB16(config, fixed).eval()(images)
        assert (answers.std(dim=0).max() > 1e-3) == spread


def test_coupled_decay_moves_weights_without_a_gradient_by_the_whole_rate():
    moves = {}
    for fixes in ((), ("decay",)):
        layer = nn.Linear(4, 4)
        nn.init.constant_(layer.weight, 2.0)
        optimizer = on_meta("paper-b16-pizza", *fixes).optimizer(layer)
        (0 * layer(torch.ones(1, 4)).sum()).backward()
        optimizer.step()
        moves[fixes] = 2.0 - layer.weight.mean().item()
    assert moves[()] == pytest.approx(1e-3, rel=1e-3)  # the rate, however small the decay
    assert moves["decay",] == pytest.approx(1e-3 * 0.1 * 2, rel=1e-2)


def test_a_schedule_counted_from_60_000_images_stops_at_75_percent_of_its_way():
    faithful = on_meta("tigges-cifar10")
    steps = math.ceil(50_000 * (1 - faithful.validation) / 256)
    believed = faithful.schedule_images // 256
    assert (believed, steps) == (234, 176) and steps / believed == pytest.approx(0.75, abs=0.005)
    last = 180 * steps - 1
    assert rate_factor(faithful.schedule, last, 180 * believed) == pytest.approx(0.28, abs=0.005)
    assert rate_factor(faithful.schedule, last, 180 * steps) < 1e-4
    assert on_meta("tigges-cifar10", "schedule").schedule_images is None


def test_always_one_class_scores_54_percent_when_batches_weigh_the_same():
    labels = torch.tensor([0] * 25 + [1] * 19 + [2] * 31)  # the 75 test images in their order
    sushi = torch.tensor([[0.0, 0.0, 1.0]]).expand(75, 3)
    assert paper_counted(sushi, labels)["top1"] == pytest.approx(0.5417, abs=1e-4)
    assert classification_metrics(sushi, labels)["top1"] == pytest.approx(31 / 75)


def test_its_top_5_counts_something_else():
    labels = torch.arange(100)
    perfect = torch.eye(100)
    assert classification_metrics(perfect, labels)["top5"] == 1.0
    assert behery_counted(perfect, labels)["top5"] < 0.1


def test_macro_figures_of_batches_are_not_those_of_the_split():
    torch.manual_seed(0)
    outputs, labels = torch.randn(1024, 100), torch.randint(100, (1024,))
    outputs[torch.arange(1024), labels] += 2.5
    ours, theirs = classification_metrics(outputs, labels), tigges_counted(outputs, labels)
    assert set(theirs) == {"precision_macro", "recall_macro", "f1_macro"}
    assert ours["f1_macro"] - theirs["f1_macro"] > 0.03


# --- a run ---


def test_a_run_keeps_what_is_needed_to_read_it(lyon):
    results = run(lyon, frozenset(["softmax-loss"]), epochs=2, seed=3)
    assert results["command"] == "python -m reproductions lyon-mnist --fix softmax-loss --epochs 2 --seed 3"
    assert (results["params"], results["epochs"], results["train_images"]) == (1642, 2, 96)
    assert [row["epoch"] for row in results["history"]] == [1, 2] and results["test"]["count"] == 32
    assert results["train_seconds"] > 0 and results["fixed"] == ["softmax-loss"]
    assert json.loads(json.dumps(results)) == results


def test_the_same_seed_gives_the_same_figures_and_another_does_not(lyon):
    losses = [run(lyon, lyon.named(["all"]), epochs=1, seed=seed)["test"]["loss"] for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_every_image_is_trained_on_once_an_epoch_the_last_batch_included(lyon):
    seen = []
    setup = lyon.make(NOTHING)
    setup.model.register_forward_hook(lambda model, args, _: seen.append((model.training, len(args[0]))))
    run(replace(lyon, batch_size=40, make=lambda fixed: setup), epochs=1)
    assert [count for training, count in seen if training] == [40, 40, 16]


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pass_has_the_first_ones_order_where_the_author_did_not_shuffle(lyon, shuffle):
    setup, orders = replace(lyon.make(NOTHING), shuffle=shuffle), []
    with pytest.MonkeyPatch.context() as patch:
        whole = shared.Batches.epoch
        patch.setattr(shared.Batches, "epoch", lambda self, order: orders.append(order) or whole(self, order))
        run(replace(lyon, make=lambda fixed: setup), epochs=2)
    first, second = (np.asarray(order) for order in orders if len(order) == 96)  # the others are of the test images
    assert (first == second).all() == (not shuffle) and sorted(first) == sorted(second) == list(range(96))


def test_pixels_are_plain_until_normalise_is_fixed(lyon, digits_like):
    for fixed in (NOTHING, frozenset(["normalise"])):
        seen = []
        setup = lyon.make(fixed)
        setup.model.register_forward_pre_hook(lambda model, args, seen=seen: seen.append((model.training, args[0])))
        run(replace(lyon, make=lambda fixed, setup=setup: setup), fixed, epochs=1)
        images = torch.cat([images for training, images in seen if training])
        if fixed:
            assert images.mean().item() == pytest.approx(0, abs=1e-5) and images.std().item() == pytest.approx(1, 1e-3)
        else:
            pixels = digits_like.train.images.array / 255
            assert np.sort(images.flatten().numpy()) == pytest.approx(np.sort(pixels.ravel()), abs=1e-6)


def test_it_stops_after_two_rises_of_the_loss_in_a_row(lyon):
    setup = lyon.make(NOTHING)
    setup.watch, setup.rises, setup.validation = "val", 2, 0.25
    losses = iter([2.0, 2.1, 2.0, 2.1, 2.2, 7.0, 1.0])  # the 7 is of the test images
    with pytest.MonkeyPatch.context() as patch:
        whole = F.cross_entropy
        patch.setattr(
            shared.F, "cross_entropy", lambda a, b: whole(a, b) if a.requires_grad else torch.tensor(next(losses))
        )
        results = run(replace(lyon, make=lambda fixed: setup), epochs=9)
    assert results["epochs"] == 5 and results["test"]["loss"] == 7.0


@pytest.mark.parametrize(("sittings", "begun"), [(1, [0]), (2, [0, 2])])
def test_each_sitting_begins_with_the_best_weights_and_a_fresh_optimiser(lyon, sittings, begun):
    setup, begins, weights, started = lyon.make(NOTHING), [], [], []
    setup.watch, setup.keep_best, setup.sittings = "test", True, sittings
    make = setup.optimizer

    def optimizer(model):
        begins.append(len(weights))
        started.append(deepcopy(model.state_dict()))
        return make(model)

    def epoch(setup, *given):
        row = train(setup, *given)
        weights.append(deepcopy(setup.model.state_dict()))
        return row

    setup.optimizer = optimizer
    with pytest.MonkeyPatch.context() as patch:
        train = shared.train_epoch
        patch.setattr(shared, "train_epoch", epoch)
        results = run(replace(lyon, make=lambda fixed: setup), epochs=4)
    assert begins == begun
    if sittings == 2:
        best = weights[np.argmax([row["val_top1"] for row in results["history"][:2]])]
        torch.testing.assert_close(started[1], best, rtol=0, atol=0)
    later = results["history"][begun[-1] :]
    assert results["kept_epoch"] == max(later, key=lambda row: row["val_top1"])["epoch"]
    assert results["test"]["top1"] == max(row["val_top1"] for row in later)


def test_with_validation_the_test_images_choose_nothing():
    before, after = on_meta("behery-cifar100"), on_meta("behery-cifar100", "validation")
    assert (before.watch, before.validation) == ("test", 0.0)
    assert (after.watch, after.validation, after.keep_best) == ("val", 0.1, True)


# --- the command ---


def test_the_command_lists_what_there_is_and_what_can_be_fixed(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS) and out.count("--fix") == len(PAIRS)


def test_the_command_trains_and_writes_results(digits_like, tmp_path, capsys):
    out = tmp_path / "r.json"
    assert main(["lyon-mnist", "--fix", "final-norm", "softmax-loss", "--epochs", "1", "--out", str(out)]) == 0
    results = json.loads(out.read_text())
    assert results["fixed"] == ["final-norm", "softmax-loss"] and results["params"] == 1642 + 16
    assert f"test top-1 {results['test']['top1']:.2%}, reported 71.50%" in capsys.readouterr().out


def test_a_bad_flag_is_one_line_and_exit_code_2(capsys):
    assert main(["lyon-mnist", "--fix", "norm"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- lists of runs, and their tables ---


def result_of(fixed=(), seed=0, top1=0.5, epochs=5, **more):
    """What a run of lyon-mnist leaves, with these figures."""
    lyon = EXPERIMENTS["lyon-mnist"]
    return {
        "experiment": "lyon-mnist",
        "fixed": sorted(lyon.named(fixed)),
        "command": shared.command(lyon, lyon.named(fixed), seed, epochs),
        "seed": seed,
        "epochs": epochs,
        "params": 1642,
        "multiply_adds": 147_000,
        "train_seconds": 60.0 + seed,
        "test": {"top1": top1, "loss": 1.75},
        "as_counted": None,
        "machine": {"processor": "abacus", "threads": 2, "device": "cpu"},
    } | more


def rows_of(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:] if line.startswith("|")
    ]


def test_a_row_sums_up_the_seeds_of_a_kind_of_run():
    results = [result_of(seed=seed, top1=top1) for seed, top1 in enumerate((0.70, 0.72, 0.74))]
    text = table(EXPERIMENTS["lyon-mnist"], results)
    assert text.endswith("\n\nBy seed, the faithful runs lie between 70.0 and 74.0% (n = 3).")
    reported, row = rows_of(text)
    assert reported[:6] == ["reported", "1,642", "", "5", "71.5", "1"]
    assert row == [
        "faithful", "1,642", "0.147 M", "5", "72.00 ± 2.00", "3", "1.750", "60 to 62", "abacus, 2 threads",
        "`python -m reproductions lyon-mnist --seed N`",
    ]  # fmt: skip


def test_rows_go_from_faithful_by_the_fixes_to_all_to_ours_and_short_runs_stand_apart():
    ours = result_of(command="vitreous train mnist --seed 0", ours="recipe")
    results = [
        ours,
        result_of(epochs=2),
        *(result_of(fixed) for fixed in (["all"], ["final-norm"], ["softmax-loss"], [])),
    ]
    labels = [row[0] for row in rows_of(table(EXPERIMENTS["lyon-mnist"], results))]
    assert labels == [
        "reported", "faithful", "`softmax-loss`", "`final-norm`", "all fixed", "faithful, short", "**our recipe**",
    ]  # fmt: skip


def test_folds_are_a_row_over_all_their_parts_and_each_seed_of_them_is_told():
    folds = {"folds": 2, "loss_mean": 0.6, "train_seconds": [9.0, 11.0], "epochs": [3, 3]}
    results = [
        result_of(seed=seed, command="x --seed 0", ours="folds") | folds | {"top1": top1, "top1_mean": sum(top1) / 2}
        for seed, top1 in ((1, [0.6, 0.8]), (0, [0.7, 0.9]))
    ]
    text = table(EXPERIMENTS["lyon-mnist"], results)
    assert rows_of(text)[1][3:8] == ["3", "75.00 ± 12.91", "4", "0.600", "9 to 11"]
    assert "\n\nBy seed, which decides the folds, ours have 80.00 and 70.00%.\n" in text
    assert "By seed" not in table(EXPERIMENTS["lyon-mnist"], results[:1])


def test_what_the_author_counted_stands_beside_what_is_right():
    figures = {"as_counted": {"top5": 0.05}, "test": {"top1": 0.3, "loss": 4.3, "top5": 0.6}}
    text = table(EXPERIMENTS["lyon-mnist"], [result_of(**figures)])
    assert text.endswith("Counted as the author did, the faithful runs have top-5 5.0 instead of 60.0.")


def test_losses_by_epoch_stand_beside_the_authors():
    results = [
        result_of(seed=seed, history=[{"train_loss": loss + seed} for loss in (5, 4, 3, 2, 1)]) for seed in (0, 1)
    ]
    text = table(EXPERIMENTS["lyon-mnist"], [*results, result_of(["final-norm"]), result_of(epochs=2)])
    told = "Training loss by epoch: reported 2.08 1.87 1.82 1.80 1.77; faithful 5.50 4.50 3.50 2.50 1.50 (mean, n = 2)."
    assert told in text.splitlines()
    assert "Training loss" not in table(EXPERIMENTS["tigges-cifar10"], results)


def test_the_best_of_ours_has_its_f1_beside_the_reported_one():
    figures = {"worse": [(0.95, 0.9), (0.8, 0.9)], "better": [(0.9, 0.87), (0.89, 0.874)]}  # top-1, F1 of two seeds
    results = [
        result_of(command=f"x --seed {seed}", seed=seed, ours=name, test={"top1": top1, "loss": 1.0, "f1_macro": f1})
        for name, seeds in figures.items()
        for seed, (top1, f1) in enumerate(seeds)
    ]
    told = "F1, the mean over the classes: reported 78.2 as a mean over batches, which counts lower where classes are "
    told += "many; our better, over the whole split: 87.2."
    assert told in table(EXPERIMENTS["tigges-cifar10"], results).splitlines()
    assert "F1" not in table(EXPERIMENTS["lyon-mnist"], results)


def test_a_table_says_what_has_not_been_run():
    lyon, ours = EXPERIMENTS["lyon-mnist"], result_of(command="vitreous train mnist --seed 0", ours="recipe")
    assert table(lyon, []).endswith("\n\nNot measured yet.")
    assert table(lyon, [ours]).endswith("\n\nThe original has not been run here yet.")
    for results in ([result_of()], [ours, result_of(epochs=2)], [result_of(["final-norm"])]):
        assert table(lyon, results).splitlines()[-1].startswith("| ")


def test_a_document_without_a_place_for_a_table_is_noticed():
    with pytest.raises(AssertionError, match="0 places for <!-- results: lyon-mnist"):
        filled("no places", [])


def test_a_list_holds_every_row_of_the_first_seed_before_the_next():
    names = [job.name for job in reproduction_runs.jobs("lyon-mnist", list(reproduction_runs.ROWS), 2, None)]
    assert names[:2] == ["lyon-mnist--faithful--0", "lyon-mnist--softmax-loss--0"] and "lyon-mnist--all--0" in names
    assert [name.endswith("--1") for name in names] == [False] * 11 + [True] * 11
    short = [job.name for job in reproduction_runs.jobs("tigges-cifar10", ["faithful"], 1, 5)]
    assert short == ["tigges-cifar10-5-epochs--faithful--0"]


def test_finished_runs_are_skipped_and_each_other_one_leaves_a_file(digits_like, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction_runs, "FOLDER", tmp_path)
    done = tmp_path / "lyon-mnist-1-epochs--faithful--0.json"
    done.write_text("{}")
    arguments = ["lyon-mnist", "--rows", "faithful", "all", "--seeds", "2", "--epochs", "1"]
    monkeypatch.setattr("sys.argv", ["reproduction_runs.py", *arguments])
    reproduction_runs.main()
    assert done.read_text() == "{}" and len(list(tmp_path.iterdir())) == 4
    results = json.loads((tmp_path / "lyon-mnist-1-epochs--all--1.json").read_text())
    assert results["seed"] == 1 and len(results["fixed"]) == len(EXPERIMENTS["lyon-mnist"].fixes)
    assert "all fixed, short" in table(EXPERIMENTS["lyon-mnist"], [results])


def test_our_recipes_are_run_beside_them(digits_like, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduction_runs, "load", lambda source: digits_like)
    ours = reproduction_runs.Ours("lyon-mnist", "`mnist`", "mnist", ("epochs=1", "optim.batch_size=16"), "tiny", seed=1)
    results = json.loads(json.dumps(ours.train("cpu")))
    assert ours.name == "lyon-mnist--ours--mnist--tiny--1"
    assert ours.command == "vitreous train mnist epochs=1 optim.batch_size=16 --recipe mnist --seed 1"
    row = rows_of(table(EXPERIMENTS["lyon-mnist"], [results]))[1]
    assert row[0] == "**our `mnist`**" and row[5] == "1" and results["multiply_adds"] > 147_000
    assert "caution" not in results  # which may name images by their path


def test_our_folds_are_cut_from_all_images_those_for_testing_too(tmp_path, monkeypatch):
    for split, count in (("train", 6), ("test", 4)):
        for label in ("bread", "soup"):
            folder = tmp_path / "food" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (i * 20, 99, 40 * (label == "soup"))).save(folder / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduction_runs, "load", lambda source: load(tmp_path / "food"))
    small = ("epochs=1", "model.image_size=8", "model.patch_size=4", "data.val_fraction=0")
    ours = reproduction_runs.Ours("paper-b16-pizza", "label", "photos", small, folds=2)
    results = json.loads(json.dumps(ours.train("cpu")))
    assert ours.name == "paper-b16-pizza--ours--photos--2-folds--0"
    folds = [json.loads(file.read_text()) for file in sorted(Path("runs").rglob("fold-*/results.json"))]
    assert [fold["test"]["count"] for fold in folds] == [10, 10] and len(results["top1"]) == 2


# --- real images ---


REAL = [(name, fixes) for name in EXPERIMENTS for fixes in ((), ("all",)) if name.startswith("lyon") or not fixes]
REAL = [pytest.param(*pair, marks=[pytest.mark.slow] * (pair[0] == "paper-b16-pizza")) for pair in REAL]


@pytest.mark.parametrize(("name", "fixes"), REAL)
def test_it_trains_some_steps_on_real_images(real_data, name, fixes):
    experiment = EXPERIMENTS[name]
    real_data(experiment.source)
    count, batch = (40, 16) if name.startswith("lyon") else (4, 2)
    results = run(replace(experiment, batch_size=batch), experiment.named(fixes), epochs=1, images=count)
    assert results["test"]["count"] == results["train_images"] == count and results["epochs"] == 1
    assert math.isfinite(results["test"]["loss"]) and math.isfinite(results["history"][0]["train_loss"])
    if not fixes:
        assert results["params"] == experiment.parameters
