"""The bound: by hand, beside Pyro's own, what it refuses and leaves as it was."""

import itertools
import logging
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, autoguide, config_enumerate
from pyroccam import guides, models
from pyroccam.data import PyroccamError
from pyroccam.inference.elbo import EnumMeanFieldELBO, bound
from pyroccam.inference.elbo.joined import JoinedKL
from pyroccam.models import LocalModule, priors
from random_weights import Rows
from torch import nn

N, B = 6, 4  # rows of the plate, and those of a minibatch
K = 3  # values of a structure
DRAWN = {"enumerate": None}  # a discrete site that is not enumerated
ENUM = {"enumerate": "parallel"}
MASK = torch.tensor([True, False, True, True, False, True])


@pytest.fixture(autouse=True)
def double_precision():
    """Float64 and an empty store of parameters."""
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float32)


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


X = numbers(N, seed=1)


def graded(value, parameters, zeros=False):
    """A value and its gradients, which must all exist, or are zero for what has none."""
    grads = torch.autograd.grad(value, list(parameters), retain_graph=True, materialize_grads=zeros)
    return value.detach(), grads


def assert_same(one, other):
    """Of two results of ``graded``, with gradients that are not all zero."""
    torch.testing.assert_close(one[0], other[0], rtol=1e-9, atol=1e-10)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    moving = sum(float(g.abs().max()) > 1e-3 for g in one[1])
    assert moving >= max(1, len(one[1]) - 1)


def trace_enum(nesting, **options):
    return TraceEnum_ELBO(max_plate_nesting=nesting, strict_enumeration_warning=False, **options)


class Fixed(dist.Normal):
    """A Normal whose noise is prescribed, so that an average over nodes is an exact integral."""

    noise = None

    def rsample(self, sample_shape=()):
        return self.loc + self.scale * next(type(self).noise)


def nodes(*values):
    """An endless supply of noise."""
    return itertools.cycle([torch.as_tensor(v) for v in values])


def sigma_points(dimension):
    """They integrate quadratics in standard normal noise exactly; one in each row."""
    points = math.sqrt(dimension) * torch.eye(dimension)
    return torch.cat([points, -points])


def averaged(evaluate, points, weights=None):
    """``(value, gradients)`` of ``evaluate()``, averaged over points.

    A point holds the noise of one draw after the other.
    """
    weights = [1 / len(points)] * len(points) if weights is None else weights
    value, grads = 0.0, itertools.repeat(0.0)
    for point, weight in zip(points, weights, strict=True):
        Fixed.noise = nodes(*point)
        found = evaluate()
        value = value + weight * found[0]
        grads = [a + weight * b for a, b in zip(grads, found[1], strict=False)]
    return value, grads


class Pair:
    """A model and a guide as functions of parameters: ``pair.name`` is a leaf with a gradient."""

    def __init__(self, **shapes):
        self.params = {
            name: numbers(*shape, seed=i + 7, scale=0.7).requires_grad_()
            for i, (name, shape) in enumerate(shapes.items())
        }

    def __getattr__(self, name):
        return self.params[name]

    def of(self, model, guide):
        self.model, self.guide = model, guide
        return self

    def graded(self, value):
        return graded(value, self.params.values(), zeros=True)

    def evaluate(self, elbo, x=X, seed=3):
        """The loss and its gradients, zero for what has none."""
        enumerates = isinstance(elbo, TraceEnum_ELBO)
        guide = config_enumerate(self.guide) if enumerates else self.guide
        torch.manual_seed(seed)
        return self.graded(elbo.differentiable_loss(self.model, guide, x))


class Linear(LocalModule):
    """k ~ p(k); w ~ N(0, t_k^2); y_n ~ N(c_k x_n w, noise^2) in a subsampled plate of N rows."""

    def __init__(self, dimension=2):
        super().__init__()
        self.register_buffer("log_prior", numbers(K, seed=21).log_softmax(0))
        self.register_buffer("spread", torch.tensor([0.5, 1.0, 2.0]))
        self.register_buffer("gain", torch.tensor([1.0, -0.5, 0.8]))
        self.noise, self.dimension = 0.7, dimension

    def forward(self, x, y):
        k = pyro.sample("k", dist.Categorical(logits=self.log_prior))
        spread = self.spread[k].unsqueeze(-1)
        w = pyro.sample("w", dist.Normal(torch.zeros(self.dimension), spread).to_event(1))
        with pyro.plate("data", N, subsample=x):
            mean = self.gain[k] * (x * w).sum(-1)
            pyro.sample("y", dist.Normal(mean, self.noise), obs=y)


