"""One whole run in a process of its own: the spirals of the README, timed from the inside.

    python -m pyroccam.benchmarks.one_run '{"seeds": [0], "compile": true}'

The last line it prints is what it found, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from .. import data, guides, inference, models

__all__ = ["one_run"]


def one_run(
    seeds: list[int],
    *,
    compile: bool | None,
    together: bool = False,
    threads: int = 1,
    device: str = "cpu",
    network: dict[str, int] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Fit the spirals for every seed.

    Arguments:
        seeds: one calls ``inference.fit``, several ``inference.fit_repeats``.
        compile: the setting of that name.
        together: fit the seeds as replicates.
        threads, device: where.
        network: arguments of the network, if not the README's.
        settings: of the fit.

    Returns:
        ``seconds`` from data to fit, and what the fits came to.

    Raises:
        RuntimeError: if the steps did not run as they were to.
    """
    torch.set_num_threads(threads)
    arguments: dict[str, Any] = {"width": 20, "max_depth": 20} | (network or {})
    start = time.perf_counter()

    def build(seed: int) -> tuple[models.LearntDepth, guides.CategoricalDepth, data.Dataset]:
        rows = data.load("spirals", seed=seed)
        prior = models.priors.Geometric(0.85)
        model = models.LearntDepth.mlp(rows, prior=prior, **arguments)
        return model, guides.CategoricalDepth(model), rows

    common: dict[str, Any] = {"compile": compile, "device": device, "progress": False, **settings}
    if len(seeds) == 1:
        torch.manual_seed(seeds[0])
        fits = [inference.fit(*build(seeds[0]), seed=seeds[0], **common)]
    else:
        fits = inference.fit_repeats(build, seeds, together=together, **common).fits
    if fits[0].weights.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    for fit in fits:
        engine = fit.engine or {}
        wanted = ("compiled" if compile else "eager", len(seeds) if together else 1)
        if compile and (engine.get("kind"), engine.get("replicates")) != wanted:
            raise RuntimeError(f"was to run {wanted}, ran as {engine}")
    return {
        "seconds": seconds,
        "depths": [None if f.structure is None else f.structure.depth_chosen for f in fits],
        "accuracy": [f.evaluate("test")["accuracy"] for f in fits],
        "engine": fits[0].engine,
    }


if __name__ == "__main__":
    print(json.dumps(one_run(**json.loads(sys.argv[1]))))
