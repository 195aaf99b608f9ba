"""Answers to the exercise of chapter 12."""

import torch
from torch import Tensor

import vitreous as vt
from vitreous.explain import rollout
from vitreous.model.attention import attention_weights


def held(tables: list[Tensor]) -> list[list[float]]:
    """Tables (N, N) from the first block to the last -> what each final token holds of each patch, (N, N)."""
    N = len(tables[0])
    attention = [table.expand(N, 1, N, N) for table in tables]  # one head; image n reads token n
    return rollout(attention, torch.eye(N)).tolist()


def test_the_first_token_is_half_of_each_and_the_second_too():
    """After block 1 each token is half of each patch, and reading a half-and-half mixture changes nothing more."""
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    both_read_the_first = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert held([swap, both_read_the_first]) == [[0.5, 0.5], [0.5, 0.5]]
    # in the other order the first token is read twice as much
    assert held([both_read_the_first, swap]) == [[0.75, 0.25], [0.75, 0.25]]


def test_all_attention_goes_to_a_token_that_changes_nothing():
    """Queries and keys draw every weight to the first token; the values of all tokens are zero."""
    torch.manual_seed(0)
    config = vt.ViTConfig(image_size=8, patch_size=4, channels=1, num_classes=3, dim=8, depth=1, heads=1)
    block = vt.ViT(config).blocks[0]
    D = config.dim
    with torch.no_grad():
        block.attention.qkv.weight.zero_()
        block.attention.qkv.bias.zero_()
        block.attention.qkv.bias[0] = 30.0  # the same query for all
        block.attention.qkv.weight[D, 0] = 30.0  # keys: the first channel of a token
        tokens = torch.zeros(1, 5, D)
        tokens[0, 0, 0] = 1.0  # which only the first token has
        weights = attention_weights(*block.attention.split(tokens, None)[:2])
        assert weights[..., 0].min() > 0.999
        changed = tokens.clone()
        changed[0, 0, 0] = 2.0
        assert torch.equal(block.attention(tokens), block.attention(changed))
