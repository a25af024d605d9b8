"""The likelihood of a model: the one that was given, that a word names, or that suits the data."""

from __future__ import annotations

import torch
from torch import nn

from ...data import PyroccamError
from .. import kinds, unknown_name
from .amounts import Regression
from .base import Likelihood, TargetSpec
from .classes import Classification, MultiLabel
from .counts import Poisson

_BY_TASK: dict[str, type[Likelihood]] = {
    kind.task: kind for kind in (Classification, Regression, Poisson, MultiLabel)
}


def words() -> dict[str, type[Likelihood]]:
    """All likelihoods that have a word, by it."""
    found = {vars(kind).get("word", ""): kind for kind in kinds(Likelihood)}
    return {word: found[word] for word in sorted(found) if word}


def parse(word: str, data: TargetSpec) -> Likelihood:
    """The likelihood of a word, such as ``student-t``, for a data set."""
    known = words()
    if word not in known:
        raise PyroccamError(unknown_name("likelihood", str(word), known))
    kind = known[word]
    if kind.task != data.task:
        suit = [name for name, one in known.items() if one.task == data.task]
        found = f"likelihood={word!r}, which is of {kind.task}, for data of {data.task}"
        raise PyroccamError(found, " or ".join(suit), f"load the data with task={kind.task!r}")
    return kind.of(data)


def checked(
    likelihood: Likelihood | str | None, data: TargetSpec, network: nn.Module | None = None
) -> Likelihood:
    """The likelihood that was given, or that a word names, or the one that suits the data; for a
    network in double precision what it learns is in double precision."""
    if likelihood is None:
        likelihood = for_data(data)
    elif isinstance(likelihood, str):
        likelihood = parse(likelihood, data)
    task = getattr(likelihood, "task", None)
    if task != data.task:
        found = f"likelihood={type(likelihood).__name__}, whose task is {task!r}"
        raise PyroccamError(found, f"one of the task {data.task!r} of the data")
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
