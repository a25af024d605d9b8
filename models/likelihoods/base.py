"""The base of likelihoods: from a network's outputs to a distribution over targets."""

from __future__ import annotations

from typing import ClassVar, Protocol, Self, cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ...data import PyroccamError


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
        task: ``classification``, ``regression``, ``counts`` or ``multi-label``.
        outputs: numbers of the network for each input.
        word: by which a command line and ``likelihood=`` know it; "" for one of your own.
        noise: names of the parameters that say how far targets lie from what is predicted. Where
            weights are numbers they are learnt from validation rows
            (:mod:`~pyroccam.inference.training.validated_noise`).
        has_noise: it says how far targets lie from what is predicted.
        own_head: it has a last layer of its own, see :meth:`headed`.
        scores: metrics beside those of the task: ``mae``, ``coverage``, ``rank_mae`` or
            ``similarity``.
    """

    task: str
    outputs: int
    word: ClassVar[str] = ""
    noise: ClassVar[tuple[str, ...]] = ()
    has_noise: ClassVar[bool] = True
    own_head: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, data: TargetSpec) -> Self:
        """The one that suits a data set, from its number of classes or targets."""
        return cls(data.outputs)

    def arguments(self) -> dict[str, int]:
        """What it is made from, so that it can be made again and given its numbers."""
        return {}

    def forward(self, outputs: Tensor) -> dist.TorchDistribution:
        raise NotImplementedError

    def headed(self, net: nn.Module, depths: int = 1) -> nn.Module:
        """The network, or the head that so many depths share, with the last layer that this
        likelihood wants, in place."""
        return net

    def left_out(
        self, net: nn.Module, outputs: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Outputs ``(S, N, outputs)`` of a network for its validation rows ``(N, ...)``, each as if
        it had not been one: a last layer of its own may know them.

        Arguments:
            weights: of the rows ``(N,)``.
        """
        return outputs

    def begin_noise(self, error: Tensor) -> None:
        """Set what :attr:`noise` names to where a search for it begins, by the root mean square
        ``(T,)`` of what is predicted less the targets."""

    def noise_margin(self) -> Tensor | float:
        """Nats to add to the density of rows, of which the noise is then the most probable one."""
        return 0.0

    def normal_scale(self) -> Tensor | None:
        """σ of each target ``(T,)``, where targets are normal about the outputs with a σ that does
        not depend on them; else ``None``."""
        return None

    def below(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The probability that a target is less than ``y`` ``(*batch, T)``, each on its own."""
        return cast(Tensor, self(outputs).base_dist.cdf(y))

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
        """Log-probabilities ``(*batch, C)``, or means ``(*batch, T)`` of targets, standardised as
        those are."""
        made, asked = self(outputs), "logits" if self.task == "classification" else "mean"
        expected = f"{asked} of all classes or targets, (*batch, C or T), two classes at least"
        name, way_out = f"the {type(made).__name__} of {type(self).__name__}", "define predicted()"
        try:
            found: Tensor = getattr(made, asked)
        except (AttributeError, NotImplementedError) as error:
            raise PyroccamError(f"{name} has no {asked}", expected, way_out) from error
        # Logits of a Bernoulli, say: one for each row, which a softmax would take for the classes.
        single = self.task == "classification" and found.shape[-1] < 2
        if found.shape[:-1] != outputs.shape[:-1] or found.dim() != outputs.dim() or single:
            shapes = f"{tuple(found.shape)} for outputs of shape {tuple(outputs.shape)}"
            raise PyroccamError(f"{name} has {asked} of shape {shapes}", expected, way_out)
        return found.log_softmax(-1) if self.task == "classification" else found

    @property
    def takes_logits(self) -> bool:
        """True if outputs are logits of classes, so that a temperature can divide them."""
        return False

    @property
    def teaches(self) -> bool:
        """True if a network can learn from :meth:`mean_prediction`."""
        return False

    def mean_prediction(self, outputs: Tensor) -> Tensor:
        """What outputs ``(S, *batch, outputs)`` of several networks predict on average:
        probabilities ``(*batch, C)``, or targets ``(*batch, T)``."""
        raise NotImplementedError

    def losses_of(self, outputs: Tensor, taught: Tensor) -> Tensor:
        """What outputs ``(B, outputs)`` lose, ``(B,)`` in nats, if what :meth:`mean_prediction`
        gives is the truth."""
        return cast(Tensor, -self(outputs).log_prob(taught))

    def refuse_other(self, outputs: Tensor) -> None:
        """Outputs of another shape would be broadcast against the targets and train to nonsense."""
        if outputs.dim() < 2 or outputs.shape[-1] != self.outputs:
            found = f"outputs of shape {tuple(outputs.shape)} for {type(self).__name__}"
            raise PyroccamError(found, f"(batch, {self.outputs})", "another likelihood=")
