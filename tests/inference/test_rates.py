"""The published table of compression rates, row by row."""

import math
from itertools import pairwise

import pytest
import torch
from pyroccam.inference.rounding import Layer, rates
from torch import nn


def lenet_300_100(*inputs):
    """By the inputs kept of its three layers."""
    return tuple(Layer(a, b) for a, b in pairwise([*inputs, 10]))


def lenet_5_caffe(conv1, conv2, inputs, hidden, outputs=None):
    """By the 5x5 filters kept, and the inputs of the linear layers: of the first fewer than
    ``16 conv2`` where single pixels of a channel died, of the second than the outputs of the first.
    """
    filters = Layer(1, conv1, 25), Layer(conv1, conv2, 25)
    return *filters, Layer(inputs, outputs or hidden), Layer(hidden, 10)


def vgg(*widths):
    """By the filters of its 13 convolutions of 3x3, and the inputs of its two linear layers."""
    filters = [Layer(a, b, 9) for a, b in pairwise((3, *widths[:13]))]
    return *filters, Layer(widths[13], widths[14]), Layer(widths[14], 10)


SMALL, CAFFE, VGG = 266_200, 430_500, 14_977_728
VGG_GNJ = (63, 64, 128, 128, 245, 155, 63, 26, 24, 20, 14, 12, 11, 11, 15)
VGG_GHS = (51, 62, 125, 128, 228, 129, 38, 13, 9, 6, 5, 6, 6, 6, 20)


# kept layers, bits, then kept, nonzero percent, pruning, fast, maximum: as computed, to two digits,
# and as printed in the paper (percent rounded, the others cut off).
ROWS = {
    "300-100 GNJ": (
        SMALL, lenet_300_100(278, 98, 13), (8, 9, 14), (28_648, 10.76, 9.29, 36.84, 58.22),
        (10.8, 9, 36, 58),
    ),
    "300-100 GHS": (
        SMALL, lenet_300_100(311, 86, 14), (13, 11, 10), (28_090, 10.55, 9.48, 23.51, 59.35),
        (10.6, 9, 23, 59),
    ),
    "LeNet-5 GNJ, fc1 88 x 12": (
        CAFFE, lenet_5_caffe(8, 13, 88, 13, outputs=12), (18, 10, 7, 9),
        (3_986, 0.93, 108.00, 360.99, 573.38), (0.9, 108, 360, 573),
    ),
    "LeNet-5 GHS": (
        CAFFE, lenet_5_caffe(5, 10, 76, 16), (10, 10, 14, 13),
        (2_751, 0.64, 156.49, 419.31, 771.72), (0.6, 156, 419, 771),
    ),
    "VGG GNJ": (
        VGG, vgg(*VGG_GNJ), (10, 10, 10, 10, 8, 8, 8, 5, 5, 5, 5, 5, 6, 7, 11),
        (1_001_286, 6.69, 14.96, 56.78, 95.44), (6.7, 14, 56, 95),
    ),
    "VGG GHS": (
        VGG, vgg(*VGG_GHS), (11, 12, 9, 14, 10, 8, 5, 5, 6, 6, 6, 8, 11, 17, 10),
        (822_236, 5.49, 18.22, 59.85, 116.15), (5.5, 18, 59, 116),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table(name):
    total, layers, bits, (kept, *numbers), (percent, *printed) = ROWS[name]
    row = rates.compression_rates(total, layers, bits)
    assert (row.kept, row.total) == (kept, total)
    found = [row.nonzero_percent, row.pruning, row.fast, row.maximum]
    assert [round(v, 2) for v in found] == numbers
    assert float(f"{row.nonzero_percent:.1f}") == percent
    assert [math.floor(v) for v in found[1:]] == printed


def columns_packed(weight, codes, bits):
    """A sparse matrix in compressed columns, as a string of bits."""
    rows = math.ceil(math.log2(len(weight)))
    pointer = math.ceil(math.log2(len(weight.nonzero()) + 1))
    ends, entries, count = "", "", 0
    for column, code in zip(weight.T, codes.T, strict=True):
        for row in column.nonzero().flatten():
            entries += format(int(row), f"0{rows}b") + format(int(code[row]), f"0{bits}b")
            count += 1
        ends += format(count, f"0{pointer}b")
    return ends + entries


@pytest.mark.parametrize(("outputs", "inputs"), [(37, 20), (64, 9), (5, 130)])
def test_as_many_bits_as_a_sparse_matrix_takes(outputs, inputs):
    torch.manual_seed(0)
    kept, bits = torch.rand(outputs, inputs) < 0.2, 7
    codes = torch.randint(1, 2**bits, kept.shape) * kept
    nonzero = int(kept.sum())
    by_column = columns_packed(codes, codes, bits)
    by_row = columns_packed(codes.T, codes.T, bits)
    row = rates.compression_rates(codes.numel(), [Layer(inputs, outputs)], [bits], [nonzero])
    shorter = min(len(by_column), len(by_row))
    assert row.fast == 32 * codes.numel() / shorter
    assert row.maximum == 32 * codes.numel() / (shorter - 2 * nonzero + 1024)
    assert row.pruning == codes.numel() / (2 * nonzero + outputs)  # indices, and pointers


def test_one_weight_is_at_the_only_place():
    assert rates.place_bits(Layer(1, 1), 1) == 1  # that it is there


def test_sizes_of_a_network_of_ones_own():
    parts = nn.Conv2d(1, 20, 5), nn.ReLU(), nn.Flatten(), nn.Linear(800, 500), nn.BatchNorm1d(500)
    net = nn.Sequential(*parts)
    net.add_module("up", nn.ConvTranspose1d(6, 4, 3))
    net.add_module("grouped", nn.Conv1d(6, 4, 3, groups=2))
    found = rates.layers_of(net)
    ends = {"up": Layer(6, 4, 3), "grouped": Layer(3, 4, 3)}
    assert found == {"0": Layer(1, 20, 25), "3": Layer(800, 500), **ends}
    assert all(net.get_submodule(k).weight.numel() == v.weights for k, v in found.items())
