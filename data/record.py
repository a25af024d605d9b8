"""The record of a run's data, and how other data differ from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import DataError, PyroccamError, listed, shown
from .ranges import Finite, Whole, check

if TYPE_CHECKING:
    from .dataset import Dataset

_CLOSE = 1e-6
"""Means may differ by this share of a standard deviation: machines add in another order."""

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
    """How this data set differs from the :meth:`Dataset.record` of another, in plain words.

    Returns:
        A phrase for each difference; none if a network trained on one fits the other, and the rows
        are the same.

    Raises:
        DataError: if the record is damaged.
    """
    _refuse_damage(remembered)
    now, then = record(data), remembered
    found = []
    for name in ("task", "target", "classes"):
        if now[name] != then[name]:
            found.append(f"the {name} is {now[name]!r}, was {shown(then[name])}")
    if now.get("fields") != then.get("fields"):
        found.append(f"the inputs of a row are {data.fields}, were {shown(then.get('fields'))}")
    if now["input_shape"] != then["input_shape"]:
        found.append(f"inputs have the shape {_shape(now)}, had {_shape(then)}")
    found += _of_names("column", now["columns"], then["columns"])
    found += _of_names("class", now["class_names"], then["class_names"])
    if now["rows"] != then["rows"]:
        found.append(f"there are {_counts(now)} rows, were {_counts(then)}")
    if now["digest"] != then["digest"]:
        found.append("the rows are not the same: values changed, or their order")
    for option in sorted({*now["split"], *then["split"]}):
        before, after = then["split"].get(option), now["split"].get(option)
        if before != after:
            found.append(f"{option} is {after!r}, was {shown(before)}")
    return found + _of_scaling(now, then, data.columns)


def _shape(of: dict[str, Any]) -> str:
    return " x ".join(map(str, of["input_shape"][:8]))


def _counts(of: dict[str, Any]) -> str:
    return ", ".join(f"{of['rows'][split]} {split}" for split in ("train", "val", "test"))


def _of_names(what: str, now: list[str], then: list[str]) -> list[str]:
    """Changes of a list of names."""
    if now == then:
        return []
    if sorted(now) == sorted(then):
        pairs = [f"{new!r} stands where {old!r} was" for old, new in _changed(then, now)]
        return [f"the {what} names are in another order: {listed(pairs, 4)}"]
    if len(now) == len(then):
        return [f"the {what} {old!r} is now {new!r}" for old, new in _changed(then, now)[:8]]
    gone, come = ([name for name in a if name not in set(b)] for a, b in ((then, now), (now, then)))
    parts = [f"gone: {listed(gone)}"] if gone else []
    parts += [f"new: {listed(come)}"] if come else []
    return [f"there are {len(now)} {what} names, were {len(then)} ({'; '.join(parts)})"]


def _changed(then: list[str], now: list[str]) -> list[tuple[str, str]]:
    return [(old, new) for old, new in zip(then, now, strict=True) if old != new]


def _of_scaling(now: dict[str, Any], then: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """Names of what differs: means or standard deviations that differ by more than rounding."""
    found = []
    for part, what in (("x", "inputs"), ("y", "targets")):
        means, stds = ((now[f"{part}_{s}"], then[f"{part}_{s}"]) for s in ("mean", "std"))
        if any(len(a) != len(b) for a, b in (means, stds)) or len(means[1]) != len(stds[1]):
            found.append(f"the scaling of {what} has {len(means[0])} values, had {len(means[1])}")
            continue
        rows = zip(*means, *stds, strict=True)
        moved = [k for k, row in enumerate(rows) if not _same_scale(*row)]
        if moved:
            named = part == "x" and len(columns) == len(means[0])
            names = [repr(columns[k]) if named else k for k in moved]
            found.append(f"{what} are scaled otherwise: {listed(names)}")
    return found


def _same_scale(mean: float, mean_then: float, std: float, std_then: float) -> bool:
    size = abs(std_then) + 1e-6 * abs(mean_then)
    return abs(mean - mean_then) <= _CLOSE * size and abs(std - std_then) <= _CLOSE * size


_KINDS: dict[str, Any] = {
    "digest": str,
    "task": str,
    "columns": Sequence[str],
    "target": str,
    "classes": Whole | None,
    "class_names": Sequence[str],
    "input_shape": Sequence[Whole],
    "rows": Mapping[str, Whole],
    "x_mean": Sequence[Finite],
    "x_std": Sequence[Finite],
    "y_mean": Sequence[Finite],
    "y_std": Sequence[Finite],
    "split": Mapping[str, object],
}
"""What each part of a record is."""


def _refuse_damage(remembered: Any) -> None:
    """Refuses what is no record."""
    if not isinstance(remembered, dict) or not _KINDS.keys() <= remembered.keys():
        raise DataError("the record of the data is damaged", ", ".join(_KINDS))
    for name, kind in _KINDS.items():
        try:
            check(name, remembered[name], kind)
        except PyroccamError as error:
            raise DataError(f"the record of the data is damaged: {error}") from error
    if not remembered["rows"].keys() >= {"train", "val", "test"}:
        raise DataError(f"the record of the data is damaged: {remembered['rows']!r}")
