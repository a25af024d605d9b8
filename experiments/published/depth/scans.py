"""The scans of the source's README on spirals: what the chosen depth depends on.

    python -m experiments.published.depth.scans --out experiments/results/scans

One setting is varied at a time: maximum depth, depth of a deterministic network, training rows,
degrees that the arms wind, width. The others are the source's: D = 20, width 20, 720 degrees, 200
training rows of which a tenth is kept for validation, and noise 0.2 (0.15 for rows and degrees).
Unlike theirs, every network is tested on 1800 rows. A finished point is kept and an interrupted one
is gone on with; points are run from cheap to expensive.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure
from pyroccam.cli.runs.config import RunConfig, parse_settings
from pyroccam.data import Dataset
from pyroccam.inference import Interrupted, NonFiniteLoss, figures, fit_repeats
from pyroccam.inference.fits.fitting import Fit
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_pruned
from pyroccam.inference.pruning import at_depth
from pyroccam.inference.storage.checkpoint import versions, write_history, write_json
from pyroccam.inference.training.settings import Settings
from pyroccam.models.checks import unknown_name

from .. import options
from ..runner import Row, untrained
from .panels import ScanPanel, scan_panels

TEST_ROWS = 1800


@dataclass(frozen=True)
class Scan:
    """A setting that is varied.

    Attributes:
        title, xlabel, ticks, log: of the panel in the figure.
        values: of the setting.
        settings: from a value to what ``--set`` would be given.
        fixed: settings of every point, which ``--set`` can change.
        method: a name in the table of methods.
        authors: chosen depths with the authors' code, by value.
    """

    title: str
    xlabel: str
    values: tuple[int, ...]
    settings: Callable[[int], dict[str, Any]]
    fixed: dict[str, Any] = field(default_factory=dict)
    method: str = "ldn"
    ticks: tuple[int, ...] = ()
    log: bool = True
    authors: dict[float, float] = field(default_factory=dict)


def _rows(n: int) -> dict[str, Any]:
    return {"data.n": n + TEST_ROWS, "data.train_fraction": n / (n + TEST_ROWS)}


# The authors' chosen depths are in figures only: these are means over runs of their code, two of
# 2000 steps at each value (at D = 20 five of up to 8000).
SCANS = {
    "max-depth": Scan(
        "maximum depth", "maximum depth D (blocks)", (5, 10, 20, 40, 60, 80, 100),
        lambda v: {"max_depth": v}, ticks=(5, 10, 20, 40, 60, 100),
        authors={5: 5, 10: 7, 20: 7.4, 40: 10},
    ),
    "fixed-depth": Scan(
        "deterministic networks", "fixed depth (blocks)",
        (0, 1, 2, 3, 5, 7, 10, 20, 40, 60, 80, 100),
        lambda v: {"max_depth": v}, method="ddn", ticks=(0, 1, 2, 5, 10, 20, 40, 100),
    ),
    "degrees": Scan(
        "complexity", "winding of the arms (degrees)", (180, 360, 720, 1080, 1440),
        lambda v: {"data.turns": v}, {"data.noise": 0.15}, log=False,
        authors={180: 2, 360: 4, 720: 9, 1080: 10.5, 1440: 15.5},
    ),
    "rows": Scan(
        "amount of data", "training data (rows)", (50, 100, 200, 400, 800),
        _rows, {"data.noise": 0.15},
    ),
    "width": Scan(
        "width", "width (units)", (5, 10, 20, 50, 100, 300, 1000), lambda v: {"width": v},
    ),
}  # fmt: skip

METRICS = (
    "depth_chosen", "depth_chosen_exact", "depth_chosen_running", "depth_rounded_mean",
    "depth_expected", "tv_running", "accuracy", "nll", "ece", "pruned_accuracy", "train_seconds",
)  # fmt: skip
# train_seconds is the time of all seeds that were trained together
COLUMNS = (
    "scan", "value", "seed", *METRICS, "trained_together", "deterministic_depth", "steps",
    "settings",
)  # fmt: skip
SHOWN = ("depth_chosen", "depth_chosen_exact", "accuracy", "pruned_accuracy", "train_seconds")


@dataclass(frozen=True)
class Point:
    """A value of a scan, and the run of its first seed."""

    scan: str
    value: int
    config: RunConfig
    data: Dataset

    @classmethod
    def of(cls, scan: str, value: int, sets: dict[str, Any]) -> Point:
        sets = {**SCANS[scan].fixed, **sets, **SCANS[scan].settings(value)}
        return cls(scan, value, *RunConfig.resolve(SCANS[scan].method, "spirals", sets=sets))

    @property
    def digest(self) -> str:
        """Which settings a row of the CSV was run with."""
        text = json.dumps(self.config.without_seed(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def steps(self) -> int:
        """Steps of the optimiser."""
        settings, rows = Settings.of(self.config.settings), self.data.N
        return settings.epochs_for(rows) * settings.steps_per_epoch(rows)

    @property
    def cost(self) -> float:
        """Cost of a fit, for the order of fits only: small layers cost their overhead, large ones
        their products."""
        network = self.config.network_options
        products = self.data.N * network["width"] ** 2 / 1e6
        return self.steps * (1 + network["max_depth"]) * (1 + products)

    def fit(self, seeds: list[int], out: Path, device: str) -> list[Fit]:
        """The trained networks of the seeds; goes on from checkpoints in ``out``."""

        def build(seed: int) -> tuple[Any, Any, Dataset]:
            config = self.config.with_seed(seed)
            data = config.load_data()
            return *untrained(config, data), data

        settings = {k: v for k, v in self.config.settings.items() if k != "seed"}
        label = f"{self.scan} {self.value}"
        more: dict[str, Any] = {"out": out, "resume": True, "device": device, "label": label}
        if "threshold" in self.config.options:
            more["threshold"] = float(self.config.options["threshold"])
        return fit_repeats(build, seeds, **more, **settings).fits

    def row(self, result: Fit) -> Row:
        """The row of one network in the CSV."""
        test, structure = result.evaluate("test"), result.structure
        row: Row = {"scan": self.scan, "value": self.value, "seed": result.settings.seed}
        row |= {name: test[name] for name in ("accuracy", "nll", "ece")}
        if structure is None:
            row["deterministic_depth"] = result.model.depth
        else:
            row |= {k: v for k, v in structure.to_json().items() if k in METRICS}
            data = result.data
            pruned = evaluate_pruned(at_depth(result), data.x_test, data.y_test, data.y_std)
            row["pruned_accuracy"] = pruned["accuracy"]
        row["train_seconds"] = result.seconds
        row["trained_together"] = result.engine.get("replicates", 1)
        row |= {"steps": self.steps, "settings": self.digest}
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}
        return {name: short.get(name) for name in COLUMNS}


class Results:
    """The files: a CSV for each scan, and ``scans.json`` with their summary.

    Arguments:
        out: their folder; what is in it is read.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: dict[str, list[Row]] = {}
        self.changed = not (out / "scans.png").exists()
        self.ran: dict[tuple[str, int], dict[str, Any]] = {}
        for scan in SCANS:
            path = out / f"{scan}.csv"
            if path.exists():
                with path.open(newline="") as file:
                    self.rows[scan] = [_typed(row) for row in csv.DictReader(file)]
        if (out / "scans.json").exists():
            for scan, found in json.loads((out / "scans.json").read_text()).items():
                self.ran |= {(scan, p["value"]): p["ran"] for p in found["points"]}

    def at(self, scan: str, value: int) -> list[Row]:
        """The rows of one point."""
        return [row for row in self.rows.get(scan, []) if row["value"] == value]

    def values(self, scan: str) -> list[int]:
        return sorted({row["value"] for row in self.rows.get(scan, [])})

    def spread(self, scan: str, value: int) -> dict[str, dict[str, float | None]]:
        """Mean, standard deviation and number of each metric at one point."""
        rows = self.at(scan, value)
        return mean_spread([{k: r[k] for k in METRICS if r[k] is not None} for r in rows])

    def add(self, point: Point, rows: Iterable[Row], **ran: Any) -> None:
        """Take up rows, and write the files."""
        self.changed = True
        self.rows.setdefault(point.scan, []).extend(rows)
        self.rows[point.scan].sort(key=lambda row: (row["value"], row["seed"]))
        self.ran[point.scan, point.value] = {"config": point.config.without_seed(), **ran}
        write_history(self.out / f"{point.scan}.csv", self.rows[point.scan])
        self.summarise()

    def summarise(self) -> None:
        """Write ``scans.json``."""
        write_json(self.out / "scans.json", {scan: self._summary(scan) for scan in self.rows})

    def _summary(self, scan: str) -> Row:
        points = [
            {
                "value": value,
                "seeds": len(self.at(scan, value)),
                "steps": self.at(scan, value)[0]["steps"],
                "spread": self.spread(scan, value),
                "ran": self.ran.get((scan, value)),
            }
            for value in self.values(scan)
        ]
        return {"title": SCANS[scan].title, "setting": SCANS[scan].xlabel, "points": points}

    def picture(self) -> Figure:
        """The figure of all scans that there are."""
        panels = []
        for name, scan in SCANS.items():
            values = self.values(name)
            if not values:
                continue
            runs = [self.at(name, value) for value in values]
            error = [[100 * (1 - row["accuracy"]) for row in rows] for rows in runs]
            depth = [[row["depth_chosen"] for row in rows] for rows in runs]
            panels.append(
                ScanPanel(
                    scan.title, scan.xlabel, values, error,
                    None if scan.method == "ddn" else depth, scan.authors, scan.ticks, scan.log,
                )
            )  # fmt: skip
        return scan_panels(panels, "authors' code,\nmean of 2 to 5 runs")


