"""The command line: ``pyroccam``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table

from .. import data as datasets
from .. import inference
from ..inference import Repeats, packing
from ..inference.metrics import mean_spread
from ..inference.predict import HOWS, evaluate_pruned
from ..inference.prune import count_parameters
from ..inference.prune import prune as cut
from ..inference.run_directory import versions, write_json
from ..inference.thresholds import RULES
from ..models import BayesianNetwork
from . import weights
from .config import RunConfig, parse_settings
from .diagnosis import diagnose_run, print_findings
from .methods import METHODS
from .report import report as report_page
from .run import load_fit, run, run_repeats
from .summary import print_repeats, print_run, said_of_tensors

__all__ = ["app"]

app = typer.Typer(
    help="Learn how much network your data needs, and get the smaller network.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
console = Console()

Run = Annotated[Path, typer.Argument(help="Folder of a finished run.")]
Root = Annotated[
    str | None, typer.Option("--data-root", help="Folder of the data files.", metavar="FOLDER")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:<n>.")]


def _readable_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Errors a person can cause become one message, without a traceback."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except inference.Interrupted as stopped:
            how = " Go on by the same command with --resume, and --out with the folder of the run."
            Console(stderr=True).print(f"[yellow]{stopped}[/yellow]{how}", highlight=False)
            raise typer.Exit(130) from None
        except (
            ValueError,
            TypeError,
            OSError,
            inference.CheckpointError,
            inference.NonFiniteLoss,
        ) as error:
            Console(stderr=True).print(f"[red]Error:[/red] {error}", highlight=False)
            raise typer.Exit(2) from None

    return wrapped


@app.command()
@_readable_errors
def fit(
    method: Annotated[str, typer.Argument(help="A method; `pyroccam methods` lists them.")],
    data: Annotated[
        str, typer.Option(help="A data set (`pyroccam data` lists them), an .npz or a .csv file.")
    ] = "spirals",
    network: Annotated[
        str | None,
        typer.Option(help="A ready network (`pyroccam methods` says which), or MODULE:FUNCTION of "
                     "your own, called with input_shape and outputs; by the data's shape if left "
                     "out."),
    ] = None,
    data_root: Root = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training rows.")] = None,
    seed: Annotated[int, typer.Option(help="Of data, weights and training.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs with seeds seed, seed + 1, ...")] = 1,
    device: Device = "auto",
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
        int, typer.Option(min=0, help="CPU threads; 0 takes 1 for mlp and all for the others.")
    ] = 0,
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="Compile the training step; by its number of "
                     "steps if left out."),
    ] = None,
    compare: Annotated[
        bool, typer.Option(help="Also train the network of the chosen depth, for comparison.")
    ] = True,
) -> None:  # fmt: skip
    """Train a method on data; learn the structure; write the smaller network."""
    if resume and out is None:
        raise ValueError("--resume needs --out, the folder of the run to go on with.")
    settings = parse_settings(sets or [])
    if epochs is not None:
        settings["epochs"] = epochs
    if compiled is not None:
        settings["compile"] = compiled
    resolve = partial(
        RunConfig.resolve, method, data, network=network, data_root=data_root, sets=settings
    )
    config, dataset = resolve(seed=seed)
    if threads or config.network == "mlp":
        torch.set_num_threads(threads or 1)  # small layers lose to the cost of sharing them
    if out is None:
        name = "".join(c if c.isalnum() else "-" for c in Path(data).stem)
        out = Path("runs") / f"{method}-{name}-{datetime.now():%Y%m%d-%H%M%S}"
    console.print(f"{METHODS[method].title}: {dataset!r}", highlight=False)
    more: dict[str, Any] = {"out": out, "resume": resume, "device": device, "compare": compare}
    if repeats == 1:
        outcomes = [run(config, dataset, **more)]
    else:
        pairs = [(config, dataset), *(resolve(seed=seed + k) for k in range(1, repeats))]
        outcomes = run_repeats([one for one, _ in pairs], [one for _, one in pairs], **more)
    found = [outcome.metrics for outcome in outcomes]
    for metrics in found:
        print_run(console, metrics, dataset.task)
    if repeats > 1:
        summary = _spread(found)
        fits = Repeats([outcome.fit for outcome in outcomes], 0.0)
        try:
            together = fits.evaluate(noise=config.options.get("noise", "weights"))
            summary["together"] = together
        except ValueError as error:  # every seed has test rows of its own
            console.print(f"{error} That is --set data.seed={seed}.", highlight=False)
        write_json(out / "metrics.json", {"repeats": found, "spread": summary})
        print_repeats(console, summary, repeats)
    console.print(f"Written to [bold]{out}[/bold]", highlight=False)
    console.print(f"Next: pyroccam diagnose {out}; pyroccam report {out}", highlight=False)


def _spread(found: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    ways = [way for way in HOWS if way in found[0]["test"]]
    for way in ways:
        out[way] = mean_spread([one["test"][way] for one in found])
    if not ways:
        out["test"] = mean_spread([one["test"] for one in found])
    for part in ("compressed", "pruned", "single_exit", "ddn", "discretised", "retrained"):
        if part in found[0]:
            # Of a compressed network that is what its file holds.
            scores = [one[part].get("test_after_reading", one[part]["test"]) for one in found]
            out[part] = mean_spread(scores)
    if "compressed" in found[0]:
        out["structure"] = mean_spread(
            [
                {k: float(v) for k, v in one["structure"].items() if isinstance(v, int | float)}
                | {k: float(v) for k, v in one["structure"]["rates"].items() if v is not None}
                for one in found
            ]
        )
    elif "discretised" in found[0]:
        each = [one["structure"]["entropy"] for one in found]
        out["structure"] = mean_spread([{"entropy": e} for e in each])
    elif "structure" in found[0]:
        keys = ("depth_chosen", "depth_expected", "tv_to_exact")
        out["structure"] = mean_spread([{k: float(f["structure"][k]) for k in keys} for f in found])
    return out


@app.command()
def methods() -> None:
    """List the methods."""
    table = Table("method", "what it is", "settings of its own", "source", box=None)
    takes: dict[str, list[str]] = {}
    for row in METHODS.values():
        options = ", ".join(f"{k}={v}" for k, v in row.options.items())
        table.add_row(row.name, row.title, options, row.reference)
        takes.setdefault(", ".join(row.networks), []).append(row.name)
    console.print(table)
    for networks, names in takes.items():
        console.print(f"\nNetworks of {', '.join(names)}: {networks}.", highlight=False)


@app.command("data")
def list_data() -> None:
    """List the data sets."""
    table = Table("data", "task", "from", "what it is", box=None)
    for entry in datasets.available():
        table.add_row(*entry)
    table.add_row("FILE.npz, FILE.csv", "either", "your own", "arrays x_train, y_train, x_test, "
                  "y_test; or a table with a target column (--set data.target=NAME)")  # fmt: skip
    console.print(table)


@app.command()
@_readable_errors
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
) -> None:
    """Cut the network of a run at its chosen depth, or another, and save it."""
    result = load_fit(folder, device)
    net = cut(result, form=form, depth=depth, rule=rule)
    target = out or folder / f"pruned-{form}-{net.depth}-{rule}"
    inference.save(net, target)
    data = result.data
    found = evaluate_pruned(net, data.x_test, data.y_test, data.y_std)
    if result.structure is not None:
        console.print(str(result.structure), highlight=False)
    before, after = count_parameters(result.model), count_parameters(net)
    console.print(
        f"Cut at depth {net.depth} ({form}): {after:,} of {before:,} parameters; test "
        + ", ".join(f"{k} {v:.4f}" for k, v in found.items()),
        highlight=False,
    )
    console.print(f"Written to [bold]{target}[/bold]", highlight=False)


@app.command()
@_readable_errors
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
        Literal["relative", "deviation", "published_code"], typer.Option(help="Rule for the bits.")
    ] = "relative",
    exponent: Annotated[
        Literal["range", "published_three", "published_code"],
        typer.Option(help="Rule for the exponent's bits."),
    ] = "range",
    codebook: Annotated[
        int | None,
        typer.Option(min=1, max=16, help="Bits of an index: round each layer to 2^bits values."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File; RUN/compressed.pocc if left out, with the rules that are not the "
            "run's in its name."
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Cut and round the network of a run over random weights; write it into one small file."""
    if tolerance is not None and threshold not in (None, "validation"):
        raise ValueError(
            f"--tolerance is of --threshold validation, and changes nothing for {threshold!r}: "
            "leave one of them out."
        )
    result = load_fit(folder, device)
    options = RunConfig.read(folder).options
    by_default = options.get("threshold") if tolerance is None else "validation"
    cut_at: Any = by_default if threshold is None else threshold
    if isinstance(cut_at, str) and cut_at not in RULES:
        try:
            cut_at = float(cut_at)
        except ValueError:
            raise ValueError(
                f"--threshold {cut_at!r}: give {', '.join(RULES)} or a number."
            ) from None
    if cut_at == "validation" and not len(result.data.x_val):
        why = "the last fit trained on them" if options.get("last_rows") else "there are none"
        raise ValueError(
            f"{folder} cannot be cut by its validation rows: {why}. Give --threshold noise, valley "
            "or a number."
        )
    allowed = options.get("tolerance") if tolerance is None else tolerance
    rules: dict[str, Any] = {"significand": significand, "exponent": exponent, "codebook": codebook}
    asked = {"threshold": threshold, "tolerance": tolerance, **rules}
    asked |= {"significand": None} if significand == "relative" else {}
    asked |= {"exponent": None} if exponent == "range" else {}
    target = out or folder / weights.file_of(asked)
    small, size = weights.compress_run(result, cut_at, allowed, target, **rules)
    console.print(str(small.report), highlight=False)
    console.print(
        f"{size['file_bytes']:,} bytes, {size['file_rate']:.3g} times smaller than all parameters "
        "of the network were before anything was cut; test "
        + ", ".join(f"{k} {v:.4f}" for k, v in size["test"].items()),
        highlight=False,
    )
    if "not_described" in size:
        console.print(said_of_tensors(size["not_described"]), highlight=False)
    console.print(f"Written to [bold]{target}[/bold]", highlight=False)


