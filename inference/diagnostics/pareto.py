"""Pareto k̂ of a variational posterior, by blocks of few dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from ...data import Between, PyroccamError, Seed, checked
from ...models import BayesianNetwork, LearntDepth, evaluating, seeded
from ..arviz import psis
from ..figures import CYCLE, INK, MARKERS, legend_above, new_figure, styled
from ..posterior import Fit, exact_depth_posterior, require, total_variation
from .finding import WORST_FIRST, Finding, Verdict, verdict_of
from .leave_one_out import good_khat
from .log_joint import LogJoint, centres, is_discrete, is_improper

MOST = 100  # dimensions of a block
EQUAL = 0.05  # range of log ratios, in nats, in which they count as equal
GOOD = 0.5  # k̂ below which the variance of the ratios is finite
TV_GOOD, TV_DOUBTFUL = 0.1, 0.3
NOISE_MOST = 0.5  # nats, of log ratios of a subset of the rows
MANY = 100  # numbers of a block, from which on a slight error of each makes a large k-hat
SAID = {
    "good": "q is a good proposal for the posterior here.",
    "doubtful": "q is usable here, and its tails are too light.",
    "poor": "q is too narrow here, or in the wrong place: its spread understates what is not "
    "known. Train longer, lift max_scale=, or take another guide.",
}


@dataclass(frozen=True)
class KhatBlock:
    """The k̂ of one block of latents.

    Attributes:
        name: of the block.
        sites: in it.
        dimension: numbers in it; of what is discrete, values that it can have.
        khat, error: and its standard error; ``None`` where there is none.
        share: of the draws that is effective in importance sampling from q to the posterior.
        limit: up to which k̂ is usable, by the number of draws.
        total_variation: of what is discrete, between q and the full conditional.
        noise: standard deviation of the log ratios that comes of taking few rows, in nats.
        rows: that were taken, where not all.
        refused: why there is no answer.
    """

    name: str
    sites: tuple[str, ...]
    dimension: int
    khat: float | None = None
    error: float | None = None
    share: float | None = None
    limit: float | None = None
    total_variation: float | None = None
    noise: float = 0.0
    rows: int | None = None
    refused: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict by k̂: ``good`` below 0.5, ``doubtful`` up to the limit (0.7 of many draws),
        then ``poor``, or ``doubtful`` of 100 numbers or more, of which slight errors suffice; by
        the total variation, up to 0.1, 0.3 and beyond. Of a subset of the rows never ``good``."""
        if self.refused is not None:
            return "refused"
        if self.total_variation is not None:
            bounds, value = (TV_GOOD, TV_DOUBTFUL), self.total_variation
        else:
            assert self.khat is not None
            assert self.limit is not None
            bounds, value = (min(GOOD, self.limit), self.limit), self.khat
        found = verdict_of(value, *bounds)
        if found == "poor" and self.khat is not None and self.dimension >= MANY:
            return "doubtful"
        return "doubtful" if found == "good" and self.rows is not None else found

    def finding(self) -> Finding:
        """The verdict in words."""
        name = f"k-hat of {self.name}" if self.total_variation is None else f"q of {self.name}"
        keys = ("khat", "error", "share", "limit", "total_variation", "rows")
        known = {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
        numbers = {"dimension": self.dimension, "sites": list(self.sites), **known}
        if self.refused is not None:
            return Finding(name, "refused", self.refused, numbers)
        if self.total_variation is not None:
            said = (
                f"Of {self.dimension} values, q is off by {self.total_variation:.2f} in total "
                f"variation; {100 * (self.share or 0.0):.0f} % of its draws would count."
            )
            if self.verdict != "good":
                said += " Train q longer, or with a larger guide_lr."
        else:
            said = f"k-hat is {self.khat:.2f} ± {self.error:.2f} (limit {self.limit:.2f}). "
            said += (
                f"In {self.dimension:,} dimensions a slight error of each is enough for that: its "
                "draws cannot be weighted to those of the posterior, and more it does not say."
                if self.verdict == "doubtful" and (self.khat or 0.0) > (self.limit or 0.0)
                else SAID[self.verdict]
            )
        if self.rows is not None:
            said += (
                f" Only {self.rows} rows were taken, scaled up: that is the posterior of other "
                f"data, by {self.noise:.2f} nats; rows=None tells."
            )
        return Finding(name, self.verdict, said, numbers)


@dataclass(frozen=True)
class Khat:
    """The k̂ of all blocks that were looked at.

    Attributes:
        blocks: in the order of the model.
        draws: S of each.
    """

    blocks: tuple[KhatBlock, ...]
    draws: int

    def finding(self) -> Finding:
        """The worst verdict of a block; ``refused`` if all are."""
        each = [block.finding() for block in self.blocks]
        verdict = min((one.verdict for one in each), key=WORST_FIRST.index)
        concerned = [one for one in each if one.verdict == verdict]
        text = f"{concerned[0].name[0].upper()}{concerned[0].name[1:]}: {concerned[0].text}"
        judged = [one for one in each if one.verdict != "refused"]
        if len(judged) > 1:
            counts = [(v, sum(one.verdict == v for one in judged)) for v in WORST_FIRST]
            parts = ", ".join(f"{count} {v}" for v, count in counts if count)
            text = f"Of {len(judged)} blocks that can be judged, {parts}. {text}"
        pairs = zip(self.blocks, each, strict=True)
        numbers = {"draws": self.draws, "blocks": {b.name: f.numbers for b, f in pairs}}
        figure = None if verdict == "refused" else self.figure()
        return Finding("k-hat", verdict, text, numbers, figure)

    @styled
    def figure(self) -> Figure:
        """k̂ of every block that has one, with two standard errors; discrete blocks by their total
        variation, hollow."""
        shown = [block for block in self.blocks if block.refused is None]
        fig = new_figure(1.1 + 0.24 * len(shown))
        ax = fig.subplots()
        for place, block in enumerate(reversed(shown)):
            if block.total_variation is not None:
                ax.plot(
                    block.total_variation, place, MARKERS[1], color=CYCLE[1],
                    markerfacecolor="white", label="total variation",
                )  # fmt: skip
                continue
            k, error = min(block.khat or 0.0, 3.0), block.error or 0.0
            ax.errorbar(
                k, place, xerr=2 * error, color=CYCLE[0], marker=MARKERS[0], capsize=2.0,
                linestyle="", label="k-hat",
            )  # fmt: skip
        limits = [block.limit for block in shown if block.limit is not None]
        for limit in sorted({GOOD, *limits}) if limits else []:
            ax.axvline(limit, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.set_yticks(range(len(shown)), [block.name for block in reversed(shown)])
        ax.set(xlabel="k-hat", ylim=(-0.6, len(shown) - 0.4))
        ax.grid(False)
        legend_above(ax, ["k-hat", "total variation"])
        return fig


def khat_of(log_ratios: ArrayLike) -> tuple[float, float, float]:
    """k̂ of log p - log q, its standard error, and the effective share of the draws.

    Ratios that differ by less than 5 % have no tail to fit: their k̂ counts as 0.

    Arguments:
        log_ratios: of S draws from q, ``(S,)``, finite, up to a constant.

    Returns:
        k̂; its standard error, ``(1 + k̂) / sqrt(M)`` for the M largest ratios that it is fitted
        to (that of the maximum likelihood estimate, for large M); ``1 / (S Σ w²)`` of the smoothed
        weights, in (0, 1].

    Raises:
        PyroccamError: for fewer than 100 draws, or ratios that are not finite.

    References:
        Vehtari, Simpson, Gelman, Yao, Gabry 2024, JMLR 25(72); Smith 1987, Estimating tails of
        probability distributions, Annals of Statistics 15, for the error.

    Example:
        >>> khat_of(np.zeros(1000))[0]
        0.0
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    if values.ndim != 1 or len(values) < 100 or not np.isfinite(values).all():
        raise PyroccamError(f"log_ratios of shape {values.shape}", "100 or more, all finite")
    draws = len(values)
    tail = math.ceil(min(draws / 5, 3 * math.sqrt(draws)))
    if np.ptp(values) < EQUAL:
        return 0.0, 1.0 / math.sqrt(tail), 1.0
    with np.errstate(over="ignore"):  # ArviZ divides by what overflows: the quotient is zero
        log_weights, found = psis(values)
    k = float(found)
    share = 1.0 / (draws * float(np.exp(2 * log_weights).sum()))
    return k, (1.0 + max(k, -1.0)) / math.sqrt(tail), share


def share_of_draws(p: Tensor, q: Tensor) -> float:
    """``1 / Σ p² / q``, in [0, 1]: of draws from q, the effective share for p. Finitely many
    values bound the ratios, and k̂ would say nothing; this is exact.

    Arguments:
        p, q: probabilities ``(K,)``; p of what q excludes makes it zero.
    """
    p, q = p.double().cpu(), q.double().cpu()
    kept = p > 0
    return float(1.0 / (p[kept].square() / q[kept]).sum())


@checked
def khat(
    fit: Fit,
    *,
    draws: Annotated[int, Between(100)] = 2000,
    rows: Annotated[int, Between(2)] | None = None,
    seed: Seed = 0,
) -> Khat:
    r"""Pareto k̂ of q as a proposal for the posterior, by blocks of few dimensions.

    For draws :math:`θ_b \sim q_b` of a block, the tail of the ratios

    .. math:: p(θ_b, θ_{rest}, y) / q_b(θ_b)

    with the rest held at its posterior mean. If everything random has at most 100 dimensions,
    it is one block, and k̂ is that of Yao et al.: of q against the posterior. Otherwise each site is
    a block, and k̂ tests whether the factor :math:`q_b` is a good proposal for its *full
    conditional* there: not that dimensions depend on each other.

    k̂ grows with the dimension for one and the same error, so a block with more than 100 numbers is
    refused; so are points, and priors without an integral, whose posterior has none. What is
    discrete is compared by its probabilities: learnt depth with the exact posterior given the
    weights, enumerated structure with its full conditional.

    The likelihood is that of all training rows, in evaluation mode; with ``rows`` it is N / R times
    that of R rows drawn at random. The standard deviation of what that does to the log ratios is
    reported; from half a nat on the block is refused, and below no verdict is ``good``.

    Arguments:
        fit: of a Bayesian or structured network, or of learnt depth.
        draws: S from each block.
        rows: R, to look at a random subset of the training rows.
        seed: of draws and rows; the state of the generators is left as it was.

    References:
        Yao, Vehtari, Simpson, Gelman 2018, Yes, but did it work?, arXiv:1802.02538; Vehtari,
        Simpson, Gelman, Yao, Gabry 2024, JMLR 25(72), for ``limit = min(1 - 1 / log10 S, 0.7)``.
    """
    if not fit.model.random_weights:
        if rows is not None:
            raise PyroccamError("rows=", "random weights or structure")
        return Khat((_depth(fit),), draws)
    rows = None if rows is None or rows >= fit.data.N else rows
    where = fit.data.device
    with evaluating(fit.model), evaluating(fit.guide), seeded(seed, where):
        return Khat(_Blocks(fit, draws, rows).all(), draws)


def _depth(fit: Fit) -> KhatBlock:
    """The block of a learnt depth: exact."""
    if not fit.model.latents():
        return KhatBlock("everything", (), 0, refused="Nothing in this model is random.")
    model, guide = require(fit, LearntDepth, "khat")
    count = model.max_depth + 1
    if guide.traits.sums_out:
        why = "The depth is summed out, its posterior is exact: there is no q to look at."
        return KhatBlock("depth", ("depth",), count, refused=why)
    exact, q = exact_depth_posterior(model, fit.data), fit.posterior.shares
    apart, share = total_variation(exact, q), share_of_draws(exact, q)
    return KhatBlock("depth", ("depth",), count, share=share, total_variation=apart)


class _Blocks:
    """The blocks of a Bayesian network."""

    def __init__(self, fit: Fit, draws: int, rows: int | None) -> None:
        model, guide = require(fit, BayesianNetwork, "khat")
        self.posterior = fit.posterior
        self.model, self.guide, self.draws, self.rows = model, guide, draws, rows
        self.sites = model.latents()
        self.centre = centres(model, guide)
        chosen = None if rows is None else torch.randperm(fit.data.N)[:rows].sort().values
        self.joint = LogJoint(model, fit.data, chosen)
        self.reference = None
        if rows is not None:
            self.reference = self.joint.log_likelihood({s: v[None] for s, v in self.centre.items()})

    def all(self) -> tuple[KhatBlock, ...]:
        return tuple(self._block(name, sites) for name, sites in self._named().items())

    def _named(self) -> dict[str, list[str]]:
        """One block of everything where that can be judged, or one for each site. Points are no
        part of it, unless there is nothing else; what is discrete is compared on its own."""
        random = [site for site in self.sites if not self.guide.factor_of(site).is_point]
        if not random:
            return {"everything": self.sites}
        smooth = [site for site in random if not is_discrete(self.guide.posterior(site))]
        apart = {site: [site] for site in random if site not in smooth}
        if smooth and self._why_not(smooth) is None:
            name = smooth[0] if len(smooth) == 1 else "everything"
            return apart | {name if not apart else "weights": smooth}
        return apart | {site: [site] for site in smooth}

    def _dimension(self, sites: Sequence[str]) -> int:
        return sum(self.centre[site].numel() for site in sites)

    def _why_not(self, sites: Sequence[str]) -> str | None:
        """Why k̂ of a block would mean nothing."""
        priors = self.model.priors_given({s: v[None] for s, v in self.centre.items()})
        for site in sites:
            counting = self.model.counting
            if counting is not None and (
                site == counting.site or not float(self.model.counts(site, self.centre))
            ):
                return (
                    f"Site {site!r} is of a random depth, beyond which weights keep their prior: "
                    "look at the network of the chosen depth, inference.shrinking.settled(fit)."
                )
            if (why := self.guide.factor_of(site).no_density) is not None:
                return f"At site {site!r} {why}; guides.MeanField has one."
            if is_improper(priors[site]):
                return (
                    f"The prior of site {site!r} has no finite integral, or none that is fixed: "
                    "k-hat needs a proper one (priors.Normal, GroupHorseshoe, StudentT)."
                )
        dimension = self._dimension(sites)
        if dimension > MOST:
            return (
                f"{dimension} dimensions, at most {MOST}: look at scales and biases, or compare "
                "predictions (agreement, vsbc)."
            )
        return None

    def _block(self, name: str, sites: list[str]) -> KhatBlock:
        empty = KhatBlock(name, tuple(sites), self._dimension(sites), rows=self.rows)
        if (why := self._why_not(sites)) is not None:
            return replace(empty, refused=why)
        one = self._discrete if is_discrete(self.guide.posterior(sites[0])) else self._smooth
        found = one(empty, {site: self.centre[site] for site in self.sites if site not in sites})
        if found.noise > NOISE_MOST:
            why = (
                f"{self.rows} rows, scaled up, stand for another posterior: their log ratios are "
                f"off by {found.noise:.1f} nats, more than the {NOISE_MOST} that could be borne. "
                "Take more rows=, or all."
            )
            return replace(found, refused=why)
        return found

    def _smooth(self, block: KhatBlock, rest: dict[str, Tensor]) -> KhatBlock:
        drawn = {site: self.guide.posterior(site).sample((self.draws,)) for site in block.sites}
        joint, variance = self.joint(drawn, rest, self.reference)
        densities = self.posterior.log_prob(drawn).values()
        log_q = sum(densities, torch.zeros((), dtype=torch.float64))
        k, error, share = khat_of((joint - log_q).numpy())
        noise = float(variance.mean().sqrt())
        limit = good_khat(self.draws)
        return replace(block, khat=k, error=error, share=share, limit=limit, noise=noise)

    def _discrete(self, block: KhatBlock, rest: dict[str, Tensor]) -> KhatBlock:
        (site,) = block.sites
        q = self.guide.posterior(site).probs.detach()
        values = torch.arange(len(q), device=q.device)
        joint, variance = self.joint({site: values}, rest, self.reference)
        p = joint.softmax(0)
        return replace(
            block,
            dimension=len(q),
            share=share_of_draws(p, q),
            total_variation=total_variation(p, q),
            noise=float(variance.mean().sqrt()),
        )
