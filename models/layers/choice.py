"""Which layers of a network become Bayesian, and what cannot be, said by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ...data import PyroccamError
from .. import evaluating, fields_of, seeded
from ..priors import WeightPrior
from .affine import KNOWN, Affine, affine_kind

Chosen = str | Iterable[str] | Callable[[str, nn.Module], bool] | None


def choose_layers(
    net: nn.Module, prior: WeightPrior | Mapping[str, WeightPrior], layers: Chosen
) -> list[str]:
    """Names of the layers that become Bayesian; see :class:`~pyroccam.models.BayesianNetwork`."""
    modules = dict(net.named_modules(remove_duplicate=False))
    if layers is None and not isinstance(prior, WeightPrior):
        layers = prior.keys()
    if layers is None:
        names = [name for name, module in modules.items() if _usual(module)]
        tell_others(net, set(names))
    elif callable(layers):
        names = [name for name, module in modules.items() if layers(name, module)]
    else:
        names = [layers] if isinstance(layers, str) else list(layers)
    for name in names:
        if name not in modules:
            affine_names = [n for n, m in modules.items() if _usual(m)]
            raise PyroccamError(f"no layer {name!r}", f"one of {', '.join(affine_names)}")
        if not isinstance(prior, WeightPrior) and name not in prior:
            raise PyroccamError(f"prior= of {', '.join(prior)}", f"one of layer {name!r}, too")
        Affine(name, modules[name])
    if not names:
        found = "without a layer that could be Bayesian" if layers is None else "layers= chose none"
        raise PyroccamError(f"{type(net).__name__}: {found}", f"one of {KNOWN} that is not frozen")
    return names


def _usual(module: nn.Module) -> bool:
    """True for a layer that becomes Bayesian where none is named: no weight of it is frozen, and it
    is none of which attention takes the weight."""
    own = module.named_parameters(recurse=False)
    learnt = any(p.requires_grad for name, p in own if name.startswith("weight"))
    if not learnt or getattr(module, "max_norm", None) is not None:
        return False
    return type(module) is not NonDynamicallyQuantizableLinear and affine_kind(module) is not None


def tell_others(net: nn.Module, names: set[str]) -> None:
    """Warn of weights that stay numbers though nobody said so, and of those that stay at all."""
    learnt = (
        "are not random but learnt as numbers: {}. Only layers that compute as "
        f"{KNOWN}, and those in attention and recurrent layers, are random by default; name the "
        "random layers by layers=[...] if this is as it should be."
    )
    frozen = "stay as they are, for they need no gradient: {}. Or name them by layers=[...]."
    for said in (learnt, frozen):
        others = [
            f"{f'{name}.{key}'.lstrip('.')} ({type(module).__name__})"
            for name, module in net.named_modules()
            if name not in names and not isinstance(module, (nn.LayerNorm, nn.RMSNorm))
            for key, p in module.named_parameters(recurse=False)
            if p.dim() > 1 and p.requires_grad == (said is learnt)
        ]
        if others and names:
            shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if others[4:] else "")
            warnings.warn("These weights " + said.format(shown), stacklevel=6)


def hooks_of(net: nn.Module, names: list[str]) -> str:
    """Hooks, by their layers, that do not run while the weights are random."""
    return ", ".join(
        f"{getattr(hook, '__qualname__', type(hook).__name__)} of layer {name!r}"
        for name in names
        for kind in ("forward", "forward_pre", "backward")
        for hook in getattr(net.get_submodule(name), f"_{kind}_hooks").values()
    )


def refuse_shared(net: nn.Module, names: list[str]) -> None:
    """Two layers with one weight would need one site for both."""
    owners: dict[int, str] = {}
    for module_name, module in net.named_modules(remove_duplicate=False):
        for key, p in module.named_parameters(recurse=False):
            full = f"{module_name}.{key}".lstrip(".")
            other = owners.setdefault(id(p), full)
            if other != full and {other.rpartition(".")[0], module_name} & set(names):
                found = f"{other!r} and {full!r} are one tensor"
                raise PyroccamError(found, "two for two layers", "leave both out by layers=[...]")


def order_of_use(net: nn.Module, names: list[str], example: Tensor) -> list[str]:
    """Names in the order in which a pass through the network uses them, each as often."""
    used: list[str] = []
    hooks = [
        net.get_submodule(name).register_forward_hook(lambda *_, name=name: used.append(name))
        for name in names
    ]
    try:
        outputs_in_evaluation(net, example)
    finally:
        for hook in hooks:
            hook.remove()
    unused = [name for name in names if name not in used]
    if unused:
        found = f"layer {unused[0]!r} is not called in a pass"
        raise PyroccamError(found, "one that is", "leave it out by layers=[...]")
    return used


def outputs_in_evaluation(net: nn.Module, example: Tensor) -> Any:
    """Outputs of one pass, always with the same random numbers; modes and generators are put
    back."""
    try:
        with evaluating(net), seeded(0, example.device), layers_called():
            return net(example.clone())
    except Exception as error:
        error.add_note(_on_inputs(net, example))
        raise


def _on_inputs(net: nn.Module, example: Tensor) -> str:
    """What a network was given, for an error in it, and what its data may lack."""
    if (fields := fields_of(net)) is not None:
        return f"The network was given {fields}, each (batch, ...)."
    said = (
        f"The network was given inputs of shape (batch, {', '.join(map(str, example.shape[1:]))})"
    )
    layers = list(net.modules())
    if example.is_floating_point() and any(isinstance(m, nn.Embedding) for m in layers):
        return f"{said} that are no ids: load the data with ids=True (--set data.ids=true)."
    if example.dim() == 3 and any(isinstance(m, nn.Conv2d) for m in layers):
        return f"{said}: grey images need their one channel, x[:, None]."
    return f"{said}."


@contextmanager
def layers_called() -> Iterator[None]:
    """Transformer layers of torch call the layers that they have, for a while, instead of a kernel
    that takes their weights."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
