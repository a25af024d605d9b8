"""States of modules and of random numbers that hold for a while, and are put back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd

from .threads import turn


@contextmanager
def keeping_modes(module: nn.Module) -> Iterator[None]:
    """The modes of all parts are put back in the end."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients; the former mode of every part is put back."""
    # Not in the middle of a step of a fit in another thread.
    with turn(), keeping_modes(module), torch.no_grad():
        module.eval()
        yield


@contextmanager
def dropping(module: nn.Module) -> Iterator[None]:
    """Dropout that drops, for a while."""
    with keeping_modes(module):
        for part in module.modules():
            part.training |= isinstance(part, _DropoutNd)
        yield


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A seed for a while; the state of the generators is put back."""
    with turn(), reseeded(seed, device):
        yield


@contextmanager
def reseeded(seed: int, device: torch.device) -> Iterator[None]:
    """The same for a thread that has the turn, and may give way within."""
    cuda = [device] if device.type == "cuda" else []
    seed = int(seed)  # NumPy's numbers are not taken by torch
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)  # only what is put back afterwards
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def local_parameters() -> Iterator[None]:
    """Keep parameters in their modules, out of Pyro's global store, for the time being."""
    with pyro.settings.context(module_local_params=True):
        yield


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Kernels that can be differentiated twice, and mapped: on a CPU not oneDNN's, whose LSTM can
    be neither, and none that attends in one piece."""
    kernels: Any = torch.backends.mkldnn  # whose flags() speak of Intel's GPUs, and warn
    with turn():
        before = kernels.enabled
        kernels.enabled = False
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            kernels.enabled = before


@dataclass(frozen=True)
class Counting:
    """Sites that count only at some values of another: for all others they are masked.

    A site that is masked in model and guide has no density in either: given such a value its
    posterior is its prior, whatever the guide draws.

    Attributes:
        site: a categorical one.
        values: that it has.
        used: values at which other sites count, by site; those that are not named always do.
    """

    site: str
    values: int
    used: Mapping[str, tuple[int, ...]]

    def given(self, values: Mapping[str, Tensor]) -> Messenger:
        """A handler around the other sites, for values of this one."""
        return _Masking(self, values[self.site])

    def counts(self, name: str, values: Mapping[str, Tensor]) -> Tensor | float:
        """One where a site counts, and zero where it keeps its prior, of the shape of the values of
        the categorical one."""
        mask = self.mask(name, values[self.site])
        return 1.0 if mask is None else mask.double()

    def mask(self, name: str, value: Tensor) -> Tensor | None:
        """Whether a site counts, of the shape of ``value``; ``None`` if it always does.

        Model and guide get one tensor for one value, by which a bound knows that both mask alike.
        """
        used = self.used.get(name)
        if used is None or len(used) == self.values:
            return None
        found: dict[tuple[int, ...], Tensor] = value.__dict__.setdefault("_counting", {})
        if used not in found:
            if used == tuple(range(self.values - len(used), self.values)):
                found[used] = value >= self.values - len(used)
            else:
                found[used] = torch.stack([value == one for one in used]).any(0)
        return found[used]


class _Masking(Messenger):
    def __init__(self, counting: Counting, value: Tensor) -> None:
        super().__init__()
        self.counting, self.value = counting, value

    def _pyro_sample(self, msg: Any) -> None:
        mask = self.counting.mask(msg["name"], self.value)
        if mask is not None:
            msg["mask"] = mask if msg["mask"] is None else msg["mask"] & mask


class Weighing(Messenger):
    """Latents whose divergence has a weight in the bound, such as one that a guide draws when it is
    called.

    Put it around guide and model together. A bound then has the weight times the KL of its sites;
    Pyro's ``TraceMeanField_ELBO`` takes the scale of a KL from the guide, ``Trace_ELBO`` from both.

    Attributes:
        weights: of the KL by site, ``()`` each; others are left as they are. They are forgotten at
            the exit.
    """

    def __init__(self, sites: Collection[str], within: Any = None) -> None:
        super().__init__()
        self.sites, self.within = frozenset(sites), within
        self.weights: Mapping[str, Tensor] = {}
        self.slots: tuple[Any, ...] = ()  # where a number stands that is set, see Numbering

    @property
    def scales(self) -> Any:
        """Those of the handler within, if any."""
        return None if self.within is None else self.within.scales

    def take(self, value: Tensor | None) -> None:
        """Have another weight of all sites from here on, or none."""
        self.take_each({} if value is None else dict.fromkeys(self.sites, value))

    def take_each(self, weights: Mapping[str, Tensor]) -> None:
        """Have other weights from here on, by site."""
        self.weights = weights

    def __enter__(self) -> Self:
        super().__enter__()
        if self.within is not None:
            self.within.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.within is not None:
            self.within.__exit__(*exception)
        self.weights = {}  # they may hang on the graph of a step
        super().__exit__(*exception)

    def _pyro_sample(self, msg: Any) -> None:
        weight = self.weights.get(msg["name"])
        if weight is not None:
            # One tensor in guide and model, by which a bound knows that both are weighed alike.
            alone = not isinstance(msg["scale"], Tensor) and msg["scale"] == 1.0
            msg["scale"] = weight if alone else weight * msg["scale"]
