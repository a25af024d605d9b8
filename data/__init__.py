"""Data sets and toys: read, checked, split, standardised."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import DataError, DataWarning
    from .dataset import Dataset
    from .registry import available, load
    from .rows import far_off, new_rows
    from .sets.toys import spirals
    from .streaming.making import stream
    from .streaming.streamed import Streamed
    from .streaming.writing import write_rows

__all__ = [
    "DataError",
    "DataWarning",
    "Dataset",
    "Streamed",
    "available",
    "far_off",
    "load",
    "new_rows",
    "spirals",
    "stream",
    "write_rows",
]

# Imported once they are asked for: errors and ranges are had without torch.
_ROOMS = {
    "DataError": "checks", "DataWarning": "checks", "Dataset": "dataset", "available": "registry",
    "load": "registry", "far_off": "rows", "new_rows": "rows", "spirals": "sets.toys",
    "stream": "streaming.making", "Streamed": "streaming.streamed",
    "write_rows": "streaming.writing",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
    found = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
