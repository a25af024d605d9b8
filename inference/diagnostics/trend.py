"""Convergence of a bound, by the trend of its last evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import stdtrit

from ...data import Between, Positive, PyroccamError, checked
from ..figures import CYCLE, GREY, INK, legend_above, new_figure, styled
from .finding import Finding, Verdict

if TYPE_CHECKING:
    from ..training import Fit

__all__ = ["LEAST_ROWS", "Convergence", "Trend", "convergence", "trend"]

LEAST_ROWS = 16  # evaluations in the window, for three cosines

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trend:
    """A straight line through a series, with an error that holds for dependent noise.

    Attributes:
        middle: mean of the positions.
        level: of the line there.
        slope: for one unit of position.
        error: standard error of the slope.
        freedom: degrees of freedom of Student's t that (estimate - slope) / error follows.
    """

    middle: float
    level: float
    slope: float
    error: float
    freedom: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A two-sided interval of the slope."""
        reach = float(stdtrit(self.freedom, 0.5 + level / 2)) * self.error
        return self.slope - reach, self.slope + reach


def trend(positions: Floats, values: Floats) -> Trend:
    r"""The least-squares line through a series whose noise may be autocorrelated.

    The long-run variance of the noise comes from the coefficients of the series along K smooth
    waves, :math:`\phi_k(t) = \sqrt{2/T} \cos(2 π k (t + ½) / T)`, k = 1 ... K. These are even about
    the middle of the series, the line is odd: so neither level nor slope is in the coefficients,
    and for white noise (slope - truth) / error is *exactly* Student's t with K degrees of freedom.
    Autocorrelated noise has low frequencies of nearly equal power, so that the same t holds about:
    with the few waves of lowest frequency, :math:`K = \max(3, ⌊0.4\, T^{2/3}⌋)`, and the wide
    quantiles of few degrees of freedom.

    Of 25 values without a trend, 95 % intervals leave out zero in 5, 7 and 15 % of the series with
    autocorrelations of 0, 0.5 and 0.8; those of Newey-West (4 (T/100)^(2/9) lags, normal
    quantiles), which take the long-run variance for known, in 13, 26 and 44 %. A trend that bends
    adds to the coefficients, and makes the error larger.

    Arguments:
        positions: ``(T,)``, increasing, about equally spaced.
        values: ``(T,)``, finite.

    References:
        Phillips 2005, HAC estimation by automated regression, Econometric Theory 21; Sun 2011,
        Robust trend inference with series variance estimator and testing-optimal smoothing
        parameter, J. Econometrics 164; Lazarus, Lewis, Stock, Watson 2018, HAR inference,
        J. Business and Economic Statistics 36, for K.
    """
    size = len(values)
    waves = max(3, int(0.4 * size ** (2 / 3)))
    time = (np.arange(size) + 0.5) / size
    centred = positions - positions.mean()
    slope = float(centred @ values / (centred @ centred))
    noise = values - values.mean() - slope * centred
    basis = np.cos(2 * np.pi * np.arange(1, waves + 1)[:, None] * time) * math.sqrt(2 / size)
    long_run = float(np.mean((basis @ noise) ** 2))
    error = math.sqrt(long_run / float(centred @ centred))
    return Trend(float(positions.mean()), float(values.mean()), slope, error, waves)


