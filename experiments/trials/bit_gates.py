"""Bits by group of weights as a random choice, beside a learnt step: a trial on MNIST.

    python -m experiments.trials.bit_gates --data-root FOLDER
    python -m experiments.published.compression --data-root FOLDER --methods epr \
        --epochs 5 --out experiments/results/bits

Each group of outputs of a layer has 0, 2, 4 or 8 bits for each of its weights: an edge of a graph
whose primitives round one and the same weight. The prior of the choice is that of a code which
spends the bits, and the entropy of its posterior stays in the bound. The second command is the
contender, a learnt step with a model of the whole numbers, for as many epochs. Errors are of the
test rows, by the network that is read from its file. A finished seed is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pyro.distributions as dist
import torch
import typer
from pyroccam import guides, inference, models
from pyroccam.cli.runs.building import build_network
from pyroccam.cli.runs.config import RunConfig
from pyroccam.data import Dataset
from pyroccam.guides.edges import EdgeFactor
from pyroccam.inference.cutting import cut
from pyroccam.inference.packing import Multiples
from pyroccam.inference.packing.packed import read, write
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.posterior.metrics import mean_spread
from pyroccam.inference.posterior.predict import evaluate_net
from pyroccam.models.priors.structure import EdgePrior, StructurePrior
from torch import Tensor, nn
from torch.distributions import register_kl
from torch.nn.functional import linear

from ..published import options
from ..published.runner import ResultFile, Row

__all__ = ["BITS", "BitGates", "CodeLength", "HardChoice", "main", "residuals", "step_of"]

BITS = (0, 2, 4, 8)
"""Alternatives of a group; of 0 its weights and biases are zero."""

SETTINGS: dict[str, Any] = {
    "batch_size": 256, "optimizer": "adam", "schedule": "linear", "weight_decay": 0.0, "lr": 2e-3,
    "guide_lr": 0.02, "kl_warmup": 0.2, "checkpoint": "last", "compile": False,
}  # fmt: skip

SPREAD = ("error", "file_bytes", "nonzero_percent", "code_bytes", "entropy")

_INSIDE = 1.0 - 1e-6  # of the range, so that its ends are no ties


def step_of(limit: Tensor, bits: int) -> Tensor:
    """The distance of levels of so many bits in ``[-limit, limit]``: ``2 limit / (2^bits - 1)``."""
    return 2.0 * limit / (2**bits - 1)


def residuals(weight: Tensor, limit: Tensor) -> list[Tensor]:
    r"""What each doubling of the bits adds to a rounded weight.

    .. math:: x_2 = s_2 ⌊x / s_2⌉, \qquad ε_b = s_b ⌊(x - x_{b/2}) / s_b⌉, \quad
              x_b = x_{b/2} + ε_b, \qquad s_{2b} = s_b / (2^b + 1)

    with x the weight clipped to the range. As 2^b + 1 is odd, every level of b/2 bits is one of b,
    and x_b is x rounded to multiples of s_b. Gradients pass the rounding.

    Arguments:
        weight: of any shape.
        limit: of the range, positive, ``()``, in the unit of the weights.

    Returns:
        x_2, ε_4, ε_8, each of the shape of the weight.

    References:
        van Baalen et al. 2020, Bayesian Bits, arXiv:2005.07093.
    """
    end = _INSIDE * limit
    x = torch.minimum(torch.maximum(weight, -end), end)
    found: list[Tensor] = []
    total = torch.zeros_like(x)
    for bits in BITS[1:]:
        step = step_of(limit, bits)
        scaled = (x - total) / step
        found.append(step * (scaled + (scaled.round() - scaled).detach()))
        total = total + found[-1]
    return found


class _Shared(nn.Module):
    """The weight that all primitives of a layer round, its range, and the biases."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        self.bias = nn.Parameter(layer.bias.detach().clone())
        self.log_limit = nn.Parameter(self.weight.detach().abs().max().log())

    @property
    def limit(self) -> Tensor:
        return self.log_limit.exp()


class _Rows(nn.Module):
    """Some outputs of a layer, by weights of so many bits."""

    def __init__(self, shared: _Shared, rows: slice, bits: int) -> None:
        super().__init__()
        self.held, self.rows, self.bits = (shared,), rows, bits  # a submodule of the graph

    def forward(self, x: Tensor) -> Tensor:
        (shared,) = self.held
        bias = shared.bias[self.rows]
        if self.bits == 0:
            return x.new_zeros(len(x), len(bias))
        parts = residuals(shared.weight, shared.limit)[: BITS.index(self.bits)]
        return linear(x, sum(parts[1:], parts[0])[self.rows], bias)


