"""A network is sent as a draw of a posterior that is trained for it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, distributions, nn

from ...data import PyroccamError
from ...guides import MeanField, MeanKL, NetworkGuide
from ...models import BayesianNetwork, fitting, unfed
from ...models.distributions import base
from ...models.layers import AFFINE, BayesianLayer
from ...models.priors import Normal
from ..coding import assignment, block_sizes, deviation, nearest
from ..files import Sent, Small, encoded_draw
from ..posterior import mean_network, require
from ..storage import CHECKPOINT, claimed, fingerprint
from ..training import Settings, StopSignal
from .budget import filled, fitting_in
from .frequencies import COMPOSED, in_frequencies, in_weights
from .options import Draw, DrawReport
from .phases import Budgeted, Phase, Run, Sending, divergences

if TYPE_CHECKING:
    from ...data import Dataset
    from ..training import Fit


def draw(net: nn.Module, data: Dataset, how: Draw, *, likelihood: Any = None) -> Small:
    """Train a posterior over the weights of a plain network for a size, and code a draw of it.

    The prior of each layer is N(0, s²). First the weights have independent normal posteriors, whose
    KL is brought to the budget, and s is learnt (:class:`Budgeted
    <pyroccam.inference.draws.phases.Budgeted>`). Then s is rounded as it will be sent,
    weights are assigned to blocks at random, and each block keeps to its budget
    (:class:`~pyroccam.guides.MeanKL`); then they are coded one after another
    (:class:`~pyroccam.inference.draws.phases.Sending`).
    """

    def begin() -> tuple[BayesianNetwork, None]:
        own = net if how.basis == "weights" else in_frequencies(net, data.x_train[:1])
        return _model(own, data, likelihood), None

    return _coded(begin, data, how, likelihood)


def draw_own(fit: Fit, how: Draw) -> Small:
    """Code a draw of the posterior of a fit, under its own priors, at about the price of its KL.

    Its weights are assigned to so many blocks as its KL fills, each of which is brought to the same
    KL while it trains on (:class:`~pyroccam.guides.MeanKL`); then they are coded one after another,
    as :func:`draw` does. So what is sent is a draw of a posterior that begins with that of the
    fit, has its KL, and is trained on by the likelihood. Deviations of priors are rounded as they
    are sent, by 4.5 % at most.

    Arguments:
        fit: of a :class:`~pyroccam.models.BayesianNetwork` under priors N(0, s²) with one s for
            each layer, by independent normals, with weights that count at all depths. It is not
            changed.
        how: as that of :func:`draw`.
    """
    model, guide = require(fit, BayesianNetwork, "A draw")

    def begin() -> tuple[BayesianNetwork, NetworkGuide]:
        scales = deviations(model, guide)
        net = unfed(mean_network(model, guide))
        likelihood = copy.deepcopy(model.likelihood)
        made = _model(net, fit.data, likelihood, scales, random_biases=model.spec["random_biases"])
        one, other = ({n: v.shape for n, v in _names(of).items()} for of in (made, model))
        if one != other:
            given = "a plain network with other tensors than the posterior has"
            raise PyroccamError(given, hint="Draw(posterior='trained')")
        return made, guide

    return _coded(begin, fit.data, how, model.likelihood)


def _coded(
    begin: Callable[[], tuple[BayesianNetwork, NetworkGuide | None]],
    data: Dataset,
    how: Draw,
    likelihood: Any,
) -> Small:
    """Train, if there is no posterior yet, divide into blocks, and code them."""
    out = None if how.out is None else Path(how.out)
    with ExitStack() as held:
        stop = held.enter_context(StopSignal())
        if out is not None:
            held.enter_context(claimed(out))
            if not how.resume and (others := sorted(out.glob(f"*/{CHECKPOINT}"))):
                raise FileExistsError(f"{others[0].parent} holds a draw being coded: resume it")
        images = len(data.input_shape) == 3 and data.x_train.dim() == 4
        if (how.shift or how.basis == "frequencies") and not images:
            given = f"shift={how.shift}, basis={how.basis!r}: inputs {tuple(data.input_shape)}"
            raise PyroccamError(given, "images")
        model, own = begin()
        names = _names(model)
        for name, layer in model.layers.items():
            if layer.affine.padding is not None:
                given = f"Embedding {name!r} has a padding_idx, and a draw has all rows"
                raise PyroccamError(given)
        count = sum(numbers.numel() for numbers in names.values())
        usual = Settings(
            optimizer="adam", weight_decay=0.0, lr=how.lr, batch_size=how.batch_size,
            seed=how.seed, compile="graph",
        )  # fmt: skip
        plain, grids = in_weights(unfed(model.start_network()).cpu())
        nats = (how.bits - how.slack) * math.log(2)
        total = how.epochs * max(1, data.N // min(how.batch_size, data.N))
        training: dict[str, Any] = {
            "total": total, "units": min(total, 4 * how.epochs), "shift": how.shift
        }  # fmt: skip
        asked = {n: v for n, v in vars(how).items() if n not in ("out", "resume", "progress")}
        asked["training rows"] = fingerprint(data.x_train, data.targets)
        held.enter_context(fitting(model))
        held.enter_context(torch.enable_grad())
        if own is None:
            begun = [*plain.state_dict().values()]
            run = Run(out, how.progress, stop, asked | {"network": fingerprint(*begun)})
            blocks = fitting_in(plain, names, grids, count, how)
            own = MeanField(model)
            Budgeted(model, own, data, usual, nats=nats * blocks, **training).run(run)
            scales = _freeze(model)
        else:
            scales = _freeze(model)
            normals = [base(own.posterior(site)) for site in model.sites]
            begun = [*plain.state_dict().values(), *(q.loc for q in normals)]
            begun += [*(q.scale for q in normals), torch.tensor(scales)]
            run = Run(out, how.progress, stop, asked | {"fit": fingerprint(*begun)})
            kl = float(divergences(model, own).sum())
            blocks = filled(plain, _of_tensors(model, scales), count, how, kl)
            nats = kl / blocks
        block = np.empty(count, np.int64)
        block[assignment(how.seed, count)] = np.repeat(
            np.arange(blocks), block_sizes(count, blocks)
        )
        guide = MeanKL(model, nats=nats, blocks=torch.from_numpy(block), begin=own)
        Phase(model, guide, data, usual, **training).run(run)
        again = replace(usual, lr=how.coding_lr, schedule="linear")
        sending = Sending(
            model, guide, data, again, total=how.steps * blocks, shift=how.shift,
            bits=how.bits, seed=how.seed, random=how.posterior == "own",
        )  # fmt: skip
        sending.run(run)
    tensors = _of_tensors(model, scales)
    sent = Sent(tensors, how.seed, how.bits, sending.indices, grids)
    last, _ = in_weights(unfed(mean_network(model, guide)).cpu())
    content, decoded = encoded_draw(last, sent)
    kl = sum(sending.kl) / math.log(2)
    distance = float(np.mean(sending.distances))
    report = DrawReport(len(content), kl, blocks * how.bits, distance, count, blocks)
    return Small(decoded, report, data=data, likelihood=likelihood, draw=content)


def _model(
    net: nn.Module,
    data: Dataset,
    likelihood: Any,
    scales: Mapping[str, float] | None = None,
    random_biases: bool = True,
) -> BayesianNetwork:
    """The network with a normal prior of each layer, that begins as wide as its weights."""
    if scales is None:
        parts = {name: part for name, part in net.named_modules() if type(part) in AFFINE}
        if not parts:
            raise PyroccamError("The network has no layer whose weights could be drawn")
        scales = {name: _width(part) for name, part in parts.items()}
    prior = {name: Normal(scale, learn="scale") for name, scale in scales.items()}
    model = BayesianNetwork(
        net, data, prior=prior, likelihood=likelihood, random_biases=random_biases
    )
    return model.to(data.device)


def _width(part: Any) -> float:
    spread = float(part.weight.detach().square().mean().sqrt())
    return spread if spread > 0 else 1.0


def _of_tensors(model: BayesianNetwork, scales: list[int]) -> dict[str, int]:
    """Of each coded tensor what is given by layer, by its name in the plain network, in the order
    of sites."""
    own = dict(zip(model.layers, scales, strict=True))
    return {_name(layer, name): own[layer.name] for layer, name in model.sites.values()}


def _names(model: BayesianNetwork) -> dict[str, Tensor]:
    return {_name(layer, name): layer.start[name] for layer, name in model.sites.values()}


def _name(layer: BayesianLayer, name: str) -> str:
    """Of a tensor in the plain network, that has no layers of frequencies."""
    return layer.site(name).replace(COMPOSED, ".")


@torch.no_grad()
def _freeze(model: BayesianNetwork) -> list[int]:
    """Round the deviations of the priors as they are sent, and learn them no more."""
    found = []
    for layer in model.layers.values():
        prior: Any = layer.prior
        found.append(nearest(float(prior.log_scale.exp())))
        prior.log_scale.fill_(math.log(deviation(found[-1])))
        prior.requires_grad_(False)
    return found


@torch.no_grad()
def deviations(model: BayesianNetwork, guide: NetworkGuide) -> dict[str, float]:
    """The deviation of the prior of each layer, by its name."""
    if guide.traits.point:
        raise PyroccamError(f"A draw of {type(guide).__name__}", "guides.MeanField")
    found: dict[str, float] = {}
    for site, (layer, name) in model.sites.items():
        prior: Any = base(layer.latents()[name].prior)
        own = found.get(layer.name)
        scale = float(prior.scale.flatten()[0]) if isinstance(prior, distributions.Normal) else 0.0
        if not scale or bool((prior.loc != 0).any()) or bool((prior.scale != (own or scale)).any()):
            raise PyroccamError(
                f"A draw under the prior {type(layer.weight_prior).__name__} of {site!r}",
                "N(0, s²) with one s for its layer",
            )
        nearest(scale)
        found[layer.name] = scale
        if not isinstance(base(guide.posterior(site)), distributions.Normal):
            raise PyroccamError(f"A draw of {type(guide).__name__} of {site!r}", "normals")
    return found