class LinearGuide(LocalModule):
    def __init__(self, dimension=2):
        super().__init__()
        self.logits = nn.Parameter(numbers(K, seed=31))
        self.loc = nn.Parameter(numbers(K, dimension, seed=32))
        self.log_scale = nn.Parameter(numbers(K, dimension, seed=33, scale=0.5))

    def forward(self, x, y):
        k = pyro.sample("k", dist.Categorical(logits=self.logits))
        pyro.sample("w", Fixed(self.loc[k], self.log_scale.exp()[k]).to_event(1))


def linear_data(dimension=2):
    x = numbers(N, dimension, seed=41)
    return x, x.sum(-1) + 0.5 * numbers(N, seed=42)


def closed_form(model, guide, x, y):
    """E_q[log p(y | k, w)] and KL, value of k by value of k, by Gaussian integrals."""
    likelihood, kl = 0.0, 0.0
    q = torch.exp(guide.logits) / torch.exp(guide.logits).sum()
    for k in range(K):
        m, s, c, t = guide.loc[k], guide.log_scale[k].exp(), model.gain[k], model.spread[k]
        squares = (y - c * x @ m) ** 2 + c**2 * (x**2 @ s**2)
        normaliser = 0.5 * math.log(2 * math.pi * model.noise**2)
        rows = -normaliser - squares / (2 * model.noise**2)
        likelihood = likelihood + q[k] * rows.sum() * N / len(x)
        kl_w = ((s**2 + m**2) / (2 * t**2) - 0.5 + torch.log(t / s)).sum()
        kl = kl + q[k] * (q[k].log() - model.log_prior[k] + kl_w)
    return likelihood, kl


@pytest.mark.parametrize("rows", [N, B])
def test_union_against_brute_force(rows):
    model, guide = Linear(), LinearGuide()
    x, y = (t[:rows] for t in linear_data())
    b = bound(model, guide, max_plate_nesting=1)
    found = {}
    names = ("log_likelihood", "kl")
    for name, expected in zip(names, closed_form(model, guide, x, y), strict=True):
        found[name] = averaged(
            lambda name=name: graded(getattr(b.terms(x, y), name), guide.parameters()),
            sigma_points(2).unsqueeze(1),
        )
        assert_same(found[name], graded(expected, guide.parameters()))
    Fixed.noise = nodes(*sigma_points(2))
    terms = b.terms(x, y)
    torch.testing.assert_close(terms.kl, found["kl"][0], rtol=1e-12, atol=0.0)  # analytic: no noise
    assert abs(terms.log_likelihood - found["log_likelihood"][0]) > 1e-3


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_kl_weight_scales_the_kl_and_nothing_else(weight):
    model, guide = Linear(), LinearGuide()
    x, y = linear_data()
    Fixed.noise = nodes(numbers(2, seed=5))
    b = bound(model, guide)
    terms = b.terms(x, y)
    expected = graded(weight * terms.kl - terms.log_likelihood, guide.parameters())
    b.kl_weight.fill_(weight)
    elbo = EnumMeanFieldELBO(kl_weight=weight)
    for loss in (b(x, y), elbo.differentiable_loss(model, guide, x, y), elbo(model, guide)(x, y)):
        assert_same(graded(loss, guide.parameters()), expected)
    assert elbo.loss(model, guide, x, y) == pytest.approx(float(expected[0]))
    assert float(type(b)(model, guide, elbo).kl_weight) == weight


# -- score functions, averaged over all draws -----------------------------------------------------


class Told(dist.Bernoulli):
    """It gives what it is told: a number for the plate, or two numbers in it."""

    values = None

    def sample(self, sample_shape=()):
        return self.values[self.batch_shape]


