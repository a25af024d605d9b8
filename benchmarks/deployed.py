"""How long a network takes that was made smaller, in the forms in which people run it.

    python -m benchmarks.deployed

Every form of the small network and of the original take turns, on one row and on many; reported are
medians over rounds of the processor's time, relative to the original as it is. Sizes are those of
networks that were cut in docs/results.md.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from pyroccam.inference.packing import fused
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.models.networks.plain import lenet_5_caffe, perceptron
from pyroccam.models.networks.ready import residual_mlp
from pyroccam.models.plain.feature_choice import select
from rich.console import Console
from torch import Tensor, nn

from experiments.published.small_resnet import small_resnet_stack

from .cache import empty_cache
from .harness import Quartiles
from .machine import describe, folder_name
from .report import markdown, number
from .steps import RESULTS, Out, Threads

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)

Run = Callable[[Tensor], Any]
IMAGE, PICTURE = (1, 28, 28), (3, 32, 32)
BATCHES = (1, 256)
BASE = "eager"


def _cut_perceptron(inputs: int, *hidden: int) -> nn.Module:
    """A perceptron that looks at some of the pixels."""
    first, *rest = perceptron((inputs,), 10, hidden=hidden)
    return nn.Sequential(first, select(range(inputs), -1), *rest)


def _residual(depth: int) -> nn.Module:
    """torchvision's blocks in three stages of two, as deep as they are asked for."""
    return small_resnet_stack(PICTURE, 10, blocks=2, width=32).at(depth)


# By name the inputs, the original and what is left of it.
NETWORKS: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "LeNet-300-100 to 278-98-13": (
        IMAGE,
        lambda: perceptron(IMAGE, 10, hidden=(300, 100)),
        lambda: _cut_perceptron(278, 98, 13),
    ),
    "LeNet-300-100 to 598-204-94": (
        IMAGE,
        lambda: perceptron(IMAGE, 10, hidden=(300, 100)),
        lambda: _cut_perceptron(598, 204, 94),
    ),
    "LeNet-5 to 6-9-31": (
        IMAGE,
        lambda: lenet_5_caffe(IMAGE, 10),
        lambda: lenet_5_caffe(IMAGE, 10, channels=(6, 9), hidden=31),
    ),
    "spirals, 20 to 5 blocks": (
        (2,),
        lambda: residual_mlp((2,), 2).at(20),
        lambda: residual_mlp((2,), 2).at(5),
    ),
    "ResNet, 6 to 2 blocks": (PICTURE, lambda: _residual(6), lambda: _residual(2)),
}


# -- forms ------------------------------------------------------------------------------------


def _compiled(net: nn.Module, x: Tensor) -> Run:
    torch._dynamo.reset()
    return torch.compile(net, fullgraph=True, dynamic=False)


