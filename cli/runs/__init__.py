"""One run of the command line: from its settings to its folder, and from the folder back."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .budget import Budget, same_length, within
    from .config import FIT, PASSES, RunConfig
    from .execution import RunOptions, begun, known_of, refuse_unmet, run, run_repeats
    from .loading import load_fit, names_own_data
    from .opening import check_files, read_json, reading
    from .repeats import put_together, spread_of
    from .scoring import read_new_rows, score
    from .tables import (
        METRICS,
        Cell,
        Network,
        Table,
        called,
        cell,
        learnt,
        learnt_tables,
        networks,
        scores,
        whole,
    )

__getattr__, __dir__ = lazy_names(__name__)
