"""Methods over random weights: three ways to predict, the cut, its file."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

from safetensors.torch import load as load_tensors
from torch import nn

from ...data import Dataset, PyroccamError
from ...inference import load, shrink
from ...inference.cutting import compare_speed, count_parameters, cut
from ...inference.draws import Draw
from ...inference.files import Small, is_described
from ...inference.marginal_likelihood import description_length
from ...inference.posterior import Noise, evaluate_net, mean_network, require, validated
from ...inference.shrinking import (
    NATS,
    SHARES,
    ByValidation,
    Code,
    Cut,
    Digits,
    Search,
    Thresholds,
    Valley,
    at_thresholds,
    by_layer,
    plain_network,
    settled,
    tolerance_of,
)
from ...inference.shrinking import (
    Noise as CutByNoise,
)
from ...inference.storage import write_whole
from ...inference.training import NUMBERS, Fit, Numbers, Settings, Trained, epochs_of_numbers
from ...models import BayesianNetwork
from ...models.layers import AFFINE
from ...models.networks import DepthStack
from .. import draw_compressed
from .base import HANDED_BACK, ORDINARY, Finished, Method, known_of, smaller, timed, told, uncut
from .options import Threshold

FILE = "compressed.pocc"
DRAW = "draw.poccd"
SEARCHED = "search"
"""The folder of networks that a search has trained, until its run is finished."""

MESSAGE_PASSES = 3
"""Passes of the training rows for the length of a message: few show an error, and it is small."""


_NO_MEAN = (
    "Its weights have no mean by which the network could be cut: what it learnt is in their "
    "deviations."
)


class OverWeights(Method):
    """Any method over the weights of any network, which is compressed in the end."""

    over: ClassVar[Literal["stack", "net", "graph"]] = "net"

    units_first: ClassVar[bool] = True  # in a search, and weights from the first failure on
    # Options of some; those that have none predict and compress in this way.
    noise: Noise = "weights"
    threshold: Threshold | None = None
    tolerance: float | None = None
    finish: float = 0.0

    @property
    def shares(self) -> Sequence[float]:
        """Of the weights, that networks of a search keep."""
        return SHARES

    @property
    def gives_way(self) -> bool:
        """The plain network is handed back where it is better."""
        return True

    @property
    def passes(self) -> float:
        """The message takes passes of the training rows."""
        return 3.0

    def plain_epochs(self, settings: Settings, data: Dataset) -> int:
        return settings.epochs_for(data.N)

    def retrain_epochs(self, settings: Settings, rows: int) -> int:
        """Passes over the rows in which the smaller network is trained as numbers in the end."""
        return round(self.finish * settings.epochs_for(rows))

    def search(self, settings: Settings, data: Dataset, begun: bool) -> dict[str, tuple[int, int]]:
        """What is trained for the smaller network, at most, as :meth:`trainings` has it.

        Arguments:
            begun: the plain network is there already.
        """
        epochs = self.retrain_epochs(settings, data.N) if len(data.x_val) else 0
        if not epochs:
            return {}
        whole = 0 if begun and self.threshold is None else epochs_of_numbers(epochs, True)
        # One size is tried twice: of units, and of weights.
        sizes = len(self.shares) + self.units_first if self.threshold is None else 0
        return {"search": (1, whole + sizes * epochs)}

    def rule(self, usual: Cut | None) -> Cut | None:
        """Where the last fit is cut, for what is usual by the options."""
        return usual

    def hand_on(self, net: nn.Module, out: Path | None) -> list[str]:
        """Write what is handed back in other forms than its file; sentences on them."""
        return []

    @property
    def cuts(self) -> dict[str, Threshold | None]:
        """Thresholds of all cuts of a run, by the names of their options."""
        return {"threshold": self.threshold}

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        for name, rule in self.cuts.items():
            if rule == "validation" and not len(data.x_val):
                other = f"data.val_fraction=0.1, or {name}=valley, noise or a number"
                yield name, f"needs validation rows, and there are none. Set {other}."
        if not len(data.x_val):
            yield "tolerance", "changes nothing: there are no validation rows."

    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        return result.evaluate_ways(split, noise=self.noise)

    def compared(self, fits: Sequence[Fit]) -> tuple[Fit, nn.Module]:
        """A fit of the run with all layers that may be left, and the network with which what is
        left is compared."""
        return fits[0], mean_network(*require(fits[0], BayesianNetwork, "compress"))

    def smaller(self, result: Fit, folder: Path) -> nn.Module:
        if not (folder / FILE).is_file():
            raise PyroccamError(f"{folder} has no {FILE}", hint=f"pyroccam compress {folder}")
        return network_of_file(result, folder / FILE, self.threshold, self.tolerance)

    def report(self, run: Finished) -> dict[str, Any]:
        """The network of the means, the compressed one and its file, if there is a way to it."""
        result = run.fits[-1]
        first, before = self.compared(run.fits)
        data, (model, guide) = result.data, require(result, BayesianNetwork, "compress")
        mean = mean_network(model, guide)
        found: dict[str, Any] = {"parameters": count_parameters(mean), **_message(result)}
        found["learnt"] = [uncut(_NO_MEAN)] if guide.traits.zero_mean else []
        if run.numbers is not None:
            found["numbers"] = _plain_row(run.numbers, first)
        if guide.traits.zero_mean:
            return found  # there is no mean network to cut
        with TemporaryDirectory() as scratch:
            path = (Path(scratch) if run.out is None else run.out) / FILE
            back = self._cut(run, first, path)
            if back.said and run.numbers is not None and run.compare and self.gives_way:
                back = _plain_instead(back, run.numbers, first, result, path)
        found |= {**back.said, "learnt": [back.learnt]}
        if back.net is None:
            return found
        small, net = back.small, back.net
        found |= sent(result, net, back.sizes["file_bytes"])
        if run.out is not None and small is not None and not back.said:
            draw_compressed(result, small, run.out / "figures", first, every=run.figures)
        speed = compare_speed(
            {"before": before, "mean": mean, "compressed": net}, data.x_test, "before"
        )
        found["mean"] = timed(speed["mean"])
        found["compressed"] = {
            "parameters": count_parameters(net),
            "nonzero": sum(int(p.count_nonzero()) for p in net.parameters()),
            "parameters_before": count_parameters(before),
            **timed(speed["compressed"]),
            "test": evaluate(result, net),  # of the file, as everything that is said of it
        }
        found["structure"] = {**({} if small is None else small.report.to_json()), **back.sizes}
        found["warnings"] = [] if small is None else list(small.warnings)
        known = [*said_of_file(back.sizes), *self.hand_on(net, run.out)]
        known += known_of(net, data, model.likelihood)
        found["learnt"] += [smaller(found["compressed"], known), *_said_of_bits(found)]
        return found

    def _cut(self, run: Finished, first: Fit, path: Path) -> _Back:
        """What is left of the last fit, in its file, if it is worth as much as the plain
        network."""
        result, numbers, judges = run.fits[-1], run.numbers, len(run.fits[-1].data.x_val) > 0
        epochs = self.retrain_epochs(run.settings, result.data.N) if judges else 0
        # What was narrowed since has other weights.
        begun = None if numbers is None or len(run.fits) > 1 else numbers.trained
        kept = path.with_name(SEARCHED)
        rule = self.rule(cut_of(result, self.threshold, self.tolerance, epochs, begun, kept))
        searched = isinstance(rule, Search)
        try:
            code = Digits(epochs=0 if searched else epochs, rest=True)
            small = shrink(result, cut=rule, code=code)
            sizes, net = _written(small, result, path)
        except (ValueError, RuntimeError) as error:  # training is not lost over a threshold
            return _Back(uncut(f"Nothing was cut: {error}"), {"not_compressed": str(error)})
        # A search beside the plain network has judged what it found.
        judges = judges and run.compare and self.gives_way and not (searched and begun is not None)
        if judges and numbers is not None:
            needed = tolerance_of(net, first, numbers.trained)
            allowed = NATS if self.tolerance is None else self.tolerance
            if needed > allowed:
                refused = {"parameters": count_parameters(net), "test": evaluate(result, net)}
                learnt = uncut(HANDED_BACK.format(ORDINARY, needed, allowed))
                return _Back(learnt, {"refused": refused}, small)
        learnt = told(small.report, **{"file, bytes": small.bytes})
        return _Back(learnt, {}, small, sizes, net)


@dataclass(frozen=True)
class _Back:
    """What a run hands back.

    Attributes:
        learnt: what was cut, or why nothing was.
        said: of a cut that failed or was refused, as ``metrics.json`` has it.
        small: what was cut, refused or not.
        sizes: of the file.
        net: read from it, if there is one.
    """

    learnt: dict[str, Any]
    said: dict[str, Any]
    small: Small | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    net: nn.Module | None = None


def _plain_instead(back: _Back, numbers: Numbers, first: Fit, result: Fit, path: Path) -> _Back:
    """The plain network in place of one that was not cut, or was refused."""
    try:
        plain = plain_network(first, numbers.net)
    except (ValueError, RuntimeError):  # nor can that be cut
        return back
    sizes, net = _written(plain, result, path)
    if back.small is None:
        back.learnt["sentences"].append("Handed back is the plain network.")
    return replace(back, sizes=sizes, net=net)


def said_of_file(sizes: Mapping[str, Any]) -> list[str]:
    """Sentences on the file of a network that was cut."""
    said = [
        f"Its file has {sizes['file_bytes']:,} bytes, {sizes['file_rate']:.3g} times fewer than "
        "all parameters had as 32-bit numbers."
    ]
    if "not_described" in sizes:
        part, _, _ = sizes["not_described"].partition(":")
        said.append(
            f"The file holds tensors only: {part}. inference.load(path, like=net) takes them, with "
            "what inference.shrink makes of the run's fit; `pyroccam export` writes a file that "
            "needs no code."
        )
    return said


def _said_of_bits(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What labels take with a file that is shorter than they are, and what a message takes by the
    bound, for ``learnt``."""
    said, row = [], dict[str, Any]()
    if "sent" in found and found["sent"]["file"] < found["sent"]["uniform"]:
        plain, file, left = (found["sent"][name] for name in ("uniform", "file", "left"))
        said.append(
            f"To send the training labels takes {plain:,.0f} bits if nothing is known of them, and "
            f"{file + left:,.0f} with the file ({file:,.0f} of them)."
        )
        row |= {"labels": round(plain), "labels and file": round(file + left)}
    if "message" in found:
        one = found["message"]
        beside = (
            "targets count as densities of what is standardised"
            if one["uniform"] is None
            else f"{one['uniform'] / one['rows']:.3g} if classes were equally likely"
        )
        said.append(
            f"By the bound the message of weights and targets has {one['total']:,.0f} bits, "
            f"{one['weights']:,.0f} of them for the weights; that is {one['per_row']:.3g} a row "
            f"({beside})."
        )
        row |= {"weights by the bound": round(one["weights"]), "with targets": round(one["total"])}
    return [{"title": "Bits that are sent", "sentences": said, "rows": [row]}] if said else []


