"""The temperature of a relaxation: fixed, falling while a fit goes on, or learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ...data import Between, Options, Positive


@dataclass(frozen=True)
class Annealed(Options):
    """A temperature that moves from one value to another in the course of a fit.

    Arguments:
        start, end: positive.
        over: the fraction of the steps after which ``end`` is reached.
        shape: ``linear``, or ``exponential``, by the same factor in each step.
    """

    start: Positive
    end: Positive
    over: Annotated[float, Between(0.0, 1.0, "(]")] = 1.0
    shape: Literal["linear", "exponential"] = "linear"

    def at(self, progress: float) -> float:
        """The temperature when a fraction ``progress`` of the steps is done."""
        share = min(1.0, progress / self.over)
        if self.shape == "linear":
            return self.start + share * (self.end - self.start)
        return math.exp((1.0 - share) * math.log(self.start) + share * math.log(self.end))


class Temperature(nn.Module):
    """One temperature, that all who use it share.

    A KL between relaxed distributions is in closed form where they have the *same* temperature,
    which is recognised by its being the same tensor: so prior and guide hold this one module. It is
    a submodule of the model alone; the others have it by :func:`lend`.
    """

    value: Tensor

    def __init__(self, asked: float | Annealed) -> None:
        super().__init__()
        self.schedule = asked if isinstance(asked, Annealed) else None
        self.register_buffer("value", torch.tensor(self._at(0.0, asked)))

    @staticmethod
    def _at(progress: float, asked: float | Annealed) -> float:
        return asked.at(progress) if isinstance(asked, Annealed) else float(asked)

    def anneal(self, progress: float) -> None:
        """Follow the schedule, if there is one: when ``progress`` of the steps is done."""
        if self.schedule is not None:
            self.value.fill_(self.schedule.at(progress))

    def forward(self) -> Tensor:
        return self.value


class LearntTemperature(nn.Module):
    """A temperature that is a parameter, that of a variational posterior."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log_value = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        return self.log_value.exp()


def lend(temperature: nn.Module | None, to: nn.Module) -> None:
    """Make a temperature the attribute ``temperature`` of a module, without making it a submodule.

    Of a module that is registered at two places, ``torch.func.functional_call`` does not put the
    tensors back: a traced step would go on with the temperature that it was traced at.
    """
    object.__setattr__(to, "temperature", temperature)
