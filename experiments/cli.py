"""The command line: ``pyroccam``.

What takes seconds to import, torch above all, is imported by the command that needs it: help,
versions and completion come at once.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .application import Device, Moved, Network, Root, Run, Trust, app, console
from .boundary import STOPPED
from .console import PlainConsole
from .places import need_file, need_folder, new_folder
from .streams import prepare

if TYPE_CHECKING:
    from .runs.budget import Budget
    from .sweeps.command import Request

__all__ = ["app"]


@app.command()
def fit(
    method: Annotated[str, typer.Argument(help="A method; `pyroccam methods` lists them.")],
    data: Annotated[
        str,
        typer.Option(help="A data set (`pyroccam data` lists them), or your own: an .npz or .csv "
                     "file; a folder of .npy files or of images, or Parquet files, which are "
                     "streamed; MODULE:FUNCTION or FILE.py:FUNCTION that makes it."),
    ] = "spirals",
    network: Annotated[
        str | None,
        typer.Option(help="A ready network (`pyroccam methods` says which), or MODULE:FUNCTION of "
                     "your own, called with input_shape and outputs; by the data's shape if left "
                     "out."),
    ] = None,
    data_root: Root = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Length of the whole run, tests and figures included: 90s, 5min, 1h; or "
                     "of all its optimiser steps: 6000steps. Of each seed, with --repeats. Epochs "
                     "follow, and are said.", metavar="LENGTH"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of data, weights and training.")] = 0,
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs with seeds seed, seed + 1, ...")
    ] = 1,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes that train the runs of --repeats, each whole "
                     "runs, one after the other, as a sweep over seeds; without it, they train "
                     "together in this process where that pays."),
    ] = None,
    device: Device = "auto",
    processes: Annotated[
        int,
        typer.Option(min=1, max=1024, help="Processes on this machine, one for each GPU or group "
                     "of cores, that take parts of every batch; for several machines see "
                     "torchrun."),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; runs/<method>-<data>-<time> if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, e.g. --set max_depth=10 --set prior=uniform "
                     "--set data.noise=0.1", metavar="KEY=VALUE"),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            min=0, max=1024, help="CPU threads; 0 takes 1 for mlp and all for the others."
        ),
    ] = 0,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Compile the training step; by its number of "
                     "steps if left out."),
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Also train the network of the chosen depth, for comparison.")
    ] = True,
    tensorboard: Annotated[
        bool,
        typer.Option("--tensorboard", help="Write the history of every fit of the run for "
                     "TensorBoard, too, as it trains."),
    ] = False,
) -> None:  # fmt: skip
    """Train a method on data; learn the structure; write the smaller network."""
    began, given = time.perf_counter(), dict(locals())
    import torch

    from ..inference.distributed import joined
    from ..inference.distributed.joining import launched
    from ..inference.distributed.launching import refuse_device
    from ..inference.fits.fitting import pick_device
    from ..inference.storage.lock import claimed, confirm
    from ..inference.storage.tensorboard import TensorBoard
    from .methods import METHODS
    from .runs.budget import Budget, same_length
    from .runs.config import RunConfig, refuse_unknown
    from .runs.paces import within
    from .runs.repeats import put_together
    from .runs.run import RunOptions, run, run_repeats
    from .runs.summary import print_run, refuse_unmet

    if resume and out is None:
        raise ValueError("--resume needs --out, the folder of the run to go on with.")
    if out == Path():
        raise ValueError("--out is empty, or the folder in which you are: give the run its own.")
    need_folder(out)
    watch = TensorBoard() if tensorboard else None
    length = None if budget is None else Budget.parse(budget)
    if workers is not None:
        from .sweeps.command import refuse_no_repeats, request_repeats

        refuse_no_repeats(repeats, processes, workers)
        _settings(sets, epochs, compiled)
        more = [f"{name}={json.dumps(value)}"
                for name, value in (("epochs", epochs), ("compile", compiled))
                if value is not None]  # fmt: skip
        request = request_repeats(
            method,
            {"data": data, "network": network, "data_root": data_root, "budget": budget,
             "compare": compare, "tensorboard": tensorboard},
            [*(sets or []), *more], range(seed, seed + repeats), out or new_folder(method, data),
            resume=resume,
        )  # fmt: skip
        _train_all(request, workers=workers, threads=threads or 1, device=device)
        return
    if processes > 1:
        if launched() and joined():
            raise ValueError("torchrun has started processes already: leave --processes out.")
        _refuse_time(length)
        refuse_device(str(pick_device(device)) if device == "cuda" else device, processes)
        refuse_unknown(method, data, network, _settings(sets, epochs, compiled))
        _in_processes(processes, {**given, "out": out or new_folder(method, data)})
        return
    ranks = joined()
    if ranks.size > 1:
        _refuse_time(length)
    if not ranks.first:
        console.quiet, watch = True, None
        warnings.simplefilter("ignore")  # the first says them
    settings = _settings(sets, epochs, compiled)
    resolve = partial(
        RunConfig.resolve, method, data, network=network, data_root=data_root, sets=settings
    )
    config, dataset = resolve(seed=seed)
    if threads or config.network == "mlp":
        torch.set_num_threads(threads or 1)  # small layers lose to the cost of sharing them
    out = new_folder(method, data) if out is None else out
    console.say(f"{METHODS[method].title}: {dataset!r}")
    options = RunOptions(resume=resume, device=device, compare=compare, watch=watch)
    if length is not None:
        own = out if repeats == 1 else out / f"seed-{seed}"
        config = ranks.from_first(
            lambda: within(length, config, dataset, options, own, settings, began)
        )
        console.say(config.budget["said"])
    with claimed(out) if ranks.first else nullcontext():
        if repeats == 1:
            outcomes = [run(config, dataset, out=out, options=options)]
        else:
            pairs = [(config, dataset), *(resolve(seed=seed + k) for k in range(1, repeats))]
            if length is not None:
                pairs = [(same_length(one, config, settings), rows) for one, rows in pairs]
            configs, datas = zip(*pairs, strict=True)
            outcomes = run_repeats(configs, datas, out=out, options=options)
        if not ranks.first:
            return
        found = [outcome.metrics for outcome in outcomes]
        for metrics in found:
            print_run(console, metrics)
        if repeats > 1:
            put_together(console, outcomes, config, out)
        confirm(out)
    console.say("Written to ", (str(out), "bold"))
    console.say(f"Next: pyroccam diagnose {out}; pyroccam report {out}")
    for metrics in found:
        refuse_unmet(metrics)


def _train_all(request: Request, **how: Any) -> None:
    """Have all runs of a sweep trained, and say what became of them."""
    from ..inference.storage.tensorboard import TensorBoard
    from .sweeps.command import run_sweep

    if request.plan.tensorboard:
        TensorBoard()  # or it is said that it is not installed
    ended = run_sweep(console, request, **how)
    for name, why in ended.failed.items():
        console.say(("Failed: ", "red"), f"{name}: {why}")
    console.say("Written to ", (str(request.folder), "bold"), f"; {request.folder}/results.csv")
    if ended.left:
        console.say(("Stopped.", "yellow"), f" {ended.left:,} runs are left; the same command goes "
                    "on with them.")  # fmt: skip
        raise typer.Exit(STOPPED)
    console.say(f"Next: pyroccam report {request.folder}")
    if ended.failed:
        raise typer.Exit(1)


def _settings(sets: list[str] | None, epochs: int | None, compiled: bool | None) -> dict[str, Any]:
    """What ``--set`` says, and the options that stand for a setting."""
    from .runs.config import parse_settings

    settings = parse_settings(sets or [])
    for name, value in (("epochs", epochs), ("compile", compiled)):
        if value is not None and name in settings:
            raise ValueError(f"--{name} and --set {name}=... were both given: leave one out.")
        settings |= {} if value is None else {name: value}
    return settings


def _refuse_time(length: Budget | None) -> None:
    """Refuse a length in seconds for several processes: paces are measured in one."""
    if length is not None and length.steps is None:
        raise ValueError(
            "--budget in time is measured in one process, and here are several.\nGive it in steps "
            "(--budget 6000steps), or --epochs."
        )


def _in_processes(processes: int, arguments: dict[str, Any]) -> None:
    """Do the same in several processes, and end as they do."""
    from ..inference.distributed import launch
    from ..inference.distributed.launching import Ended

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


@app.command()
def methods() -> None:
    """List the methods."""
    from rich.table import Column, Table

    from .methods import METHODS

    table = Table("method", Column("what it is, settings of its own, source", overflow="fold"),
                  box=None)  # fmt: skip
    takes: dict[str, list[str]] = {}
    for row in METHODS.values():
        options = ", ".join(f"{k}={v}" for k, v in row.options.items())
        parts = [row.title, options, row.reference]
        table.add_row(row.name, "\n".join(part for part in parts if part) + "\n")
        takes.setdefault(", ".join(row.networks), []).append(row.name)
    console.print(table)
    for networks, names in takes.items():
        console.say(f"\nNetworks of {', '.join(names)}: {networks}.")


@app.command("data")
def list_data() -> None:
    """List the data sets."""
    from rich.table import Table

    from .. import data as datasets

    table = Table("data", "task", "from", "what it is", box=None)
    for entry in datasets.available():
        table.add_row(*entry)
    table.add_row("FILE.npz, FILE.csv", "either", "your own", "arrays x_train, y_train, x_test, "
                  "y_test; or a table with a target column (--set data.target=NAME)")  # fmt: skip
    table.add_row("FOLDER, FILE.parquet", "any", "your own, streamed", "x.npy and y.npy, or "
                  "x-00.npy, ...; images in a folder for each class (--set data.size=PIXELS); "
                  "Parquet files (--set data.target=NAME)")  # fmt: skip
    table.add_row("MODULE:FUNCTION", "any", "your own", "what data.stream or data.Dataset makes; "
                  "FILE.py:FUNCTION too; --set data.NAME=... are its arguments")  # fmt: skip
    console.print(table)


@app.command()
def prune(
    folder: Run,
    form: Annotated[
        Literal["marginal", "single"],
        typer.Option(help="Average over the depths that are kept, or keep one exit."),
    ] = "marginal",
    depth: Annotated[int | None, typer.Option(help="If not the chosen depth.")] = None,
    rule: Annotated[
        Literal["tail_to_last", "proportional"],
        typer.Option(help="Where the probability of the deeper depths goes."),
    ] = "tail_to_last",
    out: Annotated[Path | None, typer.Option(help="RUN/pruned-... if left out.")] = None,
    device: Device = "auto",
    data_root: Moved = None,
    network: Network = None,
    trust: Trust = False,
) -> None:
    """Cut the network of a run at its chosen depth, or another, and save it."""
    from .. import inference
    from ..inference.cutting.cost import count_parameters
    from ..inference.posterior.predict import evaluate_pruned
    from ..inference.pruning.depth import prune as cut
    from .runs.loading import load_fit

    need_folder(out)
    result = load_fit(folder, device, network=network, trust=trust, data_root=data_root)
    net = cut(result, form=form, depth=depth, rule=rule)
    target = out or folder / f"pruned-{form}-{net.depth}-{rule}"
    inference.save(net, target)
    data = result.data
    found = evaluate_pruned(net, data.x_test, data.y_test, data.y_std)
    if result.structure is not None:
        console.say(str(result.structure))
    before, after = count_parameters(result.model), count_parameters(net)
    console.say(
        f"Cut at depth {net.depth} ({form}): {after:,} of {before:,} parameters; test "
        + ", ".join(f"{k} {v:.4f}" for k, v in found.items())
    )
    console.say("Written to ", (str(target), "bold"))


@app.command()
def compress(
    folder: Run,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="validation (as much as the likelihood of the validation rows allows), valley "
            "(between two clusters), noise (scales with more of it than mean), or a number; that "
            "of the run if left out."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Of --threshold validation, which it asks for: nats by which the mean "
            "log-likelihood may fall; those of the run if left out.",
        ),
    ] = None,
    significand: Annotated[
        Literal["relative", "deviation", "published_code", "rate"],
        typer.Option(
            help="Rule for the bits. rate: multiples of a step that are cheap to send, at the "
            "highest price that changes no prediction by much."
        ),
    ] = "relative",
    exponent: Annotated[
        Literal["range", "published_three", "published_code"],
        typer.Option(help="Rule for the exponent's bits."),
    ] = "range",
    bytes_: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            min=1,
            help="Of a run of every size: take the best network whose file has no more bytes, in "
            "place of the run's budget.",
        ),
    ] = None,
    milliseconds: Annotated[
        float | None,
        typer.Option(
            help="Of a run of every size: take the best that takes no longer for 256 rows, here."
        ),
    ] = None,
    codebook: Annotated[
        int | None,
        typer.Option(min=1, max=16, help="Bits of an index: round each layer to 2^bits values."),
    ] = None,
    code: Annotated[
        Literal["digits", "sample"],
        typer.Option(
            help="digits: rounded numbers. sample: what is left is trained once more for a size, "
            "and a draw of its posterior is coded: much smaller, in minutes."
        ),
    ] = "digits",
    posterior: Annotated[
        Literal["trained", "own"],
        typer.Option(
            help="Of --code sample. trained: of what is left, anew under normal priors. own: begin "
            "with that of the run, uncut; its priors have to be normal, and its KL says the size."
        ),
    ] = "trained",
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of --code sample: bytes that the file may have; if left out, two bits a weight, "
            "4,000 at most, or what the KL of --posterior own takes.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of --code sample: passes of each of its two trainings; --posterior own has one.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Of --code sample: go on where it was stopped.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File; RUN/compressed.pocc if left out, with the rules that are not the "
            "run's in its name; RUN/draw.poccd for --code sample."
        ),
    ] = None,
    device: Device = "auto",
    data_root: Moved = None,
    network: Network = None,
    trust: Trust = False,
) -> None:
    """Cut and round the network of a run over random weights; write it into one small file."""
    from ..inference.pruning.thresholds import Threshold
    from ..inference.storage.checkpoint import seal
    from ..inference.training.settings import Settings
    from .methods import weights
    from .methods.options import taken
    from .runs.config import RunConfig, parse_settings
    from .runs.loading import load_fit
    from .runs.run import known_of
    from .runs.summary import refuse_unmet, said_of_tensors

    if tolerance is not None and threshold not in (None, "validation"):
        raise ValueError(
            f"--tolerance is of --threshold validation, and changes nothing for {threshold!r}: "
            "leave one of them out."
        )
    if posterior == "own" and (threshold is not None or tolerance is not None):
        raise ValueError(
            "--threshold and --tolerance cut what a posterior does not need, and --posterior own "
            "sends it whole.\nLeave them out, or --posterior."
        )
    need_file(out)
    budget = {"bytes": bytes_, "milliseconds": milliseconds}
    budget = budget if any(value is not None for value in budget.values()) else {}
    rounding = (significand, exponent, codebook) != ("relative", "range", None)
    if budget and (rounding or threshold is not None or tolerance is not None or code == "sample"):
        raise ValueError(
            "--bytes and --milliseconds choose among networks that are cut and rounded by the "
            "rules of the run.\nLeave out --threshold, --tolerance, --significand, --exponent, "
            "--codebook and --code sample, or the budget."
        )
    result = load_fit(
        folder, device, network=network, trust=trust, data_root=data_root, options=budget
    )
    if not budget:
        refuse_unmet(known_of(folder))
    config = RunConfig.read(folder)
    options = config.options
    cut_at: Threshold | None = options.get("threshold") if tolerance is None else "validation"
    if threshold is not None:
        (asked_for,) = parse_settings([f"threshold={threshold}"]).values()
        cut_at = taken("--threshold", asked_for, Threshold)
    if posterior == "own":  # whatever the run's own rule is
        cut_at = None
    if cut_at == "validation" and not len(result.data.x_val):
        why = "the last fit trained on them" if options.get("last_rows") else "there are none"
        raise ValueError(
            f"{folder} cannot be cut by its validation rows: {why}. Give --threshold noise, valley "
            "or a number."
        )
    allowed = options.get("tolerance") if tolerance is None else tolerance
    if code == "sample":
        if rounding:
            raise ValueError(
                "--significand, --exponent and --codebook round weights, and a draw is not rounded."
                "\nLeave them out, or give --code digits."
            )
        # A seed is sent, and a short one is as good.
        seed = int(config.settings["seed"]) % 2**20
        sample = {"posterior": posterior, "size": size, "epochs": epochs, "seed": seed}
        target = out or folder / weights.DRAW
        drawn, scores = weights.draw_run(
            result, cut_at, None if posterior == "own" else allowed, target, resume=resume,
            **{name: value for name, value in sample.items() if value is not None},
        )  # fmt: skip
        console.say(
            f"{len(drawn.content):,} bytes, {drawn.over_kl:.3g} times the KL of the draw; test "
            + ", ".join(f"{k} {v:.4f}" for k, v in scores.items())
        )
        console.say("Written to ", (str(target), "bold"))
        return
    if size is not None or epochs is not None or resume or posterior != "trained":
        raise ValueError(
            "--posterior, --size, --epochs and --resume are of --code sample: give that, too."
        )
    rules: dict[str, Any] = {"significand": significand, "exponent": exponent, "codebook": codebook}
    asked = {"threshold": threshold, "tolerance": tolerance, **budget, **rules}
    asked |= {"significand": None} if significand == "relative" else {}
    asked |= {"exponent": None} if exponent == "range" else {}
    target = out or folder / weights.file_of(asked)
    method = config.chosen
    if isinstance(method, weights.OverWeights) and len(result.data.x_val) and codebook is None:
        whole = Settings.of(config.settings)
        rules["retrain_epochs"] = method.retrain_epochs(whole, result.data.N)
    own = target == folder / weights.FILE and target.is_file()
    if own and rules.get("retrain_epochs") and cut_at is None:  # another search would find another
        net = weights.network_of_file(result, target, options.get("threshold"), allowed)
        scores = weights.evaluate(result, net)
        console.say(
            f"{target} is the network by the rules of the run already, of "
            f"{target.stat().st_size:,} bytes; test "
            + ", ".join(f"{k} {v:.4f}" for k, v in scores.items())
        )
        return
    small, written = weights.compress_run(result, cut_at, allowed, target, **rules)
    if target == folder / weights.FILE:  # the run's own, made again
        seal(folder)
    console.say(str(small.report))
    console.say(
        f"{written['file_bytes']:,} bytes, {written['file_rate']:.3g} times smaller than all "
        "parameters of the network were before anything was cut; test "
        + ", ".join(f"{k} {v:.4f}" for k, v in written["test"].items())
    )
    if "not_described" in written:
        console.say(*said_of_tensors(written["not_described"]))
    console.say("Written to ", (str(target), "bold"))


@app.command()
def decompress(
    file: Annotated[Path, typer.Argument(help="A file that `pyroccam compress` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder; beside the file if left out.")] = None,
) -> None:
    """Turn a compressed file into model.safetensors and description.json, which `inference.load`
    reads; runs no pickled code."""
    from ..inference import draw_coding, packing, save

    need_folder(out)
    drawn = draw_coding.is_draw(file)
    net = draw_coding.read(file) if drawn else packing.read(file)
    target = save(net, out or file.with_suffix(""))
    console.say("Written to ", (str(target), "bold"))


@app.command()
def export(
    folder: Run,
    form: Annotated[
        Literal["torch", "torchscript", "onnx"],
        typer.Option(help="torch: a .pt2 file for torch.export.load; torchscript: a .pt file for "
                     "torch.jit.load; onnx: for any runtime of ONNX."),
    ] = "torch",
    out: Annotated[
        Path | None, typer.Option(help="File; RUN/exported and the form's ending if left out.")
    ] = None,
    scaling: Annotated[
        bool,
        typer.Option(help="With the scaling of the run's data in it: the file takes rows as they "
                     "are in the data, and gives targets in their own units."),
    ] = True,
    device: Device = "auto",
    data_root: Moved = None,
    network: Network = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Write the smaller network of a run (pruned, compressed or discretised) for programs that have
    no pyroccam, and compare what was written with it."""
    from ..inference.packing.exporting import SUFFIXES
    from ..inference.packing.exporting import export as write
    from .runs.config import RunConfig
    from .runs.loading import load_fit

    need_file(out)
    result = load_fit(folder, device, network=network, trust=trust, data_root=data_root)
    net = RunConfig.read(folder).chosen.smaller(result, folder)
    target = out or folder / f"exported{SUFFIXES[form]}"
    made = write(net, target, result.data, form=form, scaling=scaling)
    shape = "rows x " + " x ".join(map(str, result.data.input_shape))
    shape = shape if result.data.fields is None else f"rows of {result.data.fields}"
    takes = "as in the data" if scaling and not result.data.ids else "as the network was trained on"
    console.say(f"{made.bytes:,} bytes; takes {shape} ({takes}), any number of rows.")
    if made.difference is None:
        console.say(("Not compared: ", "yellow"), "onnxruntime is not installed.")
    else:
        console.say(
            f"Read back: outputs differ by {made.difference:.2g} at most, the largest is "
            f"{made.largest:.3g}."
        )
    console.say("Written to ", (str(target), "bold"))


