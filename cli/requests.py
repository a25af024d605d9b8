"""What a person asks of several commands alike, whose options are the fields."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ..data import Options, PyroccamError, nearest
from .signatures import Known

METHOD_NAMES = [
    "ldn", "ldn-gradient", "ldn-marginal", "ddn", "gnj", "ghs", "miracle", "sparse-vd",
    "certified", "vnq", "graves", "variance", "variational-dropout", "gaussian-dropout",
    "dropout", "sws", "deep-compression", "dns", "epr", "occam", "every-size", "structure",
    "transfer", "bayes",
]  # fmt: skip
"""Those of the table of methods, whose import takes seconds."""

OF_DEPTH = ("ldn", "ldn-gradient", "ldn-marginal", "ddn", "occam")
"""Those that learn or fix a depth."""

DATA_NAMES = [
    "spirals", "wiggle", "digits", "mnist", "fashion-mnist", "kmnist", "svhn", "cifar10",
    "cifar100", "uci/boston", "uci/energy", "uci/kin8nm", "uci/naval", "uci/protein", "uci/wine",
]  # fmt: skip
"""Data sets that have a name."""

_TABLE = f"{__package__}.methods.table"


@dataclass(frozen=True)
class RunRequest(Options):
    """What is trained, but for the seed.

    Attributes:
        method: A method; `pyroccam methods` lists them.
        data: A data set (`pyroccam data` lists them), or your own: an .npz or .csv file; a folder
            of .npy files or of images, or Parquet files, which are streamed; MODULE:FUNCTION or
            FILE.py:FUNCTION that makes it. If left out, digits; spirals for methods of depth.
        network: A ready network (`pyroccam methods` says which), or hf:FOLDER of a network of
            transformers, or MODULE:FUNCTION of your own, called with input_shape and outputs; by
            the data's shape if left out.
        data_root: Folder of the data files.
        budget: Length of the whole run, tests and figures included: 90s, 5min, 1h; or of all its
            optimiser steps: 6000steps. Of each seed, where there are several. Epochs follow, and
            are said.
        set_: Any setting, e.g. --set max_depth=10 --set prior=uniform --set data.target=NAME;
            `pyroccam methods METHOD` lists those of a method and of a fit.
    """

    method: Annotated[str, Known(METHOD_NAMES)]
    data: Annotated[str, Known(DATA_NAMES)] = ""
    network: str | None = None
    data_root: Annotated[str | None, "FOLDER"] = None
    budget: Annotated[str | None, "LENGTH"] = None
    set_: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in METHOD_NAMES and _TABLE not in sys.modules:  # which may have others
            near = nearest(self.method, METHOD_NAMES)
            raise PyroccamError(f"the method {self.method!r}", "one of `pyroccam methods`", near)
        if not self.data:
            suited = "spirals" if self.method in OF_DEPTH else "digits"
            object.__setattr__(self, "data", suited)


@dataclass(frozen=True)
class ExecutionOptions(Options):
    """Where a run is trained, and what is done beside that.

    Attributes:
        device: auto, cpu, cuda or cuda:<n>.
        compare: Also train a plain network, for comparison.
        figures: Draw all figures of the run, not only that of its structure.
    """

    device: str = "auto"
    compare: bool = True
    figures: bool = False


@dataclass(frozen=True)
class OpenOptions(Options):
    """How the folder of a finished run is opened.

    Attributes:
        device: auto, cpu, cuda or cuda:<n>.
        data_root: Folder where data files are now, those of the run if they were moved.
        network: MODULE:FUNCTION that makes the network of the run, if it is of your own and the run
            holds no description of it; it is imported. hf:FOLDER, if that folder was moved.
        trust: Import the MODULE:FUNCTION that the run names, of a network or of data: its code
            runs.
    """

    device: str = "auto"
    data_root: Annotated[str | None, "FOLDER"] = None
    network: str | None = None
    trust: bool = False
