"""Images that are made to mislead, and images of another kind: variances, dropout, deep ensembles.

    pip install -e '.[experiments]'
    python -m experiments robustness --again --data-root FOLDER

A small convolutional network on 6,000 training images of MNIST; 500 test images are attacked, and
told from 500 of Fashion-MNIST. The contenders differ in one layer, the last but one: weights
without means; Gaussian dropout of the same variance everywhere; binary dropout before it; or
points, alone and averaged over five networks, of which the first is the one alone.

The attacks (FGSM, and FGSM iterated in steps of 2.5 / steps of its size) follow the gradient of the
averaged prediction, with fresh draws at every look. Both look at as many draws. What they made is
judged by other draws. ``transferred`` are the images that the iterated attack made against the
network alone: a contender that does worse on its own than on those has gradients that lead
somewhere. A finished seed is kept: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from pyroccam import data as datasets
from pyroccam import guides, models
from pyroccam.data import Dataset
from pyroccam.inference.posterior.draws import Noise
from pyroccam.inference.posterior.ensemble import EnsembleNetwork
from pyroccam.inference.posterior.metrics import classification_metrics
from pyroccam.inference.posterior.uncertainties import out_of_domain
from pyroccam.inference.training.fitting import Repeats, fit
from pyroccam.inference.training.result import Fit
from pyroccam.models.contexts import seeded
from torch import Tensor, nn

from ..lines import deviation, panels
from ..markdown import header, plus_minus, read_all, row
from ..runner import File, Given, Made, Row, Spec, seeds

__all__ = ["SPEC", "Pixels", "adversarial", "network"]

LAYER = "penultimate"
ENSEMBLE, SINGLE = "deep ensemble", "deterministic"
POINTS = ("binary dropout", SINGLE, ENSEMBLE)  # whose weights are numbers
CONTENDERS = ("variance", "gaussian dropout", *POINTS)
ATTACKS = ("fgsm", "iterated", "transferred")

TRAINING: dict[str, Any] = {
    "batch_size": 200,
    "optimizer": "adam",
    "lr": 3e-3,
    "weight_decay": 0.0,
    "schedule": "linear",
    "checkpoint": "last",
    "evaluations": 1,
    "compile": False,
}


class Pixels(nn.Module):
    """A network that takes pixels in [0, 1] in place of standardised ones.

    Arguments:
        net: takes inputs on the scale of ``data``.
        data: images.
    """

    def __init__(self, net: nn.Module, data: Dataset) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean", data.x_mean.view(-1, 1, 1))
        self.register_buffer("std", data.x_std.view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(self.standardised(x))
        return found

    def standardised(self, x: Tensor) -> Tensor:
        """Pixels on the scale of the data."""
        return (x - self.get_buffer("mean")) / self.get_buffer("std")

    def pixels(self, x: Tensor) -> Tensor:
        """And back."""
        return (x * self.get_buffer("std") + self.get_buffer("mean")).clamp(0.0, 1.0)


def network(
    input_shape: tuple[int, ...], outputs: int, *, hidden: int = 128, dropout: float = 0.0
) -> nn.Sequential:
    """Two convolutions of stride 2 and a linear layer, each with batch normalisation and ReLU.

    Arguments:
        input_shape: ``(C, H, W)``.
        outputs: classes.
        hidden: units of the linear layer, called ``penultimate``.
        dropout: rate of its inputs.
    """
    channels, side = input_shape[0], min(input_shape[1:])
    kernel = 5 if side >= 16 else 3
    sides = [((s - kernel) // 2 + 1 - kernel) // 2 + 1 for s in input_shape[1:]]
    parts: list[tuple[str, nn.Module]] = []
    for k, (a, b) in enumerate(((channels, 8), (8, 16)), 1):
        parts += [
            (f"conv{k}", nn.Conv2d(a, b, kernel, stride=2)),
            (f"norm{k}", nn.BatchNorm2d(b)),
            (f"relu{k}", nn.ReLU()),
        ]
    parts += [("flat", nn.Flatten())]
    if dropout > 0.0:
        parts += [("dropout", nn.Dropout(dropout))]
    parts += [
        (LAYER, nn.Linear(16 * sides[0] * sides[1], hidden)),
        ("norm3", nn.BatchNorm1d(hidden)),
        ("relu3", nn.ReLU()),
        ("out", nn.Linear(hidden, outputs)),
    ]
    return nn.Sequential(OrderedDict(parts))


def adversarial(
    net: nn.Module, x: Tensor, y: Tensor, *, epsilon: float, steps: int = 1, seed: int = 0
) -> Tensor:
    """Images that FGSM makes, or, with more steps than one, iterated FGSM.

    Arguments:
        net: gives log-probabilities (or logits) ``(B, C)`` for pixels in [0, 1].
        x, y: images ``(B, C, H, W)`` and the labels that are to be avoided.
        epsilon: how far a pixel may move.
        steps: each moves a pixel by ``2.5 epsilon / steps``, or by ``epsilon`` if there is one.
        seed: of what the network draws.

    References:
        Goodfellow, Shlens, Szegedy 2015, arXiv:1412.6572; Kurakin, Goodfellow, Bengio 2017,
        arXiv:1607.02533. By the Adversarial Robustness Toolbox, Nicolae et al. 2018,
        arXiv:1807.01069.
    """
    evasion = importlib.import_module("art.attacks.evasion")  # of the extra ``experiments``
    classification = importlib.import_module("art.estimators.classification")
    classes = net(x[:1]).shape[-1]
    estimator = classification.PyTorchClassifier(
        net,
        nn.CrossEntropyLoss(reduction="sum"),
        tuple(x.shape[1:]),
        classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if x.device.type == "cuda" else "cpu",
    )
    options: dict[str, Any] = {"eps": epsilon, "batch_size": 256}
    if steps > 1:
        options |= {"eps_step": 2.5 * epsilon / steps, "max_iter": steps, "verbose": False}
    kind = evasion.FastGradientMethod if steps == 1 else evasion.BasicIterativeMethod
    with seeded(seed, x.device):
        made = kind(estimator, **options).generate(x.cpu().numpy(), y.cpu().numpy())
    return torch.from_numpy(made).to(x)


def files(given: Given) -> Iterable[File]:
    """One, of all contenders; seeds begin at 1, so that nothing begins at the weights of the
    network whose attack is transferred."""
    sizes = {k: v for k, v in {"n_train": given.n_train, "n_test": given.n_test}.items() if v}
    names = ("steps", "draws", "judges", "networks", "hidden", "rate", "epochs")
    asked = {
        "data": given.data, "outside": given.outside, **sizes, "epsilons": given.epsilons,
        **{name: getattr(given, name) for name in names}, **TRAINING,
    }  # fmt: skip
    yield File(given.data, {"asked": asked}, partial(_run, given, asked), seeds(given, first=1))


def _load(name: str, root: str | None, seed: int, sizes: Mapping[str, Any]) -> Dataset:
    place: dict[str, Any] = {} if root is None else {"data_root": root}
    return datasets.load(name, seed=seed, **place, **sizes)


def _shuffled(x: Tensor, seed: int) -> Tensor:
    """The same pixels in other places, the same for all images."""
    order = torch.randperm(x[0, 0].numel(), generator=torch.Generator().manual_seed(seed))
    return x.flatten(2)[:, :, order].view_as(x)


def trained(name: str, images: Dataset, seed: int, asked: Mapping[str, Any], device: str) -> Fit:
    """A contender, from initial weights and an order of rows of its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = network(
            images.input_shape,
            images.outputs,
            hidden=asked["hidden"],
            dropout=asked["rate"] if name == "binary dropout" else 0.0,
        )
    prior = models.priors.Normal(1.0) if name in POINTS else models.priors.LogUniform()
    model = models.BayesianNetwork(net, images, prior=prior, layers=[LAYER], random_biases=False)
    guide: guides.Delta | guides.ZeroMean | guides.VariationalDropout
    if name in POINTS:
        guide = guides.Delta(model)
    elif name == "variance":
        guide = guides.ZeroMean(model)
    else:
        log_alpha = float(torch.logit(torch.tensor(asked["rate"])))
        guide = guides.VariationalDropout(model, rate="layer", learn=False, log_alpha=log_alpha)
    settings = {**{k: asked[k] for k in TRAINING}, "epochs": asked["epochs"], "seed": seed}
    return fit(model, guide, images, device=device, progress=False, **settings)


