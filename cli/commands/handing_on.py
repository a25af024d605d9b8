"""``pyroccam export``: files for programs that have no pyroccam."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .. import OpenOptions, need_file
from .application import app, console


@app.command()
def export(
    folder: Path,
    *,
    form: Literal["torch", "onnx"] | None = None,
    out: Path | None = None,
    scaling: bool = True,
    opening: OpenOptions,
) -> None:
    """Write the smaller network of a run (pruned, compressed or discretised) for programs that have
    no pyroccam, and compare what was written with it.

    Arguments:
        folder: Folder of a finished run.
        form: torch: a .pt2 file for torch.export.load; onnx: for any runtime of ONNX. By the ending
            of --out, or torch, if left out.
        out: File; RUN/exported and the form's ending if left out.
        scaling: With the scaling of the run's data in it: the file takes rows as they are in the
            data, and gives targets in their own units.
    """
    from ...inference.files import ABOUT, ExportError
    from ...inference.files import export as write
    from ...inference.posterior import validated
    from ...models.plain import PrunedNetwork
    from ..runs import RunConfig, load_fit

    need_file(out)
    suffixes = {"torch": ".pt2", "onnx": ".onnx"}
    target = out or folder / f"exported{suffixes[form or 'torch']}"
    endings = [*suffixes.values()] if form is None else [suffixes[form]]
    if target.suffix not in endings:
        raise ExportError(f"--out={target}", f"a name that ends in {', '.join(endings)}")
    result = load_fit(folder, **vars(opening))
    net = RunConfig.read(folder).chosen.smaller(result, folder)
    like = None  # of what predicts by itself
    if not isinstance(net, PrunedNetwork):
        like = validated(result.model.likelihood, net.to(result.data.device), result.data)
    made = write(net, target, result.data, scaling=scaling, likelihood=like)
    shape = "rows x " + " x ".join(map(str, result.data.input_shape))
    shape = shape if result.data.fields is None else f"rows of {result.data.fields}"
    takes = "as in the data" if scaling and not result.data.ids else "as the network was trained on"
    takes += ", in double precision" if made.takes.itemsize == 8 else ""
    console.say(f"{made.bytes:,} bytes; takes {shape} ({takes}), any number of rows, "
                f"whose columns its {ABOUT} names.")  # fmt: skip
    if made.difference is None:
        console.say(("Not compared: ", "yellow"), "onnxruntime is not installed.")
    else:
        console.say(
            f"Read back: outputs differ by {made.difference:.2g} at most, the largest is "
            f"{made.largest:.3g}."
        )
    console.say("Written to ", (str(target), "bold"))
