"""The two-level problem: hyperparameters that are best for Q, of posteriors that are best for L."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..models.bayesian import BayesianNetwork
from ..models.names import unknown_name
from ..models.priors.weights import one_of
from .draws import seeded
from .fit import Fit, pick_device
from .graphs import graph_of
from .hypergradient import (
    NonFiniteGradient,
    Tensors,
    Update,
    adam,
    ascend,
    drmad,
    gradient_ascent,
    implicit,
    unrolled,
)
from .lean import lean
from .predict import component_weights
from .progress import FitProgress
from .settings import Settings
from .trainer import Interrupted
from .two_level import Key, Level, Objectives, of_likelihood

if TYPE_CHECKING:
    from ..data import Dataset

__all__ = ["METHODS", "Method", "Selection", "select"]

Method = Literal["one-level", "greedy", "unrolled", "implicit", "drmad", "random"]
METHODS = ("one-level", "greedy", "unrolled", "implicit", "drmad", "random")

# Of random search: uniform, by the last part of a hyperparameter's name and where it belongs.
RANGES: dict[str, tuple[float, float]] = {
    "log_scale": (-5.0, 1.0),  # of a precision, (-2, 10) in its logarithm, as in the source
    "log_scale_bias": (-5.0, 1.0),
    "loc": (-1.0, 1.0),
    "logits": (-3.0, 3.0),
    "likelihood": (-3.0, 1.0),
}


@dataclass
class Selection:
    """What a selection found.

    Attributes:
        fit: the pair at the outer step with the largest Q.
        method: of the hypergradient.
        history: a row for each outer step: ``outer``, ``Q``, ``L``, ``log_likelihood`` and ``kl``
            in nats over all rows (the same noise in every row), ``inner`` steps and ``seconds``
            up to there.
        best: position in ``history``.
    """

    fit: Fit
    method: Method
    history: list[dict[str, float]]
    best: int

    @property
    def Q(self) -> float:
        """The largest Q, in nats over all rows."""
        return self.history[self.best]["Q"]


def select(
    model: BayesianNetwork,
    guide: nn.Module,
    data: Dataset,
    L: Level | None = None,
    Q: Level | None = None,
    *,
    method: Method = "greedy",
    outer_steps: int = 50,
    inner_steps: int = 50,
    lr: float = 1e-2,
    outer_lr: float = 1e-2,
    inner: Literal["adam", "sgd"] = "adam",
    batch_size: int = 512,
    particles: int = 1,
    restart: bool = False,
    damping: float = 0.0,
    max_iter: int = 50,
    skip: float = 0.05,
    every: int = 1,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    draws: int = 20,
    seed: int = 0,
    device: str = "auto",
    progress: bool | None = None,
) -> Selection:
    r"""Choose what the priors learn by Q, where the guide is trained by L.

    .. math:: h^* = \arg\max_h Q(θ^*(h), h), \qquad θ^*(h) = \arg\max_θ L(θ, h)

    h are the parameters of priors (``priors.Normal(learn="weight")``,
    ``priors.GumbelSoftmax(learn=True)``) and the noise of a regression; θ those of the guide.
    Some choices of L and Q that have names:

    ========================  ================================================================
    evidence, ELBO            the defaults
    expected likelihood       ``Q=Level(prior=0)``
    least complexity          ``Q=Level(likelihood=0)``
    sample of size m / λ      ``L=Level(prior=λ)``, ``Q=Level(prior=λ)``
    hold-out                  ``Q=Level(prior=0, split="val")``
    all structures in turn    ``Q=Level(..., structure=[Against(found, -1)])``
    ========================  ================================================================

    What greedy steps of a small ``lr`` converge to knows little of the λ_prior of Q, which only
    the term of order ``lr`` sees: where L and Q differ, ``implicit`` is the one that solves the
    problem. The outer step with the largest Q is kept; early ones, whose θ is not yet the best for
    L, can have a Q that no solution has.

    Arguments:
        model, guide: a pair, changed in place.
        data: its training rows (and, for ``split="val"``, validation rows).
        L, Q: the objectives.
        method: ``one-level``: one ascent of both, where that is the same problem; ``greedy``: the
            hypergradient through one inner step, after each of them; ``unrolled``: through all;
            ``implicit``: at their end, by the implicit function theorem (HOAG); ``drmad``: through
            all on a straight line; ``random``: draws of h, each with inner steps from the start.
        outer_steps, inner_steps: of these in each of those.
        lr, outer_lr: of θ and of h.
        inner: how θ moves; h moves by Adam. ``drmad`` is about ``sgd``.
        batch_size: rows of a step; different ones for L and Q.
        particles: draws of the latents in a step.
        restart: begin every outer step at the first θ (``unrolled``, ``implicit``, ``drmad``).
        damping, max_iter: of ``implicit``; skip, every: of ``drmad``.
        ranges: of ``random``, by the last part of a hyperparameter's name (``log_scale``,
            ``logits``, ``likelihood`` for its noise).
        draws: of the latents, in the reported Q and L.
        seed: of batches and noise.
        device, progress: as for :func:`~pyroccam.inference.fit`.

    Raises:
        ValueError: for settings that contradict each other, a pair that cannot be traced, or
            nothing to learn at a level.
        NonFiniteGradient: if a gradient, or Q or L after a step, turns NaN or infinite (``random``
            goes on with another h); model and guide are left as they were at the best step so far.
        Interrupted: on Ctrl-C; the same.

    References:
        Bakhteev, Strijov, Bayesian selection of deep learning model structure; Luketina et al.
        2016, arXiv:1511.06727; Pedregosa 2016, arXiv:1602.02355; Fu et al. 2016, arXiv:1601.00917.
    """
    L, Q = L or Level(), Q or Level()
    _check(method, L, Q, inner, restart)
    counts = {"outer_steps": outer_steps, "inner_steps": inner_steps, "draws": draws}
    counts |= {"batch_size": batch_size, "particles": particles}
    for name, number in counts.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    where = pick_device(device)
    data = data.to(where)
    model.to(where).train()
    guide.to(where)
    if model.size != data.N:
        raise ValueError(
            f"The model was made for {model.size} training rows, the data has {data.N}: build it "
            "with data=<this data>."
        )
    start = time.perf_counter()
    objectives = Objectives(model, guide, (L, Q), particles)
    words = sorted({_word(name) for name in objectives.h_names})
    for word in ranges or {}:
        if word not in words:
            raise ValueError(unknown_name("hyperparameter in ranges=", word, words))
    with seeded(seed, where), FitProgress(f"select, {method}", outer_steps, progress) as bar:
        rows = [_Rows(*data.split(level.split), batch_size, level.split) for level in (L, Q)]
        search = _Search(objectives, rows, inner_steps, lr, outer_lr, inner)
        search.restart = restart
        options: dict[str, dict[str, Any]] = {
            "implicit": {"damping": damping, "max_iter": max_iter},
            "drmad": {"skip": skip, "every": every},
            "random": {**RANGES, **(ranges or {})},
        }
        search.options = options.get(method, {})
        step: Callable[[], None] = getattr(search, method.replace("-", "_"))
        watch = [[objectives.key(*part.batch()) for _ in range(draws)] for part in rows]
        history: list[dict[str, float]] = []
        best, largest, kept = 0, -math.inf, (search.theta, search.h)
        try:
            for outer in range(outer_steps):
                step()
                row = {"outer": outer + 1.0, **search.look(watch)}
                row["inner"] = float(search.count)
                row["seconds"] = time.perf_counter() - start
                history.append(row)
                sound = math.isfinite(row["Q"]) and math.isfinite(row["L"])
                if not sound and method != "random":
                    raise NonFiniteGradient(
                        f"Q is {row['Q']:g} and L {row['L']:g} after outer step {outer + 1}: take "
                        "a smaller lr or outer_lr."
                    )
                if sound and row["Q"] > largest:
                    best, largest, kept = outer + 1, row["Q"], (search.theta, search.h)
                bar.bar.update(bar.task, completed=outer + 1, loss=f"Q {row['Q']:.2f}")
            if not best:
                raise NonFiniteGradient(
                    "Q is finite for none of the h that were drawn: take a smaller lr, or ranges=."
                )
        except KeyboardInterrupt:
            where_left = f"at the best, step {best}" if best else "before"
            raise Interrupted(
                f"Stopped after outer step {len(history)} of {outer_steps}; model and guide are "
                f"as they were {where_left}."
            ) from None
        finally:
            objectives.put(*kept)
    model.eval()
    found = Fit(
        model=model,
        guide=guide,
        data=data,
        settings=Settings(
            lr=lr, optimizer=inner, batch_size=batch_size, particles=particles, seed=seed,
            epochs=outer_steps, weight_decay=0.0, schedule="constant",
        ),
        history=history,
        best_epoch=best,
        val_nll=float("nan"),
        seconds=time.perf_counter() - start,
        structure=None,
        weights=component_weights(model, guide),
        engine={"kind": "graph", "replicates": 1},
    )  # fmt: skip
    return Selection(found, method, history, best - 1)


def _check(method: str, L: Level, Q: Level, inner: str, restart: bool) -> None:
    one_of("method", method, METHODS)
    one_of("inner", inner, ("adam", "sgd"))
    if not L.likelihood:
        raise ValueError("L needs a likelihood: give Level(likelihood=...) above 0.")
    if L.structure or L.hyperprior is not None:
        raise ValueError(
            "structure= and hyperprior= do not depend on θ, so they change nothing in L: give them "
            "to Q."
        )
    if restart and method not in ("unrolled", "implicit", "drmad"):
        raise ValueError(f"restart=True is for unrolled, implicit and drmad, not for {method!r}.")
    if method == "drmad" and inner != "sgd":
        raise ValueError("drmad goes back along plain gradient steps: use inner='sgd'.")
    if method != "one-level":
        return
    same = Q.likelihood > 0 and abs(Q.prior / Q.likelihood - L.prior / L.likelihood) < 1e-12
    if not same or Q.split != L.split:
        raise ValueError(
            "method='one-level' is for objectives that are one and the same up to a factor: "
            "λ_prior / λ_lik must be equal in both, and the rows too. L has "
            f"{L.prior:g} / {L.likelihood:g} on {L.split!r}, Q {Q.prior:g} / {Q.likelihood:g} on "
            f"{Q.split!r}. Use method='greedy'."
        )


class _Rows:
    """Minibatches of one size, of rows in random order."""

    def __init__(self, x: Tensor, y: Tensor, size: int, split: str) -> None:
        if not len(x):
            raise ValueError(
                f"Level(split={split!r}): the data has no such rows. Make it with "
                "val_fraction=, or use the training rows."
            )
        self.x, self.y, self.size = x, y, min(size, len(x))
        self.order: Iterator[Tensor] = iter(())

    def batch(self) -> tuple[Tensor, Tensor]:
        """The next."""
        if self.size == len(self.x):
            return self.x, self.y
        for rows in self.order:
            if len(rows) == self.size:
                return self.x[rows], self.y[rows]
        order = torch.randperm(len(self.x), device=self.x.device)
        self.order = iter(order.split(self.size))
        return self.batch()


class _Search:
    """The state of a selection, and an outer step of every method."""

    def __init__(
        self,
        objectives: Objectives,
        rows: list[_Rows],
        steps: int,
        lr: float,
        outer_lr: float,
        inner: str,
    ) -> None:
        self.objectives, self.rows, self.steps, self.lr = objectives, rows, steps, lr
        self.theta, self.h = objectives.theta, objectives.h
        self.first = self.theta
        self.move: Update = adam(lr) if inner == "adam" else gradient_ascent(lr)
        self.move_h = adam(outer_lr)
        self.state: Any = None  # of the optimiser of θ
        self.state_h: Any = None
        self.restart = False
        self.options: dict[str, Any] = {}
        self.count = 0
        self._graphs: dict[str, Any] = {}

    def keys(self, which: int, count: int) -> list[Key]:
        """Batches and noise for L (0) or Q (1)."""
        return [self.objectives.key(*self.rows[which].batch()) for _ in range(count)]

    @torch.no_grad()
    def look(self, keys: list[list[Key]]) -> dict[str, float]:
        """Q, L and the terms of L, in nats over all rows."""
        size = self.objectives.model.size
        inner, outer = keys
        terms = torch.stack([self.objectives.terms(self.theta, self.h, k) for k in inner]).mean(0)
        values = {
            "Q": torch.stack([self.objectives.outer(self.theta, self.h, k) for k in outer]).mean(),
            "L": torch.stack([self.objectives.inner(self.theta, self.h, k) for k in inner]).mean(),
            "log_likelihood": terms[0],
            "kl": terms[1],
        }
        return {name: size * float(value) for name, value in values.items()}

    # -- a step as a graph -------------------------------------------------------------------------

    def traced(self, name: str, f: Callable[..., Any], *args: Any) -> Any:
        """``f(*args)`` by a graph of tensor operations, once the optimisers have a state."""
        keys = [a for a in args if isinstance(a, Key)]
        flat = [a for a in args if not isinstance(a, Key)]
        flat += [[k.x, k.y, k.noise, k.structure] for k in keys]

        def call(*parts: Any) -> Any:
            made = [Key(*p) for p in parts[len(parts) - len(keys) :]]
            return f(*parts[: len(parts) - len(keys)], *made)

        if any(part is None for part in flat):
            return call(*flat)
        if name not in self._graphs:
            self._graphs[name] = lean(graph_of(call, *flat), ())
        return self._graphs[name](*flat)

    def ascend(self) -> None:
        """The inner steps."""

        def step(theta: Tensors, h: Tensors, state: Any, key: Key) -> Any:
            return ascend(
                self.objectives.inner, theta, h, steps=1, update=self.move, state=state, key=key,
                check=False,
            )  # fmt: skip

        for key in self.keys(0, self.steps):
            self.theta, self.state = self.traced("inner", step, self.theta, self.h, self.state, key)
            self.count += 1

    def climb(self, gradient: Tensors) -> None:
        """A step of h."""
        self.h, self.state_h = self.move_h(self.h, gradient, self.state_h)

    def again(self) -> None:
        """Back to the first θ, where that is asked for."""
        if self.restart:
            self.theta, self.state = self.first, None

    # -- the methods -------------------------------------------------------------------------------

    def one_level(self) -> None:
        """θ and h ascend the same objective."""

        def step(theta: Tensors, h: Tensors, s: Any, s_h: Any, key: Key) -> Any:
            slope = torch.func.grad(self.objectives.inner)(theta, h, key)
            slope_h = torch.func.grad(self.objectives.outer, argnums=1)(theta, h, key)
            return *self.move(theta, slope, s), *self.move_h(h, slope_h, s_h)

        for key in self.keys(0, self.steps):
            self.theta, self.state, self.h, self.state_h = self.traced(
                "one-level", step, self.theta, self.h, self.state, self.state_h, key
            )
            self.count += 1

    def greedy(self) -> None:
        """After every inner step the hypergradient through it."""

        def step(theta: Tensors, h: Tensors, s: Any, s_h: Any, key: Key, key_q: Key) -> Any:
            gradient, moved, s = unrolled(
                self.objectives.inner, self.objectives.outer, theta, h, steps=1, update=self.move,
                state=s, keys=[key], key=key_q, check=False,
            )  # fmt: skip
            return moved, s, *self.move_h(h, gradient, s_h)

        for key, key_q in zip(self.keys(0, self.steps), self.keys(1, self.steps), strict=True):
            self.theta, self.state, self.h, self.state_h = self.traced(
                "greedy", step, self.theta, self.h, self.state, self.state_h, key, key_q
            )
            self.count += 1

    def unrolled(self) -> None:
        """The hypergradient through all inner steps."""
        self.again()
        gradient, self.theta, self.state = unrolled(
            self.objectives.inner, self.objectives.outer, self.theta, self.h, steps=self.steps,
            update=self.move, state=self.state, keys=self.keys(0, self.steps),
            key=self.keys(1, 1)[0],
        )  # fmt: skip
        self.count += self.steps
        self.climb(gradient)

    def implicit(self) -> None:
        """The hypergradient where the inner steps end, as if that were the maximum."""
        self.again()
        self.ascend()
        (key,), (key_q,) = self.keys(0, 1), self.keys(1, 1)
        found = implicit(
            lambda theta, h, _: self.objectives.inner(theta, h, key),
            lambda theta, h, _: self.objectives.outer(theta, h, key_q),
            self.theta,
            self.h,
            **self.options,
        )
        self.climb(found.gradient)

    def drmad(self) -> None:
        """The hypergradient through all inner steps, on a straight line."""
        self.again()
        before, keys = self.theta, self.keys(0, self.steps)
        self.theta, _ = ascend(
            self.objectives.inner, before, self.h, steps=self.steps, update=self.move, keys=keys
        )
        self.count += self.steps
        gradient = drmad(
            self.objectives.inner, self.objectives.outer, before, self.theta, self.h,
            steps=self.steps, lr=self.lr, keys=keys, key=self.keys(1, 1)[0], **self.options,
        )  # fmt: skip
        self.climb(gradient)

    def random(self) -> None:
        """Another h, and inner steps from the first θ."""
        self.h = {
            name: torch.empty_like(t).uniform_(*self._range(name)) for name, t in self.h.items()
        }
        self.theta, self.state = self.first, None
        self.ascend()

    def _range(self, name: str) -> tuple[float, float]:
        word = _word(name)
        if word not in self.options:
            raise ValueError(
                f"method='random' has no range for {name!r}: give ranges={{{word!r}: (low, high)}}."
            )
        found: tuple[float, float] = self.options[word]
        return found


def _word(name: str) -> str:
    """For a hyperparameter in ``ranges``."""
    return "likelihood" if of_likelihood(name) else name.rpartition(".")[2]
