"""The table of a learnt depth beside a fixed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...inference.storage.whole import write_whole
from ..reproduce.markdown import header, read_all, row

__all__ = ["FIXED", "LEARNT", "write_depths"]

FIXED, LEARNT = "ddn", "ldn"

Run = dict[str, Any]

_NOTE = (
    f"`{FIXED}` is the network at its deepest, `{LEARNT}` the same one with a depth that is learnt."
    " Errors are RMSE, or accuracy where they have a %; NLL is in nats and original units;"
    " coverage is of the central 95 % intervals. Of q(d) the total variation is shown from the"
    " running estimate, by which weights are trained, to the exact posterior."
)


def write_depths(out: Path) -> None:
    """Write ``depth.md`` of the files in ``depth/``, pair by pair; others are left out."""
    runs: dict[tuple[str, int, int], dict[str, Run]] = {}
    for one in read_all(out / "depth").values():
        runs.setdefault((one["set"], one["rows"], one["seed"]), {})[one["method"]] = one
    lines = header(
        "set", "rows", "seed", f"error: {FIXED}", LEARNT, f"NLL: {FIXED}", LEARNT,
        f"coverage, %: {FIXED}", LEARNT, "depth", "q(d)", "left, %", f"seconds: {FIXED}", LEARNT,
    )  # fmt: skip
    for key, pair in sorted(runs.items()):
        if pair.keys() == {FIXED, LEARNT}:
            lines.append(row(*key, *_cells(pair[FIXED], pair[LEARNT])))
    text = "\n".join([*lines, "", _NOTE]) + "\n"
    write_whole(out / "depth.md", lambda file: file.write(text), "w")


def _cells(fixed: Run, learnt: Run) -> list[object]:
    """A row of the table, but for what was trained on."""
    both = (fixed, learnt)
    structure, small = learnt["structure"], learnt["pruned"]
    deepest = len(structure["depth_probs"]) - 1
    return [
        *map(_error, both),
        *(f"{one['test']['nll']:.3f}" for one in both),
        *(f"{100 * one['coverage']:.0f}" if "coverage" in one else "" for one in both),
        f"{structure['depth_chosen']} of {deepest}",
        _arrival(learnt),
        f"{100 * small['parameters'] / small['parameters_before']:.0f}",
        *(f"{one['seconds']:.0f}" for one in both),
    ]


def _error(one: Run) -> str:
    test = one["test"]
    return f"{100 * test['accuracy']:.1f} %" if "accuracy" in test else f"{test['rmse']:.3f}"


def _arrival(learnt: Run) -> str:
    """How far q(d) is from the exact posterior, and whether that is near."""
    structure = learnt["structure"]
    running = structure["tv_running"]
    apart = structure["tv_to_exact"] if running is None else running
    return f"{apart:.2f}" if learnt["arrived"] else f"{apart:.2f}, not arrived"
