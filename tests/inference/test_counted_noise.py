"""Random numbers of a counter: known answers, their law, and who gets them."""

import numpy as np
import pytest
import torch
from pyroccam.inference.compilation.inductor import compiled
from pyroccam.inference.compilation.noise import COUNTED, FEWEST, random_word, threefry
from scipy import stats
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

COUNT = 400_001  # odd: the last pair is used by half


def word(bits):
    return torch.tensor([bits], dtype=torch.int64).to(torch.int32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0xFD36D048, 0x2D17272C)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_words_are_those_of_random123(counter, key, expected):
    """The known answers that come with its authors' library."""
    found = threefry(torch.cat([word(k) for k in key]), *map(word, counter))
    assert tuple(int(w) & 0xFFFFFFFF for w in found) == expected


@pytest.mark.parametrize("key", [(-(2**31), 2**31 - 1), (7, -9)])
def test_compiled_words_are_those_of_the_operation(key):
    def words(key):
        return random_word(key, 1003, 0), random_word(key, 1003, 1)

    given = torch.tensor(key, dtype=torch.int32)
    layouts = [(given.shape, given.stride(), given.dtype, given.device)]
    call, _ = compiled(make_fx(words)(given), layouts)
    found, expected = call([given]), words(given)
    assert not torch.equal(*expected)
    assert all(map(torch.equal, found, expected))


def drawn(target, count=COUNT, seed=0):
    torch.manual_seed(seed)
    return COUNTED[target]([count]).double().numpy()


@pytest.mark.parametrize(
    ("target", "law"), [(aten.randn.default, stats.norm), (aten.rand.default, stats.uniform)]
)
def test_the_law(target, law):
    """Kolmogorov and Smirnov's distance of the whole, of both halves and of the tails."""
    numbers = drawn(target)
    assert numbers.shape == (COUNT,)
    for part in (numbers, numbers[: COUNT // 2], numbers[COUNT // 2 :]):
        assert stats.kstest(part, law.cdf).pvalue > 1e-4
    far = law.ppf(0.999)
    tail = numbers[numbers > far]
    assert abs(len(tail) - 400) < 80
    assert stats.kstest(law.sf(tail) / 0.001, "uniform").pvalue > 1e-4


def test_numbers_do_not_depend_on_each_other():
    """Not on neighbours, not on the other of a pair, not on those of another key."""
    one = drawn(aten.randn.default)
    half = (COUNT + 1) // 2
    shifted = [(one[:-k], one[k:]) for k in (1, 2, 16, half)]
    shifted += [(one, drawn(aten.randn.default, seed=1))]
    torch.manual_seed(0)
    first, then = (COUNTED[aten.randn.default]([COUNT]).double().numpy() for _ in range(2))
    for a, b in [*shifted, (first, then)]:
        for f in (np.asarray, np.square, np.abs, np.sign):
            correlation = np.corrcoef(f(a), f(b))[0, 1]
            assert abs(correlation) < 4.5 / np.sqrt(len(a))


def test_a_bit_of_key_or_counter_changes_half_of_the_bits():
    words = torch.arange(2000, dtype=torch.int32)
    zero = torch.zeros_like(words)
    key = torch.tensor([123, -45], dtype=torch.int32)

    def bits(*words):
        both = torch.cat(words).numpy().view(np.uint8)
        return np.unpackbits(both).reshape(-1, 32)

    before = bits(*threefry(key, words, zero))
    for place in (0, 13, 31):
        flip = int(word(1 << place))
        for after in (
            threefry(key, words ^ flip, zero),
            threefry(key, words, zero ^ flip),
            threefry(key ^ torch.tensor([flip, 0], dtype=torch.int32), words, zero),
        ):
            changed = (before != bits(*after)).mean(0)  # of 4,000 words, by bit
            assert np.abs(changed - 0.5).max() < 5 * 0.5 / np.sqrt(4000)


def test_who_gets_them():
    """Many numbers of single precision: others come from torch's generator itself."""
    many = torch.empty(2 * FEWEST)

    def f(many, few, double, turned):
        return [torch.randn_like(t) for t in (many, few, double, turned)] + [torch.rand(FEWEST)]

    with torch.random.fork_rng(devices=[]):
        inputs = many, many[:10], many.double(), many.view(2, -1).t()
        graph = make_fx(f, decomposition_table=COUNTED)(*inputs)
    operations = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert operations.count(aten.randn_like.default) == 3
    assert aten.rand.default not in operations
    assert [aten.randint.low in operations, aten.log.default in operations] == [True, True]
    torch.manual_seed(3)
    found = graph(*inputs)
    assert found[0].shape == many.shape
    assert found[0].dtype == found[4].dtype == torch.float32
    torch.manual_seed(3)
    assert all(map(torch.equal, found, graph(*inputs)))
    assert not torch.equal(found[0], graph(*inputs)[0])
