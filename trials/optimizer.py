"""AdamW over a network's parameters, and the learning rate of each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from lp_sweep.storage.specs import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over what learns; weight decay is not for biases and norms."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for module in model.modules():
        norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                (plain if norm or name == "bias" else decayed).append(parameter)
    seen: set[int] = set()  # tied weights stand once
    groups = [
        {
            "params": [p for p in parameters if not (id(p) in seen or seen.add(id(p)))],  # type: ignore[func-returns-value]
            "weight_decay": weight_decay,
        }
        for parameters, weight_decay in ((decayed, recipe.weight_decay), (plain, 0.0))
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_epsilon,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int, total: int) -> None:
    """The learning rate of `step` (from 0) of `total`."""
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate * decay(recipe, step, total)


def decay(recipe: Recipe, step: int, total: int) -> float:
    """Factor on the learning rate at `step` (from 0): warm-up, then linear to 0 or constant."""
    warmup = math.ceil(recipe.warmup_ratio * total)
    if step < warmup:
        return step / warmup
    if recipe.schedule == "constant":
        return 1.0
    return (total - step) / max(1, total - warmup)
