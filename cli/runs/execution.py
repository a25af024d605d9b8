"""One whole run: fit, structure, pruned network, comparison, files."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...data import Dataset, PyroccamError
from ...guides import Delta, Guide
from ...inference.cutting import count_parameters
from ...inference.distributed import apart, joined
from ...inference.storage import CHECKPOINT, WEIGHTS, claimed, seal, versions, write_json
from ...inference.training import (
    NUMBERS,
    Fit,
    Numbers,
    Settings,
    as_numbers,
    fit,
    fit_repeats,
    pick_device,
)
from ...models import BayesianNetwork
from ...models.networks import DepthStack
from ...models.priors import Normal
from .. import ExecutionOptions, draw, draw_repeats
from ..methods import SEARCHED, Finished, Pair, find
from .building import build_network, untrained
from .config import RunConfig, changed_settings
from .described import words_of
from .opening import read_json, reading, refuse_other_data

NARROWED = "narrowed.json"


@dataclass
class Outcome:
    """A run and its numbers (those of ``metrics.json``; none in a process that is not the first of
    several)."""

    fit: Fit
    metrics: dict[str, Any]


@dataclass(frozen=True)
class RunOptions(ExecutionOptions):
    """How runs are done, whatever they are of."""

    resume: bool = False
    progress: bool | None = None

    @property
    def of_fits(self) -> dict[str, Any]:
        names = ("resume", "device", "progress")
        return {name: getattr(self, name) for name in names}


def run(
    config: RunConfig,
    data: Dataset,
    *,
    out: Path | None = None,
    options: RunOptions = RunOptions(),
) -> Outcome:
    """Fit, cut, compare and write."""
    return _run([_Job(config, data, out)], out, options)[0]


def run_repeats(
    configs: Sequence[RunConfig],
    datas: Sequence[Dataset],
    *,
    out: Path | None = None,
    options: RunOptions = RunOptions(),
) -> list[Outcome]:
    """The same run at several seeds, trained together where that pays (``fit_repeats``)."""
    jobs = [
        _Job(config, data, None if out is None else out / f"seed-{config.settings['seed']}")
        for config, data in zip(configs, datas, strict=True)
    ]
    return _run(jobs, out, options)


@dataclass
class _Job:
    """A run to do, and its folder."""

    config: RunConfig
    data: Dataset
    out: Path | None
    numbers: Numbers | None = None

    def claim(self, resume: bool) -> None:
        """Take the folder, and write into it what is run."""
        out, config, record = self.out, self.config, self.data.record()
        if out is None:
            return
        if begun(out):
            if not resume:
                raise FileExistsError(f"{out} holds a run already: --resume, or another --out")
            if changed := changed_settings(RunConfig.read(out).flat(), config.flat()):
                raise PyroccamError(f"{out} was started with other settings: {'; '.join(changed)}")
            refuse_other_data(self.data, out)
            return  # what a run was begun with stays
        write_json(out / "data.json", record)
        where = {"threads": torch.get_num_threads(), "processes": joined().size}
        write_json(out / "config.json", {"run": config.to_json(), "versions": versions(), **where})

    def train_numbers(
        self, epochs: int, device: str, progress: bool | None, comparison: bool = False
    ) -> None:
        """Train the network as numbers, with which its method begins, or beside which it stands:
        then the deepest one of a stack."""
        if not epochs or self.numbers is not None:
            return
        pair = self.config.chosen.build(self.network(), self.data)
        settings = Settings.of(self.config.settings_of(0))
        if isinstance(stack := pair[0].start_network(), DepthStack):
            if not comparison:
                return
            model = BayesianNetwork(
                stack.at(stack.max_depth), self.data, prior=Normal(1.0),
                likelihood=pair[0].likelihood,
            )  # fmt: skip
            pair = model, Delta(model)
        fresh = untrained(pair, self.data.to(device), settings)
        rates = self.config.chosen.rates(settings)
        self.numbers = as_numbers(fresh, epochs, rates=rates, out=self.out, progress=progress)

    def first(self) -> Pair:
        """The pair with which the fits begin."""
        if self.numbers is None:
            return self.config.chosen.build(self.network(), self.data)
        pair = self.config.chosen.build(self.numbers.net, self.data)
        pair[0].likelihood.load_state_dict(self.numbers.likelihood.state_dict())
        return pair

    def network(self) -> nn.Module:
        """The network to begin with; a person's own is kept in words where there are words."""
        net = build_network(self.config, self.data)
        own = self.config.network not in find(self.config.method).networks
        if (
            own
            and self.out is not None
            and (words := words_of(net, self.data.head(2)[0], self.data.fields))
        ):
            write_json(self.out / "network.json", words)
        return net


