"""What a run over learnt depth reports: the depth, two cut networks, the one of fixed depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...inference.cutting.cost import count_parameters, seconds_per_batch
from ...inference.fits.fitting import Fit
from ...inference.posterior.metrics import poster_ece
from ...inference.posterior.predict import (
    evaluate_outputs,
    evaluate_pruned,
    mixture_log_probs,
    nll_by_depth,
    outputs_by_depth,
)
from ...inference.pruning.depth import full_network, prune
from ...inference.storage.network_folder import save
from ...models.plain.pruned import PrunedNetwork

__all__ = ["metrics_on_test", "report"]


def report(result: Fit, ddn: Fit | None, out: Path | None) -> dict[str, Any]:
    """Parts of ``metrics.json`` of a run over learnt depth.

    Arguments:
        result: with a structure.
        ddn: the deterministic network of the chosen depth, if it was trained.
        out: folder where the cut networks stay.
    """
    model, data = result.model, result.data
    assert result.structure is not None
    found: dict[str, Any] = {
        "structure": result.structure.to_json(),
        "test_by_depth_nll": nll_by_depth(
            outputs_by_depth(model, data.x_test), model.likelihood, data.y_test
        ),
    }
    nets = {form: prune(result, form=form) for form in ("marginal", "single")}
    times = seconds_per_batch({"full": full_network(result), **nets}, data.x_test[:256])
    for key, form in (("pruned", "marginal"), ("single_exit", "single")):
        net = nets[form]
        found[key] = {
            "depth": net.depth,
            "parameters": count_parameters(net),
            "parameters_before": count_parameters(model),
            "seconds_per_batch": times[form],
            "seconds_per_batch_before": times["full"],
            "batch": min(256, len(data.x_test)),
            "test": metrics_on_test(result, net),
        }
        if out is not None:
            save(net, out / key)
    if ddn is not None:
        found["ddn"] = {
            "depth": nets["single"].depth,
            "parameters": count_parameters(ddn.model),
            "seconds": ddn.seconds,
            "test": metrics_on_test(ddn),
        }
    return found


def metrics_on_test(result: Fit, net: PrunedNetwork | None = None) -> dict[str, float]:
    """Metrics on the test rows of a fit, or of a network cut from it, with the poster's rule."""
    data = result.data
    if net is None:
        outputs, shares = result.outputs(data.x_test), result.weights
        likelihood = result.model.likelihood
        found = evaluate_outputs(outputs, shares, likelihood, data.y_test, data.y_std)
    else:
        outputs, shares = outputs_by_depth(net, data.x_test), net.log_weights.exp()
        found = evaluate_pruned(net, data.x_test, data.y_test, data.y_std)
    if data.task == "classification":
        found["poster_ece"] = poster_ece(mixture_log_probs(outputs, shares), data.y_test)
    return found
