"""A plain network as one file for other programs: of torch.export or ONNX."""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ...data import PyroccamError
from ...models import arguments, give, outputs_taken, unfed
from ...models.plain import torch_only
from ..storage import write_whole
from .columns import columns_kept
from .fusing import fused

if TYPE_CHECKING:
    from ...data import Dataset
    from ...models.likelihoods import Likelihood

ABOUT = "data.json"
"""What a file says of its columns and targets: an extra file of ``.pt2``, of ONNX metadata."""

ROWS = 64  # of the data, on which a file is compared with its network
MOST_OFF = 1e-4  # of the largest output of the network: what another order of additions may make


class ExportError(PyroccamError):
    """A network that a form cannot take, or would not compute as torch does."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, read back and compared.

    Attributes:
        path: of the file.
        bytes: its size.
        difference: the largest between its outputs and those of the network in double precision, on
            64 rows of the data and on one alone; ``None`` for ONNX without ``onnxruntime``.
        largest: output among them, by magnitude.
        takes: the type of its numbers: ``float64`` where single precision would lose digits that
            count, of a large mean.
    """

    path: Path
    bytes: int
    difference: float | None
    largest: float
    takes: torch.dtype


def export(
    net: nn.Module, path: str | Path, data: Dataset, *, scaling: bool = True,
    likelihood: Likelihood | None = None,
) -> Exported:  # fmt: skip
    """Write a network for programs that have no pyroccam, for batches of any size. Several inputs
    of a row are those of the file, by their names where they have some. Batch normalisation is in
    the weights before it, where it can be (:func:`~pyroccam.inference.files.fused`). The names of
    columns, texts and classes are in the file, too, as JSON (``data.json``), and under ``kept``
    which columns the network still looks at.

    Arguments:
        net: plain, in evaluation mode; it is not changed.
        path: of the file, which is replaced once the new one was read back and compared. Its
            ending says the form: ``.pt2`` (``torch.export.load``) or ``.onnx`` (:data:`FORMS`).
        data: that ``net`` was trained on.
        scaling: of ``data`` is part of the file: it takes rows as they were before they were
            scaled, and of regression gives targets in their own units; in double precision where
            single would lose digits that count. Without it the file takes and gives what ``net``
            does.
        likelihood: that takes the outputs of ``net``; its numbers are named in the same place.

    Raises:
        ExportError: if the form cannot take the network or needs a package that is missing, or if
            what was written computes something else.
    """
    form = Path(path).suffix
    if form not in FORMS:
        raise ExportError(f"path={str(path)!r}", f"a name that ends in {', '.join(FORMS)}")
    whole = unfed(copy.deepcopy(net)).cpu().eval()
    with suppress(Exception):  # of a likelihood of one's own: the form may take what it is
        whole = torch_only(whole)
    rows = (data.x_test[:ROWS] if len(data.x_test) > 1 else data.head(ROWS)[0]).cpu()
    fields, scaling = data.fields, scaling and not data.ids
    faster = whole
    with suppress(Exception):  # of a forward that is somebody's own
        args, named = arguments(rows[:2], fields)
        faster = fused(whole, named or args)
    border = _Bordered(whole, data, scaling)
    write, read = FORMS[form]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of what is deprecated, and of constants in a trace
        bordered = scaling or fields is not None or not isinstance(whole(rows[:1].clone()), Tensor)
        own = [give(whole, part.clone(), fields) for part in (rows, rows[:1])]
        if bordered:
            border.settle(rows, own[0])
            border.net = faster
            faster, rows = border.named().eval(), border.raw(rows)
        parts = [_Rows(*arguments(part, fields)) for part in (rows, rows[:1])]
        about = json.dumps(_about(data, scaling, likelihood) | {"kept": columns_kept(whole, data)})
        try:
            content = write(faster, parts[0], about)
        except ExportError:
            raise
        except Exception as error:  # tracers refuse in many ways
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
            given = f"a {form} file cannot take the network ({said})"
            raise ExportError(given, hint="another form, or a folder") from error
        run = read(content)
        found = None if run is None else [part.call(run) for part in parts]
    expected = [border.in_units(out) for out in own]
    largest = max(float(out.abs().max()) for out in expected)
    off = None
    if found is not None:
        off = max(_apart(one, two) for one, two in zip(found, expected, strict=True))
        if not all(border.same(one, two) for one, two in zip(found, own, strict=True)):
            given = f"in a {form} file the network computes other outputs, by {off:.2g}"
            raise ExportError(given, hint="another form, or a forward pass that can be traced")
    write_whole(Path(path), lambda file: file.write(content))
    return Exported(Path(path), len(content), off, largest, border.takes)


def _about(data: Dataset, scaling: bool, likelihood: Likelihood | None) -> dict[str, Any]:
    said = {k: v for k, v in data.record().items() if k not in ("digest", "rows", "split")}
    said["scaling"] = scaling
    if likelihood is not None:
        numbers = {k: v for k, v in vars(likelihood).items() if type(v) in (int, float)}
        numbers |= {k: v.tolist() for k, v in likelihood.state_dict().items()}
        said["likelihood"] = {"word": likelihood.word or type(likelihood).__name__, **numbers}
    return said


