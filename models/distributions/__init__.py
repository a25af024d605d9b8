"""Distributions that torch and Pyro do not have."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .blurred import BlurredLogistics, RoundedPoint
    from .gamma_quantile import UNIFORMS, gamma_of
    from .log_uniform import KL, MEAN_LOG, ImproperLogUniform
    from .mixture import Components, NormalMixture
    from .multi_spike import SPIKE_KLS, Levels, MultiSpikeLogUniform, SpikeKL, to_levels
    from .relaxed import (
        ExpDirichlet,
        ExpRelaxedCategorical,
        LogitRelaxedBernoulli,
        RelaxedGate,
        straight_through,
    )
    from .spike_tables import SpikeTable, spike_table
    from .symmetric import CentredNormal, CentredUniform, Rademacher
    from .temperature import Annealed, LearntTemperature, Temperature, lend
    from .wrapped import Alike, Improper, Weighted, WithHyperprior, base

__getattr__, __dir__ = lazy_names(__name__)
