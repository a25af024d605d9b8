"""Knowledge of a trained pair: moments, draws, predictions, their scores and spread."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from . import metrics
    from .depth import (
        DepthStructure,
        exact_depth_posterior,
        slack,
        sum_by_depth,
        total_variation,
    )
    from .draws import (
        DrawnNetwork,
        Draws,
        Noise,
        at_once,
        chunks,
        images_at_once,
        outputs_of,
        weights_of,
    )
    from .ensemble import EnsembleNetwork
    from .layers import Layer, layer_moments, mean_network
    from .metrics import (
        Reliability,
        by_parts,
        mean_spread,
        poster_ece,
        reliability,
        score_classes,
        score_targets,
    )
    from .posteriors import (
        Fit,
        Fits,
        Posterior,
        chains_of,
        log_prob_of,
        members,
        named,
        posterior_of,
        random_network,
        refuse_undecided,
        require,
    )
    from .predict import (
        DRAWS,
        HOWS,
        How,
        below_targets,
        evaluate_net,
        evaluate_outputs,
        evaluate_pruned,
        evaluate_single,
        mixture_log_probs,
        nll_by_depth,
        nll_of_rows,
        outputs_by_depth,
        outputs_of_rows,
        streamed,
        suited,
        validated,
    )
    from .same_rows import in_original_units, original_targets, same_inputs, same_targets
    from .structures import Choice, EdgeStructure, Presentable, Structure, edge_structure
    from .summary import summarise
    from .uncertainties import Bands, mixture_bands, out_of_domain, uncertainty

__all__ = [
    "EnsembleNetwork",
    "exact_depth_posterior",
    "metrics",
    "out_of_domain",
    "posterior_of",
    "total_variation",
    "uncertainty",
]

__getattr__, __dir__ = lazy_names(__name__)