@app.command()
@_readable_errors
def decompress(
    file: Annotated[Path, typer.Argument(help="A file that `pyroccam compress` wrote.")],
    out: Annotated[Path | None, typer.Option(help="Folder; beside the file if left out.")] = None,
) -> None:
    """Turn a compressed file into model.safetensors and description.json, which `inference.load`
    reads; runs no pickled code."""
    target = inference.save(packing.read(file), out or file.with_suffix(""))
    console.print(f"Written to [bold]{target}[/bold]", highlight=False)


@app.command()
@_readable_errors
def evaluate(
    folder: Run,
    data: Annotated[
        str | None, typer.Option(help="Data to evaluate on; the run's own if left out.")
    ] = None,
    data_root: Root = None,
    split: Annotated[
        Literal["train", "val", "test"], typer.Option(help="Which rows of the data.")
    ] = "test",
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Evaluate the full and the pruned network of a run, on its own or on other data."""
    result = load_fit(folder, device)
    own = result.data
    small = None
    if (folder / weights.FILE).exists():
        options = RunConfig.read(folder).options
        small = weights.network_of_file(
            result, folder / weights.FILE, options.get("threshold"), options.get("tolerance")
        )
    if data is not None:
        where = {} if data_root is None else {"data_root": data_root}
        other = datasets.load(data, seed=result.settings.seed, **where)
        other.refuse_another_kind(own)
        # The network expects its inputs on the scale of the data it was trained on.
        result.data = other.standardised_as(own).to(own.x_train.device)
    if not len(result.data.split(split)[0]):
        raise ValueError(
            f"There are no {split} rows: the last fit of the run had {result.data!r}. Take another "
            "--split."
        )
    if isinstance(result.model, BayesianNetwork):
        noise = RunConfig.read(folder).options.get("noise", "weights")
        found: dict[str, Any] = {**result.evaluate_ways(split, noise=noise)}
    else:
        found = {"full": result.evaluate(split)}
    if small is not None:
        found["compressed"] = weights.evaluate(result, small, split)
    if result.structure is not None:
        x, y = result.data.split(split)
        found["pruned"] = evaluate_pruned(cut(result), x, y, result.data.y_std)
    table = Table("", *next(iter(found.values())), box=None)
    for name, metrics in found.items():
        table.add_row(name, *(f"{v:.4f}" for v in metrics.values()))
    console.print(f"{result.data!r}, {split} rows", highlight=False)
    console.print(table)
    if out is not None:
        write_json(out, {"data": result.data.name, "split": split, "versions": versions(), **found})


@app.command()
@_readable_errors
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs.", metavar="RUN [RUN ...]")
    ],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
) -> None:
    """Write one page on a run, or on several side by side: summary, metrics, figures, diagnostics,
    settings. It holds everything itself and opens in any browser, offline."""
    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"--out {out}: expected a file name that ends in .html.")
    page = report_page(folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    size = len(page.encode()) / 1e6
    console.print(f"Written to [bold]{out}[/bold] ({size:.1f} MB)", highlight=False)


@app.command()
@_readable_errors
def diagnose(
    folder: Run,
    draws: Annotated[int, typer.Option(min=100, help="From the posterior.")] = 1000,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also what takes long on a large network.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Say in plain words whether the posterior of a run can be trusted, and for what; of repeats,
    whether they agree. Writes diagnostics.json, figures, and posterior.nc for ArviZ."""
    found, written = diagnose_run(folder, device, draws=draws, thorough=thorough)
    print_findings(console, found)
    console.print(f"Written to [bold]{folder}[/bold]:", highlight=False)
    for path in written:
        console.print(f"  {path.relative_to(folder)}", highlight=False)


def main() -> None:
    """``python -m pyroccam.experiments.cli``."""
    app(prog_name="pyroccam")


if __name__ == "__main__":
    main()
