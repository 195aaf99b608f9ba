"""The same Vision Transformer from six sources, trained and run side by side.

    python benchmarks/peers.py                 # 32 px, minutes on two cores; writes results/peers-avx2.json or the like
    python benchmarks/peers.py --model B/16    # 224 px; writes results/peers-B-16-avx2.json or the like
    python benchmarks/peers.py --compiled      # each of them through torch.compile too, which takes much longer
    python benchmarks/peers.py --quick         # seconds, on a toy batch; writes nothing

All get the same batch, AdamW and loss, a class token and learned positions; every peer runs in float32 and, where the
processor multiplies bf16 faster, under bf16 autocast. As its user would run it, each trains in a process of its own
and infers in another, which do nothing else: what glibc has given back to the system has to be fetched again, and how
much that is depends on what a process did before. Ours keeps on a CPU what memory a step frees (`device.keep_memory`),
and stands there without that too. Beside images a second stand the rate of the model's products, as a share of that of
a plain product, which takes its turn among the peers, and the peak memory of training.
"""

import argparse
import functools
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import torch
from measure import RESULTS, declare_torchvision_operators, interleaved, machine, now, save, units
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.device import autocast, peak_memory, pick_device, pick_precision
from vitreous.doctor import installed
from vitreous.model import ViT, ViTConfig

CLASSES = 10
KINDS = ("training", "inference")
OURS, RETURNED = "vitreous", "vitreous, memory returned"  # the second: as glibc treats a process by itself
PRODUCT = "a plain product"


class Shape(NamedTuple):
    """What all peers are made to be; `batch` images are a step."""

    side: int
    patch: int
    dim: int
    depth: int
    heads: int
    hidden: int
    batch: int


SHAPES = {
    "small": Shape(32, 4, 256, 6, 8, 512, 128),
    "Ti/16": Shape(224, 16, 192, 12, 3, 768, 32),
    "B/16": Shape(224, 16, 768, 12, 12, 3072, 8),
}


