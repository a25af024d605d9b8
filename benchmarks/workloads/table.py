"""The table of workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pyroccam.models.checks import unknown_name

from ..harness import Plan, Workload
from .compression import ImageProblem, gnj
from .contenders import AROUND
from .depth import LOOP_BASE, DepthProblem, depth_workload
from .lenet import LeNetProblem, lenet

__all__ = ["WORKLOADS", "Entry", "find"]

_MLP = (
    "torch deterministic", "hand-written eager", "hand-written compiled",
    "hand-written compiled, CUDA graphs", "Pyro SVI", "Pyro ELBO module", "pyroccam eager",
    "pyroccam traced", "pyroccam compiled", AROUND,
    "pyroccam compiled, 5 replicates", "JAX by hand",
)  # fmt: skip
_CONV = (LOOP_BASE, "pyroccam eager", "pyroccam compiled")
_CONV_CUDA = ("pyroccam traced", "hand-written compiled")


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        title: for people.
        make: builds it for a device.
        plan: how much is measured unless told otherwise.
    """

    title: str
    make: Callable[[str, str, torch.device], Workload]
    plan: Plan


def _mlp(max_depth: int, batch: int, plan: Plan) -> Entry:
    problem = DepthProblem("mlp", {"width": 20, "max_depth": max_depth}, batch=batch)

    def make(name: str, title: str, device: torch.device) -> Workload:
        names = [n for n in _MLP if device.type == "cuda" or "CUDA" not in n]
        return depth_workload(name, title, problem, device, names)

    return Entry(f"Learnt depth, spirals: D = {max_depth}, width 20, batch {batch}", make, plan)


def _conv(max_depth: int, width: int, inner: int, plan: Plan) -> Entry:
    network = {"width": width, "inner": inner, "max_depth": max_depth}
    problem = DepthProblem("conv", network, batch=256, N=60_000)

    def make(name: str, title: str, device: torch.device) -> Workload:
        names = _CONV if device.type == "cpu" else (*_CONV, *_CONV_CUDA)
        return depth_workload(name, title, problem, device, names)

    title = f"Learnt depth, images: D = {max_depth}, {width}/{inner} channels, batch 256"
    return Entry(title, make, plan)


_SHORT, _LONG = Plan(rounds=15, steps=30), Plan(rounds=15, steps=10, warmup=5, settle=1)
_SLOW = Plan(rounds=9, steps=2, warmup=1, settle=0)

WORKLOADS: dict[str, Entry] = {
    "mlp-d20-b200": _mlp(20, 200, _SHORT),
    "mlp-d20-b1000": _mlp(20, 1000, _SHORT),
    "mlp-d100-b200": _mlp(100, 200, _LONG),
    "mlp-d100-b1000": _mlp(100, 1000, _LONG),
    "conv-d10": _conv(10, 16, 8, _SLOW),
    "conv-d50": _conv(50, 64, 32, Plan(rounds=5, steps=1, warmup=1, settle=0)),
    "lenet": Entry(
        "LeNet-300-100, Gaussian weights, batch 128",
        lambda name, title, device: lenet(name, title, LeNetProblem(), device),
        _SHORT,
    ),
    "lenet-gnj": Entry(
        "LeNet-300-100, log-uniform scales of groups, batch 128",
        lambda name, title, device: gnj(name, title, LeNetProblem(), device),
        _SHORT,
    ),
    "lenet-5-gnj": Entry(
        "LeNet-5-Caffe, log-uniform scales of groups, batch 128",
        lambda name, title, device: gnj(name, title, ImageProblem(), device),
        _SLOW,
    ),
}


def find(name: str) -> Entry:
    """The row of a workload.

    Raises:
        ValueError: with the nearest name there is.
    """
    if name not in WORKLOADS:
        raise ValueError(unknown_name("workload", name, WORKLOADS))
    return WORKLOADS[name]
