"""Weight priors from words, as a command line has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checks import nearest
from .ard import ARD
from .base import WeightPrior
from .gaussian_mixture import GaussianMixture
from .group_horseshoe import GroupHorseshoe
from .group_normal_jeffreys import GroupNormalJeffreys
from .half_cauchy import GroupHalfCauchy
from .log_uniform import LogUniform
from .normal import Normal
from .spike_slab import SpikeSlab
from .student_t import StudentT

__all__ = ["parse_weights"]


def _normal(argument: str) -> WeightPrior:
    match argument:
        case "fan_in" | "fan-in":
            return Normal("fan_in")
        case "learn":
            return Normal(learn="layer")
        case "learn-each":
            return Normal(learn="weight")
    return Normal(float(argument))


def _mixture(argument: str) -> WeightPrior:
    components, colon, zero = argument.partition(":")
    if not colon:
        return GaussianMixture(int(components))
    return GaussianMixture(int(components), zero=float(zero))


def _of_number(make: Callable[[float], WeightPrior]) -> Callable[[str], WeightPrior]:
    return lambda argument: make(float(argument))


def _of_word(make: Callable[[Any], WeightPrior]) -> Callable[[str], WeightPrior]:
    return lambda argument: make(argument)


# Name: an example of what is written, the prior without an argument, and with one.
_WORDS: dict[str, tuple[str, Callable[[], WeightPrior], Callable[[str], WeightPrior]]] = {
    "normal": ("normal:0.1, normal:fan_in, normal:learn, normal:learn-each", Normal, _normal),
    "log-uniform": ("log-uniform, log-uniform:molchanov", LogUniform, _of_word(LogUniform)),
    "gnj": ("gnj, gnj:molchanov", GroupNormalJeffreys, _of_word(GroupNormalJeffreys)),
    "ghs": ("ghs:1e-5", GroupHorseshoe, _of_number(GroupHorseshoe)),
    "half-cauchy": ("half-cauchy:1e-5", GroupHalfCauchy, _of_number(GroupHalfCauchy)),
    "ard": ("ard, ard:group, ard:layer", ARD, _of_word(ARD)),
    "student-t": ("student-t:1", StudentT, _of_number(StudentT)),
    "spike-slab": ("spike-slab:0.1", SpikeSlab, _of_number(SpikeSlab)),
    "mixture": ("mixture:16, mixture:16:0.99", GaussianMixture, _mixture),
}


def parse_weights(text: str) -> WeightPrior:
    """A weight prior from words: a name, or a name and an argument, such as ``ghs:1e-5``.

    Without an argument it is the prior's default. Case and ``_`` for ``-`` do not matter.

    Raises:
        ValueError: naming what can be written, and the name that is nearest.

    Example:
        >>> parse_weights("ghs:1e-4")
        GroupHorseshoe(tau0=0.0001)
    """
    name, colon, argument = text.strip().lower().partition(":")
    name = name.strip().replace("_", "-")
    if name not in _WORDS:
        known = ", ".join(example for example, _, _ in _WORDS.values())
        raise ValueError(f"Unknown weight prior {text!r}.{nearest(name, _WORDS)} Write {known}.")
    example, default, make = _WORDS[name]
    if not colon:
        return default()
    try:
        return make(argument.strip())
    except ValueError as error:
        raise ValueError(
            f"Cannot read the weight prior {text!r}: {error} Write {example}."
        ) from error
