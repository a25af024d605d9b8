"""Report of a cut: what it left of each layer, and how large the network is now."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...models.plain import Edit, rows_first
from .ports import is_depthwise


@dataclass(frozen=True)
class LayerCut:
    """The rest of one layer.

    Arguments:
        inputs: ``(I,)``, indices of the kept input units or channels, as numbered before.
        outputs: ``(O,)``, the same for outputs.
        inputs_before, outputs_before: how many there were.
        linear: whether papers count its inputs, and not its outputs.
    """

    inputs: Tensor
    outputs: Tensor
    inputs_before: int
    outputs_before: int
    linear: bool

    @classmethod
    def of(cls, module: nn.Module, edit: Edit) -> LayerCut:
        """The rest that ``edit`` leaves of a layer."""
        rows, columns = rows_first(module).shape[:2]
        columns *= getattr(module, "groups", 1)
        outputs = torch.arange(rows) if edit.outputs is None else torch.tensor(edit.outputs)
        inputs = torch.arange(columns) if edit.inputs is None else torch.tensor(edit.inputs)
        if is_depthwise(module):  # a channel goes with the one it is made of
            inputs = outputs
        return cls(inputs, outputs, columns, rows, isinstance(module, nn.Linear))


@dataclass(frozen=True)
class CutReport:
    """The report of a cut.

    Arguments:
        layers: by name, in the order in which they run; without those that are left whole.
        left_whole: the layers that could not be cut, with the reason.
        parameters_before, parameters_after: of the whole network.
        parameters_given: of a network that was narrowed before, what it had at first.
        zeros: layers of which zeros are left, and what needs them.
    """

    layers: dict[str, LayerCut]
    left_whole: dict[str, str]
    parameters_before: int
    parameters_after: int
    parameters_given: int | None = None
    zeros: dict[str, str] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Filters left in each convolution, features of each embedding, inputs of each linear
        layer."""
        return [
            len(layer.inputs) if layer.linear else len(layer.outputs)
            for layer in self.layers.values()
        ]

    @property
    def architecture(self) -> str:
        """The sizes as they are printed in papers, such as ``278-98-13``."""
        return "-".join(map(str, self.sizes))

    def __str__(self) -> str:
        before = f"{self.parameters_before} parameters"
        if self.parameters_given is not None:
            before += f" that the last cut left of {self.parameters_given}, since which this counts"
        lines = [f"{self.architecture}: {self.parameters_after} of {before}"]
        for name, layer in self.layers.items():
            lines.append(
                f"  {name}: {len(layer.inputs)} of {layer.inputs_before} inputs, "
                f"{len(layer.outputs)} of {layer.outputs_before} outputs"
            )
        lines += [f"  {name} is left whole: {reason}" for name, reason in self.left_whole.items()]
        lines += [f"  {name}: {reason}" for name, reason in self.zeros.items()]
        return "\n".join(lines)
