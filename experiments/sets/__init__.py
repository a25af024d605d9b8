"""Data sets that only experiments use: `--data experiments.sets:wisdm_series` in a command."""

from .mosaics import cifar10_part
from .phone import wisdm_windows
from .toys import polynomial, regimes, spiral_sides
from .watch import wisdm_series

__all__ = [
    "cifar10_part", "polynomial", "regimes", "spiral_sides", "wisdm_series", "wisdm_windows",
]  # fmt: skip
