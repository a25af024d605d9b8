"""The command line: ``pyroccam``.

What takes seconds to import, torch above all, is imported by the command that needs it: help,
versions and completion come at once.
"""

from .application import app

# In the order in which help lists their commands.
from . import (  # isort: skip
    training,
    many,
    lists,
    judging,
    certifying,
    cutting,
    compression,
    handing_on,
)

__all__ = ["app"]