def main(
    out: options.Out = options.RESULTS / "scans",
    scans: Annotated[str, options.BY_COMMAS] = ",".join(SCANS),
    repeats: Annotated[int, typer.Option(min=1, help="Seeds of each point.")] = 4,
    values: Annotated[
        list[str] | None,
        typer.Option(help="Other values for a scan.", metavar="SCAN=VALUE,VALUE,..."),
    ] = None,
    steps: Annotated[
        list[str] | None,
        typer.Option(help="Optimiser steps: of all, of a scan, of a point.",
                     metavar="[SCAN[:VALUE]=]STEPS"),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="As for `pyroccam fit`; what a scan varies stays its own.",
                     metavar="KEY=VALUE"),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    device: options.Device = "auto",
) -> None:  # fmt: skip
    """Run what is missing; write a CSV for each scan, ``scans.json`` and a figure."""
    torch.set_num_threads(threads)
    try:
        points = _points(scans, values or [], steps or [], parse_settings(sets or []))
        results = Results(out)
        _refuse_others(points, results)
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None
    failed = False
    for point in points:
        scan, value = point.scan, point.value
        done = {row["seed"] for row in results.at(scan, value)}
        missing = [seed for seed in range(repeats) if seed not in done]
        if missing:
            among = "-".join(map(str, [scan, value, point.digest, *missing]))
            unfinished = out / "unfinished" / among
            broken = None
            try:
                fits = point.fit(missing, unfinished, device)
            except NonFiniteLoss as error:
                fits, broken, failed = list(error.fits), str(error), True
                print(f"{scan} {value}: {error}", flush=True)
            except Interrupted as stopped:
                print(f"{stopped} The same command goes on.", flush=True)
                raise typer.Exit(130) from None
            if fits:
                results.add(
                    point,
                    [point.row(one) for one in fits],
                    device=_name_of(fits[0].data.device),
                    threads=threads,
                    engine=fits[0].engine,
                    versions=versions(),
                    failed=broken,
                )
                shutil.rmtree(unfinished)
        if results.at(scan, value):
            results.ran.setdefault((scan, value), {"config": point.config.without_seed()})
            print(_line(point, results, len(missing)), flush=True)
    if (out / "unfinished").exists() and not any((out / "unfinished").iterdir()):
        (out / "unfinished").rmdir()
    if any(results.rows.values()) and results.changed:
        results.summarise()
        figures.save(results.picture(), out / "scans")
    if failed:
        raise typer.Exit(1)


