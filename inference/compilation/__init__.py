"""A training step made fast: a pair in, a graph of tensor operations out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .cuda_graphs import CudaRecorder, Recorded
    from .fusion import differentiable
    from .graphs import graph_of, of_lists
    from .half_products import products
    from .inductor import compiled
    from .noise import Draw, lift_noise
    from .passes import lean
    from .region_calls import in_regions
    from .regions import pays_from
    from .trace import TracedBound, Untraceable, first_line, joint_graph

__getattr__, __dir__ = lazy_names(__name__)
