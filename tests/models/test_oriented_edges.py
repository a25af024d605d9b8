"""Fixed filters: known answers at a step, and those of a turned image."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from pyroccam.inference import Small, load
from pyroccam.inference.cutting import Mask, cut
from pyroccam.models import networks
from pyroccam.models.networks import OrientedEdges
from pyroccam.models.plain import describe, fill, rebuild, state, torch_only


def test_slopes() -> None:
    """Of an image that rises linearly: proportional to the cosine of the angle between its slope
    and the direction, nothing where that is negative; smoothing keeps a constant in proportion."""
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    slope = 0.4
    image = math.cos(slope) * columns + math.sin(slope) * rows
    found = OrientedEdges(1, directions=7, sigma=1.5)(image[None, None])[0, 1:, 12, 12]
    angles = 2.0 * math.pi * torch.arange(7) / 7
    expected = torch.cos(angles - slope).clamp(min=0.0)
    torch.testing.assert_close(found / found.max(), expected / expected.max())
    smooth = OrientedEdges(1, sigma=1.5)(
        torch.stack([torch.ones(9, 9), 2.0 * torch.ones(9, 9)])[:, None]
    )
    torch.testing.assert_close(smooth[1], 2.0 * smooth[0])
    assert smooth[0, 0].std() < 1e-6 < smooth[0, 0].mean()
    assert smooth[0, 1:].abs().max() < 1e-6


def test_turned() -> None:
    """Of an image that is turned by a quarter the answers are turned, each in another direction."""
    edges = OrientedEdges(2)
    x = torch.rand(3, 2, 12, 12)
    turned = edges(torch.rot90(x, 1, (-1, -2)))
    expected = torch.rot90(edges(x), 1, (-1, -2)).split([2, 8, 8], 1)
    moved = [one.roll(2, 1) for one in expected[1:]]
    torch.testing.assert_close(turned, torch.cat([expected[0], *moved], 1))


def test_file() -> None:
    """A network is described by the words of its filters, without their numbers."""
    net = networks.small_cnn((1, 28, 28), 10)
    words = describe(net)
    tensors = state(net, words)
    assert sum(t.numel() for t in tensors.values()) == sum(p.numel() for p in net.parameters())
    again = rebuild(words)
    fill(again, words, tensors)
    x = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(again(x), net(x))


def test_cut(tmp_path: Path) -> None:
    """A filter behind the edges goes, and what is left is in a file as before."""
    net = networks.small_cnn((1, 28, 28), 10)
    kept = torch.arange(8) != 3
    small, _ = cut(net, torch.rand(2, 1, 28, 28), {"2": Mask(outputs=kept)})
    with torch.no_grad():
        net[2].weight[3], net[2].bias[3] = 0.0, 0.0
    x = torch.rand(2, 1, 28, 28)
    whole = Small(torch_only(small, x))
    assert not whole.undescribed
    torch.testing.assert_close(load(whole.save(tmp_path / "small.pocc"))(x), net(x))
    assert sum(p.numel() for p in small.parameters()) == 1946 - 82 - 160
