"""Maps of evidence: by hand on small cases, and on a task whose evidence is known."""

import pytest
import torch
from small_models import small
from torch import nn

from vitreous.explain import (
    DEFAULT,
    METHODS,
    explanation_maps,
    faithfulness,
    integrated_gradients,
    random_maps,
    rollout,
)
from vitreous.explain.attention import open_pass
from vitreous.explain.methods import grad_cam, gradient_rollout, patch_map
from vitreous.model import ViT, ViTConfig

every_method = pytest.mark.parametrize("method", METHODS)


# --- by hand -----------------------------------------------------------------------------------------------


def test_rollout_of_one_layer_by_hand():
    """(A + I)/2 = [[0.75, 0.25], [0.3, 0.7]] for A = [[0.5, 0.5], [0.6, 0.4]]."""
    attention = [torch.tensor([[[[0.5, 0.5], [0.6, 0.4]]]])]
    assert rollout(attention, torch.tensor([[1.0, 0.0]]))[0].tolist() == pytest.approx([0.75, 0.25])
    assert rollout(attention, torch.tensor([[0.0, 1.0]]))[0].tolist() == pytest.approx([0.3, 0.7])
    assert rollout(attention, torch.tensor([[0.5, 0.5]]))[0].tolist() == pytest.approx([0.525, 0.475])


def test_rollout_of_two_layers_and_two_heads_by_hand():
    """Heads are averaged, [[0.5, 0.5], [0.6, 0.4]] in block 1 and [[0.2, 0.8], [1, 0]] in block 2; then
    [0.6, 0.4] of block 2 times [[0.75, 0.25], [0.3, 0.7]] of block 1 is [0.57, 0.43]."""
    first = torch.tensor([[[[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.9], [1.0, 0.0]]]])
    second = torch.tensor([[[[0.2, 0.8], [1.0, 0.0]], [[0.2, 0.8], [1.0, 0.0]]]])
    assert rollout([first, second], torch.tensor([[1.0, 0.0]]))[0].tolist() == pytest.approx([0.57, 0.43])


def test_gradient_rollout_by_hand():
    """Of head 1 only the positive products 0.5 * 2 and 0.4 * 1 count, of head 2 only 1 * 1; their mean over heads is
    [[0, 0.5], [0.5, 0.2]], its rows scaled to 1 [[0, 1], [5/7, 2/7]]."""
    weights = torch.tensor([[[[0.5, 0.5], [0.6, 0.4]], [[0.0, 1.0], [1.0, 0.0]]]])
    gradients = torch.tensor([[[[-1.0, 2.0], [-3.0, 1.0]], [[5.0, -1.0], [1.0, 5.0]]]])
    token, patch = (gradient_rollout([weights], [gradients], torch.tensor([row])) for row in ([1.0, 0.0], [0.0, 1.0]))
    assert token[0].tolist() == pytest.approx([1, 1])
    assert patch[0].tolist() == pytest.approx([5 / 7, 1 + 2 / 7])
    twice = gradient_rollout([weights, weights], [gradients, gradients], torch.tensor([[1.0, 0.0]]))
    assert twice[0].tolist() == pytest.approx([1 + 5 / 7, 1 + 1 + 2 / 7])


def test_attention_that_speaks_against_the_class_leaves_the_row_as_it_is():
    weights, row = torch.full((1, 2, 2, 2), 0.5), torch.tensor([[0.3, 0.7]])
    assert torch.equal(gradient_rollout([weights], [-torch.ones(1, 2, 2, 2)], row), row)


def test_grad_cam_by_hand():
    """The mean gradient of the two patches is [2, -1]; the class token before them takes no part in it."""
    tokens = torch.tensor([[[9.0, 9.0], [1.0, 0.0], [1.0, 3.0]]])
    gradient = torch.tensor([[[7.0, 7.0], [1.0, -1.0], [3.0, -1.0]]])
    assert grad_cam(tokens, gradient, prefix=1)[0, 1:].tolist() == [2, 0]


def test_integrated_gradients_of_a_linear_model_are_weights_times_pixels():
    class Linear(nn.Module):
        config = ViTConfig(image_size=4, patch_size=2, channels=1, num_classes=2, dim=4, heads=1)

        def forward(self, images):
            return torch.stack([images.sum(dim=(1, 2, 3)), (images * weights).sum(dim=(1, 2, 3))], dim=1)

    weights = torch.arange(16.0).view(1, 4, 4)
    image = torch.ones(1, 1, 4, 4)
    maps = integrated_gradients(Linear(), image, torch.tensor([1]))
    expected = [0 + 1 + 4 + 5, 2 + 3 + 6 + 7, 8 + 9 + 12 + 13, 10 + 11 + 14 + 15]
    assert maps.flatten().tolist() == pytest.approx(expected)


