"""Plain networks of many shapes, with numbers that differ from fresh ones."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def network(forward, name="Net", **parts):
    """A module of a class of that name, with those parts and what ``forward`` makes of them."""
    net = type(name, (nn.Module,), {"forward": forward})()
    for part, value in parts.items():
        setattr(net, part, value)
    return net


def lenet_300_100():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


def lenet_5_caffe(conv1=20, conv2=50, hidden=500):
    return nn.Sequential(
        nn.Conv2d(1, conv1, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(conv1, conv2, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * conv2, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )  # fmt: skip


def vgg(widths=(8, 8, 12, 16)):
    parts: list[nn.Module] = []
    before = 3
    for width in widths:
        parts += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        parts += [nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.3)]
        before = width
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(4 * before, 10), nn.LogSoftmax(dim=1))


class Skips(nn.Module):
    """Skip connections, cat, indices, shared and direct tensors, a constant, nested names."""

    index: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])
        self.stages[2][0].weight = self.stages[0][0].weight
        self.heads = nn.ModuleDict({"main": nn.Linear(12, 4), "side": nn.Linear(6, 4)})
        self.gain = nn.Parameter(torch.randn(6))
        self.register_buffer("index", torch.tensor([2, 0, 1, 5, 4, 3]), persistent=False)

    def forward(self, x, target=None, power=2):
        a = x.view(x.shape[0], -1).index_select(1, self.index)
        for stage in self.stages:
            a = a + self.gain * stage(a)
        both = torch.cat([a, F.relu(a[:, :6]) ** power], dim=1)
        main = self.heads["main"](both)
        side = F.linear(a, self.heads["side"].weight) - torch.tensor([0.5, 1.0, 2.0, float("inf")])
        if target is not None:
            main = main - target
        return {"main": main, "all": (side, torch.stack([main, main]).mean(0), a.size(1))}


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=10)


NETWORKS = {
    "lenet_300_100": (lenet_300_100, (1, 28, 28)),
    "lenet_5_caffe": (lenet_5_caffe, (1, 28, 28)),
    "vgg": (vgg, (3, 32, 32)),
    "resnet18": (resnet18, (3, 32, 32)),
    "skips": (Skips, (2, 3)),
}


def trained(name):
    """A network in evaluation mode whose every number was moved, and three inputs."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = build()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.1 * torch.rand_like(tensor)).add_(0.01 * torch.rand_like(tensor))
    return net.eval(), torch.randn(3, *shape)


def reordered(net):
    """The network itself, whose modules have their tensors the other way round."""
    for module in net.modules():
        for held in (module._parameters, module._buffers):
            for name in reversed([*held]):
                held[name] = held.pop(name)
    return net


def outputs(net, x):
    """All tensors and numbers a network gives, in one flat list."""
    from torch.utils._pytree import tree_leaves

    with torch.no_grad():
        return tree_leaves(net(x))


def same(a, b):
    return len(a) == len(b) and all(
        torch.equal(p, q) if isinstance(p, Tensor) else p == q for p, q in zip(a, b, strict=True)
    )
