"""A layer as an operation of input, weight and bias: what torch's own layer computes."""

import pytest
import torch
from pyroccam.data import PyroccamError
from pyroccam.models.layers import AFFINE, Affine
from pyroccam.models.unpacked import Matrix
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

LAYERS = {  # layer, shape of a batch
    "linear": (lambda: nn.Linear(3, 4), (5, 3)),
    "linear-sequence": (lambda: nn.Linear(3, 4, bias=False), (5, 7, 3)),
    "conv1": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), (2, 4, 9)),
    "conv1-same": (lambda: nn.Conv1d(4, 6, 4, padding="same", dilation=2), (2, 4, 9)),
    "conv2": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(0, 1)), (2, 4, 7, 6)),
    "conv2-no-bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (2, 4, 7, 6)),
    "conv2-grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 7, 6)),
    "conv2-depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding="valid"), (2, 4, 7, 6)),
    "conv2-circular": (
        lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), stride=2, padding_mode="circular"),
        (2, 4, 7, 6),
    ),
    "conv2-reflect-same": (
        lambda: nn.Conv2d(4, 6, (2, 3), padding="same", padding_mode="reflect"),
        (2, 4, 7, 6),
    ),
    "conv3": (lambda: nn.Conv3d(2, 3, 2, padding=1, padding_mode="replicate"), (2, 2, 4, 3, 4)),
    "transposed1": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, dilation=2),
        (2, 4, 5),
    ),
    "transposed2": (lambda: nn.ConvTranspose2d(4, 6, (2, 3), stride=(2, 1)), (2, 4, 3, 4)),
    "transposed2-grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 3, 4)),
    "transposed3": (lambda: nn.ConvTranspose3d(2, 3, 2, bias=False), (2, 2, 3, 2, 3)),
}
DRAWN = {nn.Embedding, Matrix}  # in test_drawn_layers
EVERY = pytest.mark.parametrize("name", LAYERS)


def example(name, dtype=torch.float32):
    """The layer, its operation, an input, and other weights than the layer's."""
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make().to(dtype)
    weight = torch.randn_like(layer.weight)
    bias = None if layer.bias is None else torch.randn_like(layer.bias)
    return layer, Affine("a.b", layer), torch.randn(shape, dtype=dtype), weight, bias


def holding(layer, weight, bias):
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def test_every_kind_of_layer_has_an_example():
    assert {type(make()) for make, _ in LAYERS.values()} | DRAWN == set(AFFINE)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_computes_what_the_layer_computes(name, dtype):
    layer, run, x, weight, bias = example(name, dtype)
    assert torch.equal(run(x, weight, bias), holding(layer, weight, bias)(x))


@EVERY
def test_what_a_prior_is_told(name):
    """Shapes are the layer's; fan_in is the number of weights that an output far from the edges
    depends on, counted by gradients."""
    layer, run, _, _, bias = example(name)
    shape = run.shape
    assert shape.name == "a.b"
    assert shape.weight == layer.weight.shape
    assert shape.bias == (None if bias is None else bias.shape)
    kernel = getattr(layer, "kernel_size", ())
    options = {"groups": layer.groups, "bias": False} if kernel else {"bias": False}
    sizes = layer.weight.shape[1], layer.weight.shape[0]
    if kernel:  # the same connections with stride 1 and no padding
        sizes = layer.in_channels, layer.out_channels
        dense = type(layer)(*sizes, kernel, **options)
        out = dense(torch.ones(1, sizes[0], *(9 for _ in kernel)))
        middle = (0, 0, *(n // 2 for n in out.shape[2:]))
    else:
        dense = nn.Linear(*sizes, **options)
        out, middle = dense(torch.ones(1, sizes[0])), (0, 0)
    (grad,) = torch.autograd.grad(out[middle], dense.weight)
    assert shape.fan_in == int((grad != 0).sum())


@EVERY
def test_a_multiplier_of_groups_on_the_weights_is_one_on_features(name):
    """Of inputs for a linear layer, of outputs, bias included, for a convolution."""
    layer, run, x, weight, bias = example(name, torch.float64)
    if run.shape.group_dim is None:
        assert name == "transposed2-grouped"
        with pytest.raises(PyroccamError):
            _ = run.shape.groups
        return
    groups = run.shape.groups
    linear = isinstance(layer, nn.Linear)
    assert groups == (layer.in_features if linear else layer.out_channels)
    assert run.shape.output_groups == (not linear)
    z = torch.rand(groups, dtype=torch.float64) + 0.5
    if linear:
        by_features = run(x * run.on_features(z[None], x), weight, bias)
    else:
        out = run(x, weight, bias)
        by_features = out * run.on_features(z[None], out)
        bias = None if bias is None else bias * z
    torch.testing.assert_close(by_features, run(x, weight * run.on_weight(z), bias))


@pytest.mark.filterwarnings("ignore:.*spectral_norm")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Bilinear(2, 2, 2),
        lambda: nn.BatchNorm1d(2),
        lambda: parametrizations.weight_norm(nn.Linear(2, 2)),
        lambda: Doubled(2, 2),
        lambda: spectral_norm(nn.Linear(2, 2)),  # a hook computes its weight
        lambda: nn.Embedding(5, 3, max_norm=1.0),
    ],
)
def test_layers_that_cannot_be_random(make):
    with pytest.raises(PyroccamError):
        Affine("a.b", make())


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)
