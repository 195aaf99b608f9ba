"""The same Vision Transformer from six sources, trained and run side by side.

    python benchmarks/peers.py            # minutes on two cores; writes results/peers.json
    python benchmarks/peers.py --quick    # seconds, on a toy batch; writes nothing

32 px images, patches of 4, width 256, 6 blocks, 8 heads, MLP 512, class token, learned positions, 10 classes: about
3.2 million parameters. All get the same batch, AdamW and loss; every peer runs in float32 and under bf16 autocast.
"""

import argparse
import functools
from collections.abc import Callable
from importlib.metadata import version

import torch
from measure import RESULTS, declare_torchvision_operators, interleaved, machine, save
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from vitreous.device import autocast, pick_device, pick_precision
from vitreous.model import ViT, ViTConfig

SIDE, PATCH, DIM, DEPTH, HEADS, HIDDEN, CLASSES = 32, 4, 256, 6, 8, 512, 10
OURS = "vitreous"


class TextbookBlock(nn.Module):
    """A block as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Textbook(nn.Module):
    """A Vision Transformer as tutorials write it, with `nn.MultiheadAttention`."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.positions = nn.Parameter(torch.randn(1, 1 + (SIDE // PATCH) ** 2, DIM) * 0.02)
        self.blocks = nn.Sequential(*(TextbookBlock() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def ours() -> nn.Module:
    return ViT(ViTConfig(size=f"mini/{PATCH}", image_size=SIDE, num_classes=CLASSES))


def transformers() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        hidden_size=DIM,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        num_labels=CLASSES,
    )
    return ViTForImageClassification(config)


def timm() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=SIDE,
        patch_size=PATCH,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=HEADS,
        mlp_ratio=HIDDEN / DIM,
        num_classes=CLASSES,
    )


def torchvision() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(SIDE, PATCH, DEPTH, HEADS, DIM, HIDDEN, num_classes=CLASSES)


def vit_pytorch() -> nn.Module:
    from vit_pytorch import ViT

    return ViT(
        image_size=SIDE,
        patch_size=PATCH,
        num_classes=CLASSES,
        dim=DIM,
        depth=DEPTH,
        heads=HEADS,
        mlp_dim=HIDDEN,
        dim_head=DIM // HEADS,
    )


PEERS: dict[str, Callable[[], nn.Module]] = {
    OURS: ours,
    "textbook": Textbook,
    "transformers": transformers,
    "timm": timm,
    "torchvision": torchvision,
    "vit-pytorch": vit_pytorch,
}


def make_models(device: torch.device) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The peers that import, and why the others do not."""
    models, missing = {}, {}
    for name, make in PEERS.items():
        try:
            models[name] = make().to(device)
        except Exception as error:  # a broken install raises anything
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0].split(" (/")[0]
    return models, missing


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a batch of 8, few rounds, no file")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick_device(options.device)
    batch, rounds, steps = (8, 3, 1) if options.quick else (128, 7, 2)

    declare_torchvision_operators()
    torch.manual_seed(0)
    models, missing = make_models(device)
    for name, model in models.items():
        assert abs(count(model) / count(models[OURS]) - 1) < 0.02, f"{name} has {count(model):,} parameters"
    optimizers = {
        name: torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
        for name, model in models.items()
    }
    images = torch.randn(batch, 3, SIDE, SIDE, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)

    def logits(name: str, precision: str) -> Tensor:
        with autocast(device, precision):
            output = models[name](images)
        return getattr(output, "logits", output)

    def train(name: str, precision: str) -> None:
        loss = nn.functional.cross_entropy(logits(name, precision).float(), labels)
        loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()

    pairs = [(name, precision) for name in models for precision in ("float32", "bf16")]

    def measure(call: Callable[[str, str], object]) -> dict[tuple[str, str], dict[str, float]]:
        return interleaved({pair: functools.partial(call, *pair) for pair in pairs}, device, rounds, steps)

    training = measure(train)
    for model in models.values():
        model.eval()
    inference = measure(torch.inference_mode()(logits))

    default = pick_precision("auto", device)
    rows = []
    for name, precision in pairs:
        row = {"name": name, "version": version("torch" if name == "textbook" else name)}
        row |= {"precision": precision, "parameters": count(models[name])}
        for kind, timings in (("training", training), ("inference", inference)):
            seconds = timings[name, precision]
            row[kind] = {
                "images_per_second": batch / seconds["median"],
                "quartiles": [batch / seconds["high"], batch / seconds["low"]],
                "ours_is_faster_by": seconds["median"] / timings[OURS, precision]["median"],
                "ours_by_default_is_faster_by": seconds["median"] / timings[OURS, default]["median"],
            }
        rows.append(row)

    show(rows, missing, default)
    if not options.quick:
        results = {"machine": machine(device), "batch": batch, "rounds": rounds, "steps": steps}
        save(RESULTS / "peers.json", results | {"default": default, "missing": missing, "rows": rows})


def show(rows: list[dict], missing: dict[str, str], default: str) -> None:
    """Print the table and, below it, who is missing."""
    console = Console()
    table = Table(title=f"images a second; ours is faster by: in the same precision, in {default}")
    for header in ("peer", "precision"):
        table.add_column(header, no_wrap=True)
    for kind in ("training", "inference"):
        for header in (kind, "same", default):
            table.add_column(header, justify="right")
    for row in rows:
        cells = []
        for figures in (row["training"], row["inference"]):
            cells.append(f"{figures['images_per_second']:,.0f}")
            cells += [f"{figures[key]:.2f}" for key in ("ours_is_faster_by", "ours_by_default_is_faster_by")]
        table.add_row(row["name"], row["precision"], *cells)
    console.print(table)
    for name, reason in missing.items():
        console.print(f"{name} is left out: {reason}", markup=False)


if __name__ == "__main__":
    main()
