"""Whole numbers in bits and back."""

import numpy as np
import pytest
from pyroccam.inference.coding.integers import BitReader, BitWriter, DamagedBits, code_lengths


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read(seed):
    noise = np.random.default_rng(seed)
    widths = noise.integers(0, 20, 50).tolist()
    values = [int(noise.integers(0, 2**width)) for width in widths]
    sizes = np.minimum(noise.zipf(1.2, 200), 2**12).astype(int) - 1
    out = BitWriter()
    for value, width in zip(values, widths, strict=True):
        out.fixed(value, width)
    out.number(2**seed - 1)
    out.number(2 ** (9 * seed))
    out.sizes(sizes.tolist(), 12)
    out.raw(b"end")
    source = BitReader(out.content())
    assert [source.fixed(width) for width in widths] == values
    assert (source.number(), source.number()) == (2**seed - 1, 2 ** (9 * seed))
    assert source.sizes(200, 12) == sizes.tolist()
    assert source.raw(3) == b"end"
    source.close()
    assert len(out.content()) == -(-len(out) // 8)


def test_lengths_are_those_of_a_huffman_code():
    """Within a bit of the entropy, prefix-free (Kraft), and at most 15."""
    for seed in range(20):
        noise = np.random.default_rng(seed)
        counts = np.floor(np.exp(noise.normal(0, 3, 17))).astype(int)
        lengths = np.array(code_lengths(counts.tolist()))
        assert ((lengths > 0) == (counts > 0)).all()
        assert lengths.max() <= 15
        used = counts > 0
        p = counts[used] / counts.sum()
        entropy = -(p * np.log2(p)).sum()
        if used.sum() > 1:
            assert (0.5 ** lengths[used]).sum() == 1
            assert entropy <= (p * lengths[used]).sum() < entropy + 1
    assert max(code_lengths([2**i for i in range(24)])) == 15
    assert code_lengths([0, 3]) == [0, 1]


@pytest.mark.parametrize("content", [b"", b"\xff", b"\x00\x00"])
def test_bits_that_end_too_early_are_damaged(content):
    with pytest.raises(DamagedBits):
        BitReader(content).sizes(30, 12)
    with pytest.raises(DamagedBits):
        BitReader(content).fixed(17)


def test_bits_that_nobody_needs_are_damaged():
    with pytest.raises(DamagedBits, match="more in it"):
        BitReader(b"\x00\x00").close()
    source = BitReader(b"\x01")
    source.fixed(4)
    with pytest.raises(DamagedBits, match="more in it"):
        source.close()
