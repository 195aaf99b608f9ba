"""`paper-b16-pizza`: a guide to ViT-B/16 of 2023, on 225 photographs of pizza, steak and sushi."""

import torch
from torch import Tensor, nn

from reproductions.experiment import CONSTANT, COSINE, Experiment, Setup, start_as_torch_does
from vitreous.augment import Augment
from vitreous.model.config import ViTConfig
from vitreous.model.patches import ConvPatches
from vitreous.model.positions import sincos_1d
from vitreous.model.vit import Block
from vitreous.recipe import OptimOptions
from vitreous.train.optim import make_optimizers

BATCH = 32
CONFIG = ViTConfig(size="B/16", num_classes=3, dropout=0.1, norm_eps=1e-5)
LOOKS = Augment(flip=0.5, crop_scale=(0.25, 1.0))

FIXES = {
    "class-token": "one class token for all images, not one for each of 32 places in the batch",
    "decay": "AdamW's decay of matrices, not Adam's, which goes through the gradient and meets all weights",
    "schedule": "the rate warms up over 5% of the steps and falls by cosine, instead of being constant",
    "normalise": "pixels are normalised by mean and standard deviation",
    "augment": "each image is cropped and flipped",
}


class PaperB16(nn.Module):
    """Images (B, C, H, W) -> logits (B, K); B is at most 32 unless `class-token` is fixed."""

    def __init__(self, config: ViTConfig, fixed: frozenset[str]):
        super().__init__()
        self.config = config
        self.patches = ConvPatches(config)
        self.class_token = nn.Parameter(torch.rand(1 if "class-token" in fixed else BATCH, 1, config.dim))
        # Learned, as the parameters say; started from the sine-cosine table, as the text does.
        self.positions = nn.Parameter(sincos_1d(config.tokens, config.dim)[None])
        self.blocks = nn.Sequential(*(Block(config, drop_path=0.0) for _ in range(config.depth)))
        for block in self.blocks:
            start_as_torch_does(block.attention)
            block.drop = nn.Identity()  # dropout follows the MLP's maps only
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        B = len(images)
        tokens = self.class_token.expand(B, -1, -1) if len(self.class_token) == 1 else self.class_token[:B]
        x = torch.cat([tokens, self.patches(images)], dim=1)  # (B, N, D)
        return self.head(self.norm(self.blocks(x + self.positions)[:, 0]))


def make(fixed: frozenset[str]) -> Setup:
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        if "decay" in fixed:
            return make_optimizers(model, OptimOptions(learning_rate=1e-3, weight_decay=0.1))[0]
        return torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1)

    return Setup(
        model=PaperB16(CONFIG, fixed),
        image_size=224,
        optimizer=optimizer,
        schedule=COSINE if "schedule" in fixed else CONSTANT,
        normalise="normalise" in fixed,
        augment=LOOKS if "augment" in fixed else Augment(),
        watch="test",
    )


def counted(outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Its accuracy: the mean over batches of 32 images, sorted by class, the last of 11 weighing as much as others."""
    hits = (outputs.argmax(dim=1) == labels).double()
    return {"top1": torch.stack([batch.mean() for batch in hits.split(BATCH)]).mean().item()}


EXPERIMENTS = [
    Experiment(
        name="paper-b16-pizza",
        source="pizza_steak_sushi",
        parameters=85_824_771,
        epochs=5,
        batch_size=BATCH,
        reported={"note": "near chance, shown as pictures"},
        fixes=FIXES,
        make=make,
        counted=counted,
    )
]
