"""Pictures as part of a page: data instead of a place, and no more of it than the page can bear."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ...data import PyroccamError, ask, reading

_TIMES = 64  # bytes for each pixel: copies of the picture, and the time to make them smaller
_NARROWEST = 320  # pixels; below, nothing in a figure can be read


class Inlined(NamedTuple):
    """A picture as the source of an ``img``."""

    source: str
    width: int
    height: int


def inline(path: Path, most: int = 300_000) -> Inlined:
    """Read a picture into an address.

    256 colours are kept, which a figure does with, and as many pixels as the limit allows.
    """
    path = Path(path)
    content, width, height = _fewer(path, most)
    return Inlined(f"data:image/png;base64,{base64.b64encode(content).decode()}", width, height)


def _fewer(path: Path, most: int) -> tuple[bytes, int, int]:
    """The picture in 256 colours, made smaller until it fits."""
    with reading(path, "a whole picture"), Image.open(path) as opened:
        ask(_TIMES * opened.width * opened.height, str(path))
        # What is transparent is white, as behind every figure.
        clear = opened.convert("RGBA")
        whole = Image.new("RGB", clear.size, "white")
        whole.paste(clear, mask=clear)
    shown = whole
    while True:
        held = io.BytesIO()
        shown.quantize(256, dither=Image.Dither.NONE).save(held, "png", compress_level=9)
        if held.tell() <= most:
            return held.getvalue(), *shown.size
        # Bytes go with the area, if not exactly.
        width = round(shown.width * min(0.9, 0.97 * math.sqrt(most / held.tell())))
        if width < _NARROWEST:
            given = f"{path} of {held.tell():,} bytes at {shown.width} pixels"
            raise PyroccamError(given, f"at most {most:,}")
        shown = whole.resize((width, max(1, round(whole.height * width / whole.width))))
