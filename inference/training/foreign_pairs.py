"""Pairs that others have trained, as a fit: plain SVI, guides of Pyro, draws of MCMC."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from pyro import poutine
from pyro.infer import MCMC
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal
from torch import Tensor

from ...data import PyroccamError, Seed, checked
from ...guides import Delta, Guide, MeanField, NetworkGuide, Samples
from ...models import BayesianNetwork, Model, seeded
from ...models.likelihoods import precision
from ..posterior import posterior_of, random_network
from .replicate import validation_nll
from .requests import check_kinds, check_rows
from .result import Fit
from .settings import Settings
from .validated_noise import condition_head

if TYPE_CHECKING:
    from ...data import Dataset

DRAWS = 1000  # of a guide whose sites are not independent normals
ONE_ABOVE = 0.8413447460685429  # of a normal, the share below its mean and one deviation


@checked
def as_fit(
    model: Model,
    guide: Guide | MCMC | Mapping[str, Tensor] | Callable[..., Any],
    data: Dataset,
    *,
    seed: Seed = 0,
) -> Fit[Any, Any]:
    """A fit of a model of ours that something else has trained, to be evaluated, diagnosed, shrunk
    and exported as one of :func:`~pyroccam.inference.fit` is.

    Of draws there is no density: k-hat is refused, ``diagnostics.loo`` takes them for draws of the
    posterior itself, and :func:`~pyroccam.inference.narrow` needs another guide.

    Arguments:
        model: a :class:`~pyroccam.models.BayesianNetwork`, or with a guide of ours any model. It is
            in evaluation mode from here on, and nothing is trained.
        guide: a guide of ours, as plain ``pyro.infer.SVI`` leaves it. Of Pyro's ``AutoNormal`` and
            ``AutoDiagonalNormal`` it becomes the same :class:`~pyroccam.guides.MeanField`, of
            ``AutoDelta`` a :class:`~pyroccam.guides.Delta`. Any other over the weights, such as
            ``AutoMultivariateNormal``, or a function, becomes 1,000 draws of it
            (:class:`~pyroccam.guides.Samples`); an ``MCMC`` that has run, or what its
            ``get_samples()`` gives, ``(S, *)`` by site, becomes these draws.
        data: of the training; its validation rows give ``val_nll`` (NaN without any).
        seed: of the draws that are made here, and of those of a prediction.

    Raises:
        PyroccamError: for another model, a guide of another one, or one that lacks sites.

    Example:
        >>> import pyro
        >>> from pyro.infer import SVI, TraceMeanField_ELBO
        >>> from pyro.infer.autoguide import AutoNormal, init_to_feasible
        >>> from pyroccam import data, inference, models
        >>> wiggle = data.load("wiggle")
        >>> net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> model = models.BayesianNetwork(net, wiggle, prior=models.priors.Normal())
        >>> guide = AutoNormal(model)
        >>> svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
        >>> loss = svi.step(wiggle.x_train, wiggle.y_train)
        >>> inference.as_fit(model, guide, wiggle).posterior.layers["0"].mean.shape
        torch.Size([8, 1])
    """
    where = next(itertools.chain(model.parameters(), model.buffers())).device
    data = data.to(where, torch.float64 if precision(model) is torch.float64 else None)
    own: Any = guide
    network = random_network(model)
    if network is not None and not hasattr(guide, "traits"):
        with seeded(seed, where), torch.no_grad():
            own = _as_ours(network, own, *data.head(2))
    check_kinds(model, own, data)
    check_rows(model, data)
    settings = Settings(seed=seed, checkpoint="last")
    if own is guide and getattr(own, "samples", None) is None:
        cast(Guide, own).check(model, settings, 1)
    model.eval()
    own.eval()
    pair = posterior_of(model, own, data, seed)
    if model.likelihood.own_head:
        condition_head(model, data)
    return Fit(
        model=model,
        guide=own,
        data=data,
        settings=settings,
        history=[],
        best_epoch=0,
        val_nll=validation_nll(pair, data),
        seconds=0.0,
        structure=pair.structure(data, 0.95),
        weights=pair.shares,
    )


def _as_ours(model: BayesianNetwork, guide: Any, x: Tensor, y: Tensor) -> NetworkGuide:
    """The guide of ours that says what one of Pyro's does, called with rows, or draws of it."""
    if isinstance(guide, Mapping):
        return Samples(model, guide)
    if isinstance(guide, MCMC):
        return Samples(model, guide.get_samples(), guide.num_chains)
    if model.structure:
        raise PyroccamError("a guide of Pyro's over random structure", "guides.MeanField(model)")
    if getattr(guide, "prototype_trace", guide) is None:
        raise PyroccamError("a guide that was never called", "one that was trained")
    if isinstance(guide, AutoDelta):
        return _points(model, guide.median())
    latents = [layer.latents()[name] for layer, name in model.sites.values()]
    independent = isinstance(guide, AutoNormal | AutoDiagonalNormal)
    if independent and all(one.normal and one.levels is None for one in latents):
        return _normals(model, guide.quantiles([0.5, ONE_ABOVE], x, y))
    drawn = []
    for _ in range(DRAWS):
        nodes = poutine.trace(guide).get_trace(x, y).nodes
        drawn.append({site: nodes[site]["value"] for site in model.latents() if site in nodes})
    return Samples(model, {site: torch.stack([one[site] for one in drawn]) for site in drawn[0]})


def _normals(model: BayesianNetwork, quantiles: Mapping[str, Tensor]) -> NetworkGuide:
    """The mean field of given values by site at the median, and one deviation above."""
    made = MeanField(model)
    for site in model.sites:
        factor: Any = made.factor_of(site)
        middle, above = quantiles[site].log() if factor.positive else quantiles[site]
        if not (above > middle).all():
            given = f"a deviation at site {site!r} that is lost beside its mean"
            raise PyroccamError(given, "a guide in double precision", "model.double()")
        factor.loc.copy_(middle)
        factor.log_scale.copy_((above - middle).log())
    return made


def _points(model: BayesianNetwork, values: Mapping[str, Tensor]) -> NetworkGuide:
    """The points at given values by site."""
    made = Delta(model)
    for site in model.sites:
        factor: Any = made.factor_of(site)
        factor.value.copy_(factor.transform.inv(values[site]))
    return made
