"""The runs of a sweep: the product of lists of settings, each with a folder named by them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...data import roots
from ...data.errors import PyroccamError
from ...inference.storage.checkpoint import write_json
from ...inference.storage.lock import refuse_links
from ...models.checks import shown, unknown_name
from ..runs.config import RunConfig, parse_settings
from ..runs.opening import RunError, read_json, reading

__all__ = ["HOW", "PLAN", "Asked", "Plan", "Trial", "parse_lists", "planning", "read_file"]

PLAN = "sweep.json"
FORMAT = 1
MOST = 100_000  # runs
_LONGEST = 100  # characters of the name of a folder
_OWN = (f".{PLAN}", "states.log", "workers")  # what a sweep has before its plan
WHOLE = ("method", "data", "network", "data_root", "budget")  # of a run, beside its settings
HOW = ("compare", "figures")
_DEEPEST = 20  # lists within lists of a file
_TAKES = 2048  # bytes that a byte of YAML can become, and the time to read it
_PLAIN = "._+-[],"  # characters of a name, beside letters and digits
_FILES = (".csv", ".npz")


@dataclass(frozen=True)
class Asked:
    """What ``pyroccam fit`` is asked for, but for the seed.

    Attributes:
        sets: as of ``--set``.
    """

    method: str
    data: str = "spirals"
    network: str | None = None
    data_root: str | None = None
    budget: str | None = None
    sets: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in WHOLE:
            value = getattr(self, name)
            if not (isinstance(value, str) or (value is None and name not in ("method", "data"))):
                raise PyroccamError(f"{name} is {value!r}, expected a text.\nPut it into quotes.")

    def with_settings(self, settings: Mapping[str, Any]) -> Asked:
        """The same, with some parts and settings in place of its own."""
        own = {name: value for name, value in settings.items() if name in WHOLE}
        sets = {name: value for name, value in settings.items() if name not in WHOLE}
        return replace(self, **own, sets={**(self.sets or {}), **sets})

    def resolve(self, seed: int) -> tuple[RunConfig, Any]:
        """Configuration and data of a run; see :meth:`RunConfig.resolve`."""
        return RunConfig.resolve(
            self.method, self.data, network=self.network, data_root=self.data_root, seed=seed,
            sets=dict(self.sets or {}),
        )  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        cell: folder of its settings, in that of the sweep; in it, each seed has one.
        seed: of data, weights and training.
        asked: all the rest.
    """

    cell: str
    seed: int
    asked: Asked

    @property
    def name(self) -> str:
        """Its folder in that of the sweep."""
        return f"{self.cell}/seed-{self.seed}"


