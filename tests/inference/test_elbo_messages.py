"""What the estimator refuses."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from latents import MASK, N, X, double_precision
from pyro import poutine
from pyro.infer import autoguide
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.elbo.estimator import EnumMeanFieldELBO

float64 = pytest.fixture(autouse=True)(double_precision)
REFUSED = {}  # functions that make a pair, by name


def refused(function):
    REFUSED[function.__name__] = function
    return function


def sampled(name, fn, **infer):
    return pyro.sample(name, fn, infer=infer)


def observe(x, mean=0.0):
    with pyro.plate("data", N, subsample=x):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=x)


NORMAL, COIN = dist.Normal(0.0, 1.0), dist.Bernoulli(0.5)


@refused
def a_guide_with_another_site():
    return lambda x: (sampled("w", NORMAL), observe(x)), lambda x: sampled("v", NORMAL)


@refused
def a_guide_for_what_is_observed():
    return lambda x: observe(x), lambda x: sampled("y", dist.Normal(torch.zeros(N), 1).to_event(1))


@refused
def a_continuous_latent_without_a_guide():
    return lambda x: (sampled("k", COIN), sampled("w", NORMAL)), lambda x: sampled("k", COIN)


@refused
def a_discrete_latent_without_a_guide():
    return lambda x: (sampled("k", COIN), observe(x)), lambda x: None


@refused
def sequential_enumeration():
    return lambda x: sampled("k", COIN), lambda x: sampled("k", COIN, enumerate="sequential")


@refused
def several_samples_in_the_guide():
    asked = {"enumerate": "parallel", "num_samples": 5}
    return lambda x: sampled("k", COIN), lambda x: sampled("k", COIN, **asked)


@refused
def several_samples_in_the_model():
    return lambda x: sampled("k", COIN, enumerate="parallel", num_samples=5), lambda x: None


@refused
def a_markov_guide():
    def both(x):
        for t in pyro.markov(range(3)):
            sampled(f"k{t}", COIN)

    return both, both


@refused
def a_site_outside_that_depends_on_the_inside():
    def guide(x):
        with pyro.plate("edges", 2):
            return sampled("k", COIN)

    def model(x):
        k = guide(x)
        observe(x, k.sum(-1, keepdim=True) if k.dim() == 1 else k[..., :1])

    return model, guide


@refused
def a_sum_over_a_minibatch():
    return lambda x: observe(x[:4], sampled("k", COIN, enumerate="parallel")), lambda x: None


@refused
def a_sum_with_many_scales():
    def model(x):
        with pyro.plate("data", N), poutine.scale(scale=torch.ones(N)):
            k = sampled("k", COIN, enumerate="parallel")
            pyro.sample("y", dist.Normal(k, 1.0), obs=x)

    return model, lambda x: None


@refused
def a_sum_over_a_plate_with_structure_in_the_guide():
    def model(x):
        j = sampled("j", COIN, enumerate="parallel")
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(j * sampled("k", COIN), 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N):
            sampled("k", COIN)

    return model, guide


@refused
def a_guide_that_is_a_messenger():
    def model(x):
        sampled("w", NORMAL)

    return model, autoguide.AutoNormalMessenger(model)


@pytest.mark.parametrize(
    "prior",
    [dist.Exponential(1.0), dist.Gamma(2.0, 1.0), dist.Uniform(0.0, 1.0)],
    ids=["Exponential", "Gamma", "Uniform"],
)
@pytest.mark.parametrize("event", [0, 1])
def test_an_infinite_kl_is_refused(prior, event):
    """Whatever the draw is: the KL is looked at before the density of the draw."""
    q = dist.Normal(0.5, 1e-3).expand([2] * event).to_event(event)
    p = prior.expand([2] * event).to_event(event)
    pair = lambda: sampled("w", p), lambda: sampled("w", q)
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(PyroccamError, match="'w'"):
            EnumMeanFieldELBO().loss(*pair)
    with pyro.validation_enabled(False):  # nothing is looked at
        assert EnumMeanFieldELBO().loss(*pair) == math.inf


@refused
def a_draw_outside_the_support_where_no_kl_is_registered():
    far = dist.Normal(-5.0, 0.1)
    return lambda x: sampled("w", dist.HalfNormal(1.0)), lambda x: sampled("w", far)


@refused
def what_is_observed_may_be_drawn_again_by_pyro_itself():
    """A mask over missing observations makes a latent of them, which needs a guide."""

    def model(x):
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=x, obs_mask=MASK)

    return model, lambda x: None


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    model, guide = REFUSED[name]()
    with pytest.raises(PyroccamError):
        EnumMeanFieldELBO().loss(model, guide, X)


def test_a_dim_that_is_no_plate_is_refused_even_left_of_the_plates():
    def both(x):
        sampled("w", dist.Normal(torch.zeros(3, 1), 1.0))

    with pytest.raises(PyroccamError, match="dim -2"):
        EnumMeanFieldELBO(max_plate_nesting=1).loss(both, both, X)


@pytest.mark.parametrize("weight", [0.5, 0, torch.tensor(0.5)], ids=["float", "int", "tensor"])
def test_a_weight_of_a_kl_that_the_model_sums_out(weight):
    def model(x):
        observe(x, sampled("k", COIN, enumerate="parallel"))

    terms = EnumMeanFieldELBO().terms(model, lambda x: None, X)
    with pytest.raises(PyroccamError):
        terms.loss(weight)
    if isinstance(weight, float):
        with pytest.raises(PyroccamError):
            EnumMeanFieldELBO(kl_weight=weight).loss(model, lambda x: None, X)
    for one in (1, 1.0, torch.ones(())):
        assert torch.equal(terms.loss(one), -terms.log_likelihood)
    if isinstance(weight, torch.Tensor):
        with pyro.validation_enabled(False):  # a tensor is not looked at while a graph is traced
            terms.loss(weight)


def test_costs_in_plates_of_different_sizes_under_one_enumerated_latent():
    """What each value costs is summed over the plates; the bound is that of the sites."""

    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.25, 0.75])))
        for name, size in (("a", 3), ("b", 5)):
            with pyro.plate(name, size):
                pyro.sample(f"w_{name}", dist.Normal(z.to(torch.get_default_dtype()), 1.0))

    def guide():
        pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))
        for name, size in (("a", 3), ("b", 5)):
            with pyro.plate(name, size):
                pyro.sample(f"w_{name}", dist.Normal(torch.zeros(size), 1.0))

    terms = EnumMeanFieldELBO(max_plate_nesting=1).terms(model, guide)
    torch.testing.assert_close(terms.by_site["z"].flatten(), torch.tensor([0.0, 4.0]))
    prior = 0.5 * torch.tensor([0.5 / 0.25, 0.5 / 0.75]).log().sum()
    torch.testing.assert_close(terms.kl, prior + 2.0)
