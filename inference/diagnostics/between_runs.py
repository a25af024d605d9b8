"""Agreement of independent runs of one fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ...data import PyroccamError, checked
from ...models import seeded
from ..arviz import even_rows, rhat
from ..figures import CYCLE, GREY, INK, MARKERS, new_figure, styled
from ..posterior import Fit, Fits, chains_of, in_original_units, members, same_inputs
from ..shrinking import irrelevance
from .finding import WORST_FIRST, Finding, Verdict, verdict_of

Floats = NDArray[np.float64]

DRAWS = 400  # of each run
ROWS = 50  # at most, evenly spread, whose predictions are compared
GOOD, DOUBTFUL = 1.1, 1.5  # R-hat: runs apart by 0.46 and 1.1 of their standard deviations
ALIKE, ABOUT = 0.05, 0.2  # of what is one number in each run: its spread beside its size


@dataclass(frozen=True)
class RunsOf:
    """One quantity over the runs.

    Attributes:
        name: of the quantity.
        rhat: of each of its numbers, ``(K,)``; infinite where it is one number in each run, and
            another in another; 1 where it is the same in all draws of all runs.
        means: by run, ``(M, K)``.
        constant: it is one number in each run: it has no posterior, and R-hat is no measure of it.
        refused: why there is no verdict.
    """

    name: str
    rhat: Floats = field(repr=False)
    means: Floats = field(repr=False)
    constant: bool
    refused: str | None = None

    @property
    def worst(self) -> float:
        """The largest R-hat."""
        return float(self.rhat.max())

    @property
    def spread(self) -> float:
        """The largest standard deviation of the means over the runs, beside the size of the mean
        (where that is zero, of the largest mean)."""
        sizes = np.abs(self.means.mean(0))
        sizes = np.where(sizes > 0.0, sizes, np.abs(self.means).max(0))
        spreads = self.means.std(0, ddof=1)
        return float(np.max(np.divide(spreads, sizes, out=np.zeros_like(spreads), where=sizes > 0)))

    @property
    def verdict(self) -> Verdict:
        """The verdict by the largest R-hat: ``good`` to 1.1, ``doubtful`` to 1.5, ``poor`` beyond;
        of numbers without a posterior by their spread: to 5 %, to 20 %, beyond."""
        if self.refused is not None:
            return "refused"
        if self.constant:
            return verdict_of(self.spread, ALIKE, ABOUT)
        return verdict_of(self.worst, GOOD, DOUBTFUL)

    def described(self) -> str:
        """The comparison in words."""
        if self.refused is not None:
            return self.refused
        if self.constant:
            shown = ", ".join(f"{v:.3g}" for v in self.means[:, 0][:6])
            return f"{self.name}: {shown}, a spread of {100 * self.spread:.0f} %."
        gap = math.sqrt(max(self.worst**2 - 1.0, 0.0))
        apart = f"the runs are about {gap:.1f} of their standard deviations apart"
        where = f" at the worst of {len(self.rhat)}" if len(self.rhat) > 1 else ""
        return f"R-hat of {self.name} is {self.worst:.2f}{where}: {apart}."

    def numbers(self) -> dict[str, Any]:
        """What was compared, of Python's own types."""
        found: dict[str, Any] = {"verdict": self.verdict, "numbers": len(self.rhat)}
        if self.constant:
            return {**found, "spread": self.spread, "by_run": self.means[:, 0].tolist()}
        return {**found, "rhat": self.worst, "median_rhat": float(np.median(self.rhat))}