def masks_in_a_plate_of_their_own():
    """y is in another plate than the masks, and depends on all of them."""
    p = Pair(q=(2,), qr=(2,))

    def model(x):
        with pyro.plate("edges", 2):
            m = pyro.sample("m", dist.Bernoulli(0.4))
        r = pyro.sample("r", dist.Bernoulli(0.2 + 0.5 * m[0]))
        with pyro.plate("data", N, subsample=x):
            pyro.sample("y", dist.Normal(m[0] - 2 * m[1] * r, 1.0), obs=x)

    def guide(x):
        with pyro.plate("edges", 2):
            m = pyro.sample("m", Told(logits=p.q), infer=DRAWN)
        pyro.sample("r", Told(logits=p.qr[0] + p.qr[1] * m[1]), infer=DRAWN)

    return p.of(model, guide)


def test_score_functions_reach_over_plates():
    """Over all draws the estimates have the gradient of the bound, where those of Pyro have not."""
    pair = masks_in_a_plate_of_their_own()

    def evaluate(elbo):
        total, grads, exact = 0.0, [0.0] * len(pair.params), 0.0
        for m0, m1, r in itertools.product([0.0, 1.0], repeat=3):
            draws = {"m": torch.tensor([m0, m1]), "r": torch.tensor(r)}
            Told.values = {t.shape: t for t in draws.values()}
            loss, found = pair.evaluate(elbo)
            log_q = poutine.trace(pair.guide).get_trace(X).log_prob_sum()
            weight = log_q.exp().detach()
            total = total + weight * loss
            grads = [g + weight * f for g, f in zip(grads, found, strict=True)]
            # By hand: q times (log q - log p(z, y)).
            log_p = poutine.trace(poutine.condition(pair.model, draws)).get_trace(X).log_prob_sum()
            exact = exact + log_q.exp() * (log_q - log_p)
        return (total, grads), pair.graded(exact)

    ours, exact = evaluate(EnumMeanFieldELBO(max_plate_nesting=1))
    assert_same(ours, exact)
    theirs, _ = evaluate(trace_enum(1))
    assert max(float((a - b).abs().max()) for a, b in zip(theirs[1], exact[1], strict=True)) > 1e-2


@pytest.mark.parametrize("which", ["both", "equal"])
def test_a_site_that_is_masked_or_scaled_otherwise_in_the_model(which):
    """``m_q s_q E log q - m_p s_p E log p``, with the KL for the part that they share."""
    p = Pair(loc=(N,), scale=(N,))
    ours, theirs = MASK if which == "both" else ~MASK.roll(1), ~MASK.roll(1)
    s_q, s_p = torch.tensor(0.4 if which == "both" else 1.5), torch.tensor(1.5)

    def model(x):
        with pyro.plate("data", N), poutine.mask(mask=theirs), poutine.scale(scale=s_p):
            pyro.sample("w", dist.Normal(0.5, 2.0))

    def guide(x):
        with pyro.plate("data", N), poutine.mask(mask=ours), poutine.scale(scale=s_q):
            pyro.sample("w", Fixed(p.loc, p.scale.exp()))

    p.of(model, guide)
    elbo = EnumMeanFieldELBO(max_plate_nesting=1)
    mean, grads = averaged(lambda: p.evaluate(elbo), sigma_points(1))
    scale = p.scale.exp()
    log_q = -0.5 * torch.log(2 * math.pi * math.e * scale**2)
    log_p = -0.5 * math.log(2 * math.pi * 4) - (scale**2 + (p.loc - 0.5) ** 2) / 8
    expected = (ours * s_q * log_q - theirs * s_p * log_p).sum()
    assert_same((mean, grads), p.graded(expected))
    Fixed.noise = nodes(torch.tensor(0.3))
    off = abs(p.evaluate(elbo)[0] - mean)
    assert (off < 1e-12) == (which == "equal")  # equal in value is as good as the same object


