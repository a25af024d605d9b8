"""The compiler's cache on disk, which decides what compiling costs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["VARIABLE", "empty_cache"]

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def empty_cache() -> Iterator[None]:
    """Compile as on the first day; what was compiled here is forgotten at the end."""
    before = os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before