def test_integrated_gradients_follow_a_logit_that_is_steep_near_the_empty_image():
    """As a norm makes it: it has risen by half at 0.6% of the way."""

    class Norm(nn.Module):
        config = ViTConfig(image_size=2, patch_size=2, channels=1, num_classes=2, dim=4, heads=1)

        def forward(self, images):
            rms = images.square().mean(dim=(1, 2, 3), keepdim=True).add(1e-4).sqrt()
            return (images / rms).mean(dim=(2, 3))

    (total,) = integrated_gradients(Norm(), torch.ones(1, 1, 2, 2), torch.tensor([0])).flatten().tolist()
    assert total == pytest.approx(1, abs=0.02)


# --- promises of every map -----------------------------------------------------------------------------------


@every_method
def test_maps_have_the_grids_shape_and_are_shares(model, images, method):
    maps = explanation_maps(model, images, method)
    assert maps.shape == (4, *model.config.grid) and maps.dtype == torch.float32 and not maps.requires_grad
    assert maps.min() >= 0
    sums = maps.sum(dim=(1, 2))
    assert all(total == pytest.approx(1, abs=1e-5) or total == 0 for total in sums.tolist())
    if method in ("rollout", "attention"):
        assert sums.tolist() == pytest.approx([1] * 4)


@every_method
def test_a_map_does_not_depend_on_the_batch(model, images, method):
    maps = explanation_maps(model, images, method)
    for i in range(len(images)):
        torch.testing.assert_close(
            explanation_maps(model, images[i : i + 1], method), maps[i : i + 1], atol=1e-4, rtol=0
        )


@every_method
def test_the_class_is_explained_where_the_method_knows_classes(model, images, method):
    likeliest = explanation_maps(model, images, method)
    chosen = explanation_maps(model, images, method, model(images).argmax(dim=1))
    other = explanation_maps(model, images, method, model(images).argmin(dim=1))
    assert torch.equal(likeliest, chosen)
    assert torch.equal(likeliest, other) == (method in ("rollout", "attention"))


def test_integrated_gradients_add_up_to_the_rise_of_the_logit(model, images):
    target = torch.tensor([0, 1, 2, 3])
    rise = (model(images) - model(torch.zeros_like(images))).gather(1, target[:, None])[:, 0]
    maps = integrated_gradients(model, images, target, steps=200)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), rise, atol=0.02, rtol=0.02)


def test_against_another_class_the_gradients_add_up_to_the_rise_of_the_difference(model, images):
    target, against = torch.tensor([0, 1, 2, 3]), torch.tensor([4, 0, 4, 1])
    logits = model(images) - model(torch.zeros_like(images))
    rise = logits.gather(1, target[:, None])[:, 0] - logits.gather(1, against[:, None])[:, 0]
    maps = integrated_gradients(model, images, target, steps=200, against=against)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), rise, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("method", ["integrated_gradients", "gradient_rollout", "grad_cam"])
def test_against_another_class_is_what_a_head_of_the_difference_would_say(images, method):
    model = small()
    target, against = torch.full((4,), 2), torch.full((4,), 3)
    found = explanation_maps(model, images, method, target, against=against)
    assert not torch.allclose(found, explanation_maps(model, images, method, target), atol=1e-3)
    with torch.no_grad():
        for values in (model.head.weight, model.head.bias):
            values[2] -= values[3]
    torch.testing.assert_close(found, explanation_maps(model, images, method, target), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", ["rollout", "attention"])
def test_maps_that_know_no_classes_know_none_against_another(images, method):
    with pytest.raises(ValueError, match=f"{method} is the same for all classes, and knows none against another"):
        explanation_maps(small(), images, method, against=torch.zeros(4, dtype=torch.long))


def test_layer_and_head_choose_the_attention_that_is_shown(images):
    model = small()
    with torch.no_grad():
        seen = open_pass(model, images)
    for layer, head in ((1, 1), (2, None), (3, 2)):
        row = seen.attention[layer - 1][:, :, 0, 1:]  # of the class token to the patches
        row = row.mean(dim=1) if head is None else row[:, head - 1]
        expected = (row / row.sum(dim=1, keepdim=True)).view(4, 2, 3)
        torch.testing.assert_close(explanation_maps(model, images, "attention", layer=layer, head=head), expected)


@pytest.mark.parametrize("method", METHODS)
def test_maps_of_images_of_another_size_have_its_patches(images, method):
    model = small()
    model.set_image_size((16, 8))
    assert explanation_maps(model, images.view(4, 3, 16, 6)[..., [0, 1, 2, 3, 4, 5, 0, 1]], method).shape == (4, 4, 2)


def test_explaining_leaves_the_model_as_it_was(model, images):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for method in METHODS:
        explanation_maps(model.train(), images, method)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"method": "guess"}, "unknown method 'guess': use integrated_gradients, gradient_rollout"),
        ({"layer": 0}, "layer 0 is not there: this model has 3, give 1 to 3"),
        ({"layer": 4}, "layer 4 is not there: this model has 3, give 1 to 3"),
        ({"head": 3}, "head 3 is not there: this model has 2, give 1 to 2"),
        ({"head": -1}, "head -1 is not there"),
    ],
)
def test_a_choice_that_is_not_there_is_one_line(images, choice, message):
    with pytest.raises(ValueError, match=message):
        explanation_maps(small(), images, **choice)