@dataclass(frozen=True)
class Plan:
    """All runs of a sweep.

    Attributes:
        swept: what differs, the seed left out.
        trials: the runs.
        compare, figures: as of :class:`~pyroccam.cli.runs.run.RunOptions`.
        study: name of the sweep in a database.
    """

    swept: tuple[str, ...]
    trials: tuple[Trial, ...]
    compare: bool = True
    figures: bool = True
    study: str = ""

    @classmethod
    def of(
        cls,
        asked: Asked,
        lists: Sequence[Mapping[str, Sequence[Any]]],
        **how: Any,
    ) -> Plan:
        """The runs of a product of lists, or of several products.

        Arguments:
            asked: what all share.
            lists: for each product, the values of ``seed``, of settings and of ``method``,
                ``data``, ``network`` and ``budget``.
            how: ``compare`` and ``figures``, of every run.

        Raises:
            PyroccamError: for a list without values, or with one that is given twice.
        """
        swept = list(dict.fromkeys(key for each in lists for key in each if key != "seed"))
        trials: dict[str, Trial] = {}
        counts = ([len(v) for v in each.values() if isinstance(v, list | tuple)] for each in lists)
        if sum(map(math.prod, counts)) > MOST:
            raise PyroccamError(
                f"The sweep has more than {MOST:,} runs.\nGive fewer values, or several sweeps."
            )
        for each in lists or [{}]:
            _check_lists(each)
            seeds = each.get("seed", [0])
            others = {key: values for key, values in each.items() if key != "seed"}
            for values in itertools.product(*others.values()):
                settings = dict(zip(others, values, strict=True))
                own = asked.with_settings(settings)
                cell = _name(settings) or _name({own.method: own.data}, "-")
                for seed in seeds:
                    trial = Trial(cell, seed, own)
                    trials[trial.name] = trial
        return cls(tuple(swept), tuple(trials.values()), **how)

    @cached_property
    def cells(self) -> dict[str, list[Trial]]:
        """The runs of each cell, which differ in the seed alone."""
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.cell, []).append(trial)
        return found

    def settings_of(self, cell: str) -> dict[str, Any]:
        """What differs, as it is in a cell."""
        asked = self.cells[cell][0].asked
        sets = asked.sets or {}
        return {key: getattr(asked, key) if key in WHOLE else sets.get(key) for key in self.swept}

    def check(self, known: Iterable[str] = ()) -> None:
        """Resolve the first run of each cell, so that what cannot be run is said before training.

        Arguments:
            known: cells that were checked before.

        Raises:
            PyroccamError, TypeError, DataError: as for the run, with the cell in front.
        """
        known = {*known}
        for cell, trials in self.cells.items():
            if cell in known:
                continue
            try:
                trials[0].asked.resolve(trials[0].seed)
            except (ValueError, TypeError) as error:
                raise PyroccamError(f"Run {trials[0].name}: {error}") from error

    def settle(self, folder: Path) -> Plan:
        """Write the plan into the folder of its sweep, or add it to the one that is there, if that
        has the same settings for runs of the same name.

        Returns:
            The plan as it is now in the folder.

        Raises:
            PyroccamError: if the folder holds another sweep, or something else.
        """
        if not (folder / PLAN).is_file():
            there = (p.name for p in folder.iterdir()) if folder.is_dir() else ()
            if odd := sorted(name for name in there if not name.startswith(_OWN)):
                raise PyroccamError(
                    f"{folder} holds something else than a sweep ({odd[0]}).\nGive another --out."
                )
            self.check(())  # before there is a folder
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        with planning(folder):
            found = Plan.read(folder) if (folder / PLAN).is_file() else None
            fresh = replace(self, study=f"pyroccam-{secrets.token_hex(6)}")
            added = fresh if found is None else found.joined(self, folder)
            if found is not None:
                added.check(found.cells)
            if added != found:
                write_json(folder / PLAN, {"format": FORMAT, **asdict(added)})
        return added

    def joined(self, other: Plan, folder: Path) -> Plan:
        """This plan with the runs of another one.

        Raises:
            PyroccamError: if they do not go together; ``folder`` is named.
        """
        mine = {trial.name: trial for trial in self.trials}
        for trial in other.trials:
            before = mine.setdefault(trial.name, trial)
            if before != trial:
                was, now = asdict(before.asked), asdict(trial.asked)
                what = next(name for name in was if was[name] != now[name])
                raise PyroccamError(
                    f"{folder} holds a sweep in which {trial.name} has {what}={was[what]!r}, not "
                    f"{now[what]!r}.\nGive another --out, or the settings as they were."
                )
        for name in ("swept", *HOW):
            was, now = getattr(self, name), getattr(other, name)
            if was != now:
                raise PyroccamError(
                    f"{folder} holds a sweep with {name}={was!r}, not {now!r}.\nGive another "
                    "--out, or the settings as they were."
                )
        return replace(self, trials=tuple(mine.values()))

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """The plan in the folder of a sweep.

        Raises:
            FileNotFoundError: if there is none.
            RunError: if it cannot be used.
        """
        path = folder / PLAN
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} is not a sweep: it has no {PLAN}.\nGive the folder that `pyroccam sweep "
                "... --out FOLDER` wrote, as it is seen from this machine."
            )
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise RunError(f"{path} is of another version of pyroccam.\nGive another --out.")
        with reading(path):
            trials = [
                Trial(str(one["cell"]), int(one["seed"]), Asked(**one["asked"]).with_settings({}))
                for one in content.pop("trials")
            ]
            for trial in trials:
                if trial.cell in ("", ".", "..") or {*trial.cell} & {*"/\\\0"}:
                    raise PyroccamError(f"{trial.cell!r} is no name of a folder")
            return cls(tuple(map(str, content.pop("swept"))), tuple(trials), **content)


