"""Random weights in a residual stack whose depth is random, too: blocks pay for their weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pyro
import torch
from torch import Tensor, nn

from ..data import NotNegative, PyroccamError
from .bayesian import BayesianNetwork, refuse_plates
from .contexts import Counting
from .feeding import refuse_several
from .hyperparameters import Number, power
from .layers import Chosen, layers_called
from .likelihoods import Likelihood, TargetSpec
from .networks import DepthStack, Gammas, at_depth
from .priors import DepthEdge, DepthPrior, EdgePrior, Uniform, WeightPrior
from .unpacked import unwrapped


class Exits(DepthStack):
    """A stack that mixes its exits, ``Σ_d γ_d f_d(x)``: of one depth where γ is a vertex.

    Attributes:
        gamma: with the one edge ``depth``, whose primitives are the depths; at first their mean.
    """

    def __init__(self, stack: DepthStack) -> None:
        nn.Module.__init__(self)
        self.stem, self.blocks, self.head = stack.stem, stack.blocks, stack.head
        self.adapters, self.adapter_of = stack.adapters, list(stack.adapter_of)
        self.description = stack.description
        self.training = stack.training
        self.gamma = Gammas({"depth": [str(d) for d in range(stack.max_depth + 1)]})

    def forward(self, x: Tensor) -> Tensor:
        """The mixture of all depths, ``(B, outputs)``."""
        outputs = self.outputs(x)
        # In operations of which a description can be made.
        return (self.gamma.of("depth")[:, None, None] * outputs).sum(0)

    def used_at(self, name: str) -> tuple[int, ...]:
        """Depths at which a part of the stack is used, by the name of a module in it."""
        kind, _, rest = name.partition(".")
        every = range(self.max_depth + 1)
        if kind == "blocks":
            return tuple(every[int(rest.partition(".")[0]) + 1 :])
        if kind == "adapters":
            own = int(rest.partition(".")[0])
            return tuple(d for d in every if self.adapter_of[d] == own)
        return tuple(every)

    def at_names(self, depth: int) -> dict[str, str]:
        """Names of the parts that are used at a depth, by those that they have there in
        :meth:`~pyroccam.models.networks.stack.DepthStack.at`."""
        parts = ["stem", *(f"blocks.{i}" for i in range(depth))]
        if (own := self.adapter_of[depth]) is not None:
            parts.append(f"adapters.{own}")
        return {str(i): name for i, name in enumerate([*parts, "head"])}


class BayesianStack(BayesianNetwork):
    r"""A residual stack with random weights, whose depth is a latent variable.

    .. math:: d \sim p(d), \qquad w_l \sim p(w_l), \qquad
              y_n \sim p(y \mid f_{d, w_{\le d}}(x_n)), \quad n = 1 \dots N

    What a block costs is counted only where it is used. Beyond the depth a block keeps its prior,
    in the posterior too:

    .. math:: q(d, w) = q(d) \prod_{l \le d} q(w_l) \prod_{l > d} p(w_l), \qquad
              KL(q \| p) = KL(q(d) \| p(d)) + \sum_l q(d \ge l)\, KL(q(w_l) \| p(w_l)).

    For given factors of the weights the best q(d) is in closed form,

    .. math:: q(d) \propto p(d) \exp\big( \textstyle\sum_n E_q \log p(y_n \mid f_{d, w}(x_n))
              - \sum_{l \le d} KL_l \big),

    so that a block has to gain more nats of the data than its weights take to describe, without a
    prior on depth that says what it costs.

    Sites: ``depth`` (Categorical on 0 ... D), those of every Bayesian layer, in the order in which
    a pass uses them, and ``y`` in the plate ``data``. Those of a block or an adapter are masked, in
    model and guide, where the depth does not reach it
    (:class:`~pyroccam.models.contexts.Counting`), which is how the density above is written in
    Pyro. One pass gives the outputs at every depth.

    Parameters that are numbers, such as the scales and shifts of batch normalisation, have no KL. A
    file holds them all the same, so that they have their price in the prior of the depth,

    .. math:: p(d) \propto p_0(d)\, 2^{-b\, n_d},

    with n_d the numbers that depth d uses and b the bits of each, by default none. A block all of
    whose groups its prior has switched off costs nothing but that: depths that differ by no more
    than :data:`~pyroccam.inference.posterior.depth.EQUAL` are as good as each other, and the
    shallowest of them is chosen.

    Arguments:
        stack: see :class:`~pyroccam.models.networks.stack.DepthStack`; a copy is made.
        data, layers, likelihood, random_biases: as for :class:`~pyroccam.models.BayesianNetwork`.
        prior: of the weights, of all Bayesian layers or by the name of the layer.
        depth: prior over depth; by default every depth is alike.
        number_bits: b, what a number that is no random weight costs.

    Raises:
        PyroccamError: for a network that is no stack, and as for a Bayesian network.

    References:
        Antoran, Allingham, Hernandez-Lobato 2020, arXiv:2002.02797, for the depth; Nazaret, Blei
        2022, arXiv:2209.10091, count the prior of weights that are points up to the depth alone.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> stack = models.networks.residual_mlp((1, 8, 8), 10, width=8, max_depth=2)
        >>> model = BayesianStack(stack, digits, prior=models.priors.Normal(1.0))
        >>> list(model.structure)
        ['depth']
    """

    structure_argument = "depth"

    def __init__(
        self,
        stack: nn.Module,
        data: TargetSpec,
        *,
        prior: WeightPrior | Mapping[str, WeightPrior],
        depth: DepthPrior | None = None,
        layers: Chosen = None,
        likelihood: Likelihood | str | None = None,
        random_biases: bool = True,
        number_bits: NotNegative = 0.0,
    ) -> None:
        refuse_several(data, type(self).__name__)
        stack = unwrapped(stack)
        if not isinstance(stack, DepthStack):
            raise PyroccamError(
                f"{type(self).__name__} of a {type(stack).__name__}", "a models.DepthStack"
            )
        depth = Uniform() if depth is None else depth
        super().__init__(
            Exits(stack),
            data,
            prior=prior,
            layers=layers,
            likelihood=likelihood,
            random_biases=random_biases,
        )
        self.spec |= {"depth": depth, "number_bits": number_bits}
        exits = self.exits
        like = next(stack.parameters(), torch.zeros(()))
        self._numbers = self._count()
        depths = range(stack.max_depth + 1)
        logits = depth.log_probs(stack.max_depth + 1).to(like)
        if number_bits:
            nats = math.log(2.0) * number_bits * torch.tensor([*map(self.count_numbers, depths)])
            logits = (depth.log_probs(stack.max_depth + 1) - nats.double()).log_softmax(0).to(like)
        self.depth_prior = DepthEdge("depth", [str(d) for d in depths], logits, False, None).to(
            like
        )
        self._refuse_lent(exits)
        used = {site: exits.used_at(layer.name) for site, (layer, _) in self.sites.items()}
        self.counting: Counting = Counting("depth", stack.max_depth + 1, used)

    def _refuse_lent(self, exits: Exits) -> None:
        """Refuse a prior that layers share, if what it learns is in a layer that a depth lacks."""
        owners: dict[int, str] = {}
        for name, layer in self.layers.items():
            for shared in getattr(layer.prior, "held", ()):
                owner = owners.setdefault(id(shared), name)
                if owner != name and len(exits.used_at(owner)) <= exits.max_depth:
                    raise PyroccamError(
                        f"layer {name!r} shares a prior of layer {owner!r}, which some depths lack",
                        "a prior for each layer, or one that begins in the stem",
                        "GaussianMixture(per='layer')",
                    )

    @property
    def exits(self) -> Exits:
        """The stack."""
        return cast(Exits, self._modules["net"])

    @property
    def max_depth(self) -> int:
        """D: depths are 0 ... D."""
        return self.exits.max_depth

    @property
    def structure(self) -> dict[str, EdgePrior]:
        """The prior of the depth, by its site."""
        prior: Any = self._modules["depth_prior"]
        return {"depth": prior}

    @property
    def log_prior(self) -> Tensor:
        """``log p(d)``, ``(D + 1,)``."""
        return self.structure["depth"].logits

    def count_numbers(self, depth: int) -> int:
        """How many numbers, which are no random weights, a depth uses; see
        :meth:`~pyroccam.models.networks.stack.DepthStack.at`."""
        return sum(self._numbers[part] for part in self.exits.at_names(depth).values())

    def _count(self) -> Counter[str]:
        """Numbers by part of the stack. What a prior learns is in no file, and none of them."""
        found: Counter[str] = Counter()
        layers = self.layers
        for name, parameter in self.exits.named_parameters():
            owner = next((own for own in layers if name.startswith(f"{own}.")), None)
            if owner is None or name == f"{owner}.bias":
                kind, _, rest = name.partition(".")
                alone = kind in ("stem", "head")
                found[kind if alone else f"{kind}.{rest.partition('.')[0]}"] += parameter.numel()
        return found

    def prior_numbers(self) -> dict[str, object]:
        return {**super().prior_numbers(), "depth": self.log_prior.tolist()}

    def numbers(self) -> dict[str, Number]:
        """Numbers of its priors that may be others, by path: of weights, and ``structure.power``,
        with which the nats that the prior of the depth takes for a block, and for its numbers, are
        multiplied."""
        return super().numbers() | power(self.structure.values(), self.raise_power)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs for inputs ``(B, *)`` at the depth that is sampled, or, where it is enumerated,
        at every depth, ``(D + 1, ..., B, *)``."""
        refuse_plates(self)
        depth = pyro.sample("depth", self.part("depth_prior")())
        return at_depth(self.by_depth(x, depth), depth)

    def by_depth(self, x: Tensor, depth: Tensor) -> Tensor:
        """Outputs at every depth, ``(D + 1, B, *)``; samples the weights, which are counted at a
        depth."""
        net = self.part("net")
        with layers_called(), self.counting.given({"depth": depth}):
            found: Tensor = net.outputs(x)
        return found

    def priors_given(self, values: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"depth": self.depth_prior(), **super().priors_given(values)}

    def plain(
        self,
        weights: Mapping[str, tuple[Tensor, Tensor | None]],
        gammas: Mapping[str, Tensor] | None = None,
    ) -> nn.Module:
        """The stack with given weights and biases by layer, which mixes its exits by γ ``(D + 1,)``
        of the edge ``depth``; by their mean if left out."""
        net: Any = super().plain(weights)
        if gammas:
            with torch.no_grad():
                net.gamma.get_buffer("depth").copy_(gammas["depth"])
        return cast(nn.Module, net)

    def settled(
        self,
        data: TargetSpec,
        gammas: Mapping[str, Tensor],
    ) -> tuple[BayesianNetwork, dict[str, str]]:
        depth = int(gammas["depth"].argmax())
        there = {own: name for name, own in self.exits.at_names(depth).items()}
        names: dict[str, str] = {}
        for name in self.layers:
            for own in (part for part in there if name == part or name.startswith(f"{part}.")):
                names[name] = there[own] + name.removeprefix(own)
        if not names:
            raise PyroccamError(
                f"at depth {depth} no weight is random", "a deeper one", f"stack.at({depth})"
            )
        whole: Any = self.start_network()
        prior = {there: self.layers[name].weight_prior for name, there in names.items()}
        given = {name: self.arguments()[name] for name in ("likelihood", "random_biases")}
        net = whole.at(depth)
        made = BayesianNetwork(net, data, prior=prior, layers=list(prior), **given)
        made.count_from(self)
        made.names = {first: names[now] for first, now in self.names.items() if now in names}
        return made, names
