"""The ways to take a step that every family of workloads shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any, Literal

import pyro
import torch
import torch.nn.functional as F
from pyro.infer import SVI
from pyro.optim import PyroOptim
from pyroccam.guides.base import Guide
from pyroccam.inference import Settings
from pyroccam.inference.training.step import TrainingStep
from pyroccam.models.base import Model
from torch import Tensor, nn

from ..harness import Contender, Expected, Step

__all__ = [
    "AROUND", "Pair", "adamw", "around_the_graph", "autograd", "compiled_by_hand", "cuda_graphs",
    "elbo_module", "expected_loss", "hand_written", "in_bfloat16", "ours", "ours_three",
    "plain", "random_images", "svi",
]  # fmt: skip

AROUND = "pyroccam compiled, all but the graph"
"""Of what is no way to take the step, but a part of one."""

Pair = tuple[Model, Guide]


def adamw(settings: Settings, weights: Sequence[Tensor], latents: Sequence[Tensor]) -> Any:
    """The optimiser of all contenders: fused, the guide with a rate of its own and no decay."""
    groups: list[dict[str, Any]] = [
        {"params": list(weights), "lr": settings.lr, "weight_decay": settings.weight_decay},
        {"params": list(latents), "lr": settings.guide_lr, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], fused=True)


def autograd(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """The step of a plain torch loop."""

    def step() -> Tensor:
        value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def random_images(
    shape: Sequence[int], classes: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Images ``(B, *)`` and labels ``(B,)``, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(*shape, generator=generator)
    y = torch.randint(classes, (len(x),), generator=generator)
    return x.to(device), y.to(device)


def plain(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    """The step of a network whose weights are numbers."""
    return autograd(lambda: F.cross_entropy(net(x), y), optimizer)


def hand_written(
    net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, **compiler: Any
) -> Step:
    """The step of a module that gives the loss.

    Arguments:
        compiler: options of ``torch.compile``; none, and it runs as it is.
    """
    loss = torch.compile(net, fullgraph=True, dynamic=False, **compiler) if compiler else net
    return autograd(lambda: loss(x, y), optimizer)


def expected_loss(net: nn.Module, x: Tensor, y: Tensor, sds: float, more: float = 0.0) -> Expected:
    """Loss of a module that draws: the mean over draws, and so many standard deviations from it."""
    with torch.no_grad():
        losses = torch.stack([net(x, y) for _ in range(20)]).double()
    return Expected(float(losses.mean()), sds * float(losses.std()) + more)


def svi(pair: Pair, elbo: Any, settings: Settings, x: Tensor, y: Tensor) -> Step:
    """``pyro.infer.SVI`` as its manual shows it: parameters in the global store.

    ``pyro.optim.AdamW``, written out here, makes one optimiser for each parameter. The loss is in
    nats over the data set, which AdamW cannot tell from nats for each observation.
    """
    model, guide = pair
    latents = {name for name, _ in guide.named_parameters()}

    def rates(name: str) -> dict[str, Any]:
        decay = 0.0 if name in latents else settings.weight_decay
        lr = settings.guide_lr if name in latents else settings.lr
        return {"lr": lr, "weight_decay": decay, "fused": True}

    engine = SVI(model, guide, PyroOptim(torch.optim.AdamW, rates), elbo)
    rows = model.size
    return lambda: engine.step(x, y) / rows


def elbo_module(pair: Pair, elbo: Any, settings: Settings, x: Tensor, y: Tensor) -> Step:
    """Pyro's ELBO as a torch module: parameters in their modules, and one optimiser."""
    model, guide = pair
    bound = elbo(model, guide)
    step = autograd(
        lambda: bound(x, y) / model.size,
        adamw(settings, list(model.parameters()), list(guide.parameters())),
    )

    def local() -> Tensor | float:
        with pyro.settings.context(module_local_params=True):
            return step()

    return local


