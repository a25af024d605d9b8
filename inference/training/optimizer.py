"""Which parameters are moved along their gradients, and how: rates, clipping, and what is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...data import PyroccamError
from ...models import likelihood_of, priors_of
from ..compilation import CudaRecorder, Recorded
from . import fused
from .flat_parameters import FlatParameters
from .settings import Settings, learning_rate_factor

_HELD = ("guide", "structure")


def parameter_groups(
    settings: Settings, model: nn.Module, guide: nn.Module
) -> list[dict[str, Any]]:
    """Parameters of a pair that are treated alike, as groups for an optimiser.

    Their ``name`` is ``structure`` (of the posterior of graphs), ``weights``, ``noise`` (of the
    likelihood), ``prior`` (what a prior over weights or structure learns), ``posterior`` (of random
    weights) or ``guide``; ``scheduled`` says whether the schedule scales ``lr``. Weight decay is
    for weights that are numbers. A guide over structure has a rate of its own; one over weights has
    that of the weights, with its schedule.
    """
    likelihood = likelihood_of(model) or nn.Identity()
    noise = [p for p in likelihood.parameters() if p.requires_grad]
    prior = [p for own in priors_of(model) for p in own.parameters() if p.requires_grad]
    known = {id(p) for p in (*guide.parameters(), *noise, *prior)}
    weights = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    edges: list[nn.Parameter] = getattr(guide, "structure_parameters", list)()
    shape = [p for p in edges if p.requires_grad]
    known = {id(p) for p in shape}
    latents = [p for p in guide.parameters() if p.requires_grad and id(p) not in known]
    apart = {"lr": settings.guide_lr, "weight_decay": 0.0, "scheduled": False}
    moving = {"lr": settings.lr, "weight_decay": 0.0, "scheduled": True}
    # Where the weights are random, their posterior is what is trained.
    random = getattr(model, "random_weights", False)
    groups: list[dict[str, Any]] = [
        {"name": "structure", "params": shape, **apart},
        {"name": "weights", "params": weights, **moving, "weight_decay": settings.weight_decay},
        {"name": "noise", "params": noise, **moving},
        {"name": "prior", "params": prior, **moving},
        {"name": "posterior", "params": latents, **moving}
        if random
        else {"name": "guide", "params": latents, **apart},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise PyroccamError("neither the model nor the guide has a parameter with a gradient")
    return groups


def make_optimizer(settings: Settings, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """One fused torch optimiser over groups of parameters."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, fused=True)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, betas=(0.9, settings.beta2), fused=True)


class Update:
    """One step of an optimiser for K networks.

    Arguments:
        optimizer: its groups have a ``name`` and say whether they are ``scheduled``.
        flats: the rows that it moves, by name of the group; those of the guide begin with
            ``guide``.
        failed: is told why nothing was recorded.
    """

    def __init__(
        self,
        settings: Settings,
        optimizer: torch.optim.Optimizer,
        flats: dict[str, FlatParameters],
        recorder: CudaRecorder | None,
        failed: Callable[[str], None],
    ) -> None:
        self.settings, self.optimizer, self.recorder = settings, optimizer, recorder
        # (K, P) each, of what is clipped.
        self._grads = [flat.grad for name, flat in flats.items() if not name.startswith("guide")]
        self._failed = failed
        self._recorded: dict[bool, Recorded] = {}
        if recorder is not None:
            self._adopt()

    def _adopt(self) -> None:
        """A recording cannot change a number: there, rates are tensors."""
        for group in self.optimizer.param_groups:
            group["lr"] = float(group["lr"])
            if "capturable" in group:
                group["capturable"] = self.recorder is not None
            if self.recorder is not None:
                group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state of the optimiser, on whatever device it was saved."""
        self.optimizer.load_state_dict(state)
        self._recorded.clear()
        self._adopt()

    def __call__(self, progress: float, hold: float) -> None:
        """Move all parameters; those of a posterior of structure stay before ``hold``."""
        factor = learning_rate_factor(self.settings.schedule, progress)
        for group in self.optimizer.param_groups:
            if not group["scheduled"]:
                continue
            rate = self.settings.lr * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        held = progress < hold
        if self.recorder is None:
            self._move(held)
            return
        recorded = self._recorded.get(held)
        if recorded is None:
            recorded = Recorded(lambda: self._move(held), self.recorder, self._failed)
            self._recorded[held] = recorded
        recorded()

    def _move(self, held: bool) -> None:
        if self.settings.clip_norm is not None:
            self._clip(self.settings.clip_norm)
        groups = self.optimizer.param_groups
        staying = [p for g in groups if held and g["name"] in _HELD for p in g["params"]]
        grads = [p.grad for p in staying]
        for p in staying:
            p.grad = None
        fused.step(self.optimizer)
        for p, grad in zip(staying, grads, strict=True):
            p.grad = grad

    def _clip(self, largest: float) -> None:
        """Clip the norm of each model's gradient, as ``torch.nn.utils.clip_grad_norm_`` does."""
        if not self._grads:
            return
        squares = torch.stack([g.double().square().sum(1) for g in self._grads]).sum(0)
        factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for g in self._grads:
            g.mul_(factor[:, None].to(g.dtype))
