"""A prior that is always at its best is one that is set in closed form before every step."""

import torch
from bayesian import bayesian
from pyroccam import guides
from pyroccam.models import priors
from pyroccam.models.priors import Latent, LayerPrior, WeightPrior
from pyroccam.models.priors.base import normal
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
