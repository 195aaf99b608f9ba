"""`tigges-cifar100` and `tigges-cifar10`: a demonstration of a training framework, 2022."""

import torch
from torch import Tensor, nn

from reproductions.experiment import Experiment, Setup, start_as_torch_does
from vitreous.augment import Augment
from vitreous.metrics import classification_metrics
from vitreous.model.config import ViTConfig
from vitreous.model.patches import LinearPatches
from vitreous.model.vit import Block
from vitreous.recipe import OptimOptions
from vitreous.train.optim import make_optimizers

BATCH = 256
LOOKS = Augment(flip=0.5, crop_scale=(0.08, 1.0))  # torchvision's RandomResizedCrop as it is

FIXES = {
    "embedding-relu": "no ReLU follows the patch embedding, which loses half of what a patch says",
    "token-start": "class token 0 and positions normal(0, 0.02), not normal(0, 1)",
    "final-norm": "a LayerNorm stands before the head",
    "schedule": "its length is counted from the training images there are, not from 60,000",
    "decay": "norms, biases, class token and positions do not decay",
    "shuffle": "each pass has an order of its own, not always the first one's",
}


class Tigges(nn.Module):
    """Images (B, C, H, W) -> logits (B, 100), for ten classes too."""

    def __init__(self, config: ViTConfig, fixed: frozenset[str]):
        super().__init__()
        self.config = config
        self.patches = LinearPatches(config)
        self.act = nn.Identity() if "embedding-relu" in fixed else nn.ReLU()
        self.class_token = nn.Parameter(torch.randn(1, 1, config.dim))
        self.positions = nn.Parameter(torch.randn(1, config.tokens, config.dim))
        if "token-start" in fixed:
            nn.init.zeros_(self.class_token)
            nn.init.normal_(self.positions, std=0.02)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.Sequential(*(Block(config, drop_path=0.0) for _ in range(config.depth)))
        for block in self.blocks:
            start_as_torch_does(block.attention)
            block.drop = nn.Identity()  # dropout follows the MLP's maps and the positions only
        self.norm = nn.LayerNorm(config.dim) if "final-norm" in fixed else nn.Identity()
        self.head = nn.Sequential(nn.Linear(config.dim, 512), nn.ReLU(), nn.Linear(512, config.num_classes))

    def forward(self, images: Tensor) -> Tensor:
        x = self.act(self.patches(images))
        x = torch.cat([self.class_token.expand(len(images), -1, -1), x], dim=1)  # (B, N, D)
        x = self.blocks(self.drop(x + self.positions))
        return self.head(self.norm(x[:, 0]))


def make(depth: int, dropout: float, rate: float, fixed: frozenset[str]) -> Setup:
    config = ViTConfig(
        image_size=32, patch_size=4, num_classes=100, dim=256, depth=depth, heads=8, mlp_ratio=2.0, dropout=dropout,
        norm_eps=1e-5,
    )  # fmt: skip
    options = OptimOptions(learning_rate=rate, weight_decay=0.03, schedule="onecycle")

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        if "decay" in fixed:
            return make_optimizers(model, options)[0]
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.03)

    return Setup(
        model=Tigges(config, fixed),
        image_size=32,
        optimizer=optimizer,
        schedule=options,
        schedule_images=None if "schedule" in fixed else 60_000,
        augment=LOOKS,
        normalise=True,
        shuffle="shuffle" in fixed,
        validation=0.1,
        watch="val",
    )


def counted(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Its macro figures: means over batches of each one's own, where a class of a hundred occurs two or three times."""
    batches = [classification_metrics(*batch) for batch in zip(outputs.split(BATCH), labels.split(BATCH), strict=True)]
    keys = ("precision_macro", "recall_macro", "f1_macro")
    return {key: sum(batch[key] for batch in batches) / len(batches) for key in keys}


EXPERIMENTS = [
    Experiment(
        name="tigges-cifar100",
        source="cifar100",
        parameters=12_862_820,
        epochs=180,
        batch_size=BATCH,
        reported={
            "top1": 0.498, "precision_macro": 0.469, "recall_macro": 0.462, "f1_macro": 0.432, "loss": 3.340,
            "time": "1 h 42 min on a GPU",
        },
        fixes=FIXES,
        make=lambda fixed: make(24, 0.1, 1e-3, fixed),
        counted=counted,
    ),
    Experiment(
        name="tigges-cifar10",
        source="cifar10",
        parameters=3_374_948,
        epochs=180,
        batch_size=BATCH,
        reported={
            "top1": 0.788, "precision_macro": 0.786, "recall_macro": 0.786, "f1_macro": 0.782, "loss": 0.771,
            "time": "28 min on a GPU",
        },
        fixes=FIXES,
        make=lambda fixed: make(6, 0.2, 3e-4, fixed),
        counted=counted,
    ),
]  # fmt: skip
