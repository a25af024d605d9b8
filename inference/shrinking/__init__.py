"""A smaller network: a fit and where to cut in, a plain network and what it lacks out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .compression import (
        Report,
        compressed,
        plain_network,
        tolerance_beside,
        tolerance_of,
    )
    from .decision import at_thresholds
    from .depth import at_depth, full_network, settled
    from .graph import discretise, random_structures
    from .intervals import scale_intervals
    from .inventory import bytes_by_part, input_use, left_of, remains
    from .magnitude import prune_weights, share_weights, splice_weights
    from .narrowing import narrow
    from .options import (
        NATS,
        SHARES,
        ByValidation,
        Code,
        Codebook,
        Cut,
        Deviations,
        Digits,
        IndexBits,
        Noise,
        Part,
        PerLayer,
        Search,
        Steps,
        Thresholds,
        Valley,
    )
    from .relevance import irrelevance, of_groups
    from .small_networks import load, shrink
    from .thresholds import by_layer, refuse_uncut
    from .variance_network import mean_costs, without_means
    from .weight_path import Bytes, Milliseconds, PathPoint, path
    from .weight_sharing import books, levels_of

__all__ = [
    "at_depth",
    "bytes_by_part",
    "discretise",
    "full_network",
    "input_use",
    "mean_costs",
    "prune_weights",
    "random_structures",
    "remains",
    "scale_intervals",
    "settled",
    "share_weights",
    "splice_weights",
    "without_means",
]

__getattr__, __dir__ = lazy_names(__name__)
