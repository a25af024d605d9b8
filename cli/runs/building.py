"""The network of a run, made by its name."""

from __future__ import annotations

import inspect
import math

import torch
from torch import nn

from ...data import Dataset, NetworkError, PyroccamError
from ...inference.training import Fit, Replicate, Settings
from ...models import refuse_without_values
from ...models.likelihoods import checked, precision
from ..methods import Pair, find
from .config import RunConfig
from .unlabelled import is_unlabelled, outputs_in


def build_network(config: RunConfig, data: Dataset) -> nn.Module:
    """The network of a run, with initial weights that depend on the seed alone.

    A person's own function gets the shape of one input, or the shapes of several by their names.
    """
    method = find(config.method)
    builder = method.network(config.network)
    ready = config.network in method.networks
    outputs: int | None = checked(config.options.get("likelihood"), data).outputs
    if is_unlabelled(data, config.network):
        outputs = outputs_in(config.network)
    if ready and data.fields is not None:
        raise PyroccamError(
            f"{data.name} has several inputs ({data.fields}), and {config.network} takes one"
        )
    arguments = (data.shapes, outputs)
    given = {"input_shape": data.shapes, "outputs": outputs, **config.network_options}
    try:
        # Bound first: torchvision's builders take a shape for the name of weights to download.
        inspect.signature(builder).bind(*arguments, **config.network_options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.settings["seed"])
            net = builder(*arguments, **config.network_options)
    except PyroccamError:
        raise
    except (Exception, SystemExit) as error:
        asked = ", ".join(f"{name}={value!r:.60}" for name, value in given.items())
        error.add_note(f"So the network {config.network} could not be built from {asked}.")
        raise
    if not isinstance(net, nn.Module):
        raise NetworkError(f"{config.network} gave a {type(net).__name__}", "a torch.nn.Module")
    refuse_without_values(net)
    if precision(net) is torch.float64:
        raise NetworkError(f"{config.network} gave a network in float64", "net.float()")
    return net


def untrained(pair: Pair, data: Dataset, settings: Settings) -> Fit:
    """A pair as it is, as if it had been trained."""
    model, guide = pair
    replicate = Replicate(model.eval(), guide.eval(), data, settings.seed)
    return Fit(
        model=model, guide=guide, data=data, settings=settings, history=[], best_epoch=0,
        val_nll=math.nan, seconds=0.0, structure=None, weights=replicate.pair.shares,
    )  # fmt: skip
