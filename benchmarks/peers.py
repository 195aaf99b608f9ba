"""The same Vision Transformer from six sources, trained and run side by side.

    python benchmarks/peers.py                 # 32 px, minutes on two cores; writes results/peers.json
    python benchmarks/peers.py --model B/16    # 224 px; writes results/peers-B-16.json
    python benchmarks/peers.py --compiled      # each of them through torch.compile too, which takes much longer
    python benchmarks/peers.py --quick         # seconds, on a toy batch; writes nothing

All get the same batch, AdamW and loss, a class token and learned positions; every peer runs in float32 and, where the
processor has units for it, under bf16 autocast. Beside images a second stand the share of the machine's matrix-product
rate in that precision that the model's products reach, and the peak memory of a training step, each in a process of
its own.
"""

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import torch
from measure import RESULTS, declare_torchvision_operators, interleaved, machine, process_peak, save
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.device import autocast, pick_device, pick_precision
from vitreous.model import ViT, ViTConfig

CLASSES = 10
OURS = "vitreous"


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
    """A block as tutorials write it."""

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
    """A Vision Transformer as tutorials write it, with `nn.MultiheadAttention`."""

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


def ours(shape: Shape) -> nn.Module:
    return ViT(
        ViTConfig(
            image_size=shape.side,
            patch_size=shape.patch,
            dim=shape.dim,
            depth=shape.depth,
            heads=shape.heads,
            mlp_ratio=shape.hidden / shape.dim,
            num_classes=CLASSES,
        )
    )


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


def timm(shape: Shape) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=shape.side,
        patch_size=shape.patch,
        embed_dim=shape.dim,
        depth=shape.depth,
        num_heads=shape.heads,
        mlp_ratio=shape.hidden / shape.dim,
        num_classes=CLASSES,
    )


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
    "textbook": Textbook,
    "transformers": transformers,
    "timm": timm,
    "torchvision": torchvision,
    "vit-pytorch": vit_pytorch,
}


class Peer:
    """A model with its optimiser, on its device."""

    def __init__(self, name: str, shape: Shape, device: torch.device):
        torch.manual_seed(0)
        self.model = PEERS[name](shape).to(device)
        self.call: Callable[[Tensor], object] = self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
        self.images = torch.randn(shape.batch, 3, shape.side, shape.side, device=device)
        self.labels = torch.randint(CLASSES, (shape.batch,), device=device)
        self.parameters = sum(weight.numel() for weight in self.model.parameters())

    def compiled(self) -> "Peer":
        self.call = torch.compile(self.model)
        return self

    def logits(self, precision: str) -> Tensor:
        with autocast(self.images.device, precision):
            output = self.call(self.images)
        return getattr(output, "logits", output)

    def train(self, precision: str) -> None:
        loss = nn.functional.cross_entropy(self.logits(precision).float(), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.inference_mode()
    def infer(self, precision: str) -> None:
        self.logits(precision)


def make_peers(shape: Shape, device: torch.device, modes: list[str]) -> tuple[dict[tuple[str, str], Peer], dict]:
    """The peers that import, by (name, mode), and why the others do not."""
    peers, missing = {}, {}
    for name in PEERS:
        try:
            for mode in modes:
                peer = Peer(name, shape, device)
                peers[name, mode] = peer.compiled() if mode == "compiled" else peer
        except Exception as error:  # a broken install raises anything
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0].split(" (/")[0]
    return peers, missing


def flops(call: Callable[[], object]) -> int:
    """Of the matrix products and convolutions in a call, a multiplication and an addition being two."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def peak_memory(name: str, shape: Shape, precision: str, device: torch.device) -> float:
    """MiB that a process needs at most for the model, its optimiser and three training steps, its imports not counted.

    On a CPU this process must be a fresh one.
    """
    Peer(name, SHAPES["small"]._replace(batch=2, depth=1), device).train(precision)  # brings all libraries in
    before = process_peak()
    peer = Peer(name, shape, device)
    for _ in range(3):
        peer.train(precision)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return (process_peak() - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="small")
    parser.add_argument("--compiled", action="store_true", help="torch.compile each of them too")
    parser.add_argument("--quick", action="store_true", help="a batch of 8, few rounds, no memory, no file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory", nargs=2, metavar=("PEER", "PRECISION"), help="print that peer's peak memory only")
    options = parser.parse_args()
    device, shape = pick_device(options.device), SHAPES[options.model]
    declare_torchvision_operators()
    if options.memory:
        name, precision = options.memory
        print(json.dumps(peak_memory(name, shape, precision, device)))
        return
    rounds, steps = (7, 2) if options.model == "small" else (5, 1)
    if options.quick:
        shape, rounds, steps = shape._replace(batch=8), 3, 1

    peers, missing = make_peers(shape, device, ["eager", "compiled"] if options.compiled else ["eager"])
    first = peers[OURS, "eager"]
    for (name, _), peer in peers.items():
        assert abs(peer.parameters / first.parameters - 1) < 0.02, f"{name} has {peer.parameters:,} parameters"
    work = {"training": flops(lambda: first.train("float32")), "inference": flops(lambda: first.infer("float32"))}

    default, here = pick_precision("auto", device), machine(device)
    precisions = dict.fromkeys(("float32", default))  # bf16 only where the processor has units for it
    variants = [(name, mode, precision) for name, mode in peers for precision in precisions]
    timings = {}
    for kind, method in (("training", Peer.train), ("inference", Peer.infer)):
        for peer in peers.values():
            peer.model.train(kind == "training")
        calls = {variant: functools.partial(method, peers[variant[:2]], variant[2]) for variant in variants}
        timings[kind] = interleaved(calls, device, rounds, steps)

    rows = []
    for name, mode, precision in variants:
        row = {"name": name, "version": version("torch" if name == "textbook" else name), "mode": mode}
        row |= {"precision": precision, "parameters": peers[name, mode].parameters}
        for kind, seconds in timings.items():
            own = seconds[name, mode, precision]
            row[kind] = {
                "images_per_second": shape.batch / own["median"],
                "quartiles": [shape.batch / own["high"], shape.batch / own["low"]],
                "share_of_product_rate": work[kind] / own["median"] / 1e9 / here["matmul_gflops"][precision],
                "ours_is_faster_by": own["median"] / seconds[OURS, mode, precision]["median"],
                "ours_by_default_is_faster_by": own["median"] / seconds[OURS, "eager", default]["median"],
            }
        if not options.quick and mode == "eager":
            command = [sys.executable, __file__, "--model", options.model, "--device", str(device)]
            printed = subprocess.run(
                [*command, "--memory", name, precision], capture_output=True, text=True, check=True
            )
            row["training"]["peak_mib"] = json.loads(printed.stdout.splitlines()[-1])
        rows.append(row)

    show(rows, missing, default)
    if not options.quick:
        results = {"machine": here, "model": options.model, "shape": shape._asdict(), "rounds": rounds, "steps": steps}
        results |= {"gflop_per_image": {kind: count / shape.batch / 1e9 for kind, count in work.items()}}
        suffix = "" if options.model == "small" else f"-{options.model.replace('/', '-')}"
        save(RESULTS / f"peers{suffix}.json", results | {"default": default, "missing": missing, "rows": rows})


def show(rows: list[dict], missing: dict[str, str], default: str) -> None:
    """Print the table and, below it, who is missing."""
    console = Console()
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
