"""Leave-one-out predictive density of a variational posterior, and comparison of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from ...data import Count, PyroccamError, checked
from ..arviz import PosteriorDraws, draw_posterior, psis, stacking
from ..posterior import Fit, same_targets
from ..training import log_density_alone
from .finding import Finding, Verdict

Floats = NDArray[np.float64]


@checked
def good_khat(draws: Count) -> float:
    """The largest k̂ with which S draws give a reliable estimate: ``min(1 - 1 / log10 S, 0.7)``.

    References:
        Vehtari, Simpson, Gelman, Yao, Gabry 2024, JMLR 25(72).
    """
    return min(1.0 - 1.0 / math.log10(max(draws, 2)), 0.7)


@dataclass(frozen=True)
class Loo:
    """Expected log pointwise predictive density, in nats, targets in original units.

    Attributes:
        elpd: the sum over rows (of those looked at).
        error: its standard error over rows, ``sqrt(N) sd``.
        p_loo: effective number of parameters: by how much the rows' density falls when they are
            left out. 0 of held-out rows.
        pointwise: ``(N,)``.
        khat: k̂ of leaving out each row, ``(N,)``; not a number of held-out rows.
        khat_joint: k̂ of the posterior itself (log p - log q), or ``None`` where it is not known.
        correction: whether draws were weighted by p / q, or taken for exact.
        draws, rows: S and N.
        numbers: parameters of the network that are numbers, fitted to the same rows.
        why: of the correction, in words.
        gain, gain_error: of held-out rows, by how much a row is denser than by what was known
            before any network: the frequencies of the classes, or a normal with the mean and
            deviation of the training targets.
    """

    elpd: float
    error: float
    p_loo: float
    pointwise: Floats = field(repr=False)
    khat: Floats = field(repr=False)
    khat_joint: float | None
    correction: Literal["p/q", "none", "held out"]
    draws: int
    rows: int
    numbers: int
    why: str = ""
    gain: float | None = None
    gain_error: float | None = None

    @property
    def mean(self) -> float:
        """The mean of a row, in nats."""
        return self.elpd / self.rows

    def bad(self) -> int:
        """Rows whose k̂ is too large for this many draws."""
        return int((self.khat > good_khat(self.draws)).sum())

    def finding(self) -> Finding:
        """The estimate in words."""
        return self._held_out() if self.gain is not None else self._left_out()

    def _held_out(self) -> Finding:
        assert self.gain is not None
        assert self.gain_error is not None
        gain, error = self.gain, self.gain_error
        names = ("elpd", "error", "rows", "gain", "gain_error")
        numbers = {name: getattr(self, name) for name in names}
        said = (
            f"{self.why} A row has log density {self.mean:.4f} ± {self.error / self.rows:.4f} nats "
            f"({self.rows:,} rows), {abs(gain):.3f} ± {error:.3f} "
            f"{'more' if gain > 0 else 'less'} than without any network."
        )
        if gain < 2 * error:
            said += " That is no better than knowing the training targets alone."
        verdict: Verdict = "poor" if gain < 0 else "doubtful" if gain < 2 * error else "good"
        return Finding("held-out rows", verdict, said, numbers)

    def _left_out(self) -> Finding:
        """The estimate; none where it is a guess for most rows, as with any posterior of thousands
        of weights: what a row says of some of them is then more than the draws cover."""
        bad = self.bad()
        names = ("elpd", "error", "p_loo", "rows", "khat_joint", "correction", "numbers")
        numbers = {name: getattr(self, name) for name in names} | {"bad": bad}
        share = bad / self.rows
        above = f"k-hat is above {good_khat(self.draws):.2f}"
        if share > 0.5:
            why = (
                f"For {bad:,} of {self.rows:,} rows {above}: the posterior without such a "
                "row cannot be had from that with it. What held-out rows say stands instead "
                "(diagnostics.elpd)."
            )
            return Finding("LOO", "refused", why, numbers)
        said = (
            f"A row that is left out is expected to have log density {self.mean:.4f} ± "
            f"{self.error / self.rows:.4f} nats ({self.rows:,} rows, {self.p_loo:.1f} effective "
            f"parameters). {self.why}"
        )
        if bad:
            said += (
                f" For {bad:,} {'row' if bad == 1 else 'rows'} ({100 * share:.1f} %) "
                f"{above}: without such a row the posterior would be another, and its term is a "
                "guess."
            )
        if self.numbers:
            said += (
                f" {self.numbers:,} parameters are numbers that saw all rows, so this flatters; "
                "held-out rows do not."
            )
        poor = share > 0.05
        good = not bad and self.correction == "p/q" and not self.numbers
        return Finding("LOO", "poor" if poor else "good" if good else "doubtful", said, numbers)


@checked
def loo(fit: Fit, draws: Count = 1000, *, rows: Count | None = None) -> Loo:
    r"""PSIS-LOO on the training rows, with draws from q in place of the posterior.

    .. math::

        elpd_i = \log \frac{Σ_s r_{si} \, p(y_i | θ_s)}{Σ_s r_{si}}, \qquad
        r_{si} = \frac{p(θ_s, y)}{q(θ_s)} \frac{1}{p(y_i | θ_s)}

    with the ratios r Pareto smoothed over the draws, row by row. Where k̂ of p / q says that draws
    cannot be corrected (in high dimensions they never can), they are taken for draws of the
    posterior.

    Arguments:
        fit: of random weights.
        draws: S.
        rows: only so many training rows, evenly spread. The correction needs all of them.

    Raises:
        PyroccamError: for a model whose weights are numbers, or a point estimate.

    References:
        Magnusson, Andersen, Jonasson, Vehtari 2019, Bayesian leave-one-out cross-validation for
        large data, for the correction; Vehtari, Gelman, Gabry 2017.
    """
    other = "diagnostics.elpd(fit, split='test')"
    if not fit.model.sites:
        raise PyroccamError(f"weights of a {type(fit.model).__name__}", "random ones", other)
    fit.data.refuse_weights("Leaving out")
    drawn = draw_posterior(fit, draws, rows=rows)
    if fit.guide.traits.point:
        raise PyroccamError("a posterior that is a point", "random weights", other)
    ratio, joint, why = _correction(drawn)
    own = drawn.log_likelihood.numpy()
    count = len(own)
    weights, khat = psis((ratio[:, None] - own).T)
    pointwise = logsumexp(weights + own.T, axis=1)
    kept = psis(ratio)[0] if ratio.any() else np.full(count, -math.log(count))
    lppd = logsumexp(kept[:, None] + own, axis=0)
    return Loo(
        **_sums(pointwise), p_loo=float((lppd - pointwise).sum()), pointwise=pointwise, khat=khat,
        khat_joint=joint, correction="none" if joint is None or not ratio.any() else "p/q",
        draws=count, rows=len(pointwise), why=why,
        numbers=sum(p.numel() for p in fit.model.part("net").parameters()),
    )  # fmt: skip


def _sums(pointwise: Floats) -> dict[str, float]:
    n = len(pointwise)
    spread = float(pointwise.std(ddof=1)) if n > 1 else float("nan")
    return {"elpd": float(pointwise.sum()), "error": math.sqrt(n) * spread}


def _correction(drawn: PosteriorDraws) -> tuple[Floats, float | None, str]:
    """Log ratios p / q of the draws (zeros without correction), their k̂, and the words."""
    count = len(drawn.log_likelihood)
    none = np.zeros(count)
    log_ratio = drawn.log_ratio
    if log_ratio is None:
        why = (
            "of some latents it has no density"
            if drawn.complete
            else "log p(θ, y) is not known from a part of the rows"
        )
        return none, None, f"Draws of q are taken for draws of the posterior: {why}."
    ratio = log_ratio.numpy()
    joint = float(psis(ratio)[1])
    if joint <= good_khat(count):
        return ratio, joint, f"Draws of q were weighted by p / q (k-hat {joint:.2f})."
    why = (
        f"Draws of q are taken for draws of the posterior: with k-hat {joint:.2f} of p / q no "
        "number of draws would correct them (in many dimensions it cannot be otherwise)."
    )
    return none, joint, why


@checked
def elpd(fit: Fit, *, split: str = "test", draws: Count = 200) -> Loo:
    r"""Log predictive density of rows that were held out, ``log Σ_s w_s p(y_i | θ_s)`` each.

    For every method: over depths exactly, over draws of random weights, or of a point.

    Arguments:
        split: ``test`` or ``val``.
        draws: S, of random weights.

    Raises:
        PyroccamError: for the training rows, which were not held out.
    """
    if split == "train":
        raise PyroccamError("split='train'", "rows that were held out", "diagnostics.loo(fit)")
    drawn = draw_posterior(fit, draws, split=split)
    if fit.model.random_weights:
        own = drawn.log_likelihood.numpy()
        pointwise = logsumexp(own, axis=0) - math.log(len(own))
    else:
        x, y = fit.data.split(split)  # all of them, as no limit was set
        outputs = fit.left_out(fit.outputs(x), y) if split == "val" else fit.outputs(x)
        with torch.no_grad():
            ll = fit.model.likelihood(outputs).log_prob(y).double()
        if fit.data.task != "classification":
            ll = ll - fit.data.y_std.double().log().sum()
        pointwise = torch.logsumexp(fit.weights.double().log()[:, None] + ll, 0).cpu().numpy()
    alone = log_density_alone(fit.data, split, drawn.rows) - fit.data.y_std.double().log().sum()
    gained = pointwise - alone.cpu().numpy()
    return Loo(
        **_sums(pointwise), p_loo=0.0, pointwise=pointwise,
        khat=np.full(len(pointwise), np.nan), khat_joint=None, correction="held out",
        draws=draws, rows=len(pointwise), numbers=0, why=f"Rows of the {split} split.",
        gain=float(gained.mean()), gain_error=_sums(gained)["error"] / len(gained),
    )  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Methods on the same rows, the best first.

    Attributes:
        table: a row for each: ``name``, ``elpd``, ``error``, ``p_loo``, ``difference`` to the best
            and ``difference_error``, paired over rows, ``weight`` in the stacked mixture of
            predictions, ``bad`` rows by k̂.
        held_out: the rows were not trained on.
    """

    table: list[dict[str, Any]]
    held_out: bool

    def __str__(self) -> str:
        wide = max(16, *(len(one["name"]) for one in self.table))
        lines = [
            f"{'':{wide}} {'elpd':>12} {'difference':>22} {'weight':>7} {'bad k-hat':>9}",
            *(
                f"{one['name']:{wide}} {one['elpd']:12.1f} "
                f"{one['difference']:12.1f} ± {one['difference_error']:7.1f} "
                f"{one['weight']:7.2f} {one['bad']:9d}"
                for one in self.table
            ),
        ]
        return "\n".join(lines)

    def finding(self) -> Finding:
        """The order of the methods, where one is shown, in words."""
        best, *others = self.table
        if not others:
            return Finding("comparison", "refused", "There is one method, and nothing to compare.")
        second = others[0]
        gap, error = second["difference"], second["difference_error"]
        clear = gap > 2 * error
        rows = "held-out rows" if self.held_out else "rows left out"
        said = (
            f"{best['name']} predicts {rows} best, by {gap:.1f} ± {error:.1f} nats before "
            f"{second['name']}"
            + ("." if clear else ", which is within the error: no order between them is shown.")
        )
        return Finding("comparison", "good" if clear else "doubtful", said, {"table": self.table})


