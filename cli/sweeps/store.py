"""The states of the runs of a sweep, in a file or a database that survives whoever writes to it.

Optuna keeps them: its journal, a file that is only appended to, needs no server, and its databases
are whatever SQLAlchemy reaches. Ray Tune was tried beside it: it starts a process for each run, its
daemons end with the driver, and it installs much more.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from ...data.errors import PyroccamError
from ...models.plain.untrusted import plain_words

__all__ = ["STATES", "MissingEngine", "State", "Store", "Unreachable", "connect", "refuse_missing"]

STATES = "states.log"
JOURNAL = "journal:"
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "oracle": 1521, "mssql": 1433}
SECONDS = 5.0  # until an address counts as unreachable
PATIENCE = 6  # attempts at a database that does not answer, each after twice the time

T = TypeVar("T")


class MissingEngine(PyroccamError, RuntimeError):
    """A package that sweeps need is not installed."""


class Unreachable(PyroccamError, ConnectionError):
    """A database that cannot be reached, or used."""


def refuse_missing() -> None:
    """Refuse to go on without the packages of the extra ``sweep``.

    Raises:
        MissingEngine: if one is not installed.
    """
    for name in ("optuna", "yaml"):
        if find_spec(name) is None:
            raise MissingEngine(
                f"A sweep needs {name}, which is not installed",
                hint="pip install 'pyroccam[sweep]'",
            )


@dataclass(frozen=True)
class State:
    """Where a run is.

    Attributes:
        id: in the database.
        name: of the run.
        word: ``waiting``, ``running``, ``done`` or ``failed``.
        attempts: for each time that it was taken up, the age of what it had by then.
        error: why it failed.
        worker: that has it.
    """

    id: int
    name: str
    word: str
    attempts: tuple[int, ...] = ()
    error: str | None = None
    worker: str | None = None

    @property
    def finished(self) -> bool:
        """True if nobody has to take it up."""
        return self.word in ("done", "failed")


class Store:
    """The database of a sweep.

    Arguments:
        address: see :func:`connect`.
        study: name of the sweep in it.
        storage: the open database, if it is.
    """

    def __init__(self, address: str, study: str, storage: Any = None) -> None:
        import optuna

        self.address = address
        self.storage = connect(address) if storage is None else storage
        how: Any = {"storage": self.storage, "study_name": study, "load_if_exists": True}
        with _whole(address) if address.startswith(JOURNAL) else nullcontext():
            self.study = _patiently(lambda: optuna.create_study(**how))
            self.states()

    @classmethod
    def in_folder(cls, folder: Path, study: str) -> Store:
        """The states in the folder of a sweep."""
        return cls(f"{JOURNAL}{(folder / STATES).absolute()}", study)

    def add(self, names: Iterable[str]) -> None:
        """Runs that wait, in this order."""
        import optuna

        waiting = optuna.trial.TrialState.WAITING
        for name in names:
            trial = optuna.trial.create_trial(state=waiting, user_attrs={"run": name})
            _patiently(lambda trial=trial: self.study.add_trial(trial))  # type: ignore[misc]

    def states(self) -> dict[str, State]:
        """The last state of each run, in the order in which they were added."""
        trials = _patiently(lambda: self.study.get_trials(deepcopy=False))
        return {state.name: state for state in map(_state, trials) if state.name}

    def look(self, state: State) -> State:
        """The state as it is now."""
        return _state(_patiently(lambda: self.storage.get_trial(state.id)))

    def take(self, state: State, attempts: Iterable[int], worker: str) -> None:
        """A run is being trained. It was waiting, or whoever had it is gone."""
        self._set(state, "attempts", list(attempts))
        self._set(state, "worker", worker)
        if state.word == "waiting":
            self._move(state, "RUNNING")

    def put_back(self, state: State, attempts: Iterable[int]) -> None:
        """A run waits again: it was stopped, and is not to blame."""
        self._set(state, "attempts", list(attempts))
        self._move(state, "WAITING")

    def finish(self, state: State, value: float) -> None:
        """A run is done.

        Arguments:
            value: by which runs are compared in the database.
        """
        self._move(state, "COMPLETE", [value if math.isfinite(value) else math.inf])

    def fail(self, state: State, error: str) -> None:
        """A run cannot be done."""
        self._set(state, "error", error[:2000])
        self._move(state, "FAIL")

    def _set(self, state: State, name: str, value: Any) -> None:
        _patiently(lambda: self.storage.set_trial_user_attr(state.id, name, value))

    def _move(self, state: State, word: str, values: list[float] | None = None) -> None:
        import optuna

        to = optuna.trial.TrialState[word]
        _patiently(lambda: self.storage.set_trial_state_values(state.id, to, values))


_WORDS = {"WAITING": "waiting", "RUNNING": "running", "COMPLETE": "done", "FAIL": "failed"}


def _state(trial: Any) -> State:
    own = trial.user_attrs
    return State(
        id=trial._trial_id,
        name=own.get("run", ""),
        word=_WORDS.get(trial.state.name, "failed"),
        attempts=tuple(own.get("attempts", ())),
        error=own.get("error"),
        worker=own.get("worker"),
    )


def connect(address: str) -> Any:
    """Open a database.

    Arguments:
        address: ``sqlite:///FILE``, ``journal:FILE`` (a file on a disk that machines share), or
            that of a database server, as SQLAlchemy writes it:
            ``postgresql://user@host:5432/database``.

    Raises:
        Unreachable: if it does not answer, or cannot be used.
        MissingEngine: if its driver is not installed.
        ValueError: for what is no address.
    """
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    forms = "Give one such as postgresql://user@host:5432/database, sqlite:///FILE or journal:FILE."
    if address.startswith(JOURNAL):
        path = Path(address.removeprefix(JOURNAL))
        if not path.parent.is_dir():
            raise Unreachable(
                f"{address} cannot be reached: {path.parent} is no folder here",
                hint="mount the shared disk, or give the place that it has on this machine",
            )
        return _journal(path)
    try:
        url = make_url(address)
    except ArgumentError:
        raise PyroccamError(f"{address!r} is no address of a database.\n{forms}") from None
    shown = url.render_as_string(hide_password=True)
    if url.host:
        port = url.port or _PORTS.get(url.get_backend_name())
        if port is not None:
            _knock(shown, url.host, port)
    local = url.get_backend_name() == "sqlite"
    # Of a file, seconds in which others may hold it.
    how: dict[str, Any] = {"connect_args": {"timeout": 60}} if local else {"pool_pre_ping": True}
    try:
        return optuna.storages.RDBStorage(address, engine_kwargs=how)
    except NoSuchModuleError:
        raise PyroccamError(f"{shown}: there is no such kind of database.\n{forms}") from None
    except ImportError as error:
        raise MissingEngine(
            f"{shown} needs a package that is not installed ({error.__cause__ or error})",
            hint="pip install 'psycopg[binary]' for PostgreSQL, pymysql for MySQL",
        ) from error
    except (SQLAlchemyError, OSError, optuna.exceptions.OptunaError) as error:
        said = " ".join(str(error).split())
        raise Unreachable(
            f"{shown} cannot be used: {said:.300}",
            hint="look at its name, user and password, or leave --storage out for a file in --out",
        ) from error


def _journal(path: Path) -> Any:
    """The storage in a file. Its lock is one that the operating system drops with the process that
    holds it: Optuna's own would stay for half a minute after a kill."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    class Lock(JournalFileOpenLock):
        def __init__(self) -> None:
            self.lock = FileLock(f"{path}.lock")

        def acquire(self) -> bool:
            self.lock.acquire()
            return True

        def release(self) -> None:
            self.lock.release()

    with _whole(str(path)):
        return JournalStorage(JournalFileBackend(str(path), Lock()))


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Say of a journal that it is damaged: Optuna takes what is in it as it is."""
    try:
        yield
    except OSError as error:
        raise Unreachable(
            f"{path} cannot be used ({error})", hint="look at the rights of its folder"
        ) from error
    except Exception as error:
        raise Unreachable(
            f"{path} is no journal, or damaged ({plain_words(error)})",
            hint="delete it and repeat the command: what is finished is known by its folder",
        ) from error


def _knock(shown: str, host: str, port: int) -> None:
    """See at once that nobody is at an address, for which drivers take minutes."""
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        raise Unreachable(
            f"{shown} cannot be reached: {host}, port {port}: {error}",
            hint="start the database, look at host and port, or leave --storage out for a file in "
            "--out",
        ) from error


def _patiently(call: Callable[[], T]) -> T:
    """The result of a call of a database, which may be away for a minute."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError

    for attempt in range(PATIENCE):
        try:
            return call()
        except (StorageInternalError, OperationalError):
            if attempt == PATIENCE - 1:
                raise
            time.sleep(2.0**attempt)
    raise AssertionError
