"""The random numbers of a graph: as its inputs, so that the same numbers give the same value; or
from a counter, which a compiler turns into loops."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

from ...models.distributions import UNIFORMS, gamma_of
from .fusion import DRAWS
from .trace import Untraceable

aten = torch.ops.aten

_GAMMA = torch.ops.aten._standard_gamma.default

Draw = Callable[[], list[Tensor]]


def lift_noise(graph: fx.GraphModule, *inputs: Any) -> tuple[fx.GraphModule, Draw]:
    """A graph whose random numbers are further arguments, and what draws them.

    It takes its arguments flat, ``graph(*flat, *noise)``, and returns a flat list. A gamma
    variable is made of uniform numbers
    (:func:`~pyroccam.models.distributions.gamma_quantile.gamma_of`), so that the same ones give the
    same value, with two derivatives by its shape.

    Arguments:
        graph: of tensor operations. It is not changed.
        inputs: examples of its arguments.

    Returns:
        the graph, and a function that gives ``noise``, a list of tensors.

    Raises:
        Untraceable: for any other draw whose law depends on values.
    """
    flat = tree_flatten(inputs)[0]
    recorder = _Recorder(graph, {t.device for t in flat if isinstance(t, Tensor)})
    cuda = [device for device in recorder.devices if device.type == "cuda"]
    with torch.no_grad(), torch.random.fork_rng(devices=cuda):
        recorder.run(*flat, enable_io_processing=False)
    lifted = copy.deepcopy(graph)
    lifted.graph.set_codegen(fx.graph.CodeGen())  # flat: the noise is in no tree of arguments
    nodes = {node.name: node for node in lifted.graph.nodes}
    last = [node for node in lifted.graph.nodes if node.op == "placeholder"][-1]
    for k, name in enumerate(recorder.draws):
        with lifted.graph.inserting_after(last):
            last = lifted.graph.placeholder(f"noise_{k}")
        value = last
        if nodes[name].target is _GAMMA:
            with lifted.graph.inserting_before(nodes[name]):
                value = lifted.graph.call_function(gamma_of, (last, nodes[name].args[0]))
        nodes[name].replace_all_uses_with(value)
        lifted.graph.erase_node(nodes[name])
    lifted.graph.eliminate_dead_code()
    lifted.recompile()
    draws = list(recorder.draws.values())
    return lifted, lambda: [draw() for draw in draws]


class _Recorder(fx.Interpreter):
    """Finds the random operations of a graph, and how to draw again from each."""

    def __init__(self, graph: fx.GraphModule, devices: set[torch.device]) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # nothing of nodes in a message
        self.devices = devices
        self.draws: dict[str, Callable[[], Tensor]] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        target: Any = n.target
        if target in DRAWS:
            shapes = fx.node.map_aggregate(
                args, lambda a: torch.empty_like(a) if isinstance(a, Tensor) else a
            )
            self.draws[n.name] = lambda: target(*shapes, **kwargs)
            return super().run_node(n)
        if target is _GAMMA and kwargs.get("generator") is None and len(args) == 1:
            like = torch.empty_like(args[0]).expand(UNIFORMS, *args[0].shape)
            self.draws[n.name] = lambda: torch.rand_like(like)
            return super().run_node(n)
        before = self._generators()
        found = super().run_node(n)
        own = any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values()))
        if own or not all(map(torch.equal, before, self._generators())):
            raise Untraceable(
                f"it draws by {target}, whose noise cannot be held fixed: only that of "
                "torch.randn, torch.rand, normal_ and the like can, into a new tensor, where "
                "nothing but its shape matters"
            )
        return found

    def _generators(self) -> list[Tensor]:
        """Generators that any draw changes."""
        cuda = [device for device in self.devices if device.type == "cuda"]
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]


FEWEST = 4096
"""Numbers from which on to count is faster than to call torch's generator for each of them."""

_ROUNDS = 13
_ROTATIONS = 13, 15, 26, 6, 17, 29, 16, 24


