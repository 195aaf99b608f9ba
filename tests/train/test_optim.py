"""Which weights decay, which are Muon's, how the rate goes by step, and the moving average of the weights."""

import copy
import math
import warnings
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vitreous.model import ViT, ViTConfig
from vitreous.recipe import OptimOptions
from vitreous.train import optim
from vitreous.train.optim import EMA, Muon, make_optimizers, orthogonalised, rate_factor, set_rates

STEPS = [1, 2, 3, 7, 10, 20, 99, 1000]


def full_model(**fields):
    torch.manual_seed(0)
    options = {
        "image_size": 8, "patch_size": 4, "channels": 1, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2,
        "patch_embedding": "conv_stem", "stem_channels": (8,), "registers": 2, "layer_scale": 0.1, "qk_norm": True,
        "head_hidden": 8,
    }  # fmt: skip
    return ViT(ViTConfig(**(options | fields)))


def names_of(model, weights):
    names = {id(weight): name for name, weight in model.named_parameters()}
    return sorted(names[id(weight)] for weight in weights)


def matrices_and_kernels(model):
    """By the kind of module, not by shape or name."""
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    return sorted(f"{name}.weight" for name, _ in layers)


# --- groups ---


@pytest.mark.parametrize("pool", ["cls", "attention"])
@pytest.mark.parametrize("positions", ["learned", "sincos_learned", "rope"])
def test_only_matrices_and_kernels_decay(pool, positions):
    model = full_model(pool=pool, positions=positions)
    (optimizer,) = make_optimizers(model, OptimOptions(weight_decay=0.3))
    decayed, plain = optimizer.param_groups
    assert names_of(model, decayed["params"]) == matrices_and_kernels(model)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))
    left = names_of(model, plain["params"])
    assert ("class_token" in left) == (pool == "cls") and "registers" in left
    assert ("positions" in left) == (positions != "rope")


def test_muon_gets_exactly_the_matrices_of_the_blocks():
    model = full_model()
    options = OptimOptions(
        name="muon", learning_rate=0.5, muon_learning_rate=0.25, muon_weight_decay=0.125, muon_momentum=0.75
    )
    adamw, muon = make_optimizers(model, options)
    assert isinstance(muon, Muon) and isinstance(adamw, torch.optim.AdamW)
    (group,) = muon.param_groups
    linears = ("attention.qkv", "attention.proj", "mlp.fc1", "mlp.fc2")
    assert names_of(model, group["params"]) == sorted(f"blocks.{i}.{name}.weight" for i in (0, 1) for name in linears)
    assert (group["lr"], group["weight_decay"], group["momentum"]) == (0.25, 0.125, 0.75)
    others = [weight for group in adamw.param_groups for weight in group["params"]]
    everything = names_of(model, [*group["params"], *others])
    assert everything == sorted(name for name, _ in model.named_parameters())  # each once
    assert not any(name.startswith("blocks.") for name in names_of(model, adamw.param_groups[0]["params"]))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_rate_falls_by_layer_from_the_head_to_the_embedding(name):
    model = full_model()
    options = OptimOptions(name=name, learning_rate=1.0, muon_learning_rate=1.0, layer_decay=0.5)
    optimizers = make_optimizers(model, options)
    assert optimizers[0].param_groups[0]["lr"] == 1.0  # the head's, which metrics.csv shows
    rate = {}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        rate |= {name: (group["lr"], group["peak"]) for name in names_of(model, group["params"])}
    assert rate.keys() == dict(model.named_parameters()).keys()
    for weight, (lr, peak) in rate.items():  # of two blocks: BEiT's 0.5 ** (2 + 1 - layer)
        first = weight.split(".")[0]
        expected = {"head": 1, "norm": 1, "pool": 1, "patches": 1 / 8, "blocks": 1 / 4 if ".0." in weight else 1 / 2}
        assert lr == peak == expected.get(first, 1 / 8), weight


