"""Where the estimator is exact and where it draws: site by site, by hand; and what it refuses."""

import itertools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, autoguide, config_enumerate
from pyroccam.inference.elbo import EnumMeanFieldELBO

N = 6
DRAWN = {"enumerate": None}  # a discrete site that is not enumerated
ENUM = {"enumerate": "parallel"}


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float32)


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


X = numbers(N, seed=1)
MASK = torch.tensor([True, False, True, True, False, True])


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

    def evaluate(self, elbo, x=X, seed=3):
        """Loss and gradients, zero for what has none."""
        enumerates = isinstance(elbo, TraceEnum_ELBO)
        guide = config_enumerate(self.guide) if enumerates else self.guide
        torch.manual_seed(seed)
        loss = elbo.differentiable_loss(self.model, guide, x)
        values = list(self.params.values())
        grads = torch.autograd.grad(loss, values, allow_unused=True)
        return loss.detach(), [
            torch.zeros_like(v) if g is None else g for v, g in zip(values, grads, strict=True)
        ]


class Fixed(dist.Normal):
    """A Normal whose noise is prescribed, so that an average over nodes is an exact integral."""

    noise = None

    def rsample(self, sample_shape=()):
        return self.loc + self.scale * next(type(self).noise)


def nodes(*values):
    """An endless supply of noise."""
    return itertools.cycle([torch.as_tensor(v) for v in values])


def sigma_points(dimension):
    """They integrate quadratics in standard normal noise exactly."""
    points = math.sqrt(dimension) * torch.eye(dimension)
    return [*points, *-points]


def trace_enum(nesting, **options):
    return TraceEnum_ELBO(max_plate_nesting=nesting, strict_enumeration_warning=False, **options)


def assert_same(one, other):
    torch.testing.assert_close(one[0], other[0], rtol=1e-9, atol=1e-10)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert any(float(g.abs().max()) > 1e-3 for g in one[1])


# -- where only the log-ratio exists --------------------------------------------------------------


def positive_scale():
    p = Pair(mu=(), sigma=())

    def model(x):
        with pyro.plate("rows", x.shape[0]):
            s = pyro.sample("s", dist.Gamma(2.5, 1.5))
            pyro.sample("y", dist.Normal(0.0, s.sqrt()), obs=x)

    def guide(x):
        with pyro.plate("rows", x.shape[0]):
            pyro.sample("s", dist.LogNormal(p.mu, 0.5 * p.sigma.exp()))

    return p.of(model, guide)


def test_log_ratio_against_quadrature():
    """KL(LogNormal || Gamma) and its gradients by the formula, ours by Gauss-Hermite nodes."""
    pair = positive_scale()
    count = 30
    off = torch.arange(1.0, count).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    weights = vectors[0] ** 2  # Golub and Welsch: nodes of the standard normal

    def at_node(x):
        with pyro.plate("rows", x.shape[0]):
            exp = dist.transforms.ExpTransform()
            q = dist.TransformedDistribution(Fixed(pair.mu, 0.5 * pair.sigma.exp()), [exp])
            pyro.sample("s", q)

    total, grads = 0.0, [0.0, 0.0]
    for node, weight in zip(values, weights, strict=True):
        Fixed.noise = nodes(node)
        kl = EnumMeanFieldELBO(max_plate_nesting=1).terms(pair.model, at_node, X[:1]).kl
        found = torch.autograd.grad(kl, list(pair.params.values()))
        total = total + weight * kl.detach()
        grads = [g + weight * f for g, f in zip(grads, found, strict=True)]
    mu, sigma = pair.mu, 0.5 * pair.sigma.exp()
    a, b = torch.tensor(2.5), torch.tensor(1.5)
    entropy = mu + 0.5 * torch.log(2 * math.pi * math.e * sigma**2)
    mean = torch.exp(mu + sigma**2 / 2)
    expected = -entropy - (a * b.log() - torch.lgamma(a) + (a - 1) * mu - b * mean)
    by_hand = torch.autograd.grad(expected, list(pair.params.values()))
    assert_same((total, grads), (expected.detach(), by_hand))


