"""Cuts through attention, recurrent layers, embeddings and normalisation of groups."""

import io
import math

import cutting
import pytest
import torch
from cutting import cut_exactly, keep
from plain import network
from pyroccam import data, guides, inference, models
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.inference.posterior import mean_network
from pyroccam.inference.shrinking import irrelevance
from pyroccam.inference.shrinking.decision import decide
from pyroccam.models.plain import describe, fill, rebuild, state, torch_only
from pyroccam.models.unpacked import copied, unpacked
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:.*enable_nested_tensor", "ignore:The cut by")
GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}


class Reader(nn.Module):
    """Words to a transformer to two recurrent layers, read in the way that is asked for."""

    def __init__(self, kind=nn.GRU, both=True, first=True, read="states", attends=True):
        super().__init__()
        self.table = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=first)
        self.encoder = nn.TransformerEncoder(layer, 1) if attends else nn.Linear(8, 8)
        self.series = kind(8, 6, 2, batch_first=first, bidirectional=both)
        self.head = nn.Linear(12 if both else 6, 3)
        self.first, self.both, self.read = first, both, read
        self.remembers = kind is nn.LSTM

    def forward(self, x):
        x = self.table(x)
        x = self.encoder(x if self.first else x.transpose(0, 1))
        out, state = self.series(x)
        if self.read == "last":
            return self.head(out[:, -1] if self.first else out[-1])
        if self.read == "mean":
            return self.head(out.mean(1 if self.first else 0))
        if self.remembers:
            state = state[1 if self.read == "memory" else 0]
        return self.head(torch.cat([state[-2], state[-1]], -1) if self.both else state[-1])


def without(size, *gone):
    return ~keep(size, *gone)


def made(net, seed=0):
    torch.manual_seed(seed)
    net = unpacked(copied(net)).double().eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.dim() > 1:
                p.normal_(std=0.7)
            elif "bias" in name:
                p.normal_()
    return net


def alike(small, net, x):
    with torch.no_grad():
        expected = net(x)
        assert expected.std(0).min() > 1e-6
        torch.testing.assert_close(small(x), expected, rtol=1e-10, atol=1e-10)


def masks_of(net):
    """The first head but for a feature, words' features, hidden units and units of both layers."""
    masks = {
        "table": Mask(outputs=without(8, 1, 2)),
        "series.l0.ih": Mask(inputs=without(8, 3, 4)),
        "series.l0.hh": Mask(inputs=without(6, 0, 1)),
        "series.l1.ih": Mask(inputs=without(12 if net.both else 6, 0)),
        "series.l1.hh": Mask(inputs=without(6, 0, 1)),
        "head": Mask(inputs=without(12 if net.both else 6, 0, 1, 5)),
    }
    if net.both:
        masks["series.l1_reverse.ih"] = Mask(inputs=without(12, 0, 7))
    if not isinstance(net.encoder, nn.Linear):
        layer = "encoder.layers.0"
        masks[f"{layer}.self_attn.out_proj"] = Mask(inputs=without(8, 0, 1, 2, 3, 5))
        masks[f"{layer}.linear2"] = Mask(inputs=without(16, *range(9)))
    return masks


@pytest.mark.parametrize("name", ["written_out", "GRU"])
def test_what_is_handed_back_is_pickled_twice_and_traces_go_on(name):
    if name in cutting.NETWORKS:
        build, shape = cutting.NETWORKS[name]
        net, x = cutting.made(build), torch.randn(4, *shape).double()
        masks = cutting.at_random(net, 0.6)
    else:
        net, x = made(Reader(nn.GRU, attends=False)), torch.randint(1, 20, (4, 7))
        masks = masks_of(net)
    small = again = torch_only(cut(net, x, masks).net, x)
    for _ in range(2):
        file = io.BytesIO()
        torch.save(again, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    alike(again, small, x)
    torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    alike(torch.export.export(again, (x,)).module(), small, x)
    if name == "GRU":
        assert type(again.series) is not type(net.series)
        with pytest.raises(AssertionError, match="None"):
            again.series(torch.zeros(4, 7, 8).double(), torch.zeros(4, 4, 6).double())


@pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.RNN, {}), (nn.GRU, {}), (nn.LSTM, {}), (nn.RNN, {"both": False, "read": "last"}),
     (nn.GRU, {"first": False}), (nn.LSTM, {"read": "mean"}), (nn.LSTM, {"read": "memory"})],
)  # fmt: skip
def test_a_cut_reader_computes_what_the_masked_one_does(kind, options):
    net = made(Reader(kind, **options))
    x = torch.randint(1, 20, (40, 7))
    small, report = cut(net, x, masks_of(net))
    for rows in (x, torch.randint(1, 20, (40, 9))):
        alike(small, masked(net, masks_of(net)), rows)
    sizes = {name: (len(one.outputs), len(one.inputs)) for name, one in report.layers.items()}
    layer = "encoder.layers.0"
    assert sizes["table"] == (8, 20)  # zeros: a residual sum and LayerNorm need all features
    assert sizes[f"{layer}.self_attn.q_proj"] == sizes[f"{layer}.self_attn.k_proj"] == (4, 6)
    assert sizes[f"{layer}.self_attn.v_proj"] == (3, 6)
    assert sizes[f"{layer}.self_attn.out_proj"] == (8, 3)
    assert sizes[f"{layer}.linear2"] == (8, 7)
    assert sizes["series.l0.ih"] == (GATES[kind] * 5, 6)
    assert sizes["series.l0.hh"] == (GATES[kind] * 5, 5)
    assert sizes["series.l1.hh"] == (GATES[kind] * 4, 4)
    assert cut(small, x).report.parameters_after == report.parameters_after
    words = describe(small)
    other = rebuild(words)
    fill(other, words, state(small, words))
    assert torch.equal(other(x), small(x))


