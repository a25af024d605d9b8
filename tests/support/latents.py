"""Models and guides as functions of their parameters, noise that is prescribed, comparisons."""

import itertools
import math

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyroccam.models.parameters import LocalModule
from torch import nn

N, B = 6, 4  # rows of the plate, and those of a minibatch
K = 3  # values of a structure
DRAWN = {"enumerate": None}  # a discrete site that is not enumerated
ENUM = {"enumerate": "parallel"}
MASK = torch.tensor([True, False, True, True, False, True])


def double_precision():
    """Float64 and an empty store of parameters; what a module makes its fixture of."""
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float32)


def numbers(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


X = numbers(N, seed=1)


# -- comparisons ----------------------------------------------------------------------------------


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


# -- prescribed noise -----------------------------------------------------------------------------


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


# -- pairs ----------------------------------------------------------------------------------------


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
