"""Which layers of a network become Bayesian, and what is refused or told by name."""

import pytest
import torch
from plain import network
from pyro import poutine
from pyro.infer import Predictive
from pyroccam import guides
from pyroccam.data import NetworkError, PyroccamError
from pyroccam.inference.posterior import mean_network
from pyroccam.models import BayesianNetwork, BayesianStack, DepthStack, LearntDepth, priors
from random_weights import Rows, small_net
from torch import nn
from torch.nn import functional as F

ROWS = Rows(3)

pytestmark = pytest.mark.usefixtures("clean")


def make(net, prior=None, rows=ROWS, **options):
    return BayesianNetwork(net, rows, prior=priors.Normal() if prior is None else prior, **options)


def tied(a=None, b=None):
    a, b = a or nn.Linear(3, 3), b or nn.Linear(3, 3)
    b.weight = a.weight
    return network(lambda net, x: net.b(net.a(x)), a=a, b=b)


def twice():
    return network(lambda net, x: net.a(net.a(x)), a=nn.Linear(3, 3))


class Subclass(nn.MultiheadAttention):
    """It stays as it is: ``out_proj`` is never called, attention takes its weight."""


class Attending(nn.Module):
    def __init__(self, plain=False, kind=nn.MultiheadAttention):
        super().__init__()
        self.attention = kind(3, 1, batch_first=True)
        if plain:
            self.attention.out_proj = nn.Linear(3, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        x = x[:, None]
        return self.head(self.attention(x, x, x, need_weights=False)[0][:, 0])


def in_training_only():
    return network(
        lambda net, x: net.a(x) + (net.b(x) if net.training else 0),
        a=nn.Linear(3, 2), b=nn.Linear(3, 2),
    )  # fmt: skip


NORMAL, LAYER = priors.Normal(), nn.Linear(3, 3)  # which has two names in one network


@pytest.mark.parametrize(
    ('net', 'options'),
    [
        (small_net(), {"layers": ["0", "3"]}),
        (small_net(), {"layers": ["1"]}),
        (nn.Sequential(nn.BatchNorm1d(3)), {}),
        (small_net(), {"prior": {"0": NORMAL}, "layers": ["2"]}),
        (small_net(), {"prior": {"4": NORMAL}}),
        (small_net(), {"prior": {}}),
        (tied(), {"layers": ["b"]}),
        (tied(LAYER, LAYER), {}),
        (Attending(plain=True, kind=Subclass), {"layers": ["attention.out_proj", "head"]}),
        (in_training_only(), {}),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(net, options):
    modes = [m.training for m in net.modules()]
    with pytest.raises(PyroccamError):
        make(net, **options)
    assert [m.training for m in net.modules()] == modes
    assert not any(m._forward_hooks for m in net.modules())


def test_a_layer_of_random_depth_is_called_once():
    stack = DepthStack(nn.Linear(3, 3), [twice()], nn.Linear(3, 2))
    with pytest.raises(PyroccamError):
        BayesianStack(stack, ROWS, prior=NORMAL)


def test_a_layer_that_is_called_again_in_training_alone_is_no_other_layer():
    """Its outputs would have noise of their own at each call, as of other weights."""
    net = network(lambda net, x: net.a(net.a(x) if net.training else x), a=nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="a.weight"):
        poutine.trace(make(net)).get_trace(torch.randn(4, 3))


def test_what_is_left_out_may_be_tied_or_unused():
    net = nn.Sequential(tied(), twice(), nn.Linear(3, 2))
    assert list(make(net, layers=["2"]).sites) == ["2.weight", "2.bias"]
    left = make(Attending(), layers=["head"])
    assert list(left.layers) == ["head"]
    assert "net.attention.in_proj_weight" in left.state_dict()  # as it was given


def test_weights_that_stay_numbers_are_named(recwarn):
    attending = r"attention.in_proj_weight \(Subclass\), attention.out_proj.weight \("
    with pytest.warns(UserWarning, match=f"learnt as numbers: {attending}.*layers=") as told:
        model = BayesianNetwork(Attending(kind=Subclass), ROWS, prior=NORMAL)
    assert list(model.layers) == ["head"]
    assert told[0].filename == __file__
    derived = type("Derived", (nn.Linear,), {"forward": lambda net, x: 2 * F.linear(x, net.weight)})
    many = nn.Sequential(*(derived(3, 3) for _ in range(6)), nn.LayerNorm((3,)), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match=r": 0.weight \(Derived\), 1.* 3.weight .* and 2 more"):
        make(many)
    for options in ({"layers": ["7"]}, {"prior": {"7": NORMAL}}, {"layers": lambda n, _: n == "7"}):
        make(many, **options)
    assert not len(recwarn)


class Ours(nn.Linear):
    """A linear layer of another class."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Noisy(nn.Linear):
    """One that draws in training."""

    def forward(self, x):
        return super().forward(x) + self.training * torch.randn(())


def test_a_subclass_that_computes_the_same_is_random():
    net = nn.Sequential(Ours(3, 4), nn.Tanh(), Noisy(4, 4), Ours(4, 2))
    with pytest.warns(UserWarning, match=r"numbers: 2.weight \(Noisy\)\."):
        model = make(net)
    assert list(model.layers) == ["0", "3"]
    plain = model.start_network()
    assert [type(part) for part in plain] == [Ours, nn.Tanh, Noisy, Ours]
    x = torch.randn(4, 3)
    assert torch.equal(plain(x), net.eval()(x))


class Asking(nn.Module):
    """Its forward looks at what its parts are."""

    def __init__(self, kind):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)])
        self.kind = kind

    def forward(self, x):
        for part in self.parts[:-1]:
            x = part(x)
            if self.kind == "type" and isinstance(part, nn.Linear):
                x = x.tanh()
            if self.kind == "number":
                x = x.tanh().reshape(-1, part.out_features)
            if self.kind == "weight":
                x = x / part.weight.norm()
        return self.parts[-1](x)


def test_networks_that_ask_what_their_layers_are():
    with pytest.raises(NetworkError):
        make(Asking("type"))
    make(Asking("type"), layers=["parts.2"])
    with pytest.raises(AttributeError, match=r"weights of layer 'parts.0' are random.*layers="):
        make(Asking("weight"))
    model = make(Asking("number"))
    assert model.layers["parts.0"].out_features == 4
    assert model(torch.zeros(2, 3)).shape == (2, 2)
    with pytest.raises(AttributeError, match="'BayesianLayer' object has no attribute 'nothing'"):
        _ = model.layers["parts.0"].nothing


def reading():
    """A transformer of torch, of which eval mode may take the weights and not call the layers."""
    part = nn.TransformerEncoderLayer(4, 1, 8, dropout=0.0, batch_first=True)
    return network(
        lambda net, x: net.head(net.encoder(x).mean(1)),
        encoder=nn.TransformerEncoder(part, 2), head=nn.Linear(4, 2),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*enable_nested_tensor")
def test_layers_of_transformers_are_called_in_evaluation_too():
    layers = [f"encoder.layers.{k}.linear{n}" for k in (0, 1) for n in (1, 2)]
    model = make(reading().eval(), rows=Rows(5, 4), layers=layers)
    guide = guides.MeanField(model)
    x = torch.randn(3, 5, 4)
    with torch.no_grad():
        for mode in (model.eval(), model.train()):
            drawn = Predictive(mode, guide=guide, num_samples=2)(x)["y"]
            assert drawn.shape == (2, 3, 2)
    assert torch.backends.mha.get_fastpath_enabled()
    torch.testing.assert_close(model.start_network()(x), mean_network(model, guide)(x))


def test_hooks_that_do_not_run_are_named():
    net, seen = small_net(), []
    hook = net[2].register_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(UserWarning, match="lambda> of layer '2'") as told:
        model = make(net)
    assert told[0].filename == __file__
    seen.clear()
    model(torch.zeros(2, 3))
    assert not seen
    model.start_network()(torch.zeros(2, 3))
    assert seen
    hook.remove()
    net[2].register_forward_hook(doubled)
    with pytest.raises(NetworkError):
        make(net)


def doubled(layer, inputs, out):
    """A hook that changes what the network computes."""
    return 2 * out


WRAPPERS = {"compiled": torch.compile, "parallel": nn.DataParallel}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_wraps_a_network_or_a_part_is_taken_off(wrap):
    net, x = small_net(), torch.randn(4, 3)
    plain = make(net)
    inner = nn.Sequential(wrap(net[0]), *net[1:])
    for wrapped in (wrap(net), nn.DataParallel(wrap(net)), wrap(inner)):
        model = make(wrapped)
        assert list(model.layers) == list(plain.layers)
        assert torch.equal(model.start_network()(x), plain.start_network()(x))
    assert inner[0] is not net[0]  # a person's own network stays as it is
    stack = DepthStack(nn.Linear(3, 3), [nn.Tanh()], nn.Linear(3, 2))
    for kind in (LearntDepth(wrap(stack), data=ROWS).stack,
                 BayesianStack(wrap(stack), ROWS, prior=NORMAL).start_network()):  # fmt: skip
        assert torch.equal(kind.outputs(x), stack.outputs(x))
