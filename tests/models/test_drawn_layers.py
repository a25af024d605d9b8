"""Layers whose weights are drawn once for all places where they are used: tables, matrices, and
layers that are called more than once."""

import pyro
import pytest
import torch
from pyro import poutine
from pyroccam import data, guides, inference, models
from pyroccam.data import PyroccamError
from pyroccam.inference.posterior import layer_moments, outputs_of, weights_of
from pyroccam.inference.posterior.draws import draw_outputs, draw_weights
from pyroccam.models import priors
from pyroccam.models.distributions import base
from pyroccam.models.layers import Affine
from pyroccam.models.unpacked import Matrix
from random_weights import Rows, normal_kl, pair
from torch import nn
from torch.func import functional_call

pytestmark = pytest.mark.usefixtures("clean")


class Ids(Rows):
    """Rows of four ids."""

    ids = True
    x_train = torch.tensor([[1, 2, 2, 0], [3, 3, 1, 4]])

    def head(self, rows):
        return self.x_train[:rows], None


IDS = Ids(4)


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3, **options), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.table(x).mean(1))


class Series(nn.Module):
    def __init__(self, kind=nn.GRU, **options):
        super().__init__()
        self.series = kind(2, 3, batch_first=True, **options)
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.series(x)[0][:, -1])


class Twins(nn.Module):
    """Two parts of a row by one layer."""

    def __init__(self):
        super().__init__()
        self.part, self.out = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.part(x[:, 0]).tanh() - self.part(x[:, 1]))


def test_what_a_prior_is_told():
    run = Affine("a", nn.Embedding(5, 3, padding_idx=1))
    assert (run.shape.weight, run.shape.bias, run.shape.fan_in) == ((5, 3), None, 1)
    assert run.shape.groups == 3 == len(run.on_weight(torch.ones(3)).flatten())
    assert (run.drawn, run.shape.output_groups, run.output_dim) == (True, True, 1)
    ids, weight = torch.tensor([[4, 0], [1, 1]]), torch.randn(5, 3)
    assert torch.equal(run(ids, weight, None), weight[ids])
    matrix = Matrix(3, 4)
    run = Affine("b", matrix)
    assert (run.shape.groups, run.drawn, run.shape.output_groups) == (3, True, False)
    assert run(None, matrix.weight, matrix.bias) == (matrix.weight, matrix.bias)


NETS = {
    "table": (Words(), 1), "gru": (Series(), 2), "lstm": (Series(nn.LSTM), 2),
    "rnn": (Series(nn.RNN, bias=False), 2), "two": (Series(num_layers=2), 4), "twins": (Twins(), 1),
}  # fmt: skip


@pytest.mark.parametrize("prior", [priors.Normal(), priors.GroupNormalJeffreys()])
@pytest.mark.parametrize("name", NETS)
def test_weights_are_drawn_once_for_all_places(name, prior):
    """A pass with weights that are all drawn is that of the plain network which has them; with
    local reparameterisation those of the other layers are not drawn, and these are."""
    net, count = NETS[name]
    words = isinstance(net, Words)
    x, rows = (IDS.x_train, IDS) if words else (torch.randn(2, 6, 2), Rows(6, 2))
    model = models.BayesianNetwork(net, rows, prior=prior)
    held = [name for name, layer in model.layers.items() if layer.affine.drawn]
    assert len(held) == count == len(model.layers) - 1
    guide = guides.MeanField(model, local=False)
    for p in guide.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    trace = passed(model, guide, x)
    values = {site: trace.nodes[site]["value"][None] for site in model.sites}
    plain = {n: value[0] for n, value in weights_of(model, values).items()}
    expected = functional_call(model.start_network(), plain, (x,))
    torch.testing.assert_close(trace.nodes["y"]["fn"].mean, expected)
    guide = guides.MeanField(model)
    with guide.handler:
        trace = passed(model, guide, x)
    for layer, latent in model.sites.values():
        site = trace.nodes[f"{layer.name}.{latent}"]
        assert bool(site["infer"].get("moments")) != (layer.name in held)
        if layer.name in held and latent == "weight":
            loc, scale = (getattr(base(site["fn"]), which) for which in ("loc", "scale"))
            assert ((site["value"] - loc) / scale).abs().min() > 0
            found = torch.distributions.kl_divergence(site["fn"], layer.latents()[latent].prior)
            torch.testing.assert_close(found, normal_kl(loc, scale))


