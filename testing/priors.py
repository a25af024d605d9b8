"""What every prior over weights keeps to: a test of one derives from it and names what there is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import nn
from torch.distributions import kl_divergence

from .. import guides, models
from ..data import PyroccamError
from ..models.distributions import base
from ..models.priors import LayerShape, WeightPrior, parse_weights

LINEAR = LayerShape("fc", torch.Size([3, 4]), torch.Size([3]), 1, False, 4)
CONV = LayerShape("conv", torch.Size([5, 2, 3, 3]), None, 0, True, 18)
NO_GROUPS = LayerShape("grouped", torch.Size([6, 1, 3, 3]), torch.Size([6]), None, False, 9)
ONE = LayerShape("one", torch.Size([1, 1]), torch.Size([1]), 1, False, 1)


class PriorCase:
    """The contract of a prior over weights, as tests that pytest collects of a class that derives
    from it: shapes, densities that integrate to one (by quadrature), KLs with gradients at the
    start of a guide, numbers that move with the module.

    Attributes:
        variants: priors of one kind.
        words: texts, and the priors that they stand for.
        refused: options.
        grouped: they need groups; so do, in any case, those ``per="group"``.
        improper: latents without draws.
        at_their_best: latents whose location begins where the KL is least.
        closed: the KL of the usual posterior is known.

    Example:
        >>> from pyroccam import testing
        >>> from pyroccam.models import priors
        >>> class TestNormal(testing.PriorCase):
        ...     variants = (priors.Normal(1.0), priors.Normal(learn="layer"))
        >>> TestNormal().test_densities_are_normalised(priors.Normal(1.0))
    """

    variants: Sequence[WeightPrior] = ()
    words: Sequence[tuple[str, WeightPrior]] = ()
    refused: Sequence[Mapping[str, Any]] = ()
    grouped = False
    improper: Sequence[str] = ()
    at_their_best: Sequence[str] = ()
    closed = True

    def learns(self, prior: Any) -> list[str]:
        """Names of parameters."""
        return []

    def centre(self, prior: Any, latent: str) -> float:
        """About where the density lies, of the logarithm of what is positive."""
        return 0.0

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test for each of the variants."""
        if "prior" in metafunc.fixturenames:
            metafunc.parametrize("prior", self.variants, ids=str)

    @pytest.mark.parametrize("layer", [LINEAR, CONV], ids=lambda layer: layer.name)
    def test_latents_of_a_layer(self, prior: WeightPrior, layer: LayerShape) -> None:
        latents = prior.for_layer(layer)()
        assert ("bias" in latents) == (layer.bias is not None)
        assert latents["weight"].prior.event_shape == layer.weight
        assert latents["weight"].start[0] is None
        for name, latent in latents.items():
            assert latent.prior.batch_shape == ()
            shapes = [layer.bias] if name == "bias" else [(), (layer.groups,), layer.weight]
            assert latent.prior.event_shape in [torch.Size(shape or ()) for shape in shapes]

    def test_posteriors_at_the_start(self, prior: WeightPrior) -> None:
        """Their KLs have finite gradients, which are not zero."""
        if not self.closed:
            return
        net = nn.Sequential(nn.Conv2d(2, 5, 3, bias=False), nn.Flatten(), nn.Linear(5, 2))
        rows: Any = SimpleNamespace(input_shape=(2, 3, 3), outputs=2, N=10, task="regression")
        model = models.BayesianNetwork(net, rows, prior=prior)
        guide = guides.MeanField(model)
        for site, (layer, name) in model.sites.items():
            kl = kl_divergence(guide.posterior(site), layer.latents()[name].prior)
            assert kl.shape == ()
            numbers = dict(guide.factor_of(site).named_parameters())
            for which, gradient in zip(
                numbers, torch.autograd.grad(kl, [*numbers.values()]), strict=True
            ):
                assert gradient.isfinite().all()
                if which != "loc" or name not in self.at_their_best:
                    assert gradient.any() if which == "loc" else gradient.all(), (site, which)

    def test_numbers_move_with_the_module(self, prior: WeightPrior) -> None:
        module = prior.for_layer(LINEAR).double()
        for latent in module().values():
            fn = base(latent.prior)
            assert all(getattr(fn, name).dtype == torch.float64 for name in fn.arg_constraints)
            value = torch.full(latent.prior.event_shape, 0.3, dtype=torch.float64)
            assert latent.prior.log_prob(value).dtype == torch.float64
        assert [name for name, _ in module.named_parameters()] == self.learns(prior)
        assert list(module.state_dict()) == self.learns(prior)
        copy.deepcopy(module)()

    def test_layers_without_groups(self, prior: WeightPrior) -> None:
        if self.grouped or getattr(prior, "per", None) == "group":
            with pytest.raises(ValueError, match=r"'grouped'.*has no groups"):
                prior.for_layer(NO_GROUPS)
        else:
            shapes = {n: v.prior.event_shape for n, v in prior.for_layer(NO_GROUPS)().items()}
            assert shapes.pop("bias") == NO_GROUPS.bias
            assert {*shapes.values()} - {torch.Size()} == {NO_GROUPS.weight}

    def test_densities_are_normalised(self, prior: WeightPrior) -> None:
        """At one element, in the logarithm of what is positive and in the logit of a gate."""
        for name, latent in prior.for_layer(ONE).double()().items():
            if name in self.improper:
                with pytest.raises(NotImplementedError, match=r"guides\.MeanField"):
                    latent.prior.sample()
                continue
            fn, centre = base(latent.prior), self.centre(prior, name)

            def density(at: float, fn: Any = fn, support: str = str(latent.prior.support)) -> float:
                y = torch.tensor(at, dtype=torch.float64)
                if "Interval" in support:
                    x, slope = y.sigmoid(), y.sigmoid() * (-y).sigmoid()
                elif "Greater" in support:
                    x, slope = y.exp(), y.exp()
                else:  # a sinh reaches far into the tails
                    x, slope = y.sinh(), y.cosh()
                log_prob = fn.log_prob(x.expand(fn.batch_shape + fn.event_shape))
                return float((log_prob + slope.log()).exp().detach())

            cuts = pairwise([centre + a for a in (-34, -4, 0, 4, 34)])
            total = sum(quad(density, a, b, limit=200)[0] for a, b in cuts)
            assert abs(total - 1.0) < 1e-5, name

    def test_words(self) -> None:
        for text, prior in self.words:
            assert parse_weights(text) == prior
        kind: Any = type(self.variants[0])
        for text in filter(None, kind.words.split(", ")):
            assert type(parse_weights(text)) is kind

    def test_what_is_refused(self) -> None:
        kind: Any = type(self.variants[0])
        for options in self.refused:
            with pytest.raises(PyroccamError):
                kind(**options)