@dataclass(frozen=True)
class Convergence:
    """The trend of the bound over the last evaluations.

    Attributes:
        epochs, losses: all evaluations, the losses in nats for each training row.
        first, last: epochs between which the trend was looked at.
        line: the trend of the loss by epoch in that window; ``None`` where it was refused.
        per_epoch: improvement of the bound, in nats for each row and epoch, positive if it grows.
        error: its standard error.
        gain: what as many epochs again as the window has would gain at this pace, in nats for
            each row. Curves flatten: it is more than can be expected, but not by much.
        low, high: 95 % interval of the gain.
        worth: a gain that would matter.
        rows: training rows, where known.
        refused: why there is no answer.
        annealed: the learning rate fell to zero meanwhile: a loss at rest may yet improve at
            another rate, and the pace of one that is not leads nowhere.
    """

    epochs: tuple[float, ...]
    losses: tuple[float, ...]
    first: float
    last: float
    line: Trend | None
    per_epoch: float
    error: float
    gain: float
    low: float
    high: float
    worth: float
    rows: int | None = None
    refused: str | None = None
    annealed: bool = False

    @property
    def verdict(self) -> Verdict:
        """``good``: as many epochs again would gain less than ``worth``, whatever the noise.
        ``poor``: they would gain more, or the loss rises. ``doubtful``: the noise hides which, or
        the bound grew as the learning rate fell, which says nothing of more epochs."""
        if self.refused is not None:
            return "refused"
        if self.low > 0 and self.gain > self.worth:
            return "doubtful" if self.annealed else "poor"
        if self.high < 0 and -self.gain > self.worth:
            return "poor"
        return "good" if self.high < self.worth and self.low > -self.worth else "doubtful"

    @property
    def again(self) -> str:
        """What as many epochs again as those of the window would gain, in words."""
        return f"{self.gain:.2g} nats a row (95 %: {self.low:.2g} to {self.high:.2g})"

    def finding(self) -> Finding:
        """The verdict with the numbers behind it and a figure."""
        numbers: dict[str, Any] = {"evaluations": len(self.losses), "worth": self.worth}
        if self.refused is not None:
            return Finding("ELBO", "refused", self.refused, numbers)
        numbers |= {"first_epoch": self.first, "last_epoch": self.last}
        numbers |= {"per_epoch": self.per_epoch, "error": self.error}
        numbers |= {"gain": self.gain, "low": self.low, "high": self.high}
        span = f"the last {self.last - self.first:.0f} epochs"
        how = self.again
        if self.rows is not None:
            numbers["rows"] = self.rows
            how += f", {self.gain * self.rows:.2g} over all rows"
        if self.annealed and self.low > 0 and self.gain > self.worth:
            text = (
                f"Over {span} the bound grew by {self.gain:.2g} nats a row while the learning rate "
                "fell to zero. How much a longer training would gain does not follow from that: "
                "compare the bound, or the loss of held-out rows, with one of twice the epochs."
            )
        elif self.verdict == "good":
            text = (
                f"The bound has stopped improving: as many epochs again as {span} would gain "
                f"{how}, less than the {self.worth:g} that would matter."
            )
            if self.annealed:
                text += " The learning rate fell to zero: at another one it may yet improve."
        elif self.verdict == "doubtful":
            text = (
                f"The noise of the loss hides whether the bound still grows: {span} again would "
                f"gain {how}. Use more evaluations=, particles= or larger batches."
            )
        elif self.gain > 0:
            text = (
                f"The bound still grows: by the trend of {span}, as many again would gain up "
                f"to {how}. Train longer, or with a larger learning rate at the end."
            )
        else:
            text = (
                f"The loss rises over {span}: as many again would lose {-self.gain:.2g} nats a "
                "row. Lower the learning rate, or clip gradients (clip_norm=1.0)."
            )
        return Finding("ELBO", self.verdict, text, numbers, self.figure())

    @styled
    def figure(self) -> Figure:
        """The loss by epoch, the trend in the window, and where it leads in as many again, unless
        the learning rate fell to zero meanwhile."""
        assert self.line is not None
        fig = new_figure(2.9)
        ax = fig.subplots()
        epochs, losses = np.array(self.epochs), np.array(self.losses)
        inside = epochs >= self.first
        ax.plot(epochs, losses, ".", color=GREY, label="loss")
        ax.plot(epochs[inside], losses[inside], ".", color=CYCLE[0], label="in the window")
        span = self.last - self.first
        ahead = np.linspace(self.first, self.last + (0 if self.annealed else span), 50)
        line = self.line
        low, high = line.interval()
        centre = line.level + line.slope * (ahead - line.middle)
        ends = [line.level + slope * (ahead - line.middle) for slope in (low, high)]
        ax.fill_between(
            ahead, np.minimum(*ends), np.maximum(*ends), color=CYCLE[1], alpha=0.18, linewidth=0,
            label="95 % of the slope",
        )  # fmt: skip
        ax.plot(ahead, centre, color=CYCLE[1], label="trend")
        ax.axvline(self.last, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        shown = np.concatenate([losses[inside], centre])
        room = 0.35 * max(float(np.ptp(shown)), 1e-9)
        ax.set_ylim(shown.min() - room, shown.max() + room)  # the first epochs would flatten it
        ax.set(xlabel="epoch", ylabel="loss (nats a row)")
        legend_above(ax, ["loss", "in the window", "trend", "95 % of the slope"])
        return fig


@checked
def convergence(
    history: Fit | Sequence[Mapping[str, float]],
    *,
    after: float | None = None,
    share: Annotated[float, Between(0.0, 1.0, "(]")] = 0.5,
    worth: Positive = 0.01,
) -> Convergence:
    """The convergence of the bound, by the trend of the training loss.

    Of each evaluation the mean loss of an epoch is known, a draw with the noise of the weights that
    moved meanwhile: it depends on its neighbours, for which :func:`trend` allows. Where nothing
    changes, a verdict of ``poor`` is a false alarm, half of them for a loss that rises: at most as
    frequent as said there, and less where the noise is small beside ``worth``.

    Only epochs count in which the objective was the same. While the KL is warmed up it changes: the
    loss grows, or falls, and neither is the bound. A falling temperature changes it too.

    Arguments:
        history: a fit, or its rows, with ``epoch`` and ``loss``.
        after: epochs up to which the objective was another one. Of a fit it is known (the warm-up
            of the KL, a temperature, q(d) held); of rows it is 0 if left out.
        share: of the evaluations after that, the last ones, that make the window; 16 at least.
        worth: a gain that would matter, in nats for each row. 0.01 is 1 % of likelihood a row.

    Example:
        >>> rows = [{"epoch": float(e), "loss": 1.0 + 0.5**e} for e in range(1, 41)]
        >>> convergence(rows).verdict
        'good'
    """
    rows, annealed = None, False
    if not isinstance(history, Sequence):
        fit = history
        after = _changed(fit) if after is None else after
        annealed = fit.settings.schedule != "constant"
        history, rows = fit.history, fit.data.N
    after = 0.0 if after is None else after
    epochs, losses = (np.array([float(row[n]) for row in history]) for n in ("epoch", "loss"))
    if not (np.isfinite(epochs).all() and np.isfinite(losses).all()):
        raise PyroccamError("a history that is not finite", "Fit.history, or the fit itself")
    # The loss of row e is of the epoch that ended there, which began at e - 1.
    settled = np.flatnonzero(epochs - 1.0 >= after - 1e-9)
    window = max(math.ceil(share * len(settled)), LEAST_ROWS)
    kept = settled[-window:]
    common: dict[str, Any] = {"worth": worth, "rows": rows, "annealed": annealed}
    common |= {"epochs": tuple(epochs.tolist()), "losses": tuple(losses.tolist())}
    if len(kept) < LEAST_ROWS:
        need = LEAST_ROWS
        why = (
            f"Only {len(settled)} evaluations followed epoch {after:g}, up to which the objective "
            f"was another one; a trend needs {need} there."
            if after > 0
            else f"{len(losses)} evaluations are too few for a trend, which needs {need}."
        )
        why += f" Fit with evaluations= and epochs= of at least {need} after that."
        numbers = ("first", "last", "per_epoch", "error", "gain", "low", "high")
        empty: dict[str, Any] = dict.fromkeys(numbers, math.nan)
        return Convergence(line=None, refused=why, **empty, **common)
    line = trend(epochs[kept], losses[kept])
    span = float(epochs[kept][-1] - epochs[kept][0])
    low, high = line.interval()
    return Convergence(
        first=float(epochs[kept][0]),
        last=float(epochs[kept][-1]),
        line=line,
        per_epoch=-line.slope,
        error=line.error,
        gain=-line.slope * span,
        low=-high * span,
        high=-low * span,
        **common,
    )


def _changed(fit: Fit) -> float:
    """Epochs in which the objective was another one."""
    settings = fit.settings
    share = settings.kl_warmup
    schedule = getattr(getattr(fit.model, "temperature", None), "schedule", None)
    if schedule is not None:
        share = max(share, schedule.over)
    share = max(share, fit.guide.schedule.held)
    return share * settings.epochs_for(fit.data.N)
