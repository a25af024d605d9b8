"""The rival: an ordinary training of the network, and magnitude pruning of what it gives.

Plain torch on purpose: nothing that is measured here runs the training of this package.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from pyroccam.data import Dataset
from pyroccam.inference.posterior.predict import evaluate_outputs
from pyroccam.models.likelihoods import for_data
from pyroccam.models.likelihoods.noise import learns_noise
from torch import Tensor, nn

__all__ = ["RATES", "Trained", "prune_by_magnitude", "retrain", "search", "train"]

RATES = (1e-3, 3e-3, 1e-2)
"""Learning rates that are tried."""

BATCH = 64
_SPARSITIES = (0.5, 0.67, 0.8, 0.9, 0.95, 0.98)


@dataclass(frozen=True)
class Trained:
    """A trained network, and what it took.

    Attributes:
        net: at the epoch of the best validation rows, in evaluation mode.
        val_nll: mean negative log-likelihood of the validation rows, in nats.
        test: accuracy or RMSE, NLL and ECE of the test rows, in original units.
        seconds: of the training; for the best of several, of all of them.
        left: share of the parameters that are not zero.
    """

    net: nn.Module
    val_nll: float
    test: dict[str, float]
    seconds: float
    left: float = 1.0


def epochs_of(rows: int) -> int:
    """Passes over the training rows: 30, or as many as make 1,500 steps of a small set."""
    return max(30, -(-1500 * BATCH // rows))


def train(net: nn.Module, data: Dataset, *, lr: float, seed: int, epochs: int) -> Trained:
    """AdamW with a learning rate that falls along a cosine, and the epoch of the best validation.

    Arguments:
        net: trained in place; its weights that are zero stay zero.
        data: with validation rows.
        lr: at the start.
        seed: of the order of the rows.
        epochs: passes over the training rows.
    """
    begun = time.process_time()
    loss = nn.CrossEntropyLoss() if data.task == "classification" else nn.MSELoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-2)
    batches = -(-len(data.x_train) // BATCH)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    order = torch.Generator().manual_seed(seed)
    zeros = [(p, p == 0) for p in net.parameters() if p.dim() > 1 and (p == 0).any()]
    best, kept = float("inf"), copy.deepcopy(net.state_dict())
    for _ in range(epochs):
        net.train()
        for rows in torch.randperm(len(data.x_train), generator=order).split(BATCH):
            if len(rows) > 1:  # batch normalisation needs two
                optimizer.zero_grad()
                loss(net(data.x_train[rows]), data.y_train[rows]).backward()
                optimizer.step()
                for p, zero in zeros:
                    p.data.masked_fill_(zero, 0.0)
            falling.step()
        if (now := _val_nll(net, data)) < best:
            best, kept = now, copy.deepcopy(net.state_dict())
    net.load_state_dict(kept)
    net.eval()
    return Trained(net, best, scores(net, data), time.process_time() - begun)


def search(make: Callable[[], nn.Module], data: Dataset, seed: int) -> Trained:
    """The best of the learning rates by the validation rows."""
    epochs = epochs_of(len(data.x_train))
    found = [train(make(), data, lr=lr, seed=seed, epochs=epochs) for lr in RATES]
    best = min(found, key=lambda one: one.val_nll)
    return Trained(best.net, best.val_nll, best.test, sum(one.seconds for one in found))


def retrain(net: nn.Module, data: Dataset, seed: int) -> Trained:
    """What is left of a pruned network, trained for half of the epochs at the lowest rate."""
    epochs = epochs_of(len(data.x_train)) // 2
    return train(net, data, lr=1e-3, seed=seed, epochs=epochs)


def prune_by_magnitude(
    dense: Trained, data: Dataset, seed: int, sparsities: Sequence[float] = _SPARSITIES
) -> list[Trained]:
    """The network without its smallest weights, trained once more, at each share of zeros."""
    found = []
    for sparsity in sparsities:
        net = copy.deepcopy(dense.net)
        weights = [p for p in net.parameters() if p.dim() > 1]
        sizes = torch.cat([p.detach().abs().flatten() for p in weights])
        smallest = sizes.kthvalue(max(1, int(sparsity * len(sizes)))).values
        with torch.no_grad():
            for p in weights:
                p.masked_fill_(p.abs() <= smallest, 0.0)
        again = retrain(net, data, seed)
        left = sum(int(p.count_nonzero()) for p in again.net.parameters())
        whole = sum(p.numel() for p in again.net.parameters())
        found.append(replace(again, left=left / whole))
    return found


@torch.no_grad()
def _outputs(net: nn.Module, x: Tensor) -> Tensor:
    net.eval()
    return torch.cat([net(part) for part in x.split(1000)])


def _val_nll(net: nn.Module, data: Dataset) -> float:
    outputs = _outputs(net, data.x_val)
    if data.task == "classification":
        return float(nn.functional.cross_entropy(outputs, data.y_val))
    sd = _noise(outputs, data)
    return float(-torch.distributions.Normal(outputs, sd).log_prob(data.y_val).sum(-1).mean())


def _noise(outputs: Tensor, data: Dataset) -> Tensor:
    """The standard deviation of the errors of the validation rows, for each target."""
    return (outputs - data.y_val).square().mean(0).sqrt().clamp_min(1e-3)


@torch.no_grad()
def scores(net: nn.Module, data: Dataset) -> dict[str, float]:
    """Metrics of the test rows; of a regression the noise is that of the validation rows."""
    likelihood = for_data(data)
    if learns_noise(likelihood):
        likelihood.begin_noise(_noise(_outputs(net, data.x_val), data))
    outputs = _outputs(net, data.x_test)[None]
    return evaluate_outputs(outputs, torch.ones(1), likelihood, data.y_test, data.y_std)
