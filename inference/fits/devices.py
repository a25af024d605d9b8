"""Which device a person asks for, and whether it is there."""

from __future__ import annotations

import re

import torch

__all__ = ["pick_device"]


def pick_device(name: object) -> torch.device:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:<n>`` (or a ``torch.device`` of these) to a device that
    is there.

    Raises:
        ValueError: if it is not, or is of another kind.
    """
    asked = str(name) if isinstance(name, torch.device) else name
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda" if count else "cpu")
    if asked == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(0|[1-9]\d{0,3}))?", asked) if isinstance(asked, str) else None
    if match is None:
        raise ValueError(f"Unknown device {name!r}: use auto, cpu, cuda or cuda:<n>.")
    if not count:
        raise ValueError(f"device={asked!r}, but torch finds no CUDA here. Use auto or cpu.")
    if match[1] is not None and int(match[1]) >= count:
        here = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ValueError(f"device={asked!r}, but there is only {here} here. Use auto, or that.")
    return torch.device(str(asked))
