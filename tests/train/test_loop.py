"""The loop never waits for its device within a pass, and compiles the model where that is asked for."""

import contextlib
import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tiny import equal, tiny_recipe, tiny_set, weights_of
from torch.utils._python_dispatch import TorchDispatchMode

from vitreous import device
from vitreous.data.loaders import Batches
from vitreous.device import autocast, compiled, compiling_lacks
from vitreous.model import ViT
from vitreous.preprocess import Preprocess
from vitreous.recipe import read_recipe
from vitreous.train import loop, teacher
from vitreous.train import state as state_module
from vitreous.train.engine import Engine
from vitreous.train.loop import Hooks, Parts, forward_backward, train_loop
from vitreous.train.optim import EMA, make_optimizers
from vitreous.train.order import epoch_rows
from vitreous.train.run import fit
from vitreous.train.teacher import Teacher

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own

STEPS = 6  # of a pass over 48 images in batches of 8
EVERYTHING = {
    "model": {
        "patch_embedding": "conv_stem", "stem_channels": (8,), "patch_size": 2, "norm": "rmsnorm", "qk_norm": True,
        "positions": "rope", "pool": "attention", "drop_path": 0.3, "dropout": 0.1, "depth": 2,
        "mlp_conv": True,
    },
    "augment": {
        "flip": 0.5, "alternate_flip": True, "crop_scale": (0.5, 1), "color": 0.3, "randaugment_ops": 2, "erase": 0.3,
        "mixup": 0.5, "cutmix": 0.5, "mix_until": 0.5, "shrink": 0.5,
    },
    "optim": {
        "name": "muon", "muon_split_qkv": True, "muon_patches": True, "ema": 0.9, "accumulate": 2,
        "label_smoothing": 0.1,
    },
}  # fmt: skip


