"""The only module that knows ArviZ: 0.23 (the newest on Python 3.11) and 1.x (from 3.12 on).

ArviZ and xarray are imported when something of them is asked for: they take as long as torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..storage import replacing

if TYPE_CHECKING:
    import xarray as xr

Floats = NDArray[np.float64]
EQUAL = 1e-6  # range of log ratios, in nats, of draws that are equal


@cache
def _arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0.23 announces 1.x at every import
        import arviz
    return arviz


def _xarray() -> Any:
    import xarray

    return xarray


def _is_one() -> bool:
    """True for ArviZ 1.x. By its version: 1.x has an ``InferenceData`` too."""
    return int(_arviz().__version__.split(".")[0]) >= 1


def _apart(values: Floats) -> Floats:
    """Values ``(*, S)`` a millionth of a nat apart at most from what they were: a tail of equal
    ones has no shape to fit, which 1.x refuses."""
    return values + 1e-6 * np.linspace(0.0, 1.0, values.shape[-1])


def psis(log_ratios: ArrayLike) -> tuple[Floats, Floats]:
    r"""Pareto smoothed importance sampling.

    Arguments:
        log_ratios: log p - log q of S draws, up to a constant, ``(*, S)``.

    Returns:
        log weights ``(*, S)``, whose exponentials sum to one over the draws, and k̂ ``(*,)``; equal
        ratios have a k̂ of zero.

    References:
        Vehtari, Simpson, Gelman, Yao, Gabry 2024, JMLR 25(72).
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    equal = np.ptp(values, axis=-1) < EQUAL
    values = _apart(values)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if _is_one():
            stats: Any = import_module("arviz_stats.base").array_stats  # there is none with 0.23
            weights, khat = stats.psislw(-values)  # it takes minus the log weights
        else:
            weights, khat = _arviz().psislw(values)
    # Equal ratios have no tail, to which ArviZ would fit one with a shape of infinity.
    khat = np.where(equal, 0.0, khat)
    weights = np.where(equal[..., None], -np.log(values.shape[-1]), weights)
    return np.asarray(weights, dtype=np.float64), np.asarray(khat, dtype=np.float64)


def rhat(values: ArrayLike) -> Floats:
    """Rank-normalised split R-hat, the larger of that of the values and of their distances from
    the median.

    Arguments:
        values: ``(chains, draws, *)``, at least two chains and four draws, finite.

    Returns:
        ``(*)``; not a number where all values are equal.

    References:
        Vehtari, Gelman, Simpson, Carpenter, Bürkner 2021, Bayesian Analysis 16.
    """
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        if _is_one():
            one: Any = import_module("arviz_stats.base").array_stats
            return np.asarray(one.rhat(array, chain_axis=0, draw_axis=1), dtype=np.float64)
        data = _arviz().convert_to_dataset({"x": array})
        return np.asarray(_arviz().rhat(data)["x"].values, dtype=np.float64)


def container(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """The container of this ArviZ: an ``InferenceData``, or an ``xarray.DataTree``.

    Arguments:
        groups: data sets by the name of the group; others than ArviZ's own may be among them.
        attrs: of the whole, numbers and strings.
    """
    if _is_one():
        tree = _xarray().DataTree.from_dict({f"/{name}": one for name, one in groups.items()})
        tree.attrs.update(attrs)
        return tree
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not defined in the InferenceData scheme")
        return _arviz().InferenceData(attrs=dict(attrs), **groups)


def write(data: Any, path: str | Path) -> Path:
    """Write what :func:`container` made to a NetCDF file, whole or not at all."""
    path = Path(path)
    with replacing(path) as beside:
        data.to_netcdf(beside if _is_one() else str(beside), engine="h5netcdf")
    return path


def stacking(pointwise: Mapping[str, ArrayLike]) -> dict[str, float]:
    """Weights of the mixture of predictions whose log density over the rows is largest.

    Arguments:
        pointwise: log densities ``(N,)`` of the same rows, by the name of the model.

    Returns:
        by name, summing to one.

    References:
        Yao, Vehtari, Simpson, Gelman 2018, Bayesian Analysis 13(3).
    """
    if len(pointwise) == 1:
        return dict.fromkeys(pointwise, 1.0)
    made = {name: _elpd_data(np.asarray(v, dtype=np.float64)) for name, v in pointwise.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas 4 in ArviZ 0.23
        more = {"round_to": "none"} if _is_one() else {}
        table = _arviz().compare(made, method="stacking", **more)
    return {str(name): float(weight) for name, weight in table["weight"].items()}


def _elpd_data(pointwise: Floats) -> Any:
    """Input of ArviZ's ``compare``."""
    n = len(pointwise)
    elpd, se = float(pointwise.sum()), float(np.sqrt(n) * pointwise.std(ddof=1))
    array = _xarray().DataArray
    values, khat = array(pointwise, dims="row"), array(np.zeros(n), dims="row")
    if _is_one():
        kind = import_module("arviz_stats.utils").ELPDDataLOO
        return kind(
            elpd=elpd, se=se, p=0.0, n_samples=1, n_data_points=n, scale="log", warning=False,
            good_k=0.7, elpd_i=values, pareto_k=khat,
        )  # fmt: skip
    kind = import_module("arviz.stats.stats_utils").ELPDData
    index = ["elpd_loo", "se", "p_loo", "n_samples", "n_data_points", "warning", "loo_i",
             "pareto_k", "scale", "good_k"]  # fmt: skip
    return kind(data=[elpd, se, 0.0, 1, n, False, values, khat, "log", 0.7], index=index)


def power_scaling(
    values: Mapping[str, ArrayLike], component: ArrayLike, draws_of: str = "prior"
) -> dict[str, Floats]:
    """Sensitivity of draws to the power to which their prior, or their likelihood, is raised.

    The change of the distribution (cumulative Jensen-Shannon distance) for each doubling of the
    power, by reweighting the draws at powers of 0.99 and 1.01.

    Arguments:
        values: draws ``(S, *)`` by name.
        component: the log density that is scaled, ``(S,)``.
        draws_of: ``prior`` or ``likelihood``: where ArviZ looks for it.

    Returns:
        ``(*,)`` by name.

    References:
        Kallioinen, Paananen, Bürkner, Vehtari 2024, Detecting and diagnosing prior and likelihood
        sensitivity with power-scaling, Statistics and Computing 34.
    """
    posterior = {k: (("chain", "draw", *(f"{k}_{i}" for i in range(np.ndim(v) - 1))),
                     np.asarray(v, dtype=np.float64)[None]) for k, v in values.items()}  # fmt: skip
    group = {"total": (("chain", "draw"), _apart(np.asarray(component, dtype=np.float64))[None])}
    table = _xarray().Dataset
    data = container({"posterior": table(posterior), f"log_{draws_of}": table(group)}, {})
    with np.errstate(invalid="ignore"):  # 0 / 0 of a value that is the same in every draw
        if _is_one():
            found = import_module("arviz_stats").psense(data, group=draws_of, alphas=(0.99, 1.01))
        else:
            found = _arviz().psens(data, component=draws_of, delta=0.01)
    moved = {name: np.ptp(np.asarray(v), axis=0) > 0 for name, v in values.items()}
    return {name: np.where(moved[name], np.asarray(found[name]), 0.0) for name in values}
