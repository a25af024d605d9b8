"""The three compression rates of the published tables, counted as they count them.

Weights only: biases, statistics and the description of the network are left out, so a rate is a
formula's number and not that of a file (:mod:`~pyroccam.inference.files.packed` writes real
ones).
"""

from __future__ import annotations

import math
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


def compression_rates(
    total: int,
    layers: Sequence[Layer],
    bits: Sequence[int],
    nonzero: Sequence[int] | None = None,
    books: int | None = None,
) -> Rates:
    """The row of a network from which whole units and filters were cut, or of which single weights
    are kept.

    Beside its value, or its index in the codebook, every single weight says where it is: each layer
    in compressed columns or rows, whichever is smaller (:func:`place_bits`). ``pruning`` is that of
    compressed columns (CSC): a row index beside every value, counted as large as it, and a pointer
    to the start of every column.

    Arguments:
        total: weights before.
        layers: after; one of no inputs or outputs costs nothing.
        bits: per kept weight in each layer, sign and exponent included; 0 for a layer without any.
        nonzero: single weights kept in each layer.
        books: numbers in codebooks of its own, where weights share values: then ``bits`` of these
            are those of an index, ``maximum`` counts them, and there is no ``fast``.

    References:
        The arithmetic reproduces the tables of Louizos, Ullrich, Welling 2017. The rule of the
        last column was inferred from their numbers; they cite Han, Mao, Dally 2016 for it.

        They print fast / maximum rates of sparse variational dropout without saying what a position
        costs, and no weights by layer, so they cannot be reproduced. With their bits and kept
        units, and the densities by layer of Molchanov, Ashukha, Vetrov 2017 scaled to their
        percentages, this rule gives 84 / 108 for LeNet-300-100 (printed 84 / 113) and 255 / 313 for
        LeNet-5-Caffe (printed 228 / 365); with one density for all layers 88 / 105 and 272 / 304.
    """
    counts = [layer.weights for layer in layers] if nonzero is None else nonzero
    kept, places = sum(counts), 0
    if not kept:
        raise PyroccamError("No weight is left")
    pruned = kept
    if nonzero is not None:
        places = sum(place_bits(layer, n) for layer, n in zip(layers, nonzero, strict=True))
        pruned = 2 * kept + sum(layer.outputs for layer in layers)
    coded = sum(n * b for n, b in zip(counts, bits, strict=True)) + places
    usual = INDEX_BITS * kept + sum(n > 0 for n in counts) * 2**INDEX_BITS * FLOAT_BITS + places
    return Rates(
        kept=kept,
        total=total,
        nonzero_percent=100.0 * kept / total,
        pruning=total / pruned,
        fast=FLOAT_BITS * total / coded if books is None else math.nan,
        maximum=FLOAT_BITS * total / (usual if books is None else coded + FLOAT_BITS * books),
    )


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
