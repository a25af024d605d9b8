"""What the blocks of a network give, from which those of a smaller one learn in training."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class HiddenStates:
    r"""A hook of a network in training: behind the outputs of a row it says how far what the blocks
    give is from what those of a teacher give of the same row.

    .. math:: d_n = \frac{1}{2L} \sum_{l=1}^{L} \frac{1}{T_n}
              \sum_{t=1}^{T_n} \frac{\lVert h_{lnt} - g_{lnt} \rVert^2}{V_l}, \qquad
              V_l = \frac1B \sum_{n=1}^{B} \frac{1}{T_n} \sum_{t=1}^{T_n} \lVert g_{lnt} \rVert^2

    of L blocks and the T tokens of a row that its attention mask lets through, or all places of the
    second dimension. A block that gives nothing costs half a nat, as outputs of nothing do by an
    :class:`~pyroccam.models.likelihoods.Embedding`.

    Blocks lie in an ``nn.ModuleList`` of the same name in both networks; where there is none, they
    are the parts of each ``nn.Sequential``. Where the network that is trained has fewer, they stand
    for the last of as many equal parts of the other. Left out are those that give no tensor first,
    or one of another shape, or whose rows come second, and the one that gives the outputs.

    Arguments:
        net: that is trained.
        teacher: copied; it does as in evaluation.

    References:
        Romero et al. 2015, arXiv:1412.6550; Jiao et al. 2020, arXiv:1909.10351, for the parts.
    """

    def __init__(self, net: nn.Module, teacher: nn.Module) -> None:
        own = copy.deepcopy(teacher).eval().requires_grad_(False)
        self.teacher = own.to(next(net.parameters()).device)
        lists = (_paired(net, self.teacher, kind) for kind in (nn.ModuleList, nn.Sequential))
        self.pairs = next(filter(None, lists), [])
        self._given: dict[nn.Module, Tensor] = {}
        self._hooks = [b.register_forward_hook(self._look) for pair in self.pairs for b in pair]
        self._hooks.append(net.register_forward_hook(self._append, with_kwargs=True))

    def remove(self) -> None:
        """Leave the network as it was."""
        for hook in self._hooks:
            hook.remove()

    def _look(self, block: nn.Module, args: Any, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) else out
        if isinstance(first, Tensor):
            self._given[block] = first

    def _append(self, net: nn.Module, args: Any, named: dict[str, Tensor], outputs: Tensor) -> Any:
        """``(B, outputs + 1)`` in training."""
        if not net.training:
            self._given.clear()
            return None
        with torch.no_grad():
            self.teacher(*args, **named)
        given, mask = self._given, named.get("attention_mask")
        pairs = [(given[h], given[g]) for h, g in self.pairs if given.keys() >= {h, g}]
        each = [
            _distance(h, g, mask)
            for h, g in pairs
            if h.shape == g.shape and len(h) == len(outputs) and h is not outputs
        ]
        given.clear()
        apart = torch.stack(each).mean(0) / 2 if each else outputs.new_zeros(len(outputs))
        return torch.cat([outputs, apart[:, None]], 1)


def _paired(
    net: nn.Module, teacher: nn.Module, kind: type[nn.Module]
) -> list[tuple[nn.Module, nn.Module]]:
    """Those in the containers of a kind."""
    ours, theirs = (
        {name: list(one.children()) for name, one in part.named_modules() if isinstance(one, kind)}
        for part in (net, teacher)
    )
    found = []
    for name, own in ours.items():
        if given := theirs.get(name):
            step = len(given) / (len(own) or 1)
            found += [(one, given[round(k * step) - 1]) for k, one in enumerate(own, 1)]
    return found


def _distance(own: Tensor, given: Tensor, mask: Tensor | None) -> Tensor:
    """Of each row, as a part of the mean square of what is given, ``(B,)``."""
    own, given = (t.flatten(2) if t.dim() > 2 else t[:, None] for t in (own, given))
    if mask is None or mask.shape != given.shape[:2]:
        mask = given.new_ones(given.shape[:2])
    weights = (mask / mask.sum(1, keepdim=True))[..., None]
    scale = (weights * given.square()).sum((1, 2)).mean()
    distance: Tensor = (weights * (own - given).square()).sum((1, 2))
    return distance / scale.clamp_min(torch.finfo(given.dtype).tiny)
