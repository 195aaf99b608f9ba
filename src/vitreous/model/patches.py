"""Image to tokens, (B, C, H, W) -> (B, N, D): the patch embedding E of equation 1, and an overlapping variant."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.model.config import ViTConfig


def flat_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """Cut into patches, by row, each flattened in the order channel, row, column: (B, C, H, W) -> (B, N, C P Q)."""
    B, C, H, W = images.shape
    P, Q = patch_size
    patches = images.view(B, C, H // P, P, W // Q, Q).permute(0, 2, 4, 1, 3, 5)  # (B, rows, columns, C, P, Q)
    return patches.reshape(B, H // P * (W // Q), C * P * Q)


class LinearPatches(nn.Module):
    """Cut the image into patches, flatten each, and map it linearly."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.patch_size = config.patch_size
        self.proj = nn.Linear(config.channels * config.patch_size[0] * config.patch_size[1], config.dim)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(flat_patches(images, self.patch_size))


class ConvPatches(nn.Module):
    """The same map as `LinearPatches`: a convolution whose stride is its kernel size sees each patch once.

    On a CUDA GPU it is computed as that linear map: cuDNN's convolution, which changes the layout of images and
    gradients, took 3.7 of 62.5 ms of a training step of ViT-B/16 (LOG.md).
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.proj = nn.Conv2d(config.channels, config.dim, config.patch_size, stride=config.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type == "cuda":
            return F.linear(flat_patches(images, self.proj.kernel_size), self.proj.weight.flatten(1), self.proj.bias)
        return self.proj(images).flatten(2).transpose(1, 2)


class ConvMean(nn.Conv2d):
    """A 3 x 3 convolution, then the mean of its outputs over each `stride`, computed the other way round.

    (B, C, H, W) -> (B, D, H / 2, W / 2) for a stride of 2 x 2. Both are sums over neighbours, so their order does not
    matter; and where the mean comes first, the convolution can step over the outputs that are not wanted: 9 products
    for each in place of 36. On two cores with AVX2 2.7 to 3.2 times as fast, forward and backward (`benchmarks/forms.py
    --only pool`).
    """

    def __init__(self, before: int, after: int, stride: tuple[int, int]):
        super().__init__(before, after, 3, stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return mean_first(x, self.weight, self.stride)


def mean_first(x: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
    """`ConvMean` of images (B, C, H, W) with a weight (D, C, 3, 3)."""
    rows, columns = stride
    margin = (rows - 1, columns - 1)
    if x.is_cuda:  # whose gradients of a padded mean were wrong until github.com/pytorch/pytorch/pull/188345
        x, margin = F.pad(x, (columns - 1, columns - 1, rows - 1, rows - 1)), (0, 0)
    means = F.avg_pool2d(x, stride, 1, margin)  # (B, C, H + 1, W + 1) for 2 x 2
    return F.conv2d(means, weight, None, stride, (2 - rows, 2 - columns))


class ConvStem(nn.Module):
    """3 x 3 convolutions, each followed by batch norm and GELU; some have stride 2, or a mean over 2 x 2 after them.

    Neighbouring tokens overlap, and the same small filters are applied everywhere, which a linear map has to learn from
    data. Source: Xiao et al. 2021, "Early convolutions help transformers see better"; Hassani et al. 2021 (CCT). The
    mean: after Zhang 2019, "Making convolutional networks shift-invariant again", arXiv 1904.11486, who takes a wider
    one after the nonlinearity.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        channels = [config.channels, *config.stem_channels, config.dim]
        layers: list[nn.Module] = []
        for (before, after), step in zip(pairwise(channels), config.stem_steps, strict=True):
            if config.stem_pool and step != (1, 1):
                layers += [ConvMean(before, after, step), nn.Identity()]  # the place that the mean has in weight files
            else:
                layers.append(nn.Conv2d(before, after, 3, step, padding=1, bias=False))
            layers += [nn.BatchNorm2d(after), nn.GELU()]
        # channels last: a third faster on CPUs, and the tokens come out contiguous
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Start the first convolution as a whitening of the 3 x 3 neighbourhoods of normalised images (B, C, H, W).

        Its filters become their principal directions, the widest first, scaled to unit variance, each with both signs;
        those left over stay as they are. Source: Jordan 2024, arXiv 2404.00498, section 3.2.
        """
        kernel = self.layers[0].weight  # (channels, C, 3, 3)
        places = F.unfold(images, 3, padding=1).transpose(1, 2).flatten(0, 1)  # (B H W, 9 C)
        variances, directions = torch.linalg.eigh(places.T @ places / len(places))  # ascending; a direction a column
        filters = (directions / (variances + 5e-4).sqrt()).T.flip(0)[: len(kernel) // 2]
        both = torch.cat([filters, -filters])
        kernel[: len(both)] = both.view(-1, *kernel.shape[1:])

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.contiguous(memory_format=torch.channels_last)).flatten(2).transpose(1, 2)


PATCH_EMBEDDINGS = {"linear": LinearPatches, "conv": ConvPatches, "conv_stem": ConvStem}
