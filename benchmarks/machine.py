"""The machine on which a time depends: processor, accelerator, threads, versions."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch
from pyroccam.inference.storage.checkpoint import versions

__all__ = ["describe", "folder_name", "peak"]


def describe(device: torch.device) -> dict[str, Any]:
    """Names and numbers for the result file."""
    return {
        "device": device_name(device),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "versions": versions("bayesian-torch", "triton"),
    }


def peak(device: torch.device, size: int = 1024, rounds: int = 10) -> float:
    """FLOP/s of a product of two square matrices in single precision, the best of several rounds.

    What a network reaches of it is its "model FLOPs utilisation".
    """
    one = torch.randn(size, size, device=device)
    seconds = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        one @ one
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return 2 * size**3 / min(seconds[1:])


def device_name(device: torch.device) -> str:
    """``cpu``, or the name of the accelerator."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def folder_name(device: torch.device) -> str:
    """The device as the name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")


def cpu_name() -> str:
    """The processor's model."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()
