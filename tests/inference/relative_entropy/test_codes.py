"""What codes send, against laws that are counted out, and what it takes."""

import itertools

import numpy as np
import pytest
from pyroccam.inference.coding.codes import CODES
from pyroccam.inference.coding.integers import BitReader, BitWriter
from pyroccam.inference.coding.relative_entropy import pieces
from pyroccam.inference.coding.target import Target, gaussian_kl
from scipy import stats

FALSE_ALARM = 1e-6  # of every statistical test here, were it run with another seed

Q = np.array([0.55, 0.25, 0.15, 0.05])  # over four equally likely values


class FourValues:
    """Candidates with four values."""

    def __init__(self, noise):
        self.values = noise.integers(0, 4, 2**12)
        self.bound = float(np.log(4 * Q.max()))

    def log_ratios(self, rows):
        return np.log(4 * Q)[self.values[rows.start : rows.stop]]


def sent(code, bits, draws, seed=0):
    """How often each of the four values is sent."""
    noise = np.random.default_rng(seed)
    counts = np.zeros(4)
    for _ in range(draws):
        target = FourValues(noise)
        counts[target.values[code.choose(target, bits, noise)]] += 1
    return counts


@pytest.mark.parametrize("word", ["minimal-random", "ordered-random"])
def test_few_candidates_have_the_law_that_is_counted_out(word):
    """Over all 256 choices of four candidates, the average of their importance weights."""
    law = np.zeros(4)
    for values in itertools.product(range(4), repeat=4):
        weights = Q[list(values)] / Q[list(values)].sum()
        np.add.at(law, list(values), weights / 256)
    assert abs(law - Q).max() > 0.05  # which is not q
    assert stats.chisquare(sent(CODES[word], 2, 4000), 4000 * law).pvalue > FALSE_ALARM


def test_chosen_index_is_a_draw_by_the_weights_of_given_candidates():
    noise = np.random.default_rng(0)
    target = FourValues(noise)
    found = [CODES["minimal-random"].choose(target, 3, noise) for _ in range(4000)]
    weights = np.exp(target.log_ratios(range(8)))
    counts = np.bincount(found, minlength=8)
    assert stats.chisquare(counts, 4000 * weights / weights.sum()).pvalue > FALSE_ALARM


def gaussian(block, size=12, nats=4.0, seed=0):
    """A target of a given KL."""
    noise = np.random.default_rng(seed)
    loc = noise.normal(size=size)
    scale = np.full(size, 0.8)
    left = nats - gaussian_kl(0 * loc, scale).sum()
    return Target(loc * np.sqrt(2 * left / (loc @ loc)), scale, seed=77, block=block)


@pytest.mark.parametrize("word", CODES)
def test_means_and_variances_of_what_is_sent_are_those_of_q(word):
    """With 4 nats and 2^10 candidates: t = 2.9 nats, by which the bias is not seen in 400 draws."""
    noise = np.random.default_rng(1)
    targets = [gaussian(block) for block in range(400)]
    assert targets[0].kl == pytest.approx(4.0)
    values = [t.value(CODES[word].choose(t, 10, noise)) for t in targets]
    z = (np.stack(values) - targets[0].loc) / targets[0].scale
    n, dims = z.shape
    limit = stats.norm.isf(FALSE_ALARM / 2 / (2 * dims))
    assert (abs(z.mean(0)) < limit / np.sqrt(n) + 0.05).all()
    assert abs((z**2).mean() - 1) < limit * np.sqrt(2 / (n * dims)) + 0.05


def test_ordered_indices_take_about_the_kl():
    """At most KL + log2(KL + 1) + 4 bits, the bound of Li and El Gamal 2018 for the entropy."""
    noise, code = np.random.default_rng(2), CODES["ordered-random"]
    indices = [code.choose(gaussian(b), 12, noise) for b in range(300)]
    out = BitWriter()
    code.write(indices, 12, out)
    kl = 4.0 / np.log(2)
    assert kl < len(out) / 300 < kl + np.log2(kl + 1) + 4
    assert code.read(300, 12, BitReader(out.content())) == indices


@pytest.mark.parametrize("word", CODES)
def test_indices_are_read_as_they_were_written(word):
    indices = np.random.default_rng(0).integers(0, 2**9, 40).tolist()
    out = BitWriter()
    CODES[word].write(indices, 9, out)
    assert CODES[word].read(40, 9, BitReader(out.content())) == indices


def test_log_ratios_are_those_of_the_densities():
    target = gaussian(3)
    z = np.stack([target.value(index) for index in range(20)]).astype(float)
    expected = stats.norm(target.loc, target.scale).logpdf(z) - stats.norm.logpdf(z)
    np.testing.assert_allclose(target.log_ratios(range(20)), expected.sum(1), rtol=1e-4, atol=1e-4)
    # Its largest value, by a search along each axis.
    grid = np.linspace(-9, 9, 40_001)[:, None]
    axes = stats.norm(target.loc, target.scale).logpdf(grid) - stats.norm.logpdf(grid)
    assert target.bound == pytest.approx(axes.max(0).sum(), abs=1e-4)
    assert Target(np.array([0.1]), np.array([1.0]), 0, 0).bound == np.inf


def test_candidates_are_looked_at_in_pieces():
    seen = [*pieces(13)]
    assert [n for rows in seen for n in rows] == [*range(2**13)]
    assert max(map(len, seen)) <= 2048
