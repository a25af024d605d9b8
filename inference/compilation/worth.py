"""From how many steps on it pays to compile a graph."""

from __future__ import annotations

import math

from torch import Tensor, fx

from .regions import is_view, regions_of, value_of

# Fitted to what benchmarks/tracing.py measures on a CPU of two cores, with nothing in the
# compiler's cache, for a run may not go another way the second time.
SECONDS_SAVED = 1.45e-6, 1.5e-10
"""By compiling, at each step: of each operation, and of each number that operations write (without
convolutions, which are torch's own either way and take most of the time)."""

SECONDS_SPENT = 2.5, 0.011
"""On compiling: once, and on each operation of parts that are not equal."""


def pays_from(graph: fx.GraphModule) -> int:
    """Steps from which on compiling the graph of a step saves more time than it takes."""
    nodes = [n for n in graph.graph.nodes if _counts(n)]
    values = [v for n in nodes if isinstance(v := value_of(n), Tensor)]
    each, number = SECONDS_SAVED
    saved = each * len(nodes)
    if not any("convolution" in str(n.target) for n in nodes):
        saved += number * sum(v.numel() for v in values)
    distinct = sum(map(_counts, (n for region in regions_of(graph) for n in region.parts[0])))
    once, more = SECONDS_SPENT
    return math.ceil((once + more * distinct) / saved) if saved else 0


def _counts(node: fx.Node) -> bool:
    return node.op == "call_function" and not is_view(node)
