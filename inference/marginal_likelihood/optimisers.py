"""The evidence by optimisers read as posteriors: gradient descent and Langevin dynamics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from ...data import Between, Count, Positive, PyroccamError
from ...models import plain_kernels
from .estimator import DensityEstimator, LogEvidence
from .joint import Joint

STEEPEST = 0.6838
"""Largest ``η λ`` for which ``log(1 - ηλ) >= -ηλ - (ηλ)²``."""

Curved = Callable[[Tensor], Tensor]


class TooSteep(PyroccamError):
    """A step is too large for the curvature where it begins."""


@dataclass(frozen=True)
class Path:
    """What was seen of a path of R starts.

    Attributes:
        times: after which steps the joint density was looked at, ``(E,)``.
        log_joint: of each start, ``(E, R)``.
        first: minus the log density of each start, ``(R,)``.
        changes: of the entropy, by step and start, ``(T, R)``.
        noise: entropy of the noise of a step, or ``None`` where there is none.
        steepest: largest ``η |λ|`` on the way.
    """

    times: list[int]
    log_joint: Tensor
    first: Tensor
    changes: Tensor
    noise: float | None
    size: int
    steepest: float

    def bounds(self, chosen: Tensor) -> Tensor:
        """The bound at all times, ``(E,)``, by the mean over chosen starts."""
        entropies = [float(self.first[chosen].mean())]
        for change in self.changes[:, chosen].mean(1).tolist():
            moved = entropies[-1] + change
            if self.noise is not None:
                moved = mixed_entropy(moved, self.noise, self.size)
            entropies.append(moved)
        own = torch.tensor([entropies[t] for t in self.times], dtype=torch.float64)
        return self.log_joint[:, chosen].mean(1).cpu() + own

    def best(self) -> tuple[float, float, int]:
        """The bound where it is highest, its standard error, and after which step that is."""
        count = len(self.first)
        halves = torch.arange(count).chunk(2)
        values, errors, when = [], [], 0
        for own, other in (halves, halves[::-1]):
            place = int(self.bounds(other).nan_to_num(nan=-torch.inf).argmax())
            values.append(float(self.bounds(own)[place]))
            # The jackknife: the entropy with noise is no mean over starts.
            left_out = [float(self.bounds(own[own != one])[place]) for one in own]
            spread = torch.tensor(left_out, dtype=torch.float64).var(correction=0)
            errors.append((len(own) - 1) * float(spread))
            when = max(when, self.times[place])
        return sum(values) / 2, math.sqrt(sum(errors)) / 2, when


def mixed_entropy(one: float, other: float, size: int) -> float:
    r"""The least entropy of a sum of two independent vectors with these entropies, in n dimensions:
    ``½ n log(exp(2 S_1 / n) + exp(2 S_2 / n))``; equal for normals of one shape.

    Example:
        >>> round(mixed_entropy(0.0, 0.0, 1), 4)  # half a logarithm of two
        0.3466
    """
    top = max(one, other)
    return top + 0.5 * size * math.log1p(math.exp(-2.0 * abs(one - other) / size))


@dataclass(frozen=True, kw_only=True)
class Walk(DensityEstimator):
    r"""Steps of an optimiser from draws of the prior, and the entropy of where they lead.

    Arguments:
        lr: η, of the objective over all rows. By default the largest of 0.1 / 2^k with which
            ``η λ`` stays below half of what the bound bears.
        steps: T.
        starts: draws of the start, whose spread shows the error. Half of them choose when to stop.
        batch_size: rows of a step; all by default.
        evaluations: of the bound, evenly on the path.
    """

    noisy: ClassVar[bool] = False

    lr: Positive | None = None
    steps: Count = 200
    starts: Annotated[int, Between(4)] = 20
    batch_size: Count | None = None
    evaluations: Count = 50

    @property
    @abstractmethod
    def of_joint(self) -> bool:
        """The objective is the log joint density, not the likelihood alone."""

    def of_density(self, density: Joint) -> LogEvidence:
        with plain_kernels():
            lr, seen = self._followed(density)
        value, error, when = seen.best()
        last = when == seen.times[-1] and not self.noisy
        return LogEvidence(
            value=value,
            error=error,
            doubt=f"The bound is highest at the last of {self.steps} steps." if last else None,
            details={
                "lr": lr, "steps": float(when), "steepest": seen.steepest,
                "last": float(seen.bounds(torch.arange(len(seen.first)))[-1]),
            },
        )  # fmt: skip

    def _followed(self, density: Joint) -> tuple[float, Path]:
        if self.lr is not None:
            return self.lr, self.path(density, self.lr, STEEPEST)
        lr = 0.1
        for _ in range(40):
            state = torch.get_rng_state()  # the next trial has the same starts
            try:
                return lr, self.path(density, lr, 0.5 * STEEPEST)
            except TooSteep:
                torch.set_rng_state(state)
                lr /= 2
        raise PyroccamError(
            f"draws from the prior too steep for any step of 0.1 to {lr:.0e}", "a narrower prior"
        )

    def path(
        self,
        density: Joint,
        lr: float,
        limit: float = math.inf,
        look: Callable[[int, Tensor], None] | None = None,
    ) -> Path:
        """Steps from draws of the prior, and what the entropy does on the way."""
        steps = self.steps
        size_of_batch = self.batch_size
        if size_of_batch is not None and size_of_batch >= density.rows:
            size_of_batch = None
        theta = density.draw_prior(self.starts)
        first = -density.log_prior(theta)
        size, device = density.size, theta.device
        evaluations = min(self.evaluations, steps)
        wanted = {round(steps * k / evaluations) for k in range(evaluations + 1)}
        noise = 0.5 * size * math.log(4 * math.pi * math.e * lr) if self.noisy else None
        turning = torch.randn_like(theta)
        seen: dict[int, Tensor] = {}

        def evaluate(step: int) -> None:
            seen[step] = density(theta)
            if look is not None:
                look(step, theta)

        evaluate(0)
        changes, steepest = [], 0.0
        order = torch.empty(0, dtype=torch.long, device=device)
        for step in range(1, steps + 1):
            chosen = None
            if size_of_batch is not None:
                if len(order) < size_of_batch:
                    order = torch.randperm(density.rows, device=device)
                chosen, order = order[:size_of_batch], order[size_of_batch:]
            with torch.enable_grad():
                at = theta.detach().requires_grad_()
                value = density.log_likelihood(at, chosen)
                if self.of_joint:
                    value = value + density.log_prior(at)
                (slope,) = torch.autograd.grad(value.sum(), at, create_graph=True)

                def curved(vector: Tensor, slope: Tensor = slope, at: Tensor = at) -> Tensor:
                    """``η H v``, for each start."""
                    if not slope.requires_grad:
                        return torch.zeros_like(vector)
                    (found,) = torch.autograd.grad((slope * vector).sum(), at, retain_graph=True)
                    return -lr * found

                turned = curved(turning)
                change = _bound(curved, theta)
            length = turned.norm(dim=1) / turning.norm(dim=1)
            # A power of the Hessian, one more at each step: it points to the steepest direction.
            if step > 3:
                steepest = max(steepest, float(length.nan_to_num(nan=torch.inf).max()))
                if steepest >= limit:
                    given = f"lr={lr:.2g}, which times the largest curvature is {steepest:.2f}"
                    hint = f"lr={0.3 * lr / steepest:.1g}"
                    raise TooSteep(given, f"less than {limit:.4f}", hint)
            turning = torch.where(
                length[:, None] > 0, turned / turned.norm(dim=1, keepdim=True), turning
            )
            changes.append(change.detach())
            theta = theta + lr * slope.detach()
            if self.noisy:
                theta = theta + math.sqrt(2 * lr) * torch.randn_like(theta)
            if step in wanted:
                evaluate(step)
        times = sorted(seen)
        return Path(
            times,
            torch.stack([seen[t] for t in times]),
            first.cpu(),
            torch.stack(changes).cpu(),
            noise,
            size,
            steepest,
        )


@dataclass(frozen=True, kw_only=True)
class Descent(Walk):
    r"""Gradient descent as variational inference: the law of the weights after t steps is q.

    The start is a draw from the prior, whose entropy is known; a step
    :math:`θ \leftarrow θ + η \nabla \log p` changes it by the Jacobian,

    .. math:: S_{t+1} = S_t + E \log |\det(I - η H_t)|, \qquad
        \log p(y) \ge E \log p(y, θ_T) + S_T

    with H the second derivatives of minus the objective. The bound rises while the data are fitted
    and falls without end as the weights come together: its highest point is when to stop. That is
    looked for on one half of the starts, the value is that of the other half, and then the other
    way round; so the best of many noisy values is not taken for the value.

    A step in batches has fresh rows, the same for all starts: for any order of rows it is a bound.
    Without momentum: a step with it is another map.

    Arguments:
        objective: descend minus the log-likelihood alone, so that a weight that the data say
            nothing about stays as the prior has it and costs nothing; or minus the log joint.
        lr, steps, starts, batch_size, evaluations: as for :class:`Walk`.

    Raises:
        TooSteep: for a step with which the bound of the Jacobian does not hold.

    References:
        Maclaurin, Duvenaud, Adams 2015, Early stopping is nonparametric variational inference,
        arXiv:1504.01344. Of the thesis that carries it over (Bakhteev), five slips are mended: the
        entropy is summed up and not overwritten, it is part of what is returned, with a plus, the
        probe is standard normal, and η is squared in the second term.
    """

    name = "descent"

    objective: Literal["likelihood", "joint"] = "likelihood"

    @property
    def of_joint(self) -> bool:
        return self.objective == "joint"


@dataclass(frozen=True, kw_only=True)
class Langevin(Walk):
    r"""Langevin dynamics as variational inference: :class:`Descent` of the log joint with noise.

    .. math:: θ \leftarrow θ + η \nabla \log p(y, θ) + \sqrt{2η}\, ε

    The noise keeps the entropy from falling without end: the entropy power of a sum is at least
    the sum of the entropy powers,

    .. math:: S_{t+1} \ge \tfrac n2 \log\left(e^{2 (S_t + E \log |\det(I - η H_t)|) / n}
        + 4 π e η\right)

    That is nearly lost where a few directions are narrow and most are wide: it is a bound on the
    entropy of the widest shape with that volume.

    Arguments:
        lr, steps, starts, batch_size, evaluations: as for :class:`Walk`.

    References:
        Cover, Thomas 2006, Elements of information theory, theorem 17.7.3, for the entropy powers.
        The thesis of Bakhteev prints noise of variance η / 2; its own notebook has the 2η that
        leaves the posterior as it is.
    """

    name = "langevin"
    noisy = True

    @property
    def of_joint(self) -> bool:
        return True


def _bound(curved: Curved, theta: Tensor) -> Tensor:
    """An unbiased estimate of ``-η tr H - η² tr H²``, ``(R,)``, by one probe for each start."""
    r0 = torch.randn_like(theta)
    r1 = r0 - curved(r0)
    r2 = r1 - curved(r1)
    return (r0 * (-2 * r0 + 3 * r1 - r2)).sum(1)