def begun(out: Path) -> bool:
    """True if something was computed; a run that could not even start does not keep its folder."""
    # Seeds that train together have one checkpoint, above their folders.
    checkpoints = (out / CHECKPOINT, out.parent / CHECKPOINT)
    computed = any(path.exists() for path in (*checkpoints, out / WEIGHTS, out / NUMBERS))
    return computed and (out / "config.json").exists()


def _run(jobs: Sequence[_Job], out: Path | None, options: RunOptions) -> list[Outcome]:
    """Run with the folders kept from other writers; of several processes one writes."""
    if not joined().first:
        jobs, out = [replace(job, out=None) for job in jobs], None
    folders = {folder for folder in (out, *(job.out for job in jobs)) if folder is not None}
    with ExitStack() as stack:
        for folder in sorted(folders):
            stack.enter_context(claimed(folder))
        return _run_claimed(jobs, out, options)


def _run_claimed(jobs: Sequence[_Job], out: Path | None, options: RunOptions) -> list[Outcome]:
    ranks = joined()
    options = replace(options, device=str(ranks.device(pick_device(options.device))))
    if not ranks.first:
        options = replace(options, progress=False)
    config, more = jobs[0].config, options.of_fits
    for job in jobs:
        job.claim(options.resume)
    chosen, own = config.chosen, config.training
    for job in jobs:
        epochs = chosen.numbers(own, job.data)
        job.train_numbers(epochs, options.device, options.progress)
    fits = _fit(jobs, _Job.first, config.settings_of(0), out, label=config.method, **more)
    passed = [[one] for one in fits]
    for number, stage in enumerate(config.stages, start=1):
        for job, before in zip(jobs, passed, strict=True):
            before.append(_next(job, number, before[-1], label=stage.name, **more))
    compared: dict[int, Fit] = {}
    beside = config.chosen.trainings(config.training, jobs[0].data, True)
    if options.compare and "fixed depth" in beside:
        by_depth: dict[int, list[int]] = {}
        for i, one in enumerate(fits):
            if one.structure is not None:
                by_depth.setdefault(one.structure.depth_chosen, []).append(i)
        for depth, members in by_depth.items():
            same = [replace(jobs[i], data=fits[i].data) for i in members]
            found = _fit_depth(same, depth, out, **more)
            compared |= dict(zip(members, found, strict=True))
    if not ranks.first:
        return [Outcome(before[-1], {}) for before in passed]
    if out is not None and options.figures and len(jobs) > 1:
        draw_repeats(passed, out / "figures")
    with apart():  # times of networks are of an idle machine, and searches of one process
        for job in jobs if options.compare else ():
            epochs = chosen.plain_epochs(own, job.data)
            job.train_numbers(epochs, options.device, options.progress, comparison=True)
        return [
            _report(job, before, compared.get(i), options)
            for i, (job, before) in enumerate(zip(jobs, passed, strict=True))
        ]


def _fit(
    jobs: Sequence[_Job],
    pair: Callable[[_Job], Pair],
    settings: Mapping[str, Any],
    out: Path | None,
    **arguments: Any,
) -> list[Fit]:
    by_seed = {job.config.settings["seed"]: job for job in jobs}
    arguments["threshold"] = jobs[0].config.chosen.chosen_share
    if len(jobs) == 1:
        model, guide = pair(jobs[0])
        return [fit(model, guide, jobs[0].data, out=out, **arguments, **settings)]

    def build(seed: int) -> tuple[Any, Guide, Dataset]:
        return *pair(by_seed[seed]), by_seed[seed].data

    rest = {name: value for name, value in settings.items() if name != "seed"}
    return fit_repeats(build, list(by_seed), out=out, **arguments, **rest).fits


def _fit_depth(jobs: Sequence[_Job], depth: int, out: Path | None, **arguments: Any) -> list[Fit]:
    """Fit the network of one depth at the protocol of the runs."""
    config = jobs[0].config

    def pair(job: _Job) -> Pair:
        likelihood = job.config.options.get("likelihood")
        method = find("ddn").with_options({"depth": depth, "likelihood": likelihood})
        return method.build(build_network(job.config, job.data), job.data)

    settings = {**config.settings, "kl_warmup": 0.0, "kl_weight": 1.0}
    folder = None if out is None else out / f"ddn-{depth}"
    return _fit(jobs, pair, settings, folder, label=f"ddn {depth}", **arguments)


