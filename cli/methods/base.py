"""A method of the table: its options, its pair, the fits that follow, and its report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_type_hints

from torch import nn

from ... import models
from ...data import Dataset, PyroccamError, attribute
from ...guides import Guide
from ...inference import certify
from ...inference.certificates import ByTest
from ...inference.files import said_of_classes, said_of_columns
from ...inference.posterior import Structure
from ...inference.shrinking import Report
from ...inference.training import RATES, Fit, Numbers, Settings
from ...models import unknown_name
from ...models.networks import GRAPHS, NETWORKS, PLAIN, pretrained
from .options import Likelihood, taken

HANDED_BACK = (
    "Handed back is {}: by the validation rows what the method left needs a tolerance of {:.2g}, "
    "and {:g} is allowed."
)
"""That a method left a worse network than an ordinary training."""

ORDINARY = "the plain network"

FOLDER = "hf:"
"""Before the folder of a network of transformers."""

_OF_ROW = 4  # fields that say what a row is: its name, title, reference and settings

Pair = tuple[Any, Guide]
"""A model and its guide."""


@dataclass(frozen=True)
class Stage:
    """A further fit of a run, which begins where the one before it ended.

    Attributes:
        name: of its folder, inside the run's.
        build: from the fit before to a pair. It depends on nothing else: a finished run is rebuilt
            by it from the weights of the fit before.
        settings: that replace those of the fit before.
        all_rows: train on the validation rows, too.
    """

    name: str
    build: Callable[[Fit], Pair]
    settings: dict[str, Any] = field(default_factory=dict)
    all_rows: bool = False

    def rows(self, data: Dataset) -> Dataset:
        """The data of this fit, after a fit of ``data``."""
        return data.all_rows() if self.all_rows else data


@dataclass(frozen=True)
class Finished:
    """A run whose fits are done, on which its method reports.

    Attributes:
        fits: in their order, the last as :meth:`Method.concluded` gives it.
        said: what that says beside it.
        numbers: the network with which they began, if it was trained before.
        fixed: the network of the chosen depth, if it was trained for comparison.
        begin: makes the network as it was before the first fit.
        train: fits a pair as the first fit was, in a folder of this name.
        settings: of the run.
        out: folder of the run, or ``None``.
        figures: draw all of them into ``out/figures``, not only that of the structure.
        compare: train other networks for comparison.
    """

    fits: Sequence[Fit]
    said: Mapping[str, Any]
    numbers: Numbers | None
    fixed: Fit | None
    begin: Callable[[], nn.Module]
    train: Callable[[Pair, str], Fit]
    settings: Settings
    out: Path | None
    figures: bool
    compare: bool


def length_in(settings: Settings) -> str:
    """The setting that says how long a run is, ``steps`` or ``epochs``."""
    return "steps" if settings.epochs is None else "epochs"


def timed(speed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of ``metrics.json`` on the speed of a network, of one row and of many."""
    many = speed[-1]
    return {
        "seconds_per_batch": many["seconds"],
        "seconds_per_batch_before": many["seconds_before"],
        "batch": many["batch"],
        "seconds_by_batch": list(speed),
    }


def told(one: Structure, **more: Any) -> dict[str, Any]:
    """What a structure says for itself, as ``learnt`` of ``metrics.json`` has it."""
    rows = [{**row, **more} for row in one.rows()]
    return {"title": one.title, "sentences": one.sentences(), "rows": rows}


def uncut(why: str, title: str = Report.title) -> dict[str, Any]:
    """That what was learnt is not handed back, for ``learnt``."""
    return {"title": title, "sentences": [why], "rows": []}


def smaller(part: Mapping[str, Any], sentences: Sequence[str] = ()) -> dict[str, Any]:
    """How much smaller and faster a network is, for ``learnt``."""
    after, before = part["parameters"], part["parameters_before"]
    said = f"The network that is handed back has all {before:,} parameters"
    if after < before:
        fewer = f"{before / after:.1f} x fewer"
        said = f"The smaller network has {after:,} of {before:,} parameters, {fewer}"
    if zeros := after - part.get("nonzero", after):
        said += f"; {zeros:,} of them are zeros that stay in its tensors"
    speed = part["seconds_by_batch"]
    learnt = {"title": "How much smaller", "sentences": [f"{said}.", *sentences], "rows": []}
    return {**learnt, "seconds_by_batch": speed}


def known_of(net: nn.Module, data: Dataset, like: models.Likelihood | None = None) -> list[str]:
    """Which columns a network looks at, which classes it knows, and, of classes, what is certain of
    its errors on new rows: by the test rows, and by its file, where that is short enough to say
    anything.

    Arguments:
        like: the likelihood that takes its outputs, if it does not predict by itself.
    """
    said = said_of_columns(net, data)
    if data.task != "classification" or data.weighted:
        return said
    found = said_of_classes(net, data, like)
    if data.counts["test"]:
        found.append(str(certify(net, data, by=ByTest(), likelihood=like)))
    if sum(int(p.count_nonzero()) for p in net.parameters()) < data.counts["train"]:
        one = certify(net, data, likelihood=like)
        found += [] if one.vacuous else [str(one)]
    return [*said, *found]


