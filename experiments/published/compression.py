"""Bayesian compression on MNIST: the published table, and what we get.

    python -m experiments compression --again --data-root FOLDER

A finished seed is kept: the same command goes on where an earlier one stopped. Errors are of the
test rows; thresholds are chosen on 6,000 validation rows, which are not trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter
from pyroccam.cli.methods.table import METHODS
from pyroccam.cli.runs.execution import Outcome
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.figures.canvas import new_figure
from pyroccam.inference.figures.style import CYCLE, styled

from .markdown import column, header, plus_minus, read_all, row, trained_on
from .runner import File, Given, Made, Row, Spec, of_method

__all__ = ["PUBLISHED", "SETTINGS", "SPEC", "Published", "error_of", "left_of", "short"]


@dataclass(frozen=True)
class Published:
    """A row of the published table.

    Attributes:
        error: in %, of the network at its fast-prediction rate, else at its pruning rate.
        nonzero: weights that are left, in %.
        pruning, fast, maximum: compression rates.
        architecture: inputs or filters left of each layer.
        bits: of a weight, by layer.
        file_bytes: of a file, where that is what is published.
    """

    error: float
    nonzero: float | None = None
    pruning: float | None = None
    fast: float | None = None
    maximum: float | None = None
    architecture: str | None = None
    bits: str | None = None
    file_bytes: int | None = None


# Louizos, Ullrich, Welling 2017, arXiv:1705.08665, table 1. The pruning rates of DNS, SWS and, on
# LeNet-5, of Deep Compression are the authors' best-case guesses. Sizes and bits are given where
# the rates follow from them (tests/inference/test_rates.py). The files of EPR are those of Oktay et
# al. 2020, arXiv:1906.06624.
PUBLISHED: dict[str, dict[str, Published]] = {
    "lenet-300-100": {
        "deep-compression": Published(1.6, 8.0, 6, None, 40),
        "dns": Published(2.0, 1.8, 28),
        "sws": Published(1.9, 4.3, 12, None, 64),
        "sparse-vd": Published(1.8, 2.2, 21, 84, 113),
        "gnj": Published(1.8, 10.8, 9, 36, 58, "278-98-13", "8-9-14"),
        "ghs": Published(1.9, 10.6, 9, 23, 59, "311-86-14", "13-11-10"),
        "epr": Published(1.9, file_bytes=8560),
    },
    "lenet-5-caffe": {
        "deep-compression": Published(0.7, 8.0, 6, None, 39),
        "dns": Published(0.9, 0.9, 55, None, 108),
        "sws": Published(1.0, 0.5, 100, None, 162),
        "sparse-vd": Published(1.0, 0.7, 63, 228, 365),
        "gnj": Published(1.0, 0.9, 108, 361, 573, "8-13-88-13", "18-10-7-9"),
        "ghs": Published(1.0, 0.6, 156, 419, 771, "5-10-76-16", "10-10-14-13"),
        "epr": Published(1.0, file_bytes=2840),
    },
}

# Settings of ours for that table, tried on LeNet-300-100 and MNIST. What is left in the end was
# chosen on the validation rows already; to choose again would follow their luck. The error of ghs
# is the lowest, so it has more to give; sparse-vd is cut at a rate above 0.95, as published.
_NUMBERS = {"start": 0.0, "finish": 0.0, "batch_size": 256, "tolerance": 0.001}
_GROUPS = {
    **_NUMBERS, "epochs": 180, "kl_warmup": 0.02,
    "threshold": "noise", "narrow": [0.22, 0.44, 0.67],
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "gnj": _GROUPS,
    "ghs": {**_GROUPS, "tolerance": None, "narrow_tolerance": 0.02},
    "sparse-vd": {**_NUMBERS, "tolerance": None, "epochs": 60, "threshold": 3.0},
    "graves": {**_NUMBERS, "tolerance": None, "epochs": 30, "kl_warmup": 0.1},
    "epr": {"batch_size": 256, "epochs": 40, "lr": 6e-3, "kl_weight": 0.1},
}


def files(given: Given) -> Iterable[File]:
    """One of each network and method."""
    epochs = {} if given.epochs is None else {"epochs": given.epochs}
    for network in given.networks:
        for method in given.methods:
            sets = {**SETTINGS.get(method, {}), **given.set, **epochs}
            name = f"{short(given.data)}-{short(network)}-{method}"
            yield of_method(name, method, kept, given, sets, network)


def short(name: str) -> str:
    """The name of a network, or of data, that were given as ``module:function``."""
    return name.rpartition(":")[2]


def error_of(test: dict[str, float]) -> float:
    """In %, or the root mean square of a regression."""
    return 100 * (1 - test["accuracy"]) if "accuracy" in test else test["rmse"]


def left_of(metrics: Row) -> Row:
    """What a row says of the network that is left of a run.

    Raises:
        PyroccamError: for a run whose network was not compressed.
    """
    if "not_compressed" in metrics:
        raise PyroccamError(f"Seed {metrics['seed']}: {metrics['not_compressed']}")
    structure, test = metrics["structure"], metrics["compressed"]["test"]
    return {
        "error": error_of(test),
        "mean_error": error_of(metrics["test"]["deterministic"]),
        "ensemble_error": error_of(metrics["test"]["ensemble"]),
        "nll": test["nll"],
        "bits": list(structure["bits"].values()),
        **{k: structure[k] for k in ("nonzero_percent", "weights", "file_bytes", "file_rate")},
        "thresholds": structure["thresholds"],
        **{k: metrics[k] for k in ("seconds", "engine", "device")},
    }


def kept(outcome: Outcome) -> Row:
    """The row that is kept of a run."""
    metrics = outcome.metrics
    found = left_of(metrics)
    structure, small = metrics["structure"], metrics["compressed"]
    return {
        **found,
        "architecture": structure["architecture"],
        **structure["rates"],
        **({"message": metrics["message"]} if "message" in metrics else {}),
        "times_faster": small["seconds_per_batch_before"] / small["seconds_per_batch"],
    }


def table(folder: Path) -> Iterable[str]:
    """Errors, and how small a network became, beside what is published."""
    found = read_all(folder).values()
    for data, network in sorted({trained_on(one) for one in found}):
        yield from header(
            f"{data}, {short(network)} (seeds)", "error, %", "weights left, %",
            "left of each layer", "bits", "pruning", "fast", "maximum", "file, kB",
        )  # fmt: skip
        own = {f["config"]["method"]: f for f in found if trained_on(f) == (data, network)}
        for method in (name for name in METHODS if name in own):
            runs = own[method]["runs"]
            yield row(
                f"`{method}` ({len(runs)})",
                plus_minus(runs, "error", 2),
                plus_minus(runs, "nonzero_percent", 2),
                ", ".join(r["architecture"] for r in runs),
                ", ".join("-".join(map(str, r["bits"])) for r in runs),
                *(plus_minus(runs, k, 1) for k in ("pruning", "fast_prediction", "maximum")),
                plus_minus(runs, "file_bytes", 1, 1e-3),
            )
            if data == "mnist" and (known := PUBLISHED.get(network, {}).get(method)) is not None:
                rates = (known.pruning, known.fast, known.maximum)
                yield row(
                    "published", known.error, known.nonzero or "", known.architecture or "",
                    known.bits or "", *("" if rate is None else f"{rate:g}" for rate in rates),
                    "" if known.file_bytes is None else f"{known.file_bytes / 1000:g}",
                )  # fmt: skip
        yield ""


def drawn(given: Given) -> Mapping[str, Made]:
    """The rates of all methods that have published ones, where there are results."""
    found = read_all(given.out, "mnist-*")
    needed = {
        f"mnist-{network}-{method}"
        for network, known in PUBLISHED.items()
        for method, one in known.items()
        if one.pruning is not None
    }
    return {"rates": partial(figure, found)} if needed <= found.keys() else {}


@styled
def figure(found: Mapping[str, Row]) -> Figure:
    """Rates, mean and standard deviation over seeds, beside the published ones, by network."""
    fig = new_figure(4.6)
    axes = fig.subplots(len(PUBLISHED), len(_RATES), sharey="row", sharex=True)
    for line, (network, known) in zip(axes, PUBLISHED.items(), strict=True):
        methods = [method for method, one in known.items() if one.pruning is not None]
        for ax, (name, title) in zip(line, _RATES.items(), strict=True):
            for k, method in enumerate(reversed(methods)):
                runs = found[f"mnist-{network}-{method}"]["runs"]
                if own := column(runs, name):
                    mean, sd = fmean(own), stdev(own) if len(own) > 1 else 0.0
                    ax.errorbar(mean, k + 0.14, xerr=sd, fmt="o", color=CYCLE[0], label=_WHOSE[0])
                published = getattr(known[method], title.partition(" ")[0])
                if published is not None:
                    ax.plot(published, k - 0.14, "s", color=CYCLE[1], label=_WHOSE[1])
            ax.set(xscale="log", title=f"{network}: {title}" if ax is line[0] else title)
            ax.xaxis.set_major_formatter(FormatStrFormatter("%g"))
            ax.grid(True, axis="x")
        line[0].set_yticks(range(len(methods)), reversed(methods))
    axes[-1][1].set_xlabel("times smaller than the network with 32-bit weights")
    named = dict(zip(*reversed(axes[0][0].get_legend_handles_labels()), strict=True))
    fig.legend([named[n] for n in _WHOSE], _WHOSE, loc="outside lower right", ncols=2)
    return fig


_WHOSE = ("here", "published")
_RATES = {"pruning": "pruning", "fast_prediction": "fast prediction", "maximum": "maximum"}

SPEC = Spec(
    "experiments.published.compression", "Compression", "compression",
    {
        "data": "mnist", "data_root": str, "networks": ("lenet-300-100",),
        "methods": ("gnj", "ghs", "sparse-vd"), "epochs": int, "set": {}, "device": "auto",
        "runs": str,
    },
    files, table, drawn,
    small="--data digits --networks perceptron --methods gnj --set hidden=[8] --set lr=0.01 "
    "--epochs 3 --seeds 1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
