r"""Distributions over structure that are continuous, in log space: of log γ, γ in the interior of
the simplex, or of logit γ, γ in the interior of the cube.

γ itself rounds to a vertex in single precision (43 % of draws at T = 0.02, K = 3), where
densities are 0 or infinite. Its logarithm does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution, TransformedDistribution
from torch import Tensor
from torch.distributions import (
    Dirichlet,
    SigmoidTransform,
    constraints,
    kl_divergence,
    register_kl,
)
from torch.nn.functional import log_softmax, logsigmoid

from ...data import PyroccamError
from .relaxed_kl import relaxed_bernoulli_kl, relaxed_categorical_kl


class _LogSimplex(constraints.Constraint):
    """Finite logarithms of positive numbers with sum one.

    No transform leads to it, so that Pyro's automatic guides, which would leave torch's
    ``real_vector`` as it is and the simplex with it, refuse.
    """

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return value.isfinite().all(-1) & (value.logsumexp(-1).abs() < 1e-3)


class _Finite(constraints.Constraint):
    def check(self, value: Tensor) -> Tensor:
        return value.isfinite()


class _AtTemperature(TorchDistribution):
    """A temperature, kept as it was given, and logits: of both relaxed choices."""

    arg_constraints = {"logits": _Finite()}  # noqa: RUF012 (as torch declares it)
    has_rsample = True

    def __init__(
        self,
        temperature: float | Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if (probs is None) == (logits is None):
            raise PyroccamError(f"{type(self).__name__} takes one of probs and logits.")
        # The value of a tensor is not known where a step, which validates nothing, is traced.
        known = self._validate_args if validate_args is None else validate_args
        shape = temperature.shape if isinstance(temperature, Tensor) else None
        if shape or ((known or shape is None) and not 0.0 < temperature < math.inf):
            found = f"{type(self).__name__} of temperature {temperature}"
            raise PyroccamError(found, "one positive, finite number, or a tensor of shape ()")
        self.temperature = temperature
        self.logits: Tensor = self._logits_of(probs) if logits is None else logits
        batch, event = _batch_and_event(self, self.logits)
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        logits = self.logits.expand(torch.Size(batch_shape) + self.event_shape)
        return _as_strict(self, type(self)(self.temperature, logits=logits, validate_args=False))


class ExpRelaxedCategorical(_AtTemperature):
    r"""The law of log γ for a Gumbel-Softmax (Concrete) γ: a relaxed choice among K.

    .. math:: \log γ = \log softmax((\log s + G) / T), \qquad
              \log p = \log Γ(K) + (K - 1) \log T
              + \sum_i \log softmax(\log s - T \log γ)_i

    with independent standard Gumbel G. The density is that of γ on the simplex times
    :math:`\prod_i γ_i`, as of torch's class of this name and of :class:`ExpDirichlet`. The largest
    coordinate is i with probability :math:`s_i / \sum s` at every T; for T → 0 the law is that of
    a one-hot choice, for T → ∞ it gathers at the centre.

    The KL to another law *of the same temperature* is registered
    (:func:`~pyroccam.models.distributions.relaxed_kl.relaxed_categorical_kl`), which is decided
    without looking at values: one and the same tensor, or equal numbers. For other pairs
    ``torch.distributions.kl_divergence`` raises NotImplementedError, and
    ``pyro.infer.TraceMeanField_ELBO`` takes the ratio of the densities at the draw instead.

    Arguments:
        temperature: T, positive: a number, or a tensor of shape ``()``.
        probs: the weights s, ``(*batch, K)``, positive; they need not have sum one.
        logits: log s, in place of ``probs``.

    References:
        Maddison, Mnih, Teh 2017, arXiv:1611.00712; Jang, Gu, Poole 2017, arXiv:1611.01144.

    Example:
        >>> q = ExpRelaxedCategorical(0.5, probs=torch.tensor([3.0, 1.0, 0.5]))
        >>> q.log_prob(torch.full((3,), 1 / 3).log())
        tensor(-4.7999)
    """

    support = _LogSimplex()
    _logits_of = staticmethod(torch.log)

    @property
    def probs(self) -> Tensor:
        """``(*batch, K)``, with sum one: of each coordinate to be the largest."""
        return self.logits.softmax(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """log γ, ``(*sample_shape, *batch, K)``, finite at any temperature above 1e-35."""
        uniform = _uniform(self._extended_shape(torch.Size(sample_shape)), self.logits)
        gumbel = -(-uniform.log()).log()
        return log_softmax((self.logits + gumbel) / self.temperature, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, of log γ."""
        if self._validate_args:
            self._validate_sample(value)
        k = self.event_shape[0]
        terms = log_softmax(self.logits - self.temperature * value, -1)
        return terms.sum(-1) + math.lgamma(k) + (k - 1) * _log(self.temperature)