def test_log_ratio_against_trace_elbo_in_expectation():
    """Means over 40 x 200 draws differ by less than 5 standard errors (false alarm < 1e-5)."""
    pair = positive_scale()
    rows = X[0].expand(200)

    def mean_and_error(elbo, seed):
        found = [pair.evaluate(elbo, rows, seed=seed + i) for i in range(40)]
        table = torch.stack([torch.stack([loss, *grads]) for loss, grads in found]) / 200
        return table.mean(0), table.var(0) / 40

    ours, our_var = mean_and_error(EnumMeanFieldELBO(max_plate_nesting=1), 100)
    theirs, their_var = mean_and_error(Trace_ELBO(), 200)
    assert ((ours - theirs).abs() < 5 * (our_var + their_var).sqrt()).all()
    assert (our_var.sqrt() < 0.1).all()


# -- the order of sites ---------------------------------------------------------------------------


class FixedToo(Fixed):
    """With noise of its own."""


def reversed_order(a=1.3, s=0.6):
    """p(w) p(z | w) against q(z) q(w | z)."""
    p = Pair(mz=(), sz=(), slope=(), mw=(), sw=())

    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Normal(a * w, s))
        pyro.sample("y", dist.Normal(z + w, 1.0), obs=x[0])

    def guide(x):
        z = pyro.sample("z", Fixed(p.mz, p.sz.exp()))
        pyro.sample("w", FixedToo(p.slope * z + p.mw, p.sw.exp()))

    return p.of(model, guide)


def test_an_order_that_makes_the_analytic_kl_wrong():
    """Ours has the exact expectation; the KL of z given a w that depends on it has another."""
    a, s = 1.3, 0.6
    p = reversed_order(a, s)
    y = X[0]

    def average(elbo):
        found = []
        for e, f in sigma_points(2):
            Fixed.noise, FixedToo.noise = nodes(e), nodes(f)
            found.append(p.evaluate(elbo))
        grads = [sum(g) / 4 for g in zip(*[g for _, g in found], strict=True)]
        return sum(loss for loss, _ in found) / 4, grads

    sz, sw = p.sz.exp(), p.sw.exp()
    ez, ew = p.mz, p.slope * p.mz + p.mw
    vz, vw, both = sz**2, p.slope**2 * sz**2 + sw**2, p.slope * sz**2
    normal = 0.5 * math.log(2 * math.pi)
    log_q = -2 * normal - sz.log() - sw.log() - 1.0
    log_w = -normal - 0.5 * (vw + ew**2)
    square = vz + a**2 * vw - 2 * a * both + (ez - a * ew) ** 2
    log_z = -normal - math.log(s) - square / (2 * s**2)
    log_y = -normal - 0.5 * (vz + vw + 2 * both + (y - ez - ew) ** 2)
    expected = log_q - log_w - log_z - log_y
    by_hand = torch.autograd.grad(expected, list(p.params.values()))
    assert_same(average(EnumMeanFieldELBO(max_plate_nesting=0)), (expected.detach(), by_hand))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro only warns of the order
        naive = average(TraceMeanField_ELBO())[0]
    assert abs(naive - expected) > 0.1


def test_only_the_site_that_needs_it_gives_up_the_analytic_kl():
    """w follows nothing in the model: KL(q(w | z) || p(w)) stays analytic."""
    p = reversed_order()
    e, f = torch.tensor(0.4), torch.tensor(-1.1)
    Fixed.noise, FixedToo.noise = nodes(e), nodes(f)
    kl = EnumMeanFieldELBO(max_plate_nesting=0).terms(p.model, p.guide, X).kl
    normal = torch.distributions.Normal
    z = p.mz + p.sz.exp() * e
    q = normal(p.slope * z + p.mw, p.sw.exp())
    w = q.loc + q.scale * f
    of_w = torch.log(1 / q.scale) + (q.scale**2 + q.loc**2) / 2 - 0.5
    of_z = normal(p.mz, p.sz.exp()).log_prob(z) - normal(1.3 * w, 0.6).log_prob(z)
    torch.testing.assert_close(kl, of_w + of_z)


# -- score functions, averaged over all draws -----------------------------------------------------


def drawn():
    """A Bernoulli that gives what it is told, and is not enumerated."""

    class Told(dist.Bernoulli):
        value = None

        def sample(self, sample_shape=()):
            return type(self).value.expand(self.batch_shape)

    return Told