class Copies(TorchDispatchMode):
    """Counts copies from the host to the `meta` device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            source = args[0] if func is torch.ops.aten._to_copy.default else args[1]
            self.count += source.device.type == "cpu" and result.device.type == "meta"
        return result


def engine_on(where):
    """That of a run; none is started on the `meta` device, so there it is told."""
    engine = Engine("cpu" if where == "meta" else where)
    engine.device = torch.device(where)
    return engine


def start(recipe, where):
    """What `train_loop` needs for 48 images on a device."""
    data = tiny_set(channels=3)
    recipe = recipe.resolve(image_size=(8, 8), channels=3, num_classes=3)
    preprocess = Preprocess(image_size=8, mean=(0.4,) * 3, std=(0.2,) * 3)
    model = ViT(recipe.model).to(where)
    return Parts(
        recipe=recipe,
        engine=engine_on(where),
        precision="float32",
        preprocess=preprocess,
        model=model,
        average=EMA(model, recipe.optim.ema),
        optimizers=make_optimizers(model, recipe.optim),
        scaler=torch.amp.GradScaler(where, enabled=False),
        train=Batches(data.train, preprocess, batch_size=recipe.optim.batch_size, device=where),
        val=None,
        teacher=Teacher(copy.deepcopy(model).eval(), preprocess, [0, 1, 2], ""),
    )


def stop_the_clock(monkeypatch):
    """For the loop, nearly: no report before the last step."""
    ticks = itertools.count()
    monkeypatch.setattr(state_module, "time", SimpleNamespace(monotonic=lambda: 1e-6 * next(ticks)))


def test_nothing_is_read_from_the_device_before_a_pass_is_over_and_nothing_sent_at_a_step(monkeypatch):
    """On the `meta` device tensors have no values: whoever reads one, or needs one to know a shape, gets an error."""
    adamw = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *args, **options: adamw(*args, **options | {"fused": False}))
    for module in (loop, teacher):
        monkeypatch.setattr(module, "autocast", lambda *_: contextlib.nullcontext())
    stop_the_clock(monkeypatch)
    copies, seen = Copies(), []
    parts = start(tiny_recipe(epochs=1, **EVERYTHING), "meta")
    hooks = Hooks(on_step=lambda state, loss: seen.append((state.step, copies.count)))
    with copies, pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        train_loop(parts, hooks)
    assert [step for step, _ in seen] == list(range(1, STEPS + 1))
    assert 0 < seen[0][1] == seen[-1][1]


@pytest.mark.parametrize("parts", [1, 2])
def test_the_loss_of_mixed_images_is_that_of_both_labels_by_their_shares(monkeypatch, parts):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")  # a launcher's, for which recipes have a setting
    torch.manual_seed(0)
    model, images = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), torch.randn(4, 3, 2, 2)
    with torch.no_grad():
        model[1].bias[2] = 9.0  # which is then the answer to all
    targets = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.4, 0.6], [0.0, 1.0, 0.0], [0.2, 0.0, 0.8]])
    needed = SimpleNamespace(
        recipe=tiny_recipe(optim={"accumulate": parts, "label_smoothing": 0.0}),
        engine=engine_on("cpu"),
        precision="float32",
        model=model,
        scaler=torch.amp.GradScaler("cpu", enabled=False),
    )
    loss, right = forward_backward(needed, model, images, targets, answers=None, weights=None, size=4).tolist()
    found = model[1].weight.grad.clone()
    model.zero_grad()
    logits = model(images)
    by_hand = -(targets * logits.log_softmax(dim=1)).sum()
    (by_hand / 4).backward()
    assert loss == pytest.approx(by_hand.item(), rel=1e-5)
    torch.testing.assert_close(found, model[1].weight.grad)
    assert right == (logits.argmax(dim=1) == torch.tensor([0, 2, 1, 2])).sum()  # the larger share is the label
    assert right == 2


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore:TensorFloat32", "ignore:\\s*Online softmax")
@pytest.mark.parametrize("choice", [False, True])
def test_a_gpu_is_not_waited_for_between_two_reports(monkeypatch, choice):
    parts = start(tiny_recipe(epochs=2, compile=choice, **EVERYTHING), "cuda")
    stop_the_clock(monkeypatch)
    monkeypatch.setattr(loop, "TOGETHER", 2 * 8 * 8 * 8)  # two batches, so that one is augmented while it is watched

    def watch(state, _):
        torch.cuda.set_sync_debug_mode("error" if state.epoch and state.step < STEPS else "default")

    try:
        assert train_loop(parts, Hooks(on_step=watch))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("first", [0, 2, 3, 4, 5])
def test_batches_augmented_together_are_as_they_are_one_by_one(monkeypatch, first):
    parts = start(tiny_recipe(**EVERYTHING), "cpu")
    recipe, train, fill = parts.recipe, parts.train, torch.full((3,), 0.4)
    order, draws = epoch_rows(train.labels, recipe, 1)

    def mixed(together, first):
        monkeypatch.setattr(loop, "batches_together", lambda *_: together)
        for images, labels, changes in loop.views(train, order, draws, recipe, 1, first, fill):
            yield *loop.mix(images, labels, 3, changes, recipe.augment, 0.0), labels

    one, four = list(mixed(1, 0))[first:], list(mixed(4, first))
    torch.testing.assert_close(four, one)
    assert [len(batch[0]) for batch in four] == [8] * (STEPS - first)


@pytest.mark.parametrize(
    ("where", "resident", "batch", "side", "count"),
    [
        ("cuda", True, 512, 32, 8), ("cuda", True, 512, 96, 1), ("cuda", True, 8192, 32, 1),
        ("cuda", False, 512, 32, 1), ("cpu", True, 512, 32, 1),
    ],
)  # fmt: skip
def test_small_resident_images_are_augmented_together_on_a_gpu(where, resident, batch, side, count):
    size = SimpleNamespace(image_size=(side, side))
    train = SimpleNamespace(device=torch.device(where), resident=resident, batch_size=batch, preprocess=size)
    assert loop.batches_together(train) == count


# --- compiling ---


@pytest.fixture
def compile_calls(monkeypatch):
    """What `torch.compile` is asked for; it compiles nothing."""
    calls = []

    def record(model, **options):
        calls.append(options)
        return lambda images: model(images)

    monkeypatch.setattr(torch, "compile", record)
    return calls


@pytest.mark.parametrize(
    ("choice", "where", "steps", "calls"),
    [
        (False, "cuda", 10_000, []),
        (True, "cpu", 1, [{"mode": None, "dynamic": False}]),
        ("reduce-overhead", "cuda", 1, [{"mode": "reduce-overhead", "dynamic": False}]),
        ("auto", "cpu", 10_000, []),
        ("auto", "cuda", 5000, [{"mode": None, "dynamic": False}]),
        ("auto", "cuda", 4999, []),
    ],
)
def test_the_model_is_compiled_where_the_recipe_says_so(monkeypatch, compile_calls, choice, where, steps, calls):
    monkeypatch.setattr(device, "compiling_lacks", lambda _: "")
    model = torch.nn.Linear(2, 2)
    call = compiled(model, choice, torch.device(where), steps)
    assert compile_calls == calls and (call is model) == (not calls)
    assert torch.equal(call(torch.ones(1, 2)), model(torch.ones(1, 2)))


@pytest.mark.parametrize(("choice", "begun"), [(True, []), ("reduce-overhead", [None, None])])
def test_each_step_of_a_recorded_graph_is_begun(monkeypatch, compile_calls, choice, begun):
    marks = []
    monkeypatch.setattr(device, "compiling_lacks", lambda _: "")
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(None))
    call = compiled(torch.nn.Linear(2, 2), choice, torch.device("cpu"), 1)
    assert [call(torch.ones(1, 2)).shape for _ in range(2)] == [(1, 2)] * 2 and marks == begun


def test_a_gpu_without_what_compiling_needs_trains_as_it_is(monkeypatch, compile_calls, tmp_path):
    monkeypatch.setattr(device, "compiling_lacks", lambda _: "the package triton")
    model = torch.nn.Linear(2, 2)
    assert compiled(model, "auto", torch.device("cuda"), 10_000) is model
    for choice, said in ((True, "true"), ("reduce-overhead", "reduce-overhead")):
        with pytest.raises(
            ValueError, match=rf"^compile={said} needs the package triton, and there is none here: set "
        ):
            compiled(model, choice, torch.device("cuda"), 1)
    monkeypatch.undo()
    (tmp_path / "Python.h").touch()
    for capability, triton, compiler, headers, lacking in [
        ((9, 0), "triton", "/usr/bin/gcc", tmp_path, ""),
        ((6, 1), "triton", "/usr/bin/gcc", tmp_path, "a GPU of compute capability 7.0 or more"),
        ((9, 0), None, "/usr/bin/gcc", tmp_path, "the package triton"),
        ((9, 0), "triton", None, tmp_path, "a compiler such as gcc"),
        ((9, 0), "triton", "/usr/bin/gcc", tmp_path / "none", f"{tmp_path}/none/Python.h (from python3-dev, "),
    ]:
        monkeypatch.setattr(device.sysconfig, "get_path", lambda _, headers=headers: str(headers))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, capability=capability: capability)
        monkeypatch.setattr(device, "find_spec", lambda _, triton=triton: triton)
        monkeypatch.setattr(device.shutil, "which", lambda _, compiler=compiler: compiler)
        found = compiling_lacks(torch.device("cuda"))
        assert found.startswith(lacking) and bool(found) == bool(lacking)


def test_a_compiled_run_leaves_what_any_run_leaves(tmp_path, monkeypatch):
    """Traced as for compiling, but run by the ordinary kernels, so that every bit can be compared."""
    compile_, sizes, runs = torch.compile, [], {}

    def traced(model, **_):
        call = compile_(model, backend="eager")
        return lambda images: sizes.append(len(images)) or call(images)

    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(device, "compiling_lacks", lambda _: "")  # no kernels to compile
    for choice in (False, True):
        recipe = tiny_recipe(epochs=1, compile=choice, model={"drop_path": 0.3, "dropout": 0.1}, optim={"ema": 0.9})
        runs[choice] = fit(
            recipe, tiny_set(channels=3), out=tmp_path / str(choice), pictures=False, console=Console(quiet=True)
        )
    assert sizes == [8] * 4 and equal(weights_of(runs[True].folder), weights_of(runs[False].folder))
    checkpoints = [torch.load(run.folder / "checkpoints" / "last.pt", weights_only=True) for run in runs.values()]
    for part in ("model", "average", "optimizers"):
        assert equal(checkpoints[0][part], checkpoints[1][part])


def test_compiling_needs_a_compiler(monkeypatch, compile_calls):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(device.shutil, "which", lambda _: None)
    with pytest.raises(ValueError, match=r"^compile=true needs a compiler such as g\+\+, and there is none here: set"):
        compiled(torch.nn.Linear(2, 2), True, torch.device("cpu"), 1)
    assert not compile_calls


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("cpu", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_a_compiled_model_has_the_gradients_of_the_model(where):
    """In float32 on a CPU; in bf16 on a GPU, where the two round elsewhere."""
    torch.manual_seed(0)
    recipe = read_recipe("cifar10", ["model.drop_path=0", "model.zero_init=false", "model.depth=2"])
    model = ViT(recipe.resolve(image_size=(32, 32), channels=3, num_classes=10).model).to(where)
    torch.nn.init.normal_(model.head.weight, std=0.1)  # zeros would hide all gradients but the head's
    images, labels = torch.randn(32, 3, 32, 32, device=where), torch.arange(32, device=where) % 10
    found = []
    for choice in (False, True):
        call = compiled(model, choice, torch.device(where), 1)
        with autocast(torch.device(where), "bf16" if where == "cuda" else "float32"):
            logits = call(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        found.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
        model.zero_grad()
    whole = torch.stack([gradient.norm() for gradient in found[0].values()]).norm()
    for name, gradient in found[0].items():
        error = (found[1][name] - gradient).norm()
        assert error <= (0.05 if where == "cuda" else 1e-3) * (gradient.norm() + 1e-2 * whole), name