class LogitRelaxedBernoulli(_AtTemperature):
    r"""The law of logit γ for a relaxed gate γ in (0, 1): logistic, of scale 1 / T.

    That is :class:`ExpRelaxedCategorical` of two alternatives by :math:`\log γ - \log (1 - γ)`, and
    what is said there of the temperature and of the KL
    (:func:`~pyroccam.models.distributions.relaxed_kl.relaxed_bernoulli_kl`) holds here. γ > ½ with
    probability ``probs``.

    Arguments:
        temperature: T, positive: a number, or a tensor of shape ``()``.
        probs: ``(*batch)``, between 0 and 1.
        logits: their log-odds, in place of ``probs``.

    References:
        Maddison, Mnih, Teh 2017, arXiv:1611.00712, appendix B.
    """

    support = constraints.real
    _logits_of = staticmethod(torch.logit)

    @property
    def probs(self) -> Tensor:
        """``(*batch)``: of γ > ½."""
        return self.logits.sigmoid()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """logit γ, ``(*sample_shape, *batch)``."""
        uniform = _uniform(self._extended_shape(torch.Size(sample_shape)), self.logits)
        return (self.logits + uniform.logit()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, of logit γ."""
        if self._validate_args:
            self._validate_sample(value)
        z = self.logits - self.temperature * value
        return logsigmoid(z) + logsigmoid(-z) + _log(self.temperature)


class RelaxedGate(TransformedDistribution):
    r"""The law of a relaxed gate γ itself, :class:`LogitRelaxedBernoulli` taken to (0, 1).

    As ``pyro.distributions.RelaxedBernoulli``, and with the KL to a gate of the same temperature,
    which a logistic function leaves as it is. Draws are held within one rounding of (0, 1): in
    float32, below a temperature of about 0.1, many lie at those ends; keep to float64 there, or to
    the logit.

    Arguments:
        temperature, probs, logits: of :class:`LogitRelaxedBernoulli`.

    References:
        Maddison, Mnih, Teh 2017, arXiv:1611.00712, appendix B.
    """

    arg_constraints = LogitRelaxedBernoulli.arg_constraints

    def __init__(
        self,
        temperature: float | Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        logit = LogitRelaxedBernoulli(temperature, probs, logits, validate_args=validate_args)
        super().__init__(logit, [SigmoidTransform()], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        return super().expand(batch_shape, self._get_checked_instance(RelaxedGate, _instance))

    @property
    def temperature(self) -> float | Tensor:
        """The temperature as it was given."""
        return self.base_dist.temperature

    @property
    def logits(self) -> Tensor:
        """``(*batch)``."""
        return self.base_dist.logits

    @property
    def probs(self) -> Tensor:
        """``(*batch)``: of γ > ½."""
        return self.base_dist.probs


class ExpDirichlet(TorchDistribution):
    r"""The law of log γ for γ ~ Dirichlet(a).

    .. math:: \log p = \sum_i a_i \log γ_i - \log B(a)

    The density is that of γ times :math:`\prod_i γ_i`, as of :class:`ExpRelaxedCategorical`. For
    a → 0 in fixed proportions the law is that of a one-hot choice with probabilities
    :math:`a_i / \sum a`. Draws of γ from common samplers are wrong there: Gamma(a) variables
    underflow together, and at a = 1e-4, K = 3 four draws in five are the centre.

    Arguments:
        concentration: a, ``(*batch, K)``, positive (1e-18 or more in float32, for gradients).

    References:
        For the draws of small concentration: Marsaglia, Tsang 2000, A simple method for generating
        gamma variables, ACM TOMS 26, section 6, here in logarithms.

    Example:
        >>> ExpDirichlet(torch.ones(3)).mean
        tensor([-1.5000, -1.5000, -1.5000])
    """

    arg_constraints = Dirichlet.arg_constraints
    support = _LogSimplex()
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        batch, event = _batch_and_event(self, concentration)
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> ExpDirichlet:
        concentration = self.concentration.expand(torch.Size(batch_shape) + self.event_shape)
        return _as_strict(self, type(self)(concentration, validate_args=False))

    @property
    def mean(self) -> Tensor:
        """Mean of log γ, ``(*batch, K)``."""
        a = self.concentration
        return a.digamma() - a.sum(-1, keepdim=True).digamma()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """log γ, ``(*sample_shape, *batch, K)``, differentiable in the concentration."""
        a = self.concentration.expand(self._extended_shape(torch.Size(sample_shape)))
        # Gamma(a) is Gamma(a + 1) U^(1/a): the first factor is of moderate size, and the second,
        # which may underflow, has a moderate logarithm.
        log_gamma = torch._standard_gamma(a + 1.0).log() + _uniform(a.shape, a).log() / a
        return log_softmax(log_gamma, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """``(*batch)``, of log γ."""
        if self._validate_args:
            self._validate_sample(value)
        a = self.concentration
        return (a * value - a.lgamma()).sum(-1) + a.sum(-1).lgamma()


@register_kl(ExpRelaxedCategorical, ExpRelaxedCategorical)
def _kl_relaxed_categorical(q: ExpRelaxedCategorical, p: ExpRelaxedCategorical) -> Tensor:
    _same_temperature(q, p)
    return relaxed_categorical_kl(q.logits, p.logits)


@register_kl(LogitRelaxedBernoulli, LogitRelaxedBernoulli)
def _kl_relaxed_bernoulli(q: LogitRelaxedBernoulli, p: LogitRelaxedBernoulli) -> Tensor:
    _same_temperature(q, p)
    return relaxed_bernoulli_kl(q.logits, p.logits)


@register_kl(ExpDirichlet, ExpDirichlet)
def _kl_dirichlet(q: ExpDirichlet, p: ExpDirichlet) -> Tensor:
    """A logarithm changes no KL."""
    plain = (Dirichlet(d.concentration, validate_args=False) for d in (q, p))
    return kl_divergence(*plain)


def straight_through(log_gamma: Tensor) -> Tensor:
    """The vertex of the simplex nearest to γ, with the gradient of γ: ``(*batch, K)``.

    Arguments:
        log_gamma: ``(*batch, K)``.

    References:
        Jang, Gu, Poole 2017, arXiv:1611.01144, section 2.2.
    """
    largest = log_gamma.argmax(-1, keepdim=True)
    vertex, gamma = torch.zeros_like(log_gamma).scatter(-1, largest, 1.0), log_gamma.exp()
    return vertex + (gamma - gamma.detach())  # the difference is exactly zero


def _uniform(shape: Sequence[int], like: Tensor) -> Tensor:
    """Uniform numbers in (0, 1), both ends excluded: torch gives 0 once in 2^24 draws of float32.

    Not from ``exponential_``, which ``torch.vmap`` cannot draw anew for each of its rows.
    """
    eps = torch.finfo(like.dtype).eps
    uniform = torch.rand(torch.Size(shape), dtype=like.dtype, device=like.device)
    return uniform.clamp(eps / 4.0, 1.0 - eps / 2.0)


def _log(temperature: float | Tensor) -> float | Tensor:
    return temperature.log() if isinstance(temperature, Tensor) else math.log(temperature)


def _as_strict(one: TorchDistribution, new: TorchDistribution) -> Any:
    """``new``, its values checked if those of ``one`` are."""
    new._validate_args = one._validate_args
    return new


def _batch_and_event(fn: Any, weights: Tensor) -> tuple[torch.Size, torch.Size]:
    cut = weights.dim() - fn.support.event_dim
    if cut < weights.dim() and weights.shape[-1:] < (2,):
        found = f"{type(fn).__name__} of weights of shape {tuple(weights.shape)}"
        raise PyroccamError(found, "at least two alternatives, in the last dimension")
    return weights.shape[:cut], weights.shape[cut:]


def _same_temperature(q: _AtTemperature, p: _AtTemperature) -> None:
    one, other = q.temperature, p.temperature
    numbers = not isinstance(one, Tensor) and not isinstance(other, Tensor)
    if not (one is other or (numbers and one == other)):
        # The message shows no values: in a graph being traced, where it is caught, there are none.
        raise NotImplementedError(
            f"KL({type(q).__name__} || {type(p).__name__}) is known for equal temperatures only: "
            "give both equal numbers, or the same tensor (not a copy of it)."
        )