def masks_in_a_plate_of_their_own(first, second):
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
            m = pyro.sample("m", first(logits=p.q), infer=DRAWN)
        pyro.sample("r", second(logits=p.qr[0] + p.qr[1] * m[1]), infer=DRAWN)

    return p.of(model, guide)


def draws_under_a_sum(first, second):
    """The model sums j out over a plate in which the guide draws m."""
    p = Pair(q=(2,), qr=(2,))

    def model(x):
        r = pyro.sample("r", dist.Bernoulli(0.3))
        j = pyro.sample("j", dist.Bernoulli(0.2), infer=ENUM)
        with pyro.plate("data", 2):
            m = pyro.sample("m", dist.Bernoulli(0.4))
            pyro.sample("y", dist.Normal(m * (2 * j - 1) + r, 1.0), obs=x[:2])

    def guide(x):
        r = pyro.sample("r", second(logits=p.qr[0]), infer=DRAWN)
        with pyro.plate("data", 2):
            pyro.sample("m", first(logits=p.q + p.qr[1] * r), infer=DRAWN)

    return p.of(model, guide)


@pytest.mark.parametrize("make", [masks_in_a_plate_of_their_own, draws_under_a_sum])
def test_score_functions_reach_over_plates(make):
    """Over all draws the estimates have the gradient of the bound, where those of Pyro have not."""
    first, second = drawn(), drawn()
    pair = make(first, second)
    values = list(pair.params.values())

    def evaluate(elbo):
        total, grads, exact = 0.0, [torch.zeros_like(v) for v in values], 0.0
        for m0, m1, r in itertools.product([0.0, 1.0], repeat=3):
            first.value, second.value = torch.tensor([m0, m1]), torch.tensor(r)
            loss, found = pair.evaluate(elbo)
            log_q = poutine.trace(pair.guide).get_trace(X).log_prob_sum()
            weight = log_q.exp().detach()
            total = total + weight * loss
            grads = [g + weight * f for g, f in zip(grads, found, strict=True)]
            # By hand: q times (log q - log p(z, y)), j summed out in probabilities.
            joint = 0.0
            for j in [0.0, 1.0] if make is draws_under_a_sum else [None]:
                draws = {"m": first.value, "r": second.value}
                draws |= {} if j is None else {"j": torch.tensor(j)}
                conditioned = poutine.condition(pair.model, draws)
                joint = joint + poutine.trace(conditioned).get_trace(X).log_prob_sum().exp()
            exact = exact + log_q.exp() * (log_q - torch.log(joint))
        return (total, grads), (exact.detach(), torch.autograd.grad(exact, values))

    ours, exact = evaluate(EnumMeanFieldELBO(max_plate_nesting=1))
    assert_same(ours, exact)
    theirs, _ = evaluate(trace_enum(1))
    assert max(float((a - b).abs().max()) for a, b in zip(theirs[1], exact[1], strict=True)) > 1e-2


# -- masks and scales -----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["masks", "scales", "both", "equal"])
def test_a_site_that_is_masked_or_scaled_otherwise_in_the_model(which):
    """``m_q s_q E log q - m_p s_p E log p``, with the KL for the part that they share."""
    p = Pair(loc=(N,), scale=(N,))
    ours = MASK if which in ("masks", "both") else ~MASK.roll(1)
    theirs = ~MASK.roll(1)
    s_q = torch.tensor(0.4) if which in ("scales", "both") else torch.tensor(1.5)
    s_p = torch.tensor(1.5)

    def model(x):
        with pyro.plate("data", N), poutine.mask(mask=theirs), poutine.scale(scale=s_p):
            pyro.sample("w", dist.Normal(0.5, 2.0))

    def guide(x):
        with pyro.plate("data", N), poutine.mask(mask=ours), poutine.scale(scale=s_q):
            pyro.sample("w", Fixed(p.loc, p.scale.exp()))

    p.of(model, guide)
    found = []
    for e in sigma_points(1):
        Fixed.noise = nodes(e)
        found.append(p.evaluate(EnumMeanFieldELBO(max_plate_nesting=1)))
    mean = (found[0][0] + found[1][0]) / 2
    grads = [(a + b) / 2 for a, b in zip(found[0][1], found[1][1], strict=True)]
    scale = p.scale.exp()
    log_q = -0.5 * torch.log(2 * math.pi * math.e * scale**2)
    log_p = -0.5 * math.log(2 * math.pi * 4) - (scale**2 + (p.loc - 0.5) ** 2) / 8
    expected = (ours * s_q * log_q - theirs * s_p * log_p).sum()
    by_hand = torch.autograd.grad(expected, list(p.params.values()))
    assert_same((mean, grads), (expected.detach(), by_hand))
    Fixed.noise = nodes(torch.tensor(0.3))
    off = abs(p.evaluate(EnumMeanFieldELBO(max_plate_nesting=1))[0] - mean)
    assert (off < 1e-12) == (which == "equal")  # equal in value is as good as the same object


