"""The configuration of a run, resolved from names and ``key=value`` settings, and written down."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import data as datasets
from ...data import Dataset, Options, PyroccamError, options_of
from ...inference.training import Settings
from ...models import unknown_name
from ...models.likelihoods import Embedding, for_data, parse, words
from ...models.networks import NETWORKS
from .. import RunRequest
from ..methods import FOLDER, Method, Stage, find
from .opening import read_json, reading
from .unlabelled import is_unlabelled, with_own_targets

# Sizes that train in a minute or so on two cores; everything can be set.
_TOY = {"width": 20, "max_depth": 20}
_TABLE = {"width": 50, "max_depth": 10}
_NETWORK: dict[str, dict[str, Any]] = {
    "mlp": _TABLE,
    "conv": {"width": 16, "inner": 8, "max_depth": 10, "pool": 4},
    "resnet": {"variant": "resnet18"},
}
_DEFAULT = {
    "stack": ("mlp", "conv"),
    "net": ("perceptron", "lenet-300-100"),
    "graph": ("perceptron-graph", "cell-graph"),
}
FIT: dict[str, dict[str, Any]] = {
    "mlp": {"batch_size": 512, "lr": 1e-2, "weight_decay": 0.1, "steps": 2000},
    "conv": {"batch_size": 256, "lr": 5e-3, "weight_decay": 0.01, "epochs": 6},
    "resnet": {"batch_size": 128, "lr": 1e-3, "weight_decay": 0.05, "epochs": 10},
}
PASSES = 50
"""Passes over the rows, at least, of a run of so many steps that nobody asked for."""


@dataclass(frozen=True)
class RunConfig(Options):
    """One run, complete: building it again from this gives the same run.

    Attributes:
        budget: its length as it was ``asked`` for, if it was, and what was ``said`` of it.
    """

    method: str
    data: dict[str, Any]
    network: str
    network_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, str] = field(default_factory=dict)

    @classmethod
    def resolve(cls, request: RunRequest, seed: int = 0) -> tuple[RunConfig, Dataset]:
        """Fill in what was left out, and load the data (which some defaults depend on).

        Of the settings ``data.<name>`` goes to the data set, and ``data.seed`` makes its rows
        another's, or the same for several seeds.

        Arguments:
            seed: of data, weights and training.
        """
        row, network, sets = find(request.method), request.network, dict(request.set_)
        _refuse_options(sets)
        data_options = {k[5:]: sets.pop(k) for k in list(sets) if k.startswith("data.")}
        if request.data_root is not None:
            data_options["data_root"] = request.data_root
        data_seed = data_options.pop("seed", seed)
        likelihood = words().get(str(sets.get("likelihood")))
        if likelihood is not None and "task" in options_of(request.data):
            data_options.setdefault("task", likelihood.task)
        network, folder = absolute_network(network)
        if folder is not None and "tokenizer" in options_of(request.data):
            data_options.setdefault("tokenizer", folder)
        dataset = datasets.load(request.data, seed=data_seed, **data_options)
        if not dataset.counts["test"]:
            raise PyroccamError(f"{dataset.name} has no test rows", hint="--set data.test=0.1")
        shape = dataset.input_shape
        if network is None:
            image = len(shape) == 3 and min(shape[1:]) >= 16
            network = _DEFAULT[row.over][image]
        builder = inspect.signature(row.network(network)).parameters
        accepts = [n for n, p in builder.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        toy = network == "mlp" and len(dataset.input_shape) == 1 and dataset.input_shape[0] <= 2
        stack = row.over == "stack" or row.network(network) is NETWORKS.get(network)
        network_options = dict(_TOY if toy else _NETWORK.get(network, {})) if stack else {}
        options = row.options
        if is_unlabelled(dataset, network):
            options = options | row.unlabelled
            asked = row.with_options({name: sets.get(name, options[name]) for name in options})
            dataset = with_own_targets(dataset, network, pieces=asked.options.get("pieces", 0))
        usual = FIT.get(network, FIT["conv" if len(shape) == 3 else "mlp"])
        settings = {**(usual if stack else {}), **row.settings}
        if row.full_batch:
            if dataset.streamed:
                raise PyroccamError(f"the rows of {dataset.name} are streamed", "rows in memory")
            settings["batch_size"] = dataset.N
        for name, value in sets.items():
            if name in options:
                options[name] = value
            elif name in accepts:
                if isinstance(builder[name].default, bool) and not isinstance(value, bool):
                    raise PyroccamError(f"{name}={value!r}", "true or false")
                network_options[name] = value
            elif name in Settings.names():
                if name == "steps":
                    settings.pop("epochs", None)
                settings[name] = value
            else:
                fit = [setting for setting in Settings.names() if setting != "seed"]
                known = [*options, *accepts, *fit, "data.<option>"]
                raise PyroccamError(unknown_name("setting", name, known))
        settings["seed"] = seed
        if "steps" in row.settings and not sets.keys() & {"epochs", "steps"}:
            settings["epochs"] = max(PASSES, Settings.of(settings).epochs_for(dataset.N))
        # These fail early, before anything is built.
        if options["likelihood"] is None:
            options["likelihood"] = for_data(dataset).word
            if dataset.classes is None and is_unlabelled(dataset, network):
                options["likelihood"] = Embedding.word
        checked, chosen = Settings.of(settings), row.with_options(options)
        parse(options["likelihood"], dataset)
        chosen.stages(checked)
        for name, why in chosen.refusals(checked, dataset):
            if sets.get(name) is not None:
                raise PyroccamError(f"{name}={sets[name]!r} {why}")
        config = cls(row.name, dataset.source, network, network_options, options, settings)
        return config, dataset

    @property
    def chosen(self) -> Method:
        """The method, with the options of this run."""
        return find(self.method).with_options(self.options)

    @property
    def training(self) -> Settings:
        """The settings of the whole run."""
        return Settings.of(self.settings)

    @property
    def stages(self) -> Sequence[Stage]:
        """The fits that follow the first."""
        return self.chosen.stages(self.training)

    def settings_of(self, number: int) -> dict[str, Any]:
        """Settings of a fit of the run; the first has the number 0."""
        own = self.stages[number - 1].settings if number else self.chosen.first(self.training)
        other = {"epochs": "steps", "steps": "epochs"}  # one of them says how long
        dropped = {other[name] for name in own if name in other}
        return {k: v for k, v in self.settings.items() if k not in dropped} | own

    def with_seed(self, seed: int) -> RunConfig:
        """The same run with another seed for data, weights and training."""
        data, settings = ({**part, "seed": seed} for part in (self.data, self.settings))
        return replace(self, data=data, settings=settings)

    def without_seed(self) -> dict[str, Any]:
        """As plain data, without the seed and the place of the data: what several runs share."""
        plain: dict[str, Any] = json.loads(json.dumps(self.to_json()))
        for part in ("data", "settings"):
            plain[part] = {k: v for k, v in plain[part].items() if k not in ("seed", "data_root")}
        return plain

    def load_data(self, **other: Any) -> Dataset:
        """The data of this run, from files that are here: nothing is downloaded."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", datasets.DataWarning)  # the run has said it
            found = datasets.load(**{**self.data, **other, "download": False})
        if not is_unlabelled(found, self.network):
            return found
        return with_own_targets(found, self.network, pieces=self.options.get("pieces", 0))

    def flat(self) -> dict[str, Any]:
        """Every setting under one name, such as ``settings.lr``."""
        return _flat(json.loads(json.dumps(self.to_json())))

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def read(cls, folder: Path) -> RunConfig:
        """The configuration in the ``config.json`` of a run."""
        path = folder / "config.json"
        if not path.is_file():
            seeds = sorted(folder.glob("seed-*/config.json"))
            one = f", such as {seeds[0].parent}" if seeds else ""
            raise FileNotFoundError(
                f"{folder} is not a run; expected a folder with a config.json{one}"
            )
        content = read_json(path)
        with reading(path):
            return cls(**content["run"])._checked()

    def _checked(self) -> RunConfig:
        """This configuration, after a look at what came from a file."""
        if not isinstance(self.data.get("name"), str):
            raise PyroccamError("data has no name")
        if "seed" not in self.settings:
            raise PyroccamError("settings has no seed")
        _ = self.chosen, self.training  # of their types
        return self


