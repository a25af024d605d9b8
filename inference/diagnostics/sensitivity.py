"""The share of prior and data in a posterior, by power scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from ...data import Count, PyroccamError, checked
from ..arviz import draw_posterior, power_scaling, shown_values
from ..figures import CYCLE, GREY, INK, MARKERS, legend_above, new_figure, styled
from ..posterior import Fit
from .finding import Finding

Floats = NDArray[np.float64]

# From which on a sensitivity is worth a word (Kallioinen et al. 2024).
NOTABLE = 0.05
MOST_NAMED = 8  # latents with a name in the figure
GROUPS = ("scale", "global")  # latents by which a prior shrinks


@dataclass(frozen=True)
class Sensitivity:
    """Change of each latent for each doubling of the power of prior or likelihood.

    Attributes:
        prior, likelihood: by latent, ``(*,)``; the second empty where the likelihood of all rows is
            not known.
        draws: S.
    """

    prior: dict[str, Floats] = field(repr=False)
    likelihood: dict[str, Floats] = field(repr=False)
    draws: int

    def moved(self) -> dict[str, int]:
        """Elements of each latent that the prior moves."""
        return {name: int((v > NOTABLE).sum()) for name, v in self.prior.items()}

    def finding(self) -> Finding:
        """The sensitivity in words."""
        moved = self.moved()
        numbers: dict[str, Any] = {
            name: {
                "elements": int(v.size),
                "moved by the prior": moved[name],
                "prior, most": float(np.nanmax(v)),
            }
            for name, v in self.prior.items()
        }
        for name, v in self.likelihood.items():
            numbers[name]["likelihood, most"] = float(np.nanmax(v))
        deaf = {
            name: int(((self.prior[name] > NOTABLE) & (v < NOTABLE)).sum())
            for name, v in self.likelihood.items()
            if name.rpartition(".")[2] in GROUPS
        }
        touched = {name: n for name, n in moved.items() if n > deaf.get(name, 0)}
        figure = sensitivity_plane(self) if self.likelihood else None
        said = ""
        if alone := sum(deaf.values()):
            said = (
                f" Of {alone:,} scales of groups, which do not feel the data, the prior decides, "
                "as it should: such groups are cut."
            )
        if not touched:
            said = (
                "Another weight on the prior would hardly change the posterior: nothing else moves "
                f"by {NOTABLE} for each doubling of its power.{said}"
            )
            return Finding("prior sensitivity", "good", said, numbers, figure)
        parts = [f"{n:,} of {self.prior[name].size:,} of {name}" for name, n in touched.items()]
        shown = ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
        said = (
            f"The prior moves {shown}.{said} Swap the prior (inference.swap) and see whether what "
            "you conclude stays."
        )
        return Finding("prior sensitivity", "doubtful", said, numbers, figure)


@checked
def prior_sensitivity(
    fit: Fit,
    draws: Count = 2000,
    *,
    rows: Count | None = None,
    weights: bool = False,
) -> Sensitivity:
    r"""Power-scaling sensitivity of structure and scales, with draws from q.

    How the posterior :math:`\propto p(θ)^α p(y | θ)` changes with α at 1, and how
    :math:`p(θ) p(y | θ)^α` does, seen by reweighting draws. Draws are those of q: of a poor q the
    answers are of a posterior that is not quite the one asked about.

    Arguments:
        fit: of a model with latents.
        draws: S.
        rows: only so many training rows, evenly spread; the sensitivity to the likelihood, which
            needs all, is then left out.
        weights: look at weights and biases too.

    Raises:
        PyroccamError: for a model without latents to look at, or a point estimate.

    References:
        Kallioinen, Paananen, Bürkner, Vehtari 2024, Statistics and Computing 34.
    """
    drawn = draw_posterior(fit, draws, rows=rows, keep=math.inf if weights else 0)
    each = {k: v.double().numpy() for k, v in shown_values(fit.model, drawn.values).items()}
    # Where there is more than weights, these are no part of it.
    values = {k: v for k, v in each.items() if not k.endswith("_rms")} or each
    if not values or fit.guide.traits.point:
        what = "a point" if drawn.log_prior else "of no latent at all"
        raise PyroccamError(f"The posterior is {what}", "draws to reweight")
    prior = sum(each.numpy() for each in drawn.log_prior.values())
    found = power_scaling(values, np.asarray(prior), "prior")
    likelihood = {}
    if drawn.complete:
        total = drawn.log_likelihood.sum(1).numpy()
        likelihood = power_scaling(values, total, "likelihood")
    return Sensitivity(found, likelihood, draws)


@styled
def sensitivity_plane(found: Sensitivity) -> Figure:
    """Every element of every latent by its sensitivity to prior and likelihood."""
    fig = new_figure(3.8)
    ax = fig.subplots()
    low, high = 1e-4, 3.0
    labels = []
    for k, name in enumerate(found.likelihood):
        x = np.clip(found.prior[name].ravel(), low, high)
        y = np.clip(found.likelihood[name].ravel(), low, high)
        labels += [name] if k < MOST_NAMED else []
        ax.plot(
            x, y, linestyle="", marker=MARKERS[k % len(MARKERS)], markersize=3.5, alpha=0.7,
            color=CYCLE[k % len(CYCLE)], markeredgewidth=0, label=name if k < MOST_NAMED else None,
        )  # fmt: skip
    for line in (ax.axvline, ax.axhline):
        line(NOTABLE, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    ax.set(xscale="log", yscale="log", xlim=(low / 1.5, high * 1.5), ylim=(low / 1.5, high * 1.5))
    ax.set(xlabel="sensitivity to the prior", ylabel="to the likelihood")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator())
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    for text, place, side in (
        ("moved by the prior", (NOTABLE * 1.15, low), "left"),
        ("not moved by it", (NOTABLE / 1.15, low), "right"),
    ):
        ax.annotate(text, place, ha=side, va="bottom", fontsize=7.5, color=INK)
    legend_above(ax, labels)
    return fig
