"""Point estimates of random tensors, maximum a posteriori, and functions of points by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from ..data import Finite, NotNegative, Options, PyroccamError, Whole, nearest
from ..models import BayesianNetwork
from ..models.distributions import BlurredLogistics, RoundedPoint, base
from ..models.layers import BayesianLayer
from ..models.layers import power as powered
from ..models.priors import Latent
from .base import NetworkGuide, Words, refuse_others
from .edges import StructureFamily
from .factors import Factor
from .mean_field import relaxed, start

BELOW, ABOVE = 0.9, 1.1  # the two thresholds of a switch, over their middle


# -- factors --------------------------------------------------------------------------------------


class PointFactor(Factor):
    """A posterior of one value."""

    is_point = True
    no_density = "q is a point, which has no density"

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value.detach().clone())

    @property
    def centre(self) -> nn.Parameter:
        return self.value

    def moments(self, power: float) -> tuple[Tensor, Tensor]:
        value = powered(base(self()).v, power)
        return value, value.square()


class DeltaFactor(PointFactor):
    """A point, which is unconstrained at the start."""

    def __init__(self, value: Tensor, support: Any = constraints.real) -> None:
        super().__init__(value)
        self.transform = transform_to(support)

    def forward(self) -> Any:
        return dist.Delta(self.transform(self.value), event_dim=self.value.dim())


class MaskedFactor(PointFactor):
    """A point, zero where it is not kept; there it has no gradient."""

    kept: Tensor

    def __init__(self, value: Tensor, kept: Tensor) -> None:
        super().__init__(value)
        self.register_buffer("kept", kept.detach().to(value.device).clone())

    def forward(self) -> Any:
        return dist.Delta(masked_points(self.value, self.kept), event_dim=self.value.dim())


class SwitchedFactor(PointFactor):
    r"""A point :math:`W \odot T` whose gradient goes to all of :math:`W`.

    Arguments:
        value: W at the start, where T is all ones.
        c: the thresholds are 0.9 and 1.1 times ``mean + c · std`` of ``|value|``.
        gamma, power: T is looked at in step t with the probability ``(1 + gamma t)^-power``.
        stop: steps after which T stays.
    """

    kept: Tensor
    limit: Tensor
    step: Tensor

    def __init__(self, value: Tensor, c: float, gamma: float, power: float, stop: int) -> None:
        super().__init__(value)
        size = value.detach().abs()
        middle = size.mean() + c * size.std(correction=0)
        self.register_buffer("kept", torch.ones_like(size, dtype=torch.bool))
        self.register_buffer("limit", middle.clamp_min(0.0))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=value.device))
        self.gamma, self.power, self.stop = gamma, power, stop

    def forward(self) -> Any:
        # Of the two, the detached one has the value: W ⊙ T, with the gradient of W.
        spliced = masked_points(self.value, self.kept) - self.value
        return dist.Delta(self.value + spliced.detach(), event_dim=self.value.dim())

    def splice(self) -> None:
        """Count a step, and perhaps look at T: small weights go, large ones come (back)."""
        size = self.value.detach().abs()
        kept = (size >= BELOW * self.limit) & (self.kept | (size >= ABOVE * self.limit))
        chance = (1.0 + self.gamma * self.step) ** -self.power
        now = (torch.rand((), device=size.device) < chance) & (self.step < self.stop)
        self.kept.copy_(torch.where(now, kept, self.kept))
        self.step.add_(1)


class BookFactor(Factor):
    """A point of few values ``(K,)``: ``book[index]``, and zeros that stay zero where the index is
    -1."""

    is_point = True
    no_density = PointFactor.no_density
    moments = PointFactor.moments
    index: Tensor

    def __init__(self, book: Tensor, index: Tensor) -> None:
        super().__init__()
        self.book = nn.Parameter(book.detach().clone())
        self.register_buffer("index", index.detach().to(book.device, torch.int64) + 1)

    def forward(self) -> Any:
        book: Tensor = self.book
        values = torch.cat([book.new_zeros(1), book])
        # Taken from one dimension, whose gradient is the quickest to sum.
        weight = values.index_select(0, self.index.flatten()).reshape(self.index.shape)
        return dist.Delta(weight, event_dim=weight.dim())


class RoundedFactor(PointFactor):
    """A point of whole multiples of a width.

    Arguments:
        value: at the start, in the unit of the network's weights. It stays in that unit, so that
            one learning rate suits these weights and others, and a longer step makes smaller
            numbers of the same weights.
        width: of a whole number as the site has it, ``()``.
        multipliers: points ``()`` that the layer multiplies the site by, and their powers.
        noise: see :class:`~pyroccam.models.distributions.blurred.RoundedPoint`.
    """

    width: Tensor

    def __init__(
        self,
        value: Tensor,
        width: Tensor,
        multipliers: Sequence[tuple[Factor, float]],
        noise: bool,
    ) -> None:
        super().__init__(value)
        self.held, self.noise = tuple(multipliers), noise  # of other sites: no submodules
        self.register_buffer("width", width.detach().clone(), persistent=False)

    def forward(self) -> Any:
        unit = self.width
        for factor, exponent in self.held:
            unit = unit * powered(base(factor()).v, exponent)
        fn = RoundedPoint(self.value / unit, self.width, self.noise)
        return fn.to_event(self.value.dim())


def masked_points(value: Tensor, kept: Tensor) -> Tensor:
    """``value`` with zeros, which have no sign, where it is not kept."""
    return torch.where(kept, value, torch.zeros_like(value))


# -- functions of points, by layer ----------------------------------------------------------------


class Function(Options):
    """What the weights of layers are, as a function of points."""

    def named(self) -> Mapping[str, Any] | None:
        """What it has by layer; ``None`` where it is for all."""
        return None

    def factor(
        self, guide: Points, layer: BayesianLayer, name: str, latent: Latent
    ) -> Factor | None:
        """The posterior of a site at the start, or ``None`` where it is a plain point."""
        named = self.named()
        if name != "weight" or not (named is None or layer.name in named):
            return None
        plain = guide.point(layer, name, latent)
        if not isinstance(plain.transform, type(transform_to(constraints.real))):
            found = f"{type(self).__name__} of layer {layer.name!r}, whose weights cannot be zero"
            raise PyroccamError(found, "a prior of real numbers")
        return self.of_values(layer.name, plain.value.detach())

    def of_values(self, layer: str, value: Tensor) -> Factor:
        """The posterior of the weights of a layer, from the values of points."""
        raise NotImplementedError

    def present(self, guide: Points) -> Self:
        """Itself, as training has left it."""
        return self


@dataclass(frozen=True, eq=False)
class Mask(Function):
    """Weights stay at zero where a mask says so.

    Arguments:
        kept: masks, ``True`` for weights that are kept, of the shape of the weight, by the name of
            the layer. Layers that are not named keep all; biases and scales are never masked.

    References:
        Han, Pool, Tran, Dally 2015, arXiv:1506.02626: what is left is trained further from where it
        is, not from new random values.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> guide = Points(model, by=Mask({"1": net[1].weight.abs() > 0.1}))
        >>> int(guide.posterior("1.weight").v.count_nonzero()) == guide.nonzero["1"]
        True
    """

    kept: Mapping[str, Tensor]

    def named(self) -> Mapping[str, Tensor]:
        return self.kept

    def of_values(self, layer: str, value: Tensor) -> Factor:
        mask = self.kept[layer]
        if not isinstance(mask, Tensor) or (mask.dtype, mask.shape) != (torch.bool, value.shape):
            found = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else mask
            raise PyroccamError(f"mask of layer {layer!r}: {found}", f"bools {tuple(value.shape)}")
        return MaskedFactor(value, mask)


@dataclass(frozen=True, eq=False)
class Switch(Function):
    r"""Small weights are switched off, and on again if they grow: dynamic network surgery.

    The network computes with :math:`W \odot T`. The gradient with respect to that goes to all of
    :math:`W`, also where :math:`T` is zero. A weight goes where :math:`|W| < a` and comes back
    where :math:`|W| \ge b`, with :math:`a = 0.9 (μ + c σ)`, :math:`b = 1.1 (μ + c σ)`, and μ, σ the
    mean and standard deviation of :math:`|W|` in the layer at the start. T changes when the guide
    is called in training mode; its probability of being looked at falls. Begin with a trained
    network: the thresholds are relative to its weights.

    Arguments:
        c: of all layers, or by the name of the layer (those that are not named keep all weights).
            The larger, the fewer weights are left.
        gamma, power: of the probability ``(1 + gamma t)^-power`` in step t.
        stop: steps after which T stays as it is; never by default.

    References:
        Guo, Yao, Chen 2016, arXiv:1608.04493.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> guide = Points(model, by=Switch(c=0.0))
        >>> guide(torch.zeros(2, 1, 8, 8))  # a step in training mode
        >>> 0 < guide.nonzero["1"] < 640
        True
    """

    c: Finite | Mapping[str, Finite] = 1.0
    gamma: NotNegative = 1e-4
    power: NotNegative = 1.0
    stop: Whole | None = None

    def named(self) -> Mapping[str, float] | None:
        return self.c if isinstance(self.c, Mapping) else None

    def of_values(self, layer: str, value: Tensor) -> Factor:
        c = self.c[layer] if isinstance(self.c, Mapping) else self.c
        last = torch.iinfo(torch.int64).max if self.stop is None else self.stop
        return SwitchedFactor(value, c, self.gamma, self.power, last)


@dataclass(frozen=True, eq=False)
class Book(Function):
    r"""Weights share a few values, which are learnt: they are in fixed clusters.

    The weights of a layer are ``book[index]``, and the gradient of the book is the sum of the
    gradients of the weights that share a value. Zeros stay zeros.

    Arguments:
        books: for each layer by its name the values, ``(K,)``, and for each weight, in the shape of
            the weight, the position of its value, -1 for a zero. Layers that are not named have
            values of their own for every weight.
            :func:`~pyroccam.inference.shrinking.magnitude.share_weights` makes them by k-means.

    References:
        Han, Mao, Dally 2016, Deep Compression, arXiv:1510.00149, section 3.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> signs = (net[1].weight > 0).long()
        >>> guide = Points(model, by=Book({"1": (torch.tensor([-0.1, 0.1]), signs)}))
        >>> guide.sizes
        {'1': 2}
    """

    books: Mapping[str, tuple[Tensor, Tensor]]

    def named(self) -> Mapping[str, Any]:
        return self.books

    def of_values(self, layer: str, value: Tensor) -> Factor:
        book, index = self.books[layer]
        if index.shape != value.shape or index.is_floating_point() or book.dim() != 1:
            raise PyroccamError(
                f"book of layer {layer!r}: {tuple(book.shape)}, {index.dtype} {tuple(index.shape)}",
                f"a vector, and whole numbers {tuple(value.shape)}",
            )
        low, high = int(index.min()), int(index.max())
        if low < -1 or high >= len(book):
            raise PyroccamError(
                f"index of layer {layer!r}: {low} ... {high}", f"-1 ... {len(book) - 1}"
            )
        return BookFactor(book.to(value), index)

    def present(self, guide: Points) -> Book:
        factors: dict[str, Any] = {name: guide.factor_of(f"{name}.weight") for name in self.books}
        return replace(self, books={n: (f.book, f.index - 1) for n, f in factors.items()})


@dataclass(frozen=True)
class WholeSteps(Function):
    r"""Weights are whole numbers of a step, which is learnt, and as few bits as that is worth:
    entropy-penalised reparameterisation.

    For the prior :class:`~pyroccam.models.priors.Integers`. The network computes with the rounded
    weights, and gradients pass the rounding. The KL is the length of a code for the whole numbers,
    in nats: so a ``kl_weight`` of 1 is the shortest description of weights and labels together, and
    a smaller one a larger file with fewer errors.

    Arguments:
        noise: the length is estimated at the unrounded weights with uniform noise, which says to a
            weight between two whole numbers which one is cheaper. Without it, it is that of the
            whole numbers themselves.

    References:
        Oktay, Ballé, Singh, Shrivastava 2020, arXiv:1906.06624.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Integers(step=0.5))
        >>> Points(model, by=WholeSteps()).steps  # 0.5 / √64
        {'1': 0.0625}
    """

    noise: bool = True

    def factor(
        self, guide: Points, layer: BayesianLayer, name: str, latent: Latent
    ) -> Factor | None:
        fn = base(latent.prior)
        if isinstance(fn, BlurredLogistics):
            others = {n: one for n, one in layer.latents().items() if n not in ("weight", "bias")}
            multipliers = [
                (guide.factor_of(layer.site(other)), one.power)
                for other, one in others.items()
                if name == "weight" or layer.covers_bias(one.prior.event_shape)
            ]
            return RoundedFactor(layer.start[name], fn.width, multipliers, self.noise)
        if name == "weight":
            raise PyroccamError(f"WholeSteps of the prior {type(fn).__name__}", "priors.Integers")
        return None


# -- the guide ------------------------------------------------------------------------------------


class Points(NetworkGuide):
    r"""The weights of highest posterior density: every site has one value, or, by layer, weights
    are a function of some.

    Maximises :math:`\log p(y \mid w) + \log p(w)`, in the coordinates of the sites (a mode depends
    on them: that of a scale is not that of its logarithm). What the ``kl_weight`` of a fit
    multiplies is :math:`\log p(w)`.

    Arguments:
        model: a Bayesian network; weights begin where those of its network are.
        by: a :class:`Mask`, a :class:`Switch`, a :class:`Book` or :class:`WholeSteps`; none leaves
            the points as they are.
        begin: a guide of points, of a model with the same sites: to begin at its values instead,
            and with its posterior of structure; not for :class:`WholeSteps`.
        structure: posterior of random structure, see
            :class:`~pyroccam.guides.base.NetworkGuide`; a point only if asked for.

    Raises:
        PyroccamError: for a prior whose density is unbounded, where the mode is no estimate; for a
            ``begin`` of other sites, or a layer of ``by`` that does not exist.
    """

    words: ClassVar[Words] = {"rounded": {"by": WholeSteps()}}

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        by: Function | None = None,
        begin: NetworkGuide | None = None,
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, local=False, scales="batch", structure=structure)
        self.by = by
        named = None if by is None else by.named()
        for layer in named or ():
            if layer not in model.layers:
                raise PyroccamError(
                    f"{type(by).__name__} of layer {layer!r}",
                    ", ".join(map(repr, model.layers)),
                    nearest(layer, model.layers),
                )
        if begin is not None:
            refuse_others(begin.sites, list(model.sites))
            if isinstance(by, WholeSteps):
                raise PyroccamError("begin= of WholeSteps, which begin with the network", "none")
        self._begin = (begin,)  # no submodule
        self.build(model)
        if begin is not None:
            self.take_edges(model, begin)
        self._begin = (None,)
        self._switched = list(named or model.layers) if isinstance(by, Switch) else []

    def factor(self, layer: BayesianLayer, name: str, latent: Latent) -> Factor:
        made = None if self.by is None else self.by.factor(self, layer, name, latent)
        return self.point(layer, name, latent) if made is None else made

    def point(self, layer: BayesianLayer, name: str, latent: Latent) -> DeltaFactor:
        """The plain point of a site."""
        site, (begin,) = layer.site(name), self._begin
        if latent.unbounded or relaxed(latent.prior) is not None:  # a gate is densest at its ends
            found = f"the mode of the {type(base(latent.prior)).__name__} of site {site!r}"
            raise PyroccamError(found, "a density that is finite there", "guides.MeanField")
        value, _ = start(layer, name, latent)
        made = DeltaFactor(value, latent.support)
        if begin is not None:
            with torch.no_grad():
                found = made.transform.inv(begin.posterior(site).v)
                if found.shape != made.value.shape:
                    shape = f"begin= has {site} of shape {tuple(found.shape)}"
                    raise PyroccamError(shape, f"{tuple(made.value.shape)}")
                made.value.copy_(found)
        return made

    def arguments(self) -> dict[str, Any]:
        return {} if self.by is None else {"by": self.by.present(self)}

    def options(self) -> dict[str, Any]:
        by = {} if self.by is None else {"by": type(self.by).__name__}
        return super().options() | by

    def forward(self, x: Tensor, y: Tensor | None = None) -> None:
        if self.training:
            for layer in self._switched:
                factor: Any = self.factor_of(f"{layer}.weight")
                factor.splice()
        super().forward(x, y)

    @property
    def varies(self) -> bool:  # type: ignore[override]
        return self.by is None

    free_values = varies

    @property
    def sizes(self) -> dict[str, int]:  # type: ignore[override]
        books = self.by.books if isinstance(self.by, Book) else {}
        return {layer: len(book) for layer, (book, _) in books.items()}

    @property
    def steps(self) -> dict[str, float]:
        if not isinstance(self.by, WholeSteps):
            return {}
        return {
            layer: float(self.posterior(site).v.detach())
            for site, (layer, _, latent) in ((s, s.rpartition(".")) for s in self.sites)
            if latent == "step"
        }

    @property
    def nonzero(self) -> dict[str, int]:
        """Weights that are kept, or on, by layer; those that are not masked are not among them."""
        named = self._switched or (self.by.kept if isinstance(self.by, Mask) else ())
        factors: dict[str, Any] = {name: self.factor_of(f"{name}.weight") for name in named}
        return {name: int(factor.kept.sum()) for name, factor in factors.items()}


class Delta(Points):
    """:class:`Points`, each as it is."""

    words: ClassVar[Words] = {"delta": {}}

    def __init__(
        self,
        model: BayesianNetwork,
        *,
        begin: NetworkGuide | None = None,
        structure: StructureFamily | None = None,
    ) -> None:
        super().__init__(model, begin=begin, structure=structure)
