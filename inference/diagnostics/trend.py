"""Convergence of a bound, by the trend of its last evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import stdtrit

from ...data import PyroccamError, checked
from ..figures import CYCLE, GREY, INK, legend_above, new_figure, styled
from .finding import Finding, Verdict

if TYPE_CHECKING:
    from ..training import Fit

LEAST_ROWS = 16  # evaluations in the window, for three cosines
SHARE = 0.5  # of the evaluations since the objective changed, the last ones, that make the window
WORTH = 0.01  # nats a row: 1 % of likelihood

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

    @property
    def interval(self) -> tuple[float, float]:
        """A two-sided 95 % interval of the slope."""
        reach = float(stdtrit(self.freedom, 0.975)) * self.error
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
        rows: training rows.
        annealed: the learning rate fell to zero meanwhile: a loss at rest may yet improve at
            another rate, and the pace of one that is not leads nowhere.
        refused: why there is no answer.
        line: the trend of the loss by epoch in the window; ``None`` where it was refused.
        first, last: epochs between which the trend was looked at.
        gain: what as many epochs again as the window has would gain at this pace, in nats for
            each row. Curves flatten: it is more than can be expected, but not by much.
        low, high: 95 % interval of the gain.
    """

    epochs: Floats
    losses: Floats
    rows: int
    annealed: bool
    refused: str | None = None
    line: Trend | None = None
    first: float = math.nan
    last: float = math.nan
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def verdict(self) -> Verdict:
        """``good``: as many epochs again would gain less than ``worth``, whatever the noise.
        ``poor``: they would gain more, or the loss rises. ``doubtful``: the noise hides which.
        ``refused``: the bound grew as the learning rate fell, which says nothing of more epochs."""
        if self.refused is not None:
            return "refused"
        if self.low > 0 and self.gain > WORTH:
            return "refused" if self.annealed else "poor"
        if self.high < 0 and -self.gain > WORTH:
            return "poor"
        return "good" if self.high < WORTH and self.low > -WORTH else "doubtful"

    def finding(self) -> Finding:
        """The verdict with the numbers behind it and a figure."""
        numbers: dict[str, Any] = {"evaluations": len(self.losses), "worth": WORTH}
        if self.refused is not None or self.line is None:
            return Finding("ELBO", "refused", self.refused or "", numbers)
        numbers |= {"first_epoch": self.first, "last_epoch": self.last}
        numbers |= {"per_epoch": -self.line.slope, "error": self.line.error}
        numbers |= {"gain": self.gain, "low": self.low, "high": self.high, "rows": self.rows}
        span = f"the last {self.last - self.first:.0f} epochs"
        how = (
            f"{self.gain:.2g} nats a row (95 %: {self.low:.2g} to {self.high:.2g}), "
            f"{self.gain * self.rows:.2g} over all rows"
        )
        if self.annealed and self.low > 0 and self.gain > WORTH:
            text = (
                f"Over {span} the bound grew by {self.gain:.2g} nats a row while the learning rate "
                "fell to zero. How much a longer training would gain does not follow from that: "
                "compare the bound, or the loss of held-out rows, with one of twice the epochs."
            )
        elif self.verdict == "good":
            text = (
                f"The bound has stopped improving: as many epochs again as {span} would gain "
                f"{how}, less than the {WORTH:g} that would matter."
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
        epochs, losses, line = self.epochs, self.losses, self.line
        inside = epochs >= self.first
        ax.plot(epochs, losses, ".", color=GREY, label="loss")
        ax.plot(epochs[inside], losses[inside], ".", color=CYCLE[0], label="in the window")
        span = self.last - self.first
        ahead = np.linspace(self.first, self.last + (0 if self.annealed else span), 50)
        low, high = line.interval
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
def convergence(fit: Fit) -> Convergence:
    """The convergence of the bound, by the trend of the training loss.

    Of each evaluation the mean loss of an epoch is known, which depends on its neighbours
    (:func:`trend` allows for that). A gain of 0.01 nats a row would matter.

    Only epochs count in which the objective was the same. While the KL is warmed up it changes: the
    loss grows, or falls, and neither is the bound. So it does while q(d) is held, and with a
    falling temperature. The later half of the evaluations after that is looked at, 16 at least.
    """
    after = _changed(fit)
    epochs, losses = (np.array([float(row[n]) for row in fit.history]) for n in ("epoch", "loss"))
    if not np.isfinite(losses).all():
        raise PyroccamError("a history that is not finite", "finite losses")
    # The loss of row e is of the epoch that ended there, which began at e - 1.
    settled = np.flatnonzero(epochs - 1.0 >= after - 1e-9)
    kept = settled[-max(math.ceil(SHARE * len(settled)), LEAST_ROWS) :]
    given = epochs, losses, fit.data.N, fit.settings.schedule != "constant"
    if len(kept) < LEAST_ROWS:
        need = LEAST_ROWS
        why = (
            f"Only {len(settled)} evaluations followed epoch {after:g}, up to which the objective "
            f"was another one; a trend needs {need} there."
            if after > 0
            else f"{len(losses)} evaluations are too few for a trend, which needs {need}."
        )
        why += f" Fit with evaluations= and epochs= of at least {need} after that."
        return Convergence(*given, why)
    line = trend(epochs[kept], losses[kept])
    first, last = float(epochs[kept][0]), float(epochs[kept][-1])
    gain, high, low = (-slope * (last - first) for slope in (line.slope, *line.interval))
    return Convergence(*given, None, line, first, last, gain, low, high)


def _changed(fit: Fit) -> float:
    """Epochs in which the objective was another one."""
    settings = fit.settings
    schedule = getattr(getattr(fit.model, "temperature", None), "schedule", None)
    falling = 0.0 if schedule is None else schedule.over
    share = max(settings.kl_warmup, falling, fit.guide.schedule.held)
    return float(share * settings.epochs_for(fit.data.N))
