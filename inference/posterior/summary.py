"""A network by its layers: shapes, numbers, multiply-adds, and what a cut has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...models import evaluating
from ..cutting import multiply_adds

if TYPE_CHECKING:
    import pandas as pd


@torch.no_grad()
def summarise(
    net: nn.Module, run: Callable[[Tensor], Any], x: Tensor, left: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """A row for each layer with numbers of its own, in the order in which they run, and their sum.

    Arguments:
        net: that has the layers.
        run: a pass of it.
        x: one row, ``(1, *)``, as the pass takes it.
        left: by the names of layers what a cut has left of them.

    Returns:
        ``output``, the shape without the batch; ``parameters``; those that are ``not zero``;
        ``multiply-adds`` of a row, and ``left`` where there is any. A layer that runs several times
        has its multiply-adds several times.
    """
    import pandas as pd

    rows: dict[str, dict[str, Any]] = {}

    def watch(name: str) -> Callable[..., None]:
        def note(layer: nn.Module, args: tuple[Any, ...], named: Any, out: Any) -> None:
            parts = [p for p in layer.parameters() if p.numel()]
            row = rows.setdefault(
                name,
                {
                    "output": _shape(out),
                    "parameters": sum(p.numel() for p in parts),
                    "not zero": sum(int((p != 0).sum()) for p in parts),
                    "multiply-adds": 0,
                },
            )
            calls.append((row, layer, args, named))

        return note

    calls: list[tuple[dict[str, Any], nn.Module, tuple[Any, ...], Any]] = []
    hooks = [
        layer.register_forward_hook(watch(name), with_kwargs=True)
        for name, layer in net.named_modules()
        if any(True for _ in layer.parameters(recurse=False)) and not _within(net, name)
    ]
    try:
        with evaluating(net):
            run(x)
            for hook in hooks:
                hook.remove()
            for row, layer, args, named in calls:
                row["multiply-adds"] += multiply_adds(_Call(layer, args, named), x)
    finally:
        for hook in hooks:
            hook.remove()
    numbers = ("parameters", "not zero", "multiply-adds")
    total = {name: sum(row[name] for row in rows.values()) for name in numbers}
    found = pd.DataFrame.from_dict({**rows, "all": {"output": "", **total}}, orient="index")
    if left:
        found["left"] = [
            left.get(name, left.get(name.removesuffix(".1"), "")) for name in found.index
        ]
    found.index.name = "layer"
    return found


class _Call(nn.Module):
    """A layer with the arguments that it had."""

    def __init__(self, layer: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        super().__init__()
        self.layer, self.args, self.named = layer, args, named

    def forward(self, _: Tensor) -> Any:
        return self.layer(*self.args, **self.named)


def _within(net: nn.Module, name: str) -> bool:
    """Whether a module is part of one with numbers of its own, which calls it as it likes."""
    parts = name.split(".")
    above = (net.get_submodule(".".join(parts[:k])) for k in range(1, len(parts)))
    return any(any(True for _ in one.parameters(recurse=False)) for one in above)


def _shape(out: Any) -> str:
    while isinstance(out, tuple | list) and out:
        out = out[0]
    return " x ".join(map(str, out.shape[1:])) if isinstance(out, Tensor) else ""
