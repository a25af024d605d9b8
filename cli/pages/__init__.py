"""A page on finished runs: ``pyroccam report``."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .catalogue import DIAGNOSIS, slug
    from .files import RunFiles, read_run
    from .pages import report

__all__ = [
    "RunFiles",
    "read_run",
    "report",
]

__getattr__, __dir__ = lazy_names(__name__)
