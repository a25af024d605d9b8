"""Small networks in files: packed, as a draw, or for other programs."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .columns import said_of_classes, said_of_columns
    from .draw_file import Sent, encoded_draw, overhead
    from .exporting import ABOUT, ExportError, export
    from .fusing import fused
    from .network_folder import load_folder, save_folder
    from .packed import is_described, note_of, read
    from .small import Small

__all__ = [
    "fused",
]

__getattr__, __dir__ = lazy_names(__name__)