class BitGates(models.StructureGraph):
    r"""A linear layer in which each group of outputs has a number of bits: a graph with an edge
    for each group.

    .. math:: w_g = \sum_b \Big(\sum_{k \ge b} γ^g_k\Big) ε^g_b

    A mixture of rounded weights is the sum of what each doubling adds, times the share of those
    that have it, so that one product serves all primitives.

    Arguments:
        layer: whose weights and biases it begins with.
        rows: outputs in a group; the last may have fewer.
    """

    sizes: Tensor

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        shared, count = _Shared(layer), layer.out_features
        starts = range(0, count, rows)
        sizes = [min(rows, count - start) for start in starts]
        edges: dict[tuple[str, str], Any] = {}
        for start, size in zip(starts, sizes, strict=True):
            own = slice(start, start + size)
            edges["x", f"rows{start}"] = {str(b): _Rows(shared, own, b) for b in BITS}
        edges |= {(f"rows{start}", "y"): [nn.Identity()] for start in starts}
        super().__init__(edges, aggregate={"y": "concatenate"})
        self.shared = shared
        self.group_edges = [f"x-rows{start}" for start in starts]
        self.register_buffer("sizes", torch.tensor(sizes), persistent=False)

    def rounded(self) -> tuple[Tensor, Tensor]:
        """Weights ``(out, in)`` and biases ``(out,)`` of the γ that it has."""
        gammas = torch.stack([self.gamma.of(edge) for edge in self.group_edges])
        shares = gammas.flip(-1).cumsum(-1).flip(-1)  # of at least so many bits, (groups, K)
        shares = shares.repeat_interleave(self.sizes, 0, output_size=len(self.shared.bias))
        parts = residuals(self.shared.weight, self.shared.limit)
        weight = sum(shares[:, k, None] * part for k, part in enumerate(parts, start=1))
        assert isinstance(weight, Tensor)
        return weight, shares[:, 1] * self.shared.bias

    def forward(self, *x: Tensor) -> Tensor:
        return linear(x[0], *self.rounded())


class HardChoice(dist.OneHotCategoricalStraightThrough):
    """One of K, drawn as zeros and a one, with the gradient of the probabilities.

    A bound of such draws is that of the choice itself, and its KL exact; the gradient of the
    likelihood is not (it is linear in the choice). The KL of a relaxation would not do here: under
    this prior it changes by at most K nats with a nat of a logit, and not with the expected bits.
    """

    has_enumerate_support = False  # three layers of four alternatives would be 64 networks


@register_kl(HardChoice, HardChoice)
def _kl(q: HardChoice, p: HardChoice) -> Tensor:
    """``Σ q (log q - log p)`` in nats; torch's own is infinite where p underflows, as 2^-100000
    does."""
    kl: Tensor = (q.probs * (q.logits - p.logits)).sum(-1)
    return kl


class _CodeEdge(EdgePrior):
    restriction, family = "simplex interior", "hard-choice"

    def forward(self) -> Any:
        return HardChoice(logits=self.logits, validate_args=False)

    def gamma(self, value: Tensor) -> Tensor:
        return value


@dataclass(frozen=True)
class CodeLength(StructurePrior):
    r"""Bits of a group as likely as a code that spends them has it: :math:`p(b) ∝ 2^{-b n}`.

    Arguments:
        numbers: n, weights of the group, by edge. The names of primitives are the bits b.
    """

    numbers: Mapping[str, int]

    kind = _CodeEdge

    def for_edges(self, primitives: Mapping[str, Sequence[str]]) -> dict[str, EdgePrior]:
        found: dict[str, EdgePrior] = {}
        for edge, names in primitives.items():
            bits = torch.tensor([float(name) for name in names])
            logits = (-math.log(2.0) * self.numbers[edge] * bits).log_softmax(-1)
            found[edge] = _CodeEdge(edge, names, logits, False, None)
        return found


class _Choice(EdgeFactor):
    """Probabilities of the bits of a group, which begin at the most bits."""

    word, restrictions = "hard-choice", ("simplex interior",)

    def __init__(self, prior: EdgePrior, temperature: nn.Module | None) -> None:
        super().__init__(prior, temperature)
        start = torch.zeros_like(prior.logits)
        start[-1] = 3.0
        self.logits = nn.Parameter(start)

    def forward(self) -> Any:
        return HardChoice(logits=self.logits, validate_args=False)

    def probs(self) -> Tensor:
        return self.logits.softmax(-1)


# -- the script -----------------------------------------------------------------------------------


def gated(net: nn.Module, rows: int | None) -> tuple[nn.Module, CodeLength]:
    """A network with gates in place of its linear layers, in place, and the prior of their bits.

    Arguments:
        net: plain.
        rows: outputs in a group, or ``None`` for whole layers.
    """
    numbers: dict[str, int] = {}
    for name, layer in [(n, m) for n, m in net.named_modules() if isinstance(m, nn.Linear)]:
        made = BitGates(layer, layer.out_features if rows is None else rows)
        for edge, size in zip(made.group_edges, made.sizes.tolist(), strict=True):
            numbers[f"{name}.{edge}"] = size * layer.in_features
        net.set_submodule(name, made)
    return net, CodeLength(numbers)


