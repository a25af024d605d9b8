"""The three compression rates of the published tables, counted as they count them.

Weights only: biases, statistics and the description of the network are left out, so a rate is a
formula's number and not that of a file (:mod:`~pyroccam.inference.files.packed` writes real
ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ...data import PyroccamError

FLOAT_BITS = 32
INDEX_BITS = 5  # of the shared codebook of the "maximum" column: 32 float32 values per layer


@dataclass(frozen=True)
class Layer:
    """A weight tensor: every input is joined to every output by ``kernel`` numbers."""

    inputs: int
    outputs: int
    kernel: int = 1

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

    References:
        The arithmetic reproduces the tables of Louizos, Ullrich, Welling 2017. The rule of the
        last column was inferred from their numbers; they cite Han, Mao, Dally 2016 for it.
    """
    counts = [layer.weights for layer in kept]
    if not any(counts):
        raise PyroccamError("No weight is left")
    return _rates(total, counts, bits, total / sum(counts), 0)


def sparse_rates(
    total: int, layers: Sequence[Layer], nonzero: Sequence[int], bits: Sequence[int]
) -> Rates:
    """The row of a network of which single weights are kept.

    Beside its value, or its index in the codebook, every weight says where it is: each layer in
    compressed columns or rows, whichever is smaller (:func:`place_bits`). ``pruning`` is that of
    compressed columns (CSC): a row index beside every value, counted as large as it, and a pointer
    to the start of every column.

    Arguments:
        layers: the layers after, without the units that died.
        nonzero: weights kept in each layer.
        total, bits: as for :func:`group_rates`.

    References:
        Louizos, Ullrich, Welling 2017 print fast / maximum rates of sparse variational dropout
        without saying what a position costs, and no weights by layer, so they cannot be reproduced.
        With their bits and kept units, and the densities by layer of Molchanov, Ashukha, Vetrov
        2017 scaled to their percentages, this rule gives 84 / 108 for LeNet-300-100 (printed
        84 / 113) and 255 / 313 for LeNet-5-Caffe (printed 228 / 365); with one density for all
        layers 88 / 105 and 272 / 304.
    """
    if not any(nonzero):
        raise PyroccamError("No weight is left")
    places = sum(place_bits(layer, n) for layer, n in zip(layers, nonzero, strict=True))
    pointers = sum(layer.outputs for layer in layers)
    return _rates(total, nonzero, bits, total / (2 * sum(nonzero) + pointers), places)


def place_bits(layer: Layer, nonzero: int) -> int:
    """Bits that say where the kept weights of a layer are.

    The weight is a matrix (outputs, inputs * kernel). In compressed columns every kept weight
    stores its row, ``ceil(log2(rows))`` bits, and every column the number of weights up to its end,
    ``ceil(log2(nonzero + 1))`` bits; in compressed rows it is the other way round. The smaller is
    taken: which one it is belongs to the description of the network, as sizes do.
    """
    rows, columns = layer.outputs, layer.inputs * layer.kernel
    end = nonzero.bit_length()
    return min(
        nonzero * max(inner - 1, 0).bit_length() + outer * end
        for inner, outer in ((rows, columns), (columns, rows))
    )


def _rates(
    total: int, kept: Sequence[int], bits: Sequence[int], pruning: float, places: int
) -> Rates:
    """Rates by the weights kept in each layer and their bits, and the bits that say where they
    are."""
    size, weights = FLOAT_BITS * total, sum(kept)
    coded = sum(n * b for n, b in zip(kept, bits, strict=True))
    codebooks = sum(n > 0 for n in kept) * 2**INDEX_BITS * FLOAT_BITS
    return Rates(
        kept=weights,
        total=total,
        nonzero_percent=100.0 * weights / total,
        pruning=pruning,
        fast=size / (coded + places),
        maximum=size / (INDEX_BITS * weights + codebooks + places),
    )


def layers_of(net: nn.Module) -> dict[str, Layer]:
    """Sizes of the weights of a plain network's layers, by module name.

    The weight of a grouped convolution counts the inputs of one group.
    """
    found = {}
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            found[name] = Layer(module.in_features, module.out_features)
        elif isinstance(module, nn.Embedding):
            found[name] = Layer(module.num_embeddings, module.embedding_dim)
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            out, inputs = module.weight.shape[:2]
            found[name] = Layer(inputs, out, module.weight[0, 0].numel())
        elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            inputs, out = module.weight.shape[:2]
            found[name] = Layer(inputs, out, module.weight[0, 0].numel())
    return found
