"""Priors: one file for each kind of latent, which hands on what its ``__all__`` names."""

from types import ModuleType as _ModuleType

from .ard import *
from .base import *
from .depth import *
from .gaussian_mixture import *
from .group_horseshoe import *
from .group_normal_jeffreys import *
from .half_cauchy import *
from .integers import *
from .log_uniform import *
from .multi_spike import *
from .normal import *
from .parsing import *
from .shared_normal import *
from .spike_slab import *
from .structure import *
from .student_t import *
from .unsquared_norm import *

__all__ = [
    name
    for name, value in sorted(globals().items())
    if not name.startswith("_") and not isinstance(value, _ModuleType)
]
