"""Networks of runs and what was learnt, in tables that a terminal and a page show alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...inference.posterior import DRAWS, mean_spread

METRICS = {
    "accuracy": "accuracy",
    "rank_mae": "MAE of rank",
    "f1": "F1",
    "auroc": "AUROC",
    "rmse": "RMSE, target units",
    "mae": "MAE, target units",
    "similarity": "rank correlation of similarities",
    "deviance": "deviance",
    "nll": "NLL",
    "coverage": "coverage of 90 %",
    "brier": "Brier score",
    "ece": "ECE",
}
"""All metrics of a prediction by name, with what they are called in a table."""


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under a head; the first entry of a row names it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.table import Table as Printed

        out = Printed(*self.head, box=None)
        columns = zip(self.head, *([cell.text for cell in row] for row in self.rows), strict=True)
        least = [
            max(map(len, " ".join(texts[: 1 if k == 0 else None]).split()), default=0)
            for k, texts in enumerate(columns)
        ]
        roomy = sum(least) + 2 * len(least) <= options.max_width
        for k, column in enumerate(out.columns):
            column.overflow = "fold"
            column.min_width = least[k] if roomy else None  # no word and no number is folded
            if all(row[k].value is not None or not row[k].text for row in self.rows):
                column.justify = "right"
        for row in self.rows:
            out.add_row(*(cell.text for cell in row))
        yield out


@dataclass(frozen=True)
class Network:
    """A network of a run, whole or cut, over its seeds.

    Attributes:
        name: for a reader.
        kind: ``whole``, ``small`` or ``other``: what the runs of different methods have in common.
        test: metrics on the test rows, by seed.
        parameters: by seed; empty where it has no number of its own.
        seconds: for a batch, by seed; empty where it was not measured.
    """

    name: str
    kind: str
    test: list[dict[str, float]]
    parameters: list[int]
    seconds: list[float]


_PARTS = {
    "numbers": ("plain network, {epochs} epochs", "other"),
    "pruned": ("handed back", "small"),
    "single_exit": ("chosen depth alone", "other"),
    "ddn": ("plain network", "other"),
    "compressed": ("handed back", "small"),
    "refused": ("cut, not handed back", "other"),
    "draw": ("read from the draw's file", "other"),
    "discretised": ("handed back", "small"),
    "retrained": ("chosen structure, afresh", "other"),
}
"""Parts of ``metrics.json`` that are networks of a run, beside the whole one."""

_WAYS = {
    "ensemble": f"ensemble ({DRAWS} draws)",
    "stochastic": "stochastic (one draw)",
    "deterministic": "deterministic (means)",
}
"""Ways to predict with random weights."""


def called(name: str, depths: bool) -> str:
    """What a table calls a network or a way to predict, by its name in scores.

    Arguments:
        depths: of a stack whose depth was learnt.
    """
    own, comma, rows = name.partition(",")
    known = {n: text for n, (text, _) in _PARTS.items()} | _WAYS
    known["full"] = "all depths" if depths else "network"
    return f"{known.get(own, own)}{comma}{rows}"


def networks(seeds: Sequence[Mapping[str, Any]]) -> list[Network]:
    """All networks that a run reports, the whole first."""
    found: list[Network] = []
    sizes, times = whole(seeds)

    def add(name: str, kind: str, parts: Sequence[Mapping[str, Any]], **of: list[Any]) -> None:
        tests = [
            {n: one["test"][n] for n in METRICS if one["test"].get(n) is not None} for one in parts
        ]
        own = {
            key: [one[key] for one in parts if key in one]
            for key in ("parameters", "seconds_per_batch")
        }
        seconds = of.get("seconds", own["seconds_per_batch"])
        found.append(Network(name, kind, tests, of.get("parameters", own["parameters"]), seconds))

    tests = [one["test"] for one in seeds]
    if "ensemble" in tests[0]:
        ways = {way: [{"test": test[way]} for test in tests] for way in tests[0]}
        means = [one.get("mean", {}).get("seconds_per_batch") for one in seeds]
        timed = times if None in means else means
        add(_WAYS["ensemble"], "whole", ways["ensemble"], parameters=sizes)
        add(_WAYS["stochastic"], "other", ways["stochastic"])
        add(_WAYS["deterministic"], "other", ways["deterministic"], parameters=sizes, seconds=timed)
    else:
        name = called("full", "pruned" in seeds[0])
        add(name, "whole", [{"test": t} for t in tests], parameters=sizes, seconds=times)
    for part, (name, kind) in _PARTS.items():
        if all("test" in one.get(part, {}) for one in seeds):
            add(name.format_map(seeds[0][part]), kind, [one[part] for one in seeds])
    if "random" in seeds[0]:
        drawn = seeds[0]["random"]["runs"]
        more = " (there are no more)" if seeds[0]["random"].get("all") else ""
        add(f"{len(drawn)} structures at random{more}", "other", drawn)
    return found


def whole(seeds: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[float]]:
    """Parameters and seconds of the network before the cut."""
    for part in ("compressed", "discretised", "pruned"):
        if all(part in one for one in seeds):
            sizes = [int(one[part]["parameters_before"]) for one in seeds]
            return sizes, [float(one[part]["seconds_per_batch_before"]) for one in seeds]
    return [int(one["parameters"]) for one in seeds], []


def cell(values: Sequence[float], form: str = ".4f", best: bool = False) -> Cell:
    """A number, or the mean of several with their standard deviation; empty without any."""
    if not values:
        return Cell("")
    spread = mean_spread([{"value": float(v)} for v in values])["value"]
    mean, sd = spread["mean"], spread["sd"]
    text = format(mean, form) if sd is None else f"{mean:{form}} ± {sd:{form}}"
    return Cell(text, mean, best)


def scores(seeds: Sequence[Mapping[str, Any]], caption: str) -> Table:
    """Every network of a run with its metrics on the test rows."""
    found = networks(seeds)
    columns = [name for name in METRICS if name in found[0].test[0]]
    rows = []
    for one in found:
        metrics = [cell([test[name] for test in one.test if name in test]) for name in columns]
        size = cell(one.parameters, ",.0f")
        rows.append([Cell(one.name), *metrics, size, cell([1e3 * t for t in one.seconds], ".2f")])
    named = (METRICS[name] for name in columns)
    return Table(caption, ["network", *named, "parameters", "ms per batch"], rows)


def learnt(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run has learnt: titles, sentences and rows of small tables; how fast it runs is said
    last."""
    return [_with_speed(one) for one in metrics.get("learnt", [])]


