"""A residual stack that can stop at any depth: plain torch, no Pyro."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...data import PyroccamError, checked
from .. import evaluating
from .normalisation import has_batch_norm, per_depth, select_depths


class DepthStack(nn.Module):
    r"""Stem, blocks and a head that every depth shares.

    .. math:: a_0 = \mathrm{stem}(x), \quad a_i = \mathrm{block}_i(a_{i-1}), \quad
              f_d(x) = \mathrm{head}(\mathrm{adapter}_d(a_d)), \quad d = 0 \dots D.

    A block includes its own skip connection, so any module is a block. The head runs once on the
    activations of all depths stacked along the batch; batch normalisation in a head (or in an
    adapter that several depths share) keeps statistics for each depth
    (:class:`~pyroccam.models.networks.normalisation.DepthBatchNorm`), because statistics pooled
    over depths ruin evaluation mode.

    Arguments:
        stem: from the input to the first activation.
        blocks: D modules, from one activation to the next.
        head: from an (adapted) activation to the outputs, shared by all depths.
        adapters: ``None`` when all activations suit the head; one module to apply at every depth
            (a pooling, say); or D + 1 modules or ``None``, one for each depth. The same module may
            stand at several depths. :func:`match_adapters` builds them for stages that change
            channels or resolution.
        description: how to build this stack again (a network's name and arguments), if known.

    Raises:
        PyroccamError: if the number of adapters is not D + 1, or there are no blocks and no stem.

    References:
        Antoran, Allingham, Hernandez-Lobato (2020), Variational Depth Search in ResNets,
        arXiv:2002.02797.

    Example:
        >>> blocks = [nn.Linear(8, 8) for _ in range(3)]
        >>> stack = DepthStack(nn.Linear(2, 8), blocks, nn.Linear(8, 2))
        >>> stack.outputs(torch.zeros(5, 2)).shape
        torch.Size([4, 5, 2])
    """

    @checked
    def __init__(
        self,
        stem: nn.Module,
        blocks: Sequence[nn.Module],
        head: nn.Module,
        adapters: nn.Module | Sequence[nn.Module | None] | None = None,
        description: dict[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(blocks)
        depths = len(self.blocks) + 1
        if adapters is None or isinstance(adapters, nn.Module):
            adapters = [adapters] * depths
        if len(adapters) != depths:
            found = f"{len(adapters)} adapters for {depths} depths"
            raise PyroccamError(found, "one for each, or a single module")
        unique: list[nn.Module] = []
        self.adapter_of: list[int | None] = []  # depth -> position in self.adapters
        for adapter in adapters:
            if adapter is None:
                self.adapter_of.append(None)
                continue
            if not any(adapter is known for known in unique):
                unique.append(adapter)
            self.adapter_of.append(next(i for i, known in enumerate(unique) if known is adapter))
        for i, adapter in enumerate(unique):
            shared_by = self.adapter_of.count(i)
            if shared_by > 1:
                unique[i] = per_depth(adapter, shared_by)
        self.adapters = nn.ModuleList(unique)
        self.head = per_depth(head, depths) if depths > 1 else head
        self.description = description

    @property
    def max_depth(self) -> int:
        """D, the number of blocks: depths are 0 ... D."""
        return len(self.blocks)

    def activations(self, x: Tensor) -> list[Tensor]:
        """``a_0 ... a_D`` for inputs ``(B, *)``."""
        a = self.stem(x)
        out = [a]
        for i, block in enumerate(self.blocks):
            version = None if not isinstance(a, Tensor) or a.is_inference() else a._version
            after = block(a)
            if version is not None and a._version != version:
                found = f"Block {i + 1} ({type(block).__name__}) changes its input in place"
                raise PyroccamError(found, "a block that leaves it", "inplace=False")
            a = after
            out.append(a)
        return out

    def adapted(self, activations: Sequence[Tensor]) -> list[Tensor]:
        """The activations as the head wants them, one for each depth."""
        out = list(activations)
        for i, adapter in enumerate(self.adapters):
            where = [d for d, j in enumerate(self.adapter_of) if j == i]
            if len(where) > 1 and has_batch_norm(adapter):
                stacked = adapter(torch.cat([out[d] for d in where]))
                parts = stacked.chunk(len(where))
                for k, d in enumerate(where):
                    out[d] = parts[k]
            else:  # one at a time: large maps are pooled before anything is stacked
                for d in where:
                    out[d] = adapter(out[d])
        return out

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs at every depth, ``(D + 1, B, *outputs)``, from one forward pass of ``(B, *)``."""
        adapted = self.adapted(self.activations(x))
        expected = adapted[-1].shape
        for d, a in enumerate(adapted):
            if isinstance(a, Tensor) and a.shape != expected:
                found = f"the head receives {tuple(a.shape)} at depth {d}"
                raise PyroccamError(found, f"{tuple(expected)}", "adapters=match_adapters(...)")
        out = self.head(torch.cat(adapted) if len(adapted) > 1 else adapted[0])
        return out.unflatten(0, (len(adapted), x.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs at the full depth only, ``(B, *outputs)``."""
        return self.outputs(x)[-1]

    def truncated(self, depth: int) -> DepthStack:
        """A copy that has only the depths 0 ... ``depth``."""
        self._check(depth)
        new = copy.copy(self)
        # nn.Module keeps its parts in dictionaries that a shallow copy would share.
        new._modules = dict(self._modules)
        new._parameters, new._buffers = dict(self._parameters), dict(self._buffers)
        new.stem = copy.deepcopy(self.stem)
        new.blocks = nn.ModuleList(copy.deepcopy(b) for b in self.blocks[:depth])
        new.head = select_depths(copy.deepcopy(self.head), range(depth + 1))
        kept: list[nn.Module] = []
        new.adapter_of = [None] * (depth + 1)
        for i, adapter in enumerate(self.adapters):
            where = [d for d, j in enumerate(self.adapter_of) if j == i]
            rows = [k for k, d in enumerate(where) if d <= depth]
            if not rows:
                continue
            for k in rows:
                new.adapter_of[where[k]] = len(kept)
            kept.append(select_depths(copy.deepcopy(adapter), rows))
        new.adapters = nn.ModuleList(kept)
        new.description = None if self.description is None else {**self.description}
        if new.description is not None:
            new.description["max_depth"] = depth
        return new

    def at(self, depth: int) -> nn.Sequential:
        """A plain sequential copy that computes ``f_depth`` alone: one exit, no other head.

        Raises:
            PyroccamError: for a depth that there is not.
        """
        self._check(depth)
        parts = [copy.deepcopy(self.stem), *map(copy.deepcopy, self.blocks[:depth])]
        which = self.adapter_of[depth]
        if which is not None:
            row = [d for d, j in enumerate(self.adapter_of) if j == which].index(depth)
            parts.append(select_depths(copy.deepcopy(self.adapters[which]), [row]))
        parts.append(select_depths(copy.deepcopy(self.head), [depth]))
        return nn.Sequential(*parts)

    def _check(self, depth: int) -> None:
        if not 0 <= depth <= self.max_depth:
            raise PyroccamError(f"depth {depth} is outside 0 ... {self.max_depth} of this stack.")


@checked
def match_adapters(
    stem: nn.Module, blocks: Sequence[nn.Module], example: Tensor
) -> list[nn.Module | None]:
    """Adapters for a convolutional stack whose stages differ in channels or resolution.

    Every distinct activation shape other than the last gets one 1x1 convolution, with the stride
    that reaches the last resolution, batch normalisation and ReLU, shared by the depths of its
    stage (as in Antoran et al. 2020, arXiv:2006.08437).

    Arguments:
        stem, blocks: the stack.
        example: a batch of inputs ``(B, C, H, W)``; only its shape matters.

    Raises:
        PyroccamError: if an activation is not a map, or no stride takes its resolution to the last.
    """
    shapes, a = [], example
    with evaluating(nn.ModuleList([stem, *blocks])):
        for part in (stem, *blocks):
            a = part(a)
            shapes.append(tuple(a.shape[1:]))
    final = shapes[-1]
    made: dict[tuple[int, ...], nn.Module] = {}
    for d, shape in enumerate(shapes):
        if shape == final or shape in made:
            continue
        strides = [-(-side // last) for side, last in zip(shape[1:], final[1:], strict=False)]
        reached = [-(-side // s) for side, s in zip(shape[1:], strides, strict=False)]
        if len(shape) != 3 or len(final) != 3 or tuple(reached) != final[1:]:
            expected = f"a map (C, H, W) that a stride brings to H and W of the last, {final}"
            raise PyroccamError(f"the activation {shape} at depth {d}", expected)
        stride = (strides[0], strides[1])
        made[shape] = nn.Sequential(
            nn.Conv2d(shape[0], final[0], 1, stride=stride, bias=False),
            nn.BatchNorm2d(final[0]),
            nn.ReLU(inplace=True),
        ).train(any(part.training for part in (stem, *blocks)))
    return [made.get(shape) for shape in shapes]


def at_depth(outputs: Tensor, depth: Tensor) -> Tensor:
    """Outputs at a depth ``()``, ``(S, 1)`` or, enumerated, ``(D + 1, 1, ...)``, from those at
    every depth, ``(D + 1, B, *)``: the identity where ``depth`` is the enumerated support."""
    if depth.dim() == 0:
        return outputs[depth]
    # Pyro marks the support that it enumerates; a draw that happens to have the same shape
    # (D + 1 vectorised particles) has no mark and is indexed.
    enumerated = getattr(depth, "_pyro_categorical_support", None) is not None
    between = depth.shape[1:-1]  # plates between the enumeration and the data, all of size 1
    if enumerated and depth.shape[0] == outputs.shape[0] and depth.numel() == depth.shape[0]:
        return outputs.reshape(depth.shape[0], *between, *outputs.shape[1:])
    return outputs[depth.squeeze(-1)]