def _run(given: Given, asked: Mapping[str, Any], seed: int) -> Row:
    """All contenders of a seed."""
    sizes = {k: asked[k] for k in ("n_train", "n_test") if k in asked}
    images = _load(given.data, given.data_root, seed, sizes)
    if given.outside == "shuffled":
        others = _shuffled(images.x_test, seed)
    else:
        few = {**sizes, "n_train": 100} if sizes else {}
        other = _load(given.outside, given.data_root, seed, few)
        others = other.standardised_as(images).x_test
    device = given.device
    count = asked["networks"]
    each = [trained(SINGLE, images, seed * count + k, asked, device) for k in range(count)]
    ready: dict[str, Fit | Repeats] = {SINGLE: each[0], ENSEMBLE: Repeats(each, 0.0)}
    where = each[0].weights.device
    found: Row = {}
    transferred: dict[str, Tensor] = {}
    for name in (SINGLE, *(c for c in CONTENDERS if c != SINGLE)):
        fits = ready[name] if name in ready else trained(name, images, seed, asked, device)
        noise: Noise = "weights" if name in POINTS else "activations"
        row = _attacked(fits, noise, images, where, seed, asked, transferred)
        row["auroc"] = out_of_domain(
            fits, images.x_test, others, draws=asked["judges"], noise=noise
        )
        found[name] = row
    return {"rows": images.N, "attacked": len(images.x_test), "contenders": found}


