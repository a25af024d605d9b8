"""One whole run: fit, structure, pruned network, comparison, files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from .. import inference
from ..data import Dataset
from ..inference.fit import Fit, fit, pick_device
from ..inference.metrics import poster_ece
from ..inference.predict import (
    depth_weights,
    evaluate_pruned,
    mixture_log_probs,
    nll_by_depth,
    outputs_by_depth,
)
from ..inference.prune import count_parameters, full_network, prune, seconds_per_batch
from ..inference.run_directory import versions, write_json
from ..inference.settings import Settings
from ..models import LearntDepth, PrunedNetwork, networks
from ..models.stack import DepthStack
from .config import RunConfig
from .methods import find
from .pictures import draw

__all__ = ["Outcome", "build_stack", "load_fit", "run"]


@dataclass
class Outcome:
    """A run and its numbers (those of ``metrics.json``)."""

    fit: Fit
    metrics: dict[str, Any]


def build_stack(config: RunConfig, data: Dataset) -> DepthStack:
    """The network of a run, with initial weights that depend on the seed alone."""
    builder = networks.NETWORKS[config.network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.settings["seed"])
        return builder(data.input_shape, data.outputs, **config.network_options)


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
    where = pick_device(device)
    if out is not None:
        if (out / "config.json").exists():
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
    row = find(config.method)
    model, guide = row.build(build_stack(config, data), data, config.options)
    threshold = float(config.options.get("threshold", 0.95))
    result = fit(
        model, guide, data, device=str(where), out=out, resume=resume, progress=progress,
        threshold=threshold, label=config.method, **config.settings,
    )  # fmt: skip
    data = result.data
    metrics: dict[str, Any] = {
        "method": config.method,
        "data": data.name,
        "seed": config.settings["seed"],
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "rows": {name: len(data.split(name)[0]) for name in ("train", "val", "test")},
        "epochs": Settings.of(config.settings).epochs_for(data.N),
        "best_epoch": result.best_epoch,
        "val_nll": result.val_nll,
        "seconds": result.seconds,
        "parameters": count_parameters(model),
        "test": metrics_on_test(result),
        "versions": versions(),
    }
    ddn: Fit | None = None
    if result.structure is not None:
        metrics["structure"] = result.structure.to_json()
        metrics["test_by_depth_nll"] = nll_by_depth(
            outputs_by_depth(model, data.x_test), model.likelihood, data.y_test
        )
        nets = {form: prune(result, form=form) for form in ("marginal", "single")}
        times = seconds_per_batch({"full": full_network(result), **nets}, data.x_test[:256])
        for key, form in (("pruned", "marginal"), ("single_exit", "single")):
            net = nets[form]
            metrics[key] = {
                "depth": net.depth,
                "parameters": count_parameters(net),
                "parameters_before": count_parameters(model),
                "seconds_per_batch": times[form],
                "seconds_per_batch_before": times["full"],
                "batch": min(256, len(data.x_test)),
                "test": metrics_on_test(result, net),
            }
        if out is not None:
            inference.save(nets["marginal"], out / "pruned")
            inference.save(nets["single"], out / "single_exit")
        if compare:
            ddn = fixed_depth(
                config, data, nets["single"].depth, out=out, resume=resume, progress=progress
            )
            metrics["ddn"] = {
                "depth": nets["single"].depth,
                "parameters": count_parameters(ddn.model),
                "seconds": ddn.seconds,
                "test": metrics_on_test(ddn),
            }
    if out is not None:
        write_json(out / "metrics.json", metrics)
        if figures:
            draw(result, ddn, out / "figures")
    return Outcome(result, metrics)


def _check_same(then: RunConfig, now: RunConfig, out: Path) -> None:
    """A run is resumed as it was started: its checkpoint fits nothing else."""
    before, after = then.flat(), now.flat()
    changed = [
        f"{name} was {before.get(name)!r}, is {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    if changed:
        raise ValueError(
            f"{out} was started with other settings: {'; '.join(changed)}. Repeat the command as "
            "it was, or give another --out."
        )


def fixed_depth(
    config: RunConfig,
    data: Dataset,
    depth: int,
    *,
    out: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Fit:
    """The deterministic network of one depth at the protocol of ``config``."""
    model, guide = find("ddn").build(build_stack(config, data), data, {"depth": depth})
    folder = None if out is None else out / f"ddn-{depth}"
    return fit(
        model, guide, data, device=str(data.x_train.device), out=folder, resume=resume,
        progress=progress, label=f"ddn {depth}", **{**config.settings, "kl_warmup": 0.0},
    )  # fmt: skip


def metrics_on_test(result: Fit, net: PrunedNetwork | None = None) -> dict[str, float]:
    """Metrics on the test rows of a fit, or of a network cut from it, with the poster's rule."""
    data = result.data
    if net is None:
        found, model, weights = result.evaluate("test"), result.model, result.weights
    else:
        found = evaluate_pruned(net, data.x_test, data.y_test, data.y_std)
        model, weights = net, net.log_weights.exp()
    if data.task == "classification":
        log_probs = mixture_log_probs(outputs_by_depth(model, data.x_test), weights)
        found["poster_ece"] = poster_ece(log_probs, data.y_test)
    return found


def load_fit(folder: Path, device: str = "auto") -> Fit:
    """Rebuild the fit of a finished run from its folder; runs no pickled code.

    Raises:
        FileNotFoundError: if the folder is not a finished run.
    """
    config = RunConfig.read(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no model.safetensors: the run did not finish. Go on with it with "
            "`pyroccam fit ... --resume`."
        )
    where = pick_device(device)
    data = config.load_data().to(where)
    model, guide = find(config.method).build(build_stack(config, data), data, config.options)
    tensors = load_file(path)
    for prefix, module in (("model.", model), ("guide.", guide)):
        part = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        module.load_state_dict(part)
        module.to(where).eval()
    return _as_fit(model, guide, data, config, folder)


def _as_fit(model: Any, guide: nn.Module, data: Dataset, config: RunConfig, folder: Path) -> Fit:
    weights = depth_weights(model, guide, data)
    structure = None
    if isinstance(model, LearntDepth):
        exact = inference.exact_depth_posterior(model, data)
        threshold = float(config.options.get("threshold", 0.95))
        structure = inference.Structure.from_probs(weights, exact, threshold)
    return Fit(
        model=model, guide=guide, data=data, settings=Settings.of(config.settings), history=[],
        best_epoch=0, val_nll=float("nan"), seconds=0.0, structure=structure, weights=weights,
        out=folder,
    )  # fmt: skip


def pruned_of(folder: Path) -> PrunedNetwork:
    """The pruned network that a run saved."""
    return inference.load(folder / "pruned")
