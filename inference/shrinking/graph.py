"""One structure out of a posterior over structures, and the plain network that has it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data import Count, Seed, checked
from ...models import StructuredNetwork, seeded
from ...models.networks import discretised
from ...models.plain import torch_only
from ..cutting import count_parameters
from ..posterior import Choice, edge_structure, mean_network, require

if TYPE_CHECKING:
    from ..training import Fit

TRIES = 1000  # draws of random structures


@torch.no_grad()
@checked
def discretise(fit: Fit, choice: Mapping[str, str | Sequence[str]] | None = None) -> nn.Module:
    """The plain network of one structure, with the posterior means of its weights.

    It is of no class of this package, and can be unpickled without it; what was not chosen is not
    in it.

    Arguments:
        choice: primitives by edge; the most probable (``fit.structures``) if left out.

    Raises:
        PyroccamError: for a fit of another model, a structure that the graph has not, or that
            leaves a vertex empty.
    """
    model, guide = require(fit, StructuredNetwork, "discretise")
    if choice is None:
        choice = edge_structure(model, guide).chosen
    return torch_only(discretised(mean_network(model, guide), choice).eval())


@checked
def random_structures(
    model: StructuredNetwork,
    count: Count,
    *,
    parameters: int | None = None,
    tolerance: float = 0.1,
    other_than: Choice | None = None,
    example: Tensor | None = None,
    seed: Seed = 0,
) -> list[Choice]:
    """Structures drawn with equal probabilities, of about one size: what a choice has to beat.

    Arguments:
        model: whose structures these are.
        count: how many different ones, at most.
        parameters: of the plain network; of any size if left out.
        tolerance: by which share their number may differ from it. Where 1,000 draws do not
            give enough, those nearest in size are taken.
        other_than: the choice they are to be compared with, never among them.
        example: inputs ``(B, *)``, B of 2 and more: a structure whose outputs are the same for all
            of them, since no path is left through it, or those of the choice or of one before, with
            the weights at their start, is no contender and drawn again.
        seed: of the draws.

    Returns:
        by edge the names of the primitives, as :func:`discretise` takes them.
    """
    starts = {name: layer.start for name, layer in model.layers.items()}
    blank = {name: (start["weight"], start.get("bias")) for name, start in starts.items()}
    whole = model.plain(blank)
    plain = copy.deepcopy(whole).to("meta")
    found: dict[str, tuple[float, Choice]] = {}
    seen, functions = set[str](), list[Tensor]()
    if example is not None and other_than is not None:
        functions = [_function(whole, other_than, example)]
    with seeded(seed, torch.device("cpu")):
        for _ in range(TRIES):
            choice: Choice = {edge: list(names) for edge, names in model.primitives.items()}
            for prior in model.structure.values():
                names = prior.primitives
                if prior.restriction.startswith("cube"):
                    choice[prior.edge] = [n for n in names if torch.rand(()) < 0.5]
                else:
                    choice[prior.edge] = [names[int(torch.randint(len(names), ()))]]
            if str(choice) in seen or choice == other_than:
                continue
            seen.add(str(choice))
            gap, own = 0.0, None
            try:
                if parameters is not None:
                    size = count_parameters(discretised(copy.deepcopy(plain), choice))
                    gap = abs(size - parameters) / max(parameters, 1)
                if example is not None:
                    own = _function(whole, choice, example)
            except ValueError:  # a vertex without edges
                continue
            if own is not None:
                least = 1e-6 * own.abs().max()
                if any((own - other).abs().max() <= least for other in (own[:1], *functions)):
                    continue
                functions.append(own)
            found[str(choice)] = gap, choice
            if sum(gap <= tolerance for gap, _ in found.values()) >= count:
                break
    nearest = sorted(found.values(), key=lambda pair: max(pair[0], tolerance))
    return [choice for _, choice in nearest[:count]]


@torch.no_grad()
def _function(net: nn.Module, choice: Choice, example: Tensor) -> Tensor:
    outputs: Tensor = discretised(copy.deepcopy(net), choice).eval()(example)
    return outputs
