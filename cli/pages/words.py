"""Findings of a run, in sentences for a person who did not run it."""

from __future__ import annotations

from ..runs import METRICS, Network, cell, learnt, networks
from .files import RunFiles
from .numbers import listed, training_seconds


def summary(run: RunFiles) -> list[str]:
    """Method and data; what was learnt; how well it predicts."""
    begin = "In the first run: " if len(run.seeds) > 1 else ""
    learnt_ = [f"{begin}{' '.join(one['sentences'])}" for one in learnt(run.first)]
    return [_what(run), *learnt_, _scores(run)]


def doubts(run: RunFiles) -> list[str]:
    """What speaks against the run, before what it says."""
    several = len(run.seeds) > 1
    return [
        f"Seed {one['seed']}: {text}" if several else text
        for one in run.seeds
        for text in one.get("warnings", [])
    ]


def data_of(run: RunFiles) -> str:
    """The name of the data, of a file its own."""
    return str(run.first["data"])


def _what(run: RunFiles) -> str:
    rows, seeds = run.first["rows"], [one["seed"] for one in run.seeds]
    uses = (("train", "rows for training"), ("val", "for validation"), ("test", "for testing"))
    counted = listed([f"{rows[name]:,} {word}" for name, word in uses if rows.get(name)])
    which = (
        f"with the seed {seeds[0]}"
        if len(seeds) == 1
        else f"{len(seeds)} times, with the seeds {listed(seeds)}"
    )
    seconds = sum(map(training_seconds, run.seeds))
    device = run.first.get("device", "an unknown device")
    return (
        f"{run.config.method} ({run.title}) was run on {data_of(run)}, a {run.task} ({counted}), "
        f"over the network {run.config.network}, {which}. Training took "
        f"{_time(seconds)} on {'the CPU' if device == 'cpu' else device}{_compiling(run)}."
    )


def _compiling(run: RunFiles) -> str:
    engine = run.first.get("engine", {})
    compiled = engine.get("kind") == "compiled"
    return f", {engine['compile_seconds']:.0f} s of it for compiling" if compiled else ""


def _scores(run: RunFiles) -> str:
    whole, *others = networks(run.seeds)
    small = next((one for one in others if one.kind == "small"), None)
    names = [name for name in ("accuracy", "rmse", "nll") if name in whole.test[0]][:2]

    def said(network: Network) -> str:
        return " and ".join(
            f"{METRICS[name]} {cell([test[name] for test in network.test]).text}" for name in names
        )

    spread = " (mean ± standard deviation over the seeds)" if len(run.seeds) > 1 else ""
    which = "" if whole.name == "network" else f", {whole.name},"
    out = f"On the test rows the whole network{which} reaches {said(whole)}"
    if small is not None:
        out += f", the one that is handed back {said(small)}"
    out += f"{spread}."
    if run.together is not None:
        shown = " and ".join(f"{METRICS[n]} {run.together[n]:.4f}" for n in names)
        out += f" All {len(run.seeds)} together, their predictions averaged, reach {shown}."
    return out


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
