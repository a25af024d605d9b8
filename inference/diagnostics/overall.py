"""All diagnostics that mean something for one fit, or for several runs of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...models.bayesian import BayesianNetwork
from ..fits.fitting import Fit, Repeats
from ..posterior.ensemble import is_point, members
from ..posterior.family import require
from .between_runs import agreement
from .finding import Finding
from .leave_one_out import elpd, loo
from .pareto import khat
from .sensitivity import prior_sensitivity
from .trend import convergence

__all__ = ["diagnose"]

DRAWS = 1000
MOST_WORK = 2e12  # multiplications of one diagnostic: a minute or two of a core
LOO_ROWS = 2000


def diagnose(
    fits: Fit | Repeats | Sequence[Fit],
    *,
    draws: int = DRAWS,
    thorough: bool = False,
    seed: int | None = None,
) -> list[Finding]:
    """Findings for and against a posterior, one of each diagnostic.

    Has the bound stopped improving (:func:`convergence`); is q near the posterior, block by block
    (:func:`khat`); does it predict rows that are left out (:func:`loo`), or were held out
    (:func:`elpd`); does the prior speak louder than the data (:func:`prior_sensitivity`); and, of
    several runs, do they agree (:func:`agreement`). What would mean nothing is refused, with the
    reason. Calibration over data sets (:func:`vsbc`) refits many times, and is not part of it.

    Arguments:
        fits: one fit, or several runs on the same data: then all but the agreement is of the first.
        draws: from q, for each diagnostic.
        thorough: also what passes so many draws through so many rows that it takes long.
        seed: of the draws, that of the fit if left out.
    """
    runs = members(fits)
    fit = runs[0]
    found = [_said("ELBO", lambda: convergence(fit).finding())]
    found += _of_posterior(fit, draws, thorough, seed)
    found.append(_said("held-out rows", lambda: elpd(fit, seed=seed).finding()))
    if len(runs) > 1:
        found.append(_said("agreement", lambda: agreement(Repeats(runs, 0.0)).finding()))
    return found


def _of_posterior(fit: Fit, draws: int, thorough: bool, seed: int | None) -> list[Finding]:
    names = ("k-hat", "LOO", "prior sensitivity")
    model = fit.model
    if model.random_weights and is_point(fit):
        why = (
            "The posterior is a point: it claims no uncertainty, so there is nothing to check but "
            "its predictions."
        )
        return [Finding(name, "refused", why) for name in names]
    if not model.latents():
        why = f"Nothing is random in a {type(model).__name__}."
        return [Finding(name, "refused", why) for name in names]
    given = fit.settings.seed if seed is None else seed
    heavy = not thorough and _work(fit, draws) > MOST_WORK
    rows = min(LOO_ROWS, fit.data.N) if heavy else None
    said: dict[str, Callable[[], Finding]] = {
        "k-hat": lambda: khat(fit, draws=draws, seed=given).finding(),
        "LOO": lambda: loo(fit, draws, rows=rows, seed=seed).finding(),
        "prior sensitivity": lambda: prior_sensitivity(
            fit, draws, rows=rows, weights=_only_weights(fit), seed=seed
        ).finding(),
    }
    found = []
    for name in names:
        if name == "k-hat" and heavy:
            found.append(
                Finding(
                    name,
                    "refused",
                    f"{draws:,} draws of each block would pass all {fit.data.N:,} training rows, "
                    "which takes long on a network of this size: ask for it with thorough=True "
                    "(--thorough), or for single blocks by diagnostics.khat(fit, blocks=...).",
                )
            )
            continue
        found.append(_said(name, said[name]))
    return found


def _work(fit: Fit, draws: int) -> float:
    """Multiplications, about: a dense layer uses each weight once for a row, a convolution more."""
    weights = sum(p.numel() for p in fit.model.parameters())
    return float(draws) * fit.data.N * weights


def _only_weights(fit: Fit) -> bool:
    """Weights are looked at where there are no scales and no structure, and few enough of them."""
    model = fit.model
    small = [site for site in model.sites if site.rpartition(".")[2] not in ("weight", "bias")]
    if not model.sites or model.structure or small:
        return False
    return require(fit, BayesianNetwork, "diagnose")[0].weights_before <= 10_000


def _said(name: str, ask: Callable[[], Finding]) -> Finding:
    """A diagnostic that cannot be had says why."""
    try:
        return ask()
    except ValueError as error:
        return Finding(name, "refused", str(error))
