"""Cuts through attention, recurrent layers, embeddings and normalisation of groups."""

import io
import math

import cutting
import pytest
import torch
from cutting import exactly, keep
from pyroccam import data, guides, inference, models
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.inference.posterior.layers import mean_network
from pyroccam.inference.shrinking.decision import decide
from pyroccam.inference.shrinking.relevance import irrelevance
from pyroccam.models.plain.description import describe, fill, rebuild, state
from pyroccam.models.plain.own_classes import torch_only
from pyroccam.models.unpacked.unpacking import copied, unpacked
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:.*enable_nested_tensor")


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


@pytest.mark.parametrize(
    "name", ["lenet_300_100", "residual", "written_out", "GRU", "LSTM", "attention"]
)
def test_what_is_handed_back_is_pickled_twice_and_traces_go_on(name):
    if name in cutting.NETWORKS:
        build, shape = cutting.NETWORKS[name]
        net, x = cutting.made(build), torch.randn(4, *shape).double()
        masks = cutting.at_random(net, 0.6)
    else:
        kind = nn.GRU if name == "GRU" else nn.LSTM
        net, x = made(Reader(kind, attends=name == "attention")), torch.randint(1, 20, (4, 7))
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
    if name in ("GRU", "LSTM"):
        assert type(again.series) is not type(net.series)
        with pytest.raises(AssertionError, match="None"):
            again.series(torch.zeros(4, 7, 8).double(), torch.zeros(4, 4, 6).double())


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize(
    "options",
    [{}, {"both": False}, {"first": False}, {"both": False, "read": "last"}, {"read": "mean"},
     {"read": "memory"}],
    ids=lambda o: "-".join(map(str, o.values())) or "usual",
)  # fmt: skip
def test_a_cut_reader_computes_what_the_masked_one_does(kind, options):
    net = made(Reader(kind, **options))
    x = torch.randint(1, 20, (40, 7))
    small, report = cut(net, x, masks_of(net))
    for rows in (x, torch.randint(1, 20, (40, 9))):
        alike(small, masked(net, masks_of(net)), rows)
    gates = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}[kind]
    sizes = {name: (len(one.outputs), len(one.inputs)) for name, one in report.layers.items()}
    layer = "encoder.layers.0"
    assert sizes["table"] == (8, 20)  # zeros: a residual sum and LayerNorm need all features
    assert sizes[f"{layer}.self_attn.q_proj"] == sizes[f"{layer}.self_attn.k_proj"] == (4, 6)
    assert sizes[f"{layer}.self_attn.v_proj"] == (3, 6)
    assert sizes[f"{layer}.self_attn.out_proj"] == (8, 3)
    assert sizes[f"{layer}.linear2"] == (8, 7)
    assert sizes["series.l0.ih"] == (gates * 5, 6)
    assert sizes["series.l0.hh"] == (gates * 5, 5)
    assert sizes["series.l1.hh"] == (gates * 4, 4)
    again = cut(small, x)
    assert again.report.parameters_after == report.parameters_after
    words = describe(small)
    other = rebuild(words)
    fill(other, words, state(small, words))
    assert torch.equal(other(x), small(x))


def test_states_that_are_used_together_keep_their_units():
    class Stacked(Reader):
        def forward(self, x):
            return self.head(self.series(self.encoder(self.table(x)))[1].transpose(0, 1).mean(1))

    net = made(Stacked(both=False, attends=False))
    small, report = cut(net, torch.randint(1, 20, (40, 7)), masks_of(net))
    assert len(report.layers["series.l1.hh"].inputs) == 6
    assert len(report.layers["table"].outputs) == 6
    assert small.table.weight.shape == (20, 6)
    assert small.table.padding_idx == 0
    alike(small, masked(net, masks_of(net)), torch.randint(1, 20, (40, 5)))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_units_that_stay_zero_go_and_constants_move_into_biases(kind):
    """A unit without a candidate is zero, whatever its gates say; so are units that read only
    such."""
    net = made(nn.Sequential(nn.Linear(3, 4), kind(4, 5, batch_first=True)))[1]
    gates = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}[kind]
    rows = slice(10, 15) if gates > 1 else slice(0, 5)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.series, self.head = nn.Linear(3, 4), net, nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.series(self.first(x))[0].mean(1))

    whole = Whole().double().eval()
    with torch.no_grad():
        cell = whole.series.l0
        cell.ih.weight[rows][:2] = cell.hh.weight[rows][:2] = 0
        cell.hh.weight[rows][1, 0] = 1.0  # of a unit that is zero itself
        for matrix in (cell.ih, cell.hh):
            matrix.bias[rows][:2] = 0
        whole.first.weight[1] = 0  # a constant input
    x = torch.randn(30, 6, 3).double()
    small, report = cut(whole, x)
    exactly(small, whole, x)
    assert len(report.layers["series.l0.hh"].inputs) == 3
    assert len(report.layers["series.l0.ih"].inputs) == 3
    with torch.no_grad():
        cell.hh.bias[rows][0] = 0.1
    small, report = cut(whole, x)
    exactly(small, whole, x)
    assert len(report.layers["series.l0.hh"].inputs) == 5


