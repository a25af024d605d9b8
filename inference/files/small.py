"""What is left of a fit: a plain network, what is known of it, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ...data import PyroccamError, card
from ...models import give
from ...models.plain import DescriptionError
from ..cutting import CutReport
from ..posterior import Presentable, summarise, validated
from ..storage import write_whole
from .columns import columns_kept, said_of_columns
from .exporting import FORMS, export
from .network_folder import save_folder
from .packed import PackedSize, encoded
from .transformer_folder import of_transformers, save_pretrained

if TYPE_CHECKING:
    import pandas as pd

    from ...data import Dataset
    from ...models.likelihoods import Likelihood


@dataclass(frozen=True)
class Small:
    """A small network, and how it came about; or any plain network that is to be in a file.

    Attributes:
        net: plain, in evaluation mode; it takes the arguments that the network takes.
        report: of weights that were cut and rounded a
            :class:`~pyroccam.inference.shrinking.compression.Report`, of a draw a
            :class:`~pyroccam.inference.draws.options.DrawReport`, of operations a
            :class:`~pyroccam.inference.posterior.structures.EdgeStructure`, of depth a
            :class:`~pyroccam.inference.posterior.depth.DepthStructure`.
        warnings: that a cut had to be weakened to leave a network, or costs much.
        data: that it was trained on, for files of other programs.
        likelihood: that takes its outputs; none where it predicts by itself.
        draw: the file, where what is sent is a draw.
        note: a text that its ``.pocc`` file carries in its description, such as its certificate;
            :func:`~pyroccam.inference.files.packed.note_of` reads it.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
        >>> Small(net).bytes < 2800
        True
    """

    net: nn.Module
    report: Any = None
    warnings: Sequence[str] = ()
    data: Dataset | None = field(default=None, repr=False)
    likelihood: Likelihood | None = field(default=None, repr=False)
    draw: Any = field(default=None, repr=False)
    note: str = ""

    @cached_property
    def _encoded(self) -> tuple[Any, PackedSize, str]:
        try:
            return *encoded(self.net, note=self.note), ""
        except DescriptionError as error:
            return *encoded(self.net, describe_net=False, note=self.note), str(error)

    @property
    def content(self) -> Any:
        """The bytes of its ``.pocc`` file."""
        return self._encoded[0] if self.draw is None else self.draw

    @property
    def bytes(self) -> int:
        """The size of that file."""
        return len(self.content)

    @property
    def size(self) -> PackedSize:
        """What takes that size, of a network that is no draw."""
        return self._encoded[1]

    @property
    def undescribed(self) -> str:
        """Why its file holds the tensors alone, and is read by ``inference.load(path,
        like=small.net)``: the module that cannot be described. Empty for most."""
        return self._encoded[2] if self.draw is None else ""

    def _repr_html_(self) -> str:
        numbers = sum(p.numel() for p in self.net.parameters())
        facts = {"parameters": numbers, "bytes of the file": self.bytes}
        report, said = self.report, [*self.warnings]
        rows = []
        if isinstance(report, Presentable):
            own: Any = report
            said, rows = [*own.sentences(), *said], own.rows()
        if self.data is not None:
            said += said_of_columns(self.net, self.data)
        return card("Small network", facts, said, rows, 'small.net(x); small.save("small.pocc")')

    @property
    def columns(self) -> dict[str, bool]:
        """By the names of the columns of a table, whether its outputs still depend on them."""
        return {} if self.data is None else columns_kept(self.net, self.data)

    def summary(self) -> pd.DataFrame:
        """Its layers, for one row: shapes, parameters, multiply-adds, and what is left of what the
        cut had before it."""
        if self.data is None:
            raise PyroccamError("A summary of a network without data", "Small(net, data=)")
        x = self.data.head(1)[0]  # beside the network, which may have no numbers
        x = x.to(next(self.net.parameters(), x).device)
        layers = self.report.layers if isinstance(self.report, CutReport) else {}
        left = {
            name: f"{len(one.outputs)} of {one.outputs_before} outputs, "
            f"{len(one.inputs)} of {one.inputs_before} inputs"
            for name, one in layers.items()
        }
        return summarise(self.net, partial(give, self.net, fields=self.data.fields), x, left)

    def save(self, path: str | Path, *, scaling: bool = True) -> Path:
        """Write it into a file, or a folder, that its ending says.

        Arguments:
            path: one small file, ``.pocc`` (``.poccd``); for programs that have no pyroccam
                ``.pt2`` (``torch.export``) or ``.onnx``, see
                :func:`~pyroccam.inference.files.exporting.export`; or else a folder with a
                safetensors file, of a network of transformers that which ``from_pretrained`` opens,
                see :mod:`~pyroccam.inference.files.transformer_folder`.
            scaling: of the data is part of a file for other programs.

        Returns:
            the path.

        Raises:
            DescriptionError: naming the module that a folder cannot describe.
            ExportError: if the form cannot take the network.
        """
        path = Path(path)
        if path.suffix in FORMS:
            if self.data is None:
                raise PyroccamError(f"{path.name} of a network without data", "Small(net, data=)")
            like = self.likelihood
            if like is not None:
                like = validated(like, self.net.to(self.data.device), self.data)
            export(self.net, path, self.data, scaling=scaling, likelihood=like)
        elif path.suffix in (".pocc", ".poccd"):
            write_whole(path, lambda file: file.write(self.content))
        elif of_transformers(self.net) is not None:
            save_pretrained(self.net, path)
        else:
            save_folder(self.net, path)
        return path
