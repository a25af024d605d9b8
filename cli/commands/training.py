"""``pyroccam fit``: in this process, or in several."""

from __future__ import annotations

import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...data import Between, PyroccamError
from .. import (
    ExecutionOptions,
    PlainConsole,
    RunRequest,
    hear_ctrl_c,
    need_folder,
    new_folder,
    prepare,
)
from .application import app, console

if TYPE_CHECKING:
    from ..runs import Budget


@app.command()
def fit(
    request: RunRequest,
    *,
    epochs: int | None = None,
    seed: int = 0,
    repeats: Annotated[int, Between(1, 1000)] = 1,
    processes: Annotated[int, Between(1, 1024)] = 1,
    out: Path | None = None,
    resume: bool = False,
    threads: Annotated[int, Between(0, 1024)] = 0,
    compile_: bool | None = None,
    execution: ExecutionOptions,
) -> None:
    """Train a method on data; learn the structure; write the smaller network.

    Arguments:
        epochs: Passes over the training rows.
        seed: Of data, weights and training.
        repeats: Runs with seeds seed, seed + 1, ...
        processes: Processes on this machine, one for each GPU or group of cores, that take parts of
            every batch.
        out: Run folder; runs/<method>-<data>-<time> if left out.
        resume: Go on with the run in --out.
        threads: CPU threads; 0 takes 1 for mlp and all for the others.
        compile_: Compile the training step; by its number of steps if left out.
    """
    began, given = time.perf_counter(), dict(locals())
    import torch

    from ...inference.distributed import joined, refuse_device
    from ...inference.storage import claimed, confirm
    from ...inference.training import pick_device
    from ..methods import find
    from ..pages import page_of, print_page
    from ..runs import (
        Budget,
        RunConfig,
        RunOptions,
        begun,
        put_together,
        refuse_unmet,
        run,
        run_repeats,
        same_length,
        within,
    )

    if resume and out is None:
        raise PyroccamError("--resume needs --out, the folder of the run to go on with.")
    if out == Path():
        raise PyroccamError("--out is empty, or the folder in which you are: give the run its own.")
    need_folder(out)
    length = None if request.budget is None else Budget.parse(request.budget)
    settings = {n: v for n, v in (("epochs", epochs), ("compile", compile_)) if v is not None}
    if twice := settings.keys() & request.set_:
        raise PyroccamError(f"{min(twice)} was given twice: leave one of them out.")
    request = replace(request, set_={**settings, **request.set_})
    method, device, compare = find(request.method), execution.device, execution.compare
    if processes > 1:
        _refuse_time(length)
        refuse_device(str(pick_device(device)) if device == "cuda" else device, processes)
        _in_processes(processes, {**given, "out": out or new_folder(method.name, request.data)})
        return
    ranks = joined()
    if ranks.size > 1:
        _refuse_time(length)
    if not ranks.first:
        console.quiet = True
        warnings.simplefilter("ignore")  # the first says them
    config, dataset = RunConfig.resolve(request, seed)
    if threads or config.network == "mlp":
        torch.set_num_threads(threads or 1)  # small layers lose to the cost of sharing them
    out = new_folder(method.name, request.data) if out is None else out
    console.say(f"{method.title}: {dataset!r}")
    options = RunOptions(**vars(execution), resume=resume)
    if length is not None:
        own = out if repeats == 1 else out / f"seed-{seed}"
        kept = RunConfig.read(own) if resume and begun(own) else None
        config = ranks.from_first(
            lambda: within(
                length, config, dataset, compare=compare, device=device, kept=kept,
                sets=request.set_, began=began,
            )
        )  # fmt: skip
        console.say(config.budget["said"])
    with claimed(out) if ranks.first else nullcontext():
        if repeats == 1:
            outcomes = [run(config, dataset, out=out, options=options)]
        else:
            more = [RunConfig.resolve(request, seed + k) for k in range(1, repeats)]
            pairs = [(config, dataset), *more]
            if length is not None:
                pairs = [(same_length(one, config, request.set_), rows) for one, rows in pairs]
            configs, datas = zip(*pairs, strict=True)
            outcomes = run_repeats(configs, datas, out=out, options=options)
        if not ranks.first:
            return
        if repeats > 1:
            put_together(console, outcomes, config, out)
        print_page(console, page_of([out]))
        confirm(out)
    console.say("Written to ", (str(out), "bold"))
    console.say(f"Next: pyroccam diagnose {out}; pyroccam report {out}")
    for outcome in outcomes:
        refuse_unmet(outcome.metrics)


def _refuse_time(length: Budget | None) -> None:
    """Refuse a length in seconds for several processes: paces are measured in one."""
    if length is not None and length.steps is None:
        raise PyroccamError("--budget in time, and several processes", "--budget 6000steps")


def _in_processes(processes: int, arguments: dict[str, Any]) -> None:
    """Do the same in several processes, and end as they do."""
    # Ctrl-C waits for the end of imports, and would not be heard while processes are started.
    import torch.distributed.launcher.api  # noqa: F401

    from ...inference.distributed import Ended, launch

    hear_ctrl_c()
    try:
        launch(fit_in_process, processes, ({**arguments, "processes": 1},))
    except Ended as error:
        if error.code < 0:  # the others have said why
            PlainConsole(stderr=True).say(("Error: ", "red"), str(error))
        raise typer.Exit(error.code if error.code > 0 else 128 - error.code) from None


def fit_in_process(arguments: dict[str, Any]) -> None:
    """``pyroccam fit`` in one of several processes, which ends with its exit code."""
    prepare()
    try:
        fit(**arguments)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