def test_no_decay_by_layer_leaves_two_groups_in_the_models_order():
    model = full_model()
    (optimizer,) = make_optimizers(model, OptimOptions())
    named = list(model.named_parameters())
    decayed = matrices_and_kernels(model)
    assert [id(weight) for weight in optimizer.param_groups[0]["params"]] == [id(w) for n, w in named if n in decayed]
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_is_frozen_is_not_optimised(name):
    model = full_model()
    model.freeze(1)
    optimizers = make_optimizers(model, OptimOptions(name=name, weight_decay=0.5))
    given = [w for optimizer in optimizers for group in optimizer.param_groups for w in group["params"]]
    frozen = ("class_token", "registers", "positions", "patches.", "blocks.0.")
    expected = [n for n, _ in model.named_parameters() if not n.startswith(frozen)]
    assert names_of(model, given) == sorted(expected)


def test_options_reach_adamw():
    (optimizer,) = make_optimizers(full_model(), OptimOptions(learning_rate=0.5, betas=(0.8, 0.95)))
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.95)}


def test_a_rate_is_a_share_of_each_groups_own_peak():
    optimizers = make_optimizers(full_model(), OptimOptions(name="muon", learning_rate=0.5, muon_learning_rate=0.25))
    for factor in (0.5, 0.1):  # of the peak, not of the rate before
        set_rates(optimizers, factor)
        assert [group["lr"] for group in optimizers[0].param_groups] == [0.5 * factor] * 2
        assert optimizers[1].param_groups[0]["lr"] == 0.25 * factor


# --- Muon ---

SHAPES = [(24, 8), (8, 8), (16, 8), (8, 16)] * 2  # of two blocks


def matrices(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def ten_steps(optimizer, weights, gradients):
    """How far ten steps take each weight from its start. gradients: (number of the weight, step) -> its gradient."""
    start = [weight.detach().clone() for weight in weights]
    for step in range(10):
        set_rates([optimizer], 1 - step / 20)
        for i, weight in enumerate(weights):
            weight.grad = gradients(i, step)
        optimizer.step()
    return [weight.detach() - before for weight, before in zip(weights, start, strict=True)]


def random_gradient(i, step):
    return matrices([SHAPES[i % 8]], seed=100 * step + i)[0].detach() * 10 ** (i - 4)  # of any size


def with_peaks(optimizer):
    for group in optimizer.param_groups:
        group["peak"] = group["lr"]
    return optimizer


def test_muon_goes_where_torchs_goes():
    ours, theirs = matrices(SHAPES), matrices(SHAPES)
    settings = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9}
    ours = ten_steps(with_peaks(Muon(ours, **settings)), ours, random_gradient)
    theirs = ten_steps(with_peaks(torch.optim.Muon(theirs, **settings)), theirs, random_gradient)
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() < 0.02 * b.norm()  # torch rounds to bfloat16, 0.4%, at each of its five iterations


