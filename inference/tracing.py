"""A training step as a pure graph of tensor operations, traced below Pyro."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from .elbo import Bound

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TracedBound", "Untraceable", "joint_graph"]

aten = torch.ops.aten


class Untraceable(RuntimeError):
    """Why a pair cannot be traced, in words for its author."""


class _PerObservation(nn.Module):
    """The loss for each observation, and the log-likelihoods by site."""

    def __init__(self, bound: Bound, rows: int) -> None:
        super().__init__()
        self.bound = bound
        self.rows = rows

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        terms = self.bound.terms(x, y)
        return terms.loss(self.bound.kl_weight) / self.rows, terms.by_site


class TracedBound:
    """The bound of a pair as a graph: ``graph(params, state, x, y)``.

    Pyro's handlers run once, while the operations they cause are recorded; what is left is a
    function of tensors, without Python, Pyro or modules. Operations that change a buffer in place
    (running statistics) are part of it. It holds for one shape of batch, and for the modes and
    dropout rates that the modules had.

    Arguments:
        bound: of the pair.
        rows: N, by which the loss is divided.
        x, y: a batch, ``(B, ...)``; its values do not matter.
        trained: names of the parameters of ``bound`` that are trained.

    Attributes:
        graph: ``(params, state, x, y) -> (loss, log_likelihoods)``; the first two are lists in the
            order of ``trained`` and ``state_names``.
        sites: names of the observed sites, in the order of ``log_likelihoods``.
        changed: positions in ``state_names`` of what the graph changes in place.

    Raises:
        Untraceable: if the pair looks at the value of a tensor to decide what to do, or does not
            do the same at every call.
    """

    def __init__(
        self, bound: Bound, rows: int, x: Tensor, y: Tensor, trained: Sequence[str]
    ) -> None:
        self.module = _PerObservation(bound, rows)
        self.trained = [f"bound.{name}" for name in trained]
        params = dict(self.module.named_parameters())
        state: dict[str, Tensor] = {n: p for n, p in params.items() if n not in set(self.trained)}
        state |= dict(self.module.named_buffers())
        self.state_names = list(state)
        self.sites: list[str] = []
        with _quiet(x.device):
            values = [params[name].detach().requires_grad_() for name in self.trained]
            held = [t.detach().clone() for t in state.values()]
            try:
                graph = make_fx(lambda *a: self._call(*a), pre_dispatch=True)(values, held, x, y)
            except Exception as error:
                raise Untraceable(_reason(error)) from error
            graph.graph.eliminate_dead_code()
            self.changed = _changed(graph, len(values), len(held))
            graph.recompile()
            self.graph: fx.GraphModule = graph
            self._verify(values, [t.detach() for t in state.values()], x, y)

    def _call(
        self, params: list[Tensor], state: list[Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        named = dict(zip([*self.trained, *self.state_names], [*params, *state], strict=True))
        loss, by_site = functional_call(self.module, named, (x, y))
        self.sites = list(by_site)
        return loss, list(by_site.values())

    @torch.no_grad()
    def _verify(self, params: list[Tensor], state: list[Tensor], x: Tensor, y: Tensor) -> None:
        """The graph must do what the pair does, twice alike and on other values too."""

        def at(f: Callable[..., Any], x: Tensor) -> Tensor:
            torch.manual_seed(0)
            out: Tensor = f(params, [t.clone() for t in state], x, y)[0]
            return out

        other = x.roll(1, 0) if x.shape[0] > 1 else x
        first, again, traced = at(self._call, x), at(self._call, x), at(self.graph, x)
        moved, traced_moved = at(self._call, other), at(self.graph, other)
        for a, b, what in (
            (first, again, "it gives another loss when it is called again with the same random "
             "numbers: it seems to use a counter or Python's own random numbers"),
            (first, traced, "its graph does not give its loss: a site or an operation depends on "
             "something that is not a tensor of the model, the guide or the batch"),
            (moved, traced_moved, "its graph gives another loss on another batch: a value of the "
             "batch was turned into a Python number"),
        ):  # fmt: skip
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise Untraceable(f"{what} ({float(a):.6g} and {float(b):.6g})")


def _changed(graph: fx.GraphModule, skip: int, count: int) -> list[int]:
    """Which of ``count`` inputs, the first ``skip`` left out, the graph changes in place."""
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"][skip : skip + count]
    changed: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        arguments = node.target._schema.arguments
        written = [
            a
            for a, spec in zip(node.args, arguments, strict=False)
            if spec.alias_info is not None and spec.alias_info.is_write
        ]
        if node.target in _WITH_STATISTICS:  # which the schema does not admit
            written += [
                a
                for a, spec in zip(node.args, arguments, strict=False)
                if spec.name.startswith("running_")
            ]
        changed |= {_root(a) for a in written if isinstance(a, fx.Node)}
    return [i for i, node in enumerate(inputs) if node in changed]


def _root(node: fx.Node) -> fx.Node:
    """The tensor of which ``node`` is a view."""
    while isinstance(node.target, torch._ops.OpOverload):
        returns = node.target._schema.returns
        if not returns or returns[0].alias_info is None or not isinstance(node.args[0], fx.Node):
            break
        node = node.args[0]
    return node


def joint_graph(
    traced: TracedBound,
    flat: Callable[[list[Tensor]], list[Tensor]],
    params: list[Tensor],
    state: list[Tensor],
    x: Tensor,
    y: Tensor,
    replicates: bool,
) -> fx.GraphModule:
    """Loss, log-likelihoods, gradients and new state in one graph without side effects.

    Forward and backward pass are one function, so that a compiler can fuse across them and nothing
    of autograd is left at run time.

    Arguments:
        traced: of one pair.
        flat: gradients of the parameters, in their order, to the rows that are wanted.
        params, state, x, y: examples; with ``replicates`` each has a leading dimension K, and the
            graph is mapped over it (``torch.vmap``), with different noise in each.

    Returns:
        ``graph(params, state, x, y) -> (loss, log_likelihoods, rows, changed state)``.

    Raises:
        Untraceable: if an operation cannot be mapped.
    """
    forward = _differentiable(traced.graph)

    def step(params: list[Tensor], state: list[Tensor], x: Tensor, y: Tensor) -> Any:
        def loss(params: list[Tensor]) -> Any:
            new = [t.clone() if i in traced.changed else t for i, t in enumerate(state)]
            value, seen = forward(params, new, x, y)
            return value, (value, seen, [new[i] for i in traced.changed])

        grads, (value, seen, changed) = torch.func.grad(loss, has_aux=True)(params)
        return value, seen, flat(grads), changed

    mapped = torch.vmap(step, randomness="different") if replicates else step
    with _quiet(x.device):
        try:
            graph = make_fx(mapped)(params, state, x, y)
        except Exception as error:
            raise Untraceable(_reason(error)) from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _reason(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    if "value out of a tracing tensor" in text or "_local_scalar_dense" in text:
        return (
            "it turns a tensor into a Python number (if tensor: ..., float(tensor), .item()): use "
            "torch.where or tensor arithmetic"
        )
    return f"{type(error).__name__}: {text}"


@contextmanager
def _quiet(device: torch.device) -> Iterator[None]:
    """Without Pyro's checks, which look at values, and without a trace in the random numbers."""
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        pyro.validation_enabled(False),
        torch.enable_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


