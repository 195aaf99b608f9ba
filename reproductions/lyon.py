"""`lyon-mnist` and `lyon-cifar10`: a course exercise of 2023, whose heads each see a slice of the token only."""

import torch
from torch import Tensor, nn

from reproductions.experiment import CONSTANT, COSINE, Experiment, Setup
from vitreous.augment import Augment
from vitreous.model.config import ViTConfig
from vitreous.model.patches import LinearPatches
from vitreous.model.positions import sincos_1d
from vitreous.model.vit import Block

MNIST = ViTConfig(image_size=28, channels=1, patch_size=4, num_classes=10, dim=8, depth=2, heads=2, norm_eps=1e-5)
CIFAR10 = ViTConfig(image_size=32, channels=3, patch_size=4, num_classes=10, dim=16, depth=4, heads=2, norm_eps=1e-5)

FIXES = {
    "softmax-loss": "the loss takes the head's outputs as they are, not after a softmax",
    "full-qkv": "each head's queries, keys and values see the whole token, not their own slice of it",
    "output-projection": "a linear map mixes what the heads found",
    "final-norm": "a LayerNorm stands before the head",
    "schedule": "the rate warms up over 5% of the steps to four times the constant one and falls by cosine",
    "normalise": "pixels are normalised by mean and standard deviation",
    "augment": "each image is moved by a pixel, or on CIFAR-10 flipped and moved by up to two",
}


class HeadSlices(nn.Module):
    """Queries, keys and values of each head from its own slice of the token: (B, N, D) -> (B, N, 3 D).

    Takes the place of the one linear map D -> 3 D of `Attention`, and gives the same order: q, k, v, each by head.
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        d = dim // heads
        bound = d**-0.5  # as nn.Linear starts a map of d inputs
        self.weight = nn.Parameter(torch.empty(3, heads, d, d).uniform_(-bound, bound))  # q, k, v; head; in; out
        self.bias = nn.Parameter(torch.empty(3, heads, 1, d).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        slices = x.unflatten(2, (self.weight.shape[1], -1)).transpose(1, 2)[:, None]  # (B, 1, h, N, d)
        return (slices @ self.weight + self.bias).permute(0, 3, 1, 2, 4).flatten(2)  # (B, 3, h, N, d) -> (B, N, 3 D)


class Lyon(nn.Module):
    """Images (B, C, H, W) -> class probabilities (B, K), or logits with `softmax-loss` fixed."""

    def __init__(self, config: ViTConfig, fixed: frozenset[str]):
        super().__init__()
        self.config = config
        self.patches = LinearPatches(config)
        self.class_token = nn.Parameter(torch.rand(1, 1, config.dim))
        self.register_buffer("positions", sincos_1d(config.tokens, config.dim)[None])
        self.blocks = nn.Sequential(*(Block(config, drop_path=0.0) for _ in range(config.depth)))
        for block in self.blocks:
            if "full-qkv" not in fixed:
                block.attention.qkv = HeadSlices(config.dim, config.heads)
            if "output-projection" not in fixed:
                block.attention.proj = nn.Identity()
        self.norm = nn.LayerNorm(config.dim) if "final-norm" in fixed else nn.Identity()
        self.head = nn.Linear(config.dim, config.num_classes)
        self.answer = nn.Identity() if "softmax-loss" in fixed else nn.Softmax(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.cat([self.class_token.expand(len(images), -1, -1), self.patches(images)], dim=1)  # (B, N, D)
        x = self.blocks(x + self.positions)
        return self.answer(self.head(self.norm(x[:, 0])))


def make(config: ViTConfig, looks: Augment, fixed: frozenset[str], **more: float | str | int) -> Setup:
    return Setup(
        model=Lyon(config, fixed),
        image_size=config.image_size[0],
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=2e-2 if "schedule" in fixed else 5e-3),
        schedule=COSINE if "schedule" in fixed else CONSTANT,
        normalise="normalise" in fixed,
        augment=looks if "augment" in fixed else Augment(),
        **more,
    )


EXPERIMENTS = [
    Experiment(
        name="lyon-mnist",
        source="mnist",
        parameters=1_642,
        epochs=5,
        batch_size=128,
        reported={"top1": 0.7150, "loss": 1.75, "train_loss": "2.08 1.87 1.82 1.80 1.77"},
        fixes=FIXES,
        make=lambda fixed: make(MNIST, Augment(shift=1), fixed),
    ),
    Experiment(
        name="lyon-cifar10",
        source="cifar10",
        parameters=11_466,
        epochs=5,
        batch_size=128,
        reported={"top1": 0.3944, "loss": 2.06, "train_loss": "2.21 2.14 2.10 2.08 2.07"},
        fixes=FIXES,
        make=lambda fixed: make(CIFAR10, Augment(flip=0.5, shift=2), fixed, validation=0.2, watch="val", rises=2),
    ),
]
