"""Programs that a person runs: command line, table of methods, published results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Modules that README and docs have shown in this folder, and where in ``reproduce`` they are.
MOVED = {
    "spirals": "depth.spirals", "scans": "depth.scans", "head": "depth.head",
    "images": "depth.images", "uci": "depth.uci", "noise": "depth.noise",
    "compression": "compression", "small_resnet": "small_resnet",
    "gradient_variance": "gradient_variance", "variance": "variance.networks",
    "variance_toys": "variance.toys", "mean_propagation": "variance.mean_propagation",
    "phase_transition": "variance.phase_transition", "robustness": "variance.robustness",
    "policy_gradient": "variance.policy_gradient", "structures": "structure.against_random",
    "regimes": "structure.regimes", "hyperparameters": "structure.hyperparameters",
    "tables": "tables",
}  # fmt: skip


def moved(name: str) -> str:
    """The present place of a module, or of a ``module:function``."""
    module, colon, function = name.partition(":")
    parent, _, last = module.rpartition(".")
    if parent == __name__ and last in MOVED:
        module = f"{__name__}.reproduce.{MOVED[last]}"
    return module + colon + function


_STANDIN = """
import importlib, runpy, sys, warnings
program = __name__ == "__main__"
warnings.warn("{old} is now {new}.", DeprecationWarning, stacklevel=1 if program else 2)
if program:
    runpy.run_module("{new}", run_name="__main__", alter_sys=True)
else:
    sys.modules[__name__] = importlib.import_module("{new}")
"""


class _Moved(MetaPathFinder, InspectLoader):
    """Old names go on working: under them the module is run or handed on from its new place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if moved(fullname) == fullname else ModuleSpec(fullname, self)

    def get_source(self, fullname: str) -> str:
        return _STANDIN.format(old=fullname, new=moved(fullname))


sys.meta_path.append(_Moved())
