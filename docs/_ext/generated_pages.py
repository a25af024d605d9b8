"""Everything that is written before the pages are read, into ``docs/generated``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from . import notebooks, pages, reference, tables

__all__ = ["setup"]


def _write(app: Sphinx, config: Config) -> None:
    docs = Path(app.srcdir)
    made = docs / "generated"
    reference.write(made / "api")
    found = notebooks.copy(docs.parent / "notebooks", made / "notebooks")
    for name, lines in {
        "methods.rst": tables.methods(),
        "depth_priors.rst": tables.depth_priors(),
        "weight_priors.rst": tables.weight_priors(),
        "structure_priors.rst": tables.structure_prior_table(),
        "guides.rst": tables.guide_table(),
        "diagnostics.rst": tables.diagnostic_functions(),
        "data_sets.rst": tables.data_sets(),
        "notebooks.rst": notebooks.listing(found),
        "command_line.md": tables.command_line(),
    }.items():
        pages.write(made / "include" / name, "\n".join(lines) + "\n")
    for experiment, text in tables.results(docs.parent).items():
        pages.write(made / "include" / f"results_{experiment}.md", f"{text}\n")
    for name, text in tables.document_tables(docs.parent).items():
        pages.write(made / "include" / f"{name}.md", f"{text}\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Before anything is read."""
    app.connect("config-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
