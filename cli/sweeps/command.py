"""What a person asks of a sweep, and its running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.errors import PyroccamError
from ...data.registry import absolute
from ..console import PlainConsole
from ..methods import METHODS
from ..runs.budget import Budget
from ..runs.config import parse_settings
from .driver import Ended, devices_of, drive
from .plan import HOW, PLAN, WHOLE, Asked, Plan, parse_lists, read_file
from .store import Store, connect, refuse_missing

__all__ = [
    "Request",
    "read_request",
    "refuse_no_repeats",
    "request_repeats",
    "run_sweep",
    "train_seeds",
]

_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Request:
    """A sweep that is asked for.

    Attributes:
        folder: of the sweep.
        plan: its runs, as far as they are asked for.
    """

    folder: Path
    plan: Plan


def read_request(
    what: str,
    given: Mapping[str, Any],
    sets: Sequence[str] = (),
    lists: Sequence[str] = (),
    out: Path | None = None,
) -> Request:
    """The sweep that a command asks for.

    Arguments:
        what: a method, a file or a folder.
        given: what stands in place of what a file says, or is ``None``.
        sets, lists: of ``--set`` and ``--sweep``, added to those of a file.
        out: folder of the sweep, if it was said.

    Raises:
        PyroccamError: for what cannot be, or says nothing.
    """
    given = {name: value for name, value in given.items() if value is not None}
    folder = Path(what)
    named = what in METHODS and bool(lists)  # a folder may have the name of a method
    if not named and ((folder / PLAN).is_file() or (folder.is_dir() and not lists)):
        if given or sets or lists or out:
            raise PyroccamError(
                f"{what} is the folder of a sweep, whose settings are known.\nLeave out all but "
                "--workers, --threads, --device, --storage, --retry-failed."
            )
        return Request(folder, Plan.read(folder))
    found: dict[str, Any] = {"set": {}, "sweep": [{}], "method": what}
    name = None
    if what.lower().endswith(_FILES):
        if not folder.is_file():
            raise FileNotFoundError(f"{what}: there is no such file.")
        found |= {"method": None} | read_file(folder)
        name = folder.stem
    found |= given
    found["set"] = {**found["set"], **parse_settings([*sets])}
    more = parse_lists(lists)
    found["sweep"] = [{**each, **more} for each in found["sweep"]]
    if not any(found["sweep"]):
        raise PyroccamError(
            "The sweep has nothing that differs.\nGive lists, such as --sweep seed=0,1,2, or use "
            "`pyroccam fit`."
        )
    for each in found["sweep"]:
        if both := [key for key in each if key in found["set"]]:
            raise PyroccamError(f"{both[0]} is both set and swept.\nLeave one of them out.")
        if found["method"] is None and "method" not in each:
            raise PyroccamError(f"{what} names no method.\nGive one, such as method: gnj.")
    if odd := [key for key in found["set"] if key in WHOLE]:
        raise PyroccamError(
            f"{odd[0]} is no setting of a run.\nGive it by itself, as --{odd[0]} or a line of the "
            "file, or among the lists."
        )
    asked = {k: _whole(k, found.get(k)) for k in ("method", "network", "data_root", "budget")}
    asked["data"] = _whole("data", found.get("data")) or "spirals"
    base = Asked(**{**asked, "method": asked["method"] or ""}).with_settings(found["set"])
    lists_of = [{k: [_whole(k, v) for v in vs] if isinstance(vs, list) else vs
                 for k, vs in each.items()} for each in found["sweep"]]  # fmt: skip
    plan = Plan.of(base, lists_of, **{name: found[name] for name in HOW if name in found})
    for trial in plan.trials:
        if trial.asked.budget is not None:
            Budget.parse(trial.asked.budget)
    first = plan.trials[0].asked
    name = name or f"sweep-{first.method}-{Path(first.data).stem[:40]}"
    return Request(out or Path("runs") / name, plan)


def _whole(name: str, value: Any) -> Any:
    """A place of files is the same for workers that are in other folders."""
    if not isinstance(value, str):
        return value
    if name == "data_root":
        return str(Path(value).expanduser().absolute())
    return absolute(value) if name == "data" else value


def refuse_no_repeats(repeats: int, processes: int, workers: int) -> None:
    """Refuse workers of ``fit`` that would have nothing to share out, or processes in each of them.

    Raises:
        PyroccamError: if so.
    """
    if repeats == 1:
        raise PyroccamError(
            f"--workers {workers} train the runs of --repeats, and there is one run.\nGive "
            "--repeats too, or --processes for one run in several processes."
        )
    if processes > 1:
        raise PyroccamError(
            "--workers train whole runs, and --processes share one out.\nGive one of them."
        )


def request_repeats(
    method: str,
    given: Mapping[str, Any],
    sets: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    resume: bool,
) -> Request:
    """The runs of ``fit --repeats`` as a sweep over seeds, whose folder is that of the command.

    Arguments:
        method, given, sets: as for :func:`read_request`.
        seeds: of the runs.
        out: folder of the sweep.
        resume: go on with what is in it.

    Raises:
        PyroccamError: for what cannot be.
        FileExistsError: if the folder holds runs, and they are not to be gone on with.
    """
    refuse_missing()
    if (out / PLAN).is_file() and not resume:
        raise FileExistsError(
            f"{out} holds runs already. Go on with them with --resume, or give another --out."
        )
    lists = [f"seed={','.join(map(str, seeds))}"]
    return read_request(method, given, sets, lists, out)


def run_sweep(
    console: PlainConsole,
    request: Request,
    *,
    workers: int | None = None,
    threads: int = 1,
    device: str = "auto",
    storage: str | None = None,
    again: bool = False,
) -> Ended:
    """Check a sweep, and have it trained.

    Arguments:
        console: on which it is told.
        workers, threads, device: see :func:`~pyroccam.cli.sweeps.driver.devices_of`.
        storage: address of its database; in its folder if left out.
        again: also try the runs that failed.

    Raises:
        Unreachable: if the database does not answer.
        PyroccamError: if a run cannot be, or the folder holds another sweep.
    """
    folder = request.folder
    reached = None if storage is None else connect(storage)  # or it is said at once
    plan = request.plan.settle(folder)
    store = (
        Store.in_folder(folder, plan.study)
        if storage is None
        else Store(storage, plan.study, reached)
    )
    devices = devices_of(device, workers, threads)
    return drive(folder, plan, store, console, devices, threads, again)


def train_seeds(
    folder: Path, seeds: Sequence[int], asked: Asked, workers: int, device: str = "auto"
) -> dict[int, Path]:
    """Have the seeds of one setting trained by workers.

    Arguments:
        folder: of their sweep; more seeds may come to those that it has.
        asked: what all share.
        workers, device: see :func:`~pyroccam.cli.sweeps.driver.devices_of`.

    Returns:
        The folder of each run.

    Raises:
        PyroccamError: if one of them failed.
        KeyboardInterrupt: if they were stopped.
    """
    plan = Plan.of(asked.with_settings({}), [{"seed": [*seeds]}])
    ended = run_sweep(PlainConsole(), Request(folder, plan), workers=workers, device=device)
    if ended.failed:
        raise PyroccamError("; ".join(f"{name}: {why}" for name, why in ended.failed.items()))
    if ended.left:
        raise KeyboardInterrupt
    return {trial.seed: folder / trial.name for trial in plan.trials}
