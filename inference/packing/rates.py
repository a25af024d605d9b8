"""The three compression rates of the published tables, counted as they count them.

Weights only: biases, statistics and the description of the network are left out, so a rate is a
formula's number and not that of a file (:mod:`~pyroccam.inference.packing.packed` writes real
ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

__all__ = [
    "VGG_WIDTHS",
    "Layer",
    "Rates",
    "best_case_pruning",
    "csc_pointers",
    "group_rates",
    "layers_of",
    "lenet_5_caffe",
    "lenet_300_100",
    "linear_inputs",
    "nonzero_percent",
    "place_bits",
    "sparse_pruning",
    "sparse_rates",
    "total_weights",
    "vgg",
]

FLOAT_BITS = 32
INDEX_BITS = 5  # of the shared codebook of the "maximum" column: 32 float32 values per layer


@dataclass(frozen=True)
class Layer:
    """A weight tensor: every input is joined to every output by ``kernel`` numbers."""

    inputs: int
    outputs: int
    kernel: int = 1

    def __post_init__(self) -> None:
        if min(self.inputs, self.outputs) < 0 or self.kernel < 1:
            raise ValueError(f"{self} has an impossible size.")

    @property
    def weights(self) -> int:
        """Numbers in the tensor."""
        return self.inputs * self.outputs * self.kernel


@dataclass(frozen=True)
class Rates:
    """One row of the published table.

    Arguments:
        kept: weights that are kept; a kept group counts as dense.
        total: weights of the network before.
        nonzero_percent: 100 kept / total.
        pruning: original size over the size when only pruned, at 32 bits a weight.
        fast: "fast prediction": at each layer's own number of bits.
        maximum: "maximum compression": a 5-bit index per kept weight, and for each layer a
            codebook of 32 float32 numbers.

    Where single weights are kept, all three sizes include where they are.
    """

    kept: int
    total: int
    nonzero_percent: float
    pruning: float
    fast: float
    maximum: float


def group_rates(total: int, kept: Sequence[Layer], bits: Sequence[int]) -> Rates:
    """The row of a network from which whole units and filters were cut.

    Arguments:
        total: weights before.
        kept: the layers after; one of no inputs or outputs costs nothing.
        bits: per kept weight in each layer, sign and exponent included; 0 for a layer without any.

    Raises:
        ValueError: if the lengths differ, nothing is kept, or a number is impossible.

    References:
        The arithmetic reproduces the tables of Louizos, Ullrich, Welling 2017. The rule of the
        last column was inferred from their numbers; they cite Han, Mao, Dally 2016 for it.
    """
    counts = [layer.weights for layer in kept]
    _check(total, counts, bits)
    return _rates(total, counts, bits, total / sum(counts), 0)


def sparse_rates(
    total: int, layers: Sequence[Layer], nonzero: Sequence[int], bits: Sequence[int]
) -> Rates:
    """The row of a network of which single weights are kept.

    Beside its value, or its index in the codebook, every weight says where it is: each layer in
    compressed columns or rows, whichever is smaller (:func:`place_bits`). ``pruning`` is that of
    :func:`sparse_pruning`.

    Arguments:
        total: weights before.
        layers: the layers after, without the units that died.
        nonzero: weights kept in each layer.
        bits: per kept weight in each layer, sign and exponent included; 0 for a layer without any.

    Raises:
        ValueError: if the lengths differ, nothing is kept, or a number is impossible.

    References:
        Louizos, Ullrich, Welling 2017 print fast / maximum rates of sparse variational dropout
        without saying what a position costs, and no weights by layer, so they cannot be reproduced.
        With their bits and kept units, and the densities by layer of Molchanov, Ashukha, Vetrov
        2017 scaled to their percentages, this rule gives 84 / 108 for LeNet-300-100 (printed
        84 / 113) and 255 / 313 for LeNet-5-Caffe (printed 228 / 365); with one density for all
        layers 88 / 105 and 272 / 304.
    """
    if len(layers) != len(nonzero):
        raise ValueError(f"{len(layers)} layers but {len(nonzero)} numbers of kept weights.")
    _check(total, nonzero, bits)
    places = sum(place_bits(layer, n) for layer, n in zip(layers, nonzero, strict=True))
    pruning = sparse_pruning(total, sum(nonzero), csc_pointers(layers))
    return _rates(total, nonzero, bits, pruning, places)


def place_bits(layer: Layer, nonzero: int) -> int:
    """Bits that say where the kept weights of a layer are.

    The weight is a matrix (outputs, inputs * kernel). In compressed columns every kept weight
    stores its row, ``ceil(log2(rows))`` bits, and every column the number of weights up to its end,
    ``ceil(log2(nonzero + 1))`` bits; in compressed rows it is the other way round. The smaller is
    taken: which one it is belongs to the description of the network, as sizes do.

    Arguments:
        layer: its size.
        nonzero: weights kept.

    Raises:
        ValueError: for more weights than there are.
    """
    if not 0 <= nonzero <= layer.weights:
        raise ValueError(f"{nonzero} kept weights of {layer}: expected 0 ... {layer.weights}.")
    rows, columns = layer.outputs, layer.inputs * layer.kernel
    end = nonzero.bit_length()
    return min(
        nonzero * _index_bits(inner) + outer * end
        for inner, outer in ((rows, columns), (columns, rows))
    )


def _index_bits(count: int) -> int:
    """``ceil(log2(count))``: to tell so many things apart."""
    return max(count - 1, 0).bit_length()


def _check(total: int, kept: Sequence[int], bits: Sequence[int]) -> None:
    if len(kept) != len(bits):
        raise ValueError(f"{len(kept)} layers but {len(bits)} numbers of bits.")
    weights = sum(kept)
    if not 0 < weights <= total:
        raise ValueError(f"{weights} kept weights of {total}: expected 1 ... {total}.")
    if any(b < (1 if n else 0) for n, b in zip(kept, bits, strict=True)):
        raise ValueError(
            f"bits per weight must be at least 1 in layers that keep any, got {list(bits)} for "
            f"{list(kept)} kept weights. A layer without weights needs 0 bits."
        )


def _rates(
    total: int, kept: Sequence[int], bits: Sequence[int], pruning: float, places: int
) -> Rates:
    """From the weights kept in each layer and their bits, and the bits that say where they are."""
    size, weights = FLOAT_BITS * total, sum(kept)
    coded = sum(n * b for n, b in zip(kept, bits, strict=True))
    codebooks = sum(n > 0 for n in kept) * 2**INDEX_BITS * FLOAT_BITS
    return Rates(
        kept=weights,
        total=total,
        nonzero_percent=nonzero_percent(weights, total),
        pruning=pruning,
        fast=size / (coded + places),
        maximum=size / (INDEX_BITS * weights + codebooks + places),
    )


def nonzero_percent(kept: int, total: int) -> float:
    """Percent of the weights that are kept."""
    return 100.0 * kept / total


def sparse_pruning(total: int, nonzero: int, pointers: int) -> float:
    """Pruning rate of single weights kept in compressed columns (CSC).

    Every kept weight needs a row index beside its value, counted as large as the value, and every
    column a pointer to its start: ``total / (2 nonzero + pointers)``.

    Arguments:
        total: weights before.
        nonzero: weights kept.
        pointers: columns of all matrices (:func:`csc_pointers`).

    Raises:
        ValueError: if nothing would be stored.
    """
    if 2 * nonzero + pointers <= 0:
        raise ValueError("nothing is stored: the rate is infinite.")
    return total / (2 * nonzero + pointers)


def csc_pointers(layers: Sequence[Layer]) -> int:
    """Column pointers of matrices (kernel * inputs, outputs); where the last ends is known."""
    return sum(layer.outputs for layer in layers)


def best_case_pruning(fraction: float) -> float:
    """The tables' starred "best case": CSC without the pointers, ``1 / (2 fraction)``.

    Arguments:
        fraction: of the weights that are not zero, in (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}.")
    return 1.0 / (2.0 * fraction)


