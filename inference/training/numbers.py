"""A network trained as everybody does it, with which a posterior begins."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ...models.likelihoods import Likelihood
from ..distributed import joined
from ..posterior import validated
from ..storage import CheckpointError, write_whole
from .ordinary import RATES, row_losses, trained
from .terminal import FitProgress

if TYPE_CHECKING:
    from .result import Fit

NUMBERS = "numbers.safetensors"
"""The best of the networks so far, and what was tried."""


# What the library and Python raise of a file of other content.
_NO_SUCH_FILE = (
    SafetensorError, RuntimeError, ValueError, LookupError, TypeError, AttributeError,
)  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """A network whose weights are numbers.

    Attributes:
        net: in evaluation mode, on the CPU.
        likelihood: with the noise that suits the network.
        tried: mean loss of the validation rows, in nats, by learning rate; ``None`` without any.
        lr: of the network; ``None`` if it was best before it was trained.
        seconds: of all trainings.
        epochs: of each.
    """

    net: nn.Module
    likelihood: Likelihood
    tried: dict[float, float | None]
    lr: float | None
    seconds: float
    epochs: int


def as_numbers(
    fit: Fit, epochs: int, *, out: Path | None = None, progress: bool | None = None
) -> Numbers:
    """Train the network of a pair as numbers, at several learning rates, each from where the guide
    begins; take the best by the validation rows, the network as it was among them.

    Without validation rows it is trained once, at the middle one of the rates.

    Arguments:
        fit: of a pair that was not trained yet.
        epochs: passes of each training.
        out: folder for ``numbers.safetensors``, from which what is there already is taken.

    Raises:
        CheckpointError: if the file in ``out`` is of another network, or damaged.
    """
    net, validation = fit.model.start_network(), len(fit.data.x_val) > 0
    rates = RATES if validation else RATES[1:2]
    path = None if out is None else out / NUMBERS
    ranks = joined()
    tried, lr, seconds, kept = ranks.from_first(lambda: (*_read(path, net), _on_host(net)))
    if not ranks.first:
        net.load_state_dict(kept)
    least = float(row_losses(net, fit).mean())
    with FitProgress("numbers", len(rates), progress) as bar:
        for rate in rates:
            bar.next(f"learning rate {rate:g}")
            if rate in tried:
                continue
            start = time.perf_counter()
            found, losses = trained(fit.model.start_network(), fit, epochs, rate)
            loss = float(losses.mean()) if validation else None
            seconds += time.perf_counter() - start
            if loss is None or loss < least:
                net, lr, least = found, rate, loss or 0.0
            tried[rate] = loss
            if path is not None and ranks.first:
                _write(path, net, {"tried": tried, "lr": lr, "seconds": seconds})
    own = net.eval().to(fit.data.device)
    likelihood = validated(fit.model.likelihood, own, fit.data)
    if likelihood is fit.model.likelihood:  # of too few validation rows
        likelihood = validated(likelihood, own, fit.data, "train")
    return Numbers(net.cpu(), likelihood, tried, lr, seconds, epochs)


def _write(path: Path, net: nn.Module, said: dict[str, object]) -> None:
    tensors = {name: t.contiguous().clone() for name, t in _on_host(net).items()}
    write_whole(path, lambda file: file.write(save(tensors, {"numbers": json.dumps(said)})))


def _on_host(net: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().cpu() for name, t in net.state_dict().items()}


def _read(
    path: Path | None, net: nn.Module
) -> tuple[dict[float, float | None], float | None, float]:
    """What was tried, the best rate and the seconds; the network gets the weights."""
    if path is None or not path.is_file():
        return {}, None, 0.0
    try:
        with safe_open(str(path), "pt") as file:
            said = json.loads(file.metadata()["numbers"])
            names = file.keys()
            net.load_state_dict({name: file.get_tensor(name) for name in names})
        tried = {float(rate): _number(loss) for rate, loss in said["tried"].items()}
        return tried, _number(said["lr"]), float(said["seconds"])
    except _NO_SUCH_FILE as error:
        raise CheckpointError(f"{path} holds no network of this run ({error})") from error


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
