"""Readers of file formats: bytes that anybody wrote in, arrays out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .archives import open_archive
    from .csv_text import as_numbers, encoded, numbers, read_table, selected
    from .idx import find_idx, read_idx
    from .image_folders import MOST, Images, is_image_folder
    from .texts import tokenised

__getattr__, __dir__ = lazy_names(__name__)
