"""The methods of a selection: ways to a better h, each with what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...data import NotNegative, Options, PyroccamError
from .hypergradient import Tensors, implicit, unrolled
from .levels import Key, Objectives
from .search import Search


class Method(Options):
    """A way to a better h.

    Attributes:
        restart: every outer step begins at the first θ.
        draws: every outer step has another h, whatever became of the last.
    """

    restart: bool = False
    draws: bool = False

    @property
    def least(self) -> int:
        """Inner steps, of all outer ones together, by which h has moved at the earliest."""
        return 1

    def check(self, objectives: Objectives) -> None:
        """Refuse levels and hyperparameters that the method cannot take."""

    def step(self, search: Search) -> None:
        """One outer step: move θ and h."""
        raise NotImplementedError


@dataclass(frozen=True)
class OneLevel(Method):
    """One ascent of both, where L and Q are the same up to a factor."""

    def check(self, objectives: Objectives) -> None:
        L, Q = objectives.levels
        ours, theirs = L.kl_weight, Q.kl_weight
        same = Q.likelihood > 0 and abs(theirs / Q.likelihood - ours / L.likelihood) < 1e-12
        if not same or Q.split != L.split or Q.folds is not None:
            raise PyroccamError(
                f"OneLevel() with L={L} and Q={Q}", "the same rows and prior / likelihood in both"
            )

    def step(self, search: Search) -> None:
        made, move, move_h = search.objectives, search.move, search.move_h

        def both(theta: Tensors, s: Any, h: Tensors, s_h: Any, key: Key) -> Any:
            slope = torch.func.grad(made.inner)(theta, h, key)
            slope_h = torch.func.grad(made.outer, argnums=1)(theta, h, key)
            return *move(theta, slope, s), *move_h(h, slope_h, s_h)

        search.both(both, search.keys(0, search.steps))


@dataclass(frozen=True)
class Greedy(Method):
    """After every inner step the hypergradient through it alone.

    Small steps of θ know little of the λ_prior of Q, which only a term of order ``lr`` sees: where
    L and Q differ, :class:`Implicit` is the one that solves the problem.

    References:
        Luketina et al. 2016, arXiv:1511.06727.
    """

    def step(self, search: Search) -> None:
        made, move, move_h = search.objectives, search.move, search.move_h

        def both(theta: Tensors, s: Any, h: Tensors, s_h: Any, key: Key, key_q: Key) -> Any:
            gradient, moved, s = unrolled(
                made.inner, made.outer, theta, h, keys=[key], key=key_q, update=move, state=s
            )
            return moved, s, *move_h(h, gradient, s_h)

        search.both(both, search.keys(0, search.steps), search.keys(1, search.steps))


@dataclass(frozen=True)
class Unrolled(Method):
    """The hypergradient through all inner steps, which takes the memory of all.

    Arguments:
        restart: begin every outer step at the first θ.

    References:
        Maclaurin, Duvenaud, Adams 2015, arXiv:1502.03492.
    """

    restart: bool = False

    def step(self, search: Search) -> None:
        keys, (key,) = search.keys(0, search.steps), search.keys(1, 1)
        gradient, search.theta, search.state = unrolled(
            search.objectives.inner, search.objectives.outer, search.theta, search.h,
            keys=keys, key=key, update=search.move, state=search.state,
        )  # fmt: skip
        search.climb(gradient)


@dataclass(frozen=True)
class Implicit(Method):
    """The hypergradient where the inner steps end, as if that were the maximum of L (HOAG).

    Arguments:
        damping: added to the curvature of L; above 0 where the inner steps end short of a maximum.

    References:
        Pedregosa 2016, arXiv:1602.02355.
    """

    damping: NotNegative = 0.0

    def step(self, search: Search) -> None:
        search.ascend()
        made, (key,), (key_q,) = search.objectives, search.keys(0, 1), search.keys(1, 1)
        gradient, solution = implicit(
            made.inner, made.outer, search.theta, search.h, inner_key=key, key=key_q,
            damping=self.damping,
        )  # fmt: skip
        search.indefinite += solution.indefinite
        search.climb(gradient)


RANGES = {  # by the last part of a name
    "log_scale": (-5.0, 1.0),  # of a precision, (-2, 10) in its logarithm, as in the source
    "log_scale_bias": (-5.0, 1.0),
    "log_kl_weight": (-5.0, 3.0),
    "loc": (-1.0, 1.0),
    "logits": (-3.0, 3.0),
    "likelihood": (-3.0, 1.0),  # the noise of a regression
}


@dataclass(frozen=True)
class Random(Method):
    """Uniform draws of h, each with inner steps from the first θ."""

    restart = draws = True

    def check(self, objectives: Objectives) -> None:
        for name in objectives.h_names:
            if _word(name) not in RANGES:
                raise PyroccamError(f"Random() of {name!r}", f"one of {', '.join(RANGES)}")

    def step(self, search: Search) -> None:
        search.h = {
            name: torch.empty_like(t).uniform_(*RANGES[_word(name)]) for name, t in search.h.items()
        }
        search.ascend()


def _word(name: str) -> str:
    return "likelihood" if name.startswith("model.likelihood.") else name.rpartition(".")[2]