def passed(model, guide, x):
    """The trace of the guide, and in it the targets that the model says."""
    with pyro.settings.context(module_local_params=True):
        trace = poutine.trace(guide).get_trace(x)
        said = poutine.trace(poutine.replay(model, trace)).get_trace(x)
    assert [n for n in said.nodes if n in model.sites] == list(model.sites)
    trace.add_node("y", **{k: v for k, v in said.nodes["y"].items() if k != "name"}, name="y")
    return trace


def test_padding_stays_a_number():
    net = Words(padding_idx=2)
    net.table.weight.data[2] = torch.tensor([1.0, 2.0, 3.0])
    model, guide = pair(net, (4,), priors.GroupNormalJeffreys(), rows=IDS)
    torch.manual_seed(0)
    tables = draw_weights(model, guide, 4000)["table.weight"]
    assert (tables[:, 2] == net.table.weight[2]).all()
    assert (tables[:, [0, 1, 3, 4]].std(0) > 0.01).all()
    found = layer_moments(model, guide)["table"]
    assert torch.equal(found.mean[2], net.table.weight[2])
    assert (found.variance[2] == 0).all()
    error = (found.variance / 4000).sqrt()
    assert ((tables.mean(0) - found.mean).abs() <= 6 * error).all()
    assert draw_outputs(model, guide, IDS.x_train, 3).shape == (3, 2, 2)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_draws_of_recurrent_networks_pass_one_by_one(kind):
    """Torch cannot map recurrent kernels over weights: what is given is the same."""
    model, guide = pair(Series(kind), (6, 2), priors.Normal())
    x = torch.randn(5, 6, 2)
    net, weights = model.start_network(), draw_weights(model, guide, 3)
    found = outputs_of(net, weights, x)
    each = [functional_call(net, {n: w[s] for n, w in weights.items()}, (x,)) for s in range(3)]
    torch.testing.assert_close(found, torch.stack(each))


def graph(structure):
    edges = {("x", "y"): {"a": Series(), "b": nn.Sequential(nn.Flatten(), nn.Linear(12, 2))}}
    x, y = torch.randn(20, 6, 2), torch.arange(20) % 2
    own = data.Dataset.from_tensors(x, y, x, y)
    return own.x_test, models.StructuredNetwork(
        models.StructureGraph(edges),
        own,
        structure=structure,
        prior=priors.Normal(),
        scaling=models.NonCentred(),
    )


def test_recurrent_primitives_count_by_their_structure():
    x, model = graph(priors.GumbelSoftmax(1.0))
    guide = guides.MeanField(model, local=False)
    trace = passed(model, guide, x)
    values = {site: trace.nodes[site]["value"][None] for site in model.latents()}
    found = {n: value[0] for n, value in weights_of(model, values).items()}
    means = {layer: (m.mean, m.bias) for layer, m in layer_moments(model, guide).items()}
    expected = functional_call(model.plain(means), found, (x,))
    torch.testing.assert_close(trace.nodes["y"]["fn"].logits, expected.log_softmax(-1))
    assert draw_outputs(model, guide, x, 3).shape == (3, 20, 2)
    x, model = graph(priors.Categorical())
    y = torch.arange(len(x)) % 2
    with pytest.raises(PyroccamError):
        inference.EnumMeanFieldELBO().loss(model, guides.MeanField(model), x, y)