class TextbookBlock(nn.Module):
    """A block as written in tutorials."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(shape.dim), nn.LayerNorm(shape.dim)
        self.attention = nn.MultiheadAttention(shape.dim, shape.heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(shape.dim, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, shape.dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Textbook(nn.Module):
    """A Vision Transformer as written in tutorials, with `nn.MultiheadAttention`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        D = shape.dim
        self.patches = nn.Conv2d(3, D, shape.patch, stride=shape.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, D))
        self.positions = nn.Parameter(torch.randn(1, 1 + (shape.side // shape.patch) ** 2, D) * 0.02)
        self.blocks = nn.Sequential(*(TextbookBlock(shape) for _ in range(shape.depth)))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def config_of(shape: Shape) -> ViTConfig:
    return ViTConfig(
        image_size=shape.side,
        patch_size=shape.patch,
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        mlp_ratio=shape.hidden / shape.dim,
        num_classes=CLASSES,
    )


def ours(shape: Shape) -> nn.Module:
    return ViT(config_of(shape))


def transformers(shape: Shape) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=shape.side,
        patch_size=shape.patch,
        hidden_size=shape.dim,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=shape.hidden,
        num_labels=CLASSES,
    )
    return ViTForImageClassification(config)


def timm_model(config: ViTConfig) -> nn.Module:
    """timm's Vision Transformer with the blocks of `config`; its patch embedding is one linear map."""
    declare_torchvision_operators()
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        in_chans=config.channels,
        embed_dim=config.dim,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=config.mlp_ratio,
        num_classes=config.num_classes,
    )


def timm(shape: Shape) -> nn.Module:
    return timm_model(config_of(shape))


def torchvision(shape: Shape) -> nn.Module:
    from torchvision.models import VisionTransformer

    side, patch, dim, depth, heads, hidden, _ = shape
    return VisionTransformer(side, patch, depth, heads, dim, hidden, num_classes=CLASSES)


def vit_pytorch(shape: Shape) -> nn.Module:
    from vit_pytorch import ViT

    return ViT(
        image_size=shape.side,
        patch_size=shape.patch,
        num_classes=CLASSES,
        dim=shape.dim,
        depth=shape.depth,
        heads=shape.heads,
        mlp_dim=shape.hidden,
        dim_head=shape.dim // shape.heads,
    )


PEERS: dict[str, Callable[[Shape], nn.Module]] = {
    OURS: ours,
    RETURNED: ours,
    "textbook": Textbook,
    "transformers": transformers,
    "timm": timm,
    "torchvision": torchvision,
    "vit-pytorch": vit_pytorch,
}


class Peer:
    """A model on its device, with its optimiser and a batch (B, C, H, W) of noise. call: the model, or it compiled."""

    def __init__(self, model: nn.Module, call: Callable[[Tensor], Tensor], images: Tensor, classes: int):
        self.model, self.call, self.images = model, call, images
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
        self.labels = torch.randint(classes, (len(images),), device=images.device)

    def logits(self, precision: str) -> Tensor:
        with autocast(self.images.device, precision):
            output = self.call(self.images)
        return getattr(output, "logits", output)

    def training(self, precision: str) -> None:
        self.model.train()
        loss = nn.functional.cross_entropy(self.logits(precision).float(), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.inference_mode()
    def inference(self, precision: str) -> None:
        self.model.eval()
        self.logits(precision)


here: dict[str, Peer] = {}  # by mode: the models of this process


def make(name: str, shape: Shape, device: str, modes: list[str]) -> int:
    """Make a peer in this process, once for each mode; returns the number of its parameters."""
    declare_torchvision_operators()
    chosen = torch.device(device) if device == "cpu" and name != OURS else pick_device(device)
    for mode in modes:
        torch.manual_seed(0)
        model = PEERS[name](shape).to(chosen)
        images = torch.randn(shape.batch, 3, shape.side, shape.side, device=chosen)
        here[mode] = Peer(model, torch.compile(model) if mode == "compiled" else model, images, CLASSES)
    return sum(weight.numel() for weight in here["eager"].model.parameters())


def run(kind: str, mode: str, precision: str) -> None:
    """A step of this process's model to its end."""
    peer = here[mode]
    getattr(peer, kind)(precision)
    now(peer.images.device)


def side(device: str) -> int:
    """Of the square matrices whose product is timed beside the peers."""
    return 2048 if device == "cpu" else 16384


@functools.cache
def matrix(device: str, precision: str) -> Tensor:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return torch.randn(side(device), side(device), device=device).to(dtype)


def multiply(device: str, precision: str) -> None:
    """A plain product to its end."""
    matrix(device, precision) @ matrix(device, precision)
    now(torch.device(device))


def flops(step: Callable[..., object], *arguments: object) -> int:
    """Of the matrix products and convolutions in step(*arguments), counting a multiply-add as two."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # fused attention is not counted
        step(*arguments)
    return counter.get_total_flops()


def training_peak(name: str, shape: Shape, device: str, precision: str) -> float:
    """MiB that this process, a fresh one, needs at most for the model, its optimiser and three training steps.

    On a CPU its imports are not counted.
    """
    make(name, SHAPES["small"]._replace(batch=2, depth=1), device, ["eager"])
    run("training", "eager", precision)  # brings all libraries in
    before = peak_memory(torch.device("cpu"))
    make(name, shape, device, ["eager"])
    for _ in range(3):
        run("training", "eager", precision)
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 2**20
    return (peak_memory(torch.device("cpu")) - before) / 2**20


def process() -> ProcessPoolExecutor:
    """A fresh process that does what it is given, one call after the other."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def step(process: ProcessPoolExecutor, do: Callable[..., None], *what: str) -> None:
    process.submit(do, *what).result()


def present(shape: Shape, device: str) -> tuple[dict[str, int], dict[str, int], dict[str, str]]:
    """Parameters and `flops` of a training step of each peer that imports, and why the others do not."""
    parameters, work, missing = {}, {}, {}
    for name in PEERS:
        with process() as fresh:
            try:
                parameters[name] = fresh.submit(make, name, shape, device, ["eager"]).result()
            except Exception as error:  # a broken install raises anything
                missing[name] = f"{type(error).__name__}: {error}".splitlines()[0].split(" (/")[0]
            else:
                work[name] = fresh.submit(flops, run, "training", "eager", "float32").result()
    for name, count in parameters.items():
        assert abs(count / parameters[OURS] - 1) < 0.02, f"{name} has {count:,} parameters"
    return parameters, work, missing


def timed(
    names: Iterable[str],
    kind: str,
    precision: str,
    shape: Shape,
    device: torch.device,
    modes: list[str],
    rounds: int,
    steps: int,
) -> dict[tuple[str, str], dict[str, float]]:
    """Seconds of a step of each peer in each mode, and of a plain product, side by side in fresh processes, as
    `interleaved` gives them."""
    with ExitStack() as stack:  # the processes end with it, after an error, too
        processes = {name: stack.enter_context(process()) for name in (*names, PRODUCT)}
        calls = {(PRODUCT, "eager"): functools.partial(step, processes[PRODUCT], multiply, str(device), precision)}
        for name in names:
            processes[name].submit(make, name, shape, str(device), modes).result()
            for mode in modes:
                calls[name, mode] = functools.partial(step, processes[name], run, kind, mode, precision)
        return interleaved(calls, device, rounds, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="small")
    parser.add_argument("--compiled", action="store_true", help="torch.compile each of them too")
    parser.add_argument("--quick", action="store_true", help="a batch of 8 in one precision, no memory, no file")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device, shape = pick_device(options.device), SHAPES[options.model]
    rounds, steps = (11, 2) if options.model == "small" else (5, 1)
    if options.quick:
        shape, rounds, steps = shape._replace(batch=8), 3, 1

    default, hardware = pick_precision("auto", device), machine(device)
    modes = ["eager", "compiled"] if options.compiled else ["eager"]
    parameters, work, missing = present(shape, str(device))
    precisions = [default] if options.quick else list(dict.fromkeys(("float32", default)))
    timings = {
        (kind, precision): timed(parameters, kind, precision, shape, device, modes, rounds, steps)
        for kind in KINDS
        for precision in precisions
    }

    work_of_product = 2 * side(device.type) ** 3 / 1e9
    rates = {name: work_of_product / timings["training", name][PRODUCT, "eager"]["median"] for name in precisions}

    rows = []
    for name, mode, precision in itertools.product(parameters, modes, precisions):
        package = {"textbook": "torch", RETURNED: OURS}.get(name, name)
        row = {"name": name, "version": installed(package), "mode": mode}
        row |= {"precision": precision, "parameters": parameters[name]}
        row |= {"training_gflop_per_image": work[name] / shape.batch / 1e9}
        for kind in KINDS:
            own = timings[kind, precision][name, mode]
            row[kind] = {
                "images_per_second": shape.batch / own["median"],
                "quartiles": [shape.batch / own["high"], shape.batch / own["low"]],
                "ours_is_faster_by": own["median"] / timings[kind, precision][OURS, mode]["median"],
                "ours_by_default_is_faster_by": own["median"] / timings[kind, default][OURS, "eager"]["median"],
            }
        achieved = row["training_gflop_per_image"] * row["training"]["images_per_second"]  # GFLOP/s
        row["training"]["share_of_product_rate"] = achieved / rates[precision]
        if not options.quick and mode == "eager":
            with process() as fresh:
                row["training"]["peak_mib"] = fresh.submit(training_peak, name, shape, str(device), precision).result()
        rows.append(row)

    show(rows, missing, default)
    if not options.quick:
        results = {"machine": hardware, "model": options.model, "shape": shape._asdict()}
        results |= {"rounds": rounds, "steps": steps, "product_gflops": rates}
        model = "" if options.model == "small" else f"-{options.model.replace('/', '-')}"
        results |= {"default": default, "missing": missing, "rows": rows}
        save(RESULTS / f"peers{model}-{units(device)}.json", results)


def show(rows: list[dict], missing: dict[str, str], default: str) -> None:
    """Print the table and, below it, who is missing."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(title=f"images a second; ours is faster by: in the same precision, in {default}; MiB at the peak")
    for header in ("peer", "precision"):
        table.add_column(header, no_wrap=True)
    for header in ("training", "same", default, "of products", "MiB", "inference", "same", default):
        table.add_column(header, justify="right")
    for row in rows:
        training, inference = row["training"], row["inference"]
        name = row["name"] if row["mode"] == "eager" else f"{row['name']}, compiled"
        table.add_row(
            name,
            row["precision"],
            *faster(training),
            f"{training['share_of_product_rate']:.0%}",
            f"{training['peak_mib']:,.0f}" if "peak_mib" in training else "",
            *faster(inference),
        )
    console.print(table)
    for name, reason in missing.items():
        console.print(f"{name} is left out: {reason}", markup=False)


def faster(figures: dict) -> list[str]:
    return [
        f"{figures['images_per_second']:,.0f}",
        f"{figures['ours_is_faster_by']:.2f}",
        f"{figures['ours_by_default_is_faster_by']:.2f}",
    ]


if __name__ == "__main__":
    main()
