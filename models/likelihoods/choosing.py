"""The likelihood of a model: the one that was given, that a word names, or that suits the data."""

from __future__ import annotations

import torch
from torch import nn

from ...data.errors import PyroccamError
from ..checks import kinds, unknown_name
from .amounts import Regression
from .base import Likelihood, TargetSpec
from .classes import Classification, MultiLabel
from .counts import Poisson

__all__ = ["checked", "for_data", "has_weights", "parse", "precision", "words"]

_BY_TASK: dict[str, type[Likelihood]] = {
    kind.task: kind for kind in (Classification, Regression, Poisson, MultiLabel)
}


def words() -> dict[str, type[Likelihood]]:
    """All likelihoods that have a word, by it."""
    found = {vars(kind).get("word", ""): kind for kind in kinds(Likelihood)}
    return {word: found[word] for word in sorted(found) if word}


def parse(word: str, data: TargetSpec) -> Likelihood:
    """The likelihood of a word, such as ``student-t``, for a data set.

    Raises:
        PyroccamError: for a word that there is not, or whose task is not that of the data.
    """
    known = words()
    if word not in known:
        raise PyroccamError(unknown_name("likelihood", str(word), known))
    kind = known[word]
    if kind.task != data.task:
        suit = [name for name, one in known.items() if one.task == data.task]
        raise PyroccamError(
            f"likelihood={word!r} is of {kind.task}, but the task of the data is {data.task!r}: "
            f"load it with task={kind.task!r} if it is that, or take {', '.join(suit)}."
        )
    return kind.of(data)


def checked(
    likelihood: Likelihood | str | None, data: TargetSpec, network: nn.Module | None = None
) -> Likelihood:
    """The likelihood that was given, or that a word names, or the one that suits the data.

    Arguments:
        network: that it is for; of one in double precision what it learns is in double precision.

    Raises:
        PyroccamError: for one whose task is not that of the data, or a word that there is not.
    """
    if likelihood is None:
        likelihood = for_data(data)
    elif isinstance(likelihood, str):
        likelihood = parse(likelihood, data)
    task = getattr(likelihood, "task", None)
    if task != data.task:
        raise PyroccamError(
            f"likelihood= got {type(likelihood).__name__}, whose task is {task!r}, but the task "
            f"of the data is {data.task!r}. A likelihood of your own says it: task = {data.task!r} "
            "in its class."
        )
    # Half precision is for the network alone.
    double = network is not None and precision(network) is torch.float64
    return likelihood.double() if double else likelihood


def has_weights(data: TargetSpec) -> bool:
    """True if the rows of a data set have weights."""
    return bool(getattr(data, "weighted", False))


def precision(network: nn.Module) -> torch.dtype:
    """The floating type of the numbers of a network; torch's default for one without any."""
    found = (t.dtype for t in (*network.parameters(), *network.buffers()) if t.is_floating_point())
    return next(found, torch.get_default_dtype())


def for_data(data: TargetSpec) -> Likelihood:
    """The likelihood that suits a data set's task."""
    if data.task not in _BY_TASK:
        raise PyroccamError(f"Unknown task {data.task!r}: expected one of {', '.join(_BY_TASK)}.")
    return _BY_TASK[data.task].of(data)
