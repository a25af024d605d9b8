"""``pyroccam certify``: what is certain of the errors of a network on rows that nobody has seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...data import PyroccamError
from .. import need_file
from .application import Device, Moved, Network, Trust, app, console

if TYPE_CHECKING:
    from ...inference.certificates import Certificate


@app.command()
def certify(
    what: Annotated[Path, typer.Argument(help="A .pocc file, or the folder of a finished run.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Of a file: the data set that it was trained on, by name or path, with all rows "
            "that had a part in it. A run knows its own."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the statement, from .5 to 1.")] = 0.95,
    within: Annotated[
        float | None,
        typer.Option(
            help="Of a regression: a row is wrong if a target is farther off than this, in its own "
            "units; decided before the rows were seen."
        ),
    ] = None,
    choices: Annotated[
        int,
        typer.Option(
            min=1,
            help="Fits or networks that this one was chosen from by a look at the rows, of the "
            "posterior and of the test rows; a file is paid for whatever chose it.",
        ),
    ] = 1,
    data_root: Moved = None,
    device: Device = "auto",
    network: Network = None,
    trust: Trust = False,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Certify: at most so many of new rows are wrong, by the length of a file, by the KL of the
    posterior, and by test rows; true of all rows that come from where those of the data came."""
    from ...data import load
    from ...inference import certify as certified
    from ...inference.certificates import ByFile, ByPosterior, ByTest
    from ...inference.storage import write_json
    from ..runs import load_fit

    need_file(out)
    found: dict[str, Certificate] = {}
    if what.is_dir():
        fit = load_fit(what, device, network=network, trust=trust, data_root=data_root)
        rows = fit.data
        files = [*sorted(what.glob("*.pocc*")), *filter(Path.is_dir, [what / "pruned"])]
        by = ByPosterior(within=within, choices=choices)
        try:
            found["posterior"] = certified(fit, rows, by=by, confidence=confidence)
        except PyroccamError as error:
            console.say(("posterior: ", "bold"), f"none, {error}")
    elif data is None:
        raise PyroccamError(f"{what} without --data", "the data that it was trained on")
    else:
        options: Any = {} if data_root is None else {"data_root": data_root}
        rows, files = load(data, **options), [what]
    for file in files:
        found[file.name] = certified(file, rows, by=ByFile(within=within), confidence=confidence)
        if rows.counts["test"]:
            test = ByTest(within=within, choices=choices)
            by_test = certified(file, rows, by=test, confidence=confidence)
            found[f"{file.name}, test rows"] = by_test
    for name, one in found.items():
        console.say((f"{name}: ", "bold"), str(one))
    if out is not None:
        write_json(out, {name: one.to_json() for name, one in found.items()})
