"""A page on finished runs: ``pyroccam report``."""

from .files import RunFiles, read_run
from .pages import report

__all__ = ["RunFiles", "read_run", "report"]