def test_split_matrices_are_updated_as_if_each_stood_alone():
    whole, thirds = (
        matrices([(24, 8)] * 2),
        [nn.Parameter(t.detach().clone()) for w in matrices([(24, 8)] * 2) for t in w.chunk(3)],
    )
    settings = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9}
    split = ten_steps(
        with_peaks(Muon([{"params": whole, "parts": 3}], **settings)),
        whole,
        lambda i, step: random_gradient(8 * i, step),
    )
    alone = ten_steps(
        with_peaks(Muon(thirds, **settings)),
        thirds,
        lambda i, step: random_gradient(8 * (i // 3), step).chunk(3)[i % 3],
    )
    torch.testing.assert_close(split, [torch.cat(alone[:3]), torch.cat(alone[3:])], rtol=1e-4, atol=1e-5)
    together = matrices([(24, 8)] * 2)
    together = ten_steps(with_peaks(Muon(together, **settings)), together, lambda i, step: random_gradient(8 * i, step))
    assert (together[0] - split[0]).norm() > 0.1 * split[0].norm()


def test_a_kernel_is_updated_as_its_matrix_of_output_channels_whatever_its_memory_format():
    start = matrices([(24, 8)])[0].detach().view(24, 2, 2, 2)
    kernel = nn.Parameter(start.contiguous(memory_format=torch.channels_last))
    matrix = nn.Parameter(kernel.detach().flatten(1).clone())
    settings = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9}

    def as_kernel(i, step):
        return random_gradient(i, step).view_as(start)

    (a,) = ten_steps(with_peaks(Muon([kernel], **settings)), [kernel], as_kernel)
    (b,) = ten_steps(with_peaks(Muon([matrix], **settings)), [matrix], random_gradient)
    torch.testing.assert_close(a.flatten(1), b)
    assert kernel.is_contiguous(memory_format=torch.channels_last)


class Replayed(optim.CapturedUpdate):
    """Without CUDA: its graph, too, sees only the tensors that it was made with."""

    def __init__(self, update, gradients):
        self.gradients, self.lr = [torch.empty_like(gradient) for gradient in gradients], torch.empty(())
        self.graph = SimpleNamespace(replay=lambda: update(self.gradients, self.lr))


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_captured_steps_are_those_that_are_not(monkeypatch, where):
    """A state of two steps earlier is loaded at the sixth; what was captured must not go on with the one before."""
    if where == "cpu":
        monkeypatch.setattr(optim, "CapturedUpdate", Replayed)
    settings, found, counts = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.9}, [], []
    for recording in ((where,), ()):
        monkeypatch.setattr(optim, "CAPTURING", recording)
        weights = [nn.Parameter(weight.detach().to(where)) for weight in matrices([*SHAPES, (24, 2, 2, 2)])]
        muon = with_peaks(Muon([{"params": weights[:2], "parts": 2}, {"params": weights[2:]}], **settings))
        saved = {}

        def gradient(i, step, muon=muon, weights=weights, saved=saved):
            if i == 0:
                counts.append(sum(made is not None for made in muon._captured.values()))
                saved[step] = copy.deepcopy(muon.state_dict())
                if step == 5:
                    muon.load_state_dict(saved[3])
                    set_rates([muon], 1 - step / 20)
            return random_gradient(i % 8, step).flatten()[: weights[i].numel()].view_as(weights[i]).to(where)

        found.append(ten_steps(muon, weights, gradient))
    assert counts == [0, 0, 2, 2, 2, 2, 0, 2, 2, 2] + [0] * 10
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() < 1e-3 * b.norm()


def test_muon_gets_the_patch_embedding_where_it_is_told_to():
    model = full_model()
    adamw, muon = make_optimizers(model, OptimOptions(name="muon", muon_patches=True))
    found = names_of(model, muon.param_groups[0]["params"])
    assert [name for name in found if not name.startswith("blocks.")] == [
        "patches.layers.0.weight",
        "patches.layers.3.weight",
    ]
    assert len(found) == 2 + 8
    left = [weight for group in adamw.param_groups for weight in group["params"]]
    assert len(left) + len(found) == len(list(model.parameters()))


def test_queries_keys_and_values_are_one_matrix_or_three():
    model = full_model()
    for split, parts in ((False, {None}), (True, {None, 3})):
        _, muon = make_optimizers(model, OptimOptions(name="muon", muon_split_qkv=split))
        assert {group.get("parts") for group in muon.param_groups} == parts
        found = names_of(model, [weight for group in muon.param_groups for weight in group["params"]])
        assert len(found) == len(set(found)) == 8
        if split:
            assert names_of(model, muon.param_groups[1]["params"]) == [
                f"blocks.{i}.attention.qkv.weight" for i in (0, 1)
            ]
        assert {group["peak"] for group in muon.param_groups} == {0.02}


@pytest.mark.parametrize("shape", [(5, 6, 6), (3, 4, 12), (3, 12, 4)])
def test_orthogonalised_matrices_keep_their_directions_and_have_singular_values_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    values = u.mT @ orthogonalised(matrices) @ v.mT
    diagonal = values.diagonal(dim1=1, dim2=2)
    assert diagonal.min() > 0.5 and diagonal.max() < 1.3
    assert (values - torch.diag_embed(diagonal)).abs().max() < 0.03


def test_matrices_are_orthogonalised_alike_in_bfloat16_where_that_is_fast(monkeypatch):
    matrices = torch.randn(2, 48, 32, generator=torch.Generator().manual_seed(0))
    found = []
    for fast in (False, True):
        monkeypatch.setattr(optim, "has_fast_bf16", lambda device, fast=fast: fast)
        found.append(orthogonalised(matrices))
    assert found[1].dtype == torch.float32 and not torch.equal(*found)
    assert (found[1] - found[0]).abs().max() < 0.02 and found[0].abs().max() > 0.3