def test_a_prior_and_a_likelihood_that_disagree_by_thousands_of_nats():
    """Pyro multiplies exponentials, and gives the logarithm of zero."""
    p = Pair(prior=(3,), effect=(3,))
    steep = torch.tensor([0.0, -1500.0, -3000.0])

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=p.prior + steep), infer=ENUM)
        with pyro.plate("data", N):
            mean = (p.effect + torch.tensor([300.0, 30.0, 0.0]))[k]
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x)
        pyro.sample("z", dist.Normal(p.effect[k], 1.0), obs=x[0])

    p.of(model, lambda x: None)
    normal = torch.distributions.Normal
    rows = normal(p.effect + torch.tensor([300.0, 30.0, 0.0]), 1.0).log_prob(X[:, None]).sum(0)
    joint = (p.prior + steep).log_softmax(0) + rows + normal(p.effect, 1.0).log_prob(X[0])
    expected = p.graded(-torch.logsumexp(joint, 0))
    for nesting in (1, 2):
        assert_same(p.evaluate(EnumMeanFieldELBO(max_plate_nesting=nesting)), expected)
    theirs = p.evaluate(TraceEnum_ELBO(max_plate_nesting=1))[0]
    assert not torch.isfinite(theirs) or abs(theirs - expected[0]) > 1.0


def test_a_markov_chain_with_impossible_steps():
    """Against the sum over all paths, in probabilities; no NaN in the gradient."""
    p = Pair(first=(3,), effect=(3,))
    step = torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.7, 0.0], [0.2, 0.8, 0.0]])  # never to 2
    start = torch.tensor([0.0, 0.0, -math.inf])

    def model(x):
        z = None
        for t in pyro.markov(range(4)):
            logits = p.first + start if z is None else step.log()[z]
            z = pyro.sample(f"z{t}", dist.Categorical(logits=logits), infer=ENUM)
            pyro.sample(f"y{t}", dist.Normal(p.effect[z], 1.0), obs=x[t])

    p.of(model, lambda x: None)
    first = (p.first + start).softmax(0)
    density = torch.distributions.Normal(p.effect, 1.0).log_prob(X[:4, None]).exp()
    total = 0.0
    for path in itertools.product(range(2), repeat=4):
        weight = first[path[0]]
        for a, b in itertools.pairwise(path):
            weight = weight * step[a, b]
        for t, state in enumerate(path):
            weight = weight * density[t, state]
        total = total + weight
    assert_same(p.evaluate(EnumMeanFieldELBO()), p.graded(-torch.log(total)))


def test_scales_of_a_sum_may_be_tensors():
    p = Pair(prior=(3,), effect=(3,))

    def model(x):
        with pyro.plate("data", N):
            k = pyro.sample("k", dist.Categorical(logits=p.prior), infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    plain = p.of(model, lambda x: None).evaluate(EnumMeanFieldELBO())[0]
    for scale in (2.5, torch.tensor(2.5)):
        found = p.of(poutine.scale(model, scale), lambda x: None).evaluate(EnumMeanFieldELBO())[0]
        assert float(found) == pytest.approx(2.5 * float(plain))


def categorical(name, logits, mask=None, **infer):
    fn = dist.Categorical(logits=logits)
    return pyro.sample(name, fn if mask is None else fn.mask(mask), **infer)


def observe(x, mean=0.0, **more):
    """In the plate of the data."""
    with pyro.plate("data", N, subsample=x):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=x, **more)


# -- beside Pyro's own ---------------------------------------------------------------------------


def masked_distributions_are_still_weights():
    p = Pair(logits=(N, K), effect=(K,))

    def model(x):
        with pyro.plate("data", N, subsample=x):
            k = categorical("k", torch.zeros(K), MASK[: len(x)])
            pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N, subsample=x):
            categorical("k", p.logits[: len(x)], MASK[: len(x)])

    return p.of(model, guide)


def structure_nested_in_plates():
    """c -> z in the outer plate -> k in the inner, in model and guide; y depends on k alone."""
    p = Pair(c=(2,), z=(2, 3), k=(3, 2), qc=(2,), qz=(2, 3), qk=(3, 2), effect=(2,))

    def both(c, z, k, x, observe):
        c = categorical("c", c)
        with pyro.plate("outer", 3, dim=-2):
            z = categorical("z", z[c])
            with pyro.plate("data", N, subsample=x, dim=-1):
                k = categorical("k", k[z])
                if observe:
                    pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x.expand(3, -1))

    return p.of(
        lambda x: both(p.c, p.z, p.k, x, observe=True),
        lambda x: both(p.qc, p.qz, p.qk, x, observe=False),
    )


