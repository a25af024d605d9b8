"""Random structure: the choice, its network, and what chance would do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ... import guides, models
from ...data import Dataset, Whole
from ...inference import load
from ...inference.cutting import ROWS, compare_speed, count_parameters
from ...inference.figures import structure_graph
from ...inference.files import save_folder
from ...inference.posterior import (
    Choice,
    EdgeStructure,
    evaluate_net,
    mean_network,
    mean_spread,
    require,
)
from ...inference.shrinking import NATS, discretise, random_structures, tolerance_beside
from ...inference.training import FEW, Fit, Settings, look
from ...models.networks import discretised, structures
from ...models.plain import torch_only
from .. import save_figure
from .base import HANDED_BACK, Finished, Method, Pair, known_of, smaller, timed, told, uncut

# Of point estimates, where the weights of a run are numbers.
_WIDE = "normal:1"
AFRESH = "the chosen structure, trained afresh"


@dataclass(frozen=True)
class RandomStructure(Method):
    """A posterior over which primitive is on which edge.

    Attributes:
        structure: prior of the structure, in words.
        family: family of its posterior, or that of the ``prior``.
        temperature: temperature of a relaxation, ``tied`` to the prior's or ``learnt``.
        prior: prior of the weights, in words; without one they are numbers.
        random: number of random structures of about the same size, and of other functions, that are
            trained in the same way; fewer where there are no more.
    """

    over = "graph"
    passes = 3.0

    structure: str = "gumbel-softmax:1:0.2"
    family: str = "prior"
    temperature: Literal["tied", "learnt"] = "tied"
    prior: str | None = None
    random: Whole = 3

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = models.StructuredNetwork(
            net,
            data,
            structure=models.priors.parse_structure(self.structure),
            prior=None if self.prior is None else models.priors.parse_weights(self.prior),
            likelihood=self.likelihood,
        )
        family = guides.StructureFamily(self.family, self.temperature)
        return model, guides.MeanField(model, structure=family)

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        each = settings.epochs_for(data.N)
        return {"structures afresh": (1 + self.random, each)} if compare else {}

    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        found = result.evaluate_ways(split)
        if folder is not None:
            small = self.smaller(result, folder)
            found["discretised"] = evaluate_net(small, result.model, result.data, split)
        return found

    def smaller(self, result: Fit, folder: Path) -> nn.Module:
        kept = folder / "discretised"
        return load(kept) if kept.is_dir() else discretise(result)

    def report(self, run: Finished) -> dict[str, Any]:
        """The choice and its network, beside the same trained afresh and random ones: of the first
        two the better is handed back."""
        (result,) = run.fits
        choice: Any = result.structures[0]
        small, data = discretise(result, choice.choice), result.data
        found: dict[str, Any] = {"structure": choice.to_json(), "learnt": [told(choice)]}
        if run.compare:
            afresh, others = self._others(run, choice, count_parameters(small))
            found |= others
            plain = torch_only(mean_network(*require(afresh, models.BayesianNetwork, "structure")))
            needed = tolerance_beside(look(small, result)[1:], look(plain, afresh)[1:], data)
            if len(data.x_val) >= FEW and needed > NATS:
                found["refused"] = {
                    "parameters": count_parameters(small),
                    "test": evaluate_net(small, result.model, data),
                }
                why = HANDED_BACK.format(AFRESH, needed, NATS)
                found["learnt"].append(uncut(why, choice.title))
                small = plain.eval()
        whole = mean_network(*require(result, models.StructuredNetwork, "discretise"))
        speed = compare_speed({"whole": whole, "chosen": small}, data.x_test, "whole")["chosen"]
        found["discretised"] = {
            "parameters": count_parameters(small),
            "parameters_before": count_parameters(whole),
            **timed(speed),
            "test": evaluate_net(small, result.model, data),
        }
        found["learnt"].append(
            smaller(found["discretised"], known_of(small, data, result.model.likelihood))
        )
        if run.out is not None:
            save_folder(small, run.out / "discretised")
            _draw(result, choice, run.out / "figures")
        return found

    def _others(
        self, run: Finished, choice: EdgeStructure, parameters: int
    ) -> tuple[Fit, dict[str, Any]]:
        """The chosen structure and random ones of about its size, trained afresh."""
        (result,) = run.fits
        data = result.data
        drawn = []
        if self.random:
            drawn = random_structures(
                result.model,
                self.random,
                parameters=parameters,
                other_than=choice.chosen,
                example=data.head(ROWS)[0],
                seed=result.settings.seed,
            )
        fits = {"retrained": choice.chosen}
        fits |= {f"random-{k}": other for k, other in enumerate(drawn, start=1)}
        net = run.begin()
        trained = {n: run.train(self._fixed(net, one, data), n) for n, one in fits.items()}
        rows = {
            name: {
                "choice": fits[name],
                "parameters": count_parameters(one.model.start_network()),
                "test": one.evaluate(),
                "seconds": one.seconds,
            }
            for name, one in trained.items()
        }
        found: dict[str, Any] = {"retrained": rows.pop("retrained")}
        if rows:
            tests: Any = [row["test"] for row in rows.values()]
            found["random"] = {"runs": list(rows.values()), "spread": mean_spread(tests)}
            found["random"]["all"] = len(rows) < self.random
        return trained["retrained"], found

    def _fixed(self, net: nn.Module, choice: Choice, data: Dataset) -> Pair:
        """A pair over the network of one structure, with its weights as they begin."""
        prior = models.priors.parse_weights(_WIDE if self.prior is None else self.prior)
        model = models.BayesianNetwork(
            discretised(copy.deepcopy(net), choice), data, prior=prior, likelihood=self.likelihood
        )
        return model, guides.Delta(model) if self.prior is None else guides.MeanField(model)


def _draw(result: Fit, choice: EdgeStructure, folder: Path) -> None:
    """Every structure with its posterior."""
    net: Any = result.model.part("net")
    for path in structures(net):
        prefix = f"{path}." if path else ""

        def own(of: Mapping[str, Any], prefix: str = prefix) -> dict[str, Any]:
            return {k.removeprefix(prefix): v for k, v in of.items() if k.startswith(prefix)}

        graph: Any = net.get_submodule(path)
        picture = structure_graph(graph, own(choice.probs), own(choice.chosen))
        save_figure(picture, result.data, folder / f"structure{'-' if path else ''}{path}")
