"""What every prior over weights keeps to: a test of one inherits it and names what there is."""

import copy
from itertools import pairwise

import pytest
import torch
from pyroccam import guides, models
from pyroccam.data.errors import PyroccamError
from pyroccam.models import priors
from pyroccam.models.distributions.wrapped import base
from pyroccam.models.priors import LayerShape
from random_weights import Rows
from scipy.integrate import quad
from torch import nn
from torch.distributions import kl_divergence

LINEAR = LayerShape("fc", torch.Size([3, 4]), torch.Size([3]), 1, False, 4)
CONV = LayerShape("conv", torch.Size([5, 2, 3, 3]), None, 0, True, 18)
NO_GROUPS = LayerShape("grouped", torch.Size([6, 1, 3, 3]), torch.Size([6]), None, False, 9)
ONE = LayerShape("one", torch.Size([1, 1]), torch.Size([1]), 1, False, 1)


class PriorCase:
    """One kind of prior.

    Attributes:
        variants: priors of one kind.
        words: texts, and the priors that they stand for.
        refused: options.
        grouped: they need groups; so do, in any case, those ``per="group"``.
        improper: latents without draws.
        at_their_best: latents whose location begins where the KL is least.
        closed: the KL of the usual posterior is known.
    """

    variants = ()
    words = ()
    refused = ()
    grouped = False
    improper = ()
    at_their_best = ()
    closed = True

    def learns(self, prior):
        """Names of parameters."""
        return []

    def centre(self, prior, latent):
        """About where the density lies, of the logarithm of what is positive."""
        return 0.0

    def pytest_generate_tests(self, metafunc):
        if "prior" in metafunc.fixturenames:
            metafunc.parametrize("prior", self.variants, ids=str)

    @pytest.mark.parametrize("layer", [LINEAR, CONV], ids=lambda layer: layer.name)
    def test_latents_of_a_layer(self, prior, layer):
        latents = prior.for_layer(layer)()
        assert ("bias" in latents) == (layer.bias is not None)
        assert latents["weight"].prior.event_shape == layer.weight
        assert latents["weight"].start[0] is None
        for name, latent in latents.items():
            assert latent.prior.batch_shape == ()
            shapes = [layer.bias] if name == "bias" else [(), (layer.groups,), layer.weight]
            assert tuple(latent.prior.event_shape) in map(tuple, shapes)

    def test_posteriors_at_the_start(self, prior):
        """Their KLs have finite gradients, which are not zero."""
        if not self.closed:
            return
        net = nn.Sequential(nn.Conv2d(2, 5, 3, bias=False), nn.Flatten(), nn.Linear(5, 2))
        model = models.BayesianNetwork(net, Rows(2, 3, 3), prior=prior)
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

    def test_numbers_move_with_the_module(self, prior):
        module = prior.for_layer(LINEAR).double()
        for latent in module().values():
            fn = base(latent.prior)
            assert all(getattr(fn, name).dtype == torch.float64 for name in fn.arg_constraints)
            value = torch.full(latent.prior.event_shape, 0.3, dtype=torch.float64)
            assert latent.prior.log_prob(value).dtype == torch.float64
        assert [name for name, _ in module.named_parameters()] == self.learns(prior)
        assert list(module.state_dict()) == self.learns(prior)
        copy.deepcopy(module)()

    def test_layers_without_groups(self, prior):
        if self.grouped or getattr(prior, "per", None) == "group":
            with pytest.raises(ValueError, match=r"'grouped'.*has no groups"):
                prior.for_layer(NO_GROUPS)
        else:
            shapes = {n: v.prior.event_shape for n, v in prior.for_layer(NO_GROUPS)().items()}
            assert shapes.pop("bias") == NO_GROUPS.bias
            assert {*shapes.values()} - {torch.Size()} == {NO_GROUPS.weight}

    def test_densities_are_normalised(self, prior):
        """At one element, in the logarithm of what is positive and in the logit of a gate."""
        for name, latent in prior.for_layer(ONE).double()().items():
            if name in self.improper:
                with pytest.raises(NotImplementedError, match=r"guides\.MeanField"):
                    latent.prior.sample()
                continue
            fn, centre = base(latent.prior), self.centre(prior, name)

            def density(y, fn=fn, support=str(latent.prior.support)):
                y = torch.tensor(y, dtype=torch.float64)
                if "Interval" in support:
                    x, slope = y.sigmoid(), y.sigmoid() * (-y).sigmoid()
                elif "Greater" in support:
                    x, slope = y.exp(), y.exp()
                else:  # a sinh reaches far into the tails
                    x, slope = y.sinh(), y.cosh()
                return float(
                    (fn.log_prob(x.expand(fn.batch_shape + fn.event_shape)) + slope.log())
                    .exp()
                    .detach()
                )

            cuts = pairwise([centre + a for a in (-34, -4, 0, 4, 34)])
            total = sum(quad(density, a, b, limit=200)[0] for a, b in cuts)
            assert total == pytest.approx(1.0, abs=1e-5), name

    def test_words(self):
        for text, prior in self.words:
            assert priors.parse_weights(text) == prior
        (kind,) = {*map(type, self.variants)}
        for text in filter(None, kind.words.split(", ")):
            assert type(priors.parse_weights(text)) is kind

    def test_what_is_refused(self):
        (kind,) = {*map(type, self.variants)}
        for options in self.refused:
            with pytest.raises(PyroccamError):
                kind(**options)