# -- enumeration ----------------------------------------------------------------------------------


def test_an_impossible_value_may_cost_infinitely_much():
    """A structure that q rules out adds nothing, and no NaN to the gradient."""
    p = Pair(logits=(2,))
    closed = torch.tensor([0.0, 0.0, -math.inf])

    def model(x):
        k = pyro.sample("k", dist.Categorical(logits=torch.tensor([0.0, 0.5, -math.inf])))
        pyro.sample("y", dist.Normal(torch.tensor([0.3, 0.6, math.inf])[k], 1.0), obs=x[0])

    def guide(x):
        logits = torch.cat([p.logits, p.logits.new_zeros(1)]) + closed
        pyro.sample("k", dist.Categorical(logits=logits))

    loss, (grad,) = p.of(model, guide).evaluate(EnumMeanFieldELBO(max_plate_nesting=0))
    q = p.logits.softmax(0)
    log_p = torch.tensor([0.0, 0.5]).log_softmax(0)
    normal = torch.distributions.Normal(torch.tensor([0.3, 0.6]), 1.0)
    expected = (q * (q.log() - log_p - normal.log_prob(X[0]))).sum()
    assert_same((loss, [grad]), (expected.detach(), torch.autograd.grad(expected, p.logits)))


def test_a_straight_through_site_is_enumerated_with_its_probabilities():
    """It calls itself reparameterised, and has no score function."""
    found = []
    for family in (dist.OneHotCategoricalStraightThrough, dist.OneHotCategorical):
        p = Pair(logits=(3,), effect=(3,))

        def model(x, p=p):
            k = pyro.sample("k", dist.OneHotCategorical(logits=torch.zeros(3)))
            pyro.sample("y", dist.Normal((p.effect * k).sum(-1), 1.0), obs=x[0])

        def guide(x, p=p, family=family):
            pyro.sample("k", family(logits=p.logits))

        found.append(p.of(model, guide).evaluate(EnumMeanFieldELBO(max_plate_nesting=0)))
    assert_same(*found)


# -- summed out in the model ----------------------------------------------------------------------


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
    expected = -torch.logsumexp(joint, 0)
    by_hand = torch.autograd.grad(expected, list(p.params.values()))
    for nesting in (1, 2):
        ours = p.evaluate(EnumMeanFieldELBO(max_plate_nesting=nesting))
        assert_same(ours, (expected.detach(), by_hand))
    theirs = p.evaluate(TraceEnum_ELBO(max_plate_nesting=1))[0]
    assert not torch.isfinite(theirs) or abs(theirs - expected) > 1.0


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
    expected = -torch.log(total)
    by_hand = torch.autograd.grad(expected, list(p.params.values()))
    assert_same(p.evaluate(EnumMeanFieldELBO()), (expected.detach(), by_hand))


@pytest.mark.parametrize("validate", [True, False])
def test_scales_of_a_sum_may_be_tensors(validate):
    found = []
    for scale in (2.5, torch.tensor(2.5)):
        p = Pair(prior=(3,), effect=(3,))

        def model(x, p=p):
            with pyro.plate("data", N):
                k = pyro.sample("k", dist.Categorical(logits=p.prior), infer=ENUM)
                pyro.sample("y", dist.Normal(p.effect[k], 1.0), obs=x)

        p.of(poutine.scale(model, scale), lambda x: None)
        with pyro.validation_enabled(validate):
            found.append(p.evaluate(EnumMeanFieldELBO()))
            assert float(found[-1][0]) == pytest.approx(
                2.5 * float(p.of(model, lambda x: None).evaluate(EnumMeanFieldELBO())[0])
            )
    assert_same(*found)


