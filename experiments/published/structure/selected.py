"""How robust a network is whose structure was learnt, by how it was: FGSM, and alternatives cut.

    python -m experiments selected --again --data-root FOLDER

A graph of hidden layers on MNIST, with five alternatives on each of six edges. Its weights of
alternatives are the softmax of parameters (``softmax``, as DARTS has them), draws of a relaxation
without a KL (``gumbel-softmax``), draws of a posterior (``structure``), or that with a posterior of
all weights, too (``structure and weights``). Attacked, and cut, is the network of the means. What
is cut are alternatives at random. A finished seed is kept: the same command goes on where an
earlier one stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam import data as datasets
from pyroccam import guides, models
from pyroccam.data import Dataset
from pyroccam.inference import fit
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.models.contexts import seeded
from pyroccam.models.networks import perceptron_graph
from pyroccam.models.networks.discrete import structures
from torch import Tensor, nn

from ..lines import deviation, panels
from ..markdown import header, plus_minus, read_all, row
from ..runner import File, Given, Made, Row, Spec, seeds
from ..variance.robustness import Pixels

__all__ = ["CONTENDERS", "SPEC", "attacked", "without"]

CONTENDERS = ("softmax", "gumbel-softmax", "structure", "structure and weights")
SETTINGS: dict[str, Any] = {
    "epochs": 15, "batch_size": 128, "optimizer": "adam", "lr": 3e-3, "guide_lr": 0.02,
    "weight_decay": 0.0, "kl_warmup": 0.2, "schedule": "linear", "checkpoint": "last",
    "evaluations": 1,
}  # fmt: skip
TIMES = 20
"""Random cuts of each share."""


class Softmax(nn.Module):
    """A network whose weights of alternatives are the softmax of parameters, one for each.

    References:
        Liu, Simonyan, Yang 2019, DARTS, arXiv:1806.09055.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        (self.gammas,) = structures(net).values()
        of = {edge: torch.zeros(len(names)) for edge, names in self.gammas.primitives.items()}
        self.logits = nn.ParameterDict(of)

    def shares(self) -> dict[str, Tensor]:
        """Weights of the alternatives, by edge."""
        return {edge: one.softmax(-1) for edge, one in self.logits.items()}

    def forward(self, x: Tensor) -> Tensor:
        with self.gammas.given(self.shares()):
            found: Tensor = self.net(x)
        return found

    @torch.no_grad()
    def means(self) -> nn.Module:
        """The network with these weights in it."""
        for edge, share in self.shares().items():
            self.gammas.get_buffer(edge).copy_(share)
        return self.net


def learnt(name: str, images: Dataset, seed: int, given: Given) -> nn.Module:
    """The network of the means of a contender, in evaluation mode."""
    with seeded(seed, torch.device("cpu")):
        net: nn.Module = perceptron_graph(
            images.input_shape, images.outputs, width=given.width, vertices=4
        )
        if name == "softmax":
            net = Softmax(net)
            model: Any = models.BayesianNetwork(net, images, prior=models.priors.Normal(1.0))
            guide: Any = guides.Delta(model)
        else:
            weights = models.priors.Normal(1.0) if name.endswith("weights") else None
            structure = models.priors.GumbelSoftmax(models.Annealed(1.0, 0.2))
            model = models.StructuredNetwork(net, images, structure=structure, prior=weights)
            guide = guides.MeanField(model)
    weight = {"kl_weight": 1e-6} if name == "gumbel-softmax" else {}
    settings = {**given.set, **weight, "seed": seed}
    found = fit(model, guide, images, progress=False, **settings)
    own = mean_network(found.model, found.guide)
    return (own.means() if isinstance(own, Softmax) else own).eval()