def ours(
    pairs: Sequence[Pair],
    settings: Settings,
    x: Tensor,
    y: Tensor,
    *,
    compile: bool | Literal["graph"],
) -> Step:
    """The step that ``inference.fit`` takes.

    Raises:
        RuntimeError: at a step that was to be traced or compiled and is not.
    """
    training = TrainingStep(list(pairs), settings, compile=compile)
    if len(pairs) > 1:
        x, y = (t.expand(len(pairs), *t.shape).contiguous() for t in (x, y))

    def step() -> Tensor:
        loss = training(x, y)
        if compile and (training.fallback is not None or not training.compile):
            raise RuntimeError(f"runs eagerly: {training.fallback or 'see the warning'}")
        return loss

    return step


def in_bfloat16(
    pair: Callable[[], Pair],
    settings: Settings,
    x: Tensor,
    y: Tensor,
    deterministic: Callable[[], Step],
) -> list[Contender]:
    """The compiled step with products in bfloat16, and the plain network with torch's way to it."""
    low = replace(settings, precision="bf16")

    def plain_in_bfloat16() -> Step:
        step = deterministic()

        def cast() -> Tensor | float:
            with torch.autocast(x.device.type, torch.bfloat16):
                return step()

        return cast

    return [
        Contender(
            "pyroccam compiled, bf16",
            lambda: ours([pair()], low, x, y, compile=True),
            "precision='bf16'",
            compiled=True,
        ),
        Contender(
            "torch deterministic, bf16", plain_in_bfloat16, "under torch.autocast", same=False
        ),
    ]


def ours_three(
    pair: Callable[[], Pair], settings: Settings, x: Tensor, y: Tensor
) -> list[Contender]:
    """That step eager, traced and compiled, of one pair."""
    return [
        Contender("pyroccam eager", lambda: ours([pair()], settings, x, y, compile=False)),
        Contender(
            "pyroccam traced",
            lambda: ours([pair()], settings, x, y, compile="graph"),
            "the graph as it is, without a compiler",
        ),
        Contender(
            "pyroccam compiled",
            lambda: ours([pair()], settings, x, y, compile=True),
            compiled=True,
        ),
    ]


def around_the_graph(
    pair: Callable[[], Pair], settings: Settings, x: Tensor, y: Tensor
) -> Contender:
    """A compiled step whose graph runs once: the others move along the gradients that it left."""

    def build() -> Step:
        training = TrainingStep([pair()], settings, compile=True)

        def first() -> Tensor:
            loss = training(x, y)
            ((key, (run, sites)),) = training._graphs.items()
            with torch.no_grad():
                found = run(x, y)
            training._graphs[key] = (lambda x, y: found), sites
            return loss

        steps: Iterator[Step] = chain([first], repeat(partial(training, x, y)))
        return lambda: next(steps)()

    note = "Python around it and the optimiser: the most that several steps a call could save"
    return Contender(AROUND, build, note, compiled=True)


def compiled_by_hand(by_hand: Callable[..., Step], device: torch.device) -> list[Contender]:
    """The hand-written step compiled, and as CUDA graphs too; arguments as there."""
    default = Contender(
        "hand-written compiled",
        lambda: by_hand(mode="default"),
        "torch.compile of the loss, fullgraph",
        compiled=True,
    )
    return [default, *cuda_graphs(by_hand, device)]


def cuda_graphs(by_hand: Callable[..., Step], device: torch.device) -> list[Contender]:
    """The hand-written step captured as CUDA graphs, where there is CUDA.

    Arguments:
        by_hand: builds the step from options of ``torch.compile``.
        device: of the workload.
    """
    if device.type != "cuda":
        return []
    return [
        Contender(
            "hand-written compiled, CUDA graphs",
            lambda: by_hand(mode="reduce-overhead"),
            "torch.compile of the loss, fullgraph, mode='reduce-overhead'",
            compiled=True,
        )
    ]
