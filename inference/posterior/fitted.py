"""A fit, as those know it who ask what it has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import Tensor

from ...data import PyroccamError

if TYPE_CHECKING:
    from ...data import Dataset
    from .depth import DepthStructure
    from .posteriors import Posterior


class Fit(Protocol):
    """A trained pair, see :class:`pyroccam.inference.Fit`."""

    model: Any
    guide: Any
    data: Dataset
    settings: Any
    structure: DepthStructure | None
    weights: Tensor

    @property
    def posterior(self) -> Posterior: ...

    @property
    def outputs(self) -> Any: ...

    @property
    def components(self) -> Any: ...


class Repeats(Protocol):
    """Several fits, see :class:`pyroccam.inference.Repeats`."""

    @property
    def fits(self) -> Sequence[Any]: ...


Fits = Fit | Repeats | Sequence[Any]


def members(fits: Fits) -> list[Any]:
    """The fits that a prediction averages.

    Raises:
        PyroccamError: if there is none.
    """
    found = list(getattr(fits, "fits", cast(Any, fits)))
    if not found:
        raise PyroccamError("fits: got none, expected at least one fit.")
    return found
