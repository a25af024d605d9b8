"""What a run over random structure reports: the choice, its network, and what chance would do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ... import guides, models
from ...data import Dataset
from ...inference.cutting.cost import count_parameters, seconds_per_batch
from ...inference.figures import save, structure_graph
from ...inference.fits.fitting import Fit, fit
from ...inference.posterior.metrics import mean_spread
from ...inference.posterior.predict import evaluate_net
from ...inference.posterior.weight_moments import mean_network
from ...inference.pruning.graph import (
    Choice,
    StructureChoice,
    choose_structure,
    discretise,
    random_structures,
)
from ...inference.storage.network_folder import save as save_network
from ...models.networks.structure_graph import discretised, structures
from ..runs.run_figures import FORMATS
from .stages import Pair

__all__ = ["report"]

# Of point estimates, where the weights of a run are numbers.
_WIDE = "normal:1"


def report(
    result: Fit,
    net: nn.Module,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    out: Path | None,
    compare: bool,
    figures: bool = True,
    **arguments: Any,
) -> dict[str, Any]:
    """Parts of ``metrics.json`` of a run over random structure.

    Arguments:
        result: of a :class:`~pyroccam.models.StructuredNetwork`.
        net: the network with its graph and its initial weights, to begin afresh from.
        options: ``prior`` of the weights, and ``random``, the number of random structures of about
            the same size that are trained in the same way.
        settings: of the fits.
        out: folder of the run, or ``None``.
        compare: train the chosen structure afresh, and random ones.
        figures: draw the graphs into ``out/figures``.
        arguments: of :func:`~pyroccam.inference.fit`.
    """
    choice = choose_structure(result)
    small = discretise(result)
    data = result.data
    whole = mean_network(result.model, result.guide)  # type: ignore[arg-type]
    times = seconds_per_batch({"whole": whole, "chosen": small}, data.x_test[:256])
    found: dict[str, Any] = {
        "structure": choice.to_json(),
        "discretised": {
            "parameters": count_parameters(small),
            "parameters_before": count_parameters(whole),
            "seconds_per_batch": times["chosen"],
            "seconds_per_batch_before": times["whole"],
            "batch": len(data.x_test[:256]),
            "test": evaluate_net(small, result.model, data),
        },
    }
    if out is not None:
        save_network(small, out / "discretised")
        if figures:
            _draw(result, choice, out / "figures")
    if not compare:
        return found
    size = count_parameters(small)
    others = random_structures(
        result.model, int(options["random"]), parameters=size, other_than=choice.chosen,
        seed=settings["seed"],
    )  # fmt: skip
    fits = {"retrained": choice.chosen}
    fits |= {f"random-{k}": other for k, other in enumerate(others, start=1)}
    rows: dict[str, dict[str, Any]] = {}
    for name, chosen in fits.items():
        model, guide = _fixed(net, chosen, data, options)
        folder = None if out is None else out / name
        one = fit(model, guide, data, out=folder, label=name, **arguments, **settings)
        rows[name] = {
            "choice": chosen,
            "parameters": count_parameters(mean_network(model, guide)),
            "test": one.evaluate(),
            "seconds": one.seconds,
        }
    found["retrained"] = rows.pop("retrained")
    if rows:
        tests = [row["test"] for row in rows.values()]
        found["random"] = {"runs": list(rows.values()), "spread": mean_spread(tests)}
    return found


def _draw(result: Fit, choice: StructureChoice, folder: Path) -> None:
    """Every structure with its posterior."""
    net: Any = result.model.part("net")
    for path in structures(net):
        prefix = f"{path}." if path else ""

        def own(of: Mapping[str, Any], prefix: str = prefix) -> dict[str, Any]:
            return {k.removeprefix(prefix): v for k, v in of.items() if k.startswith(prefix)}

        graph: Any = net.get_submodule(path)
        picture = structure_graph(graph, own(choice.probs), own(choice.chosen))
        save(picture, folder / f"structure{'-' if path else ''}{path}", FORMATS)


def _fixed(net: nn.Module, choice: Choice, data: Dataset, options: Mapping[str, Any]) -> Any:
    """A pair over the network of one structure, with its weights as they begin."""
    asked = options["prior"]
    prior = models.priors.parse_weights(_WIDE if asked is None else str(asked))
    model = models.BayesianNetwork(discretised(copy.deepcopy(net), choice), data, prior=prior)
    pair: Pair = model, guides.Delta(model) if asked is None else guides.MeanField(model)
    return pair
