"""What is to say of one run, or of several side by side: sentences, tables, figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...data import PyroccamError
from ..runs import (
    METRICS,
    Cell,
    Network,
    Table,
    cell,
    learnt_tables,
    networks,
    reading,
    scores,
    whole,
)
from .catalogue import DIAGNOSIS, pictures, reading_order, slug
from .files import RunFiles, read_run
from .html import Page, Picture, Section, render
from .numbers import HIGHER, best_of, listed, training_seconds
from .words import data_of, doubts, summary


def report(folders: Sequence[Path]) -> str:
    """One HTML page of finished runs."""
    return render(page_of(folders))


def page_of(folders: Sequence[Path]) -> Page:
    """All that there is to say of finished runs."""
    if not folders:
        raise PyroccamError("folders: got no runs, expected at least one")
    runs = [read_run(folder) for folder in folders]
    places = [run.folder.resolve() for run in runs]
    for k, place in enumerate(places):
        if place in places[:k]:
            raise PyroccamError(f"{runs[k].folder} is given twice; a run is compared with others.")
    with reading(" and ".join(str(run.folder / "metrics.json") for run in runs)):
        return _single(runs[0]) if len(runs) == 1 else _several(_told_apart(runs))


def _told_apart(runs: list[RunFiles]) -> list[RunFiles]:
    """Runs of equal names in different folders get the name of the folder above too."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.folder.resolve().parent.name}/{run.name}")
        if names.count(run.name) > 1
        else run
        for run in runs
    ]


def _single(run: RunFiles) -> Page:
    shown = [replace(p, text=f"{p.text} {p.seed}".strip()) for p in pictures(run).values()]
    figures = [Section("Figures", pictures=shown)] if shown else []
    title = f"{run.config.method} on {data_of(run)}"
    return Page(title, _of_run(run, figures), summary(run), doubts(run))


def _several(runs: list[RunFiles]) -> Page:
    sections = [Section("Side by side", tables=[_compared(runs)])]
    drawn = {run.name: pictures(run) for run in runs}
    parts = []
    for kind in reading_order(name for found in drawn.values() for name in found):
        own = {name: found[kind] for name, found in drawn.items() if kind in found}
        about = next(iter(own.values()))  # what all of a kind share
        shown = [replace(p, title=name, text=p.seed) for name, p in own.items()]
        parts.append(Section(about.title, [about.text] if about.text else [], pictures=shown))
    if parts:
        sections.append(Section("Figures", parts=parts))
    sections += [Section(r.name, [*doubts(r), *summary(r)], parts=_of_run(r)) for r in runs]
    named = ", ".join(run.name for run in runs)
    return Page(f"{len(runs)} runs side by side", sections, [f"The runs are {named}."])


def _of_run(run: RunFiles, figures: Sequence[Section] = ()) -> list[Section]:
    learnt = [
        replace(table, caption=f"{table.caption}, {run.name}") for table in learnt_tables(run.seeds)
    ]
    settings = [[Cell(name), Cell(_written(value))] for name, value in run.config.flat().items()]
    versions = [[Cell(name), Cell(str(value))] for name, value in run.first["versions"].items()]
    return [
        Section("Networks on the test rows", tables=[_scores(run)]),
        *([Section("What was learnt", tables=learnt)] if learnt else []),
        *figures,
        *_diagnosis(run),
        Section("Settings", folded=True, tables=[
            Table(f"Settings, {run.name}", ["setting", "value"], settings)
        ]),
        Section("Versions", folded=True, tables=[
            Table(f"Versions, {run.name}", ["package", "version"], versions)
        ]),
    ]  # fmt: skip


# -- tables ---------------------------------------------------------------------------------------


def _scores(run: RunFiles) -> Table:
    """Every network of a run with its metrics on the test rows."""
    found = scores(run.seeds, f"Metrics on the test rows, {run.name}")
    several = len(run.seeds) > 1
    spread_note = f" Mean ± standard deviation over {len(run.seeds)} seeds." if several else ""
    up = [METRICS[name] for name in HIGHER if METRICS[name] in found.head]
    named = listed(up) if up else ""
    higher = f"{named[0].upper()}{named[1:]}: higher is better; all others: lower. " if up else ""
    covered = METRICS["coverage"] in found.head
    covers = "Coverage: of the targets by the central 90 %. " if covered else ""
    units = ", targets in their own units" if METRICS["rmse"] in found.head else ""
    nll = f"NLL is the negative log-likelihood in nats per row{units}."
    return replace(found, note=f"{higher}{covers}{nll}{spread_note}")


