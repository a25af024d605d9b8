"""Networks to cut, masks at random, and what equality means."""

import torch
from plain import lenet_5_caffe, lenet_300_100, network, vgg
from pyroccam.inference.cutting import Mask, cut, masked
from pyroccam.models.plain import layer_kind
from torch import nn
from torch.nn import functional as F


class WrittenOut(nn.Module):
    """LeNet-5 as many write it, with the size of the flatten in ``forward``."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.fc1, self.fc2 = nn.Linear(800, 500), nn.Linear(500, 10)
        self.drop = nn.Dropout2d()

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2), inplace=True)
        x = x.view(-1, 800)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class Step(nn.Module):
    """A residual block with normalisation, as in torchvision."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if before != after:
            down = nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = nn.Sequential(down, nn.BatchNorm2d(after))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)


def residual():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), Step(12, 12, 1), Step(12, 20, 2), Step(20, 20, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 10),
    )  # fmt: skip


class Mixed(nn.Module):
    """Concatenation, depthwise and grouped convolutions, means, a gate, a sequence axis."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 6, 3, bias=False)
        self.deep = nn.Conv2d(14, 14, 3, groups=14, bias=False)
        self.gate = nn.Linear(14, 14)
        self.grouped = nn.Conv2d(14, 8, 3, groups=2)
        self.wide, self.last = nn.Linear(5, 5), nn.Linear(8 * 5, 3)

    def forward(self, x):
        x = torch.cat([torch.tanh(self.left(x)), F.leaky_relu(self.right(x))], dim=1)
        x = F.avg_pool2d(self.deep(x), 2)
        x = 0.5 * x + torch.sigmoid(self.gate(x.mean((2, 3))))[..., None, None]
        x = self.wide(self.grouped(x).mean(3))  # (B, 8, 5): mixes positions, not channels
        return self.last(torch.flatten(x, 1))


def transposed():
    """Borders, strides that leave gaps, constants of a normalisation, and one with groups."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 2, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.ConvTranspose2d(12, 11, 3, 2, padding=1, output_padding=1, bias=False),
        nn.BatchNorm2d(11), nn.ReLU(), nn.ConvTranspose2d(11, 10, (3, 2), (3, 1)), nn.Tanh(),
        nn.ConvTranspose2d(10, 8, 2, groups=2), nn.Tanh(), nn.ConvTranspose2d(8, 9, 1),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(9, 5),
    )  # fmt: skip


NETWORKS = {
    "lenet_300_100": (lenet_300_100, (1, 28, 28)),
    "lenet_5": (lenet_5_caffe, (1, 28, 28)),
    "written_out": (WrittenOut, (1, 28, 28)),
    "vgg": (vgg, (3, 32, 32)),
    "residual": (residual, (3, 16, 16)),
    "mixed": (Mixed, (3, 18, 18)),
    "transposed": (transposed, (3, 8, 8)),
}


def made(build, seed=0):
    """In double precision, with statistics and shifts of batch normalisation that matter."""
    torch.manual_seed(seed)
    net = build().double().eval()
    for module in net.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(module.bias, mean=1.0)
            module.bias.data[::4] = -5.0  # ReLU makes some constants zero, which can be cut
        elif isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.weight.data *= 3  # or only the shifts would be left after many layers
    return net


def at_random(net, keep, least=1):
    """Masks on the outputs of convolutions and the inputs of linear layers."""
    masks = {}
    layers = ((n, m) for n, m in net.named_modules() if layer_kind(m) is not None)
    for name, layer in layers:
        side = "inputs" if isinstance(layer, nn.Linear) else "outputs"
        size = layer.in_features if side == "inputs" else layer.out_channels
        kept = torch.rand(size) < keep
        kept[1 : 4 * least : 4] = True  # not those that made() lets ReLU kill
        masks[name] = Mask(**{side: kept})
    return masks


def exactly(cut_net, masked_net, x, tolerance=1e-10):
    with torch.no_grad():
        for scale in (1.0, 10.0):
            found, expected = cut_net(scale * x), masked_net(scale * x)
            assert expected.std(0).min() > 0, "the test needs outputs that depend on the input"
            assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def cut_exactly(net, x, masks):
    """A cut network that computes what the masked one does, and its report."""
    small, report = cut(net, x, masks)
    exactly(small, masked(net, masks), x)
    return small, report


def keep(size, *indices):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(indices)] = True
    return mask


def first(size, kept):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size)[:kept]] = True
    return Mask(inputs=mask)


def block():
    """A residual sum around two convolutions."""

    def forward(net, x):
        x = net.stem(x)
        x = F.relu(x + net.two(F.relu(net.one(x))))
        return net.head(x.mean([-2, -1]))

    return network(
        forward,
        stem=nn.Conv2d(1, 6, 3, padding=1), head=nn.Linear(6, 3),
        one=nn.Conv2d(6, 5, 3, padding=1), two=nn.Conv2d(5, 6, 3, padding=1),
    )  # fmt: skip
