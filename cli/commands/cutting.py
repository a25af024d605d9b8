"""``pyroccam prune``: the network of a run at a depth."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .. import OpenOptions, need_folder
from .application import app, console, tested


@app.command()
def prune(
    folder: Path,
    *,
    form: Literal["marginal", "single"] = "marginal",
    depth: int | None = None,
    rule: Literal["tail_to_last", "proportional"] = "tail_to_last",
    out: Path | None = None,
    opening: OpenOptions,
) -> None:
    """Cut the network of a run at its chosen depth, or another, and save it.

    Arguments:
        folder: Folder of a finished run.
        form: Average over the depths that are kept, or keep one exit.
        depth: If not the chosen depth.
        rule: Where the probability of the deeper depths goes.
        out: RUN/pruned-... if left out.
    """
    from ...inference.cutting import count_parameters
    from ...inference.files import save_folder
    from ...inference.posterior import evaluate_pruned
    from ...inference.shrinking import at_depth
    from ..runs import load_fit

    need_folder(out)
    result = load_fit(folder, **vars(opening))
    exits: dict[str, Literal["average", "last"]] = {"marginal": "average", "single": "last"}
    net = at_depth(result, exits[form], depth, rule)
    target = out or folder / f"pruned-{form}-{net.depth}-{rule}"
    save_folder(net, target)
    data = result.data
    found = evaluate_pruned(net, data.x_test, data.y_test, data.y_std)
    if result.structure is not None:
        console.say(str(result.structure))
    before, after = count_parameters(result.model), count_parameters(net)
    console.say(
        f"Cut at depth {net.depth} ({form}): {after:,} of {before:,} parameters; {tested(found)}"
    )
    console.say("Written to ", (str(target), "bold"))
