"""Contents of a page, apart from how it looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from .. import PlainConsole
from ..runs import Table
from .inlined import inline

BUDGET = 2_000_000  # bytes of all pictures: a page of less than 3 MB in base64
LARGEST = 300_000  # of one


@dataclass(frozen=True)
class Picture:
    """A figure in a file, and of which seed it is, where a run has several and it is of one."""

    path: Path
    alt: str
    title: str
    text: str = ""
    seed: str = ""


@dataclass(frozen=True)
class Section:
    """Part of a page under a heading of its own.

    Attributes:
        remarks: findings of a diagnosis, each with its ``picture``, if there is one.
    """

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    remarks: Sequence[Mapping[str, Any]] = ()
    pictures: Sequence[Picture] = ()
    parts: Sequence[Section] = ()
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    sections: Sequence[Section]
    lead: Sequence[str] = ()
    doubts: Sequence[str] = ()


def render(page: Page) -> str:
    """The page as one HTML file: pictures, styles and all. It refers to nothing outside itself.

    The more pictures there are, the fewer bytes each gets, so that a page of many runs opens on a
    phone too.
    """
    count = sum(1 for section in page.sections for _ in _pictures(section))
    most = min(LARGEST, BUDGET // max(count, 1))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["inline"] = lambda picture: inline(picture.path, most)
    return environment.get_template("page.html.j2").render(page=page)


def print_page(console: PlainConsole, page: Page) -> None:
    """The page as a terminal shows it: without pictures, and without what is folded."""
    for sentence in page.doubts:
        console.say(("Beware:", "yellow"), f" {sentence}")
    for sentence in page.lead:
        console.say("\n", sentence)
    for table in (t for one in page.sections if not one.folded for t in one.tables):
        console.say("\n", (table.caption, "bold"))
        console.print(table)
        if table.note:
            console.say((table.note, "dim"))
    console.say()


def _pictures(section: Section) -> Iterator[Picture]:
    yield from section.pictures
    yield from (one["picture"] for one in section.remarks if one["picture"] is not None)
    for part in section.parts:
        yield from _pictures(part)