# -- what is refused ------------------------------------------------------------------------------

REFUSED = {}


def refused(message):
    def register(function):
        REFUSED[function.__name__] = (function, message)
        return function

    return register


def sampled(name, fn, **infer):
    return pyro.sample(name, fn, infer=infer)


def observe(x, mean=0.0):
    with pyro.plate("data", N, subsample=x):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=x)


NORMAL, COIN = dist.Normal(0.0, 1.0), dist.Bernoulli(0.5)


@refused(r"guide samples 'v', which the model does not have; the model's latents are \['w'\].*aux")
def a_guide_with_another_site():
    return lambda x: (sampled("w", NORMAL), observe(x)), lambda x: sampled("v", NORMAL)


@refused("guide samples 'y', which the model observes")
def a_guide_for_what_is_observed():
    return lambda x: observe(x), lambda x: sampled("y", dist.Normal(torch.zeros(N), 1).to_event(1))


@refused(
    r"model samples 'w', which the guide \(sites \['k'\]\) does not cover: add it to the guide\."
)
def a_continuous_latent_without_a_guide():
    return lambda x: (sampled("k", COIN), sampled("w", NORMAL)), lambda x: sampled("k", COIN)


@refused("does not cover: add it to the guide, or mark it infer={'enumerate': 'parallel'}")
def a_discrete_latent_without_a_guide():
    return lambda x: (sampled("k", COIN), observe(x)), lambda x: None


@refused("Site 'k' asks for infer={'enumerate': 'sequential'}.*or drawn, infer={'enumerate': None}")
def sequential_enumeration():
    return lambda x: sampled("k", COIN), lambda x: sampled("k", COIN, enumerate="sequential")


@refused("Site 'k' asks for infer={'num_samples': 5}")
def several_samples_in_the_guide():
    return (
        lambda x: sampled("k", COIN),
        lambda x: sampled("k", COIN, enumerate="parallel", num_samples=5),
    )


@refused("Site 'k' of the model asks for 5 samples.*Leave num_samples out")
def several_samples_in_the_model():
    return lambda x: sampled("k", COIN, enumerate="parallel", num_samples=5), lambda x: None


@refused("Sites 'k0' and 'k2' of the guide are enumerated along the same dim -1.*pyro.markov")
def a_markov_guide():
    def both(x):
        for t in pyro.markov(range(3)):
            sampled(f"k{t}", COIN)

    return both, both


@refused(
    r"Site 'y' depends on 'k', which is enumerated in the plate \['edges'\].*'enumerate': None"
)
def a_site_outside_that_depends_on_the_inside():
    def guide(x):
        with pyro.plate("edges", 2):
            return sampled("k", COIN)

    def model(x):
        k = guide(x)
        observe(x, k.sum(-1, keepdim=True) if k.dim() == 1 else k[..., :1])

    return model, guide


@refused(
    "'k' by 1, 'y' by 1.5. log Σ_z.*use the full batch, or put the discrete site into the guide"
)
def a_sum_over_a_minibatch():
    return lambda x: observe(x[:4], sampled("k", COIN, enumerate="parallel")), lambda x: None


@refused(r"the sum over 'k' in the model.*'k' by a tensor of shape \(6,\)")
def a_sum_with_many_scales():
    def model(x):
        with pyro.plate("data", N), poutine.scale(scale=torch.ones(N)):
            k = sampled("k", COIN, enumerate="parallel")
            pyro.sample("y", dist.Normal(k, 1.0), obs=x)

    return model, lambda x: None


@refused("the sum over 'j'.*depends on 'k', which is enumerated in the plate")
def a_sum_over_a_plate_with_structure_in_the_guide():
    def model(x):
        j = sampled("j", COIN, enumerate="parallel")
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(j * sampled("k", COIN), 1.0), obs=x)

    def guide(x):
        with pyro.plate("data", N):
            sampled("k", COIN)

    return model, guide


