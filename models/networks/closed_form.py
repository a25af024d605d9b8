"""A last layer whose posterior, noise included, has a closed form given the features."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data import PyroccamError

PRIOR_ROWS = 1.0
"""Rows that the prior of the noise stands for."""

_RATIOS = torch.logspace(-3, 5, 25, dtype=torch.float64)


class ClosedFormLinear(nn.Module):
    r"""A linear layer about which rows tell all that they can, at each of K depths for itself.

    With features φ of a row, a last one of 1 for the bias, and the weights :math:`w_0` that were
    trained,

    .. math:: y \sim N(φ w, s^2), \quad w \sim N(w_0, s^2 / a), \quad s^2 \sim InvGamma(b, c).

    Given n rows, :math:`r = y - φ w_0`, :math:`S = a + Φ^T Φ`, :math:`m = S^{-1} Φ^T r`,
    :math:`b_n = b + n / 2` and :math:`c_n = c + (r^T r - m^T S m) / 2`,

    .. math:: \log p(y) = \tfrac12 \log |a S^{-1}| - \tfrac n2 \log 2π + b \log c - b_n \log c_n
              + \log Γ(b_n) - \log Γ(b),

    and a new target is Student's t about :math:`φ (w_0 + m)` with :math:`2 b_n` degrees of freedom
    and a squared scale of :math:`(1 + φ S^{-1} φ^T) c_n / b_n`. Each target has a noise of its own;
    a is the one of most evidence, of some multiples of the mean eigenvalue of :math:`Φ^T Φ`.

    In training it gives the means of :math:`w_0`, which is learnt by gradients, and zeros.

    Arguments:
        linear: of ``2 T`` outputs, of which the first T are :math:`w_0`.
        targets: T.
        depths: K, of which rows are stacked along the batch dimension.

    Attributes:
        evidence: ``log p(y)`` of the rows that it knows, ``(K,)``, in nats.

    Shapes:
        input ``(K * B, features)``, output ``(K * B, 2 T)``: means, and logarithms of squared
        scales.

    References:
        O'Hagan, Forster 2004, Kendall's Advanced Theory of Statistics 2B, chapter 11.
    """

    mean: Tensor
    spread: Tensor
    log_scale: Tensor
    evidence: Tensor

    def __init__(self, linear: nn.Linear, targets: int, depths: int = 1) -> None:
        super().__init__()
        weight = linear.weight.detach()
        bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()
        learnt = linear.weight.requires_grad
        self.weight = nn.Parameter(weight[:targets].clone(), learnt)
        self.bias = nn.Parameter(bias[:targets].clone(), learnt)
        self.depths, size = depths, linear.in_features + 1
        both = torch.cat([self.weight.detach(), self.bias.detach()[:, None]], 1)
        self.register_buffer("mean", both.mT.repeat(depths, 1, 1))
        self.register_buffer("spread", weight.new_zeros(depths, size, size))
        self.register_buffer("log_scale", weight.new_zeros(depths, 1, targets))
        self.register_buffer("evidence", weight.new_zeros(depths))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = F.linear(x, self.weight, self.bias)
            return torch.cat([mean, torch.zeros_like(mean)], -1)
        rows = F.pad(x.unflatten(0, (self.depths, -1)), (0, 1), value=1.0)
        leverage = torch.bmm(rows, self.spread).square().sum(-1, keepdim=True)
        log_scale = self.log_scale + (leverage + 1.0).log()
        return torch.cat([torch.bmm(rows, self.mean), log_scale], -1).flatten(0, 1)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor, noise: Tensor, weights: Tensor | None = None) -> None:
        """Take in rows, in place of those before.

        Arguments:
            x: their features at each depth ``(K, n, features)``, which were learnt from other rows:
                what features fit already costs nothing here, so that evidence of the same rows
                favours whatever learnt them by heart, and of depths the deepest.
            y: ``(n, T)``.
            noise: what s is likely to be ``(T,)``.
            weights: of the rows ``(n,)``; each counts so often.
        """
        root = (y.new_ones(len(y)) if weights is None else weights).double().sqrt()[:, None]
        rows, count = F.pad(x.double(), (0, 1), value=1.0), float(root.square().sum())
        trained = torch.cat([self.weight, self.bias[:, None]], 1).mT.double()
        rest, rows = (y.double() - rows @ trained) * root, rows * root
        values, vectors = torch.linalg.eigh(rows.mT @ rows)
        values = values.clamp_min(0.0)
        along = vectors.mT @ (rows.mT @ rest)  # (K, features + 1, T)
        prior = _RATIOS.to(values)[:, None] * values.mean(-1)  # (ratios, K)
        post = prior[..., None] + values
        left = rest.square().sum(1) - (along.square() / post[..., None]).sum(-2)
        b = torch.tensor(0.5 * PRIOR_ROWS).to(values)
        c, b_n = b * noise.double().square(), b + 0.5 * count
        c_n = c + 0.5 * left.clamp_min(0.0)  # (ratios, K, T)
        each = b * c.log() - b_n * c_n.log() - 0.5 * count * math.log(2 * math.pi)
        each = each + 0.5 * (prior[..., None] / post).log().sum(-1, keepdim=True)
        found = (each + b_n.lgamma() - b.lgamma()).sum(-1)
        evidence, best = found.max(0)
        depths = torch.arange(self.depths, device=best.device)
        post = post[best, depths][..., None]
        self.evidence.copy_(evidence)
        self.mean.copy_(trained + vectors @ (along / post))
        self.spread.copy_(vectors * post.rsqrt().mT)
        self.log_scale.copy_((c_n[best, depths] / b_n).log()[:, None])

    def select(self, depths: Sequence[int]) -> ClosedFormLinear:
        """The same layer at some of the depths."""
        new = copy.deepcopy(self)
        new.depths = len(depths)
        for name in ("mean", "spread", "log_scale", "evidence"):
            setattr(new, name, getattr(self, name)[list(depths)])
        return new


def closed_form_of(net: nn.Module) -> ClosedFormLinear | None:
    """The layer of this kind in a network, if it has one."""
    return next((part for part in net.modules() if isinstance(part, ClosedFormLinear)), None)


def with_closed_form(net: nn.Module, targets: int, depths: int = 1) -> nn.Module:
    """The network with such a layer in place of its last linear one; as it is, if it has one.

    Raises:
        PyroccamError: where it has one of other targets or depths, or its last one has not the
            outputs. Whether they are those of the network shows where rows are taken in.
    """
    if (head := closed_form_of(net)) is not None:
        if (own := (len(head.weight), head.depths)) != (targets, depths):
            found = f"a last layer in closed form, of targets and depths {own}"
            raise PyroccamError(found, f"{(targets, depths)}", "head.select([depth])")
        return net
    linear = [(n, part) for n, part in net.named_modules() if type(part) is nn.Linear]
    if not linear or linear[-1][1].out_features != 2 * targets:
        found = "a closed form of a network that does not end in a linear layer"
        raise PyroccamError(found, f"nn.Linear(..., {2 * targets})")
    name, last = linear[-1]
    new = ClosedFormLinear(last, targets, depths).train(net.training)
    if not name:
        return new
    net.set_submodule(name, new)
    return net