def _refuse_options(sets: Mapping[str, Any]) -> None:
    """A setting may not be asked for in a place where it would be passed over."""
    options = {"seed": "seed", "data.name": "data", "data.data_root": "data-root"}
    for name in sets.keys() & options:
        raise PyroccamError(f"--set {name}=...: that is the option --{options[name]}.")
    if None not in (sets.get("epochs"), sets.get("steps")):
        given = f"both epochs={sets['epochs']!r} and steps={sets['steps']!r}"
        raise PyroccamError(given, "one length")
    if sets.get("epochs") == 0:
        raise PyroccamError("a run of epochs=0", "one of 1 at least")
    seed = sets.get("data.seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PyroccamError(f"data.seed={seed!r}: give a whole number from 0 on.")


def absolute_network(network: str | None) -> tuple[str | None, str | None]:
    """The name of a network as it is seen from everywhere, and its folder, if that is one."""
    if network is None or not network.startswith(FOLDER):
        return network, None
    folder = str(Path(network.removeprefix(FOLDER)).expanduser().resolve())
    return f"{FOLDER}{folder}", folder


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that were something else, in words; a setting that is not named is ``None``."""
    then, after = _flat(before), _flat(now)
    for prefix in ("", "settings."):  # of two settings for the length, epochs are heard
        if None not in (then.get(f"{prefix}epochs"), after.get(f"{prefix}epochs")):
            then[f"{prefix}steps"] = after[f"{prefix}steps"] = None
    return [
        f"{name} was {then.get(name)!r}, is {after.get(name)!r}"
        for name in sorted({*then, *after})
        if then.get(name) != after.get(name)
    ]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= {f"{name}.{key}": v for key, v in value.items()}
        else:
            flat[name] = value
    return flat
