"""Sets and networks that nobody tuned for, by a method with no options and as everybody trains.

    python -m experiments.trials.strangers --again --data-root FOLDER

Each cell, a set with a network and a seed, has two files, one of its rivals and one of the method:
a run that was stopped goes on, and another method takes the rivals that are there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from pyroccam.data import DataError

from ...published.runner import Choice, File, Given, Made, Spec
from .cell import NETWORKS, Cell, ours, rivals
from .sets import SETS
from .table import draw, read_cells, text_of

__all__ = ["SPEC"]


def files(given: Given) -> Iterable[File]:
    """Two of each cell; all sets and networks with the first seed come first."""
    warnings.simplefilter("ignore")  # of networks and sets that are meant to be odd
    there = [name for name in given.sets if _there(name, given)]
    for seed in range(given.seeds):
        for name in there:
            for network in SETS[name].networks:
                if network in (given.networks or SETS[name].networks):
                    cell = Cell(name, network, seed, Path(given.files), given.data_root)
                    yield File(f"rivals/{cell.stem}", {}, partial(rivals, cell))
                    made = partial(ours, cell, given.method, given.set)
                    yield File(f"{given.method}/{cell.stem}", {}, made)


def _there(name: str, given: Given) -> bool:
    """Whether there is a set, which is written as a file; one that is not is passed over."""
    try:
        SETS[name].write(Path(given.files) / f"{name}.npz", given.data_root)
    except DataError as error:
        print(f"{name} is passed over: {error}", flush=True)
        return False
    return True


def drawn(given: Given) -> Mapping[str, Made]:
    """The table and the figure of a method."""
    found, failed = read_cells(given.out, given.method)
    made: dict[str, Made] = {f"{given.method}.md": lambda: text_of(found, failed)}
    return made if found.empty else {**made, given.method: partial(draw, found)}


SPEC = Spec(
    "experiments.trials.strangers", "Strangers", "strangers",
    {
        "data_root": str, "method": "gnj", "sets": Choice(SETS),
        "networks": Choice(NETWORKS, ()), "files": "strangers", "set": {},
    },
    files, lambda folder: [], drawn,
    small="--sets iris --networks mlp --seeds 1 --set steps=40",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
