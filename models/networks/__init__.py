"""Ready networks, and the parts that networks of one's own are made of."""

from . import primitives
from .discrete import primitive_sizes
from .graphs import cell_graph, perceptron_graph
from .plain import lenet_5_caffe, lenet_300_100, perceptron, torchvision_resnet, vgg
from .ready import NETWORKS as NETWORKS
from .ready import Residual, build, residual_conv, residual_mlp, resnet, take_apart
from .stack import match_adapters

__all__ = [
    "Residual",
    "build",
    "cell_graph",
    "lenet_5_caffe",
    "lenet_300_100",
    "match_adapters",
    "perceptron",
    "perceptron_graph",
    "primitive_sizes",
    "primitives",
    "residual_conv",
    "residual_mlp",
    "resnet",
    "take_apart",
    "torchvision_resnet",
    "vgg",
]