# -- layers of the networks of the tables ---------------------------------------------------------


def total_weights(layers: Sequence[Layer]) -> int:
    """Weights of all layers."""
    return sum(layer.weights for layer in layers)


def linear_inputs(channels: int, height: int, width: int) -> int:
    """Inputs of a linear layer that follows the flattening of ``(channels, height, width)``."""
    return channels * height * width


def lenet_300_100(inputs: int = 784, second: int = 300, third: int = 100) -> tuple[Layer, ...]:
    """LeNet-300-100 with so many inputs kept in each of its three layers."""
    return Layer(inputs, second), Layer(second, third), Layer(third, 10)


def lenet_5_caffe(
    conv1: int = 20,
    conv2: int = 50,
    fc1_inputs: int | None = None,
    fc2_inputs: int = 500,
    *,
    fc1_outputs: int | None = None,
) -> tuple[Layer, ...]:
    """LeNet-5-Caffe: 5x5 filters kept, and inputs kept of its two linear layers.

    Arguments:
        conv1, conv2: filters.
        fc1_inputs: of the 800 = 50 * 4 * 4 flattened numbers; all of ``conv2`` by default. It can
            be fewer than ``conv2 * 16``: the linear layer drops single pixels of a channel.
        fc2_inputs: of the 500 units between the linear layers.
        fc1_outputs: units the first linear layer computes, ``fc2_inputs`` by default.
    """
    flat = linear_inputs(conv2, 4, 4) if fc1_inputs is None else fc1_inputs
    outputs = fc2_inputs if fc1_outputs is None else fc1_outputs
    return (
        Layer(1, conv1, 25),
        Layer(conv1, conv2, 25),
        Layer(flat, outputs),
        Layer(fc2_inputs, 10),
    )


VGG_WIDTHS = (64, 64, 128, 128, 256, 256, 256, *[512] * 8)


def vgg(*widths: int) -> tuple[Layer, ...]:
    """The tables' VGG: 13 convolutions of 3x3 on CIFAR-10, then linear layers of 512 and 10.

    Arguments:
        widths: filters kept of the 13 convolutions, then inputs kept of the two linear layers;
            :data:`VGG_WIDTHS` if none are given.

    Raises:
        ValueError: if there are not 15.
    """
    widths = widths or VGG_WIDTHS
    if len(widths) != 15:
        raise ValueError(f"vgg needs 13 numbers of filters and 2 of inputs, got {len(widths)}.")
    channels = (3, *widths[:13])
    filters = [Layer(a, b, 9) for a, b in pairwise(channels)]
    return (*filters, Layer(widths[13], widths[14]), Layer(widths[14], 10))


def layers_of(net: nn.Module) -> dict[str, Layer]:
    """Sizes of the linear and convolutional weights of a plain network, by module name.

    The weight of a grouped convolution counts the inputs of one group.
    """
    found = {}
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            found[name] = Layer(module.in_features, module.out_features)
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            out, inputs = module.weight.shape[:2]
            found[name] = Layer(inputs, out, module.weight[0, 0].numel())
        elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            inputs, out = module.weight.shape[:2]
            found[name] = Layer(inputs, out, module.weight[0, 0].numel())
    return found
