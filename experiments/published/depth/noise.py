"""The noise of a regression: as it is learnt on the training rows, and as validation rows have it.

    python -m experiments.published.depth.noise --data-root FOLDER

Learnt depth and the deepest fixed depth on UCI sets, each fitted both ways on the same splits, from
the same initial weights. The rule (:mod:`pyroccam.inference.training.validated_noise`) was chosen
on boston and energy; wine and kin8nm were looked at afterwards. A finished split is kept.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.data import Dataset
from pyroccam.inference.fits.fitting import Fit, fit
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.training import replicate
from torch import Tensor

from .. import options
from ..runner import ResultFile, Row, untrained

__all__ = ["main"]

SETS = ("boston", "energy", "wine", "kin8nm")
METHODS = ("ldn", "ddn")
WAYS = ("training rows", "validation rows")


def main(
    data_root: options.DataRoot = None,
    out: options.Out = options.RESULTS / "noise",
    sets: Annotated[str, options.BY_COMMAS] = ",".join(SETS),
    splits: Annotated[int, typer.Option(min=1, max=20)] = 5,
    settings: options.Sets = None,
) -> None:
    """Fit both methods both ways, and write one JSON file for each set."""
    torch.set_num_threads(1)
    chosen = parse_settings(settings or [])

    def resolved(name: str, split: int) -> tuple[dict[str, RunConfig], Dataset]:
        configs = {}
        for method in METHODS:
            configs[method], data = RunConfig.resolve(
                method, f"uci/{name}", data_root=data_root, seed=split,
                sets={**chosen, "data.split": split},
            )  # fmt: skip
        return configs, data

    for name in sets.split(","):
        first, _ = resolved(name, 0)
        described = {method: _described(config) for method, config in first.items()}
        file = ResultFile(out / f"{name}.json", config=described)
        for split in file.missing(range(splits), by="split"):
            configs, data = resolved(name, split)
            test = {
                f"{method}, {way}": scores(_fitted(config, data, way))
                for method, config in configs.items()
                for way in WAYS
            }
            file.add({"split": split, "test": test}, _spread)
            print(name, split, json.dumps(test), flush=True)


def _spread(runs: list[Row]) -> Row:
    return {way: mean_spread([one["test"][way] for one in runs]) for way in runs[0]["test"]}


def _described(config: RunConfig) -> dict[str, Any]:
    plain = config.without_seed()
    plain["data"].pop("split")
    return plain


def _fitted(config: RunConfig, data: Dataset, way: str) -> Fit:
    learnt = patch.object(replicate, "has_validated_noise", lambda *pair: False)
    with learnt if way == "training rows" else nullcontext():
        return fit(*untrained(config, data), data, progress=False, **config.settings)


def scores(result: Fit) -> dict[str, float]:
    """NLL and RMSE of the test rows in units of the target, and the :func:`coverage` of their
    targets."""
    data, likelihood = result.data, result.model.likelihood
    outputs, weights = result.components(data.x_test)
    return {
        **result.evaluate(),
        "coverage": coverage(outputs, weights, likelihood.scale.detach(), data.y_test),
    }


def coverage(
    outputs: Tensor, weights: Tensor, scale: Tensor, y: Tensor, share: float = 0.95
) -> float:
    r"""Share of targets within the central part of their predictions, which are mixtures of
    normals: those with :math:`|F(y) - 1/2| \le share / 2`, :math:`F = \sum_s w_s Φ((y - m_s) / σ)`.

    Arguments:
        outputs: means ``(S, N, T)``.
        weights: ``(S,)``.
        scale: σ ``(T,)``.
        y: ``(N, T)``.
        share: that a central part holds where predictions are right.
    """
    z = (y.double() - outputs.double()) / scale.double()
    below = torch.einsum("s,snt->nt", weights.double(), torch.special.ndtr(z))
    return float(((below - 0.5).abs() <= share / 2).double().mean())


if __name__ == "__main__":
    typer.run(main)
