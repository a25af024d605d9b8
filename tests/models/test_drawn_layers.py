"""Layers whose weights are drawn once for all places where they are used: tables and matrices."""

import pyro
import pytest
import torch
from pyro import poutine
from pyroccam import guides, models
from pyroccam.inference.posterior.draws import draw_outputs, draw_weights
from pyroccam.inference.posterior.weight_moments import moments
from pyroccam.models import priors
from pyroccam.models.layers.affine import Affine
from pyroccam.models.unpacked.recurrent import Matrix
from random_weights import Rows, assert_same_means, normal_kl, pair
from torch import nn

pytestmark = pytest.mark.usefixtures("clean")


class Ids(Rows):
    """Rows of four ids."""

    ids = True
    x_train = torch.tensor([[1, 2, 2, 0], [3, 3, 1, 4]])


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


def drawn(model, guide, x):
    """A trace of the guide, and one of the model with its values."""
    with pyro.settings.context(module_local_params=True), guide.handler:
        trace = poutine.trace(guide).get_trace(x)
        return trace, poutine.trace(poutine.replay(model, trace)).get_trace(x)


def test_what_a_prior_is_told():
    table, matrix = nn.Embedding(5, 3, padding_idx=1), Matrix(3, 4)
    run = Affine("a", table)
    assert (run.shape.weight, run.shape.bias, run.shape.fan_in) == ((5, 3), None, 1)
    assert run.shape.groups == 3 == len(run.on_weight(torch.ones(3)).flatten())
    assert run.drawn and run.shape.output_groups and run.output_dim == 1
    ids = torch.tensor([[4, 0], [1, 1]])
    weight = torch.randn(5, 3)
    assert torch.equal(run(ids, weight, None), weight[ids])
    run = Affine("b", matrix)
    assert run.shape.groups == 3 and run.drawn and not run.shape.output_groups
    assert run(None, matrix.weight, matrix.bias) == (matrix.weight, matrix.bias)
    with pytest.raises(TypeError, match="'a' shortens its weights to max_norm=1"):
        Affine("a", nn.Embedding(5, 3, max_norm=1.0))


@pytest.mark.parametrize(
    "net",
    [Words(), Series(), Series(nn.LSTM), Series(nn.RNN, bias=False), Series(num_layers=2)],
    ids=["table", "gru", "lstm", "rnn", "two"],
)
@pytest.mark.parametrize("prior", [priors.Normal(), priors.GroupNormalJeffreys()])
def test_one_draw_for_all_places_also_with_local_reparameterisation(net, prior):
    """The outputs are those of the plain network with the weights that were drawn, and the sites
    those of one linear layer more for every matrix."""
    x = IDS.x_train if isinstance(net, Words) else torch.randn(2, 6, 2)
    rows = IDS if isinstance(net, Words) else Rows(6, 2)
    model = models.BayesianNetwork(net, rows, prior=prior)
    guide = guides.MeanField(model, init_scale=0.3) if False else guides.MeanField(model)
    assert guide.handler is not None
    trace, model_trace = drawn(model, guide, x)
    held = [name for name, layer in model.layers.items() if layer.affine.drawn]
    assert len(held) == {"Words": 1}.get(type(net).__name__, 2 * (getattr(net, "series", None) is not None and net.series.num_layers))
    for name in held:
        site = trace.nodes[f"{name}.weight"]
        assert "moments" not in site["infer"]
        assert not torch.equal(site["value"], site["fn"].mean)
    assert trace.nodes["out.weight"]["infer"]["moments"]
    sites = {n for n, s in model_trace.nodes.items() if s["type"] == "sample" and n not in ("y", "data")}
    assert sites == set(model.sites)