@checked
def compare(fits: Mapping[str, Fit], *, split: str = "train") -> Comparison:
    """Methods on the same data, by rows left out (``split="train"``, :func:`loo`) or by rows held
    out (``test``, ``val``: :func:`elpd`), with stacking weights.

    Raises:
        PyroccamError: if the rows differ, or one of the fits has no LOO.

    References:
        Yao, Vehtari, Simpson, Gelman 2018, Using stacking to average Bayesian predictive
        distributions.
    """
    if not fits:
        raise PyroccamError("fits={}", "one or more, by name")
    first = next(iter(fits.values())).data
    for name, fit in fits.items():
        if not same_targets(first, fit.data, split):
            raise PyroccamError(f"{name!r} has other {split} rows", "the same rows for all")
    found = {
        name: loo(fit) if split == "train" else elpd(fit, split=split, draws=1000)
        for name, fit in fits.items()
    }
    weights = stacking({name: one.pointwise for name, one in found.items()})
    best = max(found, key=lambda name: found[name].elpd)
    table = []
    for name, one in sorted(found.items(), key=lambda pair: -pair[1].elpd):
        gap = _sums(found[best].pointwise - one.pointwise)
        table.append(
            {
                "name": name, "elpd": one.elpd, "error": one.error, "p_loo": one.p_loo,
                "difference": gap["elpd"], "difference_error": gap["error"],
                "weight": weights[name], "bad": one.bad(), "correction": one.correction,
            }
        )  # fmt: skip
    return Comparison(table, split != "train")