@app.command()
def evaluate(
    folder: Run,
    data: Annotated[
        str | None,
        typer.Option(
            help="New rows to score: a .csv or .npz file, a folder or Parquet file as of `pyroccam "
            "fit`, or the test rows of a data set. They are never split, and are scaled as the "
            "rows of the training were. The run's own data if left out."
        ),
    ] = None,
    data_root: Moved = None,
    split: Annotated[
        Literal["train", "val", "test"], typer.Option(help="Which rows of the run's own data.")
    ] = "test",
    device: Device = "auto",
    network: Network = None,
    trust: Trust = False,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Evaluate the full and the pruned network of a run, on its own or on other data."""
    from rich.table import Table

    from ..inference.storage.checkpoint import versions, write_json
    from .runs.loading import load_fit, names_own_data
    from .runs.scoring import read_new_rows, score

    need_file(out)
    same = data is not None and names_own_data(folder, data)
    if data is not None and not same and split != "test":
        raise ValueError(f"--split {split}: new rows are not split. Leave it, or --data, out.")
    result = load_fit(
        folder, device, network=network, trust=trust, data_root=data_root,
        data_file=data if same else None,
    )  # fmt: skip
    sets = {"": result.data}
    if data is not None and not same:
        sets = read_new_rows(console, data, data_root, result.data)
    found = score(console, folder, result, sets, split)
    rows = sets[""]
    table = Table("", *next(iter(found.values())), box=None)
    for name, metrics in found.items():
        table.add_row(name, *(f"{v:.4f}" if abs(v) < 1e7 else f"{v:.4g}" for v in metrics.values()))
    console.say(f"{rows.counts[split]:,} {split} rows of {rows.name}")
    console.print(table)
    if out is not None:
        write_json(out, {"data": rows.name, "split": split, "versions": versions(), **found})


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of finished runs, or of sweeps.", metavar="RUN [RUN ...]"),
    ],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
) -> None:
    """Write one page on a run, or on several side by side: summary, metrics, figures, diagnostics,
    settings. It holds everything itself and opens in any browser, offline."""
    from .report import report as report_page
    from .sweeps.results import finished_cells

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"--out {out}: expected a file name that ends in .html.")
    need_file(out)
    runs = [run for folder in folders for run in finished_cells(folder)]
    page = report_page(runs).encode("utf-8", "backslashreplace")  # names of files may be no text
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(page)
    console.say("Written to ", (str(out), "bold"), f" ({len(page) / 1e6:.1f} MB)")


@app.command()
def sweep(
    what: Annotated[
        str,
        typer.Argument(help="A method; a .yaml file with what all runs share and the lists of what "
                       "differs; or the folder of a sweep, to go on with it or to join it from "
                       "another machine.", metavar="METHOD|FILE|FOLDER"),
    ],
    lists: Annotated[
        list[str] | None,
        typer.Option("--sweep", help="Values of a setting, or of seed, method, data, network or "
                     "budget, e.g. --sweep lr=0.1,0.01 --sweep seed=0,1,2; every combination is "
                     "run.", metavar="KEY=VALUE,VALUE,..."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="As of `pyroccam fit`.")] = None,
    network: Annotated[str | None, typer.Option(help="As of `pyroccam fit`.")] = None,
    data_root: Root = None,
    budget: Annotated[
        str | None, typer.Option(help="Length of each run, as of `pyroccam fit`.", metavar="LENGTH")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting that all runs share.", metavar="KEY=VALUE"),
    ] = None,
    compare: Annotated[
        bool | None,
        typer.Option("--compare/--no-compare", help="As of `pyroccam fit`; yes if left out."),
    ] = None,
    figures: Annotated[
        bool | None,
        typer.Option("--figures/--no-figures", help="Draw those of each run; yes if left out."),
    ] = None,
    tensorboard: Annotated[
        bool | None,
        typer.Option("--tensorboard", help="As of `pyroccam fit`."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes on this machine; by its CUDA devices, or by "
                     "its cores without any, if left out."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads of each.")] = 1,
    device: Device = "auto",
    storage: Annotated[
        str | None,
        typer.Option(help="Address of a database for many machines: "
                     "postgresql://user@host/database, or journal:FILE on a shared disk. A file in "
                     "--out if left out.", metavar="ADDRESS"),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also try the runs that failed.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the sweep; runs/<name> if left out.")
    ] = None,
) -> None:  # fmt: skip
    """Train many runs, over all combinations of settings. The same command goes on, whoever was
    killed; nothing is trained twice."""
    from .sweeps.command import read_request
    from .sweeps.store import refuse_missing

    refuse_missing()
    need_folder(out)
    given = {"data": data, "network": network, "data_root": data_root, "budget": budget,
             "compare": compare, "figures": figures, "tensorboard": tensorboard}  # fmt: skip
    request = read_request(what, given, sets or [], lists or [], out)
    _train_all(
        request, workers=workers, threads=threads, device=device, storage=storage,
        again=retry_failed,
    )  # fmt: skip


@app.command()
def diagnose(
    folder: Run,
    draws: Annotated[int, typer.Option(min=100, help="From the posterior.")] = 1000,
    rows: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Training rows that the draws pass: all if left out, or 2,000 where all would "
            "take long.",
        ),
    ] = None,
    device: Device = "auto",
    data_root: Moved = None,
    network: Network = None,
    trust: Trust = False,
) -> None:
    """Say in plain words whether the posterior of a run can be trusted, and for what; of repeats,
    whether they agree. Writes diagnostics.json, figures, and posterior.nc for ArviZ."""
    from .diagnosis import diagnose_run, print_findings

    opening: dict[str, Any] = {"network": network, "trust": trust, "data_root": data_root}
    found, written = diagnose_run(folder, device, draws=draws, rows=rows, **opening)
    print_findings(console, found)
    console.say("Written to ", (str(folder), "bold"), ":")
    for path in written:
        console.say(f"  {path.relative_to(folder)}")