def weights_under_structure():
    """Draws that vary along the enumeration, from a family without a KL to the prior."""
    p = Pair(logits=(K,), loc=(K,), scale=(K,), prior=(K,))

    def model(x):
        k = categorical("k", p.prior)
        observe(x, pyro.sample("w", dist.Cauchy(p.prior[k], 2.0)) * (k + 1))

    def guide(x):
        k = categorical("k", p.logits)
        pyro.sample("w", dist.Normal(p.loc[k], p.scale[k].exp()))

    return p.of(model, guide)


def three_sites_in_another_order():
    """p(u) p(v) p(w | u) against q(v) q(w) q(u | w): w has a registered KL, which is not valid."""
    p = Pair(locs=(3,), scales=(3,), slope=())

    def model(x):
        u = pyro.sample("u", dist.Cauchy(0.0, 4.0))
        v = pyro.sample("v", dist.Cauchy(0.0, 5.0))
        observe(x, u - v + pyro.sample("w", dist.Normal(1.5 * u, 0.8)))

    def guide(x):
        pyro.sample("v", dist.Normal(p.locs[1], p.scales[1].exp()))
        w = pyro.sample("w", dist.Normal(p.locs[2], p.scales[2].exp()))
        pyro.sample("u", dist.Normal(p.locs[0] + p.slope * w, p.scales[0].exp()))

    return p.of(model, guide)


def structure_here_and_summed_out_there():
    """k by the guide; j, and m in the plate, by the model; the prior of w depends on j."""
    p = Pair(k=(K,), j=(K, 2), m=(2, 2), loc=(K,), effect=(2,))

    def model(x):
        k = categorical("k", torch.zeros(K))
        j = categorical("j", p.j[k], infer=ENUM)
        w = pyro.sample("w", dist.Normal(p.effect[j], 1.0))
        with pyro.plate("data", len(x)):
            m = categorical("m", p.m[j], infer=ENUM)
            pyro.sample("y", dist.Normal(p.effect[m] * w, 1.0), obs=x)

    def guide(x):
        k = categorical("k", p.k)
        pyro.sample("w", dist.Normal(p.loc[k], 0.6))

    return p.of(model, guide)


def factors_and_deterministic_sites():
    p = Pair(logits=(K,), effect=(K,))

    def model(x):
        k = categorical("k", torch.zeros(K))
        pyro.deterministic("twice", 2.0 * k)
        observe(x, p.effect[k])
        pyro.factor("penalty", -(p.effect[k] ** 2))

    def guide(x):
        categorical("k", p.logits)
        pyro.factor("entropy", p.logits.sum(), has_rsample=True)

    return p.of(model, guide)


PAIRS = [
    masked_distributions_are_still_weights,
    structure_nested_in_plates,
    weights_under_structure,
    three_sites_in_another_order,
    structure_here_and_summed_out_there,
    factors_and_deterministic_sites,
]


@pytest.mark.parametrize("rows", [N, B])
@pytest.mark.parametrize("make", PAIRS)
def test_the_bound_is_that_of_pyro(make, rows):
    pair = make()
    nesting = 2 if make is structure_nested_in_plates else 1
    expected = pair.evaluate(trace_enum(nesting), X[:rows])
    assert_same(pair.evaluate(EnumMeanFieldELBO(max_plate_nesting=nesting), X[:rows]), expected)
    for validate in (True, False):
        with pyro.validation_enabled(validate):  # finds out the nesting
            assert_same(pair.evaluate(EnumMeanFieldELBO(), X[:rows]), expected)


def test_particles_are_averaged():
    pair = weights_under_structure()
    ours = EnumMeanFieldELBO(num_particles=3, max_plate_nesting=1)
    assert_same(pair.evaluate(ours), pair.evaluate(trace_enum(1, num_particles=3)))


class Hierarchy(LocalModule):
    def forward(self, x):
        g = pyro.sample("g", dist.Gamma(2.0, 3.0))
        d = pyro.sample("d", dist.Dirichlet(torch.ones(3)))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), g).to_event(1))
        with pyro.plate("data", N, subsample=x):
            b = pyro.sample("b", dist.Beta(2.0, 2.0))
            pyro.sample("y", dist.Normal(w.sum() * d[0] + b, g), obs=x)


