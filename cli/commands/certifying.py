"""``pyroccam certify``: what is certain of the errors of a network on rows that nobody has seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data import Count, PyroccamError
from .. import OpenOptions, need_file
from .application import app, console

if TYPE_CHECKING:
    from ...inference.certificates import Certificate


@app.command()
def certify(
    what: Path,
    *,
    data: str | None = None,
    confidence: float = 0.95,
    within: float | None = None,
    choices: Count = 1,
    out: Path | None = None,
    opening: OpenOptions,
) -> None:
    """Certify: at most so many of new rows are wrong, by the length of a file, by the KL of the
    posterior, and by test rows; true of all rows that come from where those of the data came.

    Arguments:
        what: A .pocc file, or the folder of a finished run.
        data: Of a file: the data set that it was trained on, by name or path, with all rows that
            had a part in it. A run knows its own; without data a file says what it carries.
        confidence: Of the statement, from .5 to 1.
        within: Of a regression: a row is wrong if a target is farther off than this, in its own
            units; decided before the rows were seen.
        choices: Fits or networks that this one was chosen from by a look at the rows, of the
            posterior and of the test rows; a file is paid for whatever chose it.
        out: Also write the numbers as JSON.
    """
    from ...data import load
    from ...inference import certify as certified
    from ...inference.certificates import ByFile, ByPosterior, ByTest
    from ...inference.files import note_of
    from ...inference.storage import write_json
    from ...inference.training import pick_device
    from ..methods import DRAW, FILE
    from ..runs import load_fit

    need_file(out)
    found: dict[str, Certificate] = {}
    if what.is_dir():
        if data is not None:
            raise PyroccamError("--data of a run", "none, it knows its own")
        fit = load_fit(what, **vars(opening))
        rows = fit.data
        named = [what / name for name in (FILE, DRAW, "discretised", "pruned")]
        files, likelihood = [path for path in named if path.exists()], fit.model.likelihood
        by = ByPosterior(within=within, choices=choices)
        try:
            found["posterior"] = certified(fit, rows, by=by, confidence=confidence)
        except PyroccamError as error:
            if not files:
                raise
            console.say(("posterior: ", "bold"), f"none, {error}")
    elif data is None:
        asked = (confidence, within, choices, out) != (0.95, None, 1, None)
        if asked or not (note := note_of(what)):
            raise PyroccamError(f"{what} without --data", "the data that it was trained on")
        console.say(("in the file: ", "bold"), note)
        return
    else:
        root, device = opening.data_root, pick_device(opening.device)
        options: Any = {} if root is None else {"data_root": root}
        rows, files, likelihood = load(data, **options).to(device), [what], None
    for file in files:
        ways: dict[str, Any] = {file.name: ByFile(within=within)}
        if rows.counts["test"]:
            ways[f"{file.name}, test rows"] = ByTest(within=within, choices=choices)
        for name, way in ways.items():
            # An average over exits predicts by itself.
            like = None if file.name == "pruned" else likelihood
            found[name] = certified(file, rows, by=way, confidence=confidence, likelihood=like)
    for name, one in found.items():
        console.say((f"{name}: ", "bold"), str(one))
    if out is not None:
        write_json(out, {name: one.to_json() for name, one in found.items()})
