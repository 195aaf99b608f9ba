import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitreous.model import ViT, ViTConfig
from vitreous.model.patches import ConvMean, ConvPatches, ConvStem, LinearPatches


def config(**changes) -> ViTConfig:
    options = {"image_size": (8, 12), "patch_size": (2, 4), "dim": 16, "depth": 1, "heads": 2}
    return ViTConfig(**options | changes)


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("image_size", "patch_size"), [(8, 4), ((8, 12), 4), ((8, 12), (2, 4)), ((6, 4), (6, 1))])
def test_linear_and_conv_patches_are_the_same_map(channels, image_size, patch_size, where):
    options = config(channels=channels, image_size=image_size, patch_size=patch_size)
    linear, conv = LinearPatches(options), ConvPatches(options)
    conv.proj.weight.data = linear.proj.weight.data.view_as(conv.proj.weight)
    conv.proj.bias.data = linear.proj.bias.data
    images = torch.randn(2, channels, *options.image_size)
    assert linear(images).shape == (2, options.grid[0] * options.grid[1], 16)
    there = conv.to(where)(images.to(where)).cpu()
    torch.testing.assert_close(there, linear(images), rtol=0, atol=1e-5)


def test_patches_are_read_by_row_and_flattened_by_channel_row_column():
    patches = LinearPatches(config(image_size=4, patch_size=2, channels=2, dim=8))
    patches.proj.weight.data, patches.proj.bias.data = torch.eye(8), torch.zeros(8)
    first = torch.arange(16.0).view(4, 4)
    tokens = patches(torch.stack([first, first + 100])[None])[0]
    assert tokens[0].tolist() == [0, 1, 4, 5, 100, 101, 104, 105]
    assert tokens[1].tolist() == [2, 3, 6, 7, 102, 103, 106, 107]
    assert tokens[2].tolist() == [8, 9, 12, 13, 108, 109, 112, 113]


@pytest.mark.parametrize("kind", ["linear", "conv", "conv_stem"])
def test_memory_layout_of_the_images_does_not_matter(kind):
    options = config(patch_embedding=kind, stem_channels=(4,) if kind == "conv_stem" else ())
    patches = ViT(options).patches.eval()
    images = torch.randn(2, 3, 8, 12)
    expected = patches(images)
    torch.testing.assert_close(patches(images.contiguous(memory_format=torch.channels_last)), expected)
    torch.testing.assert_close(patches(images.mT.contiguous().mT), expected)


@pytest.mark.parametrize(
    ("patch_size", "stem_channels", "strides"),
    [
        (1, (), [(1, 1)]),
        (2, (), [(2, 2)]),
        (4, (32,), [(2, 2), (2, 2)]),
        (4, (32, 64), [(1, 1), (2, 2), (2, 2)]),
        ((2, 8), (4, 8, 8), [(1, 1), (1, 2), (1, 2), (2, 2)]),
        (16, (8, 8, 8), [(2, 2)] * 4),
    ],
)
def test_conv_stem_halves_as_often_as_the_patch_size_asks(patch_size, stem_channels, strides):
    options = config(
        image_size=(16, 32), patch_size=patch_size, patch_embedding="conv_stem", stem_channels=stem_channels
    )
    stem = ConvStem(options)
    convolutions = [layer for layer in stem.layers if isinstance(layer, nn.Conv2d)]
    assert [conv.stride for conv in convolutions] == strides
    assert [conv.out_channels for conv in convolutions] == [*stem_channels, 16]
    assert [conv.bias is not None for conv in convolutions] == [False] * (len(stem_channels) + 1)
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in stem.layers) == len(stem_channels) + 1
    assert stem(torch.randn(2, 3, 16, 32)).shape == (2, options.grid[0] * options.grid[1], 16)


def test_a_stem_halves_where_it_is_told_to():
    options = config(patch_size=4, patch_embedding="conv_stem", stem_channels=(4, 6, 8), stem_strides=(2, 1, 2, 1))
    convolutions = [layer for layer in ConvStem(options).layers if isinstance(layer, nn.Conv2d)]
    assert [conv.stride for conv in convolutions] == [(2, 2), (1, 1), (2, 2), (1, 1)]
    assert [conv.out_channels for conv in convolutions] == [4, 6, 8, 16]


