"""Guides over depth."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import Between, PyroccamError
from ..models import LearntDepth, Model, PlainNetwork
from .base import Guide, KLSettings, Schedule, Traits, remember
from .edges import Start

Update = Literal["closed", "gradient"]


class DepthGuide(Guide):
    """A guide over the depth of a network.

    One of your own has :attr:`probs`, and a ``forward`` that samples the site ``depth``.
    """

    covers = LearntDepth

    @property
    def probs(self) -> Tensor:
        """q(d), ``(D + 1,)``, detached."""
        raise NotImplementedError

    def latents(self) -> list[str]:
        return ["depth"]

    def posterior(self, site: str) -> Any:
        return dist.Categorical(probs=self.probs) if site == "depth" else super().posterior(site)

    def check(self, model: Model, settings: KLSettings, batches: int) -> None:
        self.refuse(model)
        if isinstance(model, LearntDepth) and len(self.probs) != model.max_depth + 1:
            found = f"a guide of {len(self.probs)} depths"
            raise PyroccamError(found, f"{model.max_depth + 1}, as the model has")
        super().check(model, settings, batches)


class CategoricalDepth(DepthGuide):
    r"""``q(d)``, a categorical with free logits, enumerated in parallel.

    With ``TraceEnum_ELBO`` the expectation over depth is exact, without sampling, and unbiased in
    minibatches. (Enumerating in the *model* raises under a subsampled plate.)

    Arguments:
        model: the :class:`~pyroccam.models.learnt_depth.LearntDepth` it is for.
        update: how :func:`pyroccam.inference.fit` moves q. ``closed``: for given weights the
            optimal q is the exact posterior, so q follows a running estimate of it
            (:class:`~pyroccam.inference.training.depth_update.IncrementalPosterior`), and is the
            exact posterior itself wherever a checkpoint is chosen. ``gradient``: by the ELBO's
            gradient in the logits, with a learning rate of their own and never under
            weight decay; this is also what plain ``pyro.infer.SVI`` does with either.
        hold: fraction of the training during which q stays as it is ``held``. A q that is free from
            the first step runs to the depths that learn fastest, the shallowest, and starves the
            rest.
        rate: step ρ of the damped closed-form update, in (0, 1]. ``None`` takes the one that
            forgets q's start by a factor e^-10 in the first half of the time after ``hold``.
        held: what q is at first. Of a ``uniform`` one the first of many depths have little, and are
            not chosen; at a ``prior`` that falls, how many there are changes little.

    Raises:
        PyroccamError: for a model without a ``depth`` site.
        ValueError: for an unknown ``update``, or numbers out of range.

    Example:
        >>> from pyroccam import data, models
        >>> guide = CategoricalDepth(models.LearntDepth.mlp(data.load("spirals"), max_depth=3))
        >>> guide.probs
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(
        self,
        model: LearntDepth,
        *,
        update: Update = "closed",
        hold: Start = 0.5,
        rate: Annotated[float, Between(0.0, 1.0, "(]")] | None = None,
        held: Literal["uniform", "prior"] = "uniform",
    ) -> None:
        super().__init__(model)
        if update == "gradient" and rate is not None:
            raise PyroccamError(f"rate={rate} with update='gradient'", "guide_lr of inference.fit")
        remember(self, model)
        self.update, self.held = update, held
        self.schedule = Schedule(hold, rate)
        begin = model.log_prior.detach().cpu().clamp_min(-1e4)
        self.logits = nn.Parameter(begin if held == "prior" else torch.zeros_like(begin))

    @property
    def probs(self) -> Tensor:
        """q(d), ``(D + 1,)``, detached."""
        return self.logits.detach().softmax(-1)

    @property
    def traits(self) -> Traits:
        return Traits(moves="logits" if self.update == "closed" else None)

    def arguments(self) -> dict[str, Any]:
        own = {"hold": self.schedule.start, "rate": self.schedule.rate}
        return {"update": self.update, **own, "held": self.held}

    def options(self) -> dict[str, Any]:
        return super().options() | self.arguments()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample (or enumerate) the site ``depth``."""
        q = dist.Categorical(logits=self.logits)
        return pyro.sample("depth", q, infer={"enumerate": "parallel"})


class Deterministic(Guide):
    """The empty guide of a model without latents, whose weights are numbers."""

    covers = PlainNetwork
    traits = Traits(point=True)

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        """Nothing to sample."""


class Marginal(Guide):
    r"""The empty guide of the marginal likelihood: depth is summed out in the *model*.

    :math:`\log \sum_d p(d) \prod_n p(y_n \mid x_n, d)`, by model-side enumeration over the full
    batch (Pyro cannot scale an enumerated site under a subsampled plate). Offered for comparison:
    maximising it lets the depth that learns fastest take all the gradient, and it is reported to
    collapse onto depth 0 (Antoran et al. 2020, arXiv:2006.08437).
    """

    covers = LearntDepth
    traits = Traits(sums_out=True)

    def check(self, model: Model, settings: KLSettings, batches: int) -> None:
        super().check(model, settings, batches)
        if batches > 1:
            found = f"batch_size={settings.batch_size} of guides.Marginal"
            raise PyroccamError(found, f"{model.size}, all rows", "guides.CategoricalDepth")

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        """Nothing to sample."""
