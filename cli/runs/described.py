"""A person's own network in words, kept with its run, which is then opened without its code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...models import Fields, give, mark
from ...models.networks import DepthStack, build
from ...models.plain import MODULES, DescriptionError, describe, rebuild


def words_of(
    net: nn.Module, example: torch.Tensor, fields: Fields | None = None
) -> dict[str, Any] | None:
    """What :func:`network_of` takes, or ``None``: for a network with modules or control flow that a
    description does not know, or with parts that the pass through it does not use.
    """
    mark(net, fields)
    try:
        if isinstance(net, DepthStack):
            words = _stack_words(net)
        else:
            words = {"net": describe(net), "order": [name for name, _ in net.named_modules()]}
        again = network_of(words)
    except (DescriptionError, ValueError, RuntimeError):
        return None
    state = net.state_dict()
    if {n: t.shape for n, t in again.state_dict().items()} != {
        n: t.shape for n, t in state.items()
    }:
        return None
    again.load_state_dict(state)
    training = {module: module.training for module in net.modules()}
    try:
        with torch.no_grad():
            found = (give(one.eval(), example.clone(), fields) for one in (net, again))
            same = torch.equal(*found)
    except (RuntimeError, TypeError, ValueError):
        return None
    finally:
        for module, mode in training.items():
            module.training = mode
    return words if same else None


def network_of(words: Mapping[str, Any]) -> nn.Module:
    """The network of a description, in evaluation mode, with initial weights that mean nothing.
    Runs no code but that of known modules.
    """
    if "recipe" in words:
        return build(words["recipe"])
    net: nn.Module
    if "net" in words:
        net = rebuild(words["net"])
        _put_in_order(net, [str(name) for name in words["order"]])
    else:
        parts = {n: [_part(w) for w in words[n]] for n in ("stem", "blocks", "head", "adapters")}
        adapters = [None if i is None else parts["adapters"][i] for i in words["adapter_of"]]
        net = DepthStack(parts["stem"][0], parts["blocks"], parts["head"][0], adapters)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _begin(net)
    return net.eval()


def _begin(net: nn.Module) -> None:
    """Give a network of zeros some weights: what is cut out of it is tried before it is filled,
    and of zeros nothing is left."""
    for module in net.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            continue
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.1)


def _put_in_order(net: nn.Module, order: list[str]) -> None:
    """Modules in the order of the network that was described: the "hidden" layers are all but the
    last one."""
    rank = {name: place for place, name in enumerate(order)}
    for path, module in net.named_modules():
        prefix = f"{path}." if path else ""
        places = {name: rank.get(prefix + name, len(rank)) for name in module._modules}
        module._modules = dict(sorted(module._modules.items(), key=lambda item: places[item[0]]))


def _stack_words(stack: DepthStack) -> dict[str, Any]:
    if stack.description is not None:
        return {"recipe": stack.description}
    parts = {
        "stem": [stack.stem],
        "blocks": list(stack.blocks),
        "head": [stack.head],
        "adapters": list(stack.adapters),
    }
    found: dict[str, Any] = {n: [_part_words(p) for p in each] for n, each in parts.items()}
    return {**found, "adapter_of": stack.adapter_of}


def _part_words(part: nn.Module) -> dict[str, Any]:
    # Of a module that has a word, a description says the word only where it stands within another.
    return {"in": "0", **describe(nn.Sequential(part))} if type(part) in MODULES else describe(part)


def _part(words: Mapping[str, Any]) -> nn.Module:
    net: nn.Module = rebuild({name: value for name, value in words.items() if name != "in"})
    return net.get_submodule("0") if "in" in words else net