def _ahead_of_time(net: nn.Module, x: Tensor) -> Run:
    """By ``torch.export`` and AOTInductor: no Python is left in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.pt2")
        made = torch._inductor.aoti_compile_and_package(
            torch.export.export(net, (x,)), package_path=path
        )
        run: Run = torch._inductor.aoti_load_package(made)
    return run


def _script(net: nn.Module, x: Tensor) -> Run:
    run: Run = torch.jit.freeze(torch.jit.trace(net, x, check_trace=False))
    return run


def _onnx(net: nn.Module, x: Tensor) -> Run:
    import onnxruntime

    made = torch.onnx.export(net, (x,), dynamo=True, verbose=False)
    assert made is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        made.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})


def _int8(net: nn.Module, x: Tensor) -> Run:
    """Linear layers in eight bits, inputs quantised as they come."""
    run: Run = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    return run


FORMS: dict[str, Callable[[nn.Module, Tensor], Run]] = {
    BASE: lambda net, x: net,
    "fused": fused,
    "torch.compile": _compiled,
    "AOTInductor": _ahead_of_time,
    "TorchScript": _script,
    "ONNX Runtime": _onnx,
    "int8": _int8,
}


# -- measuring --------------------------------------------------------------------------------


def measure(
    network: str, batch: int, rounds: int, seconds: float = 0.02, forms: Sequence[str] = ()
) -> dict[str, Any]:
    """Times of a batch, in microseconds, of the original and of the small network in every form.

    Arguments:
        network: of ``NETWORKS``.
        batch: rows.
        rounds: turns of each.
        forms: only these, beside the networks as they are.
        seconds: about how long one turn takes.
    """
    shape, original, small = NETWORKS[network]
    torch.manual_seed(0)
    x = torch.randn(batch, *shape)
    runs: dict[str, Run] = {}
    failed: dict[str, str] = {}
    for size, make in (("original", original), ("small", small)):
        net = make().eval()
        for form, build in FORMS.items():
            if forms and form not in (BASE, *forms):
                continue
            name = f"{size}, {form}"
            try:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    runs[name] = build(net, x)
                    runs[name](x)
            except Exception as error:
                runs.pop(name, None)
                failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]:.100}"
    counts = {
        name: max(1, round(seconds / max(_took(run, x, 5), 1e-7))) for name, run in runs.items()
    }
    microseconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            gc.collect()
            _took(run, x, 3)
            microseconds[name].append(1e6 * _took(run, x, counts[name]))
    base = microseconds[f"original, {BASE}"]
    ratios = {
        name: Quartiles.of([a / b for a, b in zip(took, base, strict=True)])
        for name, took in microseconds.items()
    }
    return {
        "network": network,
        "batch": batch,
        "microseconds": {name: asdict(Quartiles.of(took)) for name, took in microseconds.items()},
        "ratio": {name: asdict(found) for name, found in ratios.items()},
        "failed": failed,
    }


@torch.no_grad()
def _took(run: Run, x: Tensor, count: int) -> float:
    """Seconds of the processor for one call."""
    begun = time.process_time()
    for _ in range(count):
        run(x)
    return (time.process_time() - begun) / count


def table(rows: list[dict[str, Any]]) -> str:
    """In Markdown: the small network in each form, beside the best form of the original."""
    forms = [f"small, {form}" for form in FORMS]
    head = ["network", "rows", "original, us", *forms, "original, best"]
    body = []
    for row in rows:
        base = number(row["microseconds"][f"original, {BASE}"]["median"])
        ratio = {name: found["median"] for name, found in row["ratio"].items()}
        cells = [ratio.get(form) for form in forms]
        best = min((n for n in ratio if n.startswith("original")), key=ratio.__getitem__)
        said = f"{number(ratio[best])} ({best.removeprefix('original, ')})"
        shown = ["" if one is None else number(one) for one in cells]
        body.append([row["network"], str(row["batch"]), base, *shown, said])
    return markdown(head, body)


@app.command(help=(__doc__ or "").split("\n\n")[0])
def main(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each form.")] = 15,
    threads: Threads = 1,
    out: Out = RESULTS,
    networks: Annotated[
        list[str] | None,
        typer.Option("--network", help="Only this one; rows of others in the file stay."),
    ] = None,
    forms: Annotated[
        list[str] | None, typer.Option("--form", help=f"Only this one, beside {BASE}.")
    ] = None,
) -> None:
    torch.set_num_threads(threads)
    for given, known in ((networks, NETWORKS), (forms, FORMS)):
        if odd := [name for name in given or () if name not in known]:
            raise typer.BadParameter(f"{odd[0]!r} is none of {', '.join(known)}.")
    if find_spec("onnxruntime") is None:
        console.print("ONNX Runtime is not installed, and left out: pip install 'pyroccam[export]'")
    with empty_cache():
        rows = [
            measure(name, batch, rounds, forms=forms or ())
            for name in networks or NETWORKS
            for batch in BATCHES
        ]
    cpu = torch.device("cpu")
    path = out / folder_name(cpu) / "deployed.json"
    before = json.loads(path.read_text())["rows"] if networks and path.exists() else []
    others = [row for row in before if row["network"] not in (networks or ())]
    write_json(path, {"machine": describe(cpu), "rows": [*others, *rows]})
    for row in rows:
        for name, why in row["failed"].items():
            console.print(f"{row['network']}, {row['batch']} rows, {name}: {why}")
    print(table(rows))


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.deployed")
