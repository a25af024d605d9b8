"""From how many steps on it pays to trace them, and to compile what was traced; and a step of
numbers beside one written by hand.

    python -m benchmarks.tracing

Contenders are timed in turns, on rows of noise; a step is one of 64 rows. The compiler begins with
nothing in its cache, but awake.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pyro
import torch
import typer
from pyroccam.cli.methods import METHODS
from pyroccam.data import Dataset
from pyroccam.inference.compilation import elementary
from pyroccam.inference.fits.retraining import NetworkOfNumbers, Nothing
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.inference.training.settings import Settings
from pyroccam.inference.training.step import TrainingStep
from pyroccam.models.likelihoods import for_data
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from experiments.trials.strangers import networks

from .cache import empty_cache
from .harness import Quartiles, clock_of, wake_compiler
from .machine import describe, folder_name
from .report import markdown, number
from .steps import RESULTS, Out, Threads

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)

ROWS = 64
PAIRS = (
    ("gnj", "mlp"), ("gnj", "norm"), ("gnj", "lenet"), ("gnj", "conv"), ("gnj", "gru"),
    ("bayes", "mlp"), ("sparse-vd", "mlp"), ("sparse-vd", "lenet"), ("ghs", "mlp"),
)  # fmt: skip
NUMBERS = ("mlp", "norm", "lenet", "conv", "gru")
WAYS: dict[str, bool | Literal["graph"]] = {"as it is": False, "graph": "graph", "compiled": True}
SHAPES: dict[str, tuple[int, ...]] = {"lenet": (1, 28, 28), "conv": (1, 28, 28), "gru": (8, 8)}
"""Of the inputs of a network; 16 numbers otherwise."""


def _rows(network: str) -> Dataset:
    torch.manual_seed(0)
    x = torch.randn(20 * ROWS, *SHAPES.get(network, (16,)))
    y = torch.randint(0, 10, (len(x),))
    return Dataset.from_tensors(x, y, x[:ROWS], y[:ROWS], task="classification")


def _network(network: str, rows: Dataset) -> nn.Module:
    made: nn.Module = getattr(networks, network)(rows.input_shape, rows.outputs)
    return made.train()


def _in_turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Quartiles]:
    """Milliseconds of a step of each."""
    ms: dict[str, list[float]] = {name: [] for name in contenders}
    clock = clock_of(torch.device("cpu"))
    for step in contenders.values():
        for _ in range(30):  # what is traced is traced by then
            step()
    for _ in range(rounds):
        for name, step in contenders.items():
            begun = clock()
            for _ in range(30):
                step()
            ms[name].append((clock() - begun) / 30 * 1e3)
    return {name: Quartiles.of(found) for name, found in ms.items()}


def traced(method: str, network: str, rounds: int) -> dict[str, Any]:
    """A step of a pair: as it is, as a graph, and as a compiled graph."""
    rows = _rows(network)
    model, guide = METHODS[method].build(_network(network, rows), rows)
    settings = Settings.of({"batch_size": ROWS, "epochs": 1})
    x, y = rows.x_train[:ROWS], rows.y_train[:ROWS]
    steps = {}
    for name, compile in WAYS.items():
        pair = copy.deepcopy((model, guide))
        pair[0].train()
        steps[name] = TrainingStep([pair], settings, compile=compile, rows=rows.N)
    with pyro.validation_enabled(False):
        calls: dict[str, Callable[[], Any]] = {
            name: partial(step, x, y, 0.5) for name, step in steps.items()
        }
        ms = _in_turns(calls, rounds)
        rule = TrainingStep(
            [(model.train(), guide)], settings, compile=None, rows=rows.N, steps={ROWS: 1}
        )
        rule(x, y, 0.5)
    seconds = {name: step.compile_seconds for name, step in steps.items()}
    pays = {
        now: _pays(seconds[now] - seconds[before], ms[before].median - ms[now].median)
        for before, now in (("as it is", "graph"), ("graph", "compiled"))
    }
    return {
        "method": method,
        "network": network,
        "ms": {k: asdict(v) for k, v in ms.items()},
        "seconds": seconds,
        "pays_from": {**pays, "rule": rule.pays_from},
    }


def _pays(seconds: float, gain: float) -> float | None:
    """Steps that gain so many seconds, at a gain in milliseconds."""
    return 1e3 * seconds / gain if gain > 0 else None


def numbers(network: str, rounds: int) -> dict[str, Any]:
    """A step of a network as numbers, by a loop as a person writes it and by ours."""
    rows = _rows(network)
    x, y = rows.x_train[:ROWS], rows.y_train[:ROWS]
    net = _network(network, rows)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    loss = nn.CrossEntropyLoss()

    def by_hand() -> None:
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
        falling.step()

    fit: Any = SimpleNamespace(data=rows, model=SimpleNamespace(likelihood=for_data(rows)))
    pair = (NetworkOfNumbers(_network(network, rows), fit, None).train(), Nothing())
    settings = Settings(weight_decay=0.01, clip_norm=1.0, lr=1e-3)
    step = TrainingStep([pair], settings, compile="graph")
    calls = {"by hand": by_hand, "ours": lambda: step(x, y, 0.5)}
    ms = _in_turns(calls, rounds)
    return {"network": network, "ms": {k: asdict(v) for k, v in ms.items()}}


def logarithms(rounds: int) -> dict[str, Any]:
    """``log(1 + x)`` of as many numbers as LeNet-300-100 has weights, in nanoseconds a number.

    That of torch depends on what has run in the process: it is measured first, and at the end.
    """
    torch.manual_seed(0)
    x = torch.randn(266_610).sub(7.0).exp()
    calls = {"torch.log": x.log, "torch.log1p": x.log1p, "ours": lambda: elementary.log1p(x)}
    ms = _in_turns(calls, rounds)
    return {name: 1e6 * took.median / x.numel() for name, took in ms.items()}


def draws(rounds: int) -> dict[str, float]:
    """As many random numbers, by torch's generator and by a compiled counter, in nanoseconds a
    number."""
    # Imported where it is needed: it brings the compiler with it.
    from pyroccam.inference.compilation.inductor import compiled

    x = torch.zeros(266_610)
    layout = x.shape, x.stride(), x.dtype, x.device
    calls: dict[str, Callable[[], Any]] = {}
    for name, draw in {"normal": torch.randn_like, "uniform": torch.rand_like}.items():
        counted, _ = compiled(make_fx(partial(_alone, draw))(x), [layout])
        calls[f"torch, {name}"] = partial(draw, x)
        calls[f"ours, {name}"] = partial(_called, counted, x)
    ms = _in_turns(calls, rounds)
    return {name: 1e6 * took.median / x.numel() for name, took in ms.items()}


def _alone(draw: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor]:
    return (draw(x),)


def _called(f: Callable[[list[Tensor]], Any], x: Tensor) -> Any:
    return f([x])  # a list of its own, which is emptied


def table(found: dict[str, Any]) -> str:
    """All tables in Markdown."""
    header = ("method", "network", *(f"{way}, ms" for way in WAYS), "trace, s", "compile, s",
              "tracing pays from", "compiling pays from", "by the rule")  # fmt: skip
    lines = []
    for one in found["traced"]:
        ms = [number(one["ms"][way]["median"]) for way in WAYS]
        seconds = [number(one["seconds"][way]) for way in ("graph", "compiled")]
        pays = ["never" if n is None else f"{n:.0f}" for n in one["pays_from"].values()]
        lines.append((one["method"], one["network"], *ms, *seconds, *pays))
    plain = []
    for one in found["numbers"]:
        hand, ours = (one["ms"][name] for name in ("by hand", "ours"))
        ratio = number(ours["median"] / hand["median"])
        plain.append((one["network"], number(hand["median"]), number(ours["median"]), ratio))
    other = markdown(("network", "by hand, ms", "ours, ms", "ours / by hand"), plain)
    logs = [(when, *map(number, took.values())) for when, took in found["logarithms"].items()]
    names = next(iter(found["logarithms"].values()))
    last = markdown(["process", *(f"{name}, ns" for name in names)], logs)
    drawn = [[number(took) for took in found["draws"].values()]]
    random = markdown([f"{name}, ns" for name in found["draws"]], drawn)
    return f"{markdown(header, lines)}\n\n{other}\n\n{last}\n\n{random}"


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="In each, 30 steps of every contender.")] = 9,
    threads: Threads = 1,
    out: Out = RESULTS,
) -> None:
    """Measure on this machine's CPU, write tracing.json and print its tables."""
    torch.set_num_threads(threads)
    cpu = torch.device("cpu")
    new = logarithms(rounds)
    with empty_cache():
        wake_compiler(cpu)
        pairs = [traced(method, network, rounds) for method, network in PAIRS]
        random = draws(rounds)
    found = {
        "machine": describe(cpu),
        "traced": pairs,
        "numbers": [numbers(name, rounds) for name in NUMBERS],
        "logarithms": {"new": new, "after all of this": logarithms(rounds)},
        "draws": random,
    }
    write_json(out / folder_name(cpu) / "tracing.json", found)
    print(table(found))


if __name__ == "__main__":
    app()
