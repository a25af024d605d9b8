"""Training rows that stay where they are, on a disk or behind a loader, and are read in pieces."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .making import stream
    from .named import FORMS, is_streamable, load_stream, reader_of_path
    from .pairs import Columns

__getattr__, __dir__ = lazy_names(__name__)
