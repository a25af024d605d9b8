"""Findings of a run, in sentences for a person who did not run it."""

from __future__ import annotations

from typing import Any

from ...inference.posterior.metrics import mean_spread
from ..runs.summary import METRICS, said_of_labels, said_of_message
from .files import RunFiles
from .numbers import Network, listed, networks, one_of_each, training_seconds

__all__ = ["data_of", "summary"]


def summary(run: RunFiles) -> list[str]:
    """Method and data; what was learnt; how much smaller; how well it predicts."""
    small = next((one for one in networks(run.seeds) if one.kind == "small"), None)
    parts = [
        _what(run), _doubts(run), _learnt(run), _smaller(run, small), _message(run),
        _scores(run, small),
    ]  # fmt: skip
    return [part for part in parts if part]


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
        f"{_time(seconds)} on {'the CPU' if device == 'cpu' else device}."
    )


def _doubts(run: RunFiles) -> str:
    """Doubts that speak against the run, before what it says."""
    each = [
        (one["seed"], text)
        for one in run.seeds
        for text in (*one.get("warnings", []), *(one.get("structure") or {}).get("warnings", []))
    ]
    several = len(run.seeds) > 1
    return " ".join(f"Seed {seed}: {text}" if several else text for seed, text in each)


def _learnt(run: RunFiles) -> str:
    begin = "In the first run: " if len(run.seeds) > 1 else ""
    found = run.first.get("learnt", [])
    return f"{begin}{' '.join(found)}" if found else ""


def _smaller(run: RunFiles, small: Network | None) -> str:
    if small is None:
        return ""
    part = next(p for p in ("compressed", "discretised", "pruned") if p in run.first)
    found: list[dict[str, Any]] = [one[part] for one in run.seeds]
    after = [one["parameters"] for one in found]
    before = [one["parameters_before"] for one in found]
    faster = [one["seconds_per_batch_before"] / one["seconds_per_batch"] for one in found]
    alike = abs(sum(faster) / len(faster) - 1) < 0.05
    fast = "about as fast" if alike else f"{_mean(faster, '.1f')} times as fast"
    out = (
        f"The smaller network has {one_of_each(after)} of {one_of_each(before)} parameters"
        f" and is {fast} as the whole one"
    )
    structure = [one.get("structure") or {} for one in run.seeds]
    if all("file_bytes" in one for one in structure):
        sizes = one_of_each([one["file_bytes"] for one in structure])
        rates = [float(one["file_rate"]) for one in structure]
        out += (
            f"; its file has {sizes} bytes, {_mean(rates, '.1f')} times fewer than all "
            "parameters had as 32-bit numbers"
        )
    if all("draw" in one for one in run.seeds):
        sizes = one_of_each([one["draw"]["file_bytes"] for one in run.seeds])
        out += f"; a draw of the posterior of its weights was sent in {sizes} bytes"
    return f"{out}."


def _message(run: RunFiles) -> str:
    found = {name: [one[name] for one in run.seeds if name in one] for name in ("message", "sent")}
    said = {"message": said_of_message, "sent": said_of_labels}
    return " ".join(said[name](each) for name, each in found.items() if each)


def _scores(run: RunFiles, small: Network | None) -> str:
    whole = networks(run.seeds)[0]
    names = [name for name in ("accuracy", "rmse", "nll") if name in whole.test[0]][:2]

    def said(network: Network) -> str:
        return " and ".join(
            f"{METRICS[name]} {_mean([test[name] for test in network.test], '.4f')}"
            for name in names
        )

    spread = " (mean ± standard deviation over the seeds)" if len(run.seeds) > 1 else ""
    out = f"On the test rows the whole network ({whole.name}) reaches {said(whole)}"
    if small is not None:
        out += f", the smaller one {said(small)}"
    out += f"{spread}."
    if run.together is not None:
        shown = " and ".join(f"{METRICS[n]} {run.together[n]:.4f}" for n in names)
        out += f" All {len(run.seeds)} together, their predictions averaged, reach {shown}."
    return out


def _mean(values: list[float], form: str) -> str:
    spread = mean_spread([{"v": v} for v in values])["v"]
    mean, sd = spread["mean"], spread["sd"]
    return f"{mean:{form}}" if sd is None else f"{mean:{form}} ± {sd:{form}}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
