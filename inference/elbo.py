"""The bound: Pyro's enumerated ELBO, with an explicit KL weight and a look at what it computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.elbo import ELBOModule
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from ..guides.depth import Marginal

__all__ = ["EnumeratedELBO", "KLWeight", "bound", "local_parameters"]


class KLWeight(Messenger):
    """Scale every latent site, and only those, by a weight: β in ``E_q[log p(y|z)] - β KL``.

    Wrapped around model *and* guide, both densities of a latent carry β and their difference is
    β times the KL; observed sites keep the scale of their plate.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"] and not poutine.util.site_is_subsample(msg):
            msg["scale"] = msg["scale"] * self.weight


class EnumeratedELBO(TraceEnum_ELBO):
    r"""``TraceEnum_ELBO`` with a KL weight, which shows the model's trace to an observer.

    Discrete guide sites marked for enumeration are summed exactly: the estimate has no sampling
    noise and is unbiased in minibatches. With ``kl_weight`` β the value is
    :math:`E_q[\log p(y \mid d)] - β\, KL(q \| p)`.

    Arguments:
        observer: called with the model's trace of every evaluation; its log probabilities by
            depth feed the closed-form update of q without a second forward pass.
        max_plate_nesting: one plate, the data, in every model of this library.
    """

    def __init__(
        self, observer: Callable[[poutine.Trace], None] | None = None, max_plate_nesting: int = 1
    ) -> None:
        super().__init__(max_plate_nesting=max_plate_nesting, strict_enumeration_warning=False)
        self.observer = observer
        self.kl_weight = 1.0

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Iterator[Any]:
        if self.kl_weight != 1.0:
            model, guide = KLWeight(self.kl_weight)(model), KLWeight(self.kl_weight)(guide)
        yield from super()._get_traces(model, guide, args, kwargs)

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        model_trace, guide_trace = super()._get_trace(model, guide, args, kwargs)
        if self.observer is not None:
            self.observer(model_trace)
        return model_trace, guide_trace


class Bound(ELBOModule):
    """The negative ELBO of a pair as a module: ``bound(x, y)`` in nats over the whole data set."""

    elbo: EnumeratedELBO

    def __init__(self, model: nn.Module, guide: nn.Module, elbo: EnumeratedELBO) -> None:
        super().__init__(model, guide, elbo)
        self.enumerate_model = isinstance(guide, Marginal)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        model: Any = config_enumerate(self.model) if self.enumerate_model else self.model
        with local_parameters():
            return self.elbo.differentiable_loss(model, self.guide, x, y)


def bound(
    model: nn.Module,
    guide: nn.Module,
    observer: Callable[[poutine.Trace], None] | None = None,
) -> Bound:
    """The negative ELBO of a (model, guide) pair.

    Arguments:
        model, guide: a pair of this library; :class:`~pyroccam.guides.Marginal` sums the depth out
            in the model.
        observer: see :class:`EnumeratedELBO`.
    """
    return Bound(model, guide, EnumeratedELBO(observer))


@contextmanager
def local_parameters() -> Iterator[None]:
    """Keep parameters in their modules, out of Pyro's global store, for the time being."""
    with pyro.settings.context(module_local_params=True):
        yield
