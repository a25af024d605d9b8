"""Numbers of the priors of a model, by path, that may be others for a while, or for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from .contexts import Weighing
from .layers import BayesianLayer
from .priors import EdgePrior, WeightPrior


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
    """The numbers ``prior.NAME`` of the priors of layers: arguments of a prior that stand in its
    layers as they are given, and in nothing else. ``record`` writes one into what the model was
    made with."""
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
    """The arguments that may be another number, and what they are."""
    made, found = layer.weight_prior, {}
    for name, value in _given(made).items():
        other = 1.5 * value + (value == 0.0)
        try:
            probe, usual = (
                replace(made, **change).for_layer(layer.affine.shape)  # type: ignore[type-var]
                for change in ({name: other}, {})
            )
        except (TypeError, ValueError):
            continue
        # What a prior learns begins elsewhere, or has another unit, with some arguments: a slot of
        # the number would not know.
        new, own = (
            {**dict(one.named_buffers()), **dict(one.named_parameters())} for one in (probe, usual)
        )
        moved = {n for n, t in new.items() if n not in own or not torch.equal(t, own[n])}
        if (
            moved == {name}
            and name in dict(probe.named_buffers())
            and new[name].dim() == 0
            and abs(float(new[name]) - other) < 1e-6 * abs(other)
        ):
            found[name] = value
    return found


def _given(prior: WeightPrior) -> dict[str, float]:
    if not is_dataclass(prior):
        return {}
    each = ((one.name, getattr(prior, one.name)) for one in fields(prior))
    return {n: float(v) for n, v in each if isinstance(v, int | float) and not isinstance(v, bool)}


def power(priors: Iterable[EdgePrior], record: Callable[[float], None]) -> dict[str, Number]:
    """The number ``structure.power`` of priors that do not learn: what a structure costs, in nats,
    is multiplied with it."""
    fixed = [prior for prior in priors if prior.priced and "logits" in prior._buffers]
    slots = tuple(Slot(prior, "logits", raises=True) for prior in fixed)
    return {"structure.power": Number(slots, 1.0, record)} if slots else {}
