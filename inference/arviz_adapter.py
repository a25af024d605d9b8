"""The only module that knows ArviZ: 0.23 (the newest on Python 3.11) and 1.x (from 3.12 on).

ArviZ is imported when something of it is asked for: it takes as long as torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

__all__ = ["container", "psis", "read", "write"]

Floats = NDArray[np.float64]


@cache
def _arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0.23 announces 1.x at every import
        import arviz
    return arviz


def _is_one() -> bool:
    """Whether this is ArviZ 1.x. By its version: 1.x has an ``InferenceData`` too."""
    return int(_arviz().__version__.split(".")[0]) >= 1


def psis(log_ratios: ArrayLike) -> tuple[Floats, Floats]:
    r"""Pareto smoothed importance sampling.

    Arguments:
        log_ratios: log p - log q of S draws, up to a constant, ``(*, S)``.

    Returns:
        log weights ``(*, S)``, whose exponentials sum to one over the draws, and k̂ ``(*,)``.

    References:
        Vehtari, Simpson, Gelman, Yao, Gabry 2024, JMLR 25(72).
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    if _is_one():
        from arviz_stats.base import array_stats

        weights, khat = array_stats.psislw(-values)  # it takes minus the log weights
    else:
        weights, khat = _arviz().psislw(values)
    return np.asarray(weights, dtype=np.float64), np.asarray(khat, dtype=np.float64)


def container(groups: Mapping[str, xr.Dataset], attrs: Mapping[str, Any]) -> Any:
    """What this ArviZ works with: an ``InferenceData``, or an ``xarray.DataTree``.

    Arguments:
        groups: data sets by the name of the group; others than ArviZ's own may be among them.
        attrs: of the whole, numbers and strings.
    """
    if _is_one():
        tree = xr.DataTree.from_dict({f"/{name}": one for name, one in groups.items()})
        tree.attrs.update(attrs)
        return tree
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not defined in the InferenceData scheme")
        return _arviz().InferenceData(attrs=dict(attrs), **groups)


def write(data: Any, path: str | Path) -> Path:
    """Write what :func:`container` made to a NetCDF file, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    if _is_one():
        data.to_netcdf(partial, engine="h5netcdf")
    else:
        data.to_netcdf(str(partial), engine="h5netcdf")
    partial.replace(path)
    return path


def read(path: str | Path) -> Any:
    """What :func:`write` wrote, in memory: the file may be replaced afterwards.

    Raises:
        FileNotFoundError: if there is none.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such NetCDF file.")
    if _is_one():
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            return tree.load()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not defined in the InferenceData scheme")
        return _arviz().from_netcdf(str(path), engine="h5netcdf").load()
