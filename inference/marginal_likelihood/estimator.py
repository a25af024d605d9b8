"""What estimators of the evidence have in common: what they are asked, and what they answer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from ...data import Options, Seed
from ...models import seeded
from ..training import Fit
from .joint import Joint, joint, refuse_improper

Direction = Literal["exact", "below", "either", "code"]


@dataclass(frozen=True, kw_only=True)
class LogEvidence:
    """An estimate of ``log p(y)`` of all training rows, given what the model holds as numbers: the
    noise of a regression, parameters of a prior, weights without one.

    Attributes:
        value: in nats, over all rows. Regression targets are standardised.
        error: the standard error of ``value``, which of a bound is not its distance from the
            evidence. Of Laplace's method, which has none, how far a sum over draws from its normal
            is from it, and the standard error of that.
        direction: where the evidence lies. ``exact``: at the value. ``below``: the value is below
            it in expectation. ``either``: on either side. ``code``: the value is that of another
            distribution of the same targets, and minus it a code length of its own.
        passes: of one network forward through all rows, with or without a backward pass.
        doubt: why value and error should not be believed; ``None`` where nothing was noticed.
        by, rows, seconds: the name of the estimator, N, and what it took.
    """

    value: float
    error: float
    direction: Direction = "below"
    passes: float = 0.0
    doubt: str | None = None
    details: Mapping[str, float] = field(default_factory=dict, repr=False)
    by: str = ""
    rows: int = 0
    seconds: float = 0.0

    @property
    def per_row(self) -> float:
        return self.value / self.rows

    @property
    def bits(self) -> float:
        """Bits that send the targets of all rows, ``-value / ln 2``."""
        return -self.value / math.log(2.0)


class Estimator(Options, ABC):
    """A way to estimate the evidence of a fit, with its options."""

    name: ClassVar[str]

    @abstractmethod
    def estimate(self, fit: Fit) -> LogEvidence:
        """All but name, rows and time, which :func:`~pyroccam.inference.evidence` notes."""


@dataclass(frozen=True, kw_only=True)
class DensityEstimator(Estimator):
    """One by the joint density of random weights with proper priors.

    Arguments:
        seed: of everything drawn; the state of the generator is left as it was.
    """

    structures: ClassVar[bool] = False
    """Random structure may be among what is drawn."""

    seed: Seed = 0

    def estimate(self, fit: Fit) -> LogEvidence:
        with (
            joint(fit, self.name, summed=self.structures) as density,
            seeded(self.seed, fit.data.device),
        ):
            refuse_improper(density.model)
            found = self.of_density(density)
        return replace(found, passes=density.passes)

    @abstractmethod
    def of_density(self, density: Joint) -> LogEvidence: ...