@pytest.mark.parametrize("name", ["AutoMultivariateNormal", "AutoDelta"])
def test_autoguides_give_what_trace_elbo_gives(name):
    """With the Jacobian of the support's transform, which Pyro's KL of a Delta leaves out."""
    model = Hierarchy()
    guide = getattr(autoguide, name)(model)  # made in Pyro's default mode of parameters
    torch.manual_seed(0)
    guide(X)

    def seeded(loss, *args):
        torch.manual_seed(1)
        return loss(*args)

    def evaluate(loss, *args):
        return graded(seeded(loss, *args), guide.parameters())

    pair = (model, guide, X)
    expected = evaluate(Trace_ELBO().differentiable_loss, *pair)
    assert_same(evaluate(EnumMeanFieldELBO().differentiable_loss, *pair), expected)
    assert_same(evaluate(bound(model, guide), X), expected)
    dropped = seeded(TraceMeanField_ELBO().loss, *pair)
    assert (abs(dropped - float(expected[0])) > 1e-3) == (name != "AutoDelta")


# -- what is refused ------------------------------------------------------------------------------

NORMAL, COIN = dist.Normal(0.0, 1.0), dist.Bernoulli(0.5)


def sampled(name, fn, **infer):
    return lambda x=None: pyro.sample(name, fn, infer=infer)


def both(*calls):
    return lambda x: [call(x) for call in calls]


def nothing(x):
    return None


k, w = sampled("k", COIN), sampled("w", NORMAL)
summed = sampled("k", COIN, enumerate="parallel")


def in_a_plate(inner, name="data", size=N):
    def call(x):
        with pyro.plate(name, size):
            return inner(x)

    return call


def markov(x):
    for t in pyro.markov(range(3)):
        sampled(f"k{t}", COIN)()


def outside_of_its_plate(x):
    drawn = in_a_plate(k, "edges", 2)(x)
    observe(x, drawn.sum(-1, keepdim=True) if drawn.dim() == 1 else drawn[..., :1])


def with_many_scales(x):
    with pyro.plate("data", N), poutine.scale(scale=torch.ones(N)):
        pyro.sample("y", dist.Normal(summed(), 1.0), obs=x)


def over_a_plate(x):
    j = sampled("j", COIN, enumerate="parallel")()
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(j * k(), 1.0), obs=x)


