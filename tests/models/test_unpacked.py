"""Unpacked modules: what torch's own compute, by linear layers."""

import pickle

import pytest
import torch
from pyroccam.data import PyroccamError
from pyroccam.models.unpacked import copied, folded, unpacked
from torch import nn
from torch.utils._pytree import tree_leaves

TOLERANCE = 1e-6


def close(found, expected):
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def at_random(net):
    """Torch begins biases of attention at zero."""
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(std=0.4)
    return net


def made(net):
    small = unpacked(copied(net))
    assert not any(
        isinstance(m, nn.MultiheadAttention | nn.RNNBase | nn.TransformerEncoderLayer)
        for m in small.modules()
    )
    assert sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in net.parameters())
    return small


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 4}, {"bias": False}])
def test_attention_with_masks_of_every_kind(first, options):
    torch.manual_seed(0)
    net = at_random(nn.MultiheadAttention(8, 2, batch_first=first, **options))
    other = made(net)
    sizes = 8, options.get("kdim", 8), options.get("vdim", 8)
    inputs = [torch.randn(3, n, size) for n, size in zip((5, 7, 7), sizes, strict=True)]
    inputs = inputs if first else [x.transpose(0, 1) for x in inputs]
    gone = torch.zeros(3, 7, dtype=torch.bool)
    gone[1, -2:] = True
    numbers = torch.zeros(3, 7).masked_fill(gone, -3.0)
    hidden = torch.rand(5, 7) < 0.3
    for masks in (
        {}, {"key_padding_mask": gone}, {"attn_mask": hidden, "key_padding_mask": gone},
        {"attn_mask": torch.randn(6, 5, 7)}, {"attn_mask": torch.rand(6, 5, 7) < 0.3},
        {"attn_mask": torch.randn(5, 7), "key_padding_mask": numbers},
    ):  # fmt: skip
        for asked in ({}, {"average_attn_weights": False}, {"need_weights": False}):
            close(other(*inputs, **masks, **asked), net(*inputs, **masks, **asked))
    with pytest.raises(PyroccamError):
        other(*inputs, is_causal=True)


def test_dropout_of_attention_is_that_of_torch():
    """Of the mean over many passes, and in training only."""
    torch.manual_seed(0)
    net = at_random(nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True))
    x = torch.randn(1, 3, 4).expand(20000, 3, 4)
    other = made(net)
    found, expected = (m(x, x, x, need_weights=False)[0] for m in (other, net))
    for moment in (lambda t: t.mean(0), lambda t: t.var(0)):
        error = 6 * expected.std(0) * (2 + expected.std(0)) * (2 / 20000) ** 0.5
        assert ((moment(found) - moment(expected)).abs() < error).all()
    assert found.std(0).min() > 0.05
    close(other.eval()(x[:2], x[:2], x[:2]), net.eval()(x[:2], x[:2], x[:2]))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("ignore:.*enable_nested_tensor")
def test_encoders(before, first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=first, norm_first=before, activation="gelu"
    )
    net = at_random(nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))).eval()
    other = made(net)
    x = torch.randn(3, 5, 8) if first else torch.randn(5, 3, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    gone = torch.zeros(3, 5, dtype=torch.bool)
    gone[2, 3:] = True
    numbers = torch.zeros(3, 5).masked_fill(gone, -torch.inf)
    close(other(x), net(x))
    close(other(x, causal, is_causal=True), net(x, causal, is_causal=True))
    close(other(x, causal, numbers), net(x, causal, numbers))
    close(made(nn.Sequential(layer).eval())(x), layer.eval()(x))
    # Padded places are zeros in torch's nested tensors, and what they are otherwise here.
    seen = ~(gone if first else gone.T)
    close(other(x, None, gone)[seen], net(x, None, gone)[seen])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_recurrent_layers(kind, both, first):
    x = torch.randn(3, 5, 4)
    for options in ({}, {"bias": False}, {"nonlinearity": "relu"} if kind is nn.RNN else {}):
        net = kind(4, 3, 2, bidirectional=both, batch_first=first, dropout=0.5, **options).eval()
        other = made(net)
        state = torch.randn(4 if both else 2, 3 if first else 5, 3)
        state = (state, 1 - state) if kind is nn.LSTM else state
        close(other(x), net(x))
        close(other(x, state), net(x, state))
    names = {n for n, m in other.named_modules() if isinstance(m, nn.Linear)}
    assert names >= {"l0.ih", "l0.hh", "l1.ih", "l1.hh", *(["l1_reverse.hh"] if both else [])}
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 4, 2], batch_first=True)
    with pytest.raises(PyroccamError):
        other(packed)


def test_what_stays_as_it_is():
    own = type("Own", (nn.GRU,), {})
    net = nn.ModuleDict({
        "own": own(2, 3), "projected": nn.LSTM(2, 3, proj_size=2), "gru": nn.GRU(2, 3),
        "zero": nn.MultiheadAttention(4, 2, add_zero_attn=True),
        "biased": nn.MultiheadAttention(4, 2, add_bias_kv=True),
    })  # fmt: skip
    nothing = ["gru2.ih", "zero.out_proj"]
    for names, changed in ((nothing, []), (None, ["gru"]), (["gru.l0.ih"], ["gru"])):
        made = unpacked(copied(net), names)
        assert [n for n, m in made.items() if type(m) is not type(net[n])] == changed


@pytest.mark.parametrize("which", ["new", "old"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_weight_normalisation_is_folded_and_said(which):
    norm = nn.utils.parametrizations.weight_norm if which == "new" else nn.utils.weight_norm
    net = at_random(nn.Sequential(norm(nn.Linear(3, 4)), nn.Tanh(), norm(nn.Linear(4, 2))))
    x, keys = torch.randn(5, 3), set(net.state_dict())
    expected = net(x)
    with pytest.warns(UserWarning, match=r"folded into the weights: 0.weight, 2.weight"):
        other = folded(copied(net))
    assert [type(m) for m in other] == [nn.Linear, nn.Tanh, nn.Linear]
    assert set(other.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert set(net.state_dict()) == keys
    assert other[0].weight.requires_grad
    close(pickle.loads(pickle.dumps(other))(x), expected)


def test_a_normalisation_that_was_removed_leaves_nothing_that_pickles_refuse():
    net = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    nn.utils.parametrize.remove_parametrizations(net, "weight")
    other, x = folded(copied(net)), torch.randn(5, 3)
    close(pickle.loads(pickle.dumps(other))(x), net(x))


class Multiplied(nn.Module):
    """A product with a transposed weight, all zeros at first, and what is asked for."""

    def __init__(self, then):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(3))
        self.then = then

    def forward(self, x):
        return self.then(self, x @ self.weight + self.bias)


def buffered():
    net = Multiplied(lambda net, x: x * net.scale)
    net.register_buffer("scale", torch.ones(()))
    return net


def test_what_is_not_linear_in_every_mode_or_at_other_weights_stays():
    others = [
        Multiplied(lambda net, x: x.relu()),
        Multiplied(lambda net, x: nn.functional.dropout(x, 0.5, net.training)),
        Multiplied(lambda net, x: nn.functional.hardshrink(x, 0.1)),
        Multiplied(lambda net, x: x.clamp(-20, 20)),
        buffered(),
    ]
    assert [type(m) for m in unpacked(nn.Sequential(*others))] == [Multiplied] * len(others)
    (linear,) = unpacked(nn.Sequential(at_random(Multiplied(lambda net, x: x))))
    assert type(linear) is nn.Linear