@pytest.mark.parametrize("kind", GATES)
def test_units_that_stay_zero_go_and_constants_move_into_biases(kind):
    """A unit without a candidate is zero, whatever its gates say; so are units that read only
    such."""
    whole = made(network(
        lambda net, x: net.head(net.series(net.first(x))[0].mean(1)),
        first=nn.Linear(3, 4), series=kind(4, 5, batch_first=True), head=nn.Linear(5, 2),
    ))  # fmt: skip
    rows = slice(10, 15) if GATES[kind] > 1 else slice(0, 5)
    cell = whole.series.l0
    with torch.no_grad():
        cell.ih.weight[rows][:2] = cell.hh.weight[rows][:2] = 0
        cell.hh.weight[rows][1, 0] = 1.0  # of a unit that is zero itself
        for matrix in (cell.ih, cell.hh):
            matrix.bias[rows][:2] = 0
        whole.first.weight[1] = 0  # a constant input
    x = torch.randn(30, 6, 3).double()
    _, report = cut_exactly(whole, x, {})
    assert len(report.layers["series.l0.hh"].inputs) == 3
    assert len(report.layers["series.l0.ih"].inputs) == 3
    with torch.no_grad():
        cell.hh.bias[rows][0] = 0.1
    assert len(cut_exactly(whole, x, {})[1].layers["series.l0.hh"].inputs) == 5


@pytest.mark.parametrize(
    ("norm", "left"),
    [(nn.GroupNorm(4, 12), 6), (nn.GroupNorm(12, 12, affine=False), 5), (nn.GroupNorm(1, 12), 12),
     (nn.InstanceNorm2d(12, affine=True), 5), (nn.BatchNorm2d(12), 5), (nn.Identity(), 5)],
    ids=["groups", "channels", "all", "instance", "batch", "none"],
)  # fmt: skip
def test_affine_parameters_of_normalisation_go_with_their_channels(norm, left):
    """Channels of a group are in each other's mean: they go together or not at all."""
    net = made(network(
        lambda net, x: net.last(net.norm(net.first(x)).relu().mean((2, 3))),
        first=nn.Conv2d(2, 12, 3), norm=norm, last=nn.Linear(12, 3),
    ))  # fmt: skip
    x = torch.randn(30, 2, 8, 8).double()
    small, report = cut_exactly(net, x, {"last": Mask(inputs=keep(12, 0, 1, 2, 4, 5))})
    assert len(report.layers["first"].outputs) == left
    assert all(p.shape == (left,) for p in small.norm.parameters())
    assert describe(small)["modules"].get("norm", {}).get("type") == type(norm).__name__
    if left == 6:  # a group of constants is one behind its normalisation
        net.first.weight.data[3:6] = 0
        assert len(cut_exactly(net, x, {})[1].layers["first"].outputs) == 9


def words(rows):
    """Some are two words shorter, and the label stands in some of them."""
    x = torch.randint(1, 20, (rows, 6))
    x[::3, -2:] = 0
    x[torch.arange(rows) % 3 == 1, 2] = 19
    return x


def test_they_go_the_whole_way(tmp_path):
    """Trained, narrowed twice, compressed and written; every cut takes the posterior along."""
    torch.manual_seed(0)
    x, y = words(60), torch.arange(60) % 3
    own = data.Dataset.from_tensors(x, y, x, y, ids=True)
    model = models.BayesianNetwork(Reader(), own, prior=models.priors.GroupNormalJeffreys())
    options = {"batch_size": 30, "progress": False, "device": "cpu", "seed": 0}
    fit = inference.fit(model, guides.MeanField(model), own, epochs=1, **options)
    for share in (0.7, 0.8):
        found = irrelevance(fit.model, fit.guide)
        at = {n: float(v.values.quantile(share)) if v.values.numel() > 3 else math.inf
              for n, v in found.items()}  # fmt: skip
        pair = inference.narrow(fit, cut=inference.Thresholds(at))
        assert set(pair[0].layers) == set(pair[0].names.values())
        with torch.no_grad():
            expected = decide(fit, inference.Thresholds(at)).net(x)
            torch.testing.assert_close(mean_network(*pair)(x), expected, rtol=1e-3, atol=1e-3)
        fit = inference.fit(*pair, own, epochs=1, **options)
    small = inference.shrink(fit, cut=inference.Thresholds(math.inf))
    assert not small.report.left_whole
    assert small.report.parameters_after < 0.85 * model.parameters_before
    inference.Small(small.net).save(tmp_path / "small.pocc")
    assert torch.equal(inference.load(tmp_path / "small.pocc")(x), small.net(x))
