"""A network whose weights are numbers, as a Pyro model of targets."""

from __future__ import annotations

import pyro
from torch import Tensor, nn

from .base import Model
from .feeding import feed
from .likelihoods import Likelihood, TargetSpec, checked, has_weights
from .networks import hold_statistics
from .parameters import refuse_without_values
from .unpacked import copied


class PlainNetwork(Model):
    r"""A network without a prior: what is learnt of its weights are numbers.

    .. math:: y_n \sim p(y \mid f(x_n)), \quad n = 1 \dots N

    Site: ``y`` in the plate ``data`` of size N. Train it with the guide ``guides.Deterministic``:
    its bound is the log-likelihood of the rows, and the ``weight_decay`` of a fit is that of AdamW.

    Arguments:
        net: any network; a copy is made. What is frozen stays.
        data: a data set.
        likelihood: if not the one that suits the data's task; or its word.
        keeps_zeros: weights of two dimensions or more that are zero now stay zero in training, so
            that nothing comes back that was cut.

    Raises:
        PyroccamError: for a network whose weights have no values, or a likelihood of another task.

    Example:
        >>> from pyroccam import data, guides, inference
        >>> spirals = data.load("spirals")
        >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> model = PlainNetwork(net, spirals)
        >>> fit = inference.fit(model, guides.Deterministic(model), spirals, epochs=1, lr=1e-3)
        >>> fit.outputs(spirals.x_test).shape[0]
        1
    """

    def __init__(
        self,
        net: nn.Module,
        data: TargetSpec,
        *,
        likelihood: Likelihood | str | None = None,
        keeps_zeros: bool = False,
    ) -> None:
        super().__init__()
        refuse_without_values(net)
        net = copied(net)
        self.likelihood = checked(likelihood, data, net)
        net = feed(self.likelihood.headed(net), getattr(data, "fields", None))
        self.net = hold_statistics(net)
        self.size, self.weighted = data.N, has_weights(data)
        self.keeps_zeros = keeps_zeros

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The generative process for inputs ``(B, *)``; observed where ``y`` is given."""
        outputs = self.part("net")(x)
        with pyro.plate("data", self.size, subsample=x):
            likelihood, y = self.observed(outputs, y)
            return pyro.sample("y", likelihood, obs=y)

    def components(self, x: Tensor) -> Tensor:
        """Outputs of the one network, ``(1, B, outputs)``."""
        found: Tensor = self.net(x)
        return found[None]

    def log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """``(1, B)``: of the one network."""
        return self.log_prob(self.net(x), y)[None]
