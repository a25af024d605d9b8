"""The runs of a sweep: the product of lists of settings, each with a folder named by them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...data import PyroccamError
from .. import RunRequest, parse_settings
from ..runs import Budget, RunConfig

MOST = 10_000  # runs
_LONGEST = 100  # characters of the name of a folder
_WHOLE = ("method", "data", "network", "data_root", "budget")  # of a run, beside its settings
_PLAIN = "._+-[],"  # characters of a name, beside letters and digits
_FILES = (".csv", ".npz")


def with_settings(request: RunRequest, settings: Mapping[str, Any]) -> RunRequest:
    """The same, with some parts and settings in place of its own."""
    own = {name: value for name, value in settings.items() if name in _WHOLE}
    sets = {name: value for name, value in settings.items() if name not in _WHOLE}
    return replace(request, **own, set_={**request.set_, **sets})


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        cell: folder of its settings, in that of the sweep; in it, each seed has one.
        seed: of data, weights and training.
        request: all the rest.
        swept: what differs between runs, the seed left out, as it is in this one.
    """

    cell: str
    seed: int
    request: RunRequest
    swept: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its folder in that of the sweep."""
        return f"{self.cell}/seed-{self.seed}"

    @property
    def words(self) -> list[str]:
        """The arguments of ``pyroccam`` that train it."""
        request = self.request
        parts = {name: getattr(request, name) for name in _WHOLE[1:]}
        given = [f"--{n.replace('_', '-')}={v}" for n, v in parts.items() if v is not None]
        sets = [f"--set={name}={json.dumps(value)}" for name, value in request.set_.items()]
        return ["fit", request.method, *given, *sets, f"--seed={self.seed}"]

    def check(self) -> None:
        """Resolve it, so that what cannot be run is said before training."""
        try:
            if self.request.budget is not None:
                Budget.parse(self.request.budget)
            RunConfig.resolve(self.request, self.seed)
        except PyroccamError as error:
            raise PyroccamError(f"Run {self.name}: {error}") from error
        except Exception as error:
            error.add_note(f"That is of the run {self.name}.")
            raise


def trials_of(request: RunRequest, lists: Mapping[str, Sequence[Any]]) -> list[Trial]:
    """The runs of a product of lists."""
    for key, values in lists.items():
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            raise PyroccamError(f"--sweep {key} has a value twice")
        if key in request.set_:
            raise PyroccamError(f"{key} is both set and swept: leave one of them out")
    seeds = lists.get("seed", [0])
    if not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise PyroccamError(f"--sweep seed has {seeds}", "whole numbers from 0 on")
    if math.prod(map(len, lists.values())) > MOST:
        raise PyroccamError("the sweep has too many runs", f"at most {MOST:,}")
    others = {key: values for key, values in lists.items() if key != "seed"}
    trials = []
    for values in itertools.product(*others.values()):
        swept = dict(zip(others, values, strict=True))
        own = with_settings(request, swept)
        cell = _name(swept) or _name({own.method: own.data}, "-")
        trials += [Trial(cell, seed, own, swept) for seed in seeds]
    return trials


def cells_of(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    """The runs of each cell, which differ in the seed alone."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.cell, []).append(trial)
    return found


def _name(settings: Mapping[str, Any], equals: str = "=") -> str:
    """The name of a folder by settings. Characters that a file system may not have are replaced,
    and a digest of the settings then keeps the name apart from others."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for key, value in settings.items()
    }
    exact = ",".join(f"{key}{equals}{text}" for key, text in texts.items())
    shown = ",".join(f"{key}{equals}{_short(text)}" for key, text in texts.items())
    kept = "".join(c if (c.isalnum() and c.isascii()) or c in _PLAIN + "=" else "-" for c in shown)
    if kept == exact and len(kept) <= _LONGEST:
        return kept
    digest = hashlib.blake2b(exact.encode("utf-8", "backslashreplace"), digest_size=3).hexdigest()
    return f"{kept[:_LONGEST]}-{digest}"


def _short(text: str) -> str:
    """A file or a folder by its name, without where it is."""
    return Path(text).stem if Path(text).is_absolute() or text.lower().endswith(_FILES) else text


def parse_lists(pairs: Iterable[str]) -> dict[str, list[Any]]:
    """``["lr=0.1,0.01", "hidden=[8],[8,4]"]`` to lists of values, which are as in JSON."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key or not text:
            raise PyroccamError(f"--sweep {pair!r}", "KEY=VALUE,VALUE,...", "--sweep lr=0.1,0.01")
        if key in found:
            raise PyroccamError(f"--sweep {key} was given twice")
        found[key] = [parse_settings([f"{key}={part}"])[key] for part in _parts(text)]
    return found


def _parts(text: str) -> list[str]:
    """A text at its commas, but for those within brackets or quotes."""
    parts, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == '"'
        depth += 0 if quoted else (c in "[{") - (c in "]}")
        if c == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    return parts
