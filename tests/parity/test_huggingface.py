"""With the same weights our model is the Vision Transformer of `transformers`, and the comparison is sharp."""

from collections.abc import Callable

import pytest
import torch
from compare import table_of_mistakes
from torch import Tensor, nn

from vitreous.model import ViT, ViTConfig
from vitreous.model.vit import Block

try:
    from transformers import ViTConfig as TheirConfig
    from transformers import ViTForImageClassification
except Exception as error:  # a broken install of it or of what it imports raises anything
    pytest.skip(f"transformers does not import: {error}", allow_module_level=True)

TOLERANCE = 1e-5
GRIDS = {
    "square": ((32, 32), (8, 8)),
    "rectangular": ((16, 40), (8, 8)),
    "oblong patches": ((32, 24), (8, 4)),
}
EMBEDDINGS = {"ordinary": 1.0, "small": 1e-2}  # the small ones have a variance that an epsilon of 1e-6 alters


def from_huggingface(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict under our names."""
    renamed = {
        "vit.embeddings.cls_token": "class_token",
        "vit.embeddings.position_embeddings": "positions",
        "vit.embeddings.patch_embeddings.projection": "patches.proj",
        "vit.layers": "blocks",
        "layernorm_before": "norm1",
        "layernorm_after": "norm2",
        "o_proj": "proj",
        "vit.layernorm": "norm",
        "classifier": "head",
    }
    ours = {}
    for name, weight in theirs.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        if "q_proj" in name:
            ours[name.replace("q_proj", "qkv")] = [weight]
        elif "k_proj" in name or "v_proj" in name:  # they come after the queries
            ours[name.replace("k_proj", "qkv").replace("v_proj", "qkv")].append(weight)
        else:
            ours[name] = weight
    return {name: torch.cat(weight) if isinstance(weight, list) else weight for name, weight in ours.items()}


def pair(grid: str = "square", embeddings: str = "ordinary") -> tuple[ViT, ViTForImageClassification, Tensor]:
    """Our model and theirs with the same random weights, all of them, and images to compare them on."""
    torch.manual_seed(0)
    image_size, patch_size = GRIDS[grid]
    theirs = ViTForImageClassification(
        TheirConfig(
            image_size=image_size,
            patch_size=patch_size,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=96,
            num_labels=7,
        )
    ).eval()
    for name, parameter in theirs.named_parameters():
        fan_in = parameter[0].numel() if "weight" in name and parameter.ndim > 1 else 1
        nn.init.normal_(parameter, std=fan_in**-0.5)
        if "embeddings" in name:
            parameter.data *= EMBEDDINGS[embeddings]
    config = ViTConfig(
        image_size=image_size,
        patch_size=patch_size,
        dim=48,
        depth=3,
        heads=4,
        mlp_ratio=2,
        num_classes=7,
        norm_eps=theirs.config.layer_norm_eps,
    )
    ours = ViT(config).eval()
    ours.load_state_dict(from_huggingface(theirs.state_dict()))
    return ours, theirs, torch.randn(4, 3, *image_size)


@torch.no_grad()
def differences(ours: ViT, theirs: ViTForImageClassification, images: Tensor) -> list[float]:
    """The largest difference in the output of each block and, last, in the logits."""
    expected = theirs(images, output_hidden_states=True)
    embedded, *blocks = expected.hidden_states
    assert len(blocks) == len(ours.blocks) and embedded.shape == blocks[0].shape
    trace = ours.trace(images)
    pairs = zip([*trace.blocks, trace.logits, ours(images)], [*blocks, *[expected.logits] * 2], strict=True)
    return [(mine - yours).abs().max().item() for mine, yours in pairs]


@pytest.mark.parametrize("embeddings", EMBEDDINGS)
@pytest.mark.parametrize("grid", GRIDS)
def test_blocks_and_logits_equal_those_of_transformers(grid, embeddings):
    ours, theirs, images = pair(grid, embeddings)
    assert sum(p.numel() for p in ours.parameters()) == theirs.num_parameters()
    assert max(differences(ours, theirs, images)) < TOLERANCE


@torch.no_grad()
def test_attention_weights_equal_those_of_transformers():
    ours, theirs, images = pair()
    theirs.set_attn_implementation("eager")
    expected = theirs(images, output_attentions=True).attentions
    for mine, yours in zip(ours.trace(images).attention, expected, strict=True):
        torch.testing.assert_close(mine, yours, rtol=0, atol=TOLERANCE)


def test_gradients_equal_those_of_transformers():
    ours, theirs, images = pair()
    labels = torch.tensor([0, 3, 6, 3])
    for model in (ours, theirs):
        out = model(images)
        nn.functional.cross_entropy(out if model is ours else out.logits, labels).backward()
    expected = from_huggingface({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-4, msg=name)


# --- mistakes that people make, each of which the comparison has to notice ---------------------------------

MISTAKES, mistake = table_of_mistakes()


def block_mistake(plant: Callable[[Block], None]) -> Callable[[Block], None]:
    def plant_in_all(model: ViT) -> None:
        for block in model.blocks:
            plant(block)

    MISTAKES[plant.__name__] = plant_in_all
    return plant


@mistake
def class_token_last(model):
    embed = model.embed
    model.embed = lambda images: embed(images).roll(-1, dims=1)


@mistake
def no_position_on_the_class_token(model):
    model.positions.data[:, 0] = 0


@mistake
def patches_by_column(model):
    forward, grid = model.patches.forward, model.config.grid
    model.patches.forward = lambda images: forward(images).unflatten(1, grid).transpose(1, 2).flatten(1, 2)


@mistake
def pixels_before_channels(model):
    weight = model.patches.proj.weight.data  # (D, C, P, P)
    model.patches.proj.weight.data = weight.permute(0, 2, 3, 1).reshape(weight.shape)


@mistake
def norm_epsilon(model):
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6


@mistake
def no_final_norm(model):
    model.norm.forward = lambda x: x


@mistake
def mean_in_place_of_the_class_token(model):
    model.pool.forward = lambda x: x.mean(dim=1)


@block_mistake
def queries_and_keys_swapped(block):
    for parameter in block.attention.qkv.parameters():
        q, k, v = parameter.data.chunk(3)
        parameter.data = torch.cat([k, q, v])


@block_mistake
def no_scale(block):
    for parameter in block.attention.qkv.parameters():
        q, k, v = parameter.data.chunk(3)
        parameter.data = torch.cat([q * 12**0.5, k, v])  # a head is 12 wide


@block_mistake
def scale_by_the_whole_width(block):
    for parameter in block.attention.qkv.parameters():
        q, k, v = parameter.data.chunk(3)
        parameter.data = torch.cat([q * (12 / 48) ** 0.5, k, v])


@block_mistake
def no_qkv_bias(block):
    block.attention.qkv.bias.data.zero_()


@block_mistake
def heads_split_before_queries_keys_values(block):
    attention = block.attention

    def split(x, rotary):
        return attention.qkv(x).unflatten(-1, (attention.heads, 3, -1)).permute(3, 0, 2, 1, 4).unbind()

    attention.split = split


@block_mistake
def heads_interleaved(block):
    attention = block.attention

    def split(x, rotary):
        return attention.qkv(x).unflatten(-1, (3, -1, attention.heads)).permute(2, 0, 4, 1, 3).unbind()

    attention.split = split


@block_mistake
def heads_joined_without_transpose(block):
    attention = block.attention

    def forward(x, rotary):
        q, k, v = attention.split(x, rotary)
        return attention.proj(nn.functional.scaled_dot_product_attention(q, k, v).reshape(x.shape))

    attention.forward = forward


@block_mistake
def softmax_over_queries(block):
    attention = block.attention

    def forward(x, rotary):
        q, k, v = attention.split(x, rotary)
        weights = (q @ k.mT / 12**0.5).softmax(dim=-2)
        return attention.proj((weights @ v).transpose(1, 2).flatten(2))

    attention.forward = forward


@block_mistake
def no_output_projection(block):
    block.attention.proj = nn.Identity()


@block_mistake
def tanh_gelu(block):
    block.mlp.act = nn.GELU("tanh")


@block_mistake
def norm_after_the_residual(block):
    def forward(x, rotary):
        x = block.norm1(block.attention(x) + x)
        return block.norm2(block.mlp(x) + x)

    block.forward = forward


@block_mistake
def no_attention_residual(block):
    def forward(x, rotary):
        x = block.attention(block.norm1(x))
        return block.mlp(block.norm2(x)) + x

    block.forward = forward


@block_mistake
def no_mlp_residual(block):
    def forward(x, rotary):
        return block.mlp(block.norm2(block.attention(block.norm1(x)) + x))

    block.forward = forward


@block_mistake
def norms_swapped(block):
    block.norm1, block.norm2 = block.norm2, block.norm1


@pytest.mark.parametrize("name", MISTAKES)
def test_comparison_notices(name):
    ours, theirs, images = pair(embeddings="small")
    MISTAKES[name](ours)
    assert max(differences(ours, theirs, images)) > 10 * TOLERANCE


def test_only_small_embeddings_show_a_wrong_epsilon():
    ours, theirs, images = pair(embeddings="ordinary")
    MISTAKES["norm_epsilon"](ours)
    assert max(differences(ours, theirs, images)) < TOLERANCE
