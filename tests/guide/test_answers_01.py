"""Answers to the exercise of chapter 1, images and patches."""

import torch
from torch import Tensor

import vitreous as vt
from vitreous.model.patches import LinearPatches


def tokens_of(side: int, patch: int) -> int:
    """Patches of a square image, and one class token."""
    return (side // patch) ** 2 + 1


def image_of(patches: Tensor, grid: tuple[int, int], channels: int) -> Tensor:
    """Flattened square patches (B, N, C * P * P), read row by row -> images (B, C, H, W)."""
    B, _, length = patches.shape
    rows, columns = grid
    P = round((length / channels) ** 0.5)
    apart = patches.view(B, rows, columns, channels, P, P)
    return apart.permute(0, 3, 1, 4, 2, 5).reshape(B, channels, rows * P, columns * P)


def cut(images: Tensor, patch: int) -> Tensor:
    """The patches as they are: the package's embedding with the identity in place of E."""
    C, H, W = images.shape[1:]
    length = C * patch * patch
    config = vt.ViTConfig(image_size=(H, W), patch_size=patch, channels=C, dim=length, heads=1, pool="mean")
    embedding = LinearPatches(config)
    with torch.no_grad():
        embedding.proj.weight.copy_(torch.eye(length))
        embedding.proj.bias.zero_()
        return embedding(images)


def test_336_pixels_in_patches_of_14_are_577_tokens():
    assert tokens_of(336, 14) == 577 == vt.ViTConfig(image_size=336, patch_size=14).tokens


def test_digits_are_put_together_again_from_their_patches():
    digits = torch.from_numpy(vt.load_data("digits").test.images.array[:20]).float()
    for patch in (1, 2, 4, 8):
        assert torch.equal(image_of(cut(digits, patch), (8 // patch, 8 // patch), channels=1), digits)


def test_so_are_colour_images_that_are_no_squares():
    images = torch.rand(2, 3, 8, 12)
    assert torch.allclose(image_of(cut(images, 4), (2, 3), channels=3), images)
