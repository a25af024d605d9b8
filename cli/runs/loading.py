"""The fit of a finished run, rebuilt from its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import nn

from ...data import Dataset, PyroccamError, is_code, is_own
from ...inference.posterior import posterior_of
from ...inference.storage import HISTORY, WEIGHTS, read_history
from ...inference.training import Fit, Settings, pick_device
from ..methods import FOLDER, Pair, find
from .building import build_network
from .config import RunConfig, absolute_network
from .described import network_of
from .execution import known_of, narrowed, pair_of
from .opening import RunError, check_files, read_json, reading, refuse_other_data


def load_fit(
    folder: Path,
    device: str = "auto",
    *,
    network: str | None = None,
    trust: bool = False,
    data_root: str | None = None,
    data_file: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Fit:
    """Rebuild the fit of a finished run from its folder; runs no code that the folder names.

    Arguments:
        network: ``module:function``, which makes a network of one's own; it is imported. Or
            ``hf:`` and where the folder of the network is now.
        trust: import the network that the run names, if it has no description, and the function
            that makes its data.
        data_root: folder where the files of the run's data are now, if they are not where they
            were.
        data_file: where the run's data are now, a file, a folder or a function, by whatever name.
        options: of the method, by which the fit is chosen anew that the run stands for.
    """
    config = RunConfig.read(folder)
    chosen = config.chosen.with_options(options or {})
    check_files(folder)
    where = pick_device(device)
    if data_file is None and not trust and is_code(str(config.data["name"])):
        given = f"the data of {folder} are made by somebody's own code, {config.data['name']}"
        raise RunError(given, hint="--trust, which runs that code")
    network, moved = absolute_network(network)
    if moved is not None and config.data.get("tokenizer") is not None:
        config = replace(config, data={**config.data, "tokenizer": moved})
    data = _own_data(config, folder, data_root, data_file)
    refuse_other_data(data, folder)
    rows = data.to(where)
    net = _known_network(config, rows, folder, network, trust)
    with reading(folder / "config.json"):
        pair = config.chosen.build(net, rows)
    result = _as_fit(_loaded(pair, folder, where), rows, config, folder, 0)
    with reading(folder / "config.json"):
        stages = config.stages
    for number, stage in enumerate(stages, start=1):
        check_files(folder / stage.name)
        with reading(folder / "config.json"):
            pair = pair_of(config, number, result, narrowed(folder / stage.name))
        pair = _loaded(pair, folder / stage.name, where)
        before = result
        result = _as_fit(pair, stage.rows(result.data), config, folder / stage.name, number)
        result.before = before
    known = {} if options else known_of(folder)
    with reading(folder / "metrics.json") if known else nullcontext():
        result, said = chosen.concluded(result, known)
    if options and "unmet" in said.get("path", {}):
        raise PyroccamError(said["path"]["unmet"])
    return result


def _own_data(config: RunConfig, folder: Path, root: str | None, file: str | None) -> Dataset:
    """The data of a run, from where it is now: in a file, in a folder, or where it was."""
    name = str(config.data["name"])
    places: list[dict[str, str]] = [{}]
    if file is not None:
        places = [{"name": file}]
    elif root is not None and "data_root" in config.data:
        places.insert(0, {"data_root": root})
    elif root is not None and Path(name).is_absolute():  # a person's own file, and no toy
        places.insert(0, {"name": str(Path(root, Path(name).name))})
    failed: list[PyroccamError] = []
    for place in places:  # a root may be that of new rows alone
        try:
            return config.load_data(**place)
        except PyroccamError as error:
            failed.append(error)
    given = f"the data of {folder} cannot be loaded: {failed[0]}"
    option = "--network hf:FOLDER" if config.network.startswith(FOLDER) else "--data-root FOLDER"
    raise RunError(given, hint=f"{option}, if it was moved") from failed[0]


def names_own_data(folder: Path, file: str) -> bool:
    """True if a file, a folder or a function, by whatever name, gives the very data that a run was
    trained on."""
    config = RunConfig.read(folder)
    if not is_own(file) or not (folder / "data.json").is_file():
        return False
    try:
        return not config.load_data(name=file).differences(read_json(folder / "data.json"))
    except PyroccamError:  # also of a function that takes other options
        return False


def _known_network(
    config: RunConfig, data: Dataset, folder: Path, network: str | None, trust: bool
) -> nn.Module:
    """The network of a run that is opened: of this package, named again, or described."""
    ready = config.network in find(config.method).networks
    if network is not None and ready:
        raise PyroccamError(f"--network {network}", f"none: the run has {config.network}")
    if network is not None:
        return build_network(replace(config, network=network), data)
    ready |= config.network.startswith(FOLDER) and Path(config.network[len(FOLDER) :]).is_dir()
    path = folder / "network.json"
    if not ready and not trust and path.is_file():
        words = read_json(path)
        with reading(path):
            return network_of(words)
    if not ready and not trust:
        given = f"{folder} has a network of somebody's own, {config.network}, without a description"
        raise RunError(given, hint=f"--network {config.network}, or --trust, which runs that code")
    with reading(folder / "config.json"):
        return build_network(config, data)


def _loaded(pair: Pair, folder: Path, device: torch.device) -> Pair:
    """A pair with the weights that a fit wrote to its folder."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {WEIGHTS}: the run did not finish (--resume)")
    with reading(path):
        tensors = load(path.read_bytes())  # load_file takes no path that is no text
        for prefix, module in zip(("model.", "guide."), pair, strict=True):
            part = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            refuse_other_tensors(part, module)
            module.load_state_dict(part)
            module.to(device).eval()
    return pair


def refuse_other_tensors(tensors: Mapping[str, torch.Tensor], module: nn.Module) -> None:
    """Refuse tensors of another network, or of none. Integers in the place of weights would be
    converted without a word."""
    expected, learnt = module.state_dict(), dict(module.named_parameters())
    for name in [*expected, *tensors]:
        here, there = (_kind_of(of.get(name)) for of in (tensors, expected))
        if here != there:
            raise PyroccamError(f"{name} is {here} in it, and {there} in the network of the run")
        if not tensors[name].isfinite().all() and name in learnt:
            raise PyroccamError(f"{name} is not finite, as no run ends")


def _kind_of(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _as_fit(pair: Pair, data: Dataset, config: RunConfig, folder: Path, number: int) -> Fit:
    model, guide = pair
    kind, settings = posterior_of(model, guide, data), Settings.of(config.settings_of(number))
    path = folder / "fit.json"
    written = read_json(path)
    with reading(folder / HISTORY):
        history = read_history(folder / HISTORY)
    with reading(path):
        value = written["val_nll"]
        return Fit(
            model=model, guide=guide, data=data, settings=settings,
            history=history, best_epoch=int(written["best_epoch"]),
            val_nll=math.nan if value is None else float(value),
            seconds=float(written["seconds"]), weights=kind.shares, out=folder,
            structure=kind.structure(
                data, config.chosen.chosen_share, kl_weight=settings.kl_weight
            ),
            engine=dict(written["engine"]),
        )  # fmt: skip
