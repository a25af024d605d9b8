"""Networks, priors, likelihoods and the Pyro models made of them."""

from typing import TYPE_CHECKING

from ..data import lazy_names

if TYPE_CHECKING:
    from . import networks, priors
    from .base import Model, anneal, likelihood_of, priors_of
    from .bayesian import BayesianNetwork
    from .bayesian_stack import BayesianStack
    from .checks import as_number, kinds, suggestion, unknown_name
    from .contexts import (
        Weighing,
        dropping,
        evaluating,
        keeping_modes,
        local_parameters,
        plain_kernels,
        reseeded,
        seeded,
    )
    from .distributions import Annealed
    from .feeding import (
        Fields,
        arguments,
        feed_like,
        fields_of,
        give,
        given,
        has_other_hooks,
        mark,
        outputs_taken,
        unfed,
    )
    from .hyperparameters import Number, Numbering
    from .inputs import changed, give_copies
    from .learnt_depth import LearntDepth, log_likelihood_by_depth
    from .likelihoods import (
        Classification,
        ClosedForm,
        Heteroscedastic,
        Likelihood,
        MultiLabel,
        NegativeBinomial,
        Ordinal,
        Poisson,
        Regression,
        StudentT,
    )
    from .local_reparameterisation import LocalReparameterization, Scales
    from .networks import DepthStack, StructureGraph
    from .parameters import LocalModule, asking, refuse_without_values
    from .plain_network import PlainNetwork
    from .priors import Floored, NonCentred
    from .structured import StructuredNetwork
    from .threads import fitting, give_way

__all__ = [
    "Annealed",
    "BayesianNetwork",
    "BayesianStack",
    "Classification",
    "ClosedForm",
    "DepthStack",
    "Floored",
    "Heteroscedastic",
    "LearntDepth",
    "Likelihood",
    "LocalReparameterization",
    "MultiLabel",
    "NegativeBinomial",
    "NonCentred",
    "Ordinal",
    "PlainNetwork",
    "Poisson",
    "Regression",
    "StructureGraph",
    "StructuredNetwork",
    "StudentT",
    "networks",
    "priors",
]

__getattr__, __dir__ = lazy_names(__name__)
