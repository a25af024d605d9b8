"""Shares of the time of a step with random weights and scales of groups.

    python -m pyroccam.benchmarks.breakdown

LeNet-300-100 in our own compiled step, from the plain network to log-uniform scales of groups, each
row with one thing more than the one before, so that the differences add up to the whole. Beside
them, by themselves, the operations that a compiler leaves as they are: the optimiser, the random
numbers, the products of matrices of the first layer. All take turns; a part is a difference within
a round over the time of the plain network in torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import pyro
import pyro.distributions as dist
import torch
import typer
from pyro.distributions import TorchDistribution
from rich.console import Console
from torch import Tensor, nn
from torch.distributions import Normal as TorchNormal
from torch.distributions import constraints, register_kl

from .. import guides, models
from ..guides.base import Guide
from ..inference.fits.fitting import pick_device
from ..models.base import Model
from ..models.layers.affine import Affine
from ..models.priors.base import Latent, LayerPrior, LayerShape, WeightPrior
from .harness import Contender, Plan, Quartiles, Report, Step, Workload, measure
from .machine import describe, folder_name
from .report import markdown, number, read, table, write
from .steps import RESULTS, DeviceName, Out, ReportOnly, Threads
from .workloads.compression import BASE, LOG_SCALE, SETTINGS, deterministic
from .workloads.contenders import Pair, ours
from .workloads.lenet import LeNetProblem

__all__ = ["PARTS", "Free", "WithoutProduct", "breakdown", "parts"]

Compile = bool | Literal["graph"]

PLAIN, SPREADS, VARIANCES, SCALES, WHOLE = (
    "plain, compiled",
    "a spread for each weight",
    "and the variances of the outputs",
    "and scales of groups",
    "and the KL: the whole step",
)
MOLCHANOV, PER_BATCH = "the whole step, published KL", "the whole step, scales once for the batch"

PARTS = {
    "compiling the plain step": (PLAIN, BASE),
    "twice the parameters: optimiser, standard deviations, noise of the outputs": (SPREADS, PLAIN),
    "products of matrices for the variances": (VARIANCES, SPREADS),
    "scales of groups: noise, and products for the slopes of the inputs": (SCALES, VARIANCES),
    "KL": (WHOLE, SCALES),
    "the published approximation of the KL of the scales instead": (MOLCHANOV, WHOLE),
    "scales once for the batch instead": (PER_BATCH, WHOLE),
}
"""Differences of two contenders; the first five and 1 make the whole step."""

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
console = Console(stderr=True)


class _NoDensity(TorchDistribution):
    """Asks for nothing: the KL to it is zero."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 (as torch declares it)
    support = constraints.real

    def __init__(self, batch_shape: Sequence[int] = ()) -> None:
        super().__init__(torch.Size(batch_shape), validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> _NoDensity:
        return type(self)(batch_shape)


@register_kl(TorchNormal, _NoDensity)
def _kl_normal_none(q: TorchNormal, p: _NoDensity) -> Tensor:
    return q.loc.new_zeros(()).expand(q.batch_shape)


@dataclass(frozen=True)
class Free(WeightPrior):
    """No prior: what a step costs without a KL.

    Arguments:
        scales: of groups too.
    """

    scales: bool

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        return _FreeLayer(layer, self.scales)


class _FreeLayer(LayerPrior):
    def __init__(self, layer: LayerShape, scales: bool) -> None:
        super().__init__(layer)
        self.scales = scales

    def latents(self) -> Mapping[str, Latent]:
        start, layer = math.exp(LOG_SCALE), self.layer
        shapes: dict[str, tuple[torch.Size, float | None]] = {"weight": (layer.weight, None)}
        if self.scales:
            shapes["scale"] = (torch.Size([layer.groups]), 1.0)
        if layer.bias is not None:
            shapes["bias"] = (layer.bias, None)
        return {
            name: Latent(_NoDensity(shape).to_event(len(shape)), start=(loc, start))
            for name, (shape, loc) in shapes.items()
        }


class WithoutProduct(models.LocalReparameterization):
    """Variances of the outputs without a product of matrices: those of inputs that are all one.

    Every standard deviation still has a slope, so the optimiser has as much to do.
    """

    @staticmethod
    def _variance(run: Affine, x: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        own = scale.square().sum(1)
        return (own if bias is None else own + bias.square()).expand(len(x), -1)


class _Plain(Model):
    """A network without latents as a Pyro model."""

    def __init__(self, problem: LeNetProblem, device: torch.device) -> None:
        super().__init__()
        self.net, self.size = problem.net(device), problem.N
        self.likelihood = models.Classification(problem.outputs)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        outputs = self.part("net")(x)
        with pyro.plate("data", self.size, subsample=x):
            return pyro.sample("y", dist.Categorical(logits=outputs), obs=y)


class _Nothing(Guide):
    """Its guide."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        pass


def breakdown(
    name: str, problem: LeNetProblem, device: torch.device, compile: Compile = True
) -> Workload:
    """The rows, as a workload.

    Arguments:
        name: of the result file.
        problem: sizes.
        device: where.
        compile: as for :class:`~pyroccam.inference.TrainingStep`.
    """
    x, y = problem.data(device)
    groups, outputs = sum(problem.widths[:-1]), sum(problem.widths[1:])
    plain = sum(p.numel() for p in problem.net(device).parameters())
    normals = problem.batch * groups, problem.batch * outputs

    def pair(
        prior: WeightPrior,
        handler: Callable[..., models.LocalReparameterization] = models.LocalReparameterization,
        **options: Any,
    ) -> Pair:
        model = models.BayesianNetwork(problem.net(device), problem, prior=prior)
        local = handler(model, **options)
        return model, guides.MeanField(model, scale=math.exp(LOG_SCALE), local=local).to(device)

    def without_latents() -> Pair:
        model = _Plain(problem, device)
        return model, _Nothing(model)

    def row(name: str, make: Callable[[], Pair], note: str = "") -> Contender:
        def build() -> Step:
            return ours([make()], SETTINGS, x, y, compile=compile)

        return Contender(name, build, note, compiled=compile is True, same=False)

    def alone(name: str, build: Callable[[], Step], note: str) -> Contender:
        return Contender(f"alone: {name}", build, note, same=False)

    gnj = models.priors.GroupNormalJeffreys
    first = problem.widths[0], problem.widths[1]
    rows = [
        Contender(BASE, lambda: deterministic(problem, device), "eager", same=False),
        row(PLAIN, without_latents, "in our step"),
        row(SPREADS, lambda: pair(Free(False), WithoutProduct), "outputs are drawn; no product"),
        row(VARIANCES, lambda: pair(Free(False))),
        row(SCALES, lambda: pair(Free(True)), "drawn for each example"),
        row(WHOLE, lambda: pair(gnj())),
        row(MOLCHANOV, lambda: pair(gnj(kl="molchanov"))),
        row(PER_BATCH, lambda: pair(gnj(), scales="batch"), "they multiply the weights"),
        alone("optimiser, plain", lambda: _optimiser(plain, device), f"{plain:,} numbers"),
        alone("optimiser", lambda: _optimiser(2 * (plain + groups), device),
              f"{2 * (plain + groups):,} numbers"),
        alone("noise of the scales", lambda: _noise(normals[0], device), f"{normals[0]:,} normals"),
        alone("noise of the outputs", lambda: _noise(normals[1], device),
              f"{normals[1]:,} normals"),
        alone("products of the first layer, plain", lambda: _products(problem.batch, *first, 1, 0),
              "forward, and the slope of the weights"),
        alone("products of the first layer", lambda: _products(problem.batch, *first, 2, 2),
              "the same for means and variances, and the slopes of the inputs, which scales need"),
    ]  # fmt: skip
    parameters = {**asdict(problem), "settings": asdict(SETTINGS), "normals": sum(normals)}
    title = f"LeNet-300-100 by parts, batch {problem.batch}"
    return Workload(name, title, parameters, rows, BASE)


def _optimiser(count: int, device: torch.device) -> Step:
    p = nn.Parameter(torch.zeros(1, count, device=device))
    p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW([p], lr=SETTINGS.lr, weight_decay=0.0, fused=True)

    def step() -> float:
        optimizer.step()
        return 0.0

    return step


def _noise(count: int, device: torch.device) -> Step:
    def step() -> float:
        torch.randn(count, device=device)
        return 0.0

    return step


def _products(batch: int, inputs: int, outputs: int, ways: int, slopes: int) -> Step:
    """``ways`` times the product forward and that for the weights, ``slopes`` for the inputs."""
    x, w, g = torch.rand(batch, inputs), torch.rand(outputs, inputs), torch.rand(batch, outputs)

    def step() -> float:
        for _ in range(ways):
            torch.mm(x, w.t())
            torch.mm(g.t(), x)
        for _ in range(slopes):
            torch.mm(g, w)
        return 0.0

    return step


def parts(report: Report) -> dict[str, Quartiles]:
    """Every part over the time of the base, from rounds in which all took their turns."""
    base = report[report.base].rounds_ms
    found = {}
    for part, (more, less) in PARTS.items():
        a, b = report[more].rounds_ms, report[less].rounds_ms
        if a and b:
            rounds = zip(a, b, base, strict=True)
            found[part] = Quartiles.of([(i - j) / k for i, j, k in rounds])
    return found


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 21,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps in a turn.")] = 20,
    threads: Threads = 1,
    device: DeviceName = "cpu",
    out: Out = RESULTS,
    report: ReportOnly = False,
) -> None:
    """Measure, write breakdown.json, and print tables in Markdown."""
    torch.set_num_threads(threads)
    where = pick_device(device)
    folder = out / folder_name(where)
    if not report:
        work = breakdown("breakdown", LeNetProblem(), where)
        plan = Plan(rounds=rounds, steps=steps)
        write(measure(work, plan, where, describe(where), console.print), folder)
    found = read(folder / "breakdown.json")
    print(table(found), end="\n\n")
    rows = [
        (part, number(q.median) if q.median >= 0 else f"-{number(-q.median)}",
         f"{q.lower:.2f} to {q.upper:.2f}")
        for part, q in parts(found).items()
    ]  # fmt: skip
    print(markdown(("part", f"time / {found.base}", "quartiles"), rows))


if __name__ == "__main__":
    app(prog_name="python -m pyroccam.benchmarks.breakdown")
