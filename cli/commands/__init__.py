"""The command line: ``pyroccam``.

What takes seconds to import, torch above all, is imported by the command that needs it: help,
versions and completion come at once.
"""

from .application import app

# In the order in which help lists their commands.
from . import (  # isort: skip
    training,  # noqa: F401
    many,  # noqa: F401
    lists,  # noqa: F401
    judging,  # noqa: F401
    cutting,  # noqa: F401
    compression,  # noqa: F401
    handing_on,  # noqa: F401
)

__all__ = ["app"]
