"""Likelihoods, one file for each kind of target: from outputs of a network to a distribution."""

# Without an ``__all__``: what a person needs of them, ``pyroccam.models`` hands on.
from .amounts import Heteroscedastic as Heteroscedastic
from .amounts import Regression as Regression
from .amounts import StudentT as StudentT
from .base import Likelihood as Likelihood
from .base import TargetSpec as TargetSpec
from .choosing import checked as checked
from .choosing import for_data as for_data
from .choosing import has_weights as has_weights
from .choosing import parse as parse
from .choosing import precision as precision
from .choosing import words as words
from .classes import Classification as Classification
from .classes import MultiLabel as MultiLabel
from .classes import Ordinal as Ordinal
from .counts import NegativeBinomial as NegativeBinomial
from .counts import Poisson as Poisson