@pytest.mark.parametrize(
    ("patch_size", "strides", "steps"),
    [((2, 4), (), [(1, 1), (1, 2), (2, 2)]), (4, (2, 1, 2), [(2, 2), (1, 1), (2, 2)])],
)
def test_a_stem_that_pools_computes_all_places_and_takes_means_of_neighbours(patch_size, strides, steps):
    options = {"patch_embedding": "conv_stem", "stem_channels": (4, 6), "stem_strides": strides, "stem_pool": True}
    torch.manual_seed(0)
    stem = ConvStem(config(patch_size=patch_size, **options)).eval()
    images = x = torch.randn(2, 3, 8, 12)
    convolutions = [layer for layer in stem.layers if isinstance(layer, nn.Conv2d)]
    weights = [conv.weight for conv in convolutions]
    for weight, (rows, columns) in zip(weights, steps, strict=True):
        x = F.conv2d(x, weight, padding=1).unflatten(3, (-1, columns)).unflatten(2, (-1, rows)).mean(dim=(3, 5))
        x = F.gelu(x / (1 + 1e-5) ** 0.5)  # batch norm as it starts
    tokens = stem(images)
    torch.testing.assert_close(tokens, x.flatten(2).mT)
    expected, found = (torch.autograd.grad(y.square().sum(), weights) for y in (x, tokens))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("height", "stride"), [(8, (2, 2)), (9, (2, 2)), (9, (1, 2)), (8, (2, 1))])
def test_the_mean_of_a_convolution_is_the_convolution_of_the_mean_with_fewer_products(height, stride):
    conv, x = ConvMean(3, 5, stride), torch.randn(2, 3, height, 8)
    with FlopCounterMode(display=False) as counter:
        found = conv(x)
    torch.testing.assert_close(found, F.avg_pool2d(F.conv2d(x, conv.weight, padding=1), stride))
    assert counter.get_total_flops() == 2 * found.numel() * 3 * 3 * 3


@pytest.mark.gpu
@pytest.mark.parametrize("stride", [(2, 2), (1, 2)])
def test_on_a_gpu_the_gradients_of_a_mean_are_those_on_the_cpu(stride):
    """torch's own of a padded mean over images with channels last were those of its neighbours."""
    torch.manual_seed(0)
    conv, x = ConvMean(3, 5, stride), torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)

    def gradient(device: str) -> torch.Tensor:
        inputs = x.detach().to(device).requires_grad_()
        (found,) = torch.autograd.grad(conv.to(device)(inputs).square().sum(), inputs)
        return found.cpu()

    torch.testing.assert_close(gradient("cuda"), gradient("cpu"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_whitened_stem_sees_uncorrelated_directions_of_unit_variance_with_both_signs(channels):
    torch.manual_seed(0)
    n = 9 * channels  # directions; 6 filters are left over
    stem = ConvStem(config(patch_embedding="conv_stem", channels=channels, patch_size=4, stem_channels=(2 * n + 6, 8)))
    # neighbours in a row are alike, others are not, and no channel is like another
    images = F.avg_pool2d(3 * torch.randn(200, channels, 16, 18), (1, 3), stride=1)
    images = images * torch.arange(1.0, channels + 1).view(-1, 1, 1) + images[:, :1]
    before = stem.layers[0].weight.clone()
    stem.whiten(images)
    kernel = stem.layers[0].weight
    assert torch.equal(kernel[n : 2 * n], -kernel[:n]) and torch.equal(kernel[2 * n :], before[2 * n :])
    seen = F.conv2d(images, kernel[:n], padding=1).transpose(0, 1).flatten(1)  # (n, places)
    torch.testing.assert_close(seen @ seen.T / seen.shape[1], torch.eye(n), atol=0.02, rtol=0)
    assert kernel[0].norm() < kernel[n - 1].norm() / 2  # the widest direction comes first
    few = ConvStem(config(patch_embedding="conv_stem", channels=channels, patch_size=4, stem_channels=(6, 8)))
    few.whiten(images)
    torch.testing.assert_close(few.layers[0].weight.abs(), torch.cat([kernel[:3], kernel[:3]]).abs())


def test_whitening_enlarges_no_direction_that_the_images_lack():
    torch.manual_seed(0)
    stem = ConvStem(config(patch_embedding="conv_stem", patch_size=4, stem_channels=(54, 8)))
    stem.whiten(torch.randn(50, 1, 16, 16).expand(-1, 3, -1, -1))  # gray as RGB: 9 of 27 directions
    norms = stem.layers[0].weight.flatten(1).norm(dim=1)
    assert norms.isfinite().all() and norms.max() < 1.01 * 5e-4**-0.5


def test_a_stem_of_one_channel_has_no_room_for_both_signs():
    stem = ConvStem(config(patch_embedding="conv_stem", patch_size=4, stem_channels=(1, 8)))
    before = stem.layers[0].weight.clone()
    stem.whiten(torch.randn(2, 3, 8, 8))
    assert torch.equal(stem.layers[0].weight, before)


def test_conv_stem_tokens_overlap_and_patches_do_not():
    def reach(kind: str, stem_channels: tuple[int, ...] = ()) -> int:
        """How many tokens one pixel changes."""
        options = config(image_size=16, patch_size=4, patch_embedding=kind, stem_channels=stem_channels)
        patches = ViT(options).patches.eval()
        image, touched = torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16)
        touched[..., 7, 7] = 1
        return int(((patches(image) - patches(touched)).abs() > 1e-9).any(dim=-1).sum())

    assert reach("conv") == reach("linear") == 1
    assert reach("conv_stem", (4,)) == 4
