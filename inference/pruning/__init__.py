"""A smaller network: a fit and where to cut in, a plain network and what it lacks out."""

from typing import TYPE_CHECKING

from ...data.door import lazy_names

if TYPE_CHECKING:
    from .depth import at_depth, full_network, settled, worthwhile
    from .graph import discretise, random_structures
    from .intervals import scale_intervals
    from .inventory import bytes_by_part, input_use, remains
    from .magnitude import prune_weights, share_weights, splice_weights
    from .variance_network import mean_costs, without_means

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
    "worthwhile",
]

__getattr__, __dir__ = lazy_names(__name__)
