"""The application: command line, table of methods, runs in folders and their pages."""

from typing import TYPE_CHECKING

from ..data import lazy_names

if TYPE_CHECKING:
    from .boundary import BUSY, STOPPED, App, hear_ctrl_c
    from .console import Part, PlainConsole
    from .diagnosis import diagnose_run, print_findings
    from .places import need_file, need_folder, new_folder
    from .requests import ExecutionOptions, OpenOptions, RunRequest
    from .run_figures import (
        draw,
        draw_compressed,
        draw_depth,
        draw_repeats,
        draw_trade,
        save_figure,
    )
    from .signatures import parse_settings, said_of
    from .streams import prepare

__getattr__, __dir__ = lazy_names(__name__)
