"""A network of several inputs, or of an output object, where one tensor goes in and one comes out.

Hooks on the network itself do it, so that its modules keep their names, and copies of it do it too.
Called as its own forward says, with several arguments or by name, it is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from torch import Tensor, nn

from ..data import PyroccamError

_GIVEN = "_given_inputs"


class Fields(Protocol):
    """Which columns of a table are which inputs (``pyroccam.data.Dataset.fields``)."""

    @property
    def given(self) -> tuple[str, ...] | int: ...

    def arguments(self, x: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]: ...

    def lengths(self, x: Tensor) -> Tensor | None: ...


class _Feed:
    """A forward pre-hook: arguments in place of a table, which alone is one argument."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) != 1:
            return None
        given, named = self.fields.arguments(args[0])
        return given, _unpadded(named)


def _unpadded(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arguments without the places that are padding in every row, by their attention mask."""
    mask = named.get("attention_mask")
    if mask is None or mask.dim() != 2 or not mask.any():
        return named
    length = int(mask.any(0).nonzero().max()) + 1
    return {n: t[:, :length] if t.shape[:2] == mask.shape else t for n, t in named.items()}


def outputs_taken(out: Any) -> Any:
    """The outputs that count, ``logits`` of an object or a dict that has them."""
    if isinstance(out, Tensor):
        return out
    found = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    return found if isinstance(found, Tensor) else out


def _take(module: nn.Module, args: Any, out: Any) -> Any:
    """A forward hook of that."""
    return outputs_taken(out)


class _Again:
    """What a graph of torch.fx calls with a copy of itself, which has none of its hooks."""

    def __init__(self, fields: Fields | None) -> None:
        self.fields = fields

    def __call__(self, net: nn.Module) -> None:
        feed(net, self.fields, taking=True)


def feed(net: nn.Module, fields: Fields | None, taking: bool = False) -> nn.Module:
    """The network itself, which from now on takes rows of a table, if there are fields of one, and
    then, or for ``taking``, gives the outputs that count."""
    if fields is None and not taking:
        return net
    if fields is not None and fields_of(net) is None:
        net.register_forward_pre_hook(_Feed(fields), with_kwargs=True)
        mark(net, fields)
    if _take not in net._forward_hooks.values():
        net.register_forward_hook(_take)
    copying: Any = getattr(net, "_deepcopy_hooks", None)
    if copying is not None and not any(isinstance(hook, _Again) for hook in copying):
        copying.append(_Again(fields))
    return net


def feed_like(net: nn.Module, other: nn.Module) -> nn.Module:
    """The network itself, fed as another is, which it was made of without its hooks."""
    return feed(net, fields_of(other), _take in other._forward_hooks.values())


def refuse_several(data: Any, what: str) -> None:
    """Refuse data of several inputs of a row, for a model of another kind."""
    if (found := getattr(data, "fields", None)) is not None:
        raise PyroccamError(f"{what} of {found}", "one input of a row", "models.BayesianNetwork")


def fields_of(net: nn.Module) -> Fields | None:
    """The fields by which a network is fed, if it is."""
    hooks = net._forward_pre_hooks.values()
    return next((hook.fields for hook in hooks if isinstance(hook, _Feed)), None)


def has_other_hooks(net: nn.Module) -> bool:
    """True for a network that calls more than what feeds it."""
    hooks = (*net._forward_hooks.values(), *net._forward_pre_hooks.values())
    return any(hook is not _take and not isinstance(hook, _Feed) for hook in hooks)


def unfed(net: nn.Module) -> nn.Module:
    """The network itself, with its own signature alone; it keeps the names of its arguments."""
    for key, hook in [*net._forward_pre_hooks.items()]:
        if isinstance(hook, _Feed):
            del net._forward_pre_hooks[key]
            net._forward_pre_hooks_with_kwargs.pop(key, None)
    for key, taking in [*net._forward_hooks.items()]:
        if taking is _take:
            del net._forward_hooks[key]
    copying: Any = getattr(net, "_deepcopy_hooks", [])
    copying[:] = [hook for hook in copying if not isinstance(hook, _Again)]
    return net


def mark(net: nn.Module, fields: Fields | None) -> None:
    """Keep, with a network, which arguments it is given; for a trace, which takes the others at
    their defaults."""
    if fields is not None:
        setattr(net, _GIVEN, fields.given)


def given(net: nn.Module) -> tuple[str, ...] | int:
    """The arguments of ``forward`` that rows give, by name; or how many, which are the first."""
    return cast(tuple[str, ...] | int, getattr(net, _GIVEN, 1))


def arguments(x: Tensor, fields: Fields | None) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Arguments of a network, by place and by name, for rows of a table."""
    return ((x,), {}) if fields is None else fields.arguments(x)


def give(net: nn.Module, x: Tensor, fields: Fields | None) -> Any:
    """What a network, fed or not, gives for rows of a table: the outputs that count."""
    args, named = arguments(x, fields)
    return outputs_taken(net(*args, **_unpadded(named)))
