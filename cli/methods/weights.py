"""Methods over random weights: three ways to predict, the cut, its file."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from torch import nn

from ...data import Dataset
from ...data.errors import PyroccamError
from ...inference import draw_coding
from ...inference.cutting import cut
from ...inference.cutting.cost import compare_speed, count_parameters
from ...inference.draw_coding import Drawn, Sample
from ...inference.fits.fitting import Fit
from ...inference.marginal_likelihood import description_length
from ...inference.packing import PackedSize, is_described, read, write
from ...inference.packing.rest import rest_bits
from ...inference.posterior.draws import Noise
from ...inference.posterior.layers import mean_network
from ...inference.posterior.posteriors import require
from ...inference.posterior.predict import evaluate_net, validated
from ...inference.pruning.compression import Compressed, compress
from ...inference.pruning.decision import at_thresholds
from ...inference.pruning.thresholds import TOLERANCE, Threshold, by_layer_now, by_validation
from ...inference.training.settings import Settings
from ...models.bayesian import BayesianNetwork
from ...models.layers.affine import AFFINE
from ...models.plain.description import DescriptionError
from ..run_figures import draw_compressed
from .base import Finished, Method, timed

__all__ = [
    "DRAW",
    "FILE",
    "OverWeights",
    "compress_run",
    "draw_run",
    "evaluate",
    "file_of",
    "named_layers",
    "network_of_file",
    "refuse_names",
    "sent",
    "tell_uncuttable",
    "try_to_cut",
]

FILE = "compressed.pocc"
DRAW = "draw.poccd"

MESSAGE_PASSES = 3
"""Passes of the training rows for the length of a message: few show an error, and it is small."""


_NO_MEAN = (
    "Its weights have no mean by which the network could be cut: what it learnt is in their "
    "deviations."
)


class OverWeights(Method):
    """Any method over the weights of any network, which is compressed in the end."""

    over: ClassVar[Literal["stack", "net", "graph"]] = "net"

    # Options of some; those that have none predict and compress in this way.
    noise: Noise = "weights"
    threshold: Threshold | None = None
    tolerance: float | None = None

    @property
    def passes(self) -> float:
        """The message takes passes of the training rows."""
        return 3.0

    def retrain_epochs(self, settings: Settings, rows: int) -> int:
        """Passes over the rows in which the smaller network is trained as numbers in the end."""
        return 0

    @property
    def cuts(self) -> dict[str, Threshold | None]:
        """Thresholds of all cuts of a run, by the names of their options."""
        return {"threshold": self.threshold}

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        for name, rule in self.cuts.items():
            if rule == "validation" and not len(data.x_val):
                other = f"data.val_fraction=0.1, or {name}=valley, noise or a number"
                yield name, f"needs validation rows, and there are none. Set {other}."
        if not any(by_validation(rule, data) for rule in self.cuts.values()):
            yield "tolerance", "changes nothing: add threshold=validation."

    def scores(self, result: Fit, split: str) -> dict[str, dict[str, float]]:
        return result.evaluate_ways(split, noise=self.noise)

    def compared(self, fits: Sequence[Fit]) -> tuple[Fit, nn.Module]:
        """A fit of the run with all layers that may be left, and the network with which what is
        left is compared."""
        return fits[0], mean_network(*require(fits[0], BayesianNetwork, "compress"))

    def smaller(self, result: Fit, folder: Path) -> nn.Module:
        if not (folder / FILE).is_file():
            raise PyroccamError(
                f"{folder} has no {FILE}, the network that would be exported.\nTry `pyroccam "
                f"compress {folder}` first; a posterior without means has none."
            )
        return network_of_file(result, folder / FILE, self.threshold, self.tolerance)

    def report(self, run: Finished) -> dict[str, Any]:
        """The network of the means, the compressed one and its file, if there is a way to it."""
        result, out = run.fits[-1], run.out
        first, before = self.compared(run.fits)
        data, (model, guide) = result.data, require(result, BayesianNetwork, "compress")
        mean = mean_network(model, guide)
        found: dict[str, Any] = {"parameters": count_parameters(mean), **_message(result)}
        found["learnt"] = [_NO_MEAN] if guide.traits.zero_mean else []
        if run.numbers is not None:
            found["numbers"] = {
                "parameters": count_parameters(run.numbers.net),
                "epochs": run.numbers.epochs,
                "lr": run.numbers.lr,
                "val_nll": {f"{lr:g}": loss for lr, loss in run.numbers.tried.items()},
                "seconds": run.numbers.seconds,
                "test": evaluate(first, run.numbers.net),
            }
        if guide.traits.zero_mean:
            return found  # there is no mean network to cut
        with TemporaryDirectory() as scratch:
            path = (Path(scratch) if out is None else out) / FILE
            try:
                epochs = self.retrain_epochs(run.settings, data.N) if len(data.x_val) else 0
                # What was narrowed since has other weights, and of a point nothing is searched for.
                searched = epochs > 0 and self.threshold is None and not guide.traits.point
                same = len(run.fits) == 1 and searched
                small, written, sizes, again = _compressed(
                    result, self.threshold, self.tolerance, path, retrain_epochs=epochs,
                    trained=run.numbers if same else None,
                )  # fmt: skip
            except (ValueError, RuntimeError) as error:  # training is not lost over a threshold
                learnt = [f"Nothing was cut: {error}"]
                return {**found, "not_compressed": str(error), "learnt": learnt}
            test = evaluate(result, again)  # of the file, as everything that is said of it
        found |= sent(result, again, written.total)
        if out is not None and run.figures:
            draw_compressed(result, small, written, out / "figures", first)
        nets = {"before": before, "mean": mean, "compressed": again}
        speed = compare_speed(nets, data.x_test, "before")
        found["mean"] = timed(speed["mean"])
        found["compressed"] = {
            "parameters": count_parameters(again),
            "nonzero": sum(int(p.count_nonzero()) for p in again.parameters()),
            "parameters_before": count_parameters(before),
            **timed(speed["compressed"]),
            "test": test,
        }
        found["structure"] = {**small.to_json(), **sizes}
        found["learnt"] = _said(found["structure"])
        return found


def _said(left: Mapping[str, Any]) -> list[str]:
    """What is left of the layers, and by how much that is less, in words."""
    bits = "-".join(str(b) for b in left["bits"].values())
    rates = {"pruning": "pruning", "fast_prediction": "fast prediction", "maximum": "maximum"}
    shown = [
        f"{label} {left['rates'][name]:.3g}"
        for name, label in rates.items()
        if left["rates"][name] is not None
    ]
    return [
        f"{'Left are' if left['nonzero_percent'] < 100 else 'Nothing was cut:'} "
        f"{left['architecture']} filters or inputs, {left['weights']:,} weights of the compressed "
        f"layers ({left['nonzero_percent']:.1f} %), of {bits} bits.",
        f"Compression rates as papers count them: {', '.join(shown)}.",
    ]


def _message(result: Fit) -> dict[str, Any]:
    """Bits that send weights and targets by the bound, where its prior and guide are a code."""
    try:
        return {"message": description_length(result, passes=MESSAGE_PASSES).to_json()}
    except ValueError:  # points, an improper prior or rows with weights
        return {}


def sent(result: Fit, net: nn.Module, size: int) -> dict[str, Any]:
    """Bits that send the classes of the training rows: ``uniform`` if nothing is known of them, and
    with a network in a file, which is sent first.

    Arguments:
        net: read from the file.
        size: of the file, in bytes.
    """
    data: Dataset = result.data
    if data.classes is None or data.weighted:
        return {}
    left = evaluate(result, net, "train")["nll"] * data.N / math.log(2)
    return {"sent": {"uniform": data.N * math.log2(data.classes), "file": 8.0 * size, "left": left}}


def named_layers(asked: str | float | Sequence[str] | None, net: nn.Module) -> list[str] | None:
    """Names of layers, one or a list. Of all linear and convolutional layers ``hidden`` are those
    but the last, and ``penultimate`` is the one before the last."""
    if asked is None or isinstance(asked, list):
        return asked
    names = [name for name, module in net.named_modules() if type(module) in AFFINE]
    words = {"hidden": names[:-1] or names, "penultimate": names[-2:-1] or names}
    return words.get(str(asked), [str(asked)])


def refuse_names(model: BayesianNetwork, *rules: Threshold | None) -> None:
    """Refuse thresholds for layers that there are not, before the training."""
    for rule in rules:
        if isinstance(rule, Mapping):
            by_layer_now(rule, model)


def tell_uncuttable(model: BayesianNetwork, data: Dataset) -> None:
    """Say before the training that the end of it will be no smaller network."""
    try:
        try_to_cut(model, data)
    except (ValueError, RuntimeError) as error:
        warnings.warn(
            f"The network can be trained, but not be compressed in the end: {error}", stacklevel=2
        )


def try_to_cut(model: BayesianNetwork, data: Dataset) -> None:
    """Raise what a cut would raise."""
    cut(model.start_network(), data.head(2)[0].cpu())


def file_of(asked: Mapping[str, Any]) -> str:
    """The name of a compressed file by the rules that are not those of its run: a run's own file,
    of which its ``metrics.json`` speaks, stays."""
    rules = [f"-{name}-{value}" for name, value in asked.items() if value is not None]
    return "".join([Path(FILE).stem, *rules, Path(FILE).suffix])


def compress_run(
    result: Fit, threshold: Threshold | None, tolerance: float | None, path: Path, **rules: Any
) -> tuple[Compressed, dict[str, Any]]:
    """Compress a fit and write it to a file; its size and what it scores."""
    small, _, sizes, again = _compressed(result, threshold, tolerance, path, **rules)
    return small, {**sizes, "test": evaluate(result, again)}


def draw_run(
    result: Fit,
    threshold: Threshold | None,
    tolerance: float | None,
    path: Path,
    *,
    resume: bool,
    **how: Any,
) -> tuple[Drawn, dict[str, float]]:
    """Code a draw of what is left of a fit, write it to a file, and what it scores when read.

    Arguments:
        path: checkpoints are in a folder beside it, until it is written.
        how: for :class:`~pyroccam.inference.draw_coding.Sample`.
    """
    _, guide = require(result, BayesianNetwork, "compress")
    by_rows = not guide.traits.point and by_validation(threshold, result.data)
    checkpoints = path.with_name(f"{path.name}.coding")
    drawn = compress(
        result,
        threshold=threshold,
        tolerance=tolerance if by_rows else None,
        code=Sample(**how),
        out=checkpoints,
        resume=resume,
    )
    drawn.write(path)
    shutil.rmtree(checkpoints)
    return drawn, evaluate(result, draw_coding.read(path))


def _compressed(
    result: Fit, threshold: Threshold | None, tolerance: float | None, path: Path, **rules: Any
) -> tuple[Compressed, PackedSize, dict[str, Any], nn.Module]:
    """The small network, its file, what ``metrics.json`` says of that, and what is read back."""
    small = _cut(result, threshold, tolerance, **rules)
    # By the rows with which the thresholds were chosen.
    split = "val" if len(result.data.x_val) else "train"
    rest = rest_bits(small.net, lambda net: evaluate(result, net, split)["nll"], TOLERANCE)
    why, skeleton = {}, None
    try:
        written = write(small.net, path, bits=rest)
    except DescriptionError as error:  # the cut is not lost over a module that has no words
        written = write(small.net, path, bits=rest, describe_net=False)
        why, skeleton = {"not_described": str(error)}, small.net
    rate = written.rate(result.model.parameters_before)
    wide = {name for name, p in small.net.named_parameters() if p.dim() > 1}
    weights = sum(one.bits for one in written.tensors if one.name in wide) / 8
    sizes = {"file_bytes": written.total, "file_rate": rate, "weight_bytes": weights, **why}
    return small, written, sizes, read(path, skeleton=skeleton)


def _cut(
    result: Fit, threshold: Threshold | None, tolerance: float | None, **rules: Any
) -> Compressed:
    _, guide = require(result, BayesianNetwork, "compress")
    # A run has a tolerance whatever its rule is.
    by_rows = not guide.traits.point and by_validation(threshold, result.data)
    allowed = tolerance if by_rows else None
    return compress(result, threshold=threshold, tolerance=allowed, **rules)


def network_of_file(
    result: Fit, path: Path, threshold: Threshold | None, tolerance: float | None
) -> nn.Module:
    """The network in a run's own file.

    Arguments:
        result: the run's fit, with its own data.
        threshold, tolerance: of the run, by which a network is cut again whose file does not say
            how it is built; one that was trained once more by the thresholds in ``metrics.json``.
    """
    if is_described(path):
        return read(path)
    kept = path.parent / "metrics.json"
    structure = json.loads(kept.read_text()).get("structure", {}) if kept.is_file() else {}
    if "retrained" in structure and threshold is None:
        found = {n: math.inf if t is None else t for n, t in structure["thresholds"].items()}
        return read(path, skeleton=at_thresholds(result, found).net)
    return read(path, skeleton=_cut(result, threshold, tolerance).net)


def evaluate(
    result: Fit, net: nn.Module, split: str = "test", own: Dataset | None = None
) -> dict[str, float]:
    """Metrics of a small network, on the data of a fit.

    Arguments:
        own: data by whose validation rows the noise of a regression is known, if others.
    """
    data: Dataset = result.data
    model: BayesianNetwork = result.model
    net = net.to(data.x_test.device)
    likelihood = validated(model.likelihood, net, data if own is None else own)
    return evaluate_net(net, model, data, split, likelihood=likelihood)
