"""What a model costs before it is built: shapes, parameters, FLOPs and memory, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitreous.model.config import ViTConfig
from vitreous.model.vit import ViT

if TYPE_CHECKING:
    from rich.table import Table

Shape = tuple[int, ...]


class Row(NamedTuple):
    """One part of a model. Shapes are those of one image."""

    name: str
    """The module's name in `ViT`; `tokens` is equation 1 without its patch embedding."""
    level: int
    """0: a top-level part of the model; 1: a part of the block above it."""
    input_shape: Shape
    output_shape: Shape
    parameters: int
    flops: int
    """2 per multiply-add in matrix products and convolutions; nothing else is counted."""


class Summary(NamedTuple):
    """What `summarise` returns. Parameters and FLOPs of the rows of level 0 add up to the totals."""

    rows: list[Row]
    parameters: int
    flops: int
    """For one image's forward pass; the backward pass takes twice as many."""
    weight_bytes: int
    """The weights in float32."""
    training_bytes: int
    """Weights, gradients and AdamW's two moments in float32: 16 bytes per parameter."""
    activation_bytes: int
    """What an image of a batch stores for the backward pass in float32, including attention weights. Fused attention
    stores about a quarter less, bfloat16 half, and both more than half."""


def summarise(config: ViTConfig) -> Summary:
    """Shapes, parameters, FLOPs and memory of a model; no weights are allocated, so H/14 takes a second.

    All tokens count in all blocks, as in published figures, though `ViT.forward` may leave some of the last block out.
    """
    with torch.device("meta"):
        model = ViT(config).eval()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.train()  # so that its mask counts as an activation
        images = torch.empty(3, config.channels, *config.image_size)
    parts: dict[str, nn.Module] = {"patches": model.patches, "tokens": model.drop}  # their last step
    for i, block in enumerate(model.blocks):
        parts |= {
            f"blocks.{i}": block,
            f"blocks.{i}.attention": block.attention,
            f"blocks.{i}.mlp": block.mlp,
        }
    parts |= {"norm": model.norm, "pool": model.pool, "head": model.head}

    shapes = _record_shapes(parts)
    flops, kept = _run(model, images[:2].clone())
    _, kept_of_three = _run(model, images)  # less those of two: what a batch keeps once is left out
    shapes["tokens"] = shapes["patches"][1], shapes["tokens"][1]
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    parameters["tokens"] = sum(p.numel() for p in model.parameters(recurse=False))

    rows = [
        Row(name, name.count(".") // 2, *shapes[name], parameters[name], flops.get(f"ViT.{name}", 0)) for name in parts
    ]
    total = sum(p.numel() for p in model.parameters())
    return Summary(rows, total, flops["Global"], 4 * total, 16 * total, kept_of_three - kept)


def render(summary: Summary) -> Table:
    """The summary as a table; only the first block is shown with its parts."""
    from rich.table import Table

    weights, training, activations = (
        f"{size / 2**20:,.1f} MiB" for size in (summary.weight_bytes, summary.training_bytes, summary.activation_bytes)
    )
    table = Table(
        title=f"{summary.parameters:,} parameters, {summary.flops / 1e9:.3g} GFLOP an image of "
        f"{' x '.join(map(str, summary.rows[0].input_shape))}",
        caption=f"weights {weights}; in training {training} and {activations} an image",
    )
    table.add_column("part")
    for header in ("input", "output", "parameters", "MFLOP", "share"):
        table.add_column(header, justify="right")
    for row in summary.rows:
        if row.level == 0 or row.name.startswith("blocks.0."):
            table.add_row(
                "  " * row.level + row.name.removeprefix("blocks.0."),
                " x ".join(map(str, row.input_shape)),
                " x ".join(map(str, row.output_shape)),
                f"{row.parameters:,}",
                f"{row.flops / 1e6:,.1f}",
                f"{row.flops / summary.flops:.1%}",
            )
    return table


def _record_shapes(parts: dict[str, nn.Module]) -> dict[str, tuple[Shape, Shape]]:
    """Input and output shape of each part for one image, in a dict that the next forward pass fills."""
    shapes = {}
    for name, part in parts.items():

        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            shapes[name] = tuple(args[0].shape[1:]), tuple(output.shape[1:])

        part.register_forward_hook(record)
    return shapes


def _run(model: ViT, images: Tensor) -> tuple[dict[str, int], int]:
    """One forward pass: FLOPs for an image by module path, and the bytes kept for the backward pass of all images.

    The last block computes all tokens, read or not, as in published figures.
    """
    model.forward = lambda images: model.head(model.pooled(model.forward_features(images)))
    own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    saved = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage  # kept alive, so that no other storage reuses its address
        return tensor

    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),  # the counter sees its two products, but knows few fused kernels
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        model(images)
    flops = {path: sum(by_operator.values()) // len(images) for path, by_operator in counter.get_flop_counts().items()}
    return flops, sum(storage.nbytes() for storage in saved.values())