def threefry(key: Sequence[Any], first: Any, second: Any) -> tuple[Any, Any]:
    """Threefry-2x32 of 13 rounds: two words of 32 random bits for each counter.

    Nothing is kept from one number to the next: a compiler makes loops of it, and the numbers are
    the same however many threads there are.

    Arguments:
        key: two words of int32.
        first, second: the words of the counters, int32: tensors of any shape, or whatever has their
            operators.

    Returns:
        two of that shape, int32, the sign one of the bits.

    References:
        Salmon, Moraes, Dror, Shaw 2011, Parallel random numbers: as easy as 1, 2, 3, SC11: with 13
        rounds it passes the batteries of TestU01.
    """
    keys = key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA
    a, b = first + keys[0], second + keys[1]
    for number in range(_ROUNDS):
        turn = _ROTATIONS[number % 8]
        a = a + b
        b = ((b << turn) | _right(b, 32 - turn)) ^ a
        if number % 4 == 3:
            add = number // 4 + 1
            a = a + keys[add % 3]
            b = b + keys[(add + 1) % 3] + add
    return a, b


def _right(word: Any, places: int) -> Any:
    """A word of 32 bits moved to the right, zeros behind it."""
    return (word >> places) & ((1 << (32 - places)) - 1)


@torch.library.custom_op("pyroccam::random_word", mutates_args=())
def random_word(key: Tensor, count: int, which: int) -> Tensor:
    """The first (0) or the second (1) words of the counters from 0 to ``count``, ``(count,)``,
    int32, by a key ``(2,)``, int32.

    One operation, for of a hundred a compiler makes a tree, which takes it seconds.
    """
    counter = torch.arange(count, dtype=torch.int32, device=key.device)
    return threefry(key.unbind(), counter, torch.zeros_like(counter))[which]


@random_word.register_fake
def _(key: Tensor, count: int, which: int) -> Tensor:
    return key.new_empty(count)


def _words(count: int) -> tuple[Tensor, Tensor]:
    """``count`` words twice; the key is from torch's generator, which gives two numbers for it."""
    key = torch.randint(-(2**31), 2**31, (2,), device="cpu").to(torch.int32)
    return random_word(key, count, 0), random_word(key, count, 1)


def _randn(size: Sequence[int], **options: Any) -> Any:
    """``torch.randn``, by Box and Muller's transformation; it ends at 6.7."""
    count = math.prod(size)
    if not _is_counted(count, **options):
        return NotImplemented
    first, second = _words(-(-count // 2))
    uniform = (_right(first, 1).to(torch.float32) + 0.5) * 2.0**-31
    radius = torch.sqrt(-2.0 * torch.log(uniform))
    angle = second.to(torch.float32) * (math.pi * 2.0**-31)
    both = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])
    return both[:count].view(size)


def _rand(size: Sequence[int], **options: Any) -> Any:
    """``torch.rand``, of 24 bits each."""
    count = math.prod(size)
    if not _is_counted(count, **options):
        return NotImplemented
    words = torch.cat(_words(-(-count // 2)))[:count]
    return (_right(words, 8).to(torch.float32) * 2.0**-24).view(size)


def _is_counted(count: int, *, dtype: torch.dtype | None = None, **_: Any) -> bool:
    """True of many numbers of single precision."""
    return count >= FEWEST and (dtype or torch.get_default_dtype()) is torch.float32


def _like(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A draw of the shape of a tensor, whose numbers may lie in another order."""

    def like(t: Tensor, **options: Any) -> Any:
        if not t.is_contiguous():  # a recorded view may need the strides that torch would give
            return NotImplemented
        given = {name: value for name, value in options.items() if value is not None}
        return draw(t.shape, **{"dtype": t.dtype, "device": t.device, **given})

    return like


COUNTED: dict[Any, Callable[..., Any]] = {
    aten.randn.default: _randn,
    aten.rand.default: _rand,
    aten.randn_like.default: _like(_randn),
    aten.rand_like.default: _like(_rand),
}
"""For a compiler on a CPU, which calls torch's generator otherwise, that draws one number after the
other; ``NotImplemented`` leaves the operation."""
