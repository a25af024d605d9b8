"""Train the digits that ``priors.Pretrained`` has by name: a small network that has seen fonts of
handwriting and the digits of scikit-learn, and no image of MNIST.

    python -m experiments.published.written_digits --fonts FOLDER

The folder has files of fonts: ``files/NAME-latin-400-normal.woff2`` of the packages
``@fontsource/NAME`` of npm, as NAME.woff2, for each NAME of the result file, which has their
sha256, too. Each digit is turned, sheared, stretched, bent, made thinner or thicker, brought into
20 x 20 pixels, and centred by its mass in 28 x 28, as MNIST's are said to be.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from pyroccam import data, guides, inference, models
from pyroccam.inference.storage.checkpoint import write_json
from pyroccam.models.priors.pretrained import SHIPPED
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

OUT = Path("experiments/results/certificates/written_digits.json")
SIDE = 64  # of an image before it is brought to 28
INK = 0.15  # from which on a pixel belongs to a digit


def of_fonts(folder: Path) -> tuple[Tensor, Tensor]:
    """Each digit of each font ``(N, 1, 64, 64)``, and which it is."""
    images = []
    for path in sorted(folder.iterdir()):
        font = ImageFont.truetype(path, 56)
        for digit in range(10):
            image = Image.new("L", (SIDE, SIDE))
            ImageDraw.Draw(image).text((32, 32), str(digit), font=font, fill=255, anchor="mm")
            images.append(np.asarray(image))
    x = torch.from_numpy(np.stack(images))[:, None] / 255.0
    return x, torch.arange(10).repeat(len(x) // 10)


def of_persons() -> tuple[Tensor, Tensor]:
    """The 1,797 digits of scikit-learn, of 8 x 8 pixels, enlarged, with sharper borders."""
    found = load_digits()
    x = torch.from_numpy(found.images).float()[:, None] / 16.0
    x = F.interpolate(F.pad(x, [2] * 4), (SIDE, SIDE), mode="bicubic")
    return ((x - 0.35) / 0.3).clamp(0.0, 1.0), torch.from_numpy(found.target)


def moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image ``(B, 1, 64, 64)`` in another way, as ``(B, 1, 28, 28)``."""

    def drawn(*shape: int) -> Tensor:
        return 2.0 * torch.rand(*shape, generator=generator) - 1.0

    count = len(x)
    kind = torch.randint(5, (count, 1, 1, 1), generator=generator)
    for which, other in enumerate(
        (F.max_pool2d(x, 3, 1, 1), F.max_pool2d(x, 5, 1, 2), -F.max_pool2d(-x, 3, 1, 1))
    ):
        x = torch.where(kind == which, other, x)
    angle, shear = 0.25 * drawn(count), 0.35 * drawn(count)
    wide, high = torch.exp(0.3 * drawn(count)), torch.exp(0.12 * drawn(count))
    columns = angle.cos() * wide, shear - angle.sin() * high, torch.zeros(count)
    rows = angle.sin() * wide, angle.cos() * high, torch.zeros(count)
    turn = torch.stack([torch.stack(columns, -1), torch.stack(rows, -1)], 1)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    bend = F.interpolate(0.1 * drawn(count, 2, 5, 5), (SIDE, SIDE), mode="bicubic")
    return centred(F.grid_sample(x, grid + bend.permute(0, 2, 3, 1), align_corners=False))


def centred(x: Tensor) -> Tensor:
    """Digits ``(B, 1, S, S)`` in a box of 20 x 20, its mass in the middle of 28 x 28."""
    inked = x[:, 0] > INK
    centre, sides = [], []
    for dim in (1, 2):  # columns, then rows
        line = inked.any(dim).float()
        first = line.argmax(1)
        last = x.shape[-1] - 1 - line.flip(1).argmax(1)
        centre.append((first + last + 1) / x.shape[-1] - 1.0)
        sides.append((last + 1 - first) / x.shape[-1])
    zoom = torch.maximum(*sides) * 28.0 / 20.0
    fine = _shifted(x, torch.stack(centre, 1), zoom, 56)
    small = F.avg_pool2d(fine, 2)
    at, mass = torch.arange(28) - 13.5, small.sum((1, 2, 3)).clamp_min(1e-6)
    off = [(small.sum(dim)[:, 0] * at).sum(1) / mass for dim in (2, 3)]
    return _shifted(small, torch.stack(off, 1).round() / 14.0, torch.ones(len(x)), 28).clamp(0, 1)


def _shifted(x: Tensor, centre: Tensor, zoom: Tensor, side: int) -> Tensor:
    """What lies around ``centre`` ``(B, 2)``, in halves of the image, as ``side`` pixels."""
    theta = torch.cat([zoom[:, None, None] * torch.eye(2), centre[:, :, None]], 2)
    grid = F.affine_grid(theta, [len(x), 1, side, side], align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def seen(folder: Path, count: int, seed: int = 0) -> data.Dataset:
    """So many images, of fonts three quarters, and the last tenth for a look."""
    generator = torch.Generator().manual_seed(seed)
    xs, ys = [], []
    for share, (x, y) in ((0.75, of_fonts(folder)), (0.25, of_persons())):
        which = torch.randint(len(x), (round(share * count),), generator=generator)
        xs += [moved(x[part], generator) for part in which.split(4000)]
        ys.append(y[which])
    order = torch.randperm(count, generator=generator)
    x, y = torch.cat(xs)[order], torch.cat(ys)[order]
    first = count - count // 10
    return data.Dataset.from_tensors(
        x[:first], y[:first], x[first:], y[first:], val_fraction=0.0, standardise=False,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("--images", type=int, default=120_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--data-root")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = seen(given.fonts, given.images)
    torch.manual_seed(0)
    net = models.networks.small_cnn(rows.input_shape, 10)
    model = models.PlainNetwork(net, rows)
    fit = inference.fit(
        model, guides.Deterministic(model), rows, epochs=given.epochs, batch_size=256, lr=3e-3,
        weight_decay=0.02, progress=False, seed=0,
    )  # fmt: skip
    net = fit.model.part("net")
    np.savez(SHIPPED["digits"], **{name: t.numpy() for name, t in net.state_dict().items()})
    mnist = data.load("mnist", val_fraction=0.0, standardise=False, data_root=given.data_root)
    with torch.no_grad():
        found = torch.cat([net(part) for part in mnist.x_train.split(5000)]).argmax(1)
    fonts = {p.stem: hashlib.sha256(p.read_bytes()).hexdigest() for p in given.fonts.iterdir()}
    write_json(given.out, {
        "sha256": models.priors.Pretrained.shipped().sha256,
        "images": given.images, "epochs": given.epochs,
        "wrong of the others": 1.0 - fit.evaluate()["accuracy"],
        "wrong of MNIST's training rows": float((found != mnist.y_train).double().mean()),
        "fonts": dict(sorted(fonts.items())),
    })  # fmt: skip


if __name__ == "__main__":
    main()