def _message(result: Fit) -> dict[str, Any]:
    """Bits that send weights and targets by the bound, where its prior and guide are a code."""
    try:
        return {"message": description_length(result, passes=MESSAGE_PASSES).to_json()}
    except ValueError:  # points, an improper prior or rows with weights
        return {}


def sent(result: Fit, net: nn.Module, size: int) -> dict[str, Any]:
    """Bits that send the classes of the training rows: ``uniform`` if nothing is known of them, and
    with a network in a file, which is sent first.
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
            by_layer("threshold", rule, model)


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


def by_validation(asked: Threshold | None, data: Dataset) -> bool:
    """Thresholds of this kind are chosen on the validation rows, or not."""
    return asked == "validation" if asked is not None else len(data.x_val) > 0


def cut_of(
    result: Fit,
    threshold: Threshold | None,
    tolerance: float | None,
    epochs: int = 0,
    plain: Trained | None = None,
    out: Path | None = None,
) -> Cut | None:
    """Where a fit is cut by the options of its run."""
    nats: dict[str, Any] = {} if tolerance is None else {"nats": tolerance}
    if epochs and threshold is None:
        return Search(epochs, **nats, plain=plain, out=out)
    if result.guide.traits.point and threshold is None:
        return None
    if by_validation(threshold, result.data):
        return ByValidation(**nats)
    if threshold == "noise":
        return CutByNoise()
    if threshold is None or isinstance(threshold, str):
        return Valley()
    return Thresholds(threshold)


def compress_run(
    result: Fit, rule: Cut | None, path: Path, code: Code | None = None
) -> tuple[Small, dict[str, Any]]:
    """Compress a fit and write it to a file; its size and what it scores."""
    code = Digits(rest=True) if code is None else code
    small = shrink(result, cut=rule, code=code)
    sizes, again = _written(small, result, path)
    return small, {**sizes, "test": evaluate(result, again)}


def draw_run(
    result: Fit, rule: Cut | None, path: Path, **how: Any
) -> tuple[Small, dict[str, float]]:
    """Code a draw of what is left of a fit, write it to a file, and what it scores when read."""
    require(result, BayesianNetwork, "compress")
    checkpoints = path.with_name(f"{path.name}.coding")
    drawn = shrink(result, cut=rule, code=Draw(out=checkpoints, **how))
    drawn.save(path)
    shutil.rmtree(checkpoints)
    return drawn, evaluate(result, load(path))


def _written(small: Small, result: Fit, path: Path) -> tuple[dict[str, Any], nn.Module]:
    """What ``metrics.json`` says of the file of a small network, and what is read back."""
    write_whole(path, lambda file: file.write(small.content))
    # The cut is not lost over a module that has no words.
    why = {"not_described": small.undescribed} if small.undescribed else {}
    wide = {name for name, p in small.net.named_parameters() if p.dim() > 1}
    weights = sum(one.bits for one in small.size.tensors if one.name in wide) / 8
    rate = small.size.rate(result.model.parameters_before)
    sizes = {"file_bytes": small.bytes, "file_rate": rate, "weight_bytes": weights, **why}
    return sizes, load(path, like=small.net if small.undescribed else None)


def _plain_row(numbers: Numbers, first: Fit) -> dict[str, Any]:
    """The plain network of a run, as ``metrics.json`` has it."""
    return {
        "parameters": count_parameters(numbers.net),
        "epochs": numbers.epochs,
        "lr": numbers.trained.lr,
        "tried": {f"{lr:g}": float(losses.mean()) for lr, losses in numbers.tried.items()},
        "seconds": numbers.seconds,
        "test": evaluate(first, numbers.net),
    }


def network_of_file(
    result: Fit, path: Path, threshold: Threshold | None, tolerance: float | None
) -> nn.Module:
    """The network in a run's own file."""
    if is_described(path):
        return load(path)
    kept = path.parent / "metrics.json"
    metrics = json.loads(kept.read_text()) if kept.is_file() else {}
    if metrics.keys() & {"refused", "not_compressed"}:
        return load(path, like=plain_network(result, _numbers_beside(result, path)).net)
    structure = metrics.get("structure", {})
    if "retrained" in structure and threshold is None:
        found = {n: math.inf if t is None else t for n, t in structure["thresholds"].items()}
        left, even = structure.get("units", 1.0), structure.get("even", False)
        return load(path, like=at_thresholds(settled(result), found, left=left, even=even).net)
    return load(path, like=shrink(result, cut=cut_of(result, threshold, tolerance)).net)


def _numbers_beside(result: Fit, path: Path) -> nn.Module:
    """The plain network of a run, trained: the deepest one of a stack."""
    while result.before is not None:
        result = result.before
    net = result.model.start_network()
    net = net.at(net.max_depth) if isinstance(net, DepthStack) else net
    kept = load_tensors(path.with_name(NUMBERS).read_bytes())
    net.load_state_dict({n.removeprefix("net."): t for n, t in kept.items() if n[:4] == "net."})
    return net


def evaluate(
    result: Fit, net: nn.Module, split: str = "test", own: Dataset | None = None
) -> dict[str, float]:
    """Metrics of a small network, on the data of a fit."""
    data: Dataset = result.data
    model: BayesianNetwork = result.model
    net = net.to(data.x_test.device)
    likelihood = validated(model.likelihood, net, data if own is None else own)
    return evaluate_net(net, model, data, split, likelihood=likelihood)
