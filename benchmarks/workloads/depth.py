"""Learnt depth: the same step in plain torch, in Pyro and by us."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pyro.infer import TraceEnum_ELBO
from pyroccam.data.sets.toys import spirals
from pyroccam.guides import CategoricalDepth
from pyroccam.inference import Settings
from pyroccam.models import LearntDepth
from pyroccam.models.networks import ready as networks
from pyroccam.models.networks.normalisation import single_depth
from torch import Tensor, nn

from ..harness import Contender, Expected, Step, Workload
from .contenders import (
    Pair,
    adamw,
    around_the_graph,
    compiled_by_hand,
    elbo_module,
    hand_written,
    ours,
    plain,
    random_images,
    svi,
)
from .with_jax import scan_step

__all__ = ["BASE", "LOOP_BASE", "DepthProblem", "HandWritten", "depth_contenders", "depth_workload"]

BASE = "hand-written eager"
LOOP_BASE = "hand-written eager loop over depths"

SETTINGS = Settings(lr=1e-4, guide_lr=1e-4, weight_decay=0.01, schedule="constant")
"""Rates under which thousands of steps on one batch leave the network an ordinary one."""

Exits = Literal["stacked", "loop"]


@dataclass(frozen=True)
class DepthProblem:
    """A network that may stop at any depth, and a batch.

    Attributes:
        kind: ``mlp`` on the spirals, or ``conv`` on random images.
        network: arguments of the ready network.
        batch: B.
        N: rows of the data set.
    """

    kind: Literal["mlp", "conv"]
    network: dict[str, int] = field(default_factory=dict)
    batch: int = 200
    N: int = 2000
    task: str = "classification"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (2,) if self.kind == "mlp" else (1, 28, 28)

    @property
    def outputs(self) -> int:
        return 2 if self.kind == "mlp" else 10

    @property
    def exits(self) -> Exits:
        """How one writes the exits by hand; the head of ``conv`` has batch normalisation."""
        return "stacked" if self.kind == "mlp" else "loop"

    @property
    def base(self) -> str:
        return BASE if self.exits == "stacked" else LOOP_BASE

    def data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``(B, *input_shape)`` and ``(B,)``."""
        if self.kind == "mlp":
            x, y = spirals(n=self.batch)
        else:
            images = (self.batch, *self.input_shape)
            x, y = random_images(images, self.outputs, torch.device("cpu"))
        return ((x - x.mean(0)) / x.std()).to(device), y.to(device)

    def pair(self, device: torch.device) -> tuple[LearntDepth, CategoricalDepth]:
        """Model and guide; the same weights at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            stack = networks.NETWORKS[self.kind](self.input_shape, self.outputs, **self.network)
            model = LearntDepth(stack, data=self).to(device)
        guide = CategoricalDepth(model, update="gradient", hold=0.0)
        return model, guide.to(device)


class HandWritten(nn.Module):
    """Learnt depth as one would write it for this one network.

    Arguments:
        model: whose weights are copied.
        exits: ``stacked`` puts the activations of all depths through the head at once, ``loop``
            one after the other (a head with batch normalisation needs the latter).
    """

    def __init__(self, model: LearntDepth, exits: Exits) -> None:
        super().__init__()
        stack = copy.deepcopy(model.stack)
        self.stem, self.blocks = stack.stem, stack.blocks
        self.pool = stack.adapters[0] if len(stack.adapters) else nn.Identity()
        self.head = single_depth(stack.head, 0)
        self.exits = exits
        self.size = model.size
        self.log_prior: Tensor
        self.register_buffer("log_prior", model.log_prior.clone())
        self.logits = nn.Parameter(torch.zeros_like(model.log_prior))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The negative ELBO in nats for each observation."""
        a = self.stem(x)
        kept = [self.pool(a)]
        for block in self.blocks:
            a = block(a)
            kept.append(self.pool(a))
        if self.exits == "stacked":
            outputs = self.head(torch.cat(kept))
            nll = F.cross_entropy(outputs, y.repeat(len(kept)), reduction="none")
            nll = nll.view(len(kept), -1).mean(1)
        else:
            nll = torch.stack([F.cross_entropy(self.head(one), y) for one in kept])
        log_q = self.logits.log_softmax(0)
        q = log_q.exp()
        return (q * nll).sum() + (q * (log_q - self.log_prior)).sum() / self.size