def _apart(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float((found.double() - expected).abs().max())


class _Bordered(nn.Module):
    """A network between its data and the world: from inputs as they are in the data to the outputs
    that count, targets in their own units."""

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor

    def __init__(self, net: nn.Module, data: Dataset, scaling: bool) -> None:
        super().__init__()
        self.net, self.fields, self.scaling = net, data.fields, scaling
        self.regression = scaling and data.task == "regression"
        self.dtype = next((p.dtype for p in net.parameters()), torch.float32)
        self.takes = self.gives = torch.float32
        for name, value in data.statistics().items():
            self.register_buffer(name, value.cpu())
        if not self.regression:
            self.y_mean, self.y_std = torch.zeros(()), torch.ones(())

    def _each(self, statistic: Tensor) -> list[Tensor]:
        """That of every input, in a shape that acts on it."""
        if self.fields is None:
            return [statistic]
        parts = zip(self.fields.columns(statistic), self.fields.each, strict=True)
        return [part.reshape(one.shape) for part, one in parts]

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.scaling:  # in double precision, as the rows of the training were scaled
            each = zip(inputs, self._each(self.x_mean), self._each(self.x_std), strict=True)
            inputs = tuple(
                ((x.double() - mean) / std).to(self.dtype) if x.is_floating_point() else x
                for x, mean, std in each
            )
        args, named = (inputs, {}) if self.fields is None else self.fields.placed(inputs)
        out: Tensor = outputs_taken(self.net(*args, **named))
        return self.in_units(out).to(self.gives) if self.regression else out

    def in_units(self, out: Tensor) -> Tensor:
        """Outputs of the network in the units of the data, in double precision."""
        return out.double() * self.y_std + self.y_mean

    def raw(self, x: Tensor) -> Tensor:
        """Rows as they were before they were scaled."""
        return (x.double() * self.x_std + self.x_mean).to(self.takes) if self.scaling else x.clone()

    def same(self, found: Tensor, own: Tensor) -> bool:
        """True if outputs are those of the network, by its own scale."""
        apart = _apart(found / self.y_std, self.in_units(own) / self.y_std)
        return apart <= MOST_OFF * max(float(own.abs().max()), 1.0)

    def settle(self, x: Tensor, own: Tensor) -> None:
        """Take and give numbers in single precision where that computes the same, as in training;
        in double elsewhere. Outputs behind the targets, log variances for one, have no units."""
        if self.regression:
            more = (0, own.shape[-1] - len(self.y_std))
            self.y_mean = nn.functional.pad(self.y_mean, more)
            self.y_std = nn.functional.pad(self.y_std, more, value=1.0)
        both = (torch.float32, torch.float64), (own.dtype, torch.float64)
        for self.takes, self.gives in product(*both):
            args, named = arguments(self.raw(x), self.fields)
            if self.same(self(*args, *named.values()), own):
                break

    def named(self) -> nn.Module:
        """The same, with a forward whose arguments have the names of the inputs."""
        graph = fx.Graph()
        names = ["x"]
        if self.fields is not None:
            names = [one.name if self.fields.named else f"x_{one.name}" for one in self.fields.each]
        inputs = tuple(graph.placeholder(name) for name in names)
        graph.output(graph.call_module("bordered", inputs))
        return fx.GraphModule({"bordered": self}, graph)


# -- forms ----------------------------------------------------------------------------------------

Run = Callable[..., Tensor]


class _Rows(NamedTuple):
    """Arguments of a network, by place and by name."""

    args: tuple[Tensor, ...]
    named: dict[str, Tensor]

    def call(self, run: Run) -> Tensor:
        return run(*self.args, **self.named)

    def dynamic(self) -> Any:
        """That the number of rows is any, for every argument."""
        rows = {0: torch.export.Dim("batch", min=1)}
        return dict.fromkeys(self.named, rows) if self.named else (rows,) * len(self.args)


def _write_torch(net: nn.Module, rows: _Rows, about: str) -> bytes:
    file = io.BytesIO()
    shapes = rows.dynamic()
    made = torch.export.export(net, rows.args, rows.named, dynamic_shapes=shapes)
    torch.export.save(made, file, extra_files={ABOUT: about})
    return file.getvalue()


def _read_torch(content: bytes) -> Run:
    return torch.export.load(io.BytesIO(content)).module()


def _write_onnx(net: nn.Module, rows: _Rows, about: str) -> bytes:
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        given = f"the form onnx without {' and '.join(missing)}"
        raise ExportError(given, hint="pip install 'pyroccam[export]'")
    made = torch.onnx.export(
        net, rows.args, kwargs=rows.named, dynamic_shapes=rows.dynamic(), output_names=["y"],
        dynamo=True, verbose=False,
    )  # fmt: skip
    assert made is not None
    content = made.model_proto
    content.metadata_props.add(key=ABOUT, value=about)
    return content.SerializeToString()


def _read_onnx(content: bytes) -> Run | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(*args: Tensor, **named: Tensor) -> Tensor:
        given = {**dict(zip(names, args, strict=False)), **named}
        fed = {name: given[name].numpy() for name in names}
        return torch.from_numpy(session.run(None, fed)[0])

    return run


FORMS: dict[str, tuple[Callable[..., bytes], Callable[[bytes], Run | None]]] = {
    ".pt2": (_write_torch, _read_torch),
    ".onnx": (_write_onnx, _read_onnx),
}
"""What writes and reads a file of each ending."""
