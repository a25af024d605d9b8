"""Methods over networks that can stop at any depth: learnt, or fixed for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ... import guides, models
from ...data import Between, Dataset, NotNegative
from ...inference import load
from ...inference.cutting import compare_speed, count_parameters
from ...inference.files import save_folder
from ...inference.posterior import (
    by_parts,
    evaluate_outputs,
    evaluate_pruned,
    mixture_log_probs,
    nll_by_depth,
    outputs_by_depth,
    poster_ece,
)
from ...inference.shrinking import NATS, at_depth, full_network, tolerance_beside
from ...inference.training import FEW, Fit, Settings
from ...models.networks import DepthStack
from ...models.plain import PrunedNetwork
from .base import (
    HANDED_BACK,
    ORDINARY,
    Finished,
    Method,
    Pair,
    known_of,
    smaller,
    timed,
    told,
    uncut,
)


class _OverDepth(Method):
    """Any method over a stack."""

    over = "stack"

    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        return {"full": result.evaluate(split)}

    def on_test(self, result: Fit) -> dict[str, float]:
        return metrics_on_test(result)


@dataclass(frozen=True)
class AtDepth(_OverDepth):
    """The network of one depth.

    Attributes:
        depth: depth of the network; the deepest if left out.
    """

    depth: int | None = None
    predictor: ClassVar[str] = "network"

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        whole = models.LearntDepth(cast(DepthStack, net), data=data, likelihood=self.likelihood)
        model = whole.at_depth(whole.max_depth if self.depth is None else self.depth)
        return model, guides.Deterministic(model)


@dataclass(frozen=True)
class _LearntDepth(_OverDepth):
    """A posterior over depth, and the smaller networks that it allows.

    Attributes:
        prior: prior of the depth, in words.
        threshold: share of the largest probability that the chosen depth, the first with so much,
            has at least.
        tolerance: nats of a row, and share of errors, that the network of the chosen depth may lose
            to an ordinary training of it.
    """

    passes = 5.0  # the exits of all depths pass, too

    prior: str = "geometric:0.85"
    threshold: Annotated[float, Between(0.0, 1.0, "(]")] = 0.95
    tolerance: NotNegative = NATS
    predictor: ClassVar[str] = "all depths"

    def model(self, net: nn.Module, data: Dataset) -> models.LearntDepth:
        return models.LearntDepth(
            cast(DepthStack, net),
            data=data,
            prior=models.priors.parse(self.prior),
            likelihood=self.likelihood,
        )

    @property
    def chosen_share(self) -> float:
        return self.threshold

    def trainings(
        self, settings: Settings, data: Dataset, compare: bool
    ) -> dict[str, tuple[int, int]]:
        return {"fixed depth": (1, settings.epochs_for(data.N))} if compare else {}

    def refusals(self, settings: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
        if len(data.x_val) < FEW:
            yield "tolerance", f"changes nothing: there are fewer than {FEW} validation rows."

    def further(self, begin: Callable[[], nn.Module], data: Dataset) -> dict[str, Pair]:
        deepest = AtDepth("", "", "", likelihood=self.likelihood)
        return {"fixed depth": deepest.build(begin(), data)}

    def scores(
        self, result: Fit, split: str, folder: Path | None = None
    ) -> dict[str, dict[str, float]]:
        net: Any = at_depth(result) if folder is None else self.smaller(result, folder)
        data = result.data

        def judged(x: Tensor, y: Tensor) -> dict[str, float]:
            known, weights = split == "val", data.val_weights
            return evaluate_pruned(net, x, y, data.y_std, known=known, weights=weights)

        pruned = by_parts(data, split, judged)
        return {**super().scores(result, split), "pruned": pruned}

    def smaller(self, result: Fit, folder: Path) -> nn.Module:
        if not (folder / "pruned").is_dir():
            return at_depth(result)
        own = at_depth(result).likelihood  # none of a kind that a description knows
        stack = result.model.stack
        like = stack if stack.description is None else None
        return load(folder / "pruned", like=like, likelihood=own)

    def report(self, run: Finished) -> dict[str, Any]:
        """The depth, two networks that are cut there, and the one of fixed depth beside them."""
        (result,), ddn = run.fits, run.fixed
        model, data = result.model, result.data
        assert result.structure is not None
        found: dict[str, Any] = {
            "learnt": [told(one) for one in result.structures],
            "structure": result.structure.to_json(),
            "test_by_depth_nll": nll_by_depth(
                outputs_by_depth(model, data.x_test), model.likelihood, data.y_test, data.y_std
            ),
        }
        nets = {"marginal": at_depth(result), "single": at_depth(result, "last")}
        if ddn is not None and len(data.x_val) >= FEW:  # fewer do not tell
            cut, plain = _row_scores(result, nets["marginal"]), _row_scores(ddn)
            needed = tolerance_beside(cut, plain, data)
            if needed > self.tolerance:
                test = metrics_on_test(result, nets["marginal"])
                found["refused"] = {"test": test, "parameters": count_parameters(nets["marginal"])}
                why = HANDED_BACK.format(ORDINARY, needed, self.tolerance)
                found["learnt"].append(uncut(why, "The chosen depth"))
                fixed = PrunedNetwork(model.stack, nets["single"].depth, None, ddn.model.likelihood)
                fixed.net.load_state_dict(ddn.model.part("net").state_dict())
                nets["marginal"] = fixed
        speed = compare_speed({"full": full_network(result), **nets}, data.x_test, "full")
        for key, form in (("pruned", "marginal"), ("single_exit", "single")):
            net = nets[form]
            found[key] = {
                "depth": net.depth,
                "parameters": count_parameters(net),
                "parameters_before": count_parameters(model),
                **timed(speed[form]),
                "test": metrics_on_test(result, net),
            }
            if run.out is not None:
                save_folder(net, run.out / key)
        found["learnt"].append(smaller(found["pruned"], known_of(nets["marginal"], data)))
        if ddn is not None:
            found["ddn"] = {
                "depth": nets["single"].depth,
                "parameters": count_parameters(ddn.model),
                "seconds": ddn.seconds,
                "test": metrics_on_test(ddn),
            }
        return found


@dataclass(frozen=True)
class MarginalLikelihood(_LearntDepth):
    """Depth by the marginal likelihood of all rows."""

    full_batch = True

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = self.model(net, data)
        return model, guides.Marginal(model)


@dataclass(frozen=True)
class ByGradient(_LearntDepth):
    """Depth by the gradient of the evidence lower bound.

    Attributes:
        hold: part of the training during which q(d) stays as it is held.
        held: what it is at first; at the prior it depends less on how deep the deepest is.
    """

    hold: float = 0.5
    held: Literal["uniform", "prior"] = "uniform"

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = self.model(net, data)
        return model, guides.CategoricalDepth(
            model, update="gradient", hold=self.hold, held=self.held
        )


@dataclass(frozen=True)
class ClosedForm(ByGradient):
    """Depth by the update of q(d) in closed form.

    Attributes:
        rate: step of the damped update, in (0, 1]; by the length of the training if left out.
    """

    rate: float | None = None

    def build(self, net: nn.Module, data: Dataset) -> Pair:
        model = self.model(net, data)
        return model, guides.CategoricalDepth(model, hold=self.hold, rate=self.rate, held=self.held)


@torch.no_grad()
def _row_scores(result: Fit, net: PrunedNetwork | None = None) -> Tensor:
    """The loss of each validation row, and whether its class is missed, ``(2, N)``."""
    (x, y), like, known = result.data.split("val"), result.model.likelihood, result.data.val_weights
    outputs, shares = result.outputs(x), result.weights
    if net is not None:
        outputs, shares = outputs_by_depth(net, x), net.log_weights.exp()
    outputs = like.left_out(result.model if net is None else net, outputs, y, known)
    losses = -like.log_predictive(outputs, shares.log().clamp_min(-1e4), y)
    missed = torch.zeros_like(losses)
    if result.data.classes is not None:
        missed = (mixture_log_probs(like.predicted(outputs), shares).argmax(-1) != y).to(losses)
    return torch.stack([losses, missed]).double().cpu()


def metrics_on_test(result: Fit, net: PrunedNetwork | None = None) -> dict[str, float]:
    """Metrics on the test rows of a fit, or of a network cut from it, with the poster's rule."""
    data = result.data
    if net is None:
        outputs, shares = result.outputs(data.x_test), result.weights
    else:
        outputs, shares = outputs_by_depth(net, data.x_test), net.log_weights.exp()
    likelihood = result.model.likelihood
    found = evaluate_outputs(outputs, shares, likelihood, data.y_test, data.y_std)
    if data.task == "classification":
        with torch.no_grad():
            log_probs = mixture_log_probs(likelihood.predicted(outputs), shares)
        found["poster_ece"] = poster_ece(log_probs, data.y_test)
    return found
