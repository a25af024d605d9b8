"""The scans of the source's README on spirals: what the chosen depth depends on.

    python -m experiments scans --again

One setting is varied at a time: maximum depth, depth of a deterministic network, training rows,
degrees that the arms wind, width. The others are the source's: D = 20, width 20, 720 degrees, 200
training rows of which a tenth is kept for validation, and noise 0.2 (0.15 for rows and degrees).
Unlike theirs, every network is tested on 1800 rows. Beside these are regressions whose last layer
has a closed form, with q(d) held at its prior (`--data-root` for Boston). A finished seed of a
point is kept, and an interrupted point is gone on with. The rows of a scan are in a CSV.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pyroccam.cli.runs.config import RunConfig
from pyroccam.data import Dataset
from pyroccam.data.errors import PyroccamError
from pyroccam.inference import NonFiniteLoss, figures, fit_repeats
from pyroccam.inference.posterior.predict import evaluate_pruned
from pyroccam.inference.shrinking.depth import at_depth
from pyroccam.inference.training.result import Fit

from ..markdown import header, mean_sd, row
from ..runner import Choice, Given, Row, Spec, resolve, untrained
from .panels import ScanPanel, scan_panels

__all__ = ["SCANS", "SPEC"]

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
        data: a name of data.
        authors: chosen depths with the authors' code, by value.
    """

    title: str
    xlabel: str
    values: tuple[int, ...]
    settings: Callable[[int], dict[str, Any]]
    fixed: dict[str, Any] = field(default_factory=dict)
    method: str = "ldn"
    data: str = "spirals"
    ticks: tuple[int, ...] = ()
    log: bool = True
    authors: dict[float, float] = field(default_factory=dict)


def _closed(title: str, data: str, **fixed: Any) -> Scan:
    """Maximum depths under a last layer in closed form."""
    common = {"likelihood": "closed-form", "held": "prior", "weight_decay": 0.3, "batch_size": 128}
    return Scan(
        title, f"maximum depth D (blocks), {title}", (10, 20, 40, 100), lambda v: {"max_depth": v},
        {**common, **fixed}, data=data, ticks=(10, 20, 40, 100),
    )  # fmt: skip


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
    "held-depth": Scan(
        "q(d) held at its prior", "maximum depth D (blocks), held",
        (10, 20, 40, 100), lambda v: {"max_depth": v}, {"held": "prior"}, ticks=(10, 20, 40, 100),
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
    "closed-boston": _closed("Boston", "uci/boston", steps=1000, **{"data.split": 0}),
    "closed-wiggle": _closed("wiggle", "wiggle", steps=4000),
    "closed-spirals": _closed(
        "sides of spirals, noise .3", "experiments.sets:spiral_sides", steps=4000,
        **{"data.error": 0.3},
    ),
}  # fmt: skip

METRICS = (
    "depth_chosen", "depth_chosen_exact", "depth_chosen_running", "depth_rounded_mean",
    "depth_expected", "tv_running", "accuracy", "nll", "ece", "rmse", "pruned_accuracy",
    "train_seconds",
)  # fmt: skip
# train_seconds is the time of all seeds that were trained together
COLUMNS = (
    "scan", "value", "seed", *METRICS, "trained_together", "deterministic_depth", "steps",
    "settings",
)  # fmt: skip


def read(folder: Path, scan: str) -> pd.DataFrame:
    """The rows of a scan, with none if there is no file."""
    path = folder / f"{scan}.csv"
    if not path.exists():
        return pd.DataFrame(columns=list(COLUMNS))
    return pd.read_csv(path)


