"""Where files of the sets may be."""

from pathlib import Path

__all__ = ["find_file"]


def find_file(root: Path, folder: str, *names: str) -> Path | None:
    """The first of the files `names` that is in a folder of the root, or in the root itself."""
    paths = (parent / name for parent in (root / folder, root) for name in names)
    return next((path for path in paths if path.is_file()), None)
