"""Random integers, and normals made of them: known vectors, and their law."""

import hashlib

import numpy as np
import pytest
from pyroccam.data.errors import PyroccamError
from pyroccam.inference.coding.blocks import assignment, block_sizes
from pyroccam.inference.coding.counter import halves, philox
from pyroccam.inference.coding.normals import candidates, quantiles
from scipy import special, stats

FALSE_ALARM = 1e-6  # of every statistical test here, were it run with another seed

# The library Random123 (Salmon et al. 2011), file kat_vectors, philox4x32 10.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
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


def test_numbers_of_a_candidate_do_not_depend_on_what_else_is_asked_for():
    whole = halves(2**40 + 7, 0, 3, range(50), 21)
    assert np.array_equal(halves(2**40 + 7, 0, 3, range(11, 13), 21), whole[11:13])
    assert np.array_equal(halves(2**40 + 7, 0, 3, range(50), 9), whole[:, :9])
    for other in (halves(7, 0, 3, range(50), 21), halves(2**40 + 7, 1, 3, range(50), 21)):
        assert (other != whole).mean() > 0.9


def test_the_table_of_quantiles_is_that_of_every_machine():
    digest = hashlib.blake2b(quantiles().astype("<f4").tobytes(), digest_size=8).hexdigest()
    assert digest == "08b303df34892367"
    levels = (np.arange(2**16) + 0.5) / 2**16
    np.testing.assert_allclose(quantiles(), special.ndtri(levels), rtol=6e-8)
    assert np.array_equal(quantiles(), -quantiles()[::-1])


def test_candidates_are_standard_normals():
    z = candidates(1, 2, range(20_000), 50).astype(np.float64)
    n = z.size
    assert stats.kstest(z.ravel(), "norm").pvalue > FALSE_ALARM
    limit = stats.norm.isf(FALSE_ALARM / 2)
    # Moments of a normal: 1, 3, 15, 105; the variance of an average of z^k is of order 2k.
    for k, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**k).mean() - expected) < limit * np.sqrt(variance / n) + 3e-4
    beyond = (np.abs(z) > 3).sum()
    assert stats.binomtest(int(beyond), n, 2 * stats.norm.sf(3)).pvalue > FALSE_ALARM
    flat = z.reshape(-1, 50)
    assert abs((flat[:, 1:] * flat[:, :-1]).mean()) < limit / np.sqrt(n - len(flat))
    assert abs((z[1:] * z[:-1]).mean()) < limit / np.sqrt(n)


def test_candidates_are_the_same_everywhere():
    found = candidates(9, 0, range(100), 10)
    assert found.dtype == np.float32
    assert found.shape == (100, 10)
    digest = hashlib.blake2b(found.astype("<f4").tobytes(), digest_size=8)
    assert digest.hexdigest() == "c06346ef8e023b64"


def test_weights_are_assigned_by_a_permutation_that_looks_random():
    order = assignment(4, 10_000)
    assert np.array_equal(np.sort(order), np.arange(10_000))
    assert np.array_equal(order, assignment(4, 10_000))
    assert assignment(0, 6).tolist() == [2, 4, 0, 5, 3, 1]
    assert abs(stats.spearmanr(order, np.arange(10_000)).statistic) < 5.5 / 100
    assert (order == assignment(5, 10_000)).sum() < 20


def test_blocks_differ_by_at_most_one_weight():
    assert block_sizes(11, 3).tolist() == [4, 4, 3]
    with pytest.raises(PyroccamError):
        block_sizes(11, 12)