@dataclass(frozen=True)
class Point:
    """A value of a scan, and the run of its first seed."""

    scan: str
    value: int
    config: RunConfig
    data: Dataset

    @classmethod
    def of(cls, scan: str, value: int, given: Given) -> Point:
        """The point with these settings."""
        how = SCANS[scan]
        sets = {**how.fixed, **given.set, **how.settings(value)}
        return cls(
            scan, value, *resolve(how.method, how.data, sets=sets, data_root=given.data_root)
        )

    @property
    def digest(self) -> str:
        """Which settings a row of the CSV was run with."""
        text = json.dumps(self.config.without_seed(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def fit(self, seeds: list[int], out: Path, device: str) -> list[Fit]:
        """The trained networks of the seeds; goes on from checkpoints in ``out``. Those whose loss
        was not finite are left out."""

        def build(seed: int) -> tuple[Any, Any, Dataset]:
            config = self.config.with_seed(seed)
            data = config.load_data()
            return *untrained(config, data), data

        more = {k: v for k, v in self.config.settings.items() if k != "seed"}
        if "threshold" in self.config.options:
            more["threshold"] = float(self.config.options["threshold"])
        try:
            return fit_repeats(build, seeds, out=out, resume=True, device=device, **more).fits
        except NonFiniteLoss as error:
            print(f"{self.scan} {self.value}: {error}", flush=True)
            return list(error.fits)

    def row(self, result: Fit) -> Row:
        """The row of one network in the CSV."""
        test, structure = result.evaluate("test"), result.structure
        row: Row = {"scan": self.scan, "value": self.value, "seed": result.settings.seed}
        row |= {name: test[name] for name in ("accuracy", "nll", "ece", "rmse") if name in test}
        if structure is None:
            row["deterministic_depth"] = len(result.model.part("net")) - 2  # without its two ends
        else:
            row |= {k: v for k, v in structure.to_json().items() if k in METRICS}
            data = result.data
            pruned = evaluate_pruned(at_depth(result), data.x_test, data.y_test, data.y_std)
            row["pruned_accuracy"] = pruned.get("accuracy")
        row["train_seconds"] = result.seconds
        row["trained_together"] = result.engine.get("replicates", 1)
        settings, rows = result.settings, self.data.N
        row["steps"] = settings.epochs_for(rows) * settings.steps_per_epoch(rows)
        row["settings"] = self.digest
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()}
        return {name: short.get(name) for name in COLUMNS}


class Scans(Spec):
    """What is run are points, and what is kept are rows of a CSV."""

    def run(self, given: Given) -> None:
        """Run what is missing of each point; write a CSV for each scan, and a figure.

        Raises:
            PyroccamError: for a point that was run with other settings.
        """
        points = [
            Point.of(scan, value, given)
            for scan in given.scans
            for value in given.values or SCANS[scan].values
        ]
        for point in points:
            known = read(given.out, point.scan)
            if (known.settings[known.value == point.value] != point.digest).any():
                raise PyroccamError(f"{point.scan} {point.value} was run with other settings")
        trained = False
        for point in points:
            known = read(given.out, point.scan)
            done = set(known.seed[known.value == point.value])
            if not (missing := [seed for seed in range(given.seeds) if seed not in done]):
                continue
            among = "-".join(map(str, [point.scan, point.value, point.digest, *missing]))
            unfinished = given.out / "unfinished" / among
            rows = [point.row(one) for one in point.fit(missing, unfinished, given.device)]
            for one in rows:
                print({k: v for k, v in one.items() if v is not None}, flush=True)
            found = pd.DataFrame([*known.to_dict("records"), *rows], columns=list(COLUMNS))
            found = found.convert_dtypes().sort_values(["value", "seed"])
            found.to_csv(given.out / f"{point.scan}.csv", index=False)
            shutil.rmtree(unfinished.parent)  # points are run one after the other
            trained = True
        if trained or not (given.out / "scans.png").exists():
            figures.save(picture(given.out), given.out / "scans")


def picture(folder: Path) -> Figure:
    """The figure of all scans that there are."""
    panels = []
    for name, scan in SCANS.items():
        points = [point for _, point in read(folder, name).groupby("value")]
        if points and scan.data == "spirals":
            error = [(100 * (1 - point.accuracy)).tolist() for point in points]
            depth = [point.depth_chosen.tolist() for point in points]
            values = [int(point.value.iloc[0]) for point in points]
            panels.append(
                ScanPanel(
                    scan.title, scan.xlabel, values, error,
                    None if scan.method == "ddn" else depth, scan.authors, scan.ticks, scan.log,
                )
            )  # fmt: skip
    return scan_panels(panels, "authors' code,\nmean of 2 to 5 runs")


def table(folder: Path) -> Iterable[str]:
    """Chosen depth and accuracy at each point."""
    for name, scan in SCANS.items():
        points = dict(iter(read(folder, name).groupby("value")))
        if not points:
            continue
        yield from header(scan.xlabel, *map(str, points))
        if scan.method != "ddn":
            yield row("chosen depth", *(mean_sd(p.depth_chosen, 1) for p in points.values()))
        if scan.data == "spirals":
            yield row("accuracy, %", *(mean_sd(p.accuracy, 1, 100) for p in points.values()))
        else:
            yield row("NLL, nats", *(mean_sd(p.nll, 3) for p in points.values()))
        common = []
        numbers = {
            "seeds": [len(p) for p in points.values()],
            "steps": [p.steps.iloc[0] for p in points.values()],
        }
        for what, counts in numbers.items():
            if len(set(counts)) > 1:
                yield row(what, *counts)
            else:
                common.append(f"{counts[0]} {what}")
        yield ""
        if common:
            yield f"{', '.join(common)}."
            yield ""


SPEC = Scans(
    "experiments.published.depth.scans", "Scans", "scans",
    {"scans": Choice(SCANS), "values": (), "seeds": 4, "set": {}, "device": "auto",
     "data_root": str},
    lambda given: [], table,
    small="--scans max-depth,fixed-depth,closed-wiggle --values 1 --seeds 2 --set width=4 "
    "--set steps=12",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
