"""Ready networks, and the parts that networks of one's own are made of."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from . import primitives
    from .closed_form import PRIOR_ROWS, ClosedFormLinear, closed_form_of, with_closed_form
    from .discrete import discretised, filled, graphs_in, primitive_sizes, structures
    from .dropout import with_dropout
    from .folders import SentenceEncoder, classes_in, is_of_transformers, pretrained, quiet
    from .graphs import GRAPHS, cell_graph, perceptron_graph
    from .identifiers import distinct
    from .normalisation import (
        DepthBatchNorm,
        hold_statistics,
        with_held_statistics,
        without_statistics,
    )
    from .oriented_edges import OrientedEdges
    from .plain import (
        PLAIN,
        lenet_5_caffe,
        lenet_300_100,
        perceptron,
        small_cnn,
        torchvision_resnet,
        vgg,
    )
    from .ready import NETWORKS, Residual, build, residual_conv, residual_mlp, resnet, take_apart
    from .stack import DepthStack, at_depth, match_adapters
    from .structure_graph import Gammas, StructureGraph

__all__ = [
    "ClosedFormLinear",
    "OrientedEdges",
    "Residual",
    "build",
    "cell_graph",
    "lenet_5_caffe",
    "lenet_300_100",
    "match_adapters",
    "perceptron",
    "perceptron_graph",
    "pretrained",
    "primitive_sizes",
    "primitives",
    "residual_conv",
    "residual_mlp",
    "resnet",
    "small_cnn",
    "take_apart",
    "torchvision_resnet",
    "vgg",
]

__getattr__, __dir__ = lazy_names(__name__)
