"""The base of priors over weights: the random tensors of one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import constraints

from ...data import Options, PyroccamError


@dataclass(frozen=True)
class LayerShape:
    """The facts that a prior needs of a layer.

    Attributes:
        name: in the network; its sites are ``name.weight``, ``name.scale`` and so on.
        weight: shape as torch holds it: ``(out, in, *kernel)``, transposed convolutions
            ``(in, out, *kernel)``, embeddings ``(ids, out)``.
        bias: shape, or ``None``.
        group_dim: the dim of ``weight`` along which groups run: input units of a linear layer,
            output channels of a convolution, features of an embedding. ``None`` where there are no
            groups.
        output_groups: the groups are outputs, and a scale covers the bias too.
        fan_in: weights that one output depends on.
    """

    name: str
    weight: torch.Size
    bias: torch.Size | None
    group_dim: int | None
    output_groups: bool
    fan_in: int

    @property
    def groups(self) -> int:
        """Number of groups."""
        if self.group_dim is None:
            found = f"layer {self.name!r}, a grouped convolution, has no groups"
            raise PyroccamError(found, "a prior without groups", "priors.LogUniform()")
        return self.weight[self.group_dim]

    @property
    def group_shape(self) -> torch.Size:
        """``(groups,)``."""
        return torch.Size([self.groups])


@dataclass(frozen=True)
class Latent:
    """A random tensor of a layer.

    The weights of a layer are the product of its ``weight`` and of all its other latents but the
    ``bias``, each to its ``power``.

    Attributes:
        prior: its distribution, batch shape ``()``. Event shape: that of the weight or of the bias;
            of a multiplier ``(groups,)``, ``()`` for one that the whole layer shares, or that of
            the weight.
        power: of a multiplier.
        start: location and scale with which a guide begins, of the latent itself if it is real, of
            its logarithm if it is positive, of its logit in the unit interval. A location of
            ``None`` is for weights and biases: they begin where the network's are.
        unbounded: the density is infinite somewhere, so that its mode is no estimate.
        levels: of weights that gather around a few values, these, rising, ``(K,)``: they are
            rounded to them in the end.
    """

    prior: Any
    power: float = 1.0
    start: tuple[float | None, float] = (None, 1e-2)
    unbounded: bool = False
    levels: Tensor | None = None

    @property
    def support(self) -> Any:
        """Where each of its numbers is."""
        return getattr(self.prior.support, "base_constraint", self.prior.support)

    @property
    def normal(self) -> Literal["normal", "log-normal"] | None:
        """The one of both that is on its support."""
        if self.support in (constraints.positive, constraints.nonnegative):
            return "log-normal"
        return "normal" if self.support is constraints.real else None


class LayerPrior(nn.Module):
    """The prior of one layer. What it learns is a parameter, what it is given a buffer.

    Buffers are not persistent: a prior is made of its arguments, not of a saved state.

    Arguments:
        layer: what is known of it.
        numbers: kept by their names as buffers, shape ``()``, beside ``zero`` and ``one``: so they
            move with the module. What has the name of an argument of the prior is in nothing else:
            another number is set there.
    """

    zero: Tensor
    one: Tensor

    def __init__(self, layer: LayerShape, **numbers: float) -> None:
        super().__init__()
        self.layer = layer
        for name, value in {"zero": 0.0, "one": 1.0, **numbers}.items():
            self.register_buffer(name, torch.tensor(float(value)), persistent=False)

    def standard(self, shape: torch.Size, start: float = 1e-2) -> Latent:
        """Standard normals of event shape ``shape`` that begin where the network's values are."""
        return Latent(normal(shape, self.zero, self.one), start=(None, start))

    def normals(
        self, of_weight: tuple[Tensor, Tensor], of_bias: tuple[Tensor, Tensor]
    ) -> dict[str, Latent]:
        """Normal weights and, of a layer that has them, biases, of means and deviations."""
        found = {"weight": Latent(normal(self.layer.weight, *of_weight))}
        if self.layer.bias is not None:
            found["bias"] = Latent(normal(self.layer.bias, *of_bias))
        return found

    def standard_bias(self, start: float = 1e-2) -> dict[str, Latent]:
        """The ``bias`` of a layer that has one, standard normal."""
        return {} if self.layer.bias is None else {"bias": self.standard(self.layer.bias, start)}

    def begin_at(self, weight: Tensor) -> None:
        """Let what is learnt begin at the weights that the network has; nothing does by default."""

    @property
    def kind(self) -> str:
        """By which a checkpoint knows it again."""
        return type(self).__name__

    def updated(self, normals: Mapping[str, tuple[Tensor, Tensor]]) -> bool:
        """MacKay's update of what is learnt: set it, where it has one, and say so; from means and
        standard deviations of the weights of each latent under a normal at the peak of the joint
        density."""
        return False

    def latents(self) -> Mapping[str, Latent]:
        """Latents by name below the layer's; ``weight`` and, for a layer that has one, ``bias``."""
        raise NotImplementedError

    def forward(self) -> Mapping[str, Latent]:
        return self.latents()


class WeightPrior(Options):
    """A prior over the weights of any network: makes the prior of each layer.

    Attributes:
        narrows: it says as much of a layer that has lost units.
        words: examples of what :func:`~pyroccam.models.priors.parse_weights` reads as this prior,
            such as ``"ghs:1e-5"``; its name is what stands before the colon.
    """

    narrows: ClassVar[bool] = True
    words: ClassVar[str] = ""

    @classmethod
    def from_words(cls, argument: str) -> WeightPrior:
        """The prior with its first argument, which is a number or a word."""
        make: Callable[[float | str], WeightPrior] = cls
        try:
            value: float | str = float(argument)
        except ValueError:
            value = argument
        return make(value)

    def for_network(self) -> WeightPrior:
        """The maker of the priors of one network's layers: itself, unless they share something.

        A network calls it once, and then :meth:`for_layer` in the order in which it uses its
        layers.
        """
        return self

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        """The prior of one layer; if nothing of it is learnt, made of :meth:`numbers` and
        :meth:`latents`."""
        return _OfNumbers(layer, self)

    def numbers(self, layer: LayerShape) -> dict[str, float]:
        """What the prior of a layer keeps as buffers."""
        return {}

    def latents(self, own: Any) -> Mapping[str, Latent]:
        """Latents of a layer, from its prior, which has the buffers."""
        raise NotImplementedError


class _OfNumbers(LayerPrior):
    """The prior of one layer that learns nothing."""

    def __init__(self, layer: LayerShape, given: WeightPrior) -> None:
        super().__init__(layer, **given.numbers(layer))
        self.given = given
        self.latents()  # an error where a layer has no groups

    @property
    def kind(self) -> str:
        return f"_{type(self.given).__name__}Layer"

    def _get_name(self) -> str:
        return self.kind

    def extra_repr(self) -> str:
        """What was given and is no buffer: a buffer's value may be another by now."""
        given = vars(self.given).items()
        return ", ".join(f"{name}={value!r}" for name, value in given if name not in self._buffers)

    def latents(self) -> Mapping[str, Latent]:
        return self.given.latents(self)


def independent(kind: Callable[..., Any], shape: torch.Size, *numbers: Tensor) -> Any:
    """Independent variables of event shape ``shape``, of a distribution with these parameters. Made
    in every step, so not validated again."""
    return kind(*(n.expand(shape) for n in numbers), validate_args=False).to_event(len(shape))


def normal(shape: torch.Size, loc: Tensor, scale: Tensor) -> Any:
    """Independent normals of event shape ``shape``."""
    return independent(dist.Normal, shape, loc, scale)
