"""Optimisers over the right groups of weights, their rate by step, and the moving average of the weights."""

import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from vitreous.recipe import OptimOptions

TOKENS = ("class_token", "registers", "positions")


def make_optimizers(model: nn.Module, options: OptimOptions) -> list[torch.optim.Optimizer]:
    """AdamW for all weights, or Muon for the blocks' matrices and AdamW for the rest.

    Only matrices and kernels decay: not norms, biases, tokens or positions. Each group remembers its peak rate.
    """
    decayed, plain, matrices = [], [], []
    for name, weight in model.named_parameters():
        if weight.ndim < 2 or name in TOKENS:
            plain.append(weight)
        elif options.name == "muon" and name.startswith("blocks.") and weight.ndim == 2:
            matrices.append(weight)
        else:
            decayed.append(weight)
    groups = [
        {"params": decayed, "weight_decay": options.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, fused=True)
    ]
    if matrices:
        muon = torch.optim.Muon(
            matrices,
            lr=options.muon_learning_rate,
            weight_decay=options.muon_weight_decay,
            momentum=options.muon_momentum,
        )
        optimizers.append(muon)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def rate_factor(options: OptimOptions, step: float, steps: int) -> float:
    """The rate of step `step` (from 0) of `steps`, as a share of its peak. By the clock, a step can be a fraction."""
    if options.schedule == "onecycle":  # Smith and Topin 2018, with the constants of torch's OneCycleLR
        rise = 0.3 * steps - 1
        if step <= rise:
            return _cosine(1 / 25, 1.0, step / max(rise, 1))
        return _cosine(1.0, 1 / 25 / 1e4, (step - rise) / max(steps - 1 - rise, 1))
    warmup = round(options.warmup * steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min((step - warmup) / max(steps - 1 - warmup, 1), 1.0)
    if options.schedule == "cosine":
        return _cosine(1.0, options.final_rate, done)
    if options.schedule == "linear":
        return 1.0 + (options.final_rate - 1.0) * done
    return 1.0


def set_rates(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every group's rate to `factor` of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


class Average(AveragedModel):
    """Exponential moving average of weights and buffers; its decay starts low, (1 + t) / (10 + t), and ends at `decay`.

    A full decay from the start would keep the random start weights in the average of a short run for long.
    """

    def __init__(self, model: nn.Module, decay: float):
        super().__init__(model, multi_avg_fn=self._blend, use_buffers=True)
        self.decay = decay

    def update(self, model: nn.Module, step: int) -> None:
        """Take the weights after step `step`, counted from 0 over the whole run."""
        self.now = min(self.decay, (1 + step) / (10 + step))
        self.update_parameters(model)

    def _blend(self, averaged, current, _) -> None:
        if averaged[0].is_floating_point():
            torch._foreach_lerp_(averaged, current, 1 - self.now)
        else:
            torch._foreach_copy_(averaged, current)


def _cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
