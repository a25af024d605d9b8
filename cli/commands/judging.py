"""``pyroccam evaluate``, ``diagnose`` and ``report``: how good a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from ...data import AtLeastTwo, Between, PyroccamError
from .. import OpenOptions, need_file
from .application import app, console


@app.command()
def evaluate(
    folder: Path,
    *,
    data: str | None = None,
    split: Literal["train", "val", "test"] = "test",
    out: Path | None = None,
    opening: OpenOptions,
) -> None:
    """Evaluate the network of a run, whole and as it was handed back, on its own or on other data.

    Arguments:
        folder: Folder of a finished run.
        data: New rows to score: a .csv or .npz file, a folder or Parquet file as of `pyroccam fit`,
            or the test rows of a data set. They are never split, and are scaled as the rows of the
            training were. The run's own data if left out.
        split: Which rows of the run's own data.
        out: Also write the numbers as JSON.
    """
    from ...inference.storage import versions, write_json
    from ..runs import METRICS, Cell, Table, called, load_fit, names_own_data, read_new_rows, score

    need_file(out)
    same = data is not None and names_own_data(folder, data)
    if data is not None and not same and split != "test":
        raise PyroccamError(f"--split {split}: new rows are not split. Leave it, or --data, out.")
    result = load_fit(folder, **vars(opening), data_file=data if same else None)
    sets = {"": result.data}
    if data is not None and not same:
        sets = read_new_rows(console, data, folder, opening, result.data)
    found = score(console, folder, result, sets, split)
    rows = sets[""]
    shown = [
        [
            Cell(called(name, "pruned" in found)),
            *(Cell(f"{v:.4f}" if abs(v) < 1e7 else f"{v:.4g}", v) for v in each.values()),
        ]
        for name, each in found.items()
    ]
    chose = ", which chose the checkpoint: too good for an estimate" if split == "val" else ""
    console.say(f"{rows.counts[split]:,} {split} rows of {rows.name}{chose}")
    console.print(
        Table("", ["network", *(METRICS.get(n, n) for n in next(iter(found.values())))], shown)
    )
    if out is not None:
        write_json(out, {"data": rows.name, "split": split, "versions": versions(), **found})


@app.command()
def diagnose(
    folder: Path,
    *,
    draws: Annotated[int, Between(100)] = 1000,
    rows: AtLeastTwo | None = None,
    opening: OpenOptions,
) -> None:
    """Say in plain words whether the posterior of a run can be trusted, and for what; of repeats,
    whether they agree. Writes diagnostics.json, figures, and posterior.nc for ArviZ.

    Arguments:
        folder: Folder of a finished run.
        draws: From the posterior.
        rows: Training rows that the draws pass: all if left out, or 2,000 where all would take
            long.
    """
    from .. import diagnose_run, print_findings

    found, written = diagnose_run(folder, draws=draws, rows=rows, **vars(opening))
    print_findings(console, found)
    console.say("Written to ", (str(folder), "bold"), ":")
    for path in written:
        console.say(f"  {path.relative_to(folder)}")


@app.command()
def report(
    folders: Annotated[list[Path], "RUN [RUN ...]"], *, out: Path = Path("report.html")
) -> None:
    """Write one page on a run, or on several side by side: summary, metrics, figures, diagnostics,
    settings. It holds everything itself and opens in any browser, offline.

    Arguments:
        folders: Folders of finished runs, or of sweeps.
        out: File to write.
    """
    from ...inference.storage import write_whole
    from ..pages import report as report_page
    from ..sweeps import finished_cells

    if out.suffix not in (".html", ".htm"):
        raise PyroccamError(f"--out {out}: expected a file name that ends in .html.")
    need_file(out)
    runs = [run for folder in folders for run in finished_cells(folder)]
    page = report_page(runs).encode("utf-8", "backslashreplace")  # names of files may be no text
    write_whole(out, lambda file: file.write(page))
    console.say("Written to ", (str(out), "bold"), f" ({len(page) / 1e6:.1f} MB)")
