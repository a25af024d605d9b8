"""Images in folders, one for each class, as rows of bytes.

It takes torchvision seconds to be imported, so that is done where there are images.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from torch import Tensor

from .. import DataError, ask, reading

MOST = 4096
"""Pixels of a side to which images are brought, at most."""


class Images:
    """Images of a folder that has a folder for each class, in colour: rows (3, height, width) of
    bytes, and the number of the class in the alphabetical order of their names, `classes`.

    They are brought to `size` pixels by their shorter side, and their middle is taken; or else have
    to be of one size.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path, self.name, self.size = path, path.name, size
        with reading(path, "a folder of images"):
            self.classes, self.samples = _found(path)
        self._shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        from torchvision.transforms.v2 import functional

        path, label = self.samples[place]
        image = _decoded(Path(path))
        if self.size is not None:
            short, long = sorted(image.shape[1:])
            # a long strip grows; as float numbers, of which bytes are made
            ask(15.0 * self.size * (self.size * long / short), f"{path}, brought to {self.size}")
            image = functional.resize(image, [self.size], antialias=True)
            image = functional.center_crop(image, [self.size, self.size])
        elif self._shape is None:
            first = image if place == 0 else _decoded(Path(self.samples[0][0]))
            self._shape = tuple(first.shape)
        if self.size is None and tuple(image.shape) != self._shape:
            found, expected = tuple(image.shape), f"{self._shape}, as the first one"
            raise DataError(f"{path} is an image of shape {found}", expected)
        return image, label


def is_image_folder(path: Path) -> bool:
    """True for a folder of which most folders have images in them: a picture that lies about
    somewhere makes no set of a disk, all of which would be read."""
    if not path.is_dir():
        return False
    inner = [one for one in path.iterdir() if one.is_dir() and not _is_hidden(one.name)]
    return 2 * sum(map(_has_images, inner)) > len(inner)


def _has_images(folder: Path) -> bool:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    try:
        return any(file.suffix.lower() in IMG_EXTENSIONS for file in folder.iterdir())
    except OSError:  # what may not be looked into
        return False


def _found(path: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Names of the classes, and files with the numbers of theirs; without hidden folders, which
    programs leave there."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, ImageFolder

    names = sorted(one.name for one in path.iterdir() if one.is_dir() and not _is_hidden(one.name))
    numbers = {name: number for number, name in enumerate(names)}
    return names, ImageFolder.make_dataset(str(path), numbers, extensions=IMG_EXTENSIONS)


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _decoded(path: Path) -> Tensor:
    """An image (3, height, width) of bytes."""
    from torchvision.transforms.v2 import functional

    with reading(path, "an image"), Image.open(path) as image:
        if image.mode == "F" or image.mode.startswith("I"):  # of which 255 and more would be one
            raise DataError(f"{path} is an image of mode {image.mode}", "8 bits a channel")
        ask(7.0 * image.width * image.height, str(path))  # the pixels, in colour, and a copy
        found: Tensor = functional.pil_to_tensor(image.convert("RGB"))
    return found
