"""A prior that is always at its best is one that is set in closed form before every step."""

import pytest
import torch
from bayesian import QUICK, bayesian
from pyroccam import guides, inference
from pyroccam.models import priors
from pyroccam.models.priors.base import Latent, LayerPrior, WeightPrior, normal
from pyroccam.models.priors.normal import normal_optimum
from random_weights import small_net, table
from stepping import step_of, walk


class Held(WeightPrior):
    """Normals of each site with numbers that are set from without."""

    def for_layer(self, layer):
        return _HeldLayer(layer, weight_loc=0.0, weight_scale=1.0, bias_loc=0.0, bias_scale=1.0)


class _HeldLayer(LayerPrior):
    def latents(self):
        shapes = {"weight": self.layer.weight, "bias": self.layer.bias}
        own = {n: (self.get_buffer(f"{n}_loc"), self.get_buffer(f"{n}_scale")) for n in shapes}
        return {name: Latent(normal(shape, *own[name])) for name, shape in shapes.items()}


def double_pair(prior, net=None):
    torch.manual_seed(0)
    model, guide = bayesian(table(), prior, guides.MeanField, net or small_net())
    return model.double(), guide.double()


def batches(count, seed=0):
    x, y = table().split("train")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[i].double(), y[i]) for i in order.split(18)] * count


@torch.no_grad()
def greedy(model, guide):
    """Set the prior of every site to the mean and variance of what its posterior draws."""
    for site, (layer, name) in model.sites.items():
        q = guide.posterior(site).base_dist
        moment = (q.loc.square() + q.scale.square()).mean()
        own = layer.prior
        own.get_buffer(f"{name}_loc").copy_(q.loc.mean())
        own.get_buffer(f"{name}_scale").copy_((moment - q.loc.mean().square()).sqrt())


def test_training_is_that_of_a_prior_set_before_every_step():
    pair = double_pair(Held())
    before = {name: t.clone() for name, t in pair[1].state_dict().items()}
    step, losses = step_of(pair), []
    for x, y in batches(4):
        greedy(*pair)
        losses.append(step(x, y).clone())
    step.release()
    ours = double_pair(priors.SharedNormal())
    (found,) = walk([ours], batches(4))
    torch.testing.assert_close(found["losses"], torch.stack(losses))
    torch.testing.assert_close(ours[1].state_dict(), pair[1].state_dict())
    assert not any(torch.allclose(t, before[name]) for name, t in pair[1].state_dict().items())


@torch.no_grad()
def kl_to(q, loc, scale):
    """The KL of independent normals to one, by the formula for two."""
    variance = q.scale.double().square() + (q.loc.double() - loc).square()
    return float((scale / q.scale.double()).log().sum() + (variance / scale**2 - 1).sum() / 2)


def test_a_fit_ends_at_the_moments_of_its_posterior():
    rows = table()
    fit = inference.fit(*bayesian(rows, priors.SharedNormal()), rows, **{**QUICK, "epochs": 30})
    found = inference.elbo.evidence(fit.model, fit.guide, rows).kl_by_site
    assert list(found) == fit.guide.latents()
    for site, kl in found.items():
        q = fit.guide.posterior(site).base_dist
        draws = q.sample((200_000,)).double()
        moments = (float(draws.mean()), float(draws.std()))
        assert kl == pytest.approx(kl_to(q, *moments), rel=1e-2, abs=1e-2)
        loc, scale = (float(one.detach()) for one in normal_optimum(q.loc, q.scale))
        assert kl == pytest.approx(kl_to(q, loc, scale), rel=1e-5, abs=1e-5)
        for shift, factor in ((0.3, 1.0), (-0.3, 1.0), (0.0, 0.8), (0.0, 1.25)):
            assert kl_to(q, loc + shift * scale, factor * scale) > kl