def attacked(net: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
    r"""Images moved by FGSM, :math:`x + ε \, sign ∇_x (-\log p(y | x))`, within [0, 1].

    Arguments:
        net: gives logits ``(B, C)`` for pixels in [0, 1].
        x, y: images ``(B, *)`` and labels ``(B,)``.

    References:
        Goodfellow, Shlens, Szegedy 2015, arXiv:1412.6572.
    """
    x = x.detach().requires_grad_()
    loss = nn.functional.cross_entropy(net(x), y, reduction="sum")
    (slope,) = torch.autograd.grad(loss, x)
    return (x.detach() + epsilon * slope.sign()).clamp(0.0, 1.0)


@torch.no_grad()
def without(net: nn.Module, share: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights of the alternatives by edge, of which a share of all is zero, at random."""
    (gammas,) = structures(net).values()
    own = {edge: gammas.of(edge).clone() for edge in gammas.primitives}
    places = [(edge, k) for edge, one in own.items() for k in range(len(one))]
    order = torch.randperm(len(places), generator=generator)[: round(share * len(places))]
    for k in order.tolist():
        edge, place = places[k]
        own[edge][place] = 0.0
    return own


def files(given: Given) -> Iterable[File]:
    """One, of all contenders."""
    names = ("n_train", "n_test", "width", "epsilons", "shares")
    asked = {**given.set, **{name: getattr(given, name) for name in names}}
    yield File(given.data, {"asked": asked}, partial(_run, given), seeds(given))


def _run(given: Given, seed: int) -> Row:
    sizes = {k: v for k in ("n_train", "n_test") if (v := getattr(given, k))}
    place = {} if given.data_root is None else {"data_root": given.data_root}
    images = datasets.load(given.data, seed=seed, **sizes, **place)
    return {"contenders": {
        name: _judged(learnt(name, images, seed, given), images, seed, given)
        for name in CONTENDERS
    }}  # fmt: skip


def _judged(net: nn.Module, images: Dataset, seed: int, given: Given) -> Row:
    y, (gammas,) = images.y_test, structures(net).values()
    pixels = Pixels(net, images)
    x = pixels.pixels(images.x_test)

    @torch.no_grad()
    def accuracy(of: Tensor) -> float:
        return float((pixels(of).argmax(-1) == y).double().mean())

    row: Row = {"accuracy": accuracy(x), "fgsm": {}, "cut": {}}
    for epsilon in given.epsilons:
        row["fgsm"][f"{epsilon:g}"] = accuracy(attacked(pixels, x, y, epsilon))
    generator = torch.Generator().manual_seed(seed)
    for share in given.shares:
        found = []
        for _ in range(TIMES):
            with gammas.given(without(net, share, generator)):
                found.append(accuracy(x))
        row["cut"][f"{share:g}"] = fmean(found)
    return row


def drawn(given: Given) -> Mapping[str, Made]:
    """Of the file."""
    return {given.data: lambda: figure(read_all(given.out, given.data)[given.data])}


def figure(found: Mapping[str, Any]) -> Figure:
    """Accuracy over the size of the attack, and over the share that is cut: mean and standard
    deviation over seeds."""
    titles = {"fgsm": "FGSM: pixels in [0, 1] moved by", "cut": "share of alternatives cut"}

    def line(kind: str, name: str) -> tuple[list[float], list[list[float]]]:
        rows = [run["contenders"][name] for run in found["runs"]]
        at = [0.0, *map(float, rows[0][kind])]
        return at, [[one["accuracy"], *one[kind].values()] for one in rows]

    lines = {title: {n: line(kind, n) for n in CONTENDERS} for kind, title in titles.items()}
    return panels(lines, "", "accuracy", deviation)


def table(folder: Path) -> Iterable[str]:
    """Accuracy by attack and by share that is cut."""
    for stem, found in read_all(folder).items():
        epsilons, shares = (found["asked"][name] for name in ("epsilons", "shares"))
        yield from header(
            f"{stem} ({len(found['runs'])} seeds)", "accuracy, %",
            *(f"FGSM {one:g}" for one in epsilons), *(f"{100 * one:g} % cut" for one in shares),
        )  # fmt: skip
        for name in found["runs"][0]["contenders"]:
            runs = [run["contenders"][name] for run in found["runs"]]
            paths = (
                "accuracy",
                *(f"fgsm/{e:g}" for e in epsilons),
                *(f"cut/{s:g}" for s in shares),
            )
            yield row(name, *(plus_minus(runs, path, 1, 100.0) for path in paths))
        yield ""


SPEC = Spec(
    "experiments.published.structure.selected", "Selected structures", "selected",
    {
        "data": "mnist", "data_root": str, "n_train": 12000, "n_test": 1000, "width": 32,
        "epsilons": (0.02, 0.05, 0.1, 0.2), "shares": (0.2, 0.4, 0.6), "set": SETTINGS,
    },
    files, table, drawn,
    small="--data digits --n-train 0 --n-test 0 --seeds 1 --width 8 --set epochs=2 --shares 0.4 "
    "--epsilons 0.1",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