def depth_contenders(problem: DepthProblem, device: torch.device) -> dict[str, Contender]:
    """All contenders by name."""
    x, y = problem.data(device)

    def pair() -> Pair:
        """The pair of ``inference.fit``: Pyro's global store would train copies of such weights."""
        model, guide = problem.pair(device)
        if x.dim() == 4:
            model = model.to(memory_format=torch.channels_last)
        return model, guide

    def deterministic() -> Step:
        model = problem.pair(device)[0]
        net = model.stack.at(model.max_depth)
        return plain(net, adamw(SETTINGS, list(net.parameters()), []), x, y)

    def by_hand(**compiler: Any) -> Step:
        net = HandWritten(problem.pair(device)[0], problem.exits)
        weights = [p for p in net.parameters() if p is not net.logits]
        return hand_written(net, adamw(SETTINGS, weights, [net.logits]), x, y, **compiler)

    def elbo() -> Any:
        return TraceEnum_ELBO(max_plate_nesting=1)

    def eager() -> Step:
        return ours([pair()], SETTINGS, x, y, compile=False)

    def compiled(count: int) -> Step:
        return ours([pair() for _ in range(count)], SETTINGS, x, y, compile=True)

    rows = [
        Contender("torch deterministic", deterministic, "the network of full depth", same=False),
        Contender(
            problem.base,
            by_hand,
            "all exits at once" if problem.exits == "stacked" else "contiguous memory format",
        ),
        *compiled_by_hand(by_hand, device),
        Contender(
            "Pyro SVI",
            lambda: svi(problem.pair(device), elbo(), SETTINGS, x, y),
            "TraceEnum_ELBO and pyro.optim.AdamW (fused); validation off",
        ),
        Contender(
            "Pyro ELBO module",
            lambda: elbo_module(problem.pair(device), elbo(), SETTINGS, x, y),
            "TraceEnum_ELBO()(model, guide) and one fused AdamW; validation off",
        ),
        Contender("pyroccam eager", eager),
        Contender(
            "pyroccam traced",
            lambda: ours([pair()], SETTINGS, x, y, compile="graph"),
            "the graph as it is, without a compiler",
        ),
        Contender("pyroccam compiled", lambda: compiled(1), compiled=True),
        around_the_graph(pair, SETTINGS, x, y),
        Contender(
            "pyroccam compiled, 5 replicates", lambda: compiled(5), networks=5, compiled=True
        ),
    ]
    if problem.kind == "mlp":
        rows.append(
            Contender(
                "JAX by hand",
                lambda: scan_step(problem.pair(device)[0], SETTINGS, x, y),
                "lax.scan over the blocks, and AdamW, under jax.jit",
                compiled=True,
            )
        )
    return {row.name: row for row in rows}


def depth_workload(
    name: str,
    title: str,
    problem: DepthProblem,
    device: torch.device,
    names: Iterable[str] | None = None,
) -> Workload:
    """A workload of learnt depth.

    Arguments:
        name, title: of the workload.
        problem: network and batch.
        device: for all contenders.
        names: of the contenders; all if left out.
    """
    known = depth_contenders(problem, device)
    chosen: Sequence[str] = list(known if names is None else names)

    def expected() -> Expected:
        x, y = problem.data(device)
        net = HandWritten(problem.pair(device)[0], problem.exits)
        with torch.no_grad():
            loss = float(net(x, y))
        return Expected(loss, 1e-3 * abs(loss))

    parameters = {**asdict(problem), "settings": asdict(SETTINGS)}
    return Workload(name, title, parameters, [known[n] for n in chosen], problem.base, expected)