@dataclass(frozen=True)
class Agreement:
    """The agreement of several runs.

    Attributes:
        quantities: that were compared.
        runs: M.
    """

    quantities: tuple[RunsOf, ...]
    runs: int

    def finding(self) -> Finding:
        """The worst verdict, with the quantity that has it."""
        verdict = min((one.verdict for one in self.quantities), key=WORST_FIRST.index)
        said = [one.described() for one in self.quantities if one.verdict == verdict]
        if verdict == "good":
            text = f"{self.runs} runs agree. {said[0]}"
        elif verdict == "refused":
            text = said[0]
        else:
            text = (
                f"{self.runs} runs {'differ' if verdict == 'poor' else 'differ a little'}. "
                f"{' '.join(said[:3])} Each has found a part of the posterior, and says too little "
                "of what is not known: predict with all of them (Repeats.evaluate), or train "
                "longer if they have not converged."
            )
        numbers: dict[str, Any] = {"runs": self.runs, "draws": DRAWS}
        numbers |= {one.name: one.numbers() for one in self.quantities}
        return Finding("agreement", verdict, text, numbers, self.figure())

    @styled
    def figure(self) -> Figure:
        """R-hat of every quantity, one mark for each of its numbers; of what has no posterior
        within a run, only that this is so."""
        fig = new_figure(1.1 + 0.26 * len(self.quantities))
        ax = fig.subplots()
        names = [one.name for one in reversed(self.quantities)]
        for place, one in enumerate(reversed(self.quantities)):
            if one.constant:
                words = f"one number in each run, spread {100 * one.spread:.0f} %"
                ax.text(1.02, place, words, color=GREY, va="center")
                continue
            values = np.minimum(one.rhat, 3.0)
            at = np.full(len(values), float(place))
            ax.plot(values, at, "|", color=CYCLE[0], alpha=0.5, markersize=7)
            ax.plot(values.max(), place, MARKERS[0], color=CYCLE[1])
        for limit in (GOOD, DOUBTFUL):
            ax.axvline(limit, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.set_yticks(range(len(names)), names)
        ax.set(xlabel="R-hat over runs", xlim=(0.98, None), ylim=(-0.6, len(names) - 0.4))
        ax.set_xlim(right=max(ax.get_xlim()[1], DOUBTFUL + 0.1))
        ax.grid(False)
        return fig


def between_runs(name: str, values: Floats) -> RunsOf:
    """Compare a quantity over runs.

    Arguments:
        name: of it.
        values: draws of each run, ``(M, S, *)``.
    """
    flat = values.reshape(*values.shape[:2], -1)
    still = (np.ptp(flat, axis=1) == 0.0).all(0)  # one number in each run
    same = np.ptp(flat, axis=(0, 1)) == 0.0
    found = np.where(still, math.inf, 1.0)
    found[same] = 1.0
    if not still.all():
        found[~still] = rhat(flat[:, :, ~still])
    constant = bool(still.all()) and not bool(same.all())
    why = None
    if constant and name == "prediction":
        why = (
            "Each run predicts with certainty (a point estimate), so that R-hat of the predictions "
            "has nothing to compare their differences with. Use random weights, "
            "guides.MeanField(model), or predict with all runs, Repeats.evaluate."
        )
    return RunsOf(name, found, flat.mean(1), constant, why)


@checked
def agreement(repeats: Fits) -> Agreement:
    r"""The agreement of independent runs on one posterior, by R-hat with runs for chains.

    .. math:: \hat R ≈ \sqrt{1 + (\text{spread of the runs} / \text{standard deviation within})²}

    Draws within *one* run agree by construction, also where q is wrong. Compared is only what does
    not change when hidden units change places or signs, as weights do:

    * ``prediction``: of fifty test rows, the mean of the targets in original units, or the
      probabilities of the classes, of single draws;
    * ``depth``, and what each primitive of an edge counts (its γ);
    * ``noise``, the standard deviation of regression, a number in each run;
    * ``groups left in <layer>``: those with more mean than noise, a number in each run, where every
      layer has groups.

    Numbers without a posterior within a run are judged by their spread beside their size.
    Predictions of point estimates get no verdict: an ensemble is made of their differences.

    Arguments:
        repeats: two runs or more, of one model on one data set; or what
            :func:`~pyroccam.inference.as_fit` makes of an ``MCMC`` of several chains.

    Raises:
        PyroccamError: for a single run, or runs whose rows or quantities differ.

    References:
        Vehtari, Gelman, Simpson, Carpenter, Bürkner 2021, Bayesian Analysis 16, for R-hat; Yao,
        Vehtari, Gelman 2022, Stacking for non-mixing Bayesian computations, JMLR 23, for runs that
        find different modes.
    """
    fits = [one for run in members(repeats) for one in chains_of(run)]
    if len(fits) < 2:
        raise PyroccamError("One run", "two or more, as inference.fit_repeats makes them")
    first = fits[0].data
    if not len(first.x_test):
        raise PyroccamError(f"{first.name} has no test rows", "some")
    if not all(same_inputs(first, one.data, "test") for one in fits):
        raise PyroccamError("Runs whose test rows differ", "the same")
    chosen = even_rows(len(first.x_test), ROWS).to(first.device)
    each = [_quantities(one, one.data.x_test[chosen], seed) for seed, one in enumerate(fits)]
    shapes = [{name: value.shape for name, value in found.items()} for found in each]
    if any(one != shapes[0] for one in shapes):
        raise PyroccamError("Runs whose quantities differ", "runs of one model")
    compared = [between_runs(n, np.stack([found[n] for found in each])) for n in each[0]]
    return Agreement(tuple(compared), len(fits))


@torch.no_grad()
def _quantities(fit: Fit, x: Tensor, seed: int) -> dict[str, Floats]:
    """Draws of what is compared, by name, draws first."""
    model, guide, data = fit.model, fit.guide, fit.data
    found: dict[str, Tensor] = {}
    if model.random_weights:
        outputs = fit.posterior.outputs(x, DRAWS, seed=seed)
        with seeded(seed, x.device):
            for site, prior in model.structure.items():
                gamma = prior.gamma(guide.posterior(site).sample((DRAWS,)))
                for name, count in zip(prior.primitives, gamma.unbind(-1), strict=True):
                    found[f"{prior.edge}: {name}"] = count
    else:
        with seeded(seed, x.device):
            depth = torch.multinomial(fit.posterior.shares.double(), DRAWS, replacement=True)
        outputs = fit.posterior.outputs(x)[depth]
        if model.latents():
            found["depth"] = depth
    predicted = model.likelihood.predicted(outputs)
    if model.likelihood.task == "classification":
        found["prediction"] = predicted.exp()
    else:
        found["prediction"] = in_original_units(data, predicted)
        if "log_scale" in model.likelihood.noise:
            scale: Any = model.likelihood.scale
            found["noise"] = (scale * data.y_std).expand(DRAWS, -1)
    for name, left in _groups_left(fit).items():
        found[f"groups left in {name}"] = torch.full((DRAWS,), float(left))
    return {name: value.double().cpu().numpy() for name, value in found.items()}


def _groups_left(fit: Fit) -> dict[str, int]:
    """The number of groups that every layer has left, if all have groups."""
    layers = fit.model.layers.values()
    if not layers or not all({*layer.latents()} - {"weight", "bias"} for layer in layers):
        return {}
    found = irrelevance(fit.model, fit.guide, by="noise")
    return {name: int((one.values <= 0.0).sum()) for name, one in found.items() if one.grouped}