def _compared(runs: Sequence[RunFiles]) -> Table:
    """Runs as columns, with the best in bold where their spread allows saying so."""
    same = len({data_of(run) for run in runs}) == 1
    found = [networks(run.seeds) for run in runs]
    rows = [
        [Cell("method"), *(Cell(run.config.method) for run in runs)],
        [Cell("data"), *(Cell(data_of(run)) for run in runs)],
        [Cell("network"), *(Cell(run.config.network) for run in runs)],
        [Cell("seeds"), *(cell([len(run.seeds)], ".0f") for run in runs)],
    ]

    def add(name: str, columns: list[list[float]], form: str, higher: bool | None) -> None:
        if not any(columns):
            return
        # Of data that differ, the lower error is no merit.
        best = best_of(columns, higher) if same and higher is not None else None
        shown = [cell(column, form, k == best) for k, column in enumerate(columns)]
        rows.append([Cell(name), *shown])

    before = [[1e3 * t for t in whole(run.seeds)[1]] for run in runs]
    for kind in ("whole", "small"):
        none = Network("", kind, [], [], [])
        chosen = [next((n for n in one if n.kind == kind), none) for one in found]
        for name, title in METRICS.items():
            columns = [[test[name] for test in n.test if name in test] for n in chosen]
            higher = None if name == "coverage" else name in HIGHER  # as near to 0.9 as it can be
            add(f"{title}, {kind} network", columns, ".4f", higher)
        sizes = [[float(p) for p in n.parameters] for n in chosen]
        add(f"parameters, {kind} network", sizes, ",.0f", False if kind == "small" else None)
        own = [[1e3 * t for t in n.seconds] for n in chosen]
        times = before if kind == "whole" else own
        add(f"ms per batch, one pass of the {kind} network", times, ".2f", None)
    cut = [[one.get("structure") or {} for one in run.seeds] for run in runs]
    bytes_ = [[float(s) for one in each if (s := one.get("file_bytes"))] for each in cut]
    add("file, bytes", bytes_, ",.0f", False)
    for part, title in (("weights", "weights"), ("targets", "targets"), ("total", "both")):
        each = [[one["message"][part] for one in run.seeds if "message" in one] for run in runs]
        add(f"bits by the bound, {title}", each, ",.0f", False if part == "total" else None)
    sent = [[one["sent"] for one in run.seeds if "sent" in one] for run in runs]
    bits = [[one["file"] + one["left"] for one in each] for each in sent]
    add("bits of the file and of the labels with it", bits, ",.0f", False)
    took = [[training_seconds(one) for one in run.seeds] for run in runs]
    add("training of a seed, s", took, ".0f", None)
    note = (
        "Mean ± standard deviation over seeds. Bold: the best, where it differs from every other "
        "run by Welch's t-test at 5 % (Bonferroni over the pairs); runs of one seed have no spread "
        "to say so."
        if same
        else "Mean ± standard deviation over seeds. The runs are of different data, so none is "
        "called the best."
    )
    return Table("The runs side by side", ["", *(run.name for run in runs)], rows, note)


# -- diagnosis -----------------------------------------------------------------------------------


def _diagnosis(run: RunFiles) -> list[Section]:
    if not run.findings:
        return []
    files = {name: path for name, path in run.figures().items() if name.startswith(DIAGNOSIS)}
    remarks = []
    for one in run.findings:
        path = files.pop(f"{DIAGNOSIS}{slug(one['name'])}", None)
        picture = None
        if path is not None:
            picture = Picture(path, f"Figure of {one['name']}: {one['text']}", one["name"])
        numbers = {k: _written(v) for k, v in one.get("numbers", {}).items()}
        remarks.append({**one, "numbers": numbers, "picture": picture})
    rest = [
        Picture(path, f"Figure {name} of {run.name}.", name.removeprefix(DIAGNOSIS))
        for name, path in files.items()
    ]
    return [Section("Can it be trusted?", remarks=remarks, pictures=rest)]


def _written(value: Any) -> str:
    """A setting, or a number behind a finding, as it is read."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"
