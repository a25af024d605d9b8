"""How the pages are built: ``sphinx-build -W docs docs/_build``, without a network."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent))  # for the pages that experiments and benchmarks write

project = "pyroccam"
author = "the authors of pyroccam"
project_copyright = "the authors of pyroccam, MIT licence"
release = version = installed_version("pyroccam")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_nb",
    "_ext.mathml",
    "_ext.arxiv",
    "_ext.dashes",
    "_ext.generated_pages",
]
exclude_patterns = ["_build", "_ext", "generated/include"]
smartquotes = False  # it would make one dash of the two of ``--set``

html_theme = "furo"
html_title = "pyroccam"
html_static_path = ["_static"]
html_css_files = ["pyroccam.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False

# Signatures as they are written, one argument a line where they are long.
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autosummary_generate = False
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Notebooks come with their outputs. Running them is no part of building pages.
nb_execution_mode = "off"
nb_merge_streams = True
# A type in a signature is known by its short name only, which two packages may have.
suppress_warnings = ["mystnb.unknown_mime_type", "ref.python"]
