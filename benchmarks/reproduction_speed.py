"""`lyon-mnist` as it was written, an image and a head at a time, against the same model rebuilt without loops.

python benchmarks/reproduction_speed.py            # a minute on two cores; writes results/reproduction-speed.json
python benchmarks/reproduction_speed.py --quick    # seconds, on a toy batch; writes nothing
"""

import argparse
import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import RESULTS, interleaved, machine, save
from torch import Tensor, nn

from reproductions.lyon import MNIST, Lyon
from vitreous.device import pick_device


class LoopedPatches(nn.Module):
    """`LinearPatches`, a patch of an image at a time."""

    def __init__(self, patches: nn.Module):
        super().__init__()
        self.patch_size, self.proj = patches.patch_size, patches.proj

    def forward(self, images: Tensor) -> Tensor:
        B, C, H, W = images.shape
        P, Q = self.patch_size
        cut = torch.zeros(B, (H // P) * (W // Q), C * P * Q, device=images.device)
        for b, image in enumerate(images):
            for i in range(H // P):
                for j in range(W // Q):
                    cut[b, i * (W // Q) + j] = image[:, i * P : (i + 1) * P, j * Q : (j + 1) * Q].flatten()
        return self.proj(cut)


class LoopedAttention(nn.Module):
    """`Attention` over `HeadSlices`, a head of a sequence at a time."""

    def __init__(self, attention: nn.Module):
        super().__init__()
        self.heads, self.qkv = attention.heads, attention.qkv

    def forward(self, x: Tensor, rotary: None, wanted: int | None) -> Tensor:
        d = x.shape[2] // self.heads
        sequences = []
        for sequence in x:  # (N, D)
            heads = []
            for h in range(self.heads):
                own = sequence[:, h * d : (h + 1) * d]
                q, k, v = (own @ self.qkv.weight[i, h] + self.qkv.bias[i, h] for i in range(3))  # each (N, d)
                heads.append((q @ k.T / d**0.5).softmax(dim=-1) @ v)
            sequences.append(torch.hstack(heads)[:wanted])
        return torch.cat([sequence.unsqueeze(0) for sequence in sequences])


def looped(model: Lyon) -> Lyon:
    """A copy with the same weights that computes the same by loops."""
    model = copy.deepcopy(model)
    model.patches = LoopedPatches(model.patches)
    for block in model.blocks:
        block.attention = LoopedAttention(block.attention)
    return model


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a batch of 8, few rounds, no file")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick_device(options.device)
    batch, rounds = (8, 2) if options.quick else (128, 5)

    torch.manual_seed(0)
    model = Lyon(MNIST, frozenset()).to(device)
    images, labels = torch.rand(batch, 1, 28, 28, device=device), torch.randint(10, (batch,), device=device)
    forms = {"loops": looped(model), "rebuilt": model}
    calls = {name: training_step(form, images, labels) for name, form in forms.items()}
    timings = interleaved(calls, device, rounds, calls=1)
    rates = {name: batch / seconds["median"] for name, seconds in timings.items()}
    for name, rate in rates.items():
        print(f"{name:8} {rate:10,.1f} images/s")
    print(f"faster by {rates['rebuilt'] / rates['loops']:.0f}")
    if not options.quick:
        results = {
            "command": "python benchmarks/reproduction_speed.py",
            "machine": machine(device),
            "batch": batch,
            "rounds": rounds,
            "seconds": timings,
            "images_per_second": rates,
            "faster_by": rates["rebuilt"] / rates["loops"],
        }
        save(RESULTS / "reproduction-speed.json", results)


if __name__ == "__main__":
    main()
