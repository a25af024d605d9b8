"""The scores of a finished run, on its own rows or on new ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from ... import data as datasets
from ...data import Dataset, PyroccamError
from ...inference.training import Fit
from .. import OpenOptions, PlainConsole
from ..methods import FILE, evaluate, network_of_file
from .config import RunConfig
from .execution import known_of
from .opening import reading
from .unlabelled import is_unlabelled, with_own_targets


def read_new_rows(
    console: PlainConsole, data: str, folder: Path, opening: OpenOptions, own: Dataset
) -> dict[str, Dataset]:
    """New rows as data sets to score, by what is added to the names of their scores: all of them,
    and, where some were seen before, those that were not.
    """
    where: dict[str, Any] = {} if opening.data_root is None else {"data_root": opening.data_root}
    network = opening.network or RunConfig.read(folder).network
    new = datasets.new_rows(data, like=own, **where)
    if is_unlabelled(new, network):
        new = with_own_targets(new, network, ("test",))
    for sentence in datasets.far_off(new):
        console.say(("Beware: ", "yellow"), sentence)
    met = own.seen(new.x_test)
    if not met.any():
        return {"": new}
    console.say(
        ("Seen before: ", "yellow"),
        f"{int(met.sum()):,} of {len(met):,} rows of {data} have the very inputs of rows on which "
        "the run was trained or validated (the same rows, or doubles in the data); lines with "
        "“unseen” are of the others.",
    )
    unseen = new.but(x_test=new.x_test[~met], y_test=new.y_test[~met])
    return {"": new, ", unseen": unseen}


def score(
    console: PlainConsole, folder: Path, result: Fit, sets: Mapping[str, Dataset], split: str
) -> dict[str, Any]:
    """Metrics of every network of a run, by its name."""
    config, path, small = RunConfig.read(folder), folder / FILE, None
    if path.exists():
        rule = (config.options.get(name) for name in ("threshold", "tolerance"))
        small = network_of_file(result, path, *rule)
    elif "compressed" in known_of(folder):
        console.say(("Beware: ", "yellow"), f"{FILE} of the run is gone, and not scored.")
    found: dict[str, Any] = {}
    own = result.data
    for added, result.data in sets.items():
        if not result.data.counts[split]:
            continue
        scores = config.chosen.scores(result, split, folder)
        if small is not None:
            # It may be the file of another run, and torch.fx prints where a network fails.
            with reading(path), redirect_stderr(None):
                scores["compressed"] = evaluate(result, small, split, own)
        found |= {f"{name}{added}": metrics for name, metrics in scores.items()}
    if not found:
        raise PyroccamError(f"--split {split}, and no such rows in {own!r}")
    return found
