"""The record of a run's data, and how other data differ from that."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from .errors import DataError, listed, shown

if TYPE_CHECKING:
    from .dataset import Dataset

_CLOSE = 1e-6
"""Means may differ by this share of a standard deviation: machines add in another order."""

_MOST = 8
"""Differences of one part that are named."""

_SPLIT = ("seed", "split", "split_by", "n_train", "n_test", "val", "test")
"""Options that choose rows, beside all shares of them."""


def record(data: Dataset) -> dict[str, Any]:
    """The record that a run keeps of its data, JSON-able: see :meth:`Dataset.differences`."""
    scaling = {name: value.tolist() for name, value in data.scaling._asdict().items()}
    chosen = {k: v for k, v in data.source.items() if k in _SPLIT or k.endswith("_fraction")}
    return {
        "digest": data.digest,
        "task": data.task,
        "columns": list(data.columns),
        "target": data.target,
        "classes": data.classes,
        "class_names": list(data.class_names),
        "input_shape": list(data.input_shape),
        "rows": data.counts,
        **scaling,
        "split": chosen,
        **({"categories": data.categories} if data.categories else {}),
        **({} if data.fields is None else {"fields": data.fields.to_json()}),
    }


def differences(data: Dataset, remembered: Any) -> list[str]:
    """How this data set differs from the :meth:`Dataset.record` of another.

    Returns:
        A phrase for each difference; none if a network trained on one fits the other, and the rows
        are the same.

    Raises:
        DataError: for what is no record.
    """
    if not isinstance(remembered, dict):
        raise DataError("the record of the data is damaged", "what Dataset.record() gives")
    now, found = record(data), list[str]()
    for part in {**now, **remembered}:
        new, old = _items(now.get(part), data, part), _items(remembered.get(part), data, part)
        if part == "digest" and new != old:
            found.append("the rows are not the same: values changed, or their order")
        elif len(new) != len(old):
            odd = {*map(str, new.values())} ^ {*map(str, old.values())}
            both = f"{part} has {len(new)} values, had {len(old)}"
            found.append(f"{both}; in one alone: {listed(sorted(odd), 4)}")
        else:
            sizes = zip({**new, **old}, chain(_sizes(data, part), repeat(0.0)), strict=False)
            off = [k for k, size in sizes if not _same(new.get(k), old.get(k), size)]
            found += [f"{k} is {shown(new.get(k))}, was {shown(old.get(k))}" for k in off[:_MOST]]
    return found


def _items(value: Any, data: Dataset, part: str) -> dict[str, Any]:
    """What is compared of a part of a record, by its name in a message."""
    if isinstance(value, dict):
        return {f"{part} {key}": one for key, one in value.items()}
    if not isinstance(value, list):
        return {part: value}
    named = part[0] == "x" and len(data.columns) == len(value)
    names = data.columns if named else range(len(value))
    return {f"{part} {name}": one for name, one in zip(names, value, strict=True)}


def _sizes(data: Dataset, part: str) -> list[float]:
    """Of each mean and standard deviation the numbers among which a difference is rounding."""
    found = data.scaling._asdict()
    if part not in found:
        return []
    mean, std = (found[f"{part[0]}_{name}"].abs() for name in ("mean", "std"))
    return list((_CLOSE * (std + 1e-6 * mean)).tolist())


def _same(new: Any, old: Any, size: float) -> bool:
    return new == old or bool(size and isinstance(old, float) and abs(new - old) <= size)
