"""The step of an optimiser as the one operation that it is."""

from __future__ import annotations

from typing import Any

import torch

_RATES = ("lr", "weight_decay", "eps", "amsgrad", "maximize")


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()``, to the last bit, but for its hooks, which are not called.

    Around the operation that moves all parameters, torch gathers them by kind and device anew, and
    calls what may be hooked in: for a small network that takes longer than the operation. A fused
    Adam or AdamW that has its momenta needs none of it.

    Arguments:
        optimizer: the tensors of each of its groups are of one dtype, on one device.
    """
    state = optimizer.state
    found = [(g, [p for p in g["params"] if p.grad is not None]) for g in optimizer.param_groups]
    begun = all(state.get(p) and isinstance(g["lr"], float) for g, ps in found for p in ps)
    if not begun or not isinstance(optimizer, torch.optim.Adam):
        optimizer.step()
        return
    for group, params in found:
        if not params:
            continue
        states = [state[p] for p in params]
        moments = [[one[name] for one in states] for name in ("exp_avg", "exp_avg_sq")]
        steps = [one["step"] for one in states]
        torch._foreach_add_(steps, 1)
        move: Any = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        beta1, beta2 = group["betas"]
        grads = [p.grad for p in params]
        rates = {name: group[name] for name in _RATES}
        move(params, grads, *moments, [], steps, beta1=beta1, beta2=beta2, **rates)
