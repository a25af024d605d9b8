"""All diagnostics that mean something for one fit, or for several runs of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

from ...data import Between, Count, checked
from ..posterior import Fit, Fits, chains_of, members, refuse_undecided
from ..training import FitProgress
from .between_runs import agreement
from .finding import Finding
from .leave_one_out import elpd, loo
from .pareto import khat
from .sensitivity import prior_sensitivity
from .trend import convergence

MOST_WORK = 2e11  # multiplications of one diagnostic: some twenty seconds of a core
ROWS = 2000  # where all would be more


@checked
def diagnose(
    fits: Fits,
    *,
    draws: Count = 1000,
    rows: Annotated[int, Between(2)] | None = None,
    progress: bool | None = None,
) -> list[Finding]:
    """Findings for and against a posterior, one of each diagnostic.

    Has the bound stopped improving (:func:`convergence`); is q near the posterior, block by block
    (:func:`khat`); does it predict rows that are left out (:func:`loo`), or were held out
    (:func:`elpd`); does the prior speak louder than the data (:func:`prior_sensitivity`); and, of
    several runs, or chains of one MCMC, do they agree (:func:`agreement`). What would mean nothing
    is refused, with the reason. Calibration over data sets (:func:`vsbc`) refits many times, and is
    not part of it.

    Arguments:
        fits: one fit, or several runs on the same data: then all but the agreement is of the first.
        draws: from q, for each diagnostic.
        rows: training rows that the draws pass; by default all, or 2,000 where all would take long.
        progress: a bar over the findings; ``None`` shows it on a terminal only.

    Raises:
        PyroccamError: for a guide of which one posterior is to be chosen first.
    """
    runs = members(fits)
    fit = runs[0]
    refuse_undecided(fit)
    asked: dict[str, Callable[[], Finding | None]] = {"ELBO": lambda: convergence(fit).finding()}
    asked |= _of_posterior(fit, draws, rows)
    asked["held-out rows"] = lambda: elpd(fit).finding()
    if len(runs) > 1 or len(chains_of(fit)) > 1:
        asked["agreement"] = lambda: agreement(runs).finding()
    found: list[Finding | None] = []
    with FitProgress("diagnose", len(asked), progress) as bar:
        for name, ask in asked.items():
            bar.next(name)
            try:
                found.append(ask())
            except ValueError as error:  # what cannot be had says why
                found.append(Finding(name, "refused", str(error)))
    return [one for one in found if one is not None]


def _of_posterior(
    fit: Fit, draws: int, rows: int | None
) -> dict[str, Callable[[], Finding | None]]:
    """What draws from q are needed for, by name."""
    model = fit.model
    why = ""
    if model.random_weights and fit.posterior.is_point:
        why = (
            "The posterior is a point: it claims no uncertainty, so there is nothing to check but "
            "its predictions."
        )
    elif not model.latents():
        why = f"Nothing is random in a {type(model).__name__}."
    if why:
        names = ("k-hat", "LOO", "prior sensitivity")
        return {name: partial(Finding, name, "refused", why) for name in names}
    if rows is None and _work(fit, draws) > MOST_WORK:
        rows = ROWS
    some = rows if rows is not None and rows < fit.data.N else None

    def of_rows(finding: Finding) -> Finding:
        if some is None:
            return finding
        said = f"Of {some:,} of {fit.data.N:,} training rows; rows= takes more."
        return replace(finding, text=f"{finding.text} {said}")

    def left_out() -> Finding | None:
        """Not of thousands of weights, whose draws no weights correct: it could not be good, unless
        the draws were given."""
        found = loo(fit, draws, rows=some)
        hopeless = found.correction != "p/q" and found.khat_joint is not None
        told = not hopeless or fit.guide.samples is not None
        return of_rows(found.finding()) if told else None

    few = some if model.random_weights else None  # a posterior of depth is exact, over all rows
    seed, weights = fit.settings.seed, _only_weights(fit)
    return {
        "k-hat": lambda: khat(fit, draws=draws, rows=few, seed=seed).finding(),  # says it itself
        "LOO": left_out,
        "prior sensitivity": lambda: of_rows(
            prior_sensitivity(fit, draws, rows=some, weights=weights).finding()
        ),
    }


def _work(fit: Fit, draws: int) -> float:
    """Multiplications, about: a dense layer uses each weight once for a row, a convolution more."""
    weights = sum(p.numel() for p in fit.model.parameters())
    weights += sum(layer.affine.shape.weight.numel() for layer in fit.model.layers.values())
    return float(draws) * fit.data.N * weights


def _only_weights(fit: Fit) -> bool:
    """Weights are looked at where there are no scales and no structure, and few enough of them."""
    model = fit.model
    small = [site for site in model.sites if site.rpartition(".")[2] not in ("weight", "bias")]
    if not model.sites or model.structure or small:
        return False
    return bool(model.weights_before <= 10_000)
