"""Points whose weights share a few values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ..data.errors import PyroccamError
from ..models.bayesian import BayesianNetwork
from .base import NetworkGuide
from .delta import Delta, PointFactor

__all__ = ["Codebook"]


class CodebookFactor(PointFactor):
    """A point of few values: ``book[index]``, and zeros.

    Arguments:
        book: values at the start, ``(K,)``.
        index: of each weight, in 0 ... K - 1; -1 for a weight that is and stays zero.
    """

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


class Codebook(Delta):
    r"""The shared values of highest posterior density, for weights that are in fixed clusters.

    The weights of a layer are ``book[index]``: the book is learnt, and its gradient is the sum of
    the gradients of the weights that share a value. Zeros stay zeros.

    Arguments:
        model: a Bayesian network.
        books: for each layer by its name the values, ``(K,)``, and for each weight, in the shape of
            the weight, the position of its value, -1 for a zero. Layers that are not named have
            values of their own for every weight.
            :func:`~pyroccam.inference.pruning.magnitude.share_weights` makes them by k-means.
        begin: see :class:`~pyroccam.guides.Delta`; for what has no book.

    Raises:
        PyroccamError: for a prior as for ``Delta``.
        ValueError: for a layer that does not exist, an index of another shape or beyond the book.

    References:
        Han, Mao, Dally 2016, Deep Compression, arXiv:1510.00149, section 3.

    Example:
        >>> from pyroccam import data, models
        >>> digits = data.load("digits")
        >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> model = models.BayesianNetwork(net, digits, prior=models.priors.Normal())
        >>> signs = (net[1].weight > 0).long()
        >>> guide = Codebook(model, {"1": (torch.tensor([-0.1, 0.1]), signs)})
        >>> guide.sizes
        {'1': 2}
    """

    free_values = varies = False

    def __init__(
        self,
        model: BayesianNetwork,
        books: Mapping[str, tuple[Tensor, Tensor]],
        *,
        begin: NetworkGuide | None = None,
    ) -> None:
        super().__init__(model, begin=begin)
        self.put({layer: self._shared(layer, *own) for layer, own in books.items()})
        self.sizes = {layer: len(book) for layer, (book, _) in books.items()}

    def arguments(self, names: Mapping[str, str]) -> dict[str, Any]:
        own = {name: self.weights_of(name) for name in self.sizes}
        return {"books": {names.get(n, n): (f.book, f.index - 1) for n, f in own.items()}}

    def _shared(self, layer: str, book: Tensor, index: Tensor) -> CodebookFactor:
        value = self.values_of(layer)
        if index.shape != value.shape or index.is_floating_point() or book.dim() != 1:
            raise PyroccamError(
                f"The book of layer {layer!r} must be a vector and its index whole numbers of the "
                f"shape of its weight, {tuple(value.shape)}; got {tuple(book.shape)} and "
                f"{tuple(index.shape)} of {index.dtype}."
            )
        if int(index.min()) < -1 or int(index.max()) >= len(book):
            raise PyroccamError(
                f"The index of layer {layer!r} must be in -1 ... {len(book) - 1}, got "
                f"{int(index.min())} ... {int(index.max())}."
            )
        return CodebookFactor(book.to(value), index)