@refused("at site .w., invalid log_prob shape")
def a_batch_without_a_plate():
    def both(x):
        sampled("w", dist.Normal(torch.zeros(3), 1.0))

    return both, both


@refused("AutoNormalMessenger is a guide of Pyro's that works on the model's messages")
def a_guide_that_is_a_messenger():
    def model(x):
        sampled("w", NORMAL)

    return model, autoguide.AutoNormalMessenger(model)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_what_is_said(name):
    make, message = REFUSED[name]
    model, guide = make()
    with pytest.raises(ValueError, match=f"(?s){message}"):
        EnumMeanFieldELBO().loss(model, guide, X)


@pytest.mark.parametrize(
    ("prior", "support"),
    [
        (dist.Exponential(1.0), "GreaterThanEq"),
        (dist.Gamma(2.0, 1.0), "GreaterThan"),
        (dist.Uniform(0.0, 1.0), "Interval"),
    ],
    ids=["Exponential", "Gamma", "Uniform"],
)
@pytest.mark.parametrize("event", [0, 1])
def test_an_infinite_kl_names_guide_and_prior(prior, support, event):
    """Whatever the draw is: the KL is looked at before the density of the draw."""
    q = dist.Normal(0.5, 1e-3).expand([2] * event).to_event(event)
    p = prior.expand([2] * event).to_event(event)
    name = type(prior).__name__
    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(
            ValueError,
            match=rf"site 'w' is infinite: Normal in the guide \(support Real.*\) against {name} "
            rf"in the model \(support {support}.*LogNormal",
        ):
            EnumMeanFieldELBO().loss(lambda: sampled("w", p), lambda: sampled("w", q))
    with pyro.validation_enabled(False):  # nothing is looked at
        assert (
            EnumMeanFieldELBO().loss(lambda: sampled("w", p), lambda: sampled("w", q)) == math.inf
        )


def test_a_draw_outside_the_support_names_site_guide_and_prior():
    """No KL is registered for this pair."""

    def model():
        sampled("w", dist.HalfNormal(1.0))

    def guide():
        sampled("w", dist.Normal(-5.0, 0.1))

    message = "Site 'w': what Normal gives in the guide does not suit .* HalfNormal.*support"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        EnumMeanFieldELBO().loss(model, guide)


def test_a_dim_that_is_no_plate_is_refused_even_left_of_the_plates():
    def both(x):
        sampled("w", dist.Normal(torch.zeros(3, 1), 1.0))

    with pytest.raises(
        ValueError, match=r"'w' has .* shape \(3, 1\), whose dim -2 is neither one of"
    ):
        EnumMeanFieldELBO(max_plate_nesting=1).loss(both, both, X)


def test_too_few_particles():
    with pytest.raises(ValueError, match="num_particles must be 1 or more, got 0"):
        EnumMeanFieldELBO(num_particles=0)


@pytest.mark.parametrize("weight", [0.5, 0, torch.tensor(0.5)], ids=["float", "int", "tensor"])
def test_a_weight_of_a_kl_that_the_model_sums_out(weight):
    def model(x):
        observe(x, sampled("k", COIN, enumerate="parallel"))

    terms = EnumMeanFieldELBO().terms(model, lambda x: None, X)
    message = f"kl_weight is {float(weight):g}, but the model sums out 'k'.*give the latent a guide"
    with pytest.raises(ValueError, match=message):
        terms.loss(weight)
    if isinstance(weight, float):
        with pytest.raises(ValueError, match=message):
            EnumMeanFieldELBO(kl_weight=weight).loss(model, lambda x: None, X)
    for one in (1, 1.0, torch.ones(())):
        assert torch.equal(terms.loss(one), -terms.log_likelihood)
    if isinstance(weight, torch.Tensor):
        with pyro.validation_enabled(False):  # a tensor is not looked at while a graph is traced
            terms.loss(weight)


def test_what_is_observed_may_be_drawn_again_by_pyro_itself():
    """A mask over missing observations makes a latent of them, which needs a guide."""

    def model(x):
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=x, obs_mask=MASK)

    with pytest.raises(ValueError, match="model samples 'y_unobserved', which the guide"):
        EnumMeanFieldELBO().loss(model, lambda x: None, X)
