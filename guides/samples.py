"""A posterior that is known by draws of all sites together, such as those of NUTS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import PyroccamError
from ..models import BayesianNetwork, Model
from ..models.layers import BayesianLayer
from ..models.layers import power as powered
from ..models.priors import Latent
from .base import Guide, KLSettings, NetworkGuide
from .factors import Evidence, Factor


class SampledFactor(Factor):
    """Draws of one site, each as likely.

    Its evidence, by which weights or their scales are cut, is that of a normal, or of a log-normal,
    with the moments of the draws.

    Arguments:
        values: ``(S, *)``, in the shape of the site.
        latent: of the site.
        scales: it multiplies the weights of its layer.
    """

    no_density = "q is known by draws alone"

    def __init__(self, values: Tensor, latent: Latent, scales: bool) -> None:
        super().__init__()
        self.values = nn.Parameter(values.detach().clone(), requires_grad=False)
        self.kind, self.scales = latent.normal, scales

    def forward(self) -> Any:
        return dist.Empirical(self.values, self.values.new_zeros(len(self.values)))

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        values = powered(self.values, power)
        return values.mean(0), values.square().mean(0)

    def evidence(self) -> Evidence | None:
        positive = self.kind == "log-normal"
        if not positive and (self.scales or self.kind is None):
            found = "draws of scales of either sign, or of gates, do not say what is needed"
            raise PyroccamError(found, "a fit of guides.MeanField, or a prior without such scales")
        values = self.values.log() if positive else self.values
        normal = dist.Normal(values.mean(0), values.std(0, correction=0).clamp_min(1e-12))
        return Evidence("log-normal" if positive else "normal", normal)


class Samples(NetworkGuide):
    """Draws of all sites together, each as likely, as a posterior; there is nothing to train.

    Predictions, moments of the weights and exports take whole draws, so that what sites know of
    each other is kept. There is no density, so what weighs draws by it is refused.

    Arguments:
        model: a Bayesian network of known structure.
        values: ``(S, *)`` by site, as ``MCMC.get_samples()`` of Pyro gives them.
        chains: of equal length, one after the other, that these draws are of.

    Raises:
        PyroccamError: for sites that are missing, or draws of other shapes or numbers.

    Example:
        >>> from pyroccam import data, models
        >>> wiggle = data.load("wiggle")
        >>> model = models.BayesianNetwork(nn.Linear(1, 1), wiggle, prior=models.priors.Normal())
        >>> values = {"weight": torch.randn(50, 1, 1), "bias": torch.randn(50, 1)}
        >>> Samples(model, values).draw(3)["weight"].shape
        torch.Size([3, 1, 1])
    """

    def __init__(
        self, model: BayesianNetwork, values: Mapping[str, Tensor], chains: int = 1
    ) -> None:
        super().__init__(model, local=False, scales="example")
        self.chains = chains
        if self.edges:
            found = f"draws of random structure (site {self.edges[0]!r})"
            raise PyroccamError(found, "guides.MeanField(model)")
        missing = [site for site in model.latents() if site not in values]
        if missing:
            raise PyroccamError(f"no draws of site {missing[0]!r}", "draws of every latent site")
        self.given = {site: values[site] for site in model.latents()}
        if any(not len(one) or not one.isfinite().all() for one in self.given.values()):
            raise PyroccamError("no draws, or some that are not finite", "finite draws")
        self.build(model)
        self.given = {}

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        site = layer.site(name)
        values, count = self.given[site], len(next(iter(self.given.values())))
        event = latent.prior.event_shape
        if values.shape != (count, *event):
            found = f"draws of site {site!r} of shape {tuple(values.shape)}"
            raise PyroccamError(found, f"{(count, *event)}")
        like = layer.start["weight"]
        return SampledFactor(values.to(like), latent, name not in ("weight", "bias"))

    @property
    def samples(self) -> dict[str, Tensor]:
        return {site: self.factor_of(site).get_parameter("values") for site in self.sites}

    def by_chain(self, model: Model) -> list[Guide]:
        split = {site: one.unflatten(0, (self.chains, -1)) for site, one in self.samples.items()}
        parts = ({site: one[k] for site, one in split.items()} for k in range(self.chains))
        return [Samples(cast(BayesianNetwork, model), part) for part in parts]

    def draw(self, draws: int) -> dict[str, Tensor]:
        samples = self.samples
        first = next(iter(samples.values()))
        chosen = torch.randint(len(first), (draws,), device=first.device)
        return {site: values[chosen] for site, values in samples.items()}

    def distributions(self) -> Iterator[tuple[str, Any]]:
        """One draw of all, in the order of the model."""
        for site, values in self.draw(1).items():
            yield site, dist.Delta(values[0], event_dim=values.dim() - 1)

    def check(self, model: Model, settings: KLSettings, batches: int) -> None:
        raise PyroccamError("guides.Samples has nothing to train", "inference.as_fit")

    def rebuild(self, model: Model, names: Mapping[str, str] | None = None) -> NoReturn:
        raise PyroccamError("guides.Samples are draws for one network", "guides.MeanField(model)")
