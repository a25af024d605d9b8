"""Train what a cut left once more, as numbers: what stays makes up for what went."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...guides.pruned import Pruned
from ...models.bayesian import BayesianNetwork
from ...models.contexts import evaluating
from ...models.layers.affine import AFFINE
from ...models.likelihoods import Likelihood
from ...models.priors.normal import Normal
from ..posterior.predict import streamed
from ..posterior.weight_moments import mean_network
from .fitting import fit as train

if TYPE_CHECKING:
    from ...data import Dataset
    from .fitting import Fit

__all__ = ["Retrained", "retrain"]


@dataclass(frozen=True)
class Retrained:
    """What training a cut network as numbers has changed.

    Attributes:
        net: the better of both networks, in evaluation mode, on the CPU.
        before, after: mean negative log-likelihood of the validation rows, in nats.
    """

    net: nn.Module
    before: float
    after: float

    def to_json(self) -> dict[str, float | bool]:
        """What a result file says of it."""
        return {"kept": self.kept, "val_nll_before": self.before, "val_nll_after": self.after}

    @property
    def kept(self) -> bool:
        """True if the network is the one that was trained further."""
        return self.after < self.before


def retrain(net: nn.Module, fit: Fit, epochs: int) -> Retrained:
    """Train a network that was cut from a fit, on the fit's data and by its optimiser.

    Zeros stay zeros, so nothing that was cut comes back. The checkpoint is chosen on the validation
    rows, and the network as it was is kept if that is no better: training can only help.

    Arguments:
        net: a plain network.
        fit: the one that it was cut from.
        epochs: passes over the training rows, at half of the fit's learning rate, which falls
            linearly to zero.

    Raises:
        ValueError: for epochs that are none, or data without validation rows.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626: pruned networks are retrained.
    """
    model, data = fit.model, fit.data
    if not len(data.x_val):
        raise ValueError(
            "To train the cut network further needs validation rows, by which it is seen whether "
            "that helps: load the data with a val_fraction=, or leave out retrain=."
        )
    like: Likelihood = copy.deepcopy(model.likelihood).requires_grad_(False)
    layers = {name: one for name, one in net.named_modules() if type(one) in AFFINE}
    pair = BayesianNetwork(net, data, prior=Normal(1.0), layers=list(layers), likelihood=like)
    weights: dict[str, Any] = {name: one.weight for name, one in layers.items()}
    guide = Pruned(pair, {name: w != 0 for name, w in weights.items() if (w == 0).any()})
    own = fit.settings
    trained = train(
        pair, guide, data, device=str(data.x_train.device), epochs=epochs, lr=0.5 * own.lr,
        schedule="linear", weight_decay=0.0, clip_norm=own.clip_norm, checkpoint="best",
        label="retrained", optimizer=own.optimizer, batch_size=own.batch_size, seed=own.seed,
    )  # fmt: skip
    after = mean_network(trained.model, trained.guide).cpu()
    losses = [_loss(one, like, data) for one in (net, after)]
    return Retrained(after if losses[1] < losses[0] else net, *losses)


@torch.no_grad()
def _loss(net: nn.Module, likelihood: Likelihood, data: Dataset) -> float:
    """The mean negative log-likelihood of the validation rows."""
    x, y = data.x_val.cpu(), data.y_val.cpu()
    with evaluating(net):
        (outputs,) = streamed(lambda part: net(part)[None], x)
    return -float(copy.deepcopy(likelihood).cpu()(outputs).log_prob(y).mean())
