"""Runs and plain networks on disk, written and read again, each file whole or not there."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .checkpoint import (
        CHECKPOINT,
        HISTORY,
        WEIGHTS,
        CheckpointError,
        fingerprint,
        load_checkpoint,
        plain,
        read_history,
        read_weights,
        save_checkpoint,
        save_weights,
        seal,
        versions,
        write_history,
        write_json,
    )
    from .digests import check_digests, write_digests
    from .lock import LOCK, FolderInUse, claimed, confirm, refuse_links
    from .watching import Watch, Watched
    from .whole import replacing, write_whole

__getattr__, __dir__ = lazy_names(__name__)