def _next(job: _Job, number: int, before: Fit, **arguments: Any) -> Fit:
    """A further fit of one run, in a folder of its own."""
    stage = job.config.stages[number - 1]
    folder = None if job.out is None else job.out / stage.name
    done = joined().from_first(lambda: narrowed(folder))
    try:
        model, guide = pair_of(job.config, number, before, done)
    except (ValueError, RuntimeError) as error:
        kept = "" if job.out is None else f" What was trained before it is in {job.out}."
        raise PyroccamError(f"Stage {stage.name} of the run: {error}{kept}") from error
    thresholds = getattr(model, "narrowed_at", None)
    if folder is not None and thresholds is not None:
        write_json(folder / NARROWED, {name: str(value) for name, value in thresholds.items()})
    settings = job.config.settings_of(number)
    return fit(model, guide, stage.rows(before.data), out=folder, **arguments, **settings)


def pair_of(config: RunConfig, number: int, before: Fit, done: dict[str, Any]) -> Pair:
    """The pair of a further fit, by the thresholds that are known (:func:`narrowed`), as options:
    another search could end elsewhere, on another device, say."""
    method = replace(config.chosen, **done)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        if done:  # what its cut cost was said when it was chosen
            warnings.filterwarnings("ignore", "The cut by", UserWarning)
        torch.manual_seed(config.settings["seed"])
        return method.stages(config.training)[number - 1].build(before)


def narrowed(folder: Path | None) -> dict[str, Any]:
    """The thresholds of a narrowing that was done, as an option."""
    if folder is None or not (folder / NARROWED).is_file():
        return {}
    found = read_json(folder / NARROWED)
    with reading(folder / NARROWED):
        return {"narrow_at": {name: float(threshold) for name, threshold in found.items()}}


def _report(job: _Job, fits: Sequence[Fit], ddn: Fit | None, options: RunOptions) -> Outcome:
    """Cut, measure and write one run, of one fit or of several."""
    config, out, last, numbers = job.config, job.out, fits[-1], job.numbers
    result, said = config.chosen.concluded(last, known_of(out))
    data = result.data
    device = data.device
    metrics: dict[str, Any] = {
        "method": config.method,
        "data": data.name,
        "seed": config.settings["seed"],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "rows": data.counts,
        "epochs": sum(one.settings.epochs_for(one.data.N) for one in fits),
        "best_epoch": result.best_epoch,
        "val_nll": result.val_nll,
        "warnings": list(result.warnings),
        "seconds": sum(one.seconds for one in fits) + (numbers.seconds if numbers else 0.0),
        "engine": result.engine,
        "parameters": count_parameters(result.model),
        "test": config.chosen.on_test(result),
        "versions": versions(),
    }
    if len(fits) > 1:
        names = [config.method, *(stage.name for stage in config.stages)]
        metrics["stages"] = [
            {"name": name, "seconds": one.seconds, "engine": one.engine}
            for name, one in zip(names, fits, strict=True)
        ]

    def train(pair: Pair, name: str) -> Fit:
        (model, guide), folder = pair, None if out is None else out / name
        own = config.settings_of(0)
        return fit(model, guide, data, out=folder, label=name, **options.of_fits, **own)

    finished = Finished(
        fits=[*fits[:-1], result], said=said, numbers=numbers, fixed=ddn,
        begin=partial(build_network, config, data), train=train,
        settings=config.training, out=out,
        figures=options.figures, compare=options.compare,
    )  # fmt: skip
    found = config.chosen.report(finished)
    metrics |= {**found, "warnings": [*metrics["warnings"], *found.get("warnings", [])]}
    if out is not None:
        before = [one for one in fits if one is not result]
        predictor = config.chosen.predictor
        draw(result, ddn, out / "figures", before, predictor, every=options.figures)
        seal(out, renewed="metrics.json")  # a kill finds the old or the new one, and both are good
        write_json(out / "metrics.json", metrics)  # last: by it a run is known to be done
        seal(out)
        shutil.rmtree(out / SEARCHED, ignore_errors=True)
    return Outcome(result, metrics)


def known_of(folder: Path | None) -> dict[str, Any]:
    """``metrics.json`` of a run, if it is finished; empty if not."""
    path = None if folder is None else folder / "metrics.json"
    return {} if path is None or not path.is_file() else read_json(path)


def refuse_unmet(metrics: Mapping[str, Any]) -> None:
    """Refuse a run of every size of which no network was cut, or none meets the budget; all that
    was trained is written by then.
    """
    if "unmet" in metrics.get("path", {}):
        raise PyroccamError(metrics["path"]["unmet"])


def fixed_depth(config: RunConfig, data: Dataset, depth: int) -> Fit:
    """The deterministic network of one depth at the protocol of ``config``."""
    job = _Job(config, data, None)
    return _fit_depth([job], depth, None, device=str(data.device))[0]
