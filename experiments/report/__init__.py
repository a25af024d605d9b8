"""What finished runs say, on one page: ``pyroccam report``."""

from .files import RunFiles, read_run
from .pages import report

__all__ = ["RunFiles", "read_run", "report"]
