"""What is to say of finished runs, as the terminal prints it and ``pyroccam report`` writes it."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .catalogue import DIAGNOSIS, slug
    from .files import RunFiles, read_run
    from .html import print_page
    from .pages import page_of, report

__all__ = [
    "RunFiles",
    "read_run",
    "report",
]

__getattr__, __dir__ = lazy_names(__name__)