@pytest.mark.gpu
@every_method
def test_maps_on_a_gpu_are_those_of_the_cpu(model, images, method):
    expected = explanation_maps(model, images, method)
    found = explanation_maps(model.cuda(), images.cuda(), method)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=0)


# --- known evidence -------------------------------------------------------------------------------------------


def evidence(count: int, seed: int):
    """Dark noise with one bright patch: its pattern is the class, its place is anywhere of 25, and known."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.rand(count, 1, 20, 20, generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    places = torch.randint(0, 25, (count,), generator=generator)
    lines = (torch.arange(4) % 2).float().expand(4, 4)
    half = (torch.arange(4) > 1).float().expand(4, 4)
    patterns = [lines, lines.T, half.T]
    for image, label, place in zip(images, labels.tolist(), places.tolist(), strict=True):
        row, column = divmod(place, 5)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = patterns[label]
    return images - 0.2, labels, places


@pytest.fixture(scope="module", params=["cls", "mean", "attention"])
def trained(request):
    """A model of two blocks that has learned the task, in some seconds."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=20,
        patch_size=4,
        channels=1,
        dim=32,
        depth=2,
        heads=2,
        mlp_ratio=2,
        pool=request.param,
        num_classes=3,
    )
    model = ViT(config).train()
    images, labels, _ = evidence(2048, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for rows in torch.randint(0, 2048, (200, 64)):
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_the_default_points_at_the_evidence(trained):
    images, labels, places = evidence(200, seed=1)
    with torch.no_grad():
        assert (trained(images).argmax(dim=1) == labels).float().mean() >= 0.95
    found = explanation_maps(trained, images).flatten(1).argmax(dim=1)
    assert (found == places).float().mean() >= 0.95


@every_method
def test_maps_are_the_same_where_the_caller_wants_no_gradients(trained, method):
    images, _, _ = evidence(4, seed=3)
    with torch.no_grad():
        found = explanation_maps(trained, images, method)
    assert torch.equal(found, explanation_maps(trained, images, method)) and not found.requires_grad


def test_rollout_finds_it_too(trained):
    images, _, places = evidence(200, seed=1)
    found = explanation_maps(trained, images, "rollout").flatten(1).argmax(dim=1)
    assert (found == places).float().mean() >= 0.95


def test_the_default_beats_a_random_order_in_both_curves(trained):
    images, _, _ = evidence(40, seed=2)
    assert DEFAULT == "integrated_gradients"
    mine = faithfulness(trained, images, explanation_maps(trained, images))
    blind = faithfulness(trained, images, random_maps(trained, 40))
    assert mine.deletion_area.mean() < blind.deletion_area.mean() - 0.1
    assert mine.insertion_area.mean() > blind.insertion_area.mean() + 0.1


def test_the_layer_chooses_the_tokens_of_grad_cam(images):
    model = small()
    for layer in (1, 2, 3):
        seen = open_pass(model, images)
        tokens = seen.tokens[layer - 1]
        (gradient,) = torch.autograd.grad(seen.logits.amax(dim=1).sum(), tokens)
        relevance = grad_cam(tokens.detach(), gradient, prefix=1)[:, 1:]
        expected = relevance / relevance.sum(dim=1, keepdim=True).clamp(min=1e-12)
        torch.testing.assert_close(explanation_maps(model, images, "grad_cam", layer=layer), expected.view(4, 2, 3))


def test_gradient_rollout_follows_the_gradients_of_the_class(model, images):
    classes = torch.tensor([2, 0, 4, 2])
    seen = open_pass(model, images)
    gradients = torch.autograd.grad(seen.logits[torch.arange(4), classes].sum(), seen.attention)
    attention = [weights.detach() for weights in seen.attention]
    relevance = gradient_rollout(attention, gradients, seen.pool.detach().mean(dim=1))
    expected = patch_map(relevance, model)
    torch.testing.assert_close(explanation_maps(model, images, "gradient_rollout", classes), expected)
