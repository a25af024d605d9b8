"""What codes send, against laws that are counted out; its random numbers, and numbers in bits."""

import hashlib
import itertools

import numpy as np
import pytest
from pyroccam.data import PyroccamError
from pyroccam.inference.coding import (
    BitReader,
    BitWriter,
    Target,
    assignment,
    block_sizes,
    candidates,
    cosine_waves,
    deviation,
    from_frequencies,
    nearest,
    scaled,
)
from pyroccam.inference.coding.counter import philox
from pyroccam.inference.coding.normals import quantiles
from scipy import fft, special, stats

FALSE_ALARM = 1e-6  # of every statistical test here, were it run with another seed

Q = np.array([0.55, 0.25, 0.15, 0.05])  # over four equally likely values


class FourValues(Target):
    """Candidates with four values."""

    def __init__(self, noise):
        object.__setattr__(self, "values", noise.integers(0, 4, 4))

    def log_ratios(self, rows):
        return np.log(4 * Q)[self.values[rows.start : rows.stop]]


def test_few_candidates_have_the_law_that_is_counted_out():
    """Over all 256 choices of four candidates, the average of their importance weights."""
    law, counts, noise = np.zeros(4), np.zeros(4), np.random.default_rng(0)
    for values in itertools.product(range(4), repeat=4):
        weights = Q[list(values)] / Q[list(values)].sum()
        np.add.at(law, list(values), weights / 256)
    for _ in range(4000):
        target = FourValues(noise)
        counts[target.values[target.choose(2, noise)]] += 1
    assert abs(law - Q).max() > 0.05  # which is not q
    assert stats.chisquare(counts, 4000 * law).pvalue > FALSE_ALARM


def gaussian(block, size=12, nats=4.0, seed=0):
    """A target of a given KL."""
    noise = np.random.default_rng(seed)
    loc = noise.normal(size=size)
    scale = np.full(size, 0.8)
    left = nats - (0.5 * (scale**2 - 1) - np.log(scale)).sum()
    return Target(loc * np.sqrt(2 * left / (loc @ loc)), scale, seed=77, block=block)


def test_all_candidates_are_looked_at():
    """Of 2^12, 2,048 at a time."""
    noise = np.random.default_rng(2)
    indices = [gaussian(b).choose(12, noise) for b in range(300)]
    assert stats.kstest(np.array(indices) / 2**12, "uniform").pvalue > FALSE_ALARM


def test_without_noise_the_candidate_of_the_largest_weight_is_sent():
    for block in range(5):
        target = gaussian(block)
        z = candidates(77, block, range(2**12), 12).astype(float)
        weights = stats.norm(target.loc, target.scale).logpdf(z) - stats.norm.logpdf(z)
        assert target.choose(12, None) == weights.sum(1).argmax()


def test_log_ratios_are_those_of_the_densities():
    target = gaussian(3)
    z = np.stack([target.value(index) for index in range(20)]).astype(float)
    expected = stats.norm(target.loc, target.scale).logpdf(z) - stats.norm.logpdf(z)
    np.testing.assert_allclose(target.log_ratios(range(20)), expected.sum(1), rtol=1e-4, atol=1e-4)


# The library Random123 (Salmon et al. 2011), file kat_vectors, philox4x32 10.
VECTORS = [
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_words(counter, key, words):
    arrays = tuple(np.array([int(word, 16)], np.uint64) for word in counter.split())
    first, second = (int(word, 16) for word in key.split())
    assert [f"{int(w[0]):08x}" for w in philox(arrays, (first, second))] == words.split()


def test_candidates_are_standard_normals_and_the_same_everywhere():
    digest = hashlib.blake2b(quantiles().astype("<f4").tobytes(), digest_size=8).hexdigest()
    assert digest == "08b303df34892367"
    levels = (np.arange(2**16) + 0.5) / 2**16
    np.testing.assert_allclose(quantiles(), special.ndtri(levels), rtol=6e-8)
    found = candidates(9, 0, range(100), 10).astype("<f4").tobytes()
    assert hashlib.blake2b(found, digest_size=8).hexdigest() == "c06346ef8e023b64"
    z = candidates(1, 2, range(20_000), 50).astype(np.float64)
    limit = stats.norm.isf(FALSE_ALARM / 2)
    assert stats.kstest(z.ravel(), "norm").pvalue > FALSE_ALARM
    assert abs((z[:, 1:] * z[:, :-1]).mean()) < limit / np.sqrt(z[:, 1:].size)
    assert abs((z[1:] * z[:-1]).mean()) < limit / np.sqrt(z.size)


def test_weights_are_assigned_by_a_permutation_that_looks_random():
    order = assignment(4, 10_000)
    assert np.array_equal(np.sort(order), np.arange(10_000))
    assert assignment(0, 6).tolist() == [2, 4, 0, 5, 3, 1]
    assert abs(stats.spearmanr(order, np.arange(10_000)).statistic) < 5.5 / 100
    assert (order == assignment(5, 10_000)).sum() < 20
    assert block_sizes(11, 3).tolist() == [4, 4, 3]


def test_deviations_lie_on_a_grid():
    values = [deviation(byte) for byte in range(256)]
    np.testing.assert_allclose(values, 2.0 ** ((np.arange(256) - 128) / 8), rtol=1e-15)
    assert deviation(128) == 1.0
    assert [nearest(1.04 * value) for value in values[:-1]] == [*range(255)]
    assert scaled(np.array([2.0], np.float32), 120).tolist() == [1.0]
    with pytest.raises(PyroccamError):
        nearest(1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_is_read(seed):
    noise = np.random.default_rng(seed)
    widths = noise.integers(0, 20, 50).tolist()
    values = [int(noise.integers(0, 2**width)) for width in widths]
    out = BitWriter()
    for value, width in zip(values, widths, strict=True):
        out.fixed(value, width)
    out.number(2**seed - 1)
    out.number(2 ** (9 * seed))
    out.raw(b"end")
    source = BitReader(out.content())
    assert [source.fixed(width) for width in widths] == values
    assert (source.number(), source.number()) == (2**seed - 1, 2 ** (9 * seed))
    assert source.raw(3) == b"end"
    source.close()
    assert len(out.content()) == -(-len(out) // 8)


@pytest.mark.parametrize("n", [1, 2, 5, 28])
def test_waves_are_those_of_the_cosine_transform(n):
    """Up to their lengths, that of scipy."""
    lengths = 0.4 ** (np.arange(n) / n)
    waves = fft.idct(np.diag(lengths), axis=1, norm="ortho")
    np.testing.assert_allclose(cosine_waves(n), waves, atol=2**-20)


def test_kernels_are_sums_of_waves():
    """And their covariance is that of independent amplitudes."""
    z = np.random.default_rng(0).normal(size=(3, 2, 4, 5)).astype(np.float32)
    expected = np.einsum("abuv,ui,vj->abij", z.astype(float), cosine_waves(4), cosine_waves(5))
    np.testing.assert_allclose(from_frequencies(z), expected, rtol=1e-6, atol=1e-6)
    many = np.random.default_rng(1).normal(size=(20_000, 3, 3)).astype(np.float32)
    covariance = np.cov(from_frequencies(many).reshape(-1, 9).T)
    own = cosine_waves(3).T @ cosine_waves(3)
    np.testing.assert_allclose(covariance, np.kron(own, own), atol=0.05)
