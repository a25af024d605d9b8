"""A training step as a pure graph of tensor operations, traced below Pyro."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from ..elbo import Bound
from .fusion import differentiable, source_of
from .graphs import graph_of
from .half_products import Precision, products

aten = torch.ops.aten


class Untraceable(RuntimeError):
    """Why a pair cannot be traced, in words for its author."""


class _PerObservation(nn.Module):
    """The loss for each observation, or the two terms of it, and the log-likelihoods by site."""

    def __init__(self, bound: Bound, rows: int, in_terms: bool) -> None:
        super().__init__()
        self.bound = bound
        self.rows, self.in_terms = rows, in_terms

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        terms = self.bound.terms(x, y)
        if self.in_terms:
            return torch.stack([terms.log_likelihood, terms.kl]) / self.rows, terms.by_site
        return terms.loss(self.bound.kl_weight) / self.rows, terms.by_site


class TracedBound:
    """The bound of a pair as a graph: ``graph(params, state, x, y)``.

    Pyro's handlers run once, while the operations they cause are recorded; what is left is a
    function of tensors, without Python, Pyro or modules. Operations that change a buffer in place
    (running statistics) are part of it. It holds for one shape of batch, and for the modes and
    dropout rates that the modules had. Call :meth:`check` before it is used.

    Arguments:
        bound: of the pair.
        rows: N, by which the loss is divided.
        x, y: a batch, ``(B, ...)``; its values do not matter.
        trained: names of the parameters of ``bound`` that are trained.
        in_terms: instead of the loss, the log-likelihood and the KL, neither of them weighted,
            ``(2,)``.

    Attributes:
        graph: ``(params, state, x, y) -> (loss, log_likelihoods)``; the first two are lists in the
            order of ``trained`` and ``state_names``.
        sites: names of the observed sites, in the order of ``log_likelihoods``.
        changed: positions in ``state_names`` of what the graph changes in place.

    Raises:
        Untraceable: if the pair looks at the value of a tensor to decide what to do, or changes
            what it should not.
    """

    def __init__(
        self,
        bound: Bound,
        rows: int,
        x: Tensor,
        y: Tensor,
        trained: Sequence[str],
        in_terms: bool = False,
    ) -> None:
        self.rows, self.in_terms = rows, in_terms
        module = _PerObservation(bound, rows, in_terms)
        self.trained = [f"bound.{name}" for name in trained]
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        self.state_names = [name for name in tensors if name not in set(self.trained)]
        self.sites: list[str] = []
        with _quiet(x.device):
            params, held = self._inputs(module)
            call = partial(self._call, module)
            graph = graph_of(call, params, held, x.clone(), y.clone(), pre_dispatch=True)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        self.graph: fx.GraphModule = graph
        changed = {root(n) for node in graph.graph.nodes for n in written(node)}
        given = [node in changed for node in graph.graph.nodes if node.op == "placeholder"]
        names = [*map(_short, [*self.trained, *self.state_names]), "x", "y"]
        self.changed = [i - len(params) for i, is_changed in enumerate(given) if is_changed]
        for i in self.changed:
            if not 0 <= i < len(held):
                raise Untraceable(f"it changes {names[len(params) + i]} in place")

    def _inputs(self, module: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Present parameters and (a copy of the) state."""
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        params = [tensors[name].detach().requires_grad_() for name in self.trained]
        return params, [tensors[name].detach().clone() for name in self.state_names]

    def _call(
        self, module: nn.Module, params: list[Tensor], state: list[Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        named = dict(zip([*self.trained, *self.state_names], [*params, *state], strict=True))
        loss, by_site = functional_call(module, named, (x, y))
        for name, t in zip(self.state_names, state, strict=True):
            if named[name] is not t:
                raise Untraceable(f"it puts a new tensor in place of the buffer {_short(name)}")
        self.sites = list(by_site)
        return loss, list(by_site.values())

    def check(self, bound: Bound, x: Tensor, y: Tensor, again: bool = True) -> None:
        """Check that the graph does what a pair does, its own, or another with the same parameters
        and buffers: losses, log-likelihoods, changes of buffers and gradients of a batch.

        Arguments:
            again: compare the pair with itself too, and on another batch.

        Raises:
            Untraceable: if not.
        """
        module = _PerObservation(bound, self.rows, self.in_terms)
        params, state = self._inputs(module)
        for name, p in module.named_parameters():
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                raise Untraceable(f"the parameter {_short(name)} has a hook on its gradient")
        call = partial(self._call, module)

        def at(f: Callable[..., Any], x: Tensor, y: Tensor) -> dict[str, Tensor]:
            _seed(x.device)
            held = [t.clone() for t in state]
            loss, seen = f(params, held, x.clone(), y.clone())
            grads = torch.autograd.grad(loss.sum(), params, allow_unused=True)
            pairs = zip(params, grads, strict=True)
            # One vector: what is nothing but rounding beside the others may differ.
            gradient = torch.cat(
                [(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs]
            )
            names = [f"new value of {_short(name)}" for name in self.state_names]
            names += [f"log-likelihood of {name!r}" for name in self.sites]
            values = dict(zip(names, [*held, *seen], strict=True))
            return {"loss": loss, "gradient": gradient, **values}

        def compare(
            ours: dict[str, Tensor], theirs: dict[str, Tensor], why: str, rounding: float = 1e-4
        ) -> None:
            for what, value in ours.items():
                if not _close(value, theirs[what], rounding):
                    raise Untraceable(why.format(what=f"another {what}"))

        with _quiet(x.device):
            first = at(call, x, y)
            if again:
                same = "called again with the same random numbers it gives {what}"
                compare(first, at(call, x, y), same, rounding=1e-6)
            compare(
                first,
                at(self.graph, x, y),
                "its graph gives {what}: something depends on what is not a parameter, a buffer "
                "or the batch, or has a gradient of its own",
            )
            if again:
                x, y = _other(x, 0), _other(y, 1)  # other values, and distributed otherwise
                other = "its graph gives {what} on another batch"
                compare(at(call, x, y), at(self.graph, x, y), other)


def _short(name: str) -> str:
    return repr(name.removeprefix("bound."))


def _other(t: Tensor, shift: int) -> Tensor:
    """Rows of ``t``, some of them twice and others not."""
    if t.shape[0] > 1:
        return t[(torch.arange(t.shape[0], device=t.device) + shift) // 2]
    return 1.25 * t if t.is_floating_point() else t


def _close(a: Tensor, b: Tensor, rounding: float) -> bool:
    """Equal but for rounding, which is relative to the largest value."""
    a, b = a.detach().double(), b.detach().double()
    size = float(a.nan_to_num(0.0, 0.0, 0.0).abs().amax()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=rounding, atol=rounding * size + 1e-9, equal_nan=True)


def _seed(device: torch.device) -> None:
    """Seed the generators that :func:`_quiet` puts back, and no others."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)


def written(node: fx.Node) -> list[fx.Node]:
    """Arguments that an operation writes to."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    specs = node.target._schema.arguments
    given = dict(zip((spec.name for spec in specs), node.args, strict=False)) | node.kwargs
    found: list[fx.Node] = []
    for spec in specs:
        writes = spec.alias_info is not None and spec.alias_info.is_write
        # What the schema does not admit.
        writes = writes or (node.target in _WITH_STATISTICS and spec.name.startswith("running_"))
        if writes:
            fx.node.map_arg(given.get(spec.name), found.append)
    return found


def root(node: fx.Node) -> fx.Node:
    """The tensor of which ``node`` is a view."""
    while (source := source_of(node)) is not None:
        node = source
    return node


def joint_graph(
    traced: TracedBound,
    flat: Callable[[list[Tensor]], list[Tensor]],
    params: list[Tensor],
    state: list[Tensor],
    x: Tensor,
    y: Tensor,
    replicates: bool,
    written_out: bool = True,
    particles: int = 1,
    precision: Precision = None,
) -> fx.GraphModule:
    """Loss, log-likelihoods, gradients and new state in one graph without side effects, in which
    nothing of autograd is left.

    Arguments:
        traced: of one pair.
        flat: gradients of the parameters, in their order, to the rows that are wanted.
        params, state, x, y: examples; with ``replicates`` each has a leading dimension K, and the
            graph is mapped over it (``torch.vmap``), with different noise in each.
        written_out: batch normalisation in elementary operations.
        particles: draws of the latents over which the graph, that of one of them, is mapped.
        precision: of products (:mod:`~pyroccam.inference.compilation.half_products`).

    Returns:
        ``graph(params, state, x, y) -> (loss, log_likelihoods, rows, changed state)``.

    Raises:
        Untraceable: if an operation cannot be mapped.
    """
    forward = differentiable(traced.graph, written_out)

    def step(params: list[Tensor], state: list[Tensor], x: Tensor, y: Tensor) -> Any:
        def loss(params: list[Tensor]) -> Any:
            new = [t.clone() if i in traced.changed else t for i, t in enumerate(state)]
            if particles == 1:
                value, seen = forward(params, new, x, y)
                return value, (value, seen, [new[i] for i in traced.changed])
            values, each = torch.vmap(lambda _: forward(params, new, x, y), randomness="different")(
                torch.empty(particles, device=x.device)
            )
            return values.mean(), (values.mean(), [s[0] for s in each], [])

        with products(precision):
            grads, (value, seen, changed) = torch.func.grad(loss, has_aux=True)(params)
        return value, seen, flat(grads), changed

    mapped = torch.vmap(step, randomness="different") if replicates else step
    with _quiet(x.device):
        graph = graph_of(mapped, params, state, x, y)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def first_line(error: Exception) -> str:
    """First line of an error's message, to stand within a sentence."""
    return str(error).strip().split("\n")[0].rstrip(".")


def _reason(error: Exception) -> str:
    text = first_line(error)
    if "value out of a tracing tensor" in text or "_local_scalar_dense" in text:
        return f"it turns a tensor into a Python value{_place(error)}"
    return f"{type(error).__name__}{_place(error)}: {text}"


_LIBRARIES = [Path(torch.__file__).parent, Path(pyro.__file__).parent, Path(__file__).parents[1]]
_MODULES = Path(nn.__file__).parent / "modules"


def _place(error: Exception) -> str:
    """The innermost line of a network or a model that was being run."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        own = not any(path.is_relative_to(folder) for folder in _LIBRARIES)
        part = path.is_relative_to(_MODULES) and path.stem not in ("module", "container")
        if frame.line and path.is_file() and (own or part):
            return f" in {path.name}:{frame.lineno}, `{frame.line}`"
    return ""


@contextmanager
def _quiet(device: torch.device) -> Iterator[None]:
    """Without Pyro's checks, which look at values, and without a trace in the random numbers.

    Raises:
        Untraceable: in place of any other error.
    """
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        pyro.validation_enabled(False),
        torch.enable_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            yield
        except Untraceable:
            raise
        except Exception as error:
            raise Untraceable(_reason(error)) from error


_WITH_STATISTICS = (aten.batch_norm.default, aten.instance_norm.default)
