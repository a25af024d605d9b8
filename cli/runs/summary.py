"""Output of a run for a person at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from ...data.errors import PyroccamError
from ...inference.posterior.predict import DRAWS
from ..console import Part, PlainConsole

__all__ = [
    "METRICS",
    "path_table",
    "print_repeats",
    "print_run",
    "refuse_unmet",
    "said_of_labels",
    "said_of_message",
    "said_of_speed",
    "said_of_tensors",
]

METRICS = {
    "accuracy": "accuracy",
    "rank_mae": "MAE of rank",
    "f1": "F1",
    "auroc": "AUROC",
    "rmse": "RMSE, target units",
    "mae": "MAE, target units",
    "deviance": "deviance",
    "nll": "NLL",
    "coverage": "coverage of 90 %",
    "brier": "Brier score",
    "ece": "ECE",
}
"""All metrics of a prediction by name, with what they are called in a table."""

Row = tuple[str, Mapping[str, float], int | None, float | None]
"""A network, its scores, its parameters and the seconds of a batch."""

_WAYS = {
    "stochastic": "one draw",
    "deterministic": "posterior means",
    "ensemble": f"{DRAWS} draws",
}


_NETWORKS = {
    "numbers": "trained as numbers, {epochs} epochs",
    "compressed": "compressed",
    "draw": "read from the draw's file",
    "discretised": "chosen, cut out",
    "retrained": "chosen, afresh",
    "pruned": "pruned, depths 0-{depth}",
    "single_exit": "pruned, depth {depth} alone",
    "ddn": "trained at fixed depth {depth}",
}
"""Other networks of a run, with what they are called in a table."""


def refuse_unmet(metrics: Mapping[str, Any]) -> None:
    """Refuse a run of every size of which no network was cut, or none meets the budget; all that
    was trained is written by then.

    Raises:
        PyroccamError: with the reason.
    """
    if "unmet" in metrics.get("path", {}):
        raise PyroccamError(metrics["path"]["unmet"])


def print_run(console: PlainConsole, metrics: dict[str, Any]) -> None:
    """What speaks against the run, what it learnt, and its networks side by side."""
    for sentence in metrics.get("warnings", []):
        console.say("\n", ("Beware:", "yellow"), f" {sentence}")
    path = metrics.get("path", {})
    if path.get("networks"):
        head, lines = path_table(path)
        table = Table(*head, box=None)
        for column in table.columns:
            column.justify, column.overflow = "right", "fold"
        for line in lines:
            table.add_row(*line)
        console.say()
        console.print(table)
        if "edge" in path:
            console.say(("Beware:", "yellow"), f" {path['edge']}")
    if "not_drawn" in metrics:
        console.say("\n", ("No draw was sent:", "yellow"), f" {metrics['not_drawn']}")
    if learnt := metrics.get("learnt"):
        console.say("\n", (learnt[0], "bold"))
        for sentence in learnt[1:]:
            console.say(sentence)
    if "compressed" in metrics:
        _say_compressed(console, metrics)
    elif "discretised" in metrics:
        _say_structured(console, metrics)
    console.print(_table(_rows(metrics)))
    part = metrics.get("compressed") or metrics.get("pruned") or {}
    if "seconds_by_batch" in part:
        fewer = part["parameters_before"] / part["parameters"]
        console.say(
            f"{fewer:.1f} x fewer parameters. Beside the network that was given it is "
            f"{said_of_speed(part['seconds_by_batch'])}."
        )
    console.say(_trained(metrics))


def _rows(metrics: Mapping[str, Any]) -> list[Row]:
    """The networks of a run, the whole one first."""
    test, method, first = metrics["test"], metrics["method"], metrics["method"]
    rows: list[Row] = []
    if "ensemble" in test:
        mean = metrics.get("mean") or {}
        small = metrics.get("discretised") or {}
        rows = [(f"{method}, {label}", test[way], None, None) for way, label in _WAYS.items()]
        seconds = mean.get("seconds_per_batch", small.get("seconds_per_batch_before"))
        size = small.get("parameters_before", metrics["parameters"])
        rows[1] = (*rows[1][:2], size, seconds)
    else:
        first += ", all depths" if metrics.get("structure") else ""
        before = metrics.get("pruned", {}).get("seconds_per_batch_before")
        rows = [(first, test, metrics["parameters"], before)]
    for key, label in _NETWORKS.items():
        if (part := metrics.get(key)) is not None and "test" in part:
            rows.append(
                (label.format(**part), part["test"], part.get("parameters"),
                 part.get("seconds_per_batch"))
            )  # fmt: skip
    if "random" in metrics:
        runs, spread = metrics["random"]["runs"], metrics["random"]["spread"]
        size = round(sum(run["parameters"] for run in runs) / len(runs))
        of = {k: {name: one[k] for name, one in spread.items()} for k in ("mean", "sd")}
        few = " (there are no more)" if metrics["random"].get("all") else ""
        rows.append((f"{len(runs)} at random, mean{few}", of["mean"], size, None))
        if len(runs) > 1:
            rows.append(("standard deviation", of["sd"], None, None))
    return rows


def path_table(path: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The networks along the weight of the KL in a table: its head, and its lines. Bytes are of
    the file, units those that are left of each layer, ms of 256 rows, scores of the test rows.

    Arguments:
        path: as ``metrics.json`` has it.
    """
    networks = path["networks"]
    scores = [name for name in ("accuracy", "rmse", "nll") if name in networks[0]["test"]]
    deep = networks[0]["depth"] is not None
    named = (METRICS[name].partition(",")[0] for name in scores)
    head = ["λ", "", "bytes", "parameters", *(["blocks"] if deep else []), "units", "ms", *named]
    lines = []
    for one in networks:
        widths = [str(width) for width in one["widths"].values()]
        shown = widths if len(widths) <= 6 else [*widths[:3], "…", *widths[-2:]]
        lines.append(
            [
                f"{one['weight']:.3g}",
                "chosen" if one["chosen"] else "",
                f"{one['file_bytes']:,}",
                f"{one['parameters']:,}",
                *([str(one["depth"])] if deep else []),
                "-".join(shown),
                f"{1e3 * one['seconds']:.2g}",
                *(f"{one['test'][name]:.4f}" for name in scores),
            ]
        )
    return head, lines


