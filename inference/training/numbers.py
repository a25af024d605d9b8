"""A network trained as everybody does it, with which a posterior begins."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ...models.likelihoods import Likelihood
from ..distributed import joined
from ..posterior import validated
from ..storage import CheckpointError, write_whole
from .ordinary import RATES, Trained, choose_rate, improved, race, race_epochs
from .terminal import FitProgress

if TYPE_CHECKING:
    from .result import Fit

NUMBERS = "numbers.safetensors"
"""The best of the networks so far, and what was tried."""


@dataclass(frozen=True)
class Numbers:
    """A network whose weights are numbers.

    Attributes:
        trained: it, at the best of the learning rates.
        likelihood: with the noise that suits the network.
        tried: loss of each validation row, in nats, after a short training at each learning rate
            that was tried; empty without any.
        seconds: of all trainings.
        epochs: of the training; a learning rate is tried for fewer.
    """

    trained: Trained
    likelihood: Likelihood
    tried: dict[float, Tensor]
    seconds: float
    epochs: int

    @property
    def net(self) -> nn.Module:
        return self.trained.net


def epochs_of_numbers(epochs: int, validation: bool, rates: int = len(RATES)) -> int:
    """Epochs of all trainings of :func:`as_numbers`, at so many rates."""
    return epochs + (rates * race_epochs(epochs) if validation and rates > 1 else 0)


def as_numbers(
    fit: Fit,
    epochs: int,
    *,
    rates: Sequence[float] = RATES,
    out: Path | None = None,
    progress: bool | None = None,
) -> Numbers:
    """Train the network of a pair as numbers, from where the guide begins, at the learning rate
    that is good by the validation rows after a sixth of the epochs; keep the network as it was
    if that is better.

    Without validation rows it is trained at the middle one of the rates.

    Arguments:
        fit: of a pair that was not trained yet.
        epochs: passes of the training.
        rates: that are tried; one is taken as it is.
        out: folder for ``numbers.safetensors``, from which what is there already is taken.

    Raises:
        CheckpointError: if the file in ``out`` is of another network, or damaged.
    """
    middle = rates[len(rates) // 2]
    rates = rates if len(fit.data.x_val) and len(rates) > 1 else ()
    start, path, ranks = fit.model.start_network(), None if out is None else out / NUMBERS, joined()
    tried, kept, seconds = ranks.from_first(lambda: _read(path, start))
    found = None if kept is None else Trained.restored(start, *kept)
    began = time.perf_counter() - seconds

    def keep() -> None:
        if path is not None and ranks.first and (tried or found):
            _write(path, found, tried, time.perf_counter() - began)

    with FitProgress("numbers", len(rates) + 1, progress) as bar:
        for rate in race(start, fit, epochs, rates, tried):
            bar.next(f"learning rate {rate:g}")
            keep()
        best = choose_rate(tried) if rates else middle
        bar.next(f"learning rate {best:g}")
        if found is None:
            keep()
            found = improved(start, fit, epochs, best)
            seconds = time.perf_counter() - began
            keep()
    own = found.net.eval().to(fit.data.device)
    likelihood = validated(fit.model.likelihood, own, fit.data)
    if likelihood is fit.model.likelihood:  # of too few validation rows
        likelihood = validated(likelihood, own, fit.data, "train")
    own.cpu()
    return Numbers(found, likelihood, dict(sorted(tried.items())), seconds, epochs)


def _write(
    path: Path, found: Trained | None, tried: Mapping[float, Tensor], seconds: float
) -> None:
    tensors = {f"tried.{rate}": losses for rate, losses in tried.items()}
    said: dict[str, object] = {"seconds": seconds}
    if found is not None:
        tensors |= found.tensors()
        said["lr"] = found.lr
    write_whole(path, lambda file: file.write(save(tensors, {"numbers": json.dumps(said)})))


def _read(
    path: Path | None, start: nn.Module
) -> tuple[dict[float, Tensor], tuple[dict[str, Tensor], float | None] | None, float]:
    """What was tried, what was trained, and the seconds."""
    if path is None or not path.is_file():
        return {}, None, 0.0
    try:
        with safe_open(str(path), "pt") as file:
            said = json.loads(file.metadata()["numbers"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        of_rates = [name for name in tensors if name.startswith("tried.")]
        tried = {float(name.removeprefix("tried.")): tensors.pop(name) for name in of_rates}
        kept = None
        if "lr" in said:
            kept = tensors, said["lr"]
            Trained.restored(start, *kept)
        return tried, kept, float(said["seconds"])
    except Exception as error:  # of a file of other content there is no end of kinds
        raise CheckpointError(f"{path} holds no network of this run ({error})") from error