def _with_speed(one: dict[str, Any]) -> dict[str, Any]:
    if "seconds_by_batch" not in one:
        return one
    said = f"Beside the network that was given it is {_said_of_speed(one['seconds_by_batch'])}."
    return {**one, "sentences": [*one["sentences"], said]}


def _said_of_speed(speed: Iterable[Mapping[str, Any]]) -> str:
    """Words for the speed of a network beside another, with both times."""
    said = []
    for one in speed:
        after, before = 1e3 * one["seconds"], 1e3 * one["seconds_before"]
        low, high = one["times_faster"]
        text = "about as fast"
        if low > 1 and before / after >= 1.05:
            text = f"{before / after:.1f} x faster"
        elif high < 1 and after / before >= 1.05:
            text, low, high = f"{after / before:.1f} x slower", 1 / high, 1 / low
        rows = "of 1 row" if one["batch"] == 1 else f"of {one['batch']} rows"
        said.append(
            f"{text} in a batch {rows} ({after:.3g} ms, before {before:.3g} ms; half of the rounds "
            f"{low:.2f} to {high:.2f} x)"
        )
    return ", ".join(said)


def learnt_tables(seeds: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The tables of what was learnt, one of each title, with the rows of all seeds."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for metrics in seeds:
        of = {"seed": str(metrics["seed"])} if len(seeds) > 1 else {}
        for one in learnt(metrics):
            rows.setdefault(one["title"], []).extend({**of, **row} for row in one["rows"])
    tables = []
    for title, each in rows.items():
        head = list(dict.fromkeys(name for row in each for name in row))
        lines = [[_entry(row.get(name, "")) for name in head] for row in each]
        tables.extend([Table(title, head, lines)] if lines else [])
    return tables


def _entry(value: str | float) -> Cell:
    if isinstance(value, str):
        return Cell(value)
    return Cell(f"{value:,}" if isinstance(value, int) else f"{value:.4g}", value)
