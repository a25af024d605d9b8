"""One self-contained page of tables, pictures and findings, for any browser, without a network."""

from .images import Inlined, inline
from .page import Cell, Page, Picture, Remark, Section, Table, render

__all__ = [
    "Cell",
    "Inlined",
    "Page",
    "Picture",
    "Remark",
    "Section",
    "Table",
    "inline",
    "render",
]
