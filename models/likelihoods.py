"""Likelihoods: from a network's outputs to a distribution over targets."""

from __future__ import annotations

import math
from typing import Protocol

import pyro.distributions as dist
import torch
from torch import Tensor, nn

__all__ = [
    "Classification",
    "Likelihood",
    "Regression",
    "TargetSpec",
    "checked",
    "for_data",
    "precision",
]


class TargetSpec(Protocol):
    """The facts that a model needs of a data set (``pyroccam.data.Dataset`` has it)."""

    @property
    def N(self) -> int: ...

    @property
    def task(self) -> str: ...

    @property
    def outputs(self) -> int: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...


class Likelihood(nn.Module):
    """Outputs ``(*batch, outputs)`` to a distribution of batch shape ``(*batch,)``.

    One of your own has a ``forward`` and a ``task``, by which predictions are scored: of classes
    its distribution needs ``logits`` of each, of targets, which are its event, a ``mean``. What
    has none defines ``predicted``.

    Attributes:
        task: ``classification`` or ``regression``.
        outputs: numbers of the network for each input.
    """

    task: str
    outputs: int

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        raise NotImplementedError

    def log_predictive(self, outputs: Tensor, log_weights: Tensor, y: Tensor) -> Tensor:
        r"""``log Σ_s w_s p(y | outputs_s)`` for a mixture over the leading dimension.

        Arguments:
            outputs: ``(S, B, outputs)``.
            log_weights: ``(S,)``, normalised.
            y: targets ``(B, ...)``.

        Returns:
            ``(B,)``, in nats.
        """
        return torch.logsumexp(log_weights[:, None] + self(outputs).log_prob(y), 0)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Log-probabilities ``(*batch, C)``, or means ``(*batch, T)`` of standardised targets.

        Raises:
            TypeError: for a distribution that has none, or not those of each class.
        """
        made, asked = self(outputs), "logits" if self.task == "classification" else "mean"
        way_out = "define predicted(outputs), which gives "
        way_out += (
            "log-probabilities (*batch, C) of all classes, two at least."
            if self.task == "classification"
            else "means (*batch, T) of the targets."
        )
        name = f"{type(self).__name__} is of {self.task}, but"
        try:
            found: Tensor = getattr(made, asked)
        except (AttributeError, NotImplementedError) as error:
            raise TypeError(
                f"{name} its {type(made).__name__} has no {asked}: {way_out}"
            ) from error
        # Logits of a Bernoulli, say: one for each row, which a softmax would take for the classes.
        single = self.task == "classification" and found.shape[-1] < 2
        if found.shape[:-1] != outputs.shape[:-1] or found.dim() != outputs.dim() or single:
            raise TypeError(
                f"{name} the {asked} of its {type(made).__name__} have shape {tuple(found.shape)} "
                f"for outputs of shape {tuple(outputs.shape)}: {way_out}"
            )
        return found.log_softmax(-1) if self.task == "classification" else found

    def refuse_other(self, outputs: Tensor) -> None:
        """Outputs of another shape would be broadcast against the targets and train to nonsense.

        Raises:
            ValueError: for another number of outputs, or outputs without a dim of their own.
        """
        if outputs.dim() < 2 or outputs.shape[-1] != self.outputs:
            name = f"{type(self).__name__}({self.outputs})"
            raise ValueError(
                f"The network gives outputs of shape {tuple(outputs.shape)}, but {name} takes "
                f"(batch, {self.outputs}). End the network with {self.outputs} outputs, without "
                "squeeze(); or pass the likelihood= that suits what it gives."
            )


class Classification(Likelihood):
    """``Categorical(logits)`` over ``classes`` classes; targets are integers ``(B,)``."""

    task = "classification"

    def __init__(self, classes: int) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"Classification needs at least 2 classes, got {classes}.")
        self.outputs = classes

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.Categorical(logits=outputs)

    def predicted(self, outputs: Tensor) -> Tensor:
        own = type(self).forward is not Classification.forward
        return super().predicted(outputs) if own else outputs.log_softmax(-1)


class Regression(Likelihood):
    r"""``Normal(outputs, σ)`` with a learnt σ for each target, shared by all inputs and depths.

    Targets ``(B, T)``, standardised. σ = floor + exp(log_scale): the floor keeps the density of
    an interpolating network finite.

    Arguments:
        targets: T.
        scale: σ at the start, in standard deviations of the target.
        floor: smallest σ (Antoran et al. 2020, arXiv:2006.08437, use 1e-4).
    """

    task = "regression"

    def __init__(self, targets: int, scale: float = 0.5, floor: float = 1e-3) -> None:
        super().__init__()
        if targets < 1:
            raise ValueError(f"Regression needs at least 1 target, got {targets}.")
        if not 0 <= floor < scale:
            raise ValueError(f"Regression needs 0 <= floor < scale, got {floor} and {scale}.")
        self.outputs = targets
        self.floor = floor
        self.log_scale = nn.Parameter(torch.full((targets,), math.log(scale - floor)))

    @property
    def scale(self) -> Tensor:
        """σ, ``(T,)``, in units of the standardised target."""
        return self.floor + self.log_scale.exp()

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        self.refuse_other(outputs)
        return dist.Normal(outputs, self.scale).to_event(1)

    def predicted(self, outputs: Tensor) -> Tensor:
        own = type(self).forward is not Regression.forward
        return super().predicted(outputs) if own else outputs


def checked(
    likelihood: Likelihood | None, data: TargetSpec, network: nn.Module | None = None
) -> Likelihood:
    """The likelihood that was given, or the one that suits the data.

    Arguments:
        network: that it is for; of one in double precision what it learns is in double precision.

    Raises:
        ValueError: for one whose task is not that of the data.
    """
    if likelihood is None:
        likelihood = for_data(data)
    task = getattr(likelihood, "task", None)
    if task != data.task:
        raise ValueError(
            f"likelihood= got {type(likelihood).__name__}, whose task is {task!r}, but the task "
            f"of the data is {data.task!r}. A likelihood of your own says it: task = {data.task!r} "
            "in its class."
        )
    # Half precision is for the network alone.
    double = network is not None and precision(network) is torch.float64
    return likelihood.double() if double else likelihood


def precision(network: nn.Module) -> torch.dtype:
    """The floating type of the numbers of a network; torch's default for one without any."""
    found = (t.dtype for t in (*network.parameters(), *network.buffers()) if t.is_floating_point())
    return next(found, torch.get_default_dtype())


def for_data(data: TargetSpec) -> Likelihood:
    """The likelihood that suits a data set's task."""
    if data.task == "classification":
        return Classification(data.outputs)
    if data.task == "regression":
        return Regression(data.outputs)
    raise ValueError(f"Unknown task {data.task!r}: expected 'classification' or 'regression'.")
