"""A Bayesian network over any network: the weights of its layers are random."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Self

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import _PYRO_STACK, get_plates
from torch import Tensor, nn

from ..data import NetworkError, PyroccamError
from .base import Model
from .feeding import feed, feed_like
from .hyperparameters import Number, numbers_of_weights
from .layers import (
    BayesianLayer,
    Chosen,
    choose_layers,
    hooks_of,
    layers_called,
    order_of_use,
    outputs_in_evaluation,
    refuse_shared,
)
from .likelihoods import Likelihood, TargetSpec, checked, has_weights
from .local_reparameterisation import LocalReparameterization
from .networks import hold_statistics
from .parameters import as_it_began, numbers_of, put_back, refuse_without_values
from .priors import WeightPrior
from .threads import turn
from .unpacked import copied, folded, unpacked


class BayesianNetwork(Model):
    r"""Any network with random weights.

    .. math:: w \sim p(w), \qquad y_n \sim p(y \mid f_w(x_n)), \quad n = 1 \dots N

    Sites: those of every Bayesian layer, in the order in which the network uses them, and ``y`` in
    the plate ``data`` of size N. Modules that are not Bayesian stay as they are, and their
    parameters are learnt as numbers, but for those that need no gradient
    (``requires_grad=False``), which stay. Statistics of batch normalisation stay, too, where its
    parameters are frozen so, or where it is in evaluation mode in a network that is in training.

    Arguments:
        net: any module that maps inputs to what the likelihood takes: a tensor, or an object or
            dict that has it as ``logits``. Several inputs of a row are its arguments. A copy is
            made, in which attention, layers of transformers and recurrent layers of torch are
            modules that call linear ones (:mod:`~pyroccam.models.unpacked`), and normalised weights
            are weights; the weights of its layers are where guides begin, so it may be trained
            already.
        data: says the number of rows, the shape of an input, the task and the number of outputs.
        prior: of the weights, of all Bayesian layers or by the name of the layer.
        layers: names of the Bayesian layers, or a function of a module's name and the module that
            says whether it is one. By default the keys of ``prior``, if it is a mapping, or else
            all linear, convolutional, recurrent and embedding layers, attention included, whose
            weights are not frozen, subclasses that compute the same included, with a warning that
            names the weights of other modules, and what is frozen.
        likelihood: by default the one that suits the task; or the word of another, such as
            ``student-t``. One of your own takes what the network gives, a tensor, and says how it
            is used by its ``task``.
        random_biases: biases are random where the prior has them; or they are learnt as numbers. A
            frozen bias stays, beside a weight that is none.

    Attributes:
        weights_before: of the Bayesian layers, before anything was cut.
        parameters_before: of the whole network, random or not, before anything was cut.
        names: of the Bayesian layers now, by those before anything was cut: a layer of fewer inputs
            may have moved inside a module that selects them.
        narrowed_at: thresholds by layer that :func:`pyroccam.inference.narrow` made it with, by the
            names before; given to it again they cut the same.
        spec: the priors and choices that it was made with, by argument.
        power: by which what random structure costs, in nats, has been multiplied since then.

    Raises:
        PyroccamError: for a layer that cannot be Bayesian, names that the network does not have,
            layers that share a weight, or are not used once in a pass.
        NetworkError: for a network in half precision, or that computes something else with other
            kinds of layers in it.

    References:
        Blundell et al. 2015, arXiv:1505.05424; Louizos et al. 2017, arXiv:1705.08665.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
        >>> model = BayesianNetwork(net, digits, prior=models.priors.GroupNormalJeffreys())
        >>> list(model.sites)
        ['1.weight', '1.scale', '1.bias', '3.weight', '3.scale', '3.bias']
    """

    random_weights = True
    usual_guide = "MeanField"
    structure_argument: ClassVar[str] = "structure"
    power: float = 1.0

    def __init__(
        self,
        net: nn.Module,
        data: TargetSpec,
        *,
        prior: WeightPrior | Mapping[str, WeightPrior] | None,
        layers: Chosen = None,
        likelihood: Likelihood | str | None = None,
        random_biases: bool = True,
    ) -> None:
        super().__init__()
        refuse_without_values(net)
        net = feed(folded(copied(net)), getattr(data, "fields", None))
        example = _example(data, next(net.parameters(), torch.zeros(())))
        before = outputs_in_evaluation(net, example)
        if not isinstance(before, Tensor):
            before = outputs_in_evaluation(feed(net, None, taking=True), example)
        if layers is not None and not callable(layers):
            layers = [layers] if isinstance(layers, str) else list(layers)
        net = hold_statistics(feed_like(unpacked(net, _asked(prior, layers)), net))
        given = prior or {}
        names = self._choose(net, given, layers)
        refuse_shared(net, names)
        hooks = hooks_of(net, names)
        order = order_of_use(net, names, example)
        plain_pass = type(self).outputs is BayesianNetwork.outputs
        if plain_pass:
            _refuse_other_rows(before, len(example))
        self.parameters_before = sum(p.numel() for p in net.parameters())
        made: dict[int, WeightPrior] = {}  # layers with one prior may share what it learns
        for position, name in enumerate(dict.fromkeys(order)):
            asked = given if isinstance(given, WeightPrior) else given[name]
            if id(asked) not in made:
                made[id(asked)] = asked.for_network()
            own = made[id(asked)]
            layer = BayesianLayer(name, net.get_submodule(name), own, position, random_biases)
            if (uses := order.count(name)) > 1:
                if not plain_pass:
                    found = f"layer {name!r} is used {uses} times in a pass of random structure"
                    raise PyroccamError(found, "a layer for each use", "layers=[...] without it")
                layer.affine.drawn = True
            net = feed_like(_replaced(net, name, layer), net)
        if plain_pass:
            _refuse_another_function(net, example, before, hooks)
        if hooks:
            warnings.warn(
                f"Hooks do not run while weights are random: {hooks}. Register them on "
                "model.layers[...], or leave the layer out by layers=[...].",
                stacklevel=3,
            )
        self.net = net
        self.spec: dict[str, Any] = {"prior": prior, "random_biases": random_biases}
        self.size, self.weighted = data.N, has_weights(data)
        self.input_shape = tuple(data.input_shape)
        self.likelihood = checked(likelihood, data, net)
        if self.likelihood.own_head:
            found = f"likelihood={self.likelihood.word!r} over random weights"
            raise PyroccamError(found, "models.PlainNetwork or models.LearntDepth")
        self.began = {
            "net": numbers_of(net, without=self.layers),
            "likelihood": numbers_of(self.likelihood),
        }
        self.narrowed_at: dict[str, float] | None = None
        self.weights_before = sum(one.affine.shape.weight.numel() for one in self.layers.values())
        self.names = {name: name for name in self.layers}

    def _choose(
        self, net: nn.Module, prior: WeightPrior | Mapping[str, WeightPrior], layers: Chosen
    ) -> list[str]:
        """Names of the layers that become Bayesian."""
        return choose_layers(net, prior, layers)

    @property
    def layers(self) -> dict[str, BayesianLayer]:
        """The Bayesian layers by name, in the order of their use."""
        net: Any = self._modules["net"]
        found = [module for module in net.modules() if isinstance(module, BayesianLayer)]
        return {layer.name: layer for layer in sorted(found, key=lambda layer: layer.position)}

    @property
    def sites(self) -> dict[str, tuple[BayesianLayer, str]]:
        """Latent sites in the order of the model: their layer, and their name below it."""
        return {
            layer.site(latent): (layer, latent)
            for layer in self.layers.values()
            for latent in layer.latents()
        }

    def prior_numbers(self) -> dict[str, object]:
        return {
            name: {
                "kind": layer.prior.kind,
                **{n: _shown(t) for n, t in layer.prior.named_buffers()},
            }
            for name, layer in self.layers.items()
        }

    def numbers(self) -> dict[str, Number]:
        """Numbers of its priors that may be others, by path: ``prior.scale``, say, of every layer
        whose prior has an argument of this name."""

        def record(name: str, value: float) -> None:
            def other(layer: BayesianLayer, prior: Any) -> Any:
                return replace(prior, **{name: value}) if name in layer.prior._buffers else prior

            given, layers = self.spec["prior"], self.layers
            if isinstance(given, Mapping):
                self.spec["prior"] = {n: other(layers[n], one) for n, one in given.items()}
            else:
                self.spec["prior"] = other(next(iter(layers.values())), given)
            for layer in layers.values():
                layer.weight_prior = other(layer, layer.weight_prior)

        return numbers_of_weights(self.layers, record)

    def raise_power(self, power: float) -> None:
        """Record that what random structure costs has been multiplied by a number."""
        self.power *= power

    def count_from(self, whole: BayesianNetwork) -> None:
        """Compare what will be left with the network with which ``whole`` is compared."""
        self.weights_before = whole.weights_before
        self.parameters_before = whole.parameters_before

    def arguments(self) -> dict[str, Any]:
        """Arguments to make it again with, beside network and data; the likelihood as it began."""
        likelihood = as_it_began(self.likelihood, self.began["likelihood"])
        return {**self.spec, "layers": list(self.layers) or None, "likelihood": likelihood}

    def anew(self, data: TargetSpec, *, prior: Any = None, structure: Any = None) -> Self:
        given = {"prior": prior, self.structure_argument: structure}
        other = {name: value for name, value in given.items() if value is not None}
        made = type(self)(self.first_network(), data, **{**self.arguments(), **other})
        if structure is None and self.power != 1.0:
            made.numbers()["structure.power"].set(self.power)
        if made.layers.keys() == self.layers.keys():
            made.count_from(self)
            made.names = dict(self.names)
        return made

    def priors_given(self, values: Mapping[str, Tensor]) -> dict[str, Any]:
        """The prior of every site, in the order of the model, of batch shape ``()``, or ``(S,)``
        where it depends on values ``(S, *)`` of random structure."""
        return {
            layer.site(key): latent.prior
            for layer in self.layers.values()
            for key, latent in layer.latents().items()
        }

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The generative process for inputs ``(B, *)``; observed where ``y`` is given."""
        outputs = self.outputs(x)
        with pyro.plate("data", self.size, subsample=x):
            likelihood, y = self.observed(outputs, y)
            return pyro.sample("y", likelihood, obs=y)

    def outputs(self, x: Tensor) -> Tensor:
        """Outputs that the likelihood takes, for inputs ``(B, *)``; samples all latents. Within a
        plate of K particles, or of draws of ``Predictive``, outputs of each, ``(K, B, outputs)``.
        """
        if nesting := _nesting():
            return self._of_each(x, nesting)
        again = {site for site, (layer, _) in self.sites.items() if layer.affine.drawn}
        with layers_called(), _Given({}, again):
            found: Tensor = self.part("net")(x)
        if not isinstance(found, Tensor):
            raise PyroccamError(
                f"the network gives a {type(found).__name__}",
                "one tensor, or logits",
            )
        return found

    def _of_each(self, x: Tensor, nesting: int) -> Tensor:
        """Outputs of networks one after the other: modules between the layers take rows alone."""
        if any(isinstance(one, LocalReparameterization) for one in _PYRO_STACK):
            given = "a plate of particles or draws around a guide whose weights are not drawn"
            raise PyroccamError(given, "a guide with local=False, or one particle at a time")
        values: dict[str, Tensor] = {}
        for site, (layer, name) in self.sites.items():
            prior = layer.latents()[name].prior
            value = pyro.sample(site, prior)
            batch = value.shape[: value.dim() - prior.event_dim]
            lead = batch + (1,) * (nesting - len(batch))  # Predictive leaves out dims of one
            values[site] = value.reshape(lead + prior.event_shape)
        lead = torch.broadcast_shapes(*(value.shape[:nesting] for value in values.values()))
        if lead[-1] != 1:
            raise PyroccamError("a plate on dim -1, which is that of the rows", "dim=-2, or less")
        flat = {
            site: value.expand(lead + value.shape[nesting:]).flatten(0, nesting - 1)
            for site, value in values.items()
        }
        found = []
        for k in range(lead.numel()):
            with layers_called(), _Given({site: value[k] for site, value in flat.items()}):
                found.append(self.part("net")(x))
        return torch.stack(found).reshape(lead[:-1] + found[0].shape)

    def outputs_at(self, weights: Mapping[str, tuple[Tensor, Tensor | None]], x: Tensor) -> Tensor:
        """Outputs for inputs ``(B, *)`` with given weights and biases by layer, where structure is
        known: what :meth:`plain` computes, without a copy."""
        with layers_called(), _At(weights):
            outputs: Tensor = self._modules["net"](x)  # type: ignore[misc]
        return outputs

    def scaled(
        self, weights: Mapping[str, Tensor], gammas: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Weights and biases ``(S, *)`` as plain layers have them, by their names there, from those
        that are drawn and γ ``(S, K)`` by edge of random structure."""
        return dict(weights)

    def plain(
        self,
        weights: Mapping[str, tuple[Tensor, Tensor | None]],
        gammas: Mapping[str, Tensor] | None = None,
    ) -> nn.Module:
        """The ordinary network with given weights and biases by layer, in evaluation mode; where
        structure is random, with γ ``(K,)`` by edge.

        It shares nothing with the model.
        """
        net: nn.Module = copied(self._modules["net"])
        for name, layer in self.layers.items():
            net = feed_like(_replaced(net, name, layer.plain(*weights[name])), net)
        return net.eval()

    def settled(
        self,
        data: TargetSpec,
        gammas: Mapping[str, Tensor],
    ) -> tuple[BayesianNetwork, dict[str, str]] | None:
        """The Bayesian network of one structure, γ ``(K,)`` by edge, with the same priors, and the
        names of its layers by those that they have here; ``None`` where there is no other."""
        return None

    def first_network(self) -> nn.Module:
        """The ordinary network as it was given, weights that are numbers and statistics included;
        in evaluation mode."""
        net = self.start_network()
        put_back(net, self.began["net"])
        return net

    def start_network(self) -> nn.Module:
        """The ordinary network with the weights at which guides begin."""
        return self.plain(
            {
                name: (layer.start["weight"], layer.start.get("bias"))
                for name, layer in self.layers.items()
            }
        )


def _shown(numbers: Tensor) -> object:
    """Numbers by which a checkpoint is known again, or a digest of those of all weights."""
    if numbers.dim() < 2:
        return numbers.tolist()
    return sha256(numbers.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def _asked(prior: Any, layers: Chosen) -> Collection[str] | None:
    """Names of layers that are to be random; ``None`` for all."""
    if layers is None:
        return None if isinstance(prior, WeightPrior) else list(prior or ())
    return None if callable(layers) else list(layers)


def _replaced(net: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The network with another module in place of one; the module itself if it is the whole."""
    if not name:
        return module
    net.set_submodule(name, module)
    return net


def _nesting() -> int:
    """Dims that the plates around take."""
    return max((-frame.dim for frame in get_plates() if frame.dim is not None), default=0)


def refuse_plates(model: BayesianNetwork) -> None:
    """Refuse a plate around a model of random structure, whose draws cannot pass together."""
    if _nesting():
        found = f"a plate of particles or draws around a {type(model).__name__}"
        raise PyroccamError(found, "parallel=False, vectorize_particles=False")


class _Given(Messenger):
    """Every layer computes with given values, which were sampled before, ``(*)`` by site, and at
    some sites with those that it samples when it is first called in a pass."""

    def __init__(self, values: Mapping[str, Tensor], again: Collection[str] = ()) -> None:
        super().__init__()
        self.values, self.again = dict(values), again

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.values:
            msg["value"], msg["done"], msg["stop"] = self.values[msg["name"]], True, True

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self.again:
            self.values[msg["name"]] = msg["value"]


class _At(Messenger):
    """Every layer computes with weights and biases by its name; nothing is drawn."""

    def __init__(self, weights: Mapping[str, tuple[Tensor, Tensor | None]]) -> None:
        super().__init__()
        self.weights = weights

    def _pyro_sample(self, msg: Any) -> None:
        msg["value"], msg["done"] = torch.zeros(()), True

    def _pyro_affine(self, msg: Any) -> None:
        layer, x, *_ = msg["args"]
        msg["value"], msg["done"] = layer.affine(x, *self.weights[layer.name]), True


def _refuse_other_rows(outputs: Any, rows: int) -> None:
    """Outputs of fewer rows would be taken for those of each."""
    if isinstance(outputs, Tensor) and (outputs.dim() == 0 or len(outputs) != rows):
        found = f"outputs of shape {tuple(outputs.shape)} for {rows} rows of input"
        raise PyroccamError(found, "one row of outputs for each, the batch first")


def _refuse_another_function(net: nn.Module, example: Tensor, before: Any, hooks: str) -> None:
    """Refuse a network that computes something else with the weights that it had, as one may whose
    forward asks for the type of a layer."""
    layers = [one for one in net.modules() if isinstance(one, BayesianLayer)]
    start = {layer.name: (layer.start_weight, layer.start.get("bias")) for layer in layers}
    with turn(), _At(start):
        after = outputs_in_evaluation(net, example)
    if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
        return
    size = float(before.nan_to_num().abs().max())
    close: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-4 * size, "equal_nan": True}
    if before.shape != after.shape or not torch.allclose(before, after, **close):
        why = "its forward may ask isinstance(layer, nn.Linear), which they are not"
        raise NetworkError(
            f"{type(net).__name__} computes something else with Bayesian layers in place of its "
            "own: " + (f"no hook of a layer runs there, such as {hooks}" if hooks else why),
            hint="another way, or leave such layers out by layers=[...]",
        )


def _example(data: TargetSpec, like: Tensor) -> Tensor:
    """Two inputs of the shape and type of the data, with the number type and device of ``like``."""
    if getattr(data, "ids", False) or getattr(data, "fields", None) is not None:
        rows: Tensor = data.head(2)[0]  # type: ignore[attr-defined]
        return rows.to(like if rows.is_floating_point() else like.device)
    # Numbers in [0, 1) are pixels, and whole numbers of zero to a network that wants words.
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, *data.input_shape, generator=generator).to(like)