class Grouped(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 12, 3), norm
        self.last = nn.Linear(12, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu().mean((2, 3)))


@pytest.mark.parametrize(
    ("norm", "left"),
    [(nn.GroupNorm(4, 12), 6), (nn.GroupNorm(12, 12, affine=False), 5), (nn.GroupNorm(1, 12), 12),
     (nn.InstanceNorm2d(12, affine=True), 5), (nn.BatchNorm2d(12), 5), (nn.Identity(), 5)],
    ids=["groups", "channels", "all", "instance", "batch", "none"],
)  # fmt: skip
def test_affine_parameters_of_normalisation_go_with_their_channels(norm, left):
    """Channels of a group are in each other's mean: they go together or not at all."""
    net = made(Grouped(norm))
    kept = keep(12, 0, 1, 2, 4, 5)
    small, report = cut(net, torch.randn(30, 2, 8, 8).double(), {"last": Mask(inputs=kept)})
    exactly(small, masked(net, {"last": Mask(inputs=kept)}), torch.randn(30, 2, 8, 8).double())
    assert len(report.layers["first"].outputs) == left
    assert all(p.shape == (left,) for p in small.norm.parameters())
    words = describe(small)
    assert words["modules"].get("norm", {}).get("type") == type(norm).__name__


def test_a_group_of_constants_is_one_behind_its_normalisation():
    net = made(Grouped(nn.GroupNorm(4, 12)))
    with torch.no_grad():
        net.first.weight[3:6] = 0
    x = torch.randn(30, 2, 8, 8).double()
    small, report = cut(net, x)
    exactly(small, net, x)
    assert len(report.layers["first"].outputs) == 9


@pytest.mark.parametrize("prior", [models.priors.GroupNormalJeffreys(), models.priors.LogUniform()])
def test_the_whole_way_of_a_reader(tmp_path, prior):
    """Trained, narrowed twice, compressed and written; every cut takes the posterior along."""
    torch.manual_seed(0)
    x = torch.randint(1, 20, (120, 6))
    y = torch.arange(120) % 3
    x[y == 1, 2], x[y == 2, 4] = 0, 19
    own = data.Dataset.from_tensors(x, y, x, y, ids=True)
    options = {"batch_size": 40, "lr": 0.01, "progress": False, "device": "cpu", "seed": 0}
    model = models.BayesianNetwork(Reader(), own, prior=prior)
    assert len(model.layers) == 1 + 6 + 8 + 1
    fit = inference.fit(model, guides.MeanField(model), own, epochs=4, **options)
    for share in (0.8, 0.9):
        found = irrelevance(fit.model, fit.guide)
        at = {n: float(v.values.quantile(share)) if v.values.numel() > 3 else math.inf
              for n, v in found.items()}  # fmt: skip
        pair = inference.narrow(fit, cut=inference.Thresholds(at))
        assert set(pair[0].layers) == set(pair[0].names.values())
        with torch.no_grad():
            expected = decide(fit, inference.Thresholds(at)).net(x)
            torch.testing.assert_close(mean_network(*pair)(x), expected, rtol=1e-3, atol=1e-3)
        fit = inference.fit(*pair, own, epochs=1, **options)
    found = inference.shrink(fit, cut=inference.Thresholds(math.inf))
    assert found.report.nonzero < model.weights_before
    cell = found.net.get_submodule(fit.model.names["series.l1.hh"].removesuffix(".hh"))
    assert (cell.hh.weight.shape[1] < 6) == isinstance(prior, models.priors.GroupNormalJeffreys)
    inference.Small(found.net).save(tmp_path / "small.pocc")
    assert torch.equal(inference.load(tmp_path / "small.pocc")(x), found.net(x))
