"""The numbers of a module: who keeps them, where they began, and whether they are there."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook as of_modules
from torch.nn.modules.module import register_module_parameter_registration_hook as of_parameters
from torch.nn.parameter import is_lazy

from ..data import NetworkError, PyroccamError, ask, checked, shown

Numbers = dict[str, Tensor]
"""Parameters and buffers by name."""

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")

_OBJECT = 2**16  # bytes of Python's objects for a layer or a tensor, and the time to make them


class LocalModule(PyroModule):
    """A PyroModule that works in both of Pyro's parameter modes, whenever it was made.

    Pyro decides when a module is *made* whether it can ever keep its parameters to itself; made
    under the default it breaks in a module-local ELBO. This one always can, and still registers
    with the global store when a person trains it with plain ``SVI``. What each class is made of is
    looked at by the types of its arguments.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        with pyro.settings.context(module_local_params=True):
            super().__init__()

    def part(self, name: str) -> Any:
        """A submodule, registered with Pyro's global store only where that is in use.

        Reading the attribute makes Pyro state every parameter below it at each step, which is
        what plain ``SVI`` needs and a module-local ELBO does not.
        """
        if pyro.settings.get("module_local_params"):
            return self._modules[name]
        return getattr(self, name)


def numbers_of(module: nn.Module, without: Iterable[str] = ()) -> Numbers:
    """A copy of all parameters and buffers, statistics included, whoever made them; without those
    of some parts, by name."""
    out = tuple(without)
    return {
        name: tensor.detach().clone()
        for name, tensor in _named(module).items()
        if not any(not part or name.startswith(f"{part}.") for part in out)
    }


@torch.no_grad()
def put_back(module: nn.Module, numbers: Numbers) -> None:
    """Give a module, or a copy of it, on any device and of any type, the numbers that it had; what
    it had not then stays."""
    for name, tensor in _named(module).items():
        if name in numbers:
            tensor.copy_(numbers[name])


def as_it_began(module: M, numbers: Numbers) -> M:
    """A copy of a module with the numbers that it had; see :func:`put_back`."""
    new = copy.deepcopy(module)
    put_back(new, numbers)
    return new


def _named(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def refuse_without_values(net: nn.Module) -> None:
    """Refuse numbers of a network that are not made yet, have no memory, or half precision."""
    for name, t in itertools.chain(net.named_parameters(), net.named_buffers()):
        if is_lazy(t):
            raise PyroccamError(f"{name!r} of the network has no shape yet", "a shape", "net(x)")
        if t.is_meta:
            raise PyroccamError(f"{name!r} of the network has no values, it is on the device meta")
        if isinstance(t, nn.Parameter) and t.is_floating_point() and t.itemsize < 4:
            raise NetworkError(f"{name!r} of the network is {t.dtype}", "float32", "net.float()")


def asking(build: Callable[P, M]) -> Callable[P, M]:
    """A function that builds a network, which asks for the memory before any is taken: for Python's
    objects and for the numbers of a draft on no device. It raises ``TooLarge`` for too much."""

    @wraps(build)
    def asked(*args: P.args, **kwargs: P.kwargs) -> M:
        objects, what = 0, f"The network {build.__name__} of {shown((*args, kwargs))}"

        def count(*_: Any) -> None:
            nonlocal objects
            objects += 1
            ask(_OBJECT * objects, what)

        with of_modules(count), of_parameters(count), torch.device("meta"):
            try:
                draft = build(*args, **kwargs)
            except (RuntimeError, TypeError, OverflowError) as error:
                if "verflow" in repr(error):  # a size that torch cannot count
                    ask(math.inf, what)
                raise
        ask(_OBJECT * objects + sum(4 * t.numel() for t in draft.state_dict().values()), what)
        return build(*args, **kwargs)

    return asked
