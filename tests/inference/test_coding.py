"""Float arrays into symbols: exact, and as short as their entropy says."""

import numpy as np
import pytest
import torch
from pyroccam.inference.coding import SymbolReader, SymbolWriter, decode_pocc, put_floats
from pyroccam.inference.coding.decode_pocc import DENSITIES, MOST_ROWS, read_floats
from pyroccam.inference.rounding.bits import round_significand


def there_and_back(values, rows=1):
    """Writing taken, bytes of coded symbols, bytes of tables; the numbers must come back."""
    values = np.asarray(values, dtype=np.float32).ravel()
    writer = SymbolWriter()
    writing = put_floats(writer, values, rows)
    coded = writer.finish()
    assert 8 * len(coded) <= writer.bits * (1 + 1e-4) + 64
    reader = SymbolReader(bytes(writer.tables), coded)
    found = read_floats(reader, len(values), rows)
    reader.close()
    assert found.dtype == np.float32
    assert np.array_equal(found, values)
    return writing, len(coded), len(writer.tables)


def layer(seed, rows=60, columns=50, spread=1.0):
    rng = np.random.default_rng(seed)
    scale = 0.05 * rng.lognormal(0, spread, size=(rows, 1))
    return torch.tensor(rng.standard_t(4, size=(rows, columns)) * scale).float()


def entropy_bits(symbols):
    """Empirical entropy of all symbols together."""
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def ideal_bits(values, digits):
    """Entropy of which are kept and of sign and exponent, and the digits as they are."""
    values = np.asarray(values).ravel()
    kept = values[values != 0]
    exponents = 2 * np.frexp(kept)[1] + (kept < 0)
    return entropy_bits(values != 0) + entropy_bits(exponents) + len(kept) * (digits - 1)


@pytest.mark.parametrize("digits", [1, 3, 8, 14, 24])
@pytest.mark.parametrize("share", [1.0, 0.02])
def test_a_layer_takes_little_more_than_its_entropy(digits, share):
    weights = round_significand(layer(digits, 200, 150), digits)
    kept = torch.rand(200, 150, generator=torch.Generator().manual_seed(1)) < share
    weights = weights * kept
    _, coded, _ = there_and_back(weights, 200)
    # 0.2 % for rounded probabilities, and 12 bytes at the end.
    assert 8 * coded <= 1.002 * ideal_bits(weights, digits) + 96
    assert 8 * coded >= 0.9 * ideal_bits(weights, digits)


@pytest.mark.parametrize("axis", [0, 1])
def test_zeros_in_rows_or_columns_are_cheaper_than_zeros_anywhere(axis):
    rng = np.random.default_rng(3)
    density = rng.choice([0.0, 0.3], p=[0.8, 0.2], size=200)
    kept = rng.random((200, 200)) < (density[:, None] if axis == 0 else density[None])
    values = np.where(kept, 1.0, 0.0)
    _, coded, _ = there_and_back(values, 200)
    anywhere = entropy_bits(kept)
    within = sum(entropy_bits(line) for line in (kept if axis == 0 else kept.T))
    # What there is to learn of each line with something in it: half a digit of log2 of the rows.
    learning = sum(0.5 * np.log2(200) if d else 1.0 for d in density)
    assert 8 * coded <= 1.01 * within + 64 + learning
    assert within < 0.6 * anywhere


def test_densities_that_are_learnt_are_those_of_the_rows_before():
    """The length, by counting in a loop: a column has had so many, and the start is 8 rows."""
    rng = np.random.default_rng(8)
    density = rng.beta(0.2, 1.0, size=40)
    kept = rng.random((120, 40)) < density
    writer = SymbolWriter()
    put_floats(writer, np.where(kept, 1.0, 0.0).astype(np.float32).ravel(), 120)
    reader = SymbolReader(bytes(writer.tables), writer.finish())
    axis, start, told = (reader.number() for _ in range(3))
    assert (axis, told, writer.version) == (4, 0, 2)
    whole = DENSITIES[reader.table(1)[0]]
    bits = 0.0
    for column in kept.T:
        seen = 0
        for i, one in enumerate(column):
            p = (seen + start / 8 * whole) / (i + start / 8)
            bits -= np.log2(p if one else 1 - p)
            seen += one
    size = 2 * 16 + kept.sum()  # the step, which is 1, and a sign each: nothing else is told
    assert writer.bits == pytest.approx(bits, rel=1e-4) or writer.bits == pytest.approx(
        bits + size, rel=1e-4
    )


def test_a_mask_of_many_rows_is_not_learnt(monkeypatch):
    """Which would take time to read, and no byte of the file; nor does it make a new version."""
    values = layer(3, rows=MOST_ROWS + 1, columns=2).numpy()
    values[:, 0] = 0.0
    writer = SymbolWriter()
    put_floats(writer, values.ravel(), len(values))
    assert writer.version == 1
    small = values[:500]
    writer = SymbolWriter()
    put_floats(writer, small.ravel(), len(small))
    assert writer.version == 2
    reader = SymbolReader(bytes(writer.tables), writer.finish())
    monkeypatch.setattr(decode_pocc, "MOST_ROWS", len(small) - 1)
    with pytest.raises(ValueError, match="499 rows"):
        read_floats(reader, small.size, len(small))


@pytest.mark.parametrize("least", [1, 2, 3])
def test_whole_multiples_of_a_step(least):
    """A step that is no power of two, though no weight may be one of it."""
    rng = np.random.default_rng(10 + least)
    whole = rng.geometric(0.3, size=6000) + least - 1
    signs = rng.choice([-1, 1], size=6000)
    step = np.float32(rng.uniform(0.01, 0.1))
    writing, coded, tables = there_and_back(step * (whole * signs).astype(np.float32), 60)
    there_and_back(np.tile(np.float32(3.401e38 / 40) * np.arange(-40, 41, dtype=np.float32), 30))
    assert writing == "multiples"
    assert 8 * coded <= 1.005 * entropy_bits(whole) + 6000 + 32 + 64
    assert tables < 60


@pytest.mark.parametrize(
    ("values", "writing"),
    [
        ([], "zeros"),
        ([0.0, 0.0, -0.0], "zeros"),
        ([0.1], "raw"),
        ([0.5, 1e-45, 3e38, -1.4e-45, 0.0], "raw"),
        (np.linspace(-3, 3, 7), "floats"),
        (np.ones(1000), "floats"),
    ],
)
def test_short_and_extreme_arrays(values, writing):
    found, coded, _ = there_and_back(values)
    assert found == writing
    assert coded <= 4 * len(values) + 8
