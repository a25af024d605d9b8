"""Units over all layers that write and read them, and which of them go."""

import torch
from cutting import block, made
from plain import network
from pyroccam.inference.cutting import cut, units_of
from pyroccam.models.unpacked import unpacked
from torch import nn


def sizes(found, name, gone=()):
    mask = found.gone(*gone)[name]
    return tuple(int(side.sum()) for side in (mask.outputs, mask.inputs))


def worth(net, **least):
    """One of each weight, and almost nothing of those rows that are named."""
    found = {}
    for name, p in net.named_parameters():
        if p.dim() > 1:
            layer = name.removesuffix(".weight")
            found[layer] = torch.ones(p.shape)
            found[layer][least.get(layer.replace(".", "_"), [])] = 0.001
    return found


def test_a_unit_of_a_residual_sum_is_one_in_all_layers():
    net = made(block)
    found = units_of(net, torch.randn(2, 1, 8, 8).double())
    assert torch.equal(found.rows["stem"], found.rows["two"])
    assert torch.equal(found.columns["one"], found.columns["head"])
    assert found.rows["stem"].unique().tolist() == found.columns["one"].unique().tolist()
    assert found.rows["head"].tolist() == [0, 0, 0]  # outputs stay
    masks = found.gone(worth(net, stem=[1, 4], two=[1, 4]), 0.8)
    assert [masks[name].outputs.tolist() for name in ("stem", "two")] == [
        [True, False, True, True, False, True]
    ] * 2
    assert sizes(found, "one", (worth(net), 0.0)) == (1, 1)  # one of each layer stays
    report = cut(net, torch.randn(2, 1, 8, 8).double(), masks).report
    assert len(report.layers["one"].inputs) == 4
    assert report.parameters_after < 0.85 * report.parameters_before


def test_every_layer_loses_the_same_share():
    """The least of its own, though those of another layer are worth less, and no inputs."""
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    found = units_of(net, torch.randn(2, 3))
    each = worth(net, **{"4": [0, 1]})
    each["0"][[1, 3, 4, 6]] = 0.5
    masks = found.gone(each, 0.4, even=True)
    assert masks["0"].outputs.nonzero().flatten().tolist() == [0, 2, 5, 7]
    assert masks["2"].outputs.sum() == 2
    assert masks["0"].inputs.all()


def test_units_of_a_stream_with_norms_of_a_recurrent_layer_and_of_attention():
    def forward(net, x):
        x = net.norm(net.encoder(net.into(x)))
        return net.head(net.series(x)[0][:, -1])

    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    net = made(lambda: unpacked(network(
        forward, into=nn.Linear(3, 8), encoder=nn.TransformerEncoder(layer, 1, None, False),
        norm=nn.LayerNorm(8), series=nn.GRU(8, 6, batch_first=True), head=nn.Linear(6, 2),
    )))  # fmt: skip
    x = torch.randn(4, 5, 3).double()
    found = units_of(net, x)
    rows, columns = found.rows, found.columns
    attend = "encoder.layers.0.self_attn."
    for name in (f"{attend}out_proj", "encoder.layers.0.linear2"):
        assert torch.equal(rows["into"], rows[name])
    assert torch.equal(rows[f"{attend}q_proj"], rows[f"{attend}k_proj"])
    assert torch.equal(rows[f"{attend}v_proj"], columns[f"{attend}out_proj"])
    assert torch.equal(columns["series.l0.ih"], rows["into"])
    assert torch.equal(rows["series.l0.ih"], columns["series.l0.hh"].repeat(3))
    assert torch.equal(columns["head"], columns["series.l0.hh"])
    few = {"into": [0], f"{attend}out_proj".replace(".", "_"): [0]}
    few |= {"encoder_layers_0_linear2": [0], "series_l0_ih": [1, 7, 13], "series_l0_hh": [1, 7, 13]}
    masks = found.gone(worth(net, **few), 0.8)
    small, report = cut(net, x, masks, exact=False)
    assert 1 not in report.layers["head"].inputs
    assert len(report.layers["series.l0.hh"].inputs) < 6
    assert report.layers["into"].outputs.tolist() == [*range(1, 8)]
    assert type(small.norm) is nn.LayerNorm
    assert small(x).isfinite().all()
