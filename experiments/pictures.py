"""The figures of one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from ..inference import figures
from ..inference.fit import Fit
from ..inference.metrics import Reliability, reliability
from ..inference.predict import mixture_log_probs, nll_by_depth, outputs_by_depth
from ..inference.prune import prune
from ..models import BayesianNetwork

__all__ = ["draw"]


def draw(result: Fit, ddn: Fit | None, folder: Path) -> list[Path]:
    """q(d), functions by depth (inputs in the plane), reliability and the training curve."""
    folder.mkdir(parents=True, exist_ok=True)
    data = result.data
    written: list[Path] = []
    structure = result.structure
    if structure is not None:
        nll = {}
        for split in ("train", "test"):
            x, y = data.split(split)
            nll[split] = nll_by_depth(outputs_by_depth(result.model, x), result.model.likelihood, y)
        picture = figures.depth_posterior(
            structure.depth_probs,
            structure.exact_depth_probs,
            structure.depth_chosen,
            structure.depth_chosen_exact,
            nll,
        )
        written += figures.save(picture, folder / "depth")
    if structure is not None and data.classes == 2 and data.input_shape == (2,):
        written += figures.save(_functions(result), folder / "functions")
    if data.task == "classification":
        written += figures.save(
            figures.reliability_diagram(_calibration(result, ddn)), folder / "reliability"
        )
    if result.history:
        written += figures.save(figures.training_curve(result.history), folder / "training")
    return written


def _calibration(result: Fit, ddn: Fit | None) -> dict[str, Reliability]:
    x, y = result.data.split("test")
    random = isinstance(result.model, BayesianNetwork)
    whole = (
        "all depths" if result.structure is not None else "drawn networks" if random else "network"
    )
    contenders = {whole: result.predict(x)}
    if result.structure is not None:
        net = prune(result)
        contenders[f"pruned, depth {net.depth}"] = mixture_log_probs(
            outputs_by_depth(net, x), net.log_weights.exp()
        )
    if ddn is not None:
        contenders["fixed depth"] = ddn.predict(x)
    return {name: reliability(log_probs, y) for name, log_probs in contenders.items()}


def _functions(result: Fit, panels: int = 8, side: int = 120) -> Figure:
    """The probability of class 1 over the plane at the depths around the chosen one."""
    structure, data = result.structure, result.data
    assert structure is not None
    deepest = result.model.max_depth
    depths = list(range(min(structure.depth_chosen + 2, deepest) + 1))
    if len(depths) > panels - 1:
        depths = sorted({round(d) for d in np.linspace(0, depths[-1], panels - 1)})
    depths = sorted({*depths, structure.depth_chosen, deepest})
    low, high = data.x_test.amin(0) - 0.3, data.x_test.amax(0) + 0.3
    grid_x = torch.linspace(float(low[0]), float(high[0]), side)
    grid_y = torch.linspace(float(low[1]), float(high[1]), side)
    yy, xx = torch.meshgrid(grid_y, grid_x, indexing="ij")
    points = torch.stack([xx, yy], -1).reshape(-1, 2).to(data.x_test.device)
    probs = outputs_by_depth(result.model, points).softmax(-1)[..., 1]
    surfaces = probs.reshape(-1, side, side)[depths]
    return figures.spiral_functions(
        data.x_train, data.y_train, grid_x, grid_y, surfaces, depths,
        structure.depth_probs[depths], structure.depth_chosen,
    )  # fmt: skip
