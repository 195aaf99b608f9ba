"""The open pass is the plain pass, and shows what happens in it."""

import pytest
import torch

from vitreous.explain import open_pass, pool_weights, read_out


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_logits_are_those_of_the_plain_pass(model, images):
    seen = open_pass(model, images)
    close(seen.logits, model(images))


def test_attention_and_tokens_are_those_of_the_blocks(model, images):
    seen = open_pass(model, images)
    assert len(seen.attention) == 3 and len(seen.tokens) == 4
    close(seen.tokens[0], model.embed(images))
    for block, weights, before, after in zip(model.blocks, seen.attention, seen.tokens, seen.tokens[1:], strict=False):
        q, k, _ = block.attention.split(block.norm1(before), model.rotary)
        close(weights, (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1))
        close(after, block(before, model.rotary))


def test_pool_weights_times_tokens_is_the_pool(model, images):
    tokens = model.forward_features(images)
    weights = pool_weights(model.pool, tokens)
    close((weights @ tokens).flatten(1), model.pool(tokens))
    close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
    assert weights.min() >= 0


def test_the_tokens_after_the_last_block_read_out_as_the_logits(model, images):
    seen = open_pass(model, images)
    close(read_out(model, seen.tokens[-1]), model(images))
    assert (read_out(model, seen.tokens[0]) - model(images)).abs().max() > 1e-2


def test_gradients_of_attention_are_those_of_finite_differences(model, images):
    """A weight that is a little larger changes the logit by its gradient: in the last block, where nothing follows."""
    model.double()
    images = images[:1].double()
    seen = open_pass(model, images)
    (gradient,) = torch.autograd.grad(seen.logits[0, 2], seen.attention[-1])
    step, block, row = 1e-6, model.blocks[-1], model.config.prefix - 1 if model.class_token is not None else -1
    head, other = 1, model.config.tokens - 2

    def logit(change):
        x = seen.tokens[-2].detach()
        _, _, v = block.attention.split(block.norm1(x), model.rotary)
        weights = seen.attention[-1].detach().clone()
        weights[0, head, row, other] += change
        x = x + block.scale1(block.attention.proj((weights @ v).transpose(1, 2).flatten(2)))
        return read_out(model, x + block.scale2(block.mlp(block.norm2(x))))[0, 2]

    measured = (logit(step) - logit(-step)) / (2 * step)
    assert gradient[0, head, row, other].item() == pytest.approx(measured.item(), rel=1e-4, abs=1e-9)


def test_frozen_parameters_and_no_grad_are_no_obstacle(model, images):
    model.requires_grad_(False)
    seen = open_pass(model, images)
    gradients = torch.autograd.grad(seen.logits.sum(), [*seen.attention, seen.pool])
    assert all(gradient.isfinite().all() for gradient in gradients)
    with torch.no_grad():
        assert not open_pass(model, images).logits.requires_grad