def planning(folder: Path) -> FileLock:
    """A lock for what several drivers write into the folder of a sweep."""
    return FileLock(folder / f".{PLAN}.lock", timeout=60)


def _check_lists(lists: Mapping[str, Sequence[Any]]) -> None:
    for key, values in lists.items():
        if not isinstance(values, list | tuple) or not values:
            raise PyroccamError(
                f"The sweep over {key} has {values!r}, expected a list of values.\nGive one, such "
                "as seed=0,1,2 or, in a file, seed: [0, 1, 2]."
            )
        texts = [json.dumps(value, sort_keys=True) for value in values]
        if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
            raise PyroccamError(f"The sweep over {key} has {twice} twice.\nLeave one of them out.")
        if key == "seed" and not all(type(value) is int and value >= 0 for value in values):
            raise PyroccamError(
                f"The sweep over seed has {list(values)!r}, expected whole numbers from 0 on.\n"
                "Give some, such as 0,1,2."
            )


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


# -- what a person writes -------------------------------------------------------------------------


def parse_lists(pairs: Iterable[str]) -> dict[str, list[Any]]:
    """``["lr=0.1,0.01", "hidden=[8],[8,4]"]`` to lists of values, which are as in JSON.

    Raises:
        PyroccamError: for one without ``=``, and for a key with two lists.
    """
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key or not text:
            raise PyroccamError(
                f"--sweep has {pair!r}, expected KEY=VALUE,VALUE,...\nExample: --sweep lr=0.1,0.01"
            )
        if key in found:
            raise PyroccamError(f"--sweep {key} was given twice.\nGive all of its values together.")
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


def read_file(path: Path) -> dict[str, Any]:
    """What a YAML file asks for: parts of a run, ``set``, ``sweep``, and how it is run.

    Raises:
        PyroccamError: for a file that says something else.
    """
    import yaml  # of the extra `sweep`

    content, depth = roots.read_bytes(path, _TAKES), 0
    with roots.reading(path, "YAML", "mend it there"):
        for event in yaml.parse(content, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # By aliases, a few bytes become any number of lists.
            if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
                raise PyroccamError(f"an alias, or nested deeply{event.start_mark}")
        found = yaml.safe_load(content)
    known = (*WHOLE, "set", "sweep", *HOW)
    if not isinstance(found, dict):
        raise PyroccamError(
            f"{path} holds {shown(found)}, expected names with values.\nGive {', '.join(known)}."
        )
    for name in found:
        if name not in known:
            raise PyroccamError(f"{path}: {unknown_name('name', str(name), known)}")
    for name, kinds, what in (
        ("set", (dict,), "settings with a value each"),
        ("sweep", (dict, list), "settings with a list each, or several of those"),
        *((name, (bool,), "true or false") for name in HOW),
    ):
        if name in found and not isinstance(found[name], kinds):
            raise PyroccamError(
                f"{path}: {name} is {found[name]!r}, expected {what}.\nMend it there."
            )
    products = found.get("sweep", {})
    products = products if isinstance(products, list) else [products]
    if not all(isinstance(each, dict) for each in products):
        raise PyroccamError(
            f"{path}: sweep is a list of {products!r:.100}, expected settings with a list each.\n"
            "Mend it there."
        )
    read = [{key: _values(key, values) for key, values in each.items()} for each in products]
    sets = {key: _value(key, value) for key, value in found.get("set", {}).items()}
    return {**found, "set": sets, "sweep": read}


def _values(key: str, values: Any) -> Any:
    return [_value(key, value) for value in values] if isinstance(values, list) else values


def _value(key: str, value: Any) -> Any:
    """A value as ``--set`` has it: 1e-3, which is a text in YAML, is a number."""
    return parse_settings([f"{key}={value}"])[str(key)] if isinstance(value, str) else value
