"""The base of models, which say of themselves what code needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from torch import Tensor, nn

from ..data import PyroccamError
from .contexts import Counting
from .distributions import Weighted
from .likelihoods import Likelihood, TargetSpec
from .networks import with_held_statistics
from .parameters import LocalModule
from .priors import EdgePrior, LayerPrior

if TYPE_CHECKING:
    from .hyperparameters import Number
    from .layers import BayesianLayer


class Model(LocalModule):
    """A Pyro model of targets, given inputs, over a network.

    Attributes:
        random_weights: the weights are latents, or numbers.
        usual_guide: class of the guide that an error suggests.
        size: N, the training rows that it is made for.
        likelihood: of the targets, given what the network computes.
        counting: sites that count only at some values of another one.
        weighted: the rows of its data have weights, which stand behind the targets in ``y``, as a
            last column (``data.targets``); ``y`` without them is not weighted.
        plates: most that are nested in its ``forward``, or in that of a guide.
        keeps_zeros: weights that are zero when a training begins stay zero.
    """

    random_weights: ClassVar[bool] = False
    usual_guide: ClassVar[str] = "Deterministic"

    plates: ClassVar[int] = 1
    size: int
    likelihood: Likelihood
    weighted: bool = False
    keeps_zeros: bool = False
    counting: Counting | None = None

    @property
    def entry(self) -> nn.Module:
        """The module that takes the inputs first."""
        return self._modules.get("net") or self

    @property
    def structure(self) -> Mapping[str, EdgePrior]:
        """Sites of random structure and their priors: none, the structure is known."""
        return {}

    @property
    def layers(self) -> Mapping[str, BayesianLayer]:
        """The Bayesian layers by name, in the order of their use."""
        return {}

    @property
    def sites(self) -> Mapping[str, tuple[BayesianLayer, str]]:
        """Sites of random weights in the order of the model: their layer, and their name below
        it."""
        return {}

    def latents(self) -> list[str]:
        """All latent sites, in the order of the model."""
        return [*self.structure, *self.sites]

    def counts(self, site: str, values: Mapping[str, Tensor]) -> Tensor | float:
        """One for draws in which a site counts, zero for those in which its posterior is its prior
        whatever its value is, so that its density in both is left out; from values of the latents,
        ``(S, *)``."""
        return 1.0 if self.counting is None else self.counting.counts(site, values)

    def prior_numbers(self) -> object:
        """The prior as plain values, by which a checkpoint knows it again; ``None`` without one."""
        return None

    def priors(self) -> list[nn.Module]:
        """The modules of the priors over weights and structure, which may learn something."""
        return priors_of(self)

    def train(self, mode: bool = True) -> Self:
        return with_held_statistics(super().train(mode))

    def components(self, x: Tensor) -> Tensor:
        """Outputs at every depth that the model has, ``(S, B, outputs)``, where weights are
        numbers."""
        raise NotImplementedError

    def log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """``log p(y_n | x_n, d)`` at every depth, ``(S, B)``, in nats, where weights are
        numbers."""
        raise NotImplementedError

    def observed(self, outputs: Tensor, y: Tensor | None) -> tuple[Any, Tensor | None]:
        """The distribution of targets for outputs ``(*, B, outputs)``, weighted if ``y``, ``(B,)``
        or ``(B, T)``, has a last column of weights, and the targets alone."""
        made = self.part("likelihood")(outputs)
        if y is None or not self.weighted:
            return made, y
        classes = not made.event_shape
        if y.dim() != 2 or y.shape[-1] != (2 if classes else made.event_shape[-1] + 1):
            return made, y
        targets = y[..., 0].long() if classes else y[..., :-1]
        return Weighted(made, y[..., -1]), targets

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-likelihood of each row, ``(*, B)``, in nats; see :meth:`observed`."""
        made, targets = self.observed(outputs, y)
        return cast(Tensor, made.log_prob(targets))

    def anneal(self, progress: float) -> None:
        """Set what follows a schedule to its value after a fraction ``progress`` of the steps."""

    def numbers(self) -> dict[str, Number]:
        """Numbers of its priors that may be others, by path; see
        :class:`~pyroccam.guides.Conditional`."""
        return {}

    def anew(self, data: TargetSpec, *, prior: Any = None, structure: Any = None) -> Model:
        """The same network, with the numbers that it was given, for another fit.

        Arguments:
            prior: of the weights, or of the depth, if it is to be another.
            structure: prior of the structure of a graph, if it is to be another; a power to which
                the one before was raised is not kept then.
        """
        expected = "a models.BayesianNetwork, or a models.LearntDepth"
        raise PyroccamError(f"a {type(self).__name__}, which has no prior", expected)


# A step takes a Pyro model of a person's own, too, which says nothing of itself.


def priors_of(model: nn.Module) -> list[nn.Module]:
    """The modules of priors over weights and structure in any module."""
    return [part for part in model.modules() if isinstance(part, LayerPrior | EdgePrior)]


def likelihood_of(model: nn.Module) -> nn.Module | None:
    """The likelihood of a model, if it has one that is a module."""
    found = getattr(model, "likelihood", None)
    return found if isinstance(found, nn.Module) else None


def anneal(model: nn.Module, progress: float) -> None:
    """:meth:`Model.anneal`, of a model that is one of ours."""
    if isinstance(model, Model):
        model.anneal(progress)
