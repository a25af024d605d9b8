"""Priors over depth: categorical distributions on 0 ... D.

Each gives normalised log probabilities for a stack of any depth; the Pyro site is ``depth``, a
``Categorical``, whose KL to a Categorical guide is Pyro's own (exact).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import torch
from torch import Tensor

from ...data import Between, NotNegative, Options, Positive, PyroccamError, check, checked


@runtime_checkable
class DepthPrior(Protocol):
    """Anything that can say how probable each depth is."""

    def log_probs(self, depths: int) -> Tensor:
        """Normalised log probabilities ``(depths,)`` of the depths 0 ... depths - 1."""
        ...


@dataclass(frozen=True)
class Geometric(Options):
    r"""``p(d) ∝ rate ** d`` on 0 ... D, the truncated geometric decay.

    Arguments:
        rate: factor from one depth to the next, in (0, 1]; the authors' 0.85 by default. One is
            the uniform prior.

    References:
        Antoran et al. 2020, arXiv:2002.02797, as in their code (``0.85 ** (1 + d)``, normalised).

    Example:
        >>> Geometric(0.5).log_probs(3).exp()
        tensor([0.5714, 0.2857, 0.1429])
    """

    rate: Annotated[float, Between(0.0, 1.0, "(]")] = 0.85

    def log_probs(self, depths: int) -> Tensor:
        return torch.log_softmax(torch.arange(depths) * math.log(self.rate), 0)


@dataclass(frozen=True)
class Cost(Options):
    r"""``p(d) ∝ exp(-nats * d)``: each block costs a number of nats.

    The geometric prior of rate ``exp(-nats)``, for rates that a person would not write. With N
    observations a cost of ``N * ε`` asks every block to improve the fit by ε nats per observation;
    the 0.16 nats of ``Geometric(0.85)`` are soon nothing beside the likelihood of many.

    Arguments:
        nats: of each block, at least 0.
    """

    nats: NotNegative

    def log_probs(self, depths: int) -> Tensor:
        return torch.log_softmax(-self.nats * torch.arange(depths, dtype=torch.float64), 0).float()


@dataclass(frozen=True)
class Uniform:
    """Every depth alike (Antoran et al. 2020, arXiv:2006.08437)."""

    def log_probs(self, depths: int) -> Tensor:
        return torch.full((depths,), -math.log(depths))


@dataclass(frozen=True)
class Poisson(Options):
    r"""``p(d) ∝ mean ** d / d!`` on 0 ... D, a Poisson truncated at the deepest depth.

    Arguments:
        mean: the mean before truncation, positive.

    References:
        Nazaret and Blei (2022), Variational inference for infinitely deep neural networks,
        arXiv:2209.10091, use it with no upper limit.
    """

    mean: Positive

    def log_probs(self, depths: int) -> Tensor:
        d = torch.arange(depths, dtype=torch.float64)
        return torch.log_softmax(d * math.log(self.mean) - torch.lgamma(d + 1), 0).float()


@dataclass(frozen=True)
class Vector(Options):
    """Probabilities of one's own, one for each depth; normalised here.

    Raises:
        PyroccamError: if one is not positive and finite, or (when used) their number is not D + 1.
    """

    probs: Sequence[Positive]

    def __init__(self, probs: Sequence[float] | Tensor) -> None:
        given = probs.tolist() if isinstance(probs, Tensor) else probs
        check("probs", given, Sequence[Positive])
        object.__setattr__(self, "probs", tuple(map(float, given)))

    def log_probs(self, depths: int) -> Tensor:
        if len(self.probs) != depths:
            raise PyroccamError(
                f"Vector of {len(self.probs)} probabilities", f"{depths}, of all depths"
            )
        return torch.log_softmax(torch.tensor(self.probs, dtype=torch.float64).log(), 0).float()


@checked
def parse(text: str) -> DepthPrior:
    """A prior from words: ``geometric:0.85``, ``uniform``, ``poisson:5``, ``cost:100`` or
    ``0.1,0.2,0.7``.
    """
    name, _, argument = text.strip().partition(":")
    try:
        match name.lower():
            case "geometric":
                return Geometric(float(argument)) if argument else Geometric()
            case "uniform" if not argument:
                return Uniform()
            case "poisson" if argument:
                return Poisson(float(argument))
            case "cost" if argument:
                return Cost(float(argument))
            case _ if "," in text:
                return Vector([float(p) for p in text.split(",")])
    except ValueError as error:
        raise PyroccamError(f"Cannot read the depth prior {text!r}: {error}") from error
    known = "geometric, geometric:0.85, uniform, poisson:5, cost:100, or D + 1 probabilities"
    raise PyroccamError(f"the depth prior {text!r}", known)
