"""Numbers of the priors of a model, by path, that may be others for a while, or for good."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, cast

from torch import Tensor, nn

from .contexts import Weighing
from .layers import BayesianLayer
from .priors import EdgePrior


@dataclass(frozen=True)
class Slot:
    """A buffer of a module in which a number stands.

    Attributes:
        raises: the buffer has log-probabilities of structure, and the number is their power.
    """

    module: nn.Module
    buffer: str
    raises: bool = False

    def with_value(self, own: Tensor, value: Tensor) -> Tensor:
        """What the buffer is with another number, ``()``, where it is ``own`` in the model."""
        if self.raises:
            prior: Any = self.module
            return cast(Tensor, prior.raised(own, value.to(own)))
        return value.to(own)


@dataclass(frozen=True)
class Number:
    """A number of a model.

    Attributes:
        slots: where it stands.
        own: its value; ``None`` where layers have several.
        record: writes another one into the arguments that the model was made with, so that a model
            made anew has it.
    """

    slots: tuple[Slot, ...]
    own: float | None
    record: Callable[[float], None]

    def set(self, value: float) -> None:
        """Give the model another value, for good."""
        for slot in self.slots:
            own = slot.module.get_buffer(slot.buffer)
            slot.module._buffers[slot.buffer] = slot.with_value(own, own.new_tensor(value))
        self.record(value)


class Numbering(Weighing):
    """A number that a guide draws when it is called, in place of that of the model, in slots of its
    own modules: copy both at once.

    Put it around guide and model together; at the exit the model has its own again.
    """

    def __init__(self, slots: Iterable[Slot], within: Any = None) -> None:
        super().__init__((), within)
        self.slots = tuple(slots)
        self._own: list[Tensor] = []

    def take(self, value: Tensor | None) -> None:
        if value is None:
            for slot, own in zip(self.slots, self._own, strict=False):
                slot.module._buffers[slot.buffer] = own
            self._own = []  # another device, or another number, may follow
            return
        if not self._own:
            self._own = [slot.module.get_buffer(slot.buffer) for slot in self.slots]
        for slot, own in zip(self.slots, self._own, strict=True):
            slot.module._buffers[slot.buffer] = slot.with_value(own, value)

    def __exit__(self, *exception: Any) -> None:
        self.take(None)
        super().__exit__(*exception)


def numbers_of_weights(
    layers: Mapping[str, BayesianLayer], record: Callable[[str, float], None]
) -> dict[str, Number]:
    """The numbers ``prior.NAME`` of the priors of layers that learn nothing: arguments of a prior
    that stand in its layers as they are given. ``record`` writes one into what the model was made
    with."""
    found: dict[str, list[tuple[BayesianLayer, float]]] = {}
    for layer in layers.values():
        for name, value in _arguments(layer).items():
            found.setdefault(name, []).append((layer, value))
    return {
        f"prior.{name}": Number(
            tuple(Slot(layer.prior, name) for layer, _ in own),
            own[0][1] if len({value for _, value in own}) == 1 else None,
            lambda value, name=name: record(name, value),  # type: ignore[misc]
        )
        for name, own in found.items()
    }


def _arguments(layer: BayesianLayer) -> dict[str, float]:
    """Arguments of a prior that learns nothing which stand in its layer as they were given."""
    prior, held = layer.weight_prior, layer.prior._buffers
    if not is_dataclass(prior) or [*layer.prior.parameters()]:
        return {}
    given = {n: v for n, v in vars(prior).items() if isinstance(v, int | float)}
    return {
        name: float(value)
        for name, value in given.items()
        if (own := held.get(name)) is not None
        and own.dim() == 0
        and math.isclose(own, value, rel_tol=1e-6)
    }


def power(priors: Iterable[EdgePrior], record: Callable[[float], None]) -> dict[str, Number]:
    """The number ``structure.power`` of priors that do not learn: what a structure costs, in nats,
    is multiplied with it."""
    fixed = [prior for prior in priors if prior.priced and "logits" in prior._buffers]
    slots = tuple(Slot(prior, "logits", raises=True) for prior in fixed)
    return {"structure.power": Number(slots, 1.0, record)} if slots else {}
