"""Optimisers and their parameter groups, optimiser steps, learning rate schedules, and the EMA of the weights."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.device import has_fast_bf16
from vitreous.recipe import OptimOptions

TOKENS = ("class_token", "registers", "positions")
CAPTURING = ("cuda",)  # kinds of devices on which Muon's steps are captured


def make_optimizers(model: nn.Module, options: OptimOptions) -> list[torch.optim.Optimizer]:
    """AdamW for all weights, or Muon for the blocks' matrices and AdamW for the rest; frozen weights are left out.

    With `muon_patches` Muon has the kernels of the patch embedding, too.
    Weight decay applies to matrices and kernels, not to norms, biases, tokens or positions. Each group stores its peak
    learning rate; the head is in the first group. Weights are told apart by their names in `ViT`.
    """
    decayed, plain, matrices, in_three = {}, {}, {}, {}  # share of the peak rate -> weights, the last layers first
    for name, weight in reversed(list(model.named_parameters())):
        if not weight.requires_grad:
            continue
        if weight.ndim < 2 or name in TOKENS:
            kind = plain
        elif options.name == "muon" and (
            (name.startswith("blocks.") and weight.ndim == 2) or (name.startswith("patches.") and options.muon_patches)
        ):
            split = options.muon_split_qkv and name.endswith("attention.qkv.weight")
            kind = in_three if split else matrices
        else:
            kind = decayed
        share = rate_share(name, model.config.depth, options.layer_decay) if options.layer_decay < 1 else 1.0
        kind.setdefault(share, []).insert(0, weight)
    groups = [
        {"params": weights, "weight_decay": decay, "lr": share * options.learning_rate}
        for kind, decay in ((decayed, options.weight_decay), (plain, 0.0))
        for share, weights in kind.items()
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=options.betas, fused=True)]
    if matrices:
        groups = [
            {"params": weights, "lr": share * options.muon_learning_rate, **parts}
            for kind, parts in ((matrices, {}), (in_three, {"parts": 3}))
            for share, weights in kind.items()
        ]
        optimizers.append(Muon(groups, options.muon_learning_rate, options.muon_weight_decay, options.muon_momentum))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def rate_share(name: str, depth: int, layer_decay: float) -> float:
    """A weight's peak learning rate as a share of the head's, which is the layer after the last of `depth` blocks.

    The embedding is layer 0, block i (from 0) is layer i + 1, final norm, pool and head are layer depth + 1.
    Source: Bao et al. 2022, BEiT, arXiv 2106.08254; Clark et al. 2020, ELECTRA.
    """
    part, *rest = name.split(".")
    layer = depth + 1
    if part in ("patches", *TOKENS):
        layer = 0
    elif part == "blocks":
        layer = int(rest[0]) + 1
    return layer_decay ** (depth + 1 - layer)


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon`, but all matrices of one shape are orthogonalised together, and in bfloat16 only where that is
    fast.

    In a group with `parts`, each matrix is split into that many of equal height. A convolution is a matrix with one row
    per output channel. On a CUDA GPU, where the calls of some 200 short operations take longer than they do, a group's
    second step records them as a CUDA graph, which later steps replay.
    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float, momentum: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._captured: dict[tuple[int, ...], CapturedUpdate | None] = {}  # by the weights that are updated

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called for a state that is loaded, too."""
        super().__setstate__(state)
        self._captured = {}  # what was captured reads the former state

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        """Update every weight that has a gradient. `closure` is part of torch's interface and is not called."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if "momentum_buffer" not in self.state[weight]:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
            gradients = [weight.grad for weight in weights]
            if weights[0].device.type in CAPTURING:
                self._replay(group, weights, gradients)
            else:
                self._update(group, weights, gradients, group["lr"])

    def _replay(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """A step of a group's weights: the first one as it is, the second one captured and, as all others, replayed."""
        which = tuple(map(id, weights))
        if which not in self._captured:
            self._update(group, weights, gradients, group["lr"])
            self._captured[which] = None
            return
        captured = self._captured[which] or CapturedUpdate(partial(self._update, group, weights), gradients)
        captured.replay(gradients, group["lr"])
        self._captured[which] = captured

    def _update(
        self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor], lr: float | Tensor
    ) -> None:
        """A step of a group's weights. lr: a number, or a tensor () on their device."""
        means = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, means, group["momentum"])  # Nesterov's
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])

        by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        parts = group.get("parts", 1)
        for weight, update in zip(weights, updates, strict=True):
            for part, change in zip(weight.chunk(parts), update.flatten(1).chunk(parts), strict=True):
                by_shape.setdefault(tuple(change.shape), []).append((part, change))
        for (rows, columns), pairs in by_shape.items():
            stack = orthogonalised(torch.stack([change for _, change in pairs]))
            stack *= lr * math.sqrt(max(1, rows / columns))
            changes = [change.view(part.shape) for (part, _), change in zip(pairs, stack, strict=True)]
            torch._foreach_sub_([part for part, _ in pairs], changes)


