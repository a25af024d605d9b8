"""One whole run: fit, structure, pruned network, comparison, files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from .. import inference
from ..data import Dataset
from ..inference.fit import Fit, fit, fit_repeats, pick_device
from ..inference.predict import component_weights
from ..inference.prune import count_parameters
from ..inference.run_directory import CHECKPOINT, read_history, versions, write_json
from ..inference.settings import Settings
from ..models import BayesianNetwork, LearntDepth, StructuredNetwork
from . import depths, structured, weights
from .config import RunConfig, changed_settings
from .methods import find
from .pictures import draw, draw_repeats
from .stages import Pair, Stage

__all__ = ["Outcome", "build_network", "load_fit", "run", "run_repeats"]

NARROWED = "narrowed.json"


@dataclass
class Outcome:
    """A run and its numbers (those of ``metrics.json``)."""

    fit: Fit
    metrics: dict[str, Any]


def build_network(config: RunConfig, data: Dataset) -> nn.Module:
    """The network of a run, with initial weights that depend on the seed alone.

    Raises:
        ValueError: if it cannot be built for this data with these options.
        TypeError: if what is built is no ``torch.nn.Module``.
    """
    builder = find(config.method).network(config.network)
    try:
        # Bound first: torchvision's builders take a shape for the name of weights to download.
        inspect.signature(builder).bind(data.input_shape, data.outputs, **config.network_options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.settings["seed"])
            net = builder(data.input_shape, data.outputs, **config.network_options)
    except (ValueError, TypeError, RuntimeError) as error:
        options = "".join(f", {name}={value!r}" for name, value in config.network_options.items())
        raise ValueError(
            f"The network {config.network} could not be built from input_shape="
            f"{tuple(data.input_shape)}, outputs={data.outputs}{options}: "
            f"{str(error).rstrip('.')}. Give other options, or a function "
            "`f(input_shape, outputs, *, ...) -> torch.nn.Module` as --network package.module:f."
        ) from error
    if not isinstance(net, nn.Module):
        raise TypeError(
            f"{config.network} gave a {type(net).__name__}, expected a torch.nn.Module."
        )
    return net


def run(
    config: RunConfig,
    data: Dataset,
    *,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: bool | None = None,
    compare: bool = True,
    figures: bool = True,
) -> Outcome:
    """Fit, cut, compare and write.

    Arguments:
        config, data: from :meth:`RunConfig.resolve`.
        out: the run directory; nothing is written without it.
        resume: go on from the checkpoints in ``out``.
        device: as for ``fit``.
        progress: as for ``fit``.
        compare: also train the deterministic network of the chosen depth, at the same protocol.
        figures: draw them into ``out/figures``.

    Raises:
        FileExistsError: if ``out`` holds another run and ``resume`` is not asked for.
    """
    job = _Job(config, data, out)
    (outcome,) = _run([job], out, resume, device, progress, compare, figures)
    return outcome


def run_repeats(
    configs: Sequence[RunConfig],
    datas: Sequence[Dataset],
    *,
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: bool | None = None,
    compare: bool = True,
    figures: bool = True,
) -> list[Outcome]:
    """The same run at several seeds, trained together where that pays (``fit_repeats``).

    Arguments:
        configs, datas: of each seed.
        out: each run gets the folder ``seed-<n>`` inside it.
        resume, device, progress, compare, figures: as for :func:`run`.
    """
    jobs = [
        _Job(config, data, None if out is None else out / f"seed-{config.settings['seed']}")
        for config, data in zip(configs, datas, strict=True)
    ]
    return _run(jobs, out, resume, device, progress, compare, figures)


@dataclass
class _Job:
    """A run to do, and its folder."""

    config: RunConfig
    data: Dataset
    out: Path | None

    def claim(self, resume: bool) -> None:
        """Take the folder, and write into it what is run."""
        out, config = self.out, self.config
        if out is None:
            return
        if (out / "config.json").exists() and _begun(out):
            if not resume:
                raise FileExistsError(
                    f"{out} holds a run already. Go on with it with --resume, or give another "
                    "--out."
                )
            _check_same(RunConfig.read(out), config, out)
        write_json(
            out / "config.json",
            {"run": config.to_json(), "versions": versions(), "threads": torch.get_num_threads()},
        )


def _begun(out: Path) -> bool:
    """Whether something was computed; a run that could not even start does not keep its folder."""
    # Seeds that train together have one checkpoint, above their folders.
    checkpoints = (out / CHECKPOINT, out.parent / CHECKPOINT)
    return any(path.exists() for path in (*checkpoints, out / "model.safetensors"))


def _run(
    jobs: Sequence[_Job],
    out: Path | None,
    resume: bool,
    device: str,
    progress: bool | None,
    compare: bool,
    figures: bool,
) -> list[Outcome]:
    config, where = jobs[0].config, str(pick_device(device))
    for job in jobs:
        job.claim(resume)
    more = {"resume": resume, "device": where, "progress": progress}
    settings = _settings_of(config, 0)
    fits = _fit(jobs, _first, settings, out, label=config.method, **_rule_of(config), **more)
    passed = [[one] for one in fits]
    for number, stage in enumerate(_stages(config), start=1):
        for job, before in zip(jobs, passed, strict=True):
            before.append(_next(job, number, before[-1], label=stage.name, **more))
    compared: dict[int, Fit] = {}
    if compare:
        by_depth: dict[int, list[int]] = {}
        for i, one in enumerate(fits):
            if one.structure is not None:
                by_depth.setdefault(one.structure.depth_chosen, []).append(i)
        for depth, members in by_depth.items():
            same = [replace(jobs[i], data=fits[i].data) for i in members]
            found = _fit_depth(same, depth, out, **more)
            compared |= dict(zip(members, found, strict=True))
    if out is not None and figures and len(jobs) > 1:
        draw_repeats(passed, out / "figures")
    return [
        _report(job, before, compared.get(i), figures, compare, **more)
        for i, (job, before) in enumerate(zip(jobs, passed, strict=True))
    ]


def _first(job: _Job) -> Pair:
    """The pair with which a run begins."""
    config = job.config
    return find(config.method).build(build_network(config, job.data), job.data, config.options)


def _rule_of(config: RunConfig) -> dict[str, float]:
    if find(config.method).over != "stack":
        return {}
    return {"threshold": float(config.options.get("threshold", 0.95))}


def _fit(
    jobs: Sequence[_Job],
    pair: Callable[[_Job], Pair],
    settings: Mapping[str, Any],
    out: Path | None,
    **arguments: Any,
) -> list[Fit]:
    by_seed = {job.config.settings["seed"]: job for job in jobs}
    if len(jobs) == 1:
        model, guide = pair(jobs[0])
        return [fit(model, guide, jobs[0].data, out=out, **arguments, **settings)]

    def build(seed: int) -> tuple[Any, nn.Module, Dataset]:
        return *pair(by_seed[seed]), by_seed[seed].data

    rest = {name: value for name, value in settings.items() if name != "seed"}
    return fit_repeats(build, list(by_seed), out=out, **arguments, **rest).fits


def _fit_depth(jobs: Sequence[_Job], depth: int, out: Path | None, **arguments: Any) -> list[Fit]:
    """Fit the network of one depth at the protocol of the runs."""
    config = jobs[0].config

    def pair(job: _Job) -> Pair:
        network = build_network(job.config, job.data)
        return find("ddn").build(network, job.data, {"depth": depth})

    settings = {**config.settings, "kl_warmup": 0.0, "kl_weight": 1.0}
    folder = None if out is None else out / f"ddn-{depth}"
    return _fit(jobs, pair, settings, folder, label=f"ddn {depth}", **_rule_of(config), **arguments)


def _next(job: _Job, number: int, before: Fit, **arguments: Any) -> Fit:
    """A further fit of one run, in a folder of its own."""
    stage = _stages(job.config)[number - 1]
    folder = None if job.out is None else job.out / stage.name
    try:
        model, guide = _pair_of(stage, before, job.config, folder)
    except (ValueError, RuntimeError) as error:
        kept = "" if job.out is None else f" What was trained before it is in {job.out}."
        raise ValueError(f"Stage {stage.name} of the run: {error}{kept}") from error
    thresholds = getattr(model, "narrowed_at", None)
    if folder is not None and thresholds is not None:
        write_json(folder / NARROWED, {name: str(value) for name, value in thresholds.items()})
    settings = _settings_of(job.config, number)
    return fit(model, guide, stage.rows(before.data), out=folder, **arguments, **settings)


def _stages(config: RunConfig) -> Sequence[Stage]:
    return find(config.method).stages(config.options, config.settings)


def _settings_of(config: RunConfig, number: int) -> dict[str, Any]:
    """Of a fit of the run; the first has the number 0."""
    own = (
        _stages(config)[number - 1].settings
        if number
        else find(config.method).first(config.options, config.settings)
    )
    other = {"epochs": "steps", "steps": "epochs"}  # one of them says how long
    dropped = {other[name] for name in own if name in other}
    return {k: v for k, v in config.settings.items() if k not in dropped} | own


def _pair_of(stage: Stage, before: Fit, config: RunConfig, folder: Path | None) -> Pair:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.settings["seed"])
        return stage.build(before, {**config.options, **_narrowed(folder)})


def _narrowed(folder: Path | None) -> dict[str, Any]:
    """The thresholds of a narrowing that was done, where another search could end elsewhere: on
    another device, say."""
    if folder is None or not (folder / NARROWED).is_file():
        return {}
    found = json.loads((folder / NARROWED).read_text())
    return {"narrow_at": {name: float(threshold) for name, threshold in found.items()}}


def _report(
    job: _Job,
    fits: Sequence[Fit],
    ddn: Fit | None,
    figures: bool,
    compare: bool,
    **arguments: Any,
) -> Outcome:
    """Cut, measure and write one run, of one fit or of several."""
    config, out, result = job.config, job.out, fits[-1]
    model, data = result.model, result.data
    device = data.x_train.device
    metrics: dict[str, Any] = {
        "method": config.method,
        "data": data.name,
        "seed": config.settings["seed"],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "rows": {name: len(data.split(name)[0]) for name in ("train", "val", "test")},
        "epochs": sum(one.settings.epochs_for(one.data.N) for one in fits),
        "best_epoch": result.best_epoch,
        "val_nll": result.val_nll,
        "seconds": sum(one.seconds for one in fits),
        "engine": result.engine,
        "parameters": count_parameters(model),
        "test": (
            result.evaluate_ways(noise=config.options.get("noise", "weights"))
            if isinstance(model, BayesianNetwork)
            else depths.metrics_on_test(result)
        ),
        "versions": versions(),
    }
    if len(fits) > 1:
        names = [config.method, *(stage.name for stage in _stages(config))]
        metrics["stages"] = [
            {"name": name, "seconds": one.seconds, "engine": one.engine}
            for name, one in zip(names, fits, strict=True)
        ]
    if result.structure is not None:
        metrics |= depths.report(result, ddn, out)
    if isinstance(model, StructuredNetwork):
        settings = _settings_of(config, 0)
        begun = build_network(config, data)
        metrics |= structured.report(
            result, begun, config.options, settings, out, compare, figures, **arguments
        )
    elif isinstance(model, BayesianNetwork):
        threshold, tolerance = (config.options.get(name) for name in ("threshold", "tolerance"))
        metrics |= weights.report(result, threshold, tolerance, out, figures, fits[0])
    if out is not None:
        write_json(out / "metrics.json", metrics)
        if figures:
            draw(result, ddn, out / "figures", fits[:-1])
    return Outcome(result, metrics)


def _check_same(then: RunConfig, now: RunConfig, out: Path) -> None:
    """A run is resumed as it was started: its checkpoint fits nothing else."""
    if changed := changed_settings(then.flat(), now.flat()):
        raise ValueError(
            f"{out} was started with other settings: {'; '.join(changed)}. Repeat the command as "
            "it was, or give another --out."
        )


def fixed_depth(config: RunConfig, data: Dataset, depth: int) -> Fit:
    """The deterministic network of one depth at the protocol of ``config``."""
    job = _Job(config, data, None)
    return _fit_depth([job], depth, None, device=str(data.x_train.device))[0]


def load_fit(folder: Path, device: str = "auto") -> Fit:
    """Rebuild the fit of a finished run from its folder; runs no pickled code.

    Raises:
        FileNotFoundError: if the folder is not a finished run.
    """
    config = RunConfig.read(folder)
    where = pick_device(device)
    data = config.load_data().to(where)
    result = _as_fit(_loaded(_first(_Job(config, data, None)), folder, where), data, config, folder)
    for number, stage in enumerate(_stages(config), start=1):
        pair = _pair_of(stage, result, config, folder / stage.name)
        pair = _loaded(pair, folder / stage.name, where)
        result = _as_fit(pair, stage.rows(result.data), config, folder / stage.name)
        result.settings = Settings.of(_settings_of(config, number))
    return result


def _loaded(pair: Pair, folder: Path, device: torch.device) -> Pair:
    """A pair with the weights that a fit wrote to its folder."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no model.safetensors: the run did not finish. Go on with it with "
            "`pyroccam fit ... --resume`."
        )
    tensors = load_file(path)
    for prefix, module in zip(("model.", "guide."), pair, strict=True):
        part = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        module.load_state_dict(part)
        module.to(device).eval()
    return pair


def _as_fit(pair: Pair, data: Dataset, config: RunConfig, folder: Path) -> Fit:
    model, guide = pair
    components = component_weights(model, guide, data)
    structure = None
    if isinstance(model, LearntDepth):
        exact = inference.exact_depth_posterior(model, data)
        threshold = float(config.options.get("threshold", 0.95))
        structure = inference.Structure.from_probs(components, exact, threshold)
    written = json.loads((folder / "fit.json").read_text())
    value = written["val_nll"]
    return Fit(
        model=model, guide=guide, data=data, settings=Settings.of(config.settings),
        history=read_history(folder / "history.csv"), best_epoch=written["best_epoch"],
        val_nll=float("nan") if value is None else value, seconds=written["seconds"],
        structure=structure, weights=components, out=folder, engine=written["engine"],
    )  # fmt: skip
