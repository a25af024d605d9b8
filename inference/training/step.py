"""One optimiser step of one pair, or of several replicates at once; eager or compiled."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ...models import anneal
from ..compilation import (
    CudaRecorder,
    Recorded,
    TracedBound,
    Untraceable,
    first_line,
    in_regions,
    joint_graph,
    lean,
    of_lists,
    pays_from,
    products,
)
from ..distributed import Ranks, add_up
from ..elbo import Bound, bound
from .first_pass import trained_by
from .flat_parameters import FlatParameters, difference
from .optimizer import Update, make_optimizer, parameter_groups
from .settings import Settings

Graph = Callable[..., Any]
# From a batch to the loss and the log-likelihoods; leaves gradients and state behind.
Evaluation = Callable[[Tensor, Tensor], tuple[Tensor, list[Tensor]]]


class CompileFallback(UserWarning):
    """A step that was to be compiled runs eagerly: slower, and as correct."""


class _Stacked(NamedTuple):
    """What a graph is given of K pairs.

    Attributes:
        views: what is trained, ``(K, *)`` where there are several.
        state: buffers and what is not trained, by name, in their own storage.
    """

    views: list[Tensor]
    state: dict[str, Tensor]


class TrainingStep:
    """Loss, gradients and update for K pairs that differ in their values only.

    A compiled step is traced below Pyro (:mod:`~pyroccam.inference.compilation.trace`), once for
    each shape of batch and each state of the modules (training mode, dropout rates): changing these
    traces anew, going back finds the old graph. The KL weight and the learning rate are inputs.
    Noise is fresh at every step. Where tracing or compiling fails, the step runs eagerly and says
    why.

    Several pairs are stepped together: their parameters lie in one tensor, and the graph is mapped
    over them. Each keeps its modules, whose parameters and buffers are views of that tensor.

    On CUDA a graph is recorded whole as a CUDA graph, gradients, clipping and optimiser included,
    and a step is two replays (:mod:`~pyroccam.inference.compilation.cuda_graphs`).

    Arguments:
        pairs: K (model, guide) pairs, equal but for their values, on one device.
        settings: see :class:`~pyroccam.inference.training.settings.Settings`.
        compile: compile the graph; or run it as it is (``graph``), which takes seconds less to
            prepare and is slower at each step; or compile it where so many steps are ahead that it
            pays (``None``). Without any (``False``) one pair runs eagerly, Pyro and all, and
            several run as a graph.
        steps: how many of each size of batch are ahead. Other sizes are not traced (a last, smaller
            batch is rarely worth it), and only the most frequent one is compiled whether it pays or
            not. All are, if ``None``.

    Attributes:
        optimizer: made at the first batch (or by ``prepare``).
        seen: log-likelihoods by site of the last step, ``(K, *enumerated, B)``.
        kind: how steps ran, the fastest of all sizes: ``eager``, ``graph`` or ``compiled``.
        pays_from: steps of the most frequent size of batch from which on compiling pays.
        fallback: why the step is not compiled, if it was to be.
        recorder: of CUDA graphs; ``None`` where there is no CUDA, or no graph. Set it to ``None``
            before the first step to launch kernels one by one.

    References:
        Pyro has no such step: its JIT ELBOs need ``torch.jit`` and ``torch.compile`` breaks its
        handlers into many graphs (scverse/scvi-tools issue 2256, pyro-ppl/pyro PR 3149).
    """

    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        pairs: Sequence[tuple[nn.Module, nn.Module]],
        settings: Settings,
        *,
        compile: bool | Literal["graph"] | None,
        steps: Mapping[int, int] | None = None,
    ) -> None:
        for other in pairs[1:]:
            for ours, theirs in zip(pairs[0], other, strict=True):
                if (why := difference(ours, theirs)) is not None:
                    raise PyroccamError(why, "pairs that differ in values alone")
        self.pairs, self.settings, self.compile = list(pairs), settings, compile
        self.steps = steps
        first: Any = pairs[0][0]
        self.rows = int(first.size)
        self.bounds: list[Bound] = [
            bound(model, guide, particles=settings.particles) for model, guide in pairs
        ]
        self.recorder: CudaRecorder | None = None
        device = next(self.bounds[0].parameters()).device
        if device.type == "cuda" and (compile or len(pairs) > 1):
            self.recorder = CudaRecorder(device)
        self.unrecorded: str | None = None
        self.flats: dict[str, FlatParameters] = {}
        self.seen: dict[str, Tensor] = {}
        self.compile_seconds = 0.0
        self.kind, self.kl_weight = "eager", 1.0
        self.pays_from: int | None = None
        self.fallback: str | None = None
        self._as_graph = False
        self._graphs: dict[Any, tuple[Evaluation, list[str]]] = {}
        self._left: list[tuple[Tensor, Tensor]] = []

    # -- set-up -----------------------------------------------------------------------------------

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Bring parameters and buffers into place and make the optimiser; once.

        Runs the first pair on a batch, with Pyro's validation in the state it has, to find the
        parameters that the loss depends on. The others get no weight decay; a later batch may give
        them a gradient. Leaves random numbers and buffers as they are.
        """
        if self.flats:
            return
        used = trained_by(self.pairs, self.bounds, self.settings, x, y)
        if not used:
            name = type(self.pairs[0][0]).__name__
            raise PyroccamError(f"the loss of {name} depends on no parameter with a gradient")
        groups = self._groups(used)
        single = any(flat.parameter.dtype == torch.float32 for flat in self.flats.values())
        if self.settings.precision == "bf16" and not single:
            raise PyroccamError("precision='bf16' where nothing that is trained is float32")
        self.optimizer = make_optimizer(self.settings, groups)
        self._update = Update(
            self.settings, self.optimizer, self.flats, self.recorder, self._no_recording
        )
        if getattr(self.pairs[0][0], "keeps_zeros", False):
            rows = [flat for name, flat in self.flats.items() if name.startswith("weights")]
            self._left = [(flat.parameter.detach(), flat.nonzero()) for flat in rows]

    def _groups(self, used: set[int]) -> list[dict[str, Any]]:
        """Make the rows; what the optimiser moves, and how."""
        names = [name for name, _ in self.bounds[0].named_parameters()]
        where = {id(p): i for i, p in enumerate(self.bounds[0].parameters())}
        all_parameters = [list(b.parameters()) for b in self.bounds]
        groups: list[dict[str, Any]] = []
        self.trained: list[str] = []
        for group in parameter_groups(self.settings, *self.pairs[0]):
            kinds: dict[tuple[torch.dtype, bool], list[int]] = {}
            for p in group["params"]:
                kinds.setdefault((p.dtype, where[id(p)] in used), []).append(where[id(p)])
            for (dtype, is_used), indices in kinds.items():
                key = group["name"] if len(kinds) == 1 else f"{group['name']}.{dtype}.{is_used}"
                decay = group["weight_decay"] if is_used else 0.0
                flat = FlatParameters([[ps[i] for i in indices] for ps in all_parameters])
                self.flats[key] = flat
                self.trained += [names[i] for i in indices]
                groups.append({**group, "params": [flat.parameter], "weight_decay": decay})
        return groups

    @cached_property
    def _stacked(self) -> _Stacked:
        """What a graph is given, those of several pairs in one tensor."""
        trained = set(self.trained)
        states = []
        for b in self.bounds:
            tensors = [*b.named_parameters(), *b.named_buffers()]
            states.append({name: t for name, t in tensors if name not in trained})
        views = [v for flat in self.flats.values() for v in flat.views()]
        if len(self.pairs) == 1:
            return _Stacked([v[0] for v in views], {n: t.detach() for n, t in states[0].items()})
        stacked = {}
        for name in states[0]:
            rows = torch.stack([state[name].detach() for state in states])
            for k, state in enumerate(states):
                state[name].data = rows[k]
            stacked[name] = rows
        return _Stacked(views, stacked)

    @cached_property
    def _baked(self) -> list[tuple[dict[str, Any], str]]:
        """What a graph has baked in, and a person may change: modes, rates of dropout and so on."""
        return [
            (vars(m), name)
            for m in self.bounds[0].modules()
            for name, value in vars(m).items()
            if not name.startswith("_") and isinstance(value, int | float | str | None)
        ]

    def state(self, name: str) -> Tensor:
        """A buffer or frozen parameter of all pairs, ``(K, *)``, in its own storage."""
        t = self._stacked.state[name]
        return t[None] if len(self.pairs) == 1 else t

    def describe(self) -> dict[str, Any]:
        """How the steps ran."""
        return {
            "kind": self.kind,
            "replicates": len(self.pairs),
            "compile_seconds": self.compile_seconds,
            "pays_from": self.pays_from,
            "fallback": self.fallback,
            "cuda_graphs": self.recorder is not None and self.unrecorded is None,
        }

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Take up a ``state_dict`` of the optimiser; after ``prepare``."""
        self._update.load_state_dict(state)

    def release(self) -> None:
        """Give the modules storage of their own again; a further step would start afresh."""
        for flat in self.flats.values():
            flat.release()
        stacked = vars(self).pop("_stacked", None)
        if stacked and len(self.pairs) > 1:
            for b in self.bounds:
                for name, t in [*b.named_parameters(), *b.named_buffers()]:
                    if name in stacked.state:
                        t.data = t.data.clone(memory_format=torch.preserve_format)
        self.flats, self._left = {}, []
        self._graphs.clear()

    # -- the step ---------------------------------------------------------------------------------

    def __call__(self, x: Tensor, y: Tensor, progress: float = 0.0, hold: float = 0.0) -> Tensor:
        """Evaluate, differentiate and update.

        Arguments:
            x, y: a batch, ``(B, *)``; for K > 1 pairs one for each, ``(K, B, *)``.
            progress: fraction of the training that is done, for the schedules.
            hold: while ``progress`` is below, the guide's parameters stay.

        Returns:
            the loss before the update, in nats for each observation, ``()`` or ``(K,)``.
        """
        if not self.flats:
            self.prepare(*((x, y) if len(self.pairs) == 1 else (x[0], y[0])))
        self.warm_up(progress)
        loss = self.evaluate(x, y)
        self.update(progress, hold)
        return loss

    def warm_up(self, progress: float) -> None:
        """Set the weight of the KL, and the temperature of what is relaxed."""
        for model, _ in self.pairs:
            anneal(model, progress)
        warmup = self.settings.kl_warmup
        share = min(1.0, progress / warmup) if warmup else 1.0
        self.kl_weight = share * self.settings.kl_weight
        if warmup or self.settings.kl_weight != 1.0:
            for b in self.bounds:
                b.kl_weight.fill_(self.kl_weight)

    def evaluate(self, x: Tensor, y: Tensor) -> Tensor:
        """Leave the gradients in the rows; returns the loss as ``__call__`` does."""
        graph = self._graph(x, y)
        if graph is None:
            return self._eager(x, y)
        run, sites = graph
        with torch.no_grad():
            loss, seen = run(x, y)
        single = len(self.pairs) == 1
        self.seen = {n: s[None] if single else s for n, s in zip(sites, seen, strict=True)}
        return loss

    def _eager(self, x: Tensor, y: Tensor) -> Tensor:
        for flat in self.flats.values():
            flat.grad.zero_()
        losses: list[Tensor] = []
        seen: list[dict[str, Tensor]] = []
        for k, b in enumerate(self.bounds):
            with products(self.settings.precision):
                terms = b.terms(x, y) if len(self.pairs) == 1 else b.terms(x[k], y[k])
                loss = terms.loss(b.kl_weight) / self.rows
                loss.backward()
            losses.append(loss.detach())
            seen.append(terms.by_site)
        self.seen = {name: torch.stack([s[name] for s in seen]) for name in seen[0]}
        return losses[0] if len(losses) == 1 else torch.stack(losses)

    def add_up(self, ranks: Ranks, rows: int, loss: Tensor, by_depth: bool = False) -> Tensor:
        """Make of what ``evaluate`` left, of a part of a batch of so many rows, what belongs to the
        whole batch, with the log-likelihoods and costs by depth where they are needed; returns the
        loss of the batch."""
        part = ranks.part(rows)
        grads = [f.grad for f in self.flats.values()]
        rest = (self.seen["y"], self.seen.get("depth")) if by_depth else (None, None)
        loss, y, costs = add_up(ranks, part, rows, loss, grads, *rest)
        if y is not None:
            self.seen = {"y": y} if costs is None else {"y": y, "depth": costs}
        return loss

    def buffers(self) -> dict[str, Tensor]:
        """The buffers of all pairs by name, ``(K, *)`` each where there are several."""
        own = {name for name, _ in self.bounds[0].named_buffers()}
        return {name: t for name, t in self._stacked.state.items() if name in own}

    def update(self, progress: float = 0.0, hold: float = 0.0) -> None:
        """Move the parameters along the gradients that ``evaluate`` left."""
        self._update(progress, hold)
        for rows, left in self._left:
            rows.mul_(left)

    # -- graphs -----------------------------------------------------------------------------------

    def _graph(self, x: Tensor, y: Tensor) -> tuple[Evaluation, list[str]] | None:
        together = len(self.pairs) > 1
        if self.compile is False and not together:
            return None
        if self.fallback is not None and not self._as_graph:
            return None
        size = x.shape[1 if together else 0]
        wanted = self.compile if self.fallback is None else "graph"
        if self.steps is not None and size not in self.steps:
            wanted = False
        elif self.steps and wanted is True and size != self._most():
            wanted = None
        if wanted is False and not together:
            return None
        found = self._graphs.get(self._key(x, y))
        if found is not None:
            return found
        start = time.perf_counter()
        try:
            f, sites, changed = self._build(x, y, wanted)
        except Untraceable as error:
            self._fall_back(f"{type(self.pairs[0][0]).__name__} cannot be traced: {error}")
            return None
        finally:
            self.compile_seconds += time.perf_counter() - start
        found = self._evaluation(f, changed), sites
        self._graphs[self._key(x, y)] = found  # after it: a module may count its calls
        self.kind = "graph" if self.kind == "eager" else self.kind
        return found

    def _most(self) -> int:
        """The most frequent size of batch of the steps that are ahead."""
        assert self.steps is not None
        return max(self.steps, key=self.steps.__getitem__)

    def _evaluation(self, f: Graph, changed: list[int]) -> Evaluation:
        """Run a graph on the present parameters and put what it finds where it belongs."""
        views, state = self._stacked.views, [*self._stacked.state.values()]

        def run(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
            (loss,), seen, rows, new = f(views, state, x, y)
            # What the graph has not written to its place; one that works in place names nothing.
            for i, t in zip(changed, new, strict=False):
                if t is not None:
                    state[i].copy_(t)
            for flat, row in zip(self.flats.values(), rows, strict=True):
                if row is not None:
                    flat.grad.copy_(row)
            return loss, list(seen)

        if self.recorder is None:
            return run
        return Recorded(run, self.recorder, self._no_recording)

    def _no_recording(self, reason: str) -> None:
        if self.unrecorded is None:
            self.unrecorded = reason
            said = f"No CUDA graph could be recorded ({reason}): kernels are launched one by one."
            warnings.warn(said, CompileFallback, stacklevel=2)

    def _key(self, x: Tensor, y: Tensor) -> Any:
        """The key of what a graph holds for."""
        baked = tuple([module.get(name) for module, name in self._baked])
        return x.shape, x.stride(), x.dtype, y.shape, y.stride(), y.dtype, baked

    def _build(
        self, x: Tensor, y: Tensor, compile: bool | Literal["graph"] | None
    ) -> tuple[Graph, list[str], list[int]]:
        together, particles = len(self.pairs) > 1, 1
        traced = self._traced(x, y, particles, compile)
        if not traced.changed:
            particles = self.settings.particles  # one is traced, and mapped over all
        elif self.settings.particles > 1:  # in turn, as the pair itself does it
            traced = self._traced(x, y, self.settings.particles, compile)
        flats = list(self.flats.values())

        def flat(grads: list[Tensor]) -> list[Tensor]:
            rows, start = [], 0
            for f in flats:
                rows.append(f.flat(grads[start : start + len(f.slots)]))
                start += len(f.slots)
            return rows

        views, state = self._stacked.views, [*self._stacked.state.values()]
        given = traced, flat, views, state, x, y, together
        graph = joint_graph(
            *given,
            # A batch normalisation then fuses, or is mapped; else torch's kernel is faster.
            written_out=compile is True or together,
            particles=particles,
            precision=self.settings.precision,
        )
        if compile is None:
            least, size = pays_from(graph), x.shape[1 if together else 0]
            if self.steps is None or size == self._most():
                self.pays_from = least
            if self.steps is None or self.steps[size] >= least:
                return self._build(x, y, True)
        changed = [len(views) + i for i in traced.changed]
        lengths = 1, len(traced.sites), len(flats)
        if compile is not True:
            return of_lists(lean(graph, changed), *lengths), traced.sites, []
        # The graph writes gradients and new state to where they belong.
        first = 1 + len(traced.sites)
        lying: dict[int, Tensor | int] = {
            first + i: f.grad if together else f.grad[0] for i, f in enumerate(flats)
        }
        lying |= {first + len(flats) + i: place for i, place in enumerate(changed)}
        try:
            # Imported where it is needed: it brings the compiler with it, a second's work.
            from ..compilation import compiled

            graph = in_regions(graph, compiled, lying)
        except Exception as error:
            reason = f"the compiler failed: {type(error).__name__}: {first_line(error)}"
            self._fall_back(reason, graph=True)
            return self._build(x, y, "graph")
        self.kind = "compiled"
        return of_lists(graph, *lengths), traced.sites, traced.changed

    def _traced(self, x: Tensor, y: Tensor, particles: int, compile: Any) -> TracedBound:
        """The bound as a graph that does what each pair does, for a number of particles.

        Arguments:
            compile: as for :meth:`_build`; one that is to be compiled is written out.
        """
        one = (lambda k: (x[k], y[k])) if len(self.pairs) > 1 else (lambda k: (x, y))
        for b in self.bounds:
            b.elbo.num_particles, b.elbo.joins = particles, compile is not True
        try:
            traced = TracedBound(self.bounds[0], self.rows, *one(0), self.trained)
            for k, b in enumerate(self.bounds):
                try:
                    traced.check(b, *one(k), again=k == 0)
                except Untraceable as error:
                    if k == 0:
                        raise
                    raise Untraceable(f"replicate {k} is not like the first: {error}") from error
        finally:
            for b in self.bounds:
                b.elbo.num_particles, b.elbo.joins = self.settings.particles, True
        return traced

    def _fall_back(self, reason: str, graph: bool = False) -> None:
        how = "as a graph that is not compiled" if graph else "eagerly"
        warnings.warn(f"{reason}. The step runs {how}, only slower.", CompileFallback, stacklevel=2)
        self.fallback = reason
        self._as_graph = graph
        self.kind = self.kind if graph else "eager"