REFUSED = {  # models and guides
    "another site": (both(w, observe), sampled("v", NORMAL)),
    "what is observed": (observe, sampled("y", dist.Normal(torch.zeros(N), 1.0).to_event(1))),
    "no guide of a weight": (both(k, w), k),
    "no guide of a structure": (both(k, observe), nothing),
    "sequential": (k, sampled("k", COIN, enumerate="sequential")),
    "samples in the guide": (k, sampled("k", COIN, enumerate="parallel", num_samples=5)),
    "samples in the model": (sampled("k", COIN, enumerate="parallel", num_samples=5), nothing),
    "a markov guide": (markov, markov),
    "the inside, outside": (outside_of_its_plate, in_a_plate(k, "edges", 2)),
    "a sum over a minibatch": (lambda x: observe(x[:4], summed()), nothing),
    "a sum with many scales": (with_many_scales, nothing),
    "a sum over a plate": (over_a_plate, in_a_plate(k)),
    "a messenger": (w, autoguide.AutoNormalMessenger(w)),
    "a draw outside the support": (
        sampled("w", dist.HalfNormal(1.0)), sampled("w", dist.Normal(-5.0, 0.1))
    ),
    "an infinite KL": (sampled("w", dist.Gamma(2.0, 1.0)), sampled("w", dist.Normal(0.5, 1e-3))),
    "missing observations": (lambda x: observe(x, obs_mask=MASK), nothing),
    "no plate": (sampled("w", dist.Normal(torch.zeros(3, 1), 1.0)),) * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    nesting = 1 if name == "no plate" else math.inf
    with pytest.raises(PyroccamError):
        EnumMeanFieldELBO(max_plate_nesting=nesting).loss(*REFUSED[name], X)


def test_a_weight_of_a_kl_that_the_model_sums_out():
    def model(x):
        observe(x, summed())

    terms = EnumMeanFieldELBO().terms(model, nothing, X)
    for weight in (0.5, 0, torch.tensor(0.5)):
        with pytest.raises(PyroccamError):
            terms.loss(weight)
    with pytest.raises(PyroccamError):
        EnumMeanFieldELBO(kl_weight=0.5).loss(model, nothing, X)
    with pyro.validation_enabled(False):  # a tensor is not looked at while a graph is traced
        terms.loss(torch.tensor(0.5))
    for one in (1, torch.ones(())):
        assert torch.equal(terms.loss(one), -terms.log_likelihood)


def test_finding_the_nesting_leaves_nothing_behind(caplog):
    """The first call costs no random number, moves no buffer twice and logs nothing."""
    x, found = numbers(N, 5), []
    with caplog.at_level(logging.DEBUG, "pyro"):
        for nesting in (math.inf, 1):
            torch.manual_seed(0)
            net = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
            model = models.BayesianNetwork(net, DATA, prior=priors.Normal())
            b = bound(model, guides.MeanField(model), max_plate_nesting=nesting)
            loss = b(x, torch.zeros(N, dtype=torch.long))
            found.append((loss, model.part("net")[0].running_mean, torch.randn(())))
            assert b.elbo.max_plate_nesting == 1
    assert all(map(torch.equal, *found))
    assert not caplog.records


PRIORS = {
    "normal": lambda: priors.Normal(0.7),
    "gnj": priors.GroupNormalJeffreys,
    "molchanov": lambda: priors.GroupNormalJeffreys(kl="molchanov"),
    "ghs": priors.GroupHorseshoe,
    "log-uniform": priors.LogUniform,
}


DATA = Rows(5, outputs=3, N=100, task="classification")


@pytest.fixture
def taken(monkeypatch):
    """Names of sites that were joined."""
    names = []
    take = JoinedKL.take

    def seen(self, ours, theirs):
        found = take(self, ours, theirs)
        names.extend([ours["name"]] if found else [])
        return found

    monkeypatch.setattr(JoinedKL, "take", seen)
    return names


def loss(model, guide, joins):
    evaluate = bound(model, guide, max_plate_nesting=1)
    evaluate.elbo.joins = joins
    torch.manual_seed(1)
    with pyro.validation_enabled(False):
        terms = evaluate.terms(torch.ones(4, 5).double(), torch.zeros(4, dtype=torch.long))
    parameters = [p for p in guide.parameters() if p.requires_grad]
    return terms, torch.autograd.grad(terms.kl, parameters, allow_unused=True)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("name", PRIORS)
def test_the_kl_and_its_slopes_are_the_same(name, taken):
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    model = models.BayesianNetwork(net, DATA, prior=PRIORS[name]()).double()
    guide = guides.MeanField(model).double()
    apart, apart_slopes = loss(model, guide, joins=False)
    assert taken == []
    together, slopes = loss(model, guide, joins=True)
    assert sorted(taken) == sorted(guide.latents())
    torch.testing.assert_close(together.kl, apart.kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes, apart_slopes, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("clean")
def test_a_random_depth_joins_its_sites(taken):
    """The KL, its slopes, and what each depth costs are those of sites one by one."""
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    stack = models.DepthStack(nn.Linear(5, 4), blocks, nn.Linear(4, 3)).double()
    model = models.BayesianStack(stack, DATA, prior=priors.GroupNormalJeffreys()).double()
    guide = guides.MeanField(model).double()
    with torch.no_grad():
        guide.edge("depth").logits.copy_(torch.tensor([0.5, -1.0, 0.2, 0.1]))
    apart, apart_slopes = loss(model, guide, joins=False)
    together, slopes = loss(model, guide, joins=True)
    assert sorted(taken) == sorted(model.sites)
    torch.testing.assert_close(together.kl, apart.kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(slopes, apart_slopes, rtol=1e-10, atol=1e-10)
    # What every depth pays is in the one and not in the other: differences between depths count.
    ours, theirs = (terms.by_site["depth"].flatten().diff() for terms in (together, apart))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
