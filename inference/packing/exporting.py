"""A plain network as one file for other programs: of torch.export, TorchScript or ONNX."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ...data.errors import PyroccamError
from ...models.plain.torch_only import torch_only
from ..storage.whole import write_whole

if TYPE_CHECKING:
    from ...data import Dataset

__all__ = ["SUFFIXES", "ExportError", "ExportForm", "Exported", "export"]

ExportForm = Literal["torch", "torchscript", "onnx"]
"""What reads the file: ``torch.export.load``, ``torch.jit.load`` (of C++, too), or ONNX."""

SUFFIXES: dict[ExportForm, str] = {"torch": ".pt2", "torchscript": ".pt", "onnx": ".onnx"}

ROWS = 64  # of the data, on which a file is compared with its network
MOST_OFF = 1e-4  # of the largest output: what another order of additions may make


class ExportError(PyroccamError, ValueError):
    """A network that a form cannot take, or would not compute as torch does."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, read back and compared.

    Attributes:
        path: of the file.
        bytes: its size.
        difference: the largest between its outputs and those of the network, on 64 rows of the data
            and on one alone; ``None`` for ONNX without ``onnxruntime``.
        largest: output among them, by magnitude.
    """

    path: Path
    bytes: int
    difference: float | None
    largest: float


def export(
    net: nn.Module, path: str | Path, data: Dataset, *, form: ExportForm = "torch",
    scaling: bool = True,
) -> Exported:  # fmt: skip
    """Write a network for programs that have no pyroccam, for batches of any size.

    Arguments:
        net: plain, in evaluation mode; it is not changed.
        path: of the file, which is replaced once the new one was read back and compared.
        data: that ``net`` was trained on.
        form: of the file.
        scaling: of ``data`` is part of the file: it takes rows as they were before they were
            scaled, and of regression gives targets in their own units. Without it the file takes
            and gives what ``net`` does.

    Raises:
        ExportError: if the form cannot take the network or needs a package that is missing, or if
            what was written computes something else.
    """
    if form not in SUFFIXES:
        raise ExportError(f"form={form!r}", f"one of {', '.join(SUFFIXES)}")
    whole = copy.deepcopy(net).cpu().eval()
    with suppress(Exception):  # of a likelihood of one's own: the form may take what it is
        whole = torch_only(whole)
    rows = (data.x_test if len(data.x_test) > 1 else data.x_train)[:ROWS].cpu()
    if scaling and not data.ids:
        whole = _Scaled(whole, data).eval()
        rows = whole.unscaled(rows)
    write, read = _FORMS[form]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of what is deprecated, and of constants in a trace
        expected = [whole(part) for part in (rows, rows[:1])]
        try:
            content = write(whole, rows)
        except ExportError:
            raise
        except Exception as error:  # tracers refuse in many ways
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"
            raise ExportError(
                f"the form {form} cannot take the network ({said})",
                hint="another form, or inference.save, which keeps networks in words",
            ) from error
        run = read(content)
        found = None if run is None else [run(part) for part in (rows, rows[:1])]
    largest = max(float(out.abs().max()) for out in expected)
    off = None
    if found is not None:
        off = max(_apart(one, two) for one, two in zip(found, expected, strict=True))
        if not off <= MOST_OFF * max(largest, 1.0):
            raise ExportError(
                f"in the form {form} the network computes something else: outputs differ by "
                f"{off:.2g}", hint="another form; a forward pass that depends on values or on the "
                "number of rows cannot be traced",
            )  # fmt: skip
    write_whole(Path(path), lambda file: file.write(content))
    return Exported(Path(path), len(content), off, largest)


def _apart(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float((found.double() - expected.double()).abs().max())


class _Scaled(nn.Module):
    """A network between the scaling of its data: from rows as they are, to targets as they are."""

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor

    def __init__(self, net: nn.Module, data: Dataset) -> None:
        super().__init__()
        self.net = net
        self.regression = data.task == "regression"
        self.dtype = next((p.dtype for p in net.parameters()), torch.float32)
        for name, value in data.statistics().items():
            self.register_buffer(name, value.cpu())

    def forward(self, x: Tensor) -> Tensor:
        # In double precision, as the rows of the training were scaled.
        out: Tensor = self.net(((x.double() - self.x_mean) / self.x_std).to(self.dtype))
        return (out.double() * self.y_std + self.y_mean).to(out) if self.regression else out

    def unscaled(self, x: Tensor) -> Tensor:
        return (x.double() * self.x_std + self.x_mean).float()


# -- forms ----------------------------------------------------------------------------------------

Run = Callable[[Tensor], Tensor]


def _dynamic() -> Any:
    return ({0: torch.export.Dim("batch", min=1)},)


def _write_torch(net: nn.Module, x: Tensor) -> bytes:
    file = io.BytesIO()
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=_dynamic()), file)
    return file.getvalue()


def _read_torch(content: bytes) -> Run:
    return torch.export.load(io.BytesIO(content)).module()


def _write_script(net: nn.Module, x: Tensor) -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(net, (x,), check_trace=False), file)
    return file.getvalue()


def _read_script(content: bytes) -> Run:
    return torch.jit.load(io.BytesIO(content))


def _write_onnx(net: nn.Module, x: Tensor) -> bytes:
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise ExportError(
            f"the form onnx needs {' and '.join(missing)}, which is not installed",
            hint="pip install 'pyroccam[export]'",
        )
    shapes = _dynamic()
    made = torch.onnx.export(net, (x,), dynamic_shapes=shapes, dynamo=True, verbose=False)
    assert made is not None
    return made.model_proto.SerializeToString()


def _read_onnx(content: bytes) -> Run | None:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


_FORMS: dict[str, tuple[Callable[[nn.Module, Tensor], bytes], Callable[[bytes], Run | None]]] = {
    "torch": (_write_torch, _read_torch),
    "torchscript": (_write_script, _read_script),
    "onnx": (_write_onnx, _read_onnx),
}