@torch.no_grad()
def plain(net: nn.Module) -> tuple[nn.Module, dict[str, Multiples]]:
    """The network of linear layers at the γ that the gates have, in place, and its steps."""
    steps: dict[str, Multiples] = {}
    for name, gates in [(n, m) for n, m in net.named_modules() if isinstance(m, BitGates)]:
        weight, bias = gates.rounded()
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
        net.set_submodule(name, layer)
        most = max(int(gates.gamma.of(edge).argmax()) for edge in gates.group_edges)
        steps[name] = Multiples(float(step_of(gates.shared.limit, BITS[max(most, 1)])))
    return net, steps


def main(
    out: options.Out = options.RESULTS / "bits",
    data: options.Data = "mnist",
    data_root: options.DataRoot = None,
    network: options.Network = "lenet-300-100",
    groups: Annotated[str, typer.Option(help="Outputs in a group, or layer.")] = "layer,10",
    kl_weights: Annotated[str, options.BY_COMMAS] = "0.01,0.02,0.03",
    seeds: options.Count = 3,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 5,
    sets: options.Sets = None,
    threads: options.Count = 1,
) -> None:
    """Run what is missing, and write one JSON file for each group and weight of the KL."""
    torch.set_num_threads(threads)
    own = options.settings_of(sets, {**SETTINGS, "epochs": epochs})
    for seed in range(seeds):
        for group in groups.split(","):
            for weight in map(float, kl_weights.split(",")):
                config = {**own, "data": data, "network": network, "group": group}
                file = ResultFile(
                    out / f"{data}-{network}-gates-{group}-{weight:g}.json",
                    config={**config, "kl_weight": weight},
                )
                if file.missing([seed]):
                    settings = {**own, "kl_weight": weight}
                    row = _run(data, data_root, network, group, settings, seed)
                    file.add(row, _spread)
                    print(_line(group, weight, row), flush=True)


def _run(
    data: str, root: str | None, network: str, group: str, settings: dict[str, Any], seed: int
) -> Row:
    """A row of one seed: trained, rounded, cut, written, read and scored."""
    config, dataset = RunConfig.resolve("epr", data, data_root=root, network=network, seed=seed)
    torch.manual_seed(seed)
    net, prior = gated(build_network(config, dataset), None if group == "layer" else int(group))
    model = models.StructuredNetwork(net, dataset, structure=prior)
    guide = guides.MeanField(model)
    fit = inference.fit(model, guide, dataset, seed=seed, progress=False, **settings)
    return {"seed": seed, **_report(fit, prior, dataset), "seconds": fit.seconds}


def _report(fit: Any, prior: CodeLength, dataset: Dataset) -> Row:
    model, guide = fit.model, fit.guide
    net, steps = plain(mean_network(model, guide))
    weights = [p for p in net.parameters() if p.dim() > 1]
    nonzero = sum(int(p.count_nonzero()) for p in weights) / sum(p.numel() for p in weights)
    small = cut(net, dataset.x_train[:256]).net
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "net"
        size = write(small, path, bits=steps, rest=torch.float16)
        test = evaluate_net(read(path), model, dataset)
    bits: dict[str, list[int]] = {}
    code = 0
    for site, edge in model.structure.items():
        chosen = BITS[int(guide.edge(site).probs().argmax())]
        bits.setdefault(edge.edge.rpartition(".")[0], []).append(chosen)
        code += chosen * prior.numbers[edge.edge]
    return {
        "error": 100 * (1 - test["accuracy"]),
        "nll": test["nll"],
        "file_bytes": size.total,
        "code_bytes": code / 8,
        "nonzero_percent": 100 * nonzero,
        "architecture": "-".join(
            str(m.in_features) for m in small.modules() if isinstance(m, nn.Linear)
        ),
        "groups": {name: [each.count(b) for b in BITS] for name, each in bits.items()},
        "entropy": sum(guide.edge(site).entropy() for site in model.structure),
    }


def _spread(rows: list[Row]) -> dict[str, Any]:
    return mean_spread([{k: row[k] for k in SPREAD} for row in rows])


def _line(group: str, weight: float, row: Row) -> str:
    return (
        f"{group} KL times {weight:g} seed {row['seed']}: {row['error']:.2f} %, "
        f"{row['file_bytes']:,} bytes, {row['groups']}, entropy {row['entropy']:.2g} nats, "
        f"{row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    typer.run(main)
