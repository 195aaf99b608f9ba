"""What the comparisons with other libraries share: random weights, outputs block by block, and mistakes to notice."""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from vitreous.explain import open_pass, read_out
from vitreous.model import ViT
from vitreous.model.attention import attend, attention_weights

TOLERANCE = 1e-5


def peer(name: str) -> ModuleType:
    """A library to compare with: the test or module that asks is skipped without it, and fails where it is broken."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return import_module(name)


def randomise(model: nn.Module) -> nn.Module:
    """Every parameter random, embeddings so small that an epsilon of 1e-6 shows in their norm."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
        nn.init.normal_(parameter, std=fan_in**-0.5)
        if any(part in name for part in ("embed", "conv_proj", "cls_token", "class_token", "reg_token")):
            parameter.data *= 1e-2
    return model.eval()


@torch.no_grad()
def outputs(model: nn.Module, blocks: Iterable[nn.Module], images: Tensor) -> list[Tensor]:
    """What each block of a peer gives, and what the model gives."""
    found = []

    def keep(module: nn.Module, args: tuple, output: Tensor) -> None:
        found.append(output)

    hooks = [block.register_forward_hook(keep) for block in blocks]
    answer = model(images)
    for hook in hooks:
        hook.remove()
    return [*found, getattr(answer, "logits", answer)]


def differences(ours: ViT, expected: list[Tensor], images: Tensor) -> list[float]:
    """The largest difference of each block's output, of the logits, and of the logits of the plain pass."""
    with torch.no_grad():
        seen = open_pass(ours, images)
        found = [*seen.tokens[1:], read_out(ours, seen.tokens[-1]), ours(images)]
    return [(mine - yours).abs().max().item() for mine, yours in zip(found, [*expected, expected[-1]], strict=True)]


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- mistakes that people make: all comparisons are by the same code, so they are tried with one library ---

Plant = Callable[[ViT], None]
MISTAKES: dict[str, Plant] = {}


def mistake(plant: Plant) -> Plant:
    return MISTAKES.setdefault(plant.__name__, plant)


@mistake
def transposed_kernel(model: ViT) -> None:
    proj = model.blocks[0].attention.proj  # square, so that no shape shows it
    proj.weight.data = proj.weight.data.T.contiguous()


@mistake
def patch_kernel_with_rows_and_columns_exchanged(model: ViT) -> None:
    model.patches.proj.weight.data = model.patches.proj.weight.data.mT.contiguous()


@mistake
def queries_and_keys_swapped(model: ViT) -> None:
    qkv = model.blocks[1].attention.qkv
    q, k, v = qkv.weight.data.chunk(3)
    qkv.weight.data = torch.cat([k, q, v])


@mistake
def heads_interleaved(model: ViT) -> None:
    qkv, heads = model.blocks[0].attention.qkv, model.config.heads
    qkv.weight.data = qkv.weight.data.unflatten(0, (3, heads, -1)).transpose(1, 2).flatten(0, 2)


@mistake
def another_number_of_heads(model: ViT) -> None:
    for block in model.blocks:
        block.attention.heads //= 2


@mistake
def wrong_epsilon(model: ViT) -> None:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5 if module.eps == 1e-6 else 1e-6


@mistake
def the_other_gelu(model: ViT) -> None:
    for block in model.blocks:
        block.mlp.act = nn.GELU("none" if model.config.gelu == "tanh" else "tanh")


@mistake
def norms_swapped(model: ViT) -> None:
    block = model.blocks[0]
    block.norm1, block.norm2 = block.norm2, block.norm1


@mistake
def no_final_norm(model: ViT) -> None:
    model.norm.forward = lambda x: x


@mistake
def positions_of_neighbours(model: ViT) -> None:
    model.positions.data = model.positions.data.roll(1, dims=1)


@mistake
def patches_by_column(model: ViT) -> None:
    forward, grid = model.patches.forward, model.config.grid
    model.patches.forward = lambda images: forward(images).unflatten(1, grid).transpose(1, 2).flatten(1, 2)


@mistake
def pixels_before_channels(model: ViT) -> None:
    weight = model.patches.proj.weight.data  # (D, C, P, P)
    model.patches.proj.weight.data = weight.permute(0, 2, 3, 1).reshape(weight.shape)


@mistake
def class_token_last(model: ViT) -> None:
    embed = model.embed
    model.embed = lambda images: embed(images).roll(-1, dims=1)


@mistake
def no_position_on_the_class_token(model: ViT) -> None:
    model.positions.data[:, 0] = 0


@mistake
def mean_in_place_of_the_class_token(model: ViT) -> None:
    model.pool.forward = lambda x: x.mean(dim=1)


@mistake
def heads_before_queries_keys_values(model: ViT) -> None:
    for parameter in model.blocks[0].attention.qkv.parameters():
        parameter.data = parameter.data.unflatten(0, (model.config.heads, 3, -1)).transpose(0, 1).flatten(0, 2)


@mistake
def heads_joined_without_transpose(model: ViT) -> None:
    attention = model.blocks[0].attention
    attention.forward = lambda x, *_: attention.proj(attend(*attention.split(x, None)).reshape(x.shape))


@mistake
def softmax_over_queries(model: ViT) -> None:
    attention = model.blocks[0].attention

    def forward(x: Tensor, *_: None) -> Tensor:
        q, k, v = attention.split(x, None)
        return attention.proj((attention_weights(k, q).mT @ v).transpose(1, 2).flatten(2))

    attention.forward = forward


@mistake
def no_scale(model: ViT) -> None:
    for parameter in model.blocks[0].attention.qkv.parameters():
        parameter.data[: model.config.dim] *= model.config.head_dim**0.5


@mistake
def scale_by_the_whole_width(model: ViT) -> None:
    for parameter in model.blocks[0].attention.qkv.parameters():
        parameter.data[: model.config.dim] *= model.config.heads**-0.5


@mistake
def no_qkv_bias(model: ViT) -> None:
    model.blocks[0].attention.qkv.bias.data.zero_()


@mistake
def no_output_projection(model: ViT) -> None:
    model.blocks[0].attention.proj = nn.Identity()


@mistake
def norm_after_the_residual(model: ViT) -> None:
    block = model.blocks[0]

    def forward(x: Tensor, rotary: None) -> Tensor:
        x = block.norm1(block.attention(x) + x)
        return block.norm2(block.mlp(x) + x)

    block.forward = forward


@mistake
def no_attention_residual(model: ViT) -> None:
    block = model.blocks[0]

    def forward(x: Tensor, rotary: None) -> Tensor:
        x = block.attention(block.norm1(x))
        return block.mlp(block.norm2(x)) + x

    block.forward = forward


@mistake
def no_mlp_residual(model: ViT) -> None:
    block = model.blocks[0]
    block.forward = lambda x, rotary: block.mlp(block.norm2(block.attention(block.norm1(x)) + x))
