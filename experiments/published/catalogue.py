"""What the five source documents show, and what became of each of it here.

A state is derived from the committed results and the published numbers: "met" if every check of an
entry holds, "short" with the first that does not, "not run" where there are no results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from .compression import PUBLISHED as COMPRESSION
from .evidence.paths import PUBLISHED as PATHS
from .markdown import column, header, mean_sd, row
from .path_of_lambda import PUBLISHED as LAMBDA
from .quantisation import PUBLISHED as QUANTISATION
from .runner import RESULTS
from .tables import NAMES, find
from .variance.networks import PUBLISHED as VARIANCE

__all__ = [
    "DOCUMENTS", "Check", "Document", "Entry", "lines", "no_worse", "table",
]  # fmt: skip


@dataclass(frozen=True)
class Check:
    """A claim in numbers, and whether it holds."""

    says: str
    met: bool


_SCANNED = "--set compile=false --set steps=2500"

Checks = Callable[[Path], Iterable[Check]]
"""From the folder of all results; a file that is not there raises ``FileNotFoundError``."""


@dataclass(frozen=True)
class Entry:
    """A figure, table or claim of a document.

    Attributes:
        place: in the document.
        shows: what is there.
        name: of the experiment here.
        checks: of its results.
        options: of the command.
        lacks: why there are no results, or what they need.
        files: pattern of the names of its results, for the time that they took.
    """

    place: str
    shows: str
    name: str = ""
    checks: Checks = lambda results: ()
    options: str = ""
    lacks: str = ""
    files: str = "*"

    def state(self, results: Path = RESULTS) -> tuple[str, str]:
        """One word, and the numbers behind it."""
        try:
            found = list(self.checks(results))
        except FileNotFoundError:
            found = []
        if not found:
            return "not run", self.lacks
        short = [check.says for check in found if not check.met]
        says = "; ".join(short or [check.says for check in found])
        return ("short" if short else "met"), says

    def command(self) -> str:
        """That trains it; none where there is no experiment."""
        if not self.name:
            return ""
        root = "--data-root FOLDER" if "data_root" in find(NAMES[self.name]).options else ""
        parts = ("python -m experiments", self.name, self.options, root, "--again")
        return " ".join(part for part in parts if part)

    def time(self, results: Path = RESULTS) -> str:
        """Of the trainings in the committed results, where it was kept."""
        if not self.name:
            return ""
        folder = find(NAMES[self.name]).folder
        paths = (results / folder).glob(f"{self.files}.json")
        seconds = sum(_seconds(json.loads(path.read_text())) for path in paths)
        if seconds < 60:
            return f"{seconds:.0f} s" if seconds else ""
        return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


@dataclass(frozen=True)
class Document:
    """A source document.

    Attributes:
        title: with what it is.
        page: of the documentation.
        entries: what it shows, in its order.
    """

    title: str
    page: str
    entries: Sequence[Entry]

    def conclusion(self, results: Path = RESULTS) -> str:
        """How many of its entries are met."""
        states = [entry.state(results)[0] for entry in self.entries]
        counts = ((states.count(name), name) for name in ("met", "short", "not run"))
        said = ", ".join(f"{count} {name}" for count, name in counts if count)
        return f"Of {len(states)} figures, tables and claims: {said}."


def _seconds(part: Any) -> float:
    """Of all runs below; runs that were trained together have the time of all of them."""
    if isinstance(part, list):
        return sum(map(_seconds, part))
    if not isinstance(part, Mapping):
        return 0.0
    for name in ("seconds", "train_seconds", "cpu_seconds_per_fit"):
        if isinstance(own := part.get(name), float):
            return own / part.get("engine", {}).get("replicates", 1)
    if "seconds_training" in part:
        return float(sum(part["seconds_training"].values()))
    left_out = ("spread", "summary", "engine", "versions", "config")
    return sum(_seconds(own) for name, own in part.items() if name not in left_out)


def lines(results: Path = RESULTS) -> Iterable[str]:
    """All entries as text, by document."""
    for document in DOCUMENTS.values():
        yield f"{document.title}\n{document.conclusion(results)}\n"
        for entry in document.entries:
            word, says = entry.state(results)
            called = ", ".join(part for part in (entry.command(), entry.time(results)) if part)
            yield f"  {word:8}{entry.place}: {entry.shows}"
            yield from (f"          {part}" for part in (says, called) if part)
        yield ""
    yield "also, of our own questions (docs/results/others.md):\n"
    yield from (f"  {title}\n          {command}" for title, command in also())


def also() -> Iterable[tuple[str, str]]:
    """Titles and commands of the experiments that belong to none of the documents."""
    shown = {entry.name for document in DOCUMENTS.values() for entry in document.entries}
    for name, module in NAMES.items():
        if name not in shown:
            yield find(module).title, f"python -m experiments {name} --again"
    yield from (
        ("The digits of the package", "python -m experiments.published.written_digits"),
        ("Strangers", "python -m experiments.trials.strangers --again"),
        ("Zero filters", "python -m experiments.trials.zero_filters"),
    )


def table(document: Document, results: Path = RESULTS) -> Iterable[str]:
    """The entries of a document as Markdown."""
    yield from header("where", "what", "state", "numbers", "time here", "command")
    for entry in document.entries:
        called = entry.command().removeprefix("python -m experiments ")
        yield row(
            entry.place, entry.shows, *entry.state(results), entry.time(results),
            f"`{called}`" if called else "",
        )  # fmt: skip


# -- checks ----------------------------------------------------------------------------------------


def no_worse(
    what: str, ours: Sequence[float], other: float | Sequence[float], *, higher: bool = False
) -> Check:
    """Whether ours are no worse than others by more than one standard deviation of both.

    A published number is known to half a unit of its last digit.

    Arguments:
        other: a published number, or runs of another contender.
        higher: is better.
    """
    if isinstance(other, float | int):
        shown, mean = f"published {other:g}", float(other)
        slack = 0.5 * 10.0 ** -len(f"{other:g}".partition(".")[2])
    else:
        shown, mean, slack = f"against {mean_sd(other, 3)}", fmean(other), _sd(other)
    worse = (mean - fmean(ours)) if higher else (fmean(ours) - mean)
    digits = 0 if abs(fmean(ours)) > 100 else 3
    return Check(
        f"{what} {mean_sd(ours, digits)}, {shown}", worse <= math.hypot(slack, _sd(ours))
    )  # fmt: skip


def _sd(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _read(results: Path, name: str) -> Any:
    return json.loads((results / f"{name}.json").read_text())


def _runs(results: Path, name: str) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = _read(results, name)["runs"]
    return runs


def _spirals(results: Path) -> Iterable[Check]:
    runs = _runs(results, "spirals/ldn")
    far = max(run["structure"]["tv_running"] for run in runs)
    yield Check(f"q(d) is {far:.3f} from the exact posterior at most", far < 0.01)
    cut, fixed = (column(runs, f"{name}/test/accuracy") for name in ("pruned", "ddn"))
    yield no_worse("accuracy of the cut network", cut, fixed, higher=True)


def _images(data: str, results: Path) -> Iterable[Check]:
    runs = _seeds(data, results)
    deepest = max((name for name in runs[0]["test"] if name.startswith("ddn-")), key=_number)
    cut, fixed = (column(runs, f"test/{name}/nll") for name in ("ldn-pruned", deepest))
    yield no_worse(f"NLL of the cut network on {data}", cut, fixed)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _seeds(data: str, results: Path) -> list[dict[str, Any]]:
    found = [json.loads(p.read_text()) for p in (results / "images").glob(f"{data}-seed-*.json")]
    if not found:
        raise FileNotFoundError(data)
    return found


def _calibration(data: str, results: Path) -> Iterable[Check]:
    runs = _seeds(data, results)
    deepest = max((name for name in runs[0]["test"] if name.startswith("ddn-")), key=_number)
    cut, fixed = (
        [100 * value for value in column(runs, f"test/{name}/poster_ece")]
        for name in ("ldn-pruned", deepest)
    )
    yield no_worse(f"the poster's ECE of the cut network on {data}, %,", cut, fixed)


def _by_depth(results: Path) -> Iterable[Check]:
    found = _read(results, "by_depth/spirals")["runs"][0]
    needs = {}
    for name in ("ldn", "ddn"):
        enough = max(found[name]) - 0.02
        needs[name] = next(d for d, value in enumerate(found[name]) if value >= enough)
    yield Check(
        f"exits are within two points of the best one from depth {needs['ldn']} on (learnt) and "
        f"{needs['ddn']} (ordinary)",
        needs["ldn"] < needs["ddn"],
    )


def _max_depth(results: Path) -> Iterable[Check]:
    points = _points(results, "max-depth")
    least, most = (points[value]["spread"]["depth_chosen"] for value in (20, 100))
    yield Check(
        f"chosen depth {least['mean']:.1f} ± {least['sd']:.1f} of 20, "
        f"{most['mean']:.1f} ± {most['sd']:.1f} of 100",
        abs(most["mean"] - least["mean"]) <= math.hypot(most["sd"], least["sd"]),
    )
    accuracies = [one["spread"]["accuracy"]["mean"] for one in points.values()]
    between = max(accuracies) - min(accuracies)
    yield Check(
        f"accuracies between {min(accuracies):.3f} and {max(accuracies):.3f}", between < 0.03
    )


def _points(results: Path, scan: str) -> dict[float, Any]:
    return {one["value"]: one for one in _read(results, "scans/scans")[scan]["points"]}


def _trend(scan: str, sign: float, most: float, results: Path) -> Iterable[Check]:
    """The chosen depth grows (or falls) over the values of a scan that had all steps."""
    points = {value: one for value, one in _points(results, scan).items() if value <= most}
    depths = [one["spread"]["depth_chosen"]["mean"] for one in points.values()]
    said = ", ".join(f"{depth:.1f}" for depth in depths)
    grows = all(sign * (b - a) >= 0.0 for a, b in pairwise(depths))
    yield Check(f"chosen depths {said} at {', '.join(f'{v:g}' for v in points)}", grows)


def _fixed(results: Path) -> Iterable[Check]:
    points = _points(results, "fixed-depth")
    found = {value: one["spread"]["accuracy"]["mean"] for value, one in points.items()}
    deep = [value for depth, value in found.items() if depth >= 3]
    says = (
        f"accuracy {found[1]:.3f} of one block, {min(deep):.3f} to {max(deep):.3f} of three to 100"
    )
    yield Check(says, found[1] < min(deep) and max(deep) - min(deep) < 0.03)


def _times(results: Path) -> Iterable[Check]:
    runs = _read(results, "inference_time/mnist")
    saved = [1 - runs["cut"] / seconds for seconds in runs["fixed"].values()]
    deepest = list(runs["fixed"])[-1]
    yield Check(
        f"the network that is cut at depth {runs['depth']} saves {100 * saved[-1]:.0f} % of the "
        f"time of {deepest} blocks",
        saved[-1] > 0.5 and saved == sorted(saved),
    )


def _simplex(results: Path) -> Iterable[Check]:
    found = _read(results, "simplex/simplex")
    for family, shares in found["near a corner"].items():
        values = list(shares.values())
        said = ", ".join(f"{100 * v:.0f} % at {t}" for t, v in shares.items())
        yield Check(f"{family}: near a corner {said}", values == sorted(values, reverse=True))


def _polynomials(results: Path) -> Iterable[Check]:
    """Of the degrees below the true one the evidence is less by more than 3 nats, which is strong
    (Kass and Raftery 1995), and of none it is more by a nat, which is not worth a mention."""
    runs = _runs(results, "evidence/degree")
    for seed in sorted({run["seed"] for run in runs}):
        own = {
            int(run["member"]): run["estimates"]["exact"]["value"]
            for run in runs if run["seed"] == seed
        }  # fmt: skip
        below = max(value for degree, value in own.items() if degree < _TRUE) - own[_TRUE]
        beyond = max(value for degree, value in own.items() if degree > _TRUE) - own[_TRUE]
        yield Check(
            f"seed {seed}: beside degree {_TRUE}, which made the data, degrees below have at most "
            f"{below:+.1f} nats, and those above {beyond:+.1f}",
            below < -3.0 and beyond < 1.0,
        )


_TRUE = 3


def _descent(data: str, results: Path) -> Iterable[Check]:
    runs = _runs(results, f"evidence-paths/{data}")
    ended = [run["steps"]["descent"] for run in runs]
    last = [run["steps"]["plain"] for run in runs]
    yield Check(
        f"the bound of descent is highest after {', '.join(map(str, ended))} of {last[0]} steps",
        all(end < whole for end, whole in zip(ended, last, strict=True)),
    )
    ways = list(runs[0]["test"])
    published = dict(zip(ways, PATHS[data]["test"], strict=True))
    own = {way: [run["test"][way] for run in runs] for way in ("descent", "plain")}
    higher = runs[0]["test"]["plain"] < 1.0 and data == "seven-nine"
    better = (published["descent"] > published["plain"]) == higher
    gain = fmean(own["descent"]) - fmean(own["plain"])
    yield Check(
        f"stopping there changes the test by {gain:+.3f}, published "
        f"{published['descent'] - published['plain']:+.3f}",
        ((gain > 0) == higher) == better,
    )


def _transition(results: Path) -> Iterable[Check]:
    orders = [one["order"] for one in _read(results, "regimes/transition")["search"]]
    yield Check(
        f"repelled from what was found, the prior visits {'; '.join(', '.join(o) for o in orders)}",
        all(len(set(order)) == 3 for order in orders),
    )


def _regimes(most: float, results: Path) -> Iterable[Check]:
    for cell in _read(results, "regimes/toy")["cells"]:
        if cell["temperature"] <= most:
            won, of = cell["winners"][cell["expected"]], len(cell["runs"])
            yield Check(
                f"{cell['regime']} at temperature {cell['temperature']:g}: {cell['expected']} in "
                f"{won} of {of}",
                won == of,
            )


def _predictions(results: Path) -> Iterable[Check]:
    found = {run["regime"]: run["rmse"] for run in _runs(results, "regimes/predictions")}
    for other in ("prior", "likelihood"):
        yield no_worse(f"error of equal weights, against {other},", found["equal"], found[other])


def _hyperparameters(data: str, published: Mapping[str, float], results: Path) -> Iterable[Check]:
    runs = _runs(results, f"hyperparameters/{data}-elbo-greedy")
    best = [run["Q"] for run in _runs(results, f"hyperparameters/{data}-elbo-random")]
    found = [run["Q"] for run in runs]
    yield Check(
        f"bound {mean_sd(found, 0)} of the greedy method, {mean_sd(best, 0)} of random search",
        min(found) > max(best),
    )
    for name, value in published.items():
        yield no_worse(f"greedy, {name},", column(runs, name), value, higher=True)


def _lambda(results: Path) -> Iterable[Check]:
    direct, path = (_runs(results, f"path/mnist-{name}") for name in ("direct", "piecewise"))
    for weight in LAMBDA["piecewise"]:
        ours = [run["accuracy"][weight][0] for run in path]
        theirs = LAMBDA["piecewise"][weight][0]
        yield no_worse(f"accuracy at λ = {weight}", ours, theirs, higher=True)
    own = [run["accuracy"]["1"][2] for run in path]
    yield no_worse(
        "with 80 % pruned at λ = 1", own, [r["accuracy"]["1"][2] for r in direct], higher=True
    )


def _lambda_cifar(results: Path) -> Iterable[Check]:
    stem = "path/cifar10-conv-0.125-5000"
    direct, path = (_runs(results, f"{stem}-{name}") for name in ("direct", "piecewise-x3"))
    for weight in direct[0]["accuracy"]:
        ours, theirs = ([run["accuracy"][weight][0] for run in runs] for runs in (path, direct))
        yield no_worse(f"accuracy at λ = {weight}", ours, theirs, higher=True)


def _structures(results: Path) -> Iterable[Check]:
    runs = _runs(results, "structures/fashion-mnist-cell-graph")
    own, others = (column(runs, f"test/{name}/accuracy") for name in ("afresh", "random"))
    yield no_worse("accuracy of the learnt structure, trained afresh,", own, others, higher=True)


def _prices(results: Path) -> Iterable[Check]:
    runs = _runs(results, "structure_path/fashion-mnist-cell-graph")
    best = [max(one["accuracy"] for one in run["networks"]["path"]) for run in runs]
    yield no_worse("accuracy of the largest on the path", best, 0.888, higher=True)


def _noise(results: Path) -> Iterable[Check]:
    for method, lost in (
        ("random", {"0.25": 1.5, "0.5": 11.5}),
        ("greedy", {"0.25": 1.7, "0.5": 11.9}),
    ):
        runs = _runs(results, f"kinds_of_noise/mnist-{method}")
        for size, published in lost.items():
            ours = [
                100 * (run["test"]["none"] - run["test"][f"inputs as measured {size}"])
                for run in runs
            ]
            yield no_worse(f"points lost by {method} to noise of {size}", ours, published)


def _compressed(network: str, method: str, results: Path) -> Iterable[Check]:
    known = COMPRESSION[network][method]
    runs = _runs(results, f"compression/mnist-{network}-{method}")
    yield no_worse("error, %,", column(runs, "error"), known.error)
    if known.nonzero is not None:
        yield no_worse("weights left, %,", column(runs, "nonzero_percent"), known.nonzero)
    rates = {"pruning": known.pruning, "fast_prediction": known.fast, "maximum": known.maximum}
    for name, rate in rates.items():
        if rate is not None and column(runs, name):
            says = f"rate, {name.replace('_', ' ')},"
            yield no_worse(says, column(runs, name), rate, higher=True)


def _message(results: Path) -> Iterable[Check]:
    runs = _runs(results, "compression/mnist-lenet-300-100-graves")
    bits = [one["message"]["total"] / one["message"]["rows"] for one in runs]
    yield Check(f"{mean_sd(bits, 3)} bits a label in all, uniform 3.32", max(bits) < 3.32)


def _quantised(network: str, results: Path) -> Iterable[Check]:
    known = QUANTISATION[network]
    runs = _runs(results, f"quantisation/mnist-{network}-published")
    for name in ("mean_error", "error", "nonzero_percent"):
        if name in known:
            yield no_worse(name.replace("_", " "), column(runs, name), known[name])


def _ways(name: str, ways: Sequence[str], results: Path) -> Iterable[Check]:
    runs = _runs(results, f"variance/mnist-lenet-5-caffe-{name}")
    for way in ways:
        says = f"{name}, {way}, %,"
        if way == "deterministic" and VARIANCE[name][way] < 20:  # the means are to know nothing
            yield no_worse(says, column(runs, f"test/{way}/accuracy"), VARIANCE[name][way])
        else:
            own = column(runs, f"test/{way}/accuracy")
            yield no_worse(says, own, VARIANCE[name][way], higher=True)


def _classification(results: Path) -> Iterable[Check]:
    for name in ("dropout", "variance"):
        yield from _ways(name, ("stochastic", "deterministic", "ensemble"), results)


def _bounds(results: Path) -> Iterable[Check]:
    names = ("layer", "neuron", "additive", "weight")
    stem = "variance/mnist-lenet-5-caffe"
    bounds = [fmean(column(_runs(results, f"{stem}-{n}"), "numbers/elbo")) for n in names]
    said = ", ".join(f"{name} {bound:.1e}" for name, bound in zip(names, bounds, strict=True))
    yield Check(f"bounds: {said}", bounds == sorted(bounds, reverse=True))
    for name in names:
        yield from _ways(name, ("ensemble",), results)
    for name in ("layer", "neuron"):
        runs = _runs(results, f"variance-40/mnist-lenet-5-caffe-{name}")
        own, known = column(runs, "test/deterministic/accuracy"), VARIANCE[name]["deterministic"]
        yield no_worse(f"{name}, by the means, after 40 epochs, %,", own, known)


_PLAIN = "variance/mnist-lenet-300-100"
"""Variance networks without convolutions."""


def _symmetric(results: Path) -> Iterable[Check]:
    """The network predicts by any of the distributions, and not by its means."""
    normal = column(_runs(results, f"{_PLAIN}-variance"), "test/ensemble/accuracy")
    for name in ("uniform", "rademacher"):
        runs = _runs(results, f"{_PLAIN}-{name}")
        means = column(runs, "test/deterministic/accuracy")
        yield Check(f"{name}, by the means, {mean_sd(means, 1)} %", max(means) < 20)
        own = column(runs, "test/ensemble/accuracy")
        yield Check(
            f"{name}, ensemble, {mean_sd(own, 2)} %, normal {mean_sd(normal, 2)} %",
            abs(fmean(own) - fmean(normal)) < 1.0,
        )


def _other_priors(results: Path) -> Iterable[Check]:
    """Accuracy and the worth of the means are those under the log-uniform prior."""
    layer = _runs(results, f"{_PLAIN}-layer")
    for name in ("ard", "student-t"):
        runs = _runs(results, f"{_PLAIN}-{name}")
        own, same = (column(one, "test/ensemble/accuracy") for one in (runs, layer))
        yield no_worse(f"{name}, ensemble, %,", own, same, higher=True)
        worth, usual = (fmean(column(one, "means_worth_nats/3")) for one in (runs, layer))
        yield Check(
            f"{name}: the means are worth {worth:.0f} nats, log-uniform {usual:.0f}",
            abs(worth / usual - 1) < 0.2,
        )


def _vgg(results: Path) -> Iterable[Check]:
    runs = _runs(results, "variance/cifar10-vgg-variance")
    others = _runs(results, "variance/cifar10-vgg-dropout")
    way = "test/ensemble/accuracy"
    own, theirs = column(runs, way), column(others, way)
    yield Check(f"within {abs(own[0] - theirs[0]):.1f} points of dropout", own[0] >= theirs[0] - 1)
    yield no_worse("accuracy of all draws, an eighth of the widths, %,", own, 93.4, higher=True)


def _phase(results: Path) -> Iterable[Check]:
    for seed in range(3):
        history = _read(results, f"phase_transition/mnist-lenet-300-100-{seed}")["history"]
        first, last = history[0], history[-1]
        yield Check(
            f"seed {seed}: accuracy without means {first['zero_mean_accuracy']:.2f}, then "
            f"{last['zero_mean_accuracy']:.2f}; with permuted deviations "
            f"{last['permuted_accuracy']:.2f}",
            first["zero_mean_accuracy"] < 0.2
            and last["zero_mean_accuracy"] > 0.95
            and last["permuted_accuracy"] < last["accuracy"] - 0.05,
        )


def _attacks(results: Path) -> Iterable[Check]:
    runs = _runs(results, "robustness/mnist")
    for size in runs[0]["contenders"]["variance"]["fgsm"]:
        own, other = (
            [run["contenders"][name]["fgsm"][size] for run in runs]
            for name in ("variance", "binary dropout")
        )
        yield no_worse(f"accuracy under FGSM of {size}", own, other, higher=True)


def _policies(results: Path) -> Iterable[Check]:
    for name, random in (("CartPole-v1", 25.0), ("Acrobot-v1", -490.0)):
        runs = _runs(results, f"policy_gradient/{name}-variance")
        own, means = (fmean(column(runs, way)) for way in ("noise", "mean_weights"))
        yield Check(
            f"{name}: return {own:.0f} by draws, {means:.0f} by the means", own > random >= means
        )  # fmt: skip


def _propagation(results: Path) -> Iterable[Check]:
    found = _read(results, "mean_propagation/mnist-lenet-300-100")
    shares = found["settings"]["shares"]
    needs = []
    for run in found["runs"]["variance"]:
        accuracy = run["curvature at the means"]["accuracy"]
        enough = accuracy[-1] - 0.11
        needs.append(next(s for s, a in zip(shares, accuracy, strict=True) if a >= enough))
    said = ", ".join(f"{100 * share:g} %" for share in needs)
    yield Check(f"of the weights {said} have to be drawn", max(needs) <= 0.1)


def _toy(results: Path) -> Iterable[Check]:
    runs = _runs(results, "variance_toys/blobs")
    draws, means = (column(runs, f"accuracy/{way}") for way in ("stochastic", "deterministic"))
    says = f"accuracy {mean_sd(draws, 3)} by one draw, {mean_sd(means, 2)} by the means"
    yield Check(says, min(draws) > 0.95 and max(means) <= 0.3)


def _gap(results: Path) -> Iterable[Check]:
    spread = _read(results, "variance_toys/regression")["spread"]
    ratio = {
        name: spread[name]["gap"]["width"]["mean"] / spread[name]["between rows"]["width"]["mean"]
        for name in ("variance", "dropout")
    }
    yield Check(
        "bands in the gap are "
        + " and ".join(f"{value:.2f} ({name})" for name, value in ratio.items())
        + " times as wide as at the data",
        ratio["variance"] > 1.1 or ratio["dropout"] < 1.1,
    )


def _selected(kind: str, results: Path) -> Iterable[Check]:
    """Accuracy of learnt structures, beside that of weights that are a softmax."""
    runs = _runs(results, "selected/mnist")
    other = "softmax"
    for at in runs[0]["contenders"][other][kind]:
        for name in ("structure", "structure and weights"):
            own, theirs = (
                [100 * run["contenders"][one][kind][at] for run in runs] for one in (name, other)
            )
            what = f"FGSM of {at}" if kind == "fgsm" else f"{100 * float(at):g} % cut"
            yield no_worse(f"{name}, {what}, %,", own, theirs, higher=True)


SVHN = "SVHN is not at hand: torchvision downloads it into --data-root"

POSTER = Document(
    "Variational Depth Search in ResNets (poster)", "depth",
    (
        Entry("Figure 2, left", "q(d) on the spirals", "spirals", _spirals),
        Entry("Figure 2, right", "MNIST, cut and fixed depths", "images",
              partial(_images, "mnist"), "--data mnist", files="mnist-*"),
        Entry("Figure 2, right", "Fashion-MNIST, cut and fixed depths", "images",
              partial(_images, "fashion-mnist"), "--data fashion-mnist", files="fashion-*"),
        Entry("Figure 2, right", "SVHN, cut and fixed depths", "images",
              partial(_images, "svhn"), "--data svhn", SVHN, "svhn-*"),
        Entry("Figure 3", "functions at each depth, learnt and ordinary", "by_depth", _by_depth),
        Entry("Table 1", "calibration on Fashion-MNIST", "images",
              partial(_calibration, "fashion-mnist"), "--data fashion-mnist",
              files="fashion-*"),
        Entry("Table 1", "calibration on MNIST", "images",
              partial(_calibration, "mnist"), "--data mnist", files="mnist-*"),
        Entry("Table 1", "calibration on SVHN", "images",
              partial(_calibration, "svhn"), "--data svhn", SVHN, "svhn-*"),
        Entry("Figure 4, top", "the maximum depth changes little", "scans", _max_depth,
              f"--scans max-depth {_SCANNED}"),
        Entry("Figure 4, bottom", "time saved over the depth of ordinary networks",
              "inference_time", _times),
    ),
)  # fmt: skip

CODE = Document(
    "Variational Depth Search in ResNets (the README of its code)", "depth",
    (
        Entry("Learnt depth", "every maximum depth", "scans", _max_depth,
              f"--scans max-depth {_SCANNED}"),
        Entry("Ordinary networks", "every depth", "scans", _fixed,
              f"--scans fixed-depth {_SCANNED}"),
        Entry("Learnt depth", "sizes of the data", "scans", partial(_trend, "rows", 1, 800),
              f"--scans rows {_SCANNED}"),
        Entry("Learnt depth", "complexity of the data", "scans",
              partial(_trend, "degrees", 1, 1440),
              f"--scans degrees {_SCANNED}"),
        Entry("Learnt depth", "widths", "scans", partial(_trend, "width", -1, 300),
              f"--scans width {_SCANNED}"),
        Entry("Images", "MNIST", "images", partial(_images, "mnist"), "--data mnist",
              files="mnist-*"),
        Entry("Images", "Fashion-MNIST", "images", partial(_images, "fashion-mnist"),
              "--data fashion-mnist", files="fashion-*"),
        Entry("Images", "SVHN", "images", partial(_images, "svhn"), "--data svhn", SVHN, "svhn-*"),
    ),
)  # fmt: skip

SLIDES = Document(
    "Bayesian selection of deep learning model structure (slides)", "structure",
    (
        Entry("Structure restrictions", "cube and simplex, vertices and interior", "simplex",
              _simplex),
        Entry("Prior distribution for the structure", "Gumbel-Softmax and Dirichlet by temperature",
              "simplex", _simplex),
        Entry("Evidence: example", "polynomials by their evidence", "estimators", _polynomials),
        Entry("Gradient descent as a bound", "Boston", "paths", partial(_descent, "boston"),
              "--sets boston", files="boston"),
        Entry("Gradient descent as a bound", "sevens and nines", "paths",
              partial(_descent, "seven-nine"), "--sets seven-nine", files="seven-nine"),
        Entry("Proposed optimization problem", "a structure after the other, by repulsion",
              "regimes", _transition, "--parts transition", files="transition"),
        Entry("Hyperparameter optimization: example", "a polynomial that could overfit",
              "hyperparameters", partial(_hyperparameters, "polynomial", {}),
              "--problems polynomial", files="polynomial-*"),
        Entry("Experiments: WISDM", "bounds by ways to hyperparameters", "hyperparameters",
              partial(_hyperparameters, "wisdm", {"Q": -3553.0}), "--problems wisdm",
              files="wisdm-*"),
        Entry("Toy dataset: structures", "prior, data or both decide (temperatures 0.2 and 1)",
              "regimes", partial(_regimes, 1.0)),
        Entry("Toy dataset: structures", "the same at temperature 10 too", "regimes",
              partial(_regimes, 10.0)),
        Entry("Toy dataset: prediction performance", "predictions of the three regimes",
              "regimes", _predictions, "--parts predictions", files="predictions"),
        Entry("Hypernetworks", "accuracy by λ and share pruned, MNIST", "path_of_lambda", _lambda,
              files="mnist-*"),
        Entry("Hypernetworks: CIFAR-10", "a network and its hypernetwork", checks=_lambda_cifar),
        Entry("Example: Fashion-MNIST", "structures by the price of a parameter",
              checks=_prices),
        Entry("Example: Fashion-MNIST", "a learnt structure against random ones",
              "against_random", _structures),
        Entry("Experiments: MNIST", "bounds by ways to hyperparameters", "hyperparameters",
              partial(_hyperparameters, "mnist", {"Q": -11136.0}), "--problems mnist",
              files="mnist-*"),
        Entry("Experiments: MNIST", "accuracy lost by noise on the images", checks=_noise),
        Entry("Robustness to adversarial attacks", "FGSM on selected structures", "selected",
              partial(_selected, "fgsm"), files="mnist"),
        Entry("Robustness to structure pruning", "accuracy over the share that is cut",
              "selected", partial(_selected, "cut"), files="mnist"),
    ),
)  # fmt: skip

_LENET_5 = " --epochs 100 --set narrow=[0.08,0.2,0.4,0.6,0.8] --set kl_warmup=0.01"
_MORE = {
    ("lenet-300-100", "dns"): " --set c=[7,4.5,1.5]",
    ("lenet-5-caffe", "dns"): " --set c=[2.5,3.5,9,2.5]",
    ("lenet-5-caffe", "gnj"): f"{_LENET_5} --set last_rows=all",
    ("lenet-5-caffe", "ghs"): f"{_LENET_5} --set last_rows=all --set narrow_tolerance=0.01",
}
"""Options of rows of the table that need some of their own."""

LECTURE = Document(
    "Variational inference in deep learning models (lecture on compression)", "compression",
    (
        Entry("Examples: polynomials", "evidence by degree", "estimators", _polynomials),
        Entry("Graves 2011", "the message of a network", "compression", _message,
              "--methods graves", files="*-graves"),
        *(
            Entry(f"Compression rates, {network}", method, "compression",
                  partial(_compressed, network, method),
                  f"--networks {network} --methods {method}"
                  f"{_MORE.get((network, method), '')}", files=f"mnist-{network}-{method}")
            for network in ("lenet-300-100", "lenet-5-caffe")
            for method in COMPRESSION[network] if method != "epr"
        ),
        Entry("Compression rates, VGG", "gnj and ghs on CIFAR-10", "compression",
              options="--data cifar10 --networks vgg --methods gnj,ghs",
              lacks="takes a GPU; an eighth of the widths is in the table below",
              files="none"),
        *(
            Entry("Variational network quantisation", network, "quantisation",
                  partial(_quantised, network),
                  f"--network {network} --rows published --epochs 20 --seeds 1 "
                  "--set batch_size=128 --set lr=1e-3",
                  files=f"mnist-{network}-published")
            for network in QUANTISATION
        ),
    ),
)  # fmt: skip

_WITHOUT = "--network lenet-300-100 --epochs 10 --set lr=0.01"

VARIANCES = Document(
    "Variance networks (slides)", "variance",
    (
        Entry("Variance networks demystified", "four blobs by two units", "toys", _toy,
              "--parts blobs"),
        Entry("Other symmetric distributions", "signs and uniform noise", "networks", _symmetric,
              f"{_WITHOUT} --contenders variance,uniform,rademacher",
              files="mnist-lenet-300-100-[vur]*"),
        Entry("Variational dropout is a variance network", "bounds by parameterisation",
              "networks", _bounds, "--epochs 10 --set lr=0.01", files="mnist-lenet-5-*"),
        Entry("Sparse variational dropout", "a sparse optimum", "compression",
              partial(_compressed, "lenet-300-100", "sparse-vd"), "--methods sparse-vd",
              files="mnist-lenet-300-100-sparse-vd"),
        Entry("Other models", "Student's t and ARD priors", "networks", _other_priors,
              f"{_WITHOUT} --contenders layer,ard,student-t", files="mnist-lenet-300-100-[las]*"),
        Entry("Classification", "LeNet-5 on MNIST", "networks", _classification,
              "--contenders dropout,variance --epochs 10 --set lr=0.01",
              files="mnist-lenet-5-*-[dv]*"),
        Entry("Classification", "VGG on CIFAR-10", "networks", _vgg,
              "--data cifar10 --network vgg --contenders deterministic,dropout,variance "
              "--set width=0.125 --set batch_size=64 --epochs 40 --seeds 1", files="cifar10-*"),
        Entry("Classification", "VGG on CIFAR-100", "networks",
              options="--data cifar100 --network vgg", files="cifar100-*",
              lacks="CIFAR-100 is not at hand: torchvision downloads it into --data-root"),
        Entry("Adversarial attacks", "FGSM by kinds of noise", "robustness", _attacks),
        Entry("Reinforcement learning", "CartPole and Acrobot", "policy_gradient", _policies),
        Entry("Mean propagation", "the weights that have to be drawn", "mean_propagation",
              _propagation, '--contenders "variance;variational dropout;mean field, N(0, 1)" '
              "--epochs 40 --set data.n_test=2000 --set lr=0.002 --set compile=true"),
        Entry("Is it more diverse?", "bands of a regression", "toys", _gap,
              "--parts regression"),
        Entry("The phase transition", "means, then variances", "phase_transition", _phase,
              "--epochs 100 --set lr=0.002 --set evaluations=25 --set compile=true"),
    ),
)  # fmt: skip

DOCUMENTS = {
    "poster": POSTER, "code": CODE, "slides": SLIDES, "lecture": LECTURE, "variance": VARIANCES,
}  # fmt: skip
"""By the name of their page."""