def _say_compressed(console: PlainConsole, metrics: Mapping[str, Any]) -> None:
    """The file of a network that was cut, and what is sent with it."""
    structure = metrics["structure"]
    console.say(
        f"The file has {structure['file_bytes']:,} bytes: {structure['file_rate']:.3g} times "
        "smaller than all parameters of the network were."
    )
    if "sent" in metrics:
        console.say(said_of_labels([metrics["sent"]]))
    if "draw" in metrics:
        part = metrics["draw"]
        console.say(
            f"A draw of the posterior of these weights was sent in {part['file_bytes']:,} bytes, "
            f"{part['over_kl']:.3g} times its KL."
        )
    if "message" in metrics:
        console.say(said_of_message([metrics["message"]]))
    if "not_described" in structure:
        console.say(*said_of_tensors(structure["not_described"]))
    for sentence in structure.get("warnings", ()):
        console.say(("Beware: ", "yellow"), sentence)
    for name, reason in structure["left_whole"].items():
        console.say(f"Layer {name} was left whole: {reason}")


def said_of_message(messages: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the bits of a message, the mean of several.

    Arguments:
        messages: of ``DescriptionLength.to_json``, with a total.
    """
    names = ("total", "weights", "per_row", "rows")
    total, weights, each, rows = (sum(m[n] for m in messages) / len(messages) for n in names)
    uniform = messages[0]["uniform"]
    beside = (
        "targets count as densities of what is standardised"
        if uniform is None
        else f"{uniform / rows:.3g} if classes were equally likely"
    )
    return (
        f"By the bound the message of weights and targets has {total:,.0f} bits, {weights:,.0f} of "
        f"them for the weights; that is {each:.3g} a row ({beside})."
    )


def said_of_labels(found: Sequence[Mapping[str, float]]) -> str:
    """A sentence on the bits that send labels with a file, the mean of several.

    Arguments:
        found: of :func:`~pyroccam.cli.methods.weights.sent`.
    """
    uniform, file, left = (
        sum(one[n] for one in found) / len(found) for n in ("uniform", "file", "left")
    )
    return (
        f"To send the training labels takes {uniform:,.0f} bits if nothing is known of them, and "
        f"{file + left:,.0f} with the file ({file:,.0f} of them)."
    )


def said_of_speed(speed: Iterable[Mapping[str, Any]]) -> str:
    """Words for the speed of a network beside another, with both times.

    Arguments:
        speed: for each size of batch, as
            :func:`~pyroccam.inference.cutting.cost.compare_speed` gives it.
    """
    said = []
    for one in speed:
        after, before = 1e3 * one["seconds"], 1e3 * one["seconds_before"]
        low, high = one["times_faster"]
        told = "about as fast"
        if low > 1 and before / after >= 1.05:
            told = f"{before / after:.1f} x faster"
        elif high < 1 and after / before >= 1.05:
            told, low, high = f"{after / before:.1f} x slower", 1 / high, 1 / low
        rows = "of 1 row" if one["batch"] == 1 else f"of {one['batch']} rows"
        said.append(
            f"{told} in a batch {rows} ({after:.3g} ms, before {before:.3g} ms; half of the rounds "
            f"{low:.2f} to {high:.2f} x)"
        )
    return ", ".join(said)


def said_of_tensors(reason: str) -> list[Part]:
    """Text on a file without the description of its network."""
    why = (
        f" {reason} That is what inference.shrink makes of the run's fit. A file that needs no "
        "code is what `pyroccam export` writes."
    )
    return [("The file holds tensors only:", "yellow"), why]


def _say_structured(console: PlainConsole, metrics: Mapping[str, Any]) -> None:
    """The probabilities of the primitives by edge."""
    structure = metrics["structure"]
    console.say()
    chosen = Table("edge", "chosen", "probability of each", box=None)
    for edge, names in structure["chosen"].items():
        probs = structure["probs"].get(edge, {})
        each = ", ".join(f"{name} {p:.2f}" for name, p in probs.items()) or "no alternative"
        chosen.add_row(edge, " + ".join(names) or "none", each)
    console.print(chosen)


def _table(rows: Sequence[Row]) -> Table:
    columns = [name for name in METRICS if name in rows[0][1] and name != "brier"]
    named = [METRICS[name] for name in columns]
    table = Table("network (test rows)", *named, "parameters", "ms per batch", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, scores, parameters, seconds in rows:
        table.add_row(
            label,
            *(f"{scores[c]:.4f}" if c in scores else "" for c in columns),
            "" if parameters is None else f"{parameters:,}",
            "" if seconds is None else f"{1e3 * seconds:.2f}",
        )
    return table


def _trained(metrics: dict[str, Any]) -> str:
    engine = metrics["engine"]
    how = []
    if engine["replicates"] > 1:
        how.append(f"{engine['replicates']} seeds together")
    if engine["kind"] == "compiled":
        how.append(f"{engine['compile_seconds']:.0f} s of it for compiling")
    note = f" ({', '.join(how)})" if how else ""
    return f"Trained in {metrics['seconds']:.0f} s{note}."


def print_repeats(console: PlainConsole, spread: dict[str, Any], repeats: int) -> None:
    """Mean and standard deviation over the repeats."""
    table = Table(f"mean ± sd of {repeats}", "metric", "value", box=None)
    for part, metrics in spread.items():
        for name, m in metrics.items():
            if part != "together":
                table.add_row(part, name, f"{m['mean']:.4f} ± {m['sd']:.4f}")
    console.print(table)
    if "together" in spread:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in spread["together"].items())
        console.say(f"All {repeats} together, their predictions averaged: {shown}.")
