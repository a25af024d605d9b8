"""Discrete sites of the model that no guide covers: summed out of the likelihood."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.rings import LogRing
from torch import Tensor

from ...data import PyroccamError
from .expectation import plates_of

Key = str | int  # a plate by its name, an enumerated latent by its id
Packed = Any  # a tensor whose dims are named by the letters of its _pyro_dims


class SummedOut:
    r"""``log Σ_z p(z) \prod p(· | z)`` over the discrete sites z that the model enumerates.

    Arguments:
        sites: of the model, by name.
        covered: names of the sites of the guide.

    Attributes:
        latents: the sites z.
        factors: these and what depends on one, with log-probabilities, masked, not scaled.
        label: for messages.

    Raises:
        PyroccamError: if a latent asks for draws instead of an exact sum.

    References:
        Variable elimination with plates: Obermeyer et al. 2019, Tensor variable elimination for
        plated factor graphs, arXiv:1902.03210; done here by ``pyro.ops.contract``.
    """

    def __init__(self, sites: Mapping[str, Any], covered: Collection[str]) -> None:
        self.latents: dict[str, Any] = {}
        for name, site in sites.items():
            if name not in covered and site["infer"].get("_enumerate_dim") is not None:
                if site["infer"].get("num_samples") is not None:
                    raise PyroccamError(f"num_samples of site {name!r}, which is summed out")
                self.latents[name] = site
        self.ids = {_ids(site)[site["infer"]["_enumerate_dim"]] for site in self.latents.values()}
        self.factors: list[tuple[Any, Tensor]] = []
        self.label = f"the sum over {[*self.latents]}"

    def concerns(self, site: Any, shape: torch.Size) -> bool:
        """True if a site, with log-probabilities of this shape, depends on a latent."""
        ids = _ids(site)
        return any(shape[d] != 1 and ids.get(d) in self.ids for d in range(-len(shape), 0))

    def terms(self) -> Iterator[tuple[dict[str, int], Tensor]]:
        """Terms of the log marginal likelihood, scaled, with the plates they still stand in.

        Raises:
            PyroccamError: if the factors differ in scale: the sum over a latent outside a
                subsampled plate cannot be estimated from a minibatch.
        """
        if not self.factors:
            return
        scale = self._common_scale()
        letters: dict[Key, str] = {}
        to_dim: dict[str, int] = {}
        factors: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
        for site, log_prob in self.factors:
            keys: dict[int, Key] = _ids(site) | {dim: name for name, dim in plates_of(site).items()}
            symbols = {d: letters.setdefault(k, chr(192 + len(letters))) for d, k in keys.items()}
            to_dim |= {letter: dim for dim, letter in symbols.items()}
            plates = frozenset(letters[name] for name in plates_of(site))
            factors.setdefault(plates, []).append(packed.pack(log_prob, symbols))
        keys_of = {letter: key for key, letter in letters.items()}
        summed = {letters[i] for i in self.ids}
        for left, terms in contract_tensor_tree(factors, summed, ring=_StableLogRing()).items():
            plates_left = {str(keys_of[letter]): to_dim[letter] for letter in left}
            for term in terms:
                yield plates_left, packed.unpack(term, to_dim) * scale

    def _common_scale(self) -> Any:
        scales = {site["name"]: site["scale"] for site, _ in self.factors}
        first = next(iter(scales.values()))
        if all(_equal(scale, first) for scale in scales.values()):
            return first
        raise PyroccamError(f"{self.label} runs over {[*scales]}", "one scale", "the full batch")


class _StableLogRing(LogRing):
    """Sums of products of exponentials, one dim at a time, that cannot underflow.

    Pyro's own ring multiplies exponentials: a prior and a likelihood that differ by hundreds of
    nats about the best value then give ``log 0``.
    """

    def sumproduct(self, terms: list[Packed], dims: Iterable[str]) -> Packed:
        left, pending = list(terms), set(dims)
        while pending:
            named = [t._pyro_dims for t in left]
            dim = min(sorted(pending), key=lambda d: len({*"".join(n for n in named if d in n)}))
            pending.remove(dim)
            found = _product([t for t in left if dim in t._pyro_dims])
            left = [t for t in left if dim not in t._pyro_dims]
            left.append(_log_sum_exp(found, dim))
        return _product(left)


def _product(terms: list[Packed]) -> Packed:
    if len(terms) == 1:
        return terms[0]
    first, *rest = packed.broadcast_all(*terms)
    total = sum(rest, first)
    total._pyro_dims = first._pyro_dims
    return total


def _log_sum_exp(term: Packed, dim: str) -> Packed:
    """``logsumexp`` with gradient zero, not NaN, where all terms are impossible."""
    where = term._pyro_dims.index(dim)
    largest = term.detach().amax(where, keepdim=True)
    impossible = largest == -math.inf
    shifted = (term - largest.masked_fill(impossible, 0.0)).exp().sum(where, keepdim=True)
    total = (shifted + impossible.to(shifted.dtype)).log() + largest
    total = total.squeeze(where)
    total._pyro_dims = term._pyro_dims.replace(dim, "")
    return total


def _ids(site: Any) -> dict[int, int]:
    """Which enumerated latent varies along which dim; pyro.markov uses a dim more than once."""
    return dict(site["infer"].get("_dim_to_id", {}))


def _equal(a: Any, b: Any) -> bool:
    if any(isinstance(scale, Tensor) and scale.dim() > 0 for scale in (a, b)):
        return False
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if a is b or not pyro.infer.util.is_validation_enabled():
            return True  # a value must not be looked at while a graph is traced
        return bool(torch.as_tensor(a == b).all())
    return math.isclose(a, b)