def _points(scans: str, values: list[str], steps: list[str], sets: dict[str, Any]) -> list[Point]:
    """The points asked for, from cheap to expensive."""
    chosen = {scan: SCANS[scan].values for scan in options.listed("scan", scans, SCANS)}
    for text in values:
        scan, _, numbers = text.partition("=")
        if scan not in chosen:
            raise ValueError(unknown_name("scan", scan, chosen))
        chosen[scan] = tuple(dict.fromkeys(_whole(number, text) for number in numbers.split(",")))
    places = {"", *chosen, *(f"{scan}:{v}" for scan, listed in chosen.items() for v in listed)}
    counts: dict[str, int] = {}
    for text in steps:
        where, _, number = text.rpartition("=")
        if where not in places:
            raise ValueError(unknown_name("scan or point", where, places - {""}))
        counts[where] = _whole(number, text)
    points = []
    for scan, listed in chosen.items():
        for value in listed:
            own = [counts[w] for w in ("", scan, f"{scan}:{value}") if w in counts]
            more = {"steps": own[-1]} if own else {}
            points.append(Point.of(scan, value, {**sets, **more}))
    return sorted(points, key=lambda point: point.cost)


def _whole(number: str, text: str) -> int:
    if not number.strip().isdecimal():
        raise ValueError(f"{text!r}: {number!r} is not a whole number.")
    return int(number)


def _refuse_others(points: list[Point], results: Results) -> None:
    """A point that was run with other settings is neither repeated nor mixed with."""
    others = [
        f"{p.scan} {p.value}"
        for p in points
        if any(row["settings"] != p.digest for row in results.at(p.scan, p.value))
    ]
    if others:
        raise ValueError(
            f"{results.out} holds points that were run with other settings: {', '.join(others)}. "
            "Repeat the command as it was, give another --out, or delete their rows."
        )


def _typed(row: dict[str, str]) -> Row:
    """A row of the CSV with its numbers."""

    def number(text: str) -> float | None:
        return None if text == "" else int(text) if text.lstrip("-").isdecimal() else float(text)

    return {k: v if k in ("scan", "settings") else number(v) for k, v in row.items()}


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _line(point: Point, results: Results, new: int) -> str:
    def pm(name: str) -> str:
        found = spread[name]
        sd = "" if found["sd"] is None else f" ± {found['sd']:.2g}"
        return f"{found['mean']:.3g}{sd}"

    spread = results.spread(point.scan, point.value)
    said = [f"{name.replace('_', ' ')} {pm(name)}" for name in SHOWN if name in spread]
    n = len(results.at(point.scan, point.value))
    return f"{point.scan} {point.value} ({n} seeds, {new} new): {', '.join(said)}"


if __name__ == "__main__":
    typer.run(main)
