"""Discrete sites of the model that no guide covers: summed out of the likelihood."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from torch import Tensor

__all__ = ["sum_out"]

Plates = frozenset[str]


def sum_out(sites: list[dict[str, Any]], dims: set[int]) -> Iterator[tuple[Plates, Tensor]]:
    r"""``log Σ_z p(z) \prod p(· | z)`` over the discrete sites z that the model enumerates.

    Arguments:
        sites: of the model, those enumerated and those that depend on them, with ``log_prob``
            masked but not scaled, ``scale`` and ``plates`` (dim by name).
        dims: the (negative) dims that are enumerated in the model.

    Yields:
        terms of the log marginal likelihood, each with the plates that it still stands in.

    Raises:
        ValueError: if the sites differ in scale: the sum over a latent outside a subsampled plate
            cannot be estimated from a minibatch.

    References:
        Variable elimination with plates: Obermeyer et al. 2019, Tensor variable elimination for
        plated factor graphs, arXiv:1902.03210; done here by ``pyro.ops.contract``.
    """
    scales = {float(site["scale"]) for site in sites}
    if len(scales) > 1:
        raise ValueError(
            f"The sites {', '.join(repr(site['name']) for site in sites)} are summed over in the "
            f"model but have different scales ({', '.join(f'{s:g}' for s in sorted(scales))}): "
            "log Σ_z p(z) Π p(y | z) cannot be estimated from a minibatch. Use the full batch, or "
            "put the discrete site into the guide, where it takes minibatches."
        )
    names: dict[str | int, str] = {}  # plates by name, other dims by number -> one letter
    factors: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
    for site in sites:
        value: Tensor = site["log_prob"]
        by_dim: dict[int, str | int] = {dim: dim for dim in range(-value.dim(), 0)}
        by_dim |= {dim: name for name, dim in site["plates"].items()}
        letters = {dim: names.setdefault(key, chr(192 + len(names))) for dim, key in by_dim.items()}
        ordinal = frozenset(
            names.setdefault(name, chr(192 + len(names))) for name in site["plates"]
        )
        factors.setdefault(ordinal, []).append(packed.pack(value, letters))
    back = {letter: key for key, letter in names.items()}
    where = {name: dim for site in sites for name, dim in site["plates"].items()}
    to_dim = {letter: where[key] if isinstance(key, str) else key for letter, key in back.items()}
    summed = {names[dim] for dim in dims if dim in names}
    for ordinal, terms in contract_tensor_tree(factors, summed).items():
        for term in terms:
            yield (
                frozenset(str(back[letter]) for letter in ordinal),
                packed.unpack(term, to_dim) * scales.copy().pop(),
            )