_WITH_STATISTICS = (aten.batch_norm.default, aten.instance_norm.default)

# -- operations that are differentiated and mapped better in another form -----------------------


def _differentiable(graph: fx.GraphModule) -> fx.GraphModule:
    """The same graph with some operations written out.

    Batch normalisation fuses with what surrounds it only when it is written out, and mapped over
    replicates it would shuffle memory. Noise that is written into an existing tensor cannot differ
    between replicates; a new random tensor can.
    """
    written = copy.deepcopy(graph)
    for node in written.graph.nodes:
        node.target = _WRITTEN_OUT.get(node.target, node.target)
    written.recompile()
    return written


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """``aten::batch_norm`` in elementary operations, running statistics included."""
    shape = [1, -1] + [1] * (x.dim() - 2)
    if training or running_mean is None or running_var is None:
        count = x.numel() // x.shape[1]
        var, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        if running_mean is not None and running_var is not None:
            unbiased = count / max(count - 1, 1)
            running_mean.mul_(1 - momentum).add_(mean.detach(), alpha=momentum)
            running_var.mul_(1 - momentum).add_(var.detach(), alpha=momentum * unbiased)
    else:
        mean, var = running_mean, running_var
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    out = (x - mean.view(shape)) * scale.view(shape)
    return out if bias is None else out + bias.view(shape)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0.0:
        return x
    if p == 1.0:
        return x * 0.0
    return x * (torch.rand_like(x) >= p) / (1.0 - p)


def _normal_(t: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return torch.randn_like(t) * std + mean


def _uniform_(t: Tensor, start: float = 0.0, stop: float = 1.0) -> Tensor:
    return torch.rand_like(t) * (stop - start) + start


def _exponential_(t: Tensor, rate: float = 1.0) -> Tensor:
    return -torch.log1p(-torch.rand_like(t)) / rate


def _bernoulli_(t: Tensor, p: float = 0.5) -> Tensor:
    return (torch.rand_like(t) < p).to(t.dtype)


_WRITTEN_OUT: dict[Any, Callable[..., Tensor]] = {
    aten.batch_norm.default: _batch_norm,
    aten.dropout.default: _dropout,
    aten.normal_.default: _normal_,
    aten.uniform_.default: _uniform_,
    aten.exponential_.default: _exponential_,
    aten.bernoulli_.float: _bernoulli_,
}
