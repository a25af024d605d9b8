"""Networks of random structure, and random weights if wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from ..data import PyroccamError
from .bayesian import BayesianNetwork, refuse_plates
from .distributions import Temperature
from .feeding import refuse_several
from .hyperparameters import Number, Slot, power
from .layers import BayesianLayer, Chosen
from .likelihoods import Likelihood, TargetSpec
from .networks import distinct, graphs_in, structures
from .priors import EdgePrior, Scaling, Share, StructurePrior, WeightPrior


class StructuredNetwork(BayesianNetwork):
    r"""A network in which the structure of graphs is random, and its weights too if they have a
    prior.

    .. math:: Γ \sim p(Γ), \qquad w \sim p(w \mid Γ), \qquad y_n \sim p(y \mid f_{w, Γ}(x_n))

    Sites: ``edge.structure`` of every edge with alternatives (with the name of its graph in front,
    where the graph is part of a network), then those of the weights, then ``y``.

    Arguments:
        net: a :class:`~pyroccam.models.StructureGraph`, or any module with graphs in it.
        data, layers, likelihood, random_biases: as for
            :class:`~pyroccam.models.BayesianNetwork`.
        structure: prior of every edge; it says which restriction γ obeys.
        prior: of the weights; ``None`` leaves them parameters, learnt as numbers.
        scaling: the prior of the weights of a primitive depends on γ; by default it does not.

    Attributes:
        temperature: that all edges share, if they are relaxed.

    Raises:
        PyroccamError: if no edge has an alternative, besides those of a Bayesian network.

    References:
        Bakhteev, Strijov, Bayesian selection of deep learning model structure.

    Example:
        >>> from pyroccam import data, models
        >>> spirals = data.load("spirals")
        >>> graph = models.StructureGraph({
        ...     ("x", "h"): {"tanh": nn.Sequential(nn.Linear(2, 8), nn.Tanh()),
        ...                  "relu": nn.Sequential(nn.Linear(2, 8), nn.ReLU())},
        ...     ("h", "y"): [nn.Linear(8, 2)],
        ... })
        >>> model = StructuredNetwork(graph, spirals, structure=models.priors.GumbelSoftmax())
        >>> list(model.structure)
        ['x-h.structure']
    """

    temperature: Temperature | None

    def __init__(
        self,
        net: nn.Module,
        data: TargetSpec,
        *,
        structure: StructurePrior,
        prior: WeightPrior | Mapping[str, WeightPrior] | None = None,
        layers: Chosen = None,
        likelihood: Likelihood | str | None = None,
        random_biases: bool = True,
        scaling: Scaling | None = None,
    ) -> None:
        refuse_several(data, type(self).__name__)
        super().__init__(
            net,
            data,
            prior=prior,
            layers=layers,
            likelihood=likelihood,
            random_biases=random_biases,
        )
        self.scaling = scaling
        self.spec |= {"structure": structure, "scaling": scaling}
        alone = structure.kind.restriction.startswith("simplex")  # where one primitive is no choice
        primitives = {
            edge: names
            for edge, names in self.primitives.items()
            if not (alone and len(names) == 1)
        }
        if not primitives:
            expected = "two primitives at least on some edge of a models.StructureGraph"
            raise PyroccamError("a network without alternatives", expected)
        made = structure.for_edges(primitives)
        keys = distinct({edge: edge.replace(".", "/") for edge in made})  # no dots are allowed
        like = next(net.parameters(), torch.zeros(()))
        self.edge_priors = nn.ModuleDict({key: made[edge].to(like) for edge, key in keys.items()})
        self.temperature = next(iter(made.values())).temperature
        if self.temperature is not None:
            self.temperature.to(like)

    def _choose(self, net: nn.Module, prior: Any, layers: Chosen) -> list[str]:
        if not prior:
            if layers is not None:
                raise PyroccamError("layers= without prior=", "a prior of their weights")
            return []
        return super()._choose(net, prior, layers)

    @property
    def primitives(self) -> dict[str, tuple[str, ...]]:
        """Names of the primitives by edge, of all graphs."""
        net: Any = self._modules["net"]
        return {
            f"{path}.{edge}".lstrip("."): names
            for path, gammas in structures(net).items()
            for edge, names in gammas.primitives.items()
        }

    @property
    def structure(self) -> dict[str, EdgePrior]:
        """The priors of the edges with alternatives, by site, in the order of the model."""
        priors: Any = self._modules["edge_priors"]
        return {f"{prior.edge}.structure": prior for prior in priors.values()}

    def prior_numbers(self) -> dict[str, object]:
        found = super().prior_numbers()
        found |= {
            site: [
                type(prior).__name__,
                None if isinstance(prior.logits, nn.Parameter) else prior.logits.tolist(),
            ]
            for site, prior in self.structure.items()
        }
        schedule = None if self.temperature is None else self.temperature.schedule
        start = None if self.temperature is None else float(self.temperature.value)
        found["temperature"] = start if schedule is None else repr(schedule)
        return {**found, "scaling": repr(self.scaling)}

    def numbers(self) -> dict[str, Number]:
        """Numbers of its priors that may be others, by path: of weights, and of the structure the
        ``structure.temperature`` of a relaxation, and the ``structure.power`` of its
        probabilities, if they are some."""

        def heat(value: float) -> None:
            self.spec["structure"] = replace(self.spec["structure"], temperature=value)

        found = super().numbers() | power(self.structure.values(), self.raise_power)
        own = self.temperature
        if own is not None and own.schedule is None:
            found["structure.temperature"] = Number((Slot(own, "value"),), float(own.value), heat)
        return found

    def anneal(self, progress: float) -> None:
        if self.temperature is not None:
            self.temperature.anneal(progress)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs for inputs ``(B, *)``, of shape ``(enumerated dims..., B, *)``."""
        refuse_plates(self)
        net = self.part("net")
        priors: Any = self.part("edge_priors")
        gammas = {
            prior.edge: prior.gamma(pyro.sample(f"{prior.edge}.structure", prior()))
            for prior in priors.values()
        }
        lead = torch.broadcast_shapes(*(g.shape[:-1] for g in gammas.values()))
        if not lead:
            with self._with(gammas, gammas):
                out: Tensor = net(x)
            return out
        # Structures that are enumerated pass as further rows, for every module takes rows.
        lead, batch = lead[:-1], len(x)
        many = x.expand(*lead, *x.shape).reshape(-1, *x.shape[1:])
        rows = {
            edge: g.expand(*lead, batch, g.shape[-1]).reshape(-1, g.shape[-1])
            for edge, g in gammas.items()
        }
        with self._with(gammas, rows):
            out = net(many)
        return out.reshape(*lead, batch, *out.shape[1:])

    def priors_given(self, values: Mapping[str, Tensor]) -> dict[str, Any]:
        """Priors of the structure, and of the weights given values of it."""
        found = {site: prior() for site, prior in self.structure.items()}
        if self.scaling is None:
            return found | super().priors_given(values)
        gammas = {prior.edge: prior.gamma(values[site]) for site, prior in self.structure.items()}
        shares = {layer.name: share for layer, (_, share) in self._shares(gammas, gammas)}
        for name, layer in self.layers.items():
            latents = layer.latents()
            if name in shares:
                latents = self.scaling.latents(name, latents, shares[name])
            found |= {layer.site(key): latent.prior for key, latent in latents.items()}
        return found

    @contextmanager
    def _with(self, gammas: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Iterator[None]:
        """Structure in place, in graphs and, where priors depend on it, in layers."""
        net: Any = self._modules["net"]
        with ExitStack() as stack:
            for path, own in structures(net).items():
                prefix = f"{path}." if path else ""
                given = {
                    edge: rows.get(prefix + edge, getattr(own, edge)) for edge in own.primitives
                }
                stack.enter_context(own.given(given))
            held = self._shares(gammas, rows) if self.scaling is not None else []
            for layer, share in held:
                layer.share = share
            try:
                yield
            finally:
                for layer, _ in held:
                    layer.share = None

    def _shares(
        self, gammas: Mapping[str, Tensor], rows: Mapping[str, Tensor]
    ) -> list[tuple[BayesianLayer, tuple[Scaling, Share]]]:
        """Shares of the Bayesian layers in primitives that have alternatives."""
        assert self.scaling is not None
        found: dict[str, tuple[BayesianLayer, tuple[Scaling, Share]]] = {}
        for layer, edge, k in self._counted():
            gamma, of_rows = gammas[edge][..., k], rows[edge][..., k]
            if layer.name in found:  # a graph within a primitive
                outer = found[layer.name][1][1]
                gamma, of_rows = outer.gamma * gamma, outer.rows * of_rows
            found[layer.name] = layer, (self.scaling, Share(gamma, of_rows))
        return list(found.values())

    def _counted(self) -> Iterator[tuple[BayesianLayer, str, int]]:
        """Bayesian layers in primitives that have alternatives, the edge, the primitive."""
        net: Any = self._modules["net"]
        known = {prior.edge for prior in self.structure.values()}
        for prefix, graph in graphs_in(net):
            edges: Any = graph.edges
            for edge in (name for name in edges if prefix + name in known):
                for k, primitive in enumerate(edges[edge].values()):
                    for layer in primitive.modules():
                        if isinstance(layer, BayesianLayer):
                            yield layer, prefix + edge, k

    def scaled(
        self, weights: Mapping[str, Tensor], gammas: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        found = dict(weights)
        if self.scaling is None:
            return found
        for layer, edge, k in self._counted():
            for name in (layer.site("weight"), layer.site("bias")):
                if name in found:
                    found[name] = self.scaling.plain(found[name], gammas[edge][..., k])
        return found

    def plain(
        self,
        weights: Mapping[str, tuple[Tensor, Tensor | None]],
        gammas: Mapping[str, Tensor] | None = None,
    ) -> nn.Module:
        """The ordinary network with given weights and biases by layer, in which graphs compute with
        γ ``(K,)`` by edge, or the mean of the primitives."""
        net = super().plain(weights)
        with torch.no_grad():
            for path, own in structures(net).items():
                prefix = f"{path}." if path else ""
                for edge in own.primitives:
                    if gammas is not None and prefix + edge in gammas:
                        own.get_buffer(edge).copy_(gammas[prefix + edge])
        return net
