"""A normal prior around weights that other data have given."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...data import Positive, PyroccamError
from ..unpacked import untransposed
from .base import Latent, LayerPrior, LayerShape, WeightPrior

SHIPPED = {"digits": Path(__file__).with_name("digits.npz")}
"""Weights that come with the package, by what they have seen."""


@dataclass(frozen=True)
class Pretrained(WeightPrior):
    """``N(w_i, scale²)`` of every weight and bias, around those of another network, w.

    There the posterior costs nothing: what was learnt on other rows (another data set, the half of
    the rows that a certificate does not count) is known beforehand. The network is copied: to train
    it afterwards moves nothing. Its layers are found by their names, so that nothing can be
    narrowed on the way.

    Arguments:
        net: of the same structure; its weights are the means w.
        scale: standard deviation.
        learn: each layer learns its scale with the guide, from the value given.

    Raises:
        PyroccamError: by the model whose layers are not in the network, or of another shape.

    References:
        Li, Grandvalet, Davoine 2018, Explicit inductive bias for transfer learning with
        convolutional networks, arXiv:1802.01483; Ambroladze, Parrado-Hernandez, Shawe-Taylor 2007,
        Tighter PAC-Bayes bounds, for a prior that half of the rows choose.

    Example:
        >>> from pyroccam import data
        >>> from pyroccam.models import BayesianNetwork, networks, priors
        >>> digits = data.load("digits")
        >>> net = networks.perceptron((1, 8, 8), 10, hidden=(20,))
        >>> model = BayesianNetwork(net, digits, prior=priors.Pretrained(net, scale=0.1))
    """

    words = "pretrained:digits"
    narrows = False

    net: nn.Module
    scale: Positive = 0.1
    learn: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "net", copy.deepcopy(self.net))

    @classmethod
    def shipped(cls, name: str = "digits", scale: float = 0.1, learn: bool = True) -> Pretrained:
        """Around weights that come with the package: ``digits`` are those of
        ``networks.small_cnn((1, 28, 28), 10)`` for pixels in [0, 1], which has seen digits of 79
        fonts of handwriting and of scikit-learn (1,797 of 43 persons, Alpaydin and Kaynak 1998),
        moved and bent, and no image of MNIST; ``experiments/published/written_digits.py`` made it.
        What it has seen was chosen among five mixtures by errors on MNIST's training rows, which a
        certificate on these rows has to pay for (``ByPosterior(choices=)``).
        """
        if name not in SHIPPED:
            raise PyroccamError(f"pretrained {name!r}", f"one of {', '.join(SHIPPED)}")
        net = nn.Module()
        with np.load(SHIPPED[name], allow_pickle=False) as kept:
            for path in kept:
                layer, _, number = path.rpartition(".")
                if not hasattr(net, layer):
                    net.add_module(layer, nn.Module())
                own = nn.Parameter(torch.from_numpy(kept[path]))
                net.get_submodule(layer).register_parameter(number, own)
        return cls(net, scale, learn)

    @classmethod
    def from_words(cls, argument: str) -> WeightPrior:
        return cls.shipped(argument)

    def start(self, net: nn.Module) -> None:
        """Begin where nothing is to be paid: put the weights into a network of the same layers.

        Raises:
            PyroccamError: for other layers.
        """
        try:
            net.load_state_dict(self.net.state_dict())
        except RuntimeError as error:
            raise PyroccamError(
                "a network of other layers than the prior is around", "the same"
            ) from error

    @property
    def sha256(self) -> str:
        """Of the weights: their names, shapes and numbers, in the order of the names."""
        found = hashlib.sha256()
        for name, tensor in sorted(self.net.state_dict().items()):
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            whole = tensor.detach().cpu().contiguous().flatten()
            found.update(whole.view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def for_layer(self, layer: LayerShape) -> LayerPrior:
        return _PretrainedLayer(layer, self)


class _PretrainedLayer(LayerPrior):
    def __init__(self, layer: LayerShape, given: Pretrained) -> None:
        super().__init__(layer, scale=given.scale)
        self.around = given
        shapes = {"weight": layer.weight, "bias": layer.bias}
        self.kinds = [name for name, shape in shapes.items() if shape is not None]
        for name in self.kinds:
            self.register_buffer(f"mean_{name}", _own(given.net, layer, name), persistent=False)
        if given.learn:
            self.log_scale = nn.Parameter(torch.tensor(math.log(given.scale)))

    def latents(self) -> Mapping[str, Latent]:
        log_scale = self._parameters.get("log_scale")
        scale = self.get_buffer("scale") if log_scale is None else log_scale.exp()
        own = {name: (self.get_buffer(f"mean_{name}"), scale) for name in self.kinds}
        return self.normals(own["weight"], own.get("bias", own["weight"]))


def _own(net: nn.Module, layer: LayerShape, name: str) -> Tensor:
    """The weights or biases of a layer in a network."""
    shape = layer.weight if name == "weight" else layer.bias
    path = f"{layer.name}.{name}".lstrip(".")
    own = dict(net.named_modules()).get(layer.name, nn.Module())
    found = getattr(untransposed(own) or own, name, None)
    if found is None or found.shape != shape:
        given = "none" if found is None else f"shape {tuple(found.shape)}"
        raise PyroccamError(f"pretrained {path!r} of {given}", f"{tuple(shape or ())}")
    return found.detach().clone()
