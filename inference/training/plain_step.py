"""One optimiser step of a network whose weights are numbers, as a graph where it can be one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...models.likelihoods import Likelihood
from ..compilation.graphs import of_lists
from ..compilation.passes import lean
from ..compilation.trace import TracedLoss, Untraceable, joint_graph
from . import fused
from .flat_parameters import FlatParameters

__all__ = ["PlainStep", "set_values", "values_of"]

# Losses of rows (B,) from a likelihood, outputs, targets and what a teacher predicts.
Losses = Callable[[Likelihood, Tensor, Tensor, Tensor | None], Tensor]

_FIRST = 20
"""Batches of a shape that are stepped as they are: with fewer a graph does not pay."""


class PlainStep:
    """Loss, gradients and update of a network, by AdamW with a gradient of norm 1 at most.

    Once a shape of batch has been met often its loss and gradients become a graph
    (:class:`~pyroccam.inference.compilation.trace.TracedLoss`), with all parameters in one tensor:
    the same step without the Python around it. A network that cannot be traced is stepped as it is.

    Arguments:
        net: trained in place, in the mode that it has; its weights that are zero stay zero.
        likelihood: of its outputs; its noise is learnt, too.
        losses: of the rows of a batch.

    Attributes:
        untraceable: why the network cannot be traced.

    References:
        Loshchilov, Hutter 2019, arXiv:1711.05101, for AdamW; Pascanu, Mikolov, Bengio 2013,
        arXiv:1211.5063, for the clipped norm.
    """

    def __init__(self, net: nn.Module, likelihood: Likelihood, losses: Losses) -> None:
        self._loss = _MeanLoss(net, likelihood, losses)
        kinds: dict[tuple[bool, torch.dtype], list[str]] = {}
        self._named = named = {n: p for n, p in self._loss.named_parameters() if p.requires_grad}
        for name, p in named.items():
            kinds.setdefault((name.startswith("net."), p.dtype), []).append(name)
        kept = {name: (p != 0) | (p.dim() < 2) for name, p in named.items()}
        self._trained = [name for names in kinds.values() for name in names]
        self._flats = [FlatParameters([[named[n] for n in names]]) for names in kinds.values()]
        rows = [
            flat.flat([kept[n] for n in names])
            for flat, names in zip(self._flats, kinds.values(), strict=True)
        ]
        self._kept = [
            (flat, row[None]) for flat, row in zip(self._flats, rows, strict=True) if not row.all()
        ]
        self._clipped = [flat for flat, (own, _) in zip(self._flats, kinds, strict=True) if own]
        groups = [
            {"params": [flat.parameter], "weight_decay": 0.01 if own else 0.0}
            for flat, (own, _) in zip(self._flats, kinds, strict=True)
        ]
        self._start = values_of(self._loss)
        self._optimizer = torch.optim.AdamW(groups, fused=True) if groups else None
        self._met: Counter[Any] = Counter()
        self._graphs: dict[Any, Callable[..., Any]] = {}
        self.untraceable: str | None = None

    def __call__(
        self, x: Tensor, y: Tensor, weights: Tensor | None, taught: Tensor | None, lr: float
    ) -> None:
        """Step once.

        Arguments:
            x, y: a batch, ``(B, *)``.
            weights: of its rows, ``(B,)``.
            taught: what a teacher predicts of them, ``(B, *)``.
            lr: learning rate.
        """
        if self._optimizer is None:
            return  # there is nothing to train
        self._loss.weights, self._loss.taught = weights, taught
        graph = self._graph(x, y)
        if graph is None:
            parameters = [self._named[name] for name in self._trained]
            found = torch.autograd.grad(self._loss(x, y)[0], parameters, materialize_grads=True)
            rows = self._rows(found)
        else:
            with torch.no_grad():
                rows = graph(x, y)
        for flat, row in zip(self._flats, rows, strict=True):
            flat.parameter.grad = row[None]
        self._update(self._optimizer, lr)

    def _rows(self, grads: Iterable[Tensor]) -> list[Tensor]:
        left = iter(grads)
        return [flat.flat([next(left) for _ in flat.slots]) for flat in self._flats]

    @torch.no_grad()
    def _update(self, optimizer: torch.optim.Optimizer, lr: float) -> None:
        if self._clipped:
            norms = [torch.linalg.vector_norm(flat.grad) for flat in self._clipped]
            norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
            factor = (1.0 / (norm + 1e-6)).clamp_(max=1.0)
            for flat in self._clipped:
                flat.grad.mul_(factor)
        for group in optimizer.param_groups:
            group["lr"] = lr
        fused.step(optimizer)
        for flat, kept in self._kept:
            flat.parameter.mul_(kept)

    def _graph(self, x: Tensor, y: Tensor) -> Callable[..., Any] | None:
        given = self._loss.weights is not None, self._loss.taught is not None
        key = x.shape, y.shape, given
        if key in self._graphs or self.untraceable is not None:
            return self._graphs.get(key)
        self._met[key] += 1
        if self._met[key] > _FIRST:
            try:
                self._graphs[key] = self._traced(x, y)
            except Untraceable as error:
                self.untraceable = str(error)
        return self._graphs.get(key)

    def _traced(self, x: Tensor, y: Tensor) -> Callable[..., Any]:
        """The gradients of a batch, as rows."""
        traced = TracedLoss(self._loss, x, y, self._trained)
        traced.check_module(self._loss, x, y)
        held = dict([*self._loss.named_parameters(), *self._loss.named_buffers()])
        views = [view[0] for flat in self._flats for view in flat.views()]

        def state() -> list[Any]:
            now = {"weights": self._loss.weights, "taught": self._loss.taught}
            return [now.get(name, held[name]) for name in traced.state_names]

        graph = joint_graph(traced, self._rows, views, state(), x, y, False, written_out=False)
        graph = lean(graph, [len(views) + i for i in traced.changed])
        call = of_lists(graph, 1 + len(traced.sites), len(self._flats))
        return lambda x, y: call(views, state(), x, y)[1]

    def restart(self) -> None:
        """Put everything back to where it was at first."""
        set_values(self._loss, self._start)
        if self._optimizer is not None:
            self._optimizer.state.clear()


class _MeanLoss(nn.Module):
    """The mean loss of a batch, weighted by its rows."""

    weights: Tensor | None
    taught: Tensor | None

    def __init__(self, net: nn.Module, likelihood: Likelihood, losses: Losses) -> None:
        super().__init__()
        self.net, self.likelihood, self.losses = net, likelihood, losses
        self.register_buffer("weights", None, persistent=False)
        self.register_buffer("taught", None, persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        losses = self.losses(self.likelihood, self.net(x), y, self.taught)
        return (losses if self.weights is None else self.weights * losses).mean(), {}


def values_of(net: nn.Module) -> dict[str, Tensor]:
    """Copies of parameters and buffers, those that no ``state_dict`` has among them."""
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return {name: t.detach().clone() for name, t in tensors}


@torch.no_grad()
def set_values(net: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give parameters and buffers these values, in place."""
    own = dict([*net.named_parameters(), *net.named_buffers()])
    for name, value in values.items():
        own[name].copy_(value)
