"""The results, printed as Markdown from the committed result files.

python -m experiments.published.tables
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from .runner import RESULTS, Spec

__all__ = ["MODULES", "NAMES", "find", "main", "specs"]

MODULES = (
    "before_after", "depth.spirals", "depth.by_depth", "depth.scans", "depth.head", "depth.images",
    "depth.inference_time", "depth.uci", "joint", "calibration",
    "compression", "quantisation", "path_of_lambda", "coded_draws", "gradient_variance",
    "variance.networks", "variance.phase_transition", "variance.mean_propagation",
    "variance.robustness", "variance.toys", "variance.policy_gradient",
    "structure.simplex", "structure.regimes",
    "structure.hyperparameters", "structure.against_random", "structure.selected",
    "evidence.estimators",
    "evidence.labels", "evidence.paths", "certificates",
)  # fmt: skip
"""Of the experiments, in the order of their tables."""

NAMES = {module.rpartition(".")[2]: module for module in MODULES}
"""By the names that ``python -m experiments`` takes."""


def find(module: str) -> Spec:
    """The experiment in a module of :data:`MODULES`."""
    spec: Spec = importlib.import_module(f"{__package__}.{module}").SPEC
    return spec


def specs() -> dict[str, Spec]:
    """All experiments, by the name of the folder of their results."""
    return {spec.folder: spec for spec in map(find, MODULES)}


def main(results: Path = RESULTS) -> None:
    """Print the tables of all experiments that have results."""
    for spec in specs().values():
        lines = list(spec.table(results / spec.folder))
        if lines:
            print(f"### {spec.title}\n", *lines, "", sep="\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