def test_muon_leaves_a_weight_without_a_gradient_alone_and_a_zero_gradient_is_no_fault():
    weights = matrices([(8, 8), (8, 8)])
    weights[1].grad = torch.zeros(8, 8)
    before = [weight.detach().clone() for weight in weights]
    Muon(weights, lr=0.1, weight_decay=0.5, momentum=0.9).step()
    assert torch.equal(weights[0], before[0])
    torch.testing.assert_close(weights[1], before[1] * 0.95)


# --- rates ---


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.99])
def test_warmup_is_linear_and_takes_its_share_of_the_steps(schedule, steps, share):
    options = OptimOptions(schedule=schedule, warmup=share, final_rate=0.1)
    factors = [rate_factor(options, step, steps) for step in range(steps)]
    rising = round(share * steps)
    assert factors[:rising] == pytest.approx([(i + 1) / (rising + 1) for i in range(rising)])
    assert all(0 < factor <= 1 for factor in factors)
    if rising < steps:
        assert factors[rising] == 1  # the peak is reached right after it
        assert all(a >= b for a, b in pairwise(factors[rising:]))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("final", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("steps", [step for step in STEPS if step > 1])
def test_the_last_step_has_the_final_rate(schedule, final, steps):
    options = OptimOptions(schedule=schedule, warmup=0.1, final_rate=final)
    assert rate_factor(options, steps - 1, steps) == pytest.approx(final, abs=1e-12)
    assert rate_factor(options, steps - 0.1, steps) == rate_factor(options, steps - 1, steps)  # by the clock


def test_cosine_and_linear_are_curves_of_their_name():
    options = OptimOptions(schedule="cosine", warmup=0.0, final_rate=0.2)
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * step / 10)) / 2 for step in range(11)]
    assert [rate_factor(options, step, 11) for step in range(11)] == pytest.approx(expected)
    options = OptimOptions(schedule="linear", warmup=0.0, final_rate=0.2)
    expected = [1 - 0.08 * step for step in range(11)]
    assert [rate_factor(options, step, 11) for step in range(11)] == pytest.approx(expected)


def test_constant_stays_at_the_peak():
    options = OptimOptions(schedule="constant", warmup=0.2, final_rate=0.0)
    assert {rate_factor(options, step, 50) for step in range(10, 50)} == {1.0}


@pytest.mark.parametrize("steps", [step for step in STEPS if step > 1])
def test_onecycle_equals_torch(steps):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scheduler that is asked before the first step
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=steps)
    options = OptimOptions(schedule="onecycle", warmup=0.3, final_rate=0.5)  # which it does without
    for step in range(steps):
        assert rate_factor(options, step, steps) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-6)
        assert rate_factor(options, steps - 0.1, steps) == rate_factor(options, steps - 1, steps)
        optimizer.step()
        if step < steps - 1:
            scheduler.step()


def test_onecycle_of_one_step_trains():
    assert 0.01 < rate_factor(OptimOptions(schedule="onecycle"), 0, 1) <= 1


# --- the moving average ---


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def walk(model, count, seed=1):
    """The states of a model whose weights and buffers change at random."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(count):
        with torch.no_grad():
            for value in model.state_dict().values():
                if value.is_floating_point():
                    value.copy_(torch.randn(value.shape, generator=generator))
                else:
                    value.fill_(3 * step + 1)
        yield step, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("decay", [0.05, 0.5, 0.99])
def test_the_average_is_the_one_worked_out_by_hand(decay):
    model = small_model()
    average, expected = EMA(model, decay), None
    for step, state in walk(model, 30):
        average.update(step)
        now = min(decay, (1 + step) / (10 + step))
        for name, value in state.items():
            if expected is None or not value.is_floating_point():
                continue
            state[name] = now * expected[name].double() + (1 - now) * value.double()
        expected = state
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-5, atol=1e-6)
    assert average.module[1].num_batches_tracked == 3 * 29 + 1  # integers are taken as they are
    assert average.module[1].num_batches_tracked.dtype == torch.int64


def test_the_average_leaves_the_model_alone():
    model = small_model()
    average = EMA(model, 0.9)
    for step, state in walk(model, 3):
        average.update(step)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(
        a.data_ptr() != b.data_ptr() for a, b in zip(average.module.parameters(), model.parameters(), strict=True)
    )