def _attacked(
    fits: Fit | Repeats,
    noise: Noise,
    images: Dataset,
    where: torch.device,
    seed: int,
    asked: Mapping[str, Any],
    transferred: dict[str, Tensor],
) -> dict[str, Any]:
    """Accuracy on images as they are and as attacks make them.

    Arguments:
        transferred: what the iterated attack made against the first contender, which fills it.
    """
    y = images.y_test.to(where)

    def averaged(draws: int, fixed: int | None = None) -> Pixels:
        net = EnsembleNetwork(fits, draws=draws, noise=noise, seed=fixed)
        return Pixels(net, images).to(where)

    nets = {
        "iterated": averaged(asked["draws"]),
        "fgsm": averaged(asked["draws"] * asked["steps"]),
    }
    judge = averaged(asked["judges"], seed)
    x = judge.pixels(images.x_test.to(where))

    @torch.no_grad()
    def judged(made: Tensor) -> dict[str, float]:
        return classification_metrics(judge(made), y)

    row: dict[str, Any] = {"test": judged(x), **{kind: {} for kind in ATTACKS}}
    first = not transferred
    for epsilon in asked["epsilons"]:
        key = f"{epsilon:g}"
        for kind, net in nets.items():
            steps = asked["steps"] if kind == "iterated" else 1
            # Not the seed that judges draw by.
            made = adversarial(net, x, y, epsilon=epsilon, steps=steps, seed=10_000 + seed)
            row[kind][key] = judged(made)["accuracy"]
            if kind == "iterated" and first:
                transferred[key] = made
            if kind == "fgsm":
                row["unmoved"] = float((made == x).flatten(1).all(1).float().mean())
        row["transferred"][key] = judged(transferred[key])["accuracy"]
    return row


def drawn(given: Given) -> Mapping[str, Made]:
    """Of the file."""
    return {given.data: lambda: figure(read_all(given.out, given.data)[given.data])}


def figure(found: Mapping[str, Any]) -> Figure:
    """Accuracy over the size of an attack: mean and standard deviation over seeds."""
    sizes = found["asked"]["epsilons"]

    def values(kind: str, name: str) -> list[list[float]]:
        rows = [run["contenders"][name] for run in found["runs"]]
        return [[r["test"]["accuracy"], *(r[kind][f"{e:g}"] for e in sizes)] for r in rows]

    titles = {"fgsm": "FGSM", "iterated": "iterated", "transferred": "transferred"}
    lines = {
        title: {name: ([0.0, *sizes], values(kind, name)) for name in CONTENDERS}
        for kind, title in titles.items()
    }
    return panels(lines, "pixels in [0, 1] moved by", "accuracy", deviation)


def table(folder: Path) -> Iterable[str]:
    """Accuracy under attacks on the averaged prediction, and how data from elsewhere are told."""
    for stem, found in read_all(folder).items():
        sizes = [f"{size:g}" for size in found["asked"]["epsilons"][2:4]]
        yield from header(
            f"{stem} ({len(found['runs'])} seeds)", "accuracy",
            *(f"{kind} {size}" for kind in ("FGSM", "iterated") for size in sizes),
            "AUROC, entropy", "AUROC, mutual information",
        )  # fmt: skip
        for name in found["runs"][0]["contenders"]:
            runs = [run["contenders"][name] for run in found["runs"]]
            attacked = [f"{kind}/{size}" for kind in ("fgsm", "iterated") for size in sizes]
            told = ("auroc/predictive_entropy", "auroc/mutual_information")
            yield row(
                name,
                *(plus_minus(runs, path, 3) for path in ("test/accuracy", *attacked)),
                *(plus_minus(runs, path, 2) for path in told),
            )
        yield ""


SPEC = Spec(
    "experiments.published.variance.robustness", "Robustness", "robustness",
    {
        "data": "mnist", "outside": "fashion-mnist", "data_root": str, "n_train": 6000,
        "n_test": 500, "epochs": 20, "epsilons": (0.02, 0.04, 0.06, 0.1, 0.15), "steps": 10,
        "draws": 10, "judges": 50, "networks": 5, "hidden": 128, "rate": 0.5, "device": "auto",
    },
    files, table, drawn,
    small="--data digits --outside shuffled --n-train 0 --n-test 0 --epochs 3 --seeds 1 "
    "--epsilons 0.05,0.3 --steps 2 --draws 1 --judges 3 --networks 2 --hidden 8 --device cpu",
)  # fmt: skip

if __name__ == "__main__":
    SPEC.main()
