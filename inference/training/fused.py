"""The step of an optimiser as the one operation that it is."""

from __future__ import annotations

import torch


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer) -> None:
    """``optimizer.step()``, to the last bit.

    Around the operation that moves all parameters, torch gathers them by kind and device anew, and
    calls what may be hooked in: for a small network that takes longer than the operation. A fused
    Adam or AdamW that has its momenta needs none of it.

    Arguments:
        optimizer: the tensors of each of its groups are of one dtype, on one device.
    """
    state = optimizer.state
    found = [(g, [p for p in g["params"] if p.grad is not None]) for g in optimizer.param_groups]
    plain = isinstance(optimizer, torch.optim.Adam) and all(
        group["fused"] and isinstance(group["lr"], float) and not group["amsgrad"]
        for group, _ in found
    )
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if hooked or not plain or not all(state.get(p) for _, ps in found for p in ps):
        optimizer.step()
        return
    for group, params in found:
        if not params:
            continue
        states = [state[p] for p in params]
        steps = [one["step"] for one in states]
        torch._foreach_add_(steps, 1)
        move = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
        beta1, beta2 = group["betas"]
        move(
            params,
            [p.grad for p in params],
            [one["exp_avg"] for one in states],
            [one["exp_avg_sq"] for one in states],
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
        )
