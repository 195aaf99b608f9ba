"""`behery-cifar100`: a notebook of 2023, with its two poolings: the class token, or the mean (`-gap`)."""

import torch
from torch import Tensor, nn

from reproductions.experiment import CONSTANT, COSINE, Experiment, Setup
from vitreous.augment import Augment
from vitreous.model.config import ViTConfig
from vitreous.model.patches import LinearPatches
from vitreous.model.positions import sincos_1d
from vitreous.model.vit import Block

CONFIG = ViTConfig(image_size=32, patch_size=4, num_classes=100, dim=256, depth=4, heads=8, norm_eps=1e-5)
# The original turned the whole image by the nearest pixel, then cropped; here the crop is first, in one bilinear map.
LOOKS = Augment(flip=0.5, rotation=7.2, crop_scale=(0.5, 1.0), crop_ratio=(0.8, 1.2))

FIXES = {
    "softmax-loss": "the loss takes the head's outputs as they are, not after a softmax",
    "output-projection": "a linear map mixes what the heads found",
    "mlp-gelu": "no GELU follows the last map of the MLP, so that a block can also subtract",
    "schedule": "the rate warms up over 5% of the steps and falls by cosine, instead of being constant",
    "normalise": "pixels are normalised by mean and standard deviation, not by 0 and 1",
    "validation": "a tenth of the training images chooses the epoch, not the test images",
    "optimizer-state": "training is not begun again half-way with the best weights and a fresh optimiser",
}
MEAN_FIXES = {
    "head-norm": "a LayerNorm stands before the head",
    "patch-mean": "the mean is of the patches alone, without the class token",
}


class Behery(nn.Module):
    """Images (B, C, H, W) -> class probabilities (B, K), or logits with `softmax-loss` fixed."""

    def __init__(self, config: ViTConfig, pool: str, fixed: frozenset[str]):
        super().__init__()
        self.config, self.pool = config, pool
        self.patches = LinearPatches(config)
        self.class_token = nn.Parameter(torch.randn(1, 1, config.dim))
        self.positions = nn.Parameter(sincos_1d(config.tokens, config.dim)[None])
        self.blocks = nn.Sequential(*(Block(config, drop_path=0.0) for _ in range(config.depth)))
        for block in self.blocks:
            if "output-projection" not in fixed:
                block.attention.proj = nn.Identity()
            if "mlp-gelu" not in fixed:
                block.mlp = nn.Sequential(block.mlp, nn.GELU())
        self.norm = nn.LayerNorm(config.dim)  # which the mean never meets, unless fixed
        self.normed = pool == "cls" or "head-norm" in fixed
        self.first = 1 if "patch-mean" in fixed else 0
        self.head = nn.Sequential(
            nn.Linear(config.dim, 4 * config.dim), nn.Tanh(), nn.Linear(4 * config.dim, config.num_classes)
        )
        self.answer = nn.Identity() if "softmax-loss" in fixed else nn.Softmax(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.cat([self.class_token.expand(len(images), -1, -1), self.patches(images)], dim=1)  # (B, N, D)
        x = self.blocks(x + self.positions)
        x = x[:, 0] if self.pool == "cls" else x[:, self.first :].mean(dim=1)
        return self.answer(self.head(self.norm(x) if self.normed else x))


def make(pool: str, fixed: frozenset[str]) -> Setup:
    return Setup(
        model=Behery(CONFIG, pool, fixed),
        image_size=32,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-4),
        schedule=COSINE if "schedule" in fixed else CONSTANT,
        augment=LOOKS,
        normalise="normalise" in fixed,
        validation=0.1 if "validation" in fixed else 0.0,
        watch="val" if "validation" in fixed else "test",
        keep_best=True,
        sittings=1 if "optimizer-state" in fixed else 2,  # how often it was resumed is not stated
    )


def counted(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Its top-5: whether the class at the label's place in the order is below 5, not whether the label's rank is."""
    order = outputs.argsort(dim=1, descending=True)
    return {"top5": (order.gather(1, labels[:, None]) < 5).double().mean().item()}


EXPERIMENTS = [
    Experiment(
        name=name,
        source="cifar100",
        parameters=3_291_492,
        epochs=200,
        batch_size=1024,
        reported={"top1": 0.341, "train_top1": 0.502, "loss": 4.29, "epochs": "not stated"},
        fixes=FIXES | fixes,
        make=lambda fixed, pool=pool: make(pool, fixed),
        counted=counted,
    )
    for name, pool, fixes in (("behery-cifar100", "cls", {}), ("behery-cifar100-gap", "mean", MEAN_FIXES))
]