@dataclass(frozen=True)
class Method(ABC):
    """A row of the table. The fields that its class adds are its options: ``--set`` takes them
    beside the settings of the network and of the fit, and refuses what is not of their types.

    Attributes:
        name: on the command line.
        title: in one line.
        reference: where it comes from.
        settings: of the fit, where they differ from the network's.
        likelihood: of the targets, by its word; the one that suits their task if left out.
        over: the kind of network it takes: a ``stack`` that can stop at any depth, any ``net``, or
            one with a ``graph`` of alternatives in it.
        full_batch: it cannot take minibatches.
        predictor: what a prediction is made by, in the legends of figures.
        lengths: options that are epochs of further fits.
        unlabelled: options, where what the network says of the rows is all that is learnt.
    """

    name: str
    title: str
    reference: str
    settings: dict[str, Any] = field(default_factory=dict)
    likelihood: Likelihood | None = None

    over: ClassVar[Literal["stack", "net", "graph"]]
    full_batch: ClassVar[bool] = False
    predictor: ClassVar[str] = "ensemble"
    lengths: ClassVar[tuple[str, ...]] = ()
    unlabelled: ClassVar[dict[str, Any]] = {}

    @property
    def passes(self) -> float:
        """How many times as long as the scores of the test rows all predictions of a report take
        together, figures among them."""
        return 2.0

    @property
    def options(self) -> dict[str, Any]:
        """The options as JSON has them."""
        own = [one.name for one in fields(self)][_OF_ROW:]
        values = {name: getattr(self, name) for name in own}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """This method with other options."""
        known, types = self.options, get_type_hints(type(self), include_extras=True)
        if unknown := [name for name in options if name not in known]:
            raise PyroccamError(unknown_name(f"option of {self.name}", unknown[0], known))
        values: dict[str, Any] = {n: taken(n, value, types[n]) for n, value in options.items()}
        return replace(self, **values)

    @abstractmethod
    def build(self, net: nn.Module, data: Dataset) -> Pair:
        """The pair to fit first."""

    def numbers(self, settings: Settings, data: Dataset) -> int:
        """Epochs of the training as numbers with whose network the first fit begins, if any."""
        return 0

    def rates(self, settings: Settings) -> Sequence[float]:
        """Learning rates that are tried for trainings as numbers."""
        return RATES

    def plain_epochs(self, settings: Settings, data: Dataset) -> int:
        """Epochs of the plain network that a run is compared with, if none was trained before."""
        return 0

    def first(self, settings: Settings) -> dict[str, Any]:
        """Settings of the first fit that differ from the run's."""
        return {}

    def stages(self, settings: Settings) -> Sequence[Stage]:
        """The fits that follow the first."""
        return ()

    def further(self, begin: Callable[[], nn.Module], data: Dataset) -> dict[str, Pair]:
        """Pairs like those of what is trained after the first fit, by its name, where a step of it
        takes another time. The last stands for the further fits that are not named.
        """
        return {}

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        """What is trained for the report: how many trainings, at most, and the epochs of each."""
        return {}

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        """Options that cannot be, or change nothing, as the others and the data are, each with the
        reason. Those that were asked for are refused."""
        return iter(())

    def concluded(self, result: Fit, known: Mapping[str, Any]) -> tuple[Fit, Mapping[str, Any]]:
        """The fit for which a run stands in the end, and what ``metrics.json`` says of its choice.

        Arguments:
            result: the last fit.
            known: ``metrics.json`` of the run, if it was finished before; empty if not.
        """
        return result, {}

    @property
    def chosen_share(self) -> float:
        """The first depth with so large a share of the largest probability is chosen."""
        return 0.95

    @abstractmethod
    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        """Metrics of a fit on a split, by network or way to predict; with the folder of the run
        those of what it handed back, too, where a stack is cut."""

    def on_test(self, result: Fit) -> Mapping[str, Any]:
        """Metrics on the test rows, as ``metrics.json`` has them."""
        return self.scores(result, "test")

    def report(self, run: Finished) -> dict[str, Any]:
        """Further parts of ``metrics.json``; writes the smaller networks. ``learnt`` lists what
        terminal and page say: title, sentences and rows."""
        return {}

    def smaller(self, result: Fit, folder: Path) -> nn.Module:
        """The smaller network of a finished run."""
        raise PyroccamError(f"{folder} has no smaller network: {self.name} learns no structure.")

    @property
    def networks(self) -> dict[str, Callable[..., nn.Module]]:
        """Ready networks that it takes, by name."""
        if self.over == "stack":
            return dict(NETWORKS)
        return PLAIN if self.over == "net" else GRAPHS

    def network(self, name: str) -> Callable[..., nn.Module]:
        """The maker of a network, from the shape of an input, the number of outputs and options."""
        if name in self.networks:
            return self.networks[name]
        if name.startswith(FOLDER):
            return lambda input_shape, outputs: pretrained(name.removeprefix(FOLDER), outputs)
        module, _, function = name.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), function)):
            known = [*self.networks, "hf:FOLDER", "MODULE:FUNCTION of your own"]
            raise PyroccamError(unknown_name(f"network of {self.name}", name, known))
        try:
            found = attribute(module, function)
        except (Exception, SystemExit) as error:
            error.add_note(f"So {module}, which makes the network, cannot be imported.")
            raise
        if not callable(found):
            raise PyroccamError(f"network {name!r}: {module} has no function {function!r}")
        made: Callable[..., nn.Module] = found
        return made
