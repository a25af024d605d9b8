"""How a sound file is made unsound: its bytes, its JSON, its tensors, its place in a folder."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

__all__ = ["ODD", "mutated_bytes", "mutated_json", "mutated_tensors", "replace_by_no_file"]

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 1.5, -0.0, 1e308, 10**18, 10**30, -(2**63), "", "x", "nan",
    "-1", "[/x]", "[bold red]", "\ud800", "\x00", "\x1b[31m", "\u202e", "../../x", "/dev/zero",
    "__class__", "a" * 10_000, [], [1], [[]], [None], [-1, 10**9], {}, {"": 0}, {"node": "x"},
    {"tuple": [1, 2]}, {"float": "inf"}, "float64", "int64", "Linear", "relu", "mlp", "spirals",
    "a\nb", "%s{}", "1e400", 9007199254740993,
]  # fmt: skip
"""Values that stand where others should."""


def mutated_bytes(rng: random.Random, content: bytes, other: bytes) -> tuple[str, bytes]:
    """A damaged copy, and what was done to it.

    Arguments:
        rng: decides.
        content: of the sound file.
        other: of another file.
    """
    size = len(content)
    at, until = sorted(rng.choices(range(size + 1), k=2))
    piece = content[at:until][:5000]
    changed = bytearray(content)
    kind = rng.choice(
        ["cut", "empty", "flip 1", "flip 50", "zero", "double", "move", "insert", "append",
         "other file", "splice"]
    )  # fmt: skip
    if kind == "cut":
        return f"cut after {at} of {size} bytes", content[:at]
    if kind == "empty" or not size:
        return "empty", b""
    if kind.startswith("flip"):
        for _ in range(int(kind[5:])):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        return f"{kind} bits", bytes(changed)
    if kind == "zero":
        changed[at:until] = bytes(until - at)
        return f"bytes {at} to {until} are zero", bytes(changed)
    if kind == "double":
        return f"bytes {at} to {until} twice", content[:until] + piece + content[until:]
    if kind == "move":
        return f"bytes {at} to {until} at the end", content[:at] + content[until:] + piece
    if kind == "insert":
        return f"random bytes at {at}", content[:at] + rng.randbytes(9) + content[at:]
    if kind == "append":
        return "random bytes at the end", content + rng.randbytes(9)
    if kind == "splice":
        return f"another file from byte {at} on", content[:at] + other[at:]
    return "another file", other


_TEXTS = ["NaN", "-Infinity", "1e999", "1" * 5000, '"\\ud800"', "[" * 100_000, '{"a":1,"a":2}',
          "'x'", "0x1", '"\t"', "[" * 300 + "]" * 300]  # fmt: skip


def mutated_json(rng: random.Random, content: bytes) -> tuple[str, bytes]:
    """A copy of a JSON text in which a few values or names are others, and what was done."""
    value = json.loads(content)
    if rng.random() < 0.15:
        return _with_text(rng, value)
    said = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        said.append(_change(rng, value))
        if said[-1].startswith("deep"):
            break  # deeper, and it could not be written
    return "; ".join(said), json.dumps(value, indent=2).encode()


def _places(value: Any, path: str = "") -> list[tuple[Any, Any, str]]:
    """Everything inside, as (container, key, path)."""
    found: list[tuple[Any, Any, str]] = []
    if not isinstance(value, dict | list):
        return found
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        found.append((value, key, f"{path}/{key}"))
        found += _places(value[key], f"{path}/{key}")
    return found


def _change(rng: random.Random, value: Any) -> str:
    places = _places(value)
    if not places:
        return "nothing left"
    inside, key, path = rng.choice(places)
    kind = rng.choice(["odd", "odd", "odd", "delete", "rename", "swap", "repeat", "deep", "number"])
    if kind == "delete":
        del inside[key]
    elif kind == "rename" and isinstance(inside, dict):
        inside[str(rng.choice(ODD))] = inside.pop(key)
    elif kind == "swap":
        other, name, _ = rng.choice(places)
        inside[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(inside[key])
    elif kind == "repeat" and isinstance(inside, list):
        inside += copy.deepcopy(inside) * rng.choice([1, 300])
    elif kind == "deep":
        for _ in range(rng.choice([1, 50, 300])):
            inside[key] = [inside[key]]
    elif kind == "number" and isinstance(inside[key], int | float):
        inside[key] = inside[key] * rng.choice([-1, 2, 10**6, 10**15]) + rng.choice([0, 1, 0.5])
    else:
        kind = "odd"
        inside[key] = copy.deepcopy(rng.choice(ODD))
    return f"{kind} at {path}"


def _with_text(rng: random.Random, value: Any) -> tuple[str, bytes]:
    """Text that no JSON writer writes, at some place."""
    text = rng.choice(_TEXTS)
    places = _places(value)
    if not places:
        return f"{text[:20]} alone", text.encode()
    inside, key, path = rng.choice(places)
    inside[key] = "@here@"
    said = f"{text[:20]} at {path}"
    return said, json.dumps(value).replace('"@here@"', text).encode()


def mutated_tensors(rng: random.Random, content: bytes) -> tuple[str, bytes]:
    """A sound safetensors file whose tensors are others, and what was done."""
    tensors = load(content)
    name = rng.choice(sorted(tensors))
    old = tensors[name]
    kind = rng.choice(["drop", "more", "shape", "flat", "dtype", "nan", "rename", "swap", "none"])
    if kind == "drop":
        del tensors[name]
    elif kind == "more":
        tensors[str(rng.choice(["x", "", "[/x]", "a.b", "\x00"]))] = torch.zeros(3)
    elif kind == "shape":
        tensors[name] = torch.zeros(*old.shape, rng.choice([0, 1, 2]))
    elif kind == "flat":
        tensors[name] = old.flatten()[:-1].clone()
    elif kind == "dtype":
        kinds = [torch.int64, torch.float16, torch.float64, torch.bool, torch.uint8, torch.bfloat16]
        tensors[name] = old.to(rng.choice(kinds))
    elif kind == "nan":
        tensors[name] = torch.full_like(old.float(), rng.choice([float("nan"), float("inf"), 1e38]))
    elif kind == "rename":
        tensors[name + "x"] = tensors.pop(name)
    elif kind == "swap":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other].clone(), old.clone()
    else:
        tensors = {}
    return f"tensors: {kind} at {name}", save(tensors)


def replace_by_no_file(rng: random.Random, path: Path) -> str:
    """A file is replaced by something that is none, in place; what it is."""
    kind = rng.choice(
        ["missing", "directory", "link to nothing", "link to itself", "link elsewhere",
         "link without end", "pipe", "no permission"]
    )  # fmt: skip
    elsewhere = path.rename(path.parent.parent / f"elsewhere-{path.name}")
    if kind == "directory":
        path.mkdir()
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    elif kind == "link to itself":
        path.symlink_to(path.name)
    elif kind == "link elsewhere":
        path.symlink_to(elsewhere)
    elif kind == "link without end":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "no permission":
        path.touch()
        path.chmod(0)  # which does not keep root from reading it, but then it is empty
    return kind
