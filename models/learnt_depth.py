"""Learnt depth: a categorical depth latent over a residual stack."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data import PyroccamError
from .base import Model
from .feeding import refuse_several
from .likelihoods import Likelihood, TargetSpec, checked, has_weights, precision
from .networks import NETWORKS, DepthStack, at_depth, hold_statistics
from .parameters import as_it_began, numbers_of, refuse_without_values
from .plain_network import PlainNetwork
from .priors import DepthPrior, Geometric
from .unpacked import copied, unwrapped


class LearntDepth(Model):
    r"""A residual stack whose depth is a latent variable.

    .. math:: d \sim p(d), \qquad y_n \sim p(y \mid f_d(x_n)), \quad n = 1 \dots N

    Sites: ``depth`` (Categorical on 0 ... D) and ``y`` in the plate ``data`` of size N, so that a
    minibatch is scaled by N / B. One forward pass gives the outputs at every depth; where the
    depth is enumerated, choosing by depth is the identity and nothing is gathered.

    Arguments:
        stem, blocks, head, adapters: see :class:`~pyroccam.models.networks.stack.DepthStack`, which
            may also be given in place of ``stem``; a copy is made. What is frozen stays, as in a
            :class:`~pyroccam.models.BayesianNetwork`.
        data: a data set (N, task and number of outputs are read from it).
        prior: over depth; the authors' geometric decay by default.
        likelihood: if not the one that suits the data's task; or its word, such as ``student-t``.

    Attributes:
        began: numbers of the stack and the likelihood as they were given, where another fit of the
            same network begins (:func:`pyroccam.inference.swap`).

    Raises:
        PyroccamError, ValueError: if the parts do not make a stack, or the prior does not fit it.

    References:
        Antoran, Allingham, Hernandez-Lobato (2020), Variational Depth Search in ResNets,
        arXiv:2002.02797.

    Example:
        >>> from pyroccam import data
        >>> model = LearntDepth.mlp(data.load("spirals"), width=20, max_depth=5)
        >>> model.max_depth
        5
    """

    usual_guide = "CategoricalDepth"

    def __init__(
        self,
        stem: nn.Module,
        blocks: Sequence[nn.Module] | None = None,
        head: nn.Module | None = None,
        *,
        data: TargetSpec,
        prior: DepthPrior | None = None,
        adapters: nn.Module | Sequence[nn.Module | None] | None = None,
        likelihood: Likelihood | str | None = None,
    ) -> None:
        refuse_several(data, type(self).__name__)
        super().__init__()
        stem = unwrapped(stem)
        if isinstance(stem, DepthStack) and blocks is None and head is None:
            stack = stem
        elif blocks is not None and head is not None:
            stack = DepthStack(stem, blocks, head, adapters)
        else:
            found = ", ".join(type(part).__name__ for part in (stem, blocks, head))
            raise PyroccamError(found, "a DepthStack, or a stem, a list of blocks and a head")
        refuse_without_values(stack)
        prior = Geometric() if prior is None else prior
        self.stack = stack = hold_statistics(copied(stack))
        self.likelihood = checked(likelihood, data, stack)
        stack.head = self.likelihood.headed(stack.head, stack.max_depth + 1)
        self.prior = prior
        self.size, self.weighted = data.N, has_weights(data)
        self.log_prior: Tensor
        log_prior = prior.log_probs(stack.max_depth + 1)
        double = precision(stack) is torch.float64
        self.register_buffer("log_prior", log_prior.double() if double else log_prior)
        self.began = {"stack": numbers_of(stack), "likelihood": numbers_of(self.likelihood)}

    @classmethod
    def mlp(cls, data: TargetSpec, **options: Any) -> LearntDepth:
        """Over a residual perceptron: :func:`~pyroccam.models.networks.ready.residual_mlp`, whose
        options it takes with ``prior`` and ``likelihood``."""
        return cls.of("mlp", data, **options)

    @classmethod
    def conv(cls, data: TargetSpec, **options: Any) -> LearntDepth:
        """Over a convolutional net: :func:`~pyroccam.models.networks.ready.residual_conv`."""
        return cls.of("conv", data, **options)

    @classmethod
    def resnet(cls, data: TargetSpec, **options: Any) -> LearntDepth:
        """Over a torchvision ResNet: :func:`~pyroccam.models.networks.ready.resnet`."""
        return cls.of("resnet", data, **options)

    @classmethod
    def of(
        cls,
        network: str,
        data: TargetSpec,
        *,
        prior: DepthPrior | None = None,
        likelihood: Likelihood | str | None = None,
        **arguments: Any,
    ) -> LearntDepth:
        """Over a ready network, by its name in ``networks.NETWORKS``, with as many outputs as the
        likelihood takes."""
        likelihood = checked(likelihood, data)
        stack = NETWORKS[network](data.input_shape, likelihood.outputs, **arguments)
        return cls(stack, data=data, prior=prior, likelihood=likelihood)

    @property
    def entry(self) -> nn.Module:
        return self.stack.stem

    @property
    def max_depth(self) -> int:
        """D: depths are 0 ... D."""
        return self.stack.max_depth

    def latents(self) -> list[str]:
        return ["depth"]

    def prior_numbers(self) -> object:
        return self.log_prior.tolist()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The generative process for inputs ``(B, *)``; observed where ``y`` is given."""
        outputs = self.part("stack").outputs(x)  # (D + 1, B, outputs)
        depth = pyro.sample("depth", dist.Categorical(logits=self.log_prior))
        chosen = at_depth(outputs, depth)
        with pyro.plate("data", self.size, subsample=x):
            likelihood, y = self.observed(chosen, y)
            return pyro.sample("y", likelihood, obs=y)

    def components(self, x: Tensor) -> Tensor:
        """Outputs at every depth, ``(D + 1, B, outputs)``."""
        return self.stack.outputs(x)

    def log_likelihood(self, x: Tensor, y: Tensor) -> Tensor:
        """``log p(y_n | x_n, d)`` for every depth and observation, ``(D + 1, B)``, in nats."""
        return self.log_prob(self.stack.outputs(x), y)

    def at_depth(self, depth: int) -> PlainNetwork:
        """The deterministic network of one depth (DDN), with a copy of the present weights: it
        computes no other exit."""
        likelihood = copy.deepcopy(self.likelihood)
        rows: Any = SimpleNamespace(N=self.size, task=likelihood.task, weighted=self.weighted)
        return PlainNetwork(self.stack.at(depth), rows, likelihood=likelihood)

    def anew(self, data: TargetSpec, *, prior: Any = None, structure: Any = None) -> LearntDepth:
        return LearntDepth(
            as_it_began(self.stack, self.began["stack"]),
            data=data,
            prior=self.prior if prior is None else prior,
            likelihood=as_it_began(self.likelihood, self.began["likelihood"]),
        )


@torch.no_grad()
def log_likelihood_by_depth(
    model: Model, x: Tensor, y: Tensor, *, batch_size: int = 1024
) -> Tensor:
    """``Σ_n log p(y_n | x_n, d)`` at every depth, ``(D + 1,)``, float64, in nats; streamed, in the
    module's present mode."""
    device = next(model.parameters()).device
    total: Tensor | None = None
    for rows in range(0, x.shape[0], batch_size):
        ll = model.log_likelihood(
            x[rows : rows + batch_size].to(device), y[rows : rows + batch_size].to(device)
        )
        ll = ll.double().sum(1)
        total = ll if total is None else total + ll
    if total is None:
        raise PyroccamError("Cannot compute a likelihood on no observations: x has 0 rows.")
    return total