class CapturedUpdate:
    """An update of weights on a CUDA GPU, captured as a CUDA graph: all but gradients and rate stays as it was.

    update: called with gradients and the learning rate, (); it has run before, so that libraries are initialised. The
    graph keeps a copy of the gradients, and the memory of the update's own results.
    """

    def __init__(self, update: Callable[[list[Tensor], Tensor], None], gradients: list[Tensor]):
        self.gradients = [torch.empty_like(gradient) for gradient in gradients]
        self.lr = torch.empty((), device=gradients[0].device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(self.lr):
            stream = torch.cuda.Stream()  # the default is on the device that captured first
            # thread_local: threads that load images may go on meanwhile
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                update(self.gradients, self.lr)

    def replay(self, gradients: list[Tensor], lr: float) -> None:
        torch._foreach_copy_(self.gradients, gradients)
        self.lr.fill_(lr)
        with torch.cuda.device_of(self.lr):
            self.graph.replay()


def orthogonalised(matrices: Tensor) -> Tensor:
    """Approximately the nearest orthogonal matrix to each, with singular values near 1. float32 (n, rows, columns).

    Five steps of a Newton-Schulz iteration, for which bfloat16 is precise enough.
    """
    tall = matrices.shape[1] > matrices.shape[2]  # to use the smaller Gram matrix
    x = (matrices.mT if tall else matrices).to(torch.bfloat16 if has_fast_bf16(matrices.device) else torch.float32)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # so that no singular value is above 1
    for _ in range(5):
        gram = x @ x.mT
        y = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, y, x, beta=3.4445)
    return (x.mT if tall else x).float().contiguous()


def rate_factor(options: OptimOptions, step: float, steps: int) -> float:
    """The learning rate at step `step` (from 0; a float under a time limit) of `steps`, as a share of its peak."""
    step = min(step, steps - 1)  # under a time limit it may come close to `steps`
    if options.schedule == "onecycle":  # Smith and Topin 2018, with torch's OneCycleLR's constants for the rate
        rise = 0.3 * steps - 1
        if step <= rise:
            return _cosine(1 / 25, 1.0, step / max(rise, 1))
        return _cosine(1.0, 1 / 25 / 1e4, (step - rise) / max(steps - 1 - rise, 1))
    warmup = round(options.warmup * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(steps - 1 - warmup, 1)
    if options.schedule == "cosine":
        return _cosine(1.0, options.final_rate, done)
    if options.schedule == "linear":
        return 1.0 + (options.final_rate - 1.0) * done
    return 1.0


def set_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every group's learning rate to `factor` times its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def optimizer_step(model: nn.Module, optimizers: list, scaler: torch.amp.GradScaler, clip: float | None) -> bool:
    """Clip the gradients by their global norm, step every optimiser, and clear the gradients.

    scaler: what scaled the gradients in float16; disabled for other precisions. If a gradient has overflowed, no
    optimiser steps and False is returned.
    """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    finite = True
    if clip is not None or scaler.is_enabled():
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
        finite = not scaler.is_enabled() or bool(norm.isfinite())
    for optimizer in optimizers:
        if finite:
            optimizer.step()
        optimizer.zero_grad()
    scaler.update()
    return finite


class EMA:
    """Exponential moving average of weights and buffers; its decay rises as (1 + t) / (10 + t) up to `decay`.

    The first update, t = 0, copies. With the full decay from the start, the random initial weights would dominate the
    average of a short run. `module` is the averaged model; `model` must stay on its device, as its tensors are
    referenced.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.module, self.decay = copy.deepcopy(model), decay
        averaged, followed = ([*part.parameters(), *part.buffers()] for part in (self.module, model))
        pairs = list(zip(averaged, followed, strict=True))
        self.floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self.integers = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average in the weights after step `step`, counted from 0 over the whole run."""
        decay = min(self.decay, (1 + step) / (10 + step)) if step else 0.0
        torch._foreach_lerp_([a for a, _ in self.floats], [b for _, b in self.floats], 1 - decay)
        for averaged, now in self.integers:
            averaged.copy_(now)


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
