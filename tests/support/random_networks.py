"""Strategies of hypothesis: small networks and JSON."""

import torch
from hypothesis import strategies as st
from torch import nn

numbers = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-3, 70)
)
scalars = st.one_of(
    st.none(), st.booleans(), numbers, st.text(st.characters(exclude_categories=["Cs"]))
)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def networks(draw):
    """A network in evaluation mode whose every number was moved, and inputs."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    parts = []
    if draw(st.booleans()):
        channels, kernel = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        x = torch.randn(2, draw(st.integers(1, 2)), 6, 5)
        parts.append(nn.Conv2d(x.shape[1], channels, kernel, padding=draw(st.integers(0, 1))))
        parts.append(draw(st.sampled_from([nn.BatchNorm2d(channels), nn.MaxPool2d(2), nn.GELU()])))
        parts.append(nn.Flatten())
        width = nn.Sequential(*parts).eval()(x).shape[1]
    else:
        width = draw(st.integers(1, 6))
        x = torch.randn(2, width)
    for _ in range(draw(st.integers(1, 3))):
        after = draw(st.integers(1, 7))
        parts.append(nn.Linear(width, after, bias=draw(st.booleans())))
        parts.append(
            draw(
                st.sampled_from(
                    [nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.3), nn.BatchNorm1d(after), nn.Identity(),
                     nn.LayerNorm(after), nn.PReLU(after), nn.Softmax(1), nn.Hardtanh(-0.1, 0.7)]
                )
            )
        )  # fmt: skip
        width = after
    net = nn.Sequential(*parts).eval()
    sparse = draw(st.booleans())
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.is_floating_point():
                tensor.mul_(1 + torch.rand_like(tensor)).add_(0.01)
                if sparse and tensor.dim() > 1:
                    tensor.mul_(torch.rand_like(tensor) < 0.5)
    if draw(st.booleans()):
        net, x = net.double(), x.double()
    return net, x
