"""A strict reader of HTML pages."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "img", "link", "br", "hr", "input"}
# What may stand in a paragraph, a heading or a cell's data: no block of its own.
PHRASES = {"strong", "data", "a", "span", "em", "code"}
CLOSED = {"p", "figcaption", "caption", "data", "a", "span", "strong"}


@dataclass
class Element:
    """An element, its attributes, its text and what it is in."""

    tag: str
    attributes: dict[str, str]
    within: "list[Element]" = field(repr=False)
    text: str = ""

    def inside(self, tag: str) -> bool:
        return any(one.tag == tag for one in self.within)


class Reader(HTMLParser):
    """Elements in order; raises where they are not nested as they should be."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.declared: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"left open: {[one.tag for one in self.open]}"

    def handle_decl(self, decl):
        assert not self.elements
        self.declared.append(decl)

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        for one in self.open:
            assert one.tag not in CLOSED or tag in PHRASES, f"<{tag}> in <{one.tag}>"
        element = Element(tag, {k: v or "" for k, v in attrs}, list(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert tag not in VOID, f"</{tag}>"
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        for one in self.open:
            one.text += data

    def of(self, tag: str) -> list[Element]:
        return [one for one in self.elements if one.tag == tag]

    def numbers(self) -> list[float]:
        """Of all ``<data value=...>``."""
        return [float(one.attributes["value"]) for one in self.of("data")]

    def table(self, caption: str) -> list[list[str]]:
        """The rows of the table of that caption, its head first."""
        (found,) = [t for t in self.of("table") if caption in t.text.split("\n")[1]]
        rows = [r for r in self.of("tr") if found in r.within]
        cells = [c for c in self.elements if c.tag in ("th", "td")]
        return [[c.text for c in cells if row in c.within] for row in rows]


def check(page: str) -> Reader:
    """What every page must be: whole, nested, described, and sufficient to itself."""
    read = Reader(page)
    assert read.declared == ["DOCTYPE html"]
    assert [one.tag for one in read.elements[:2]] == ["html", "head"]
    (html,) = read.of("html")
    assert html.attributes["lang"] == "en"
    (title,) = read.of("title")
    assert title.text.strip()
    assert "width=device-width" in " ".join(
        one.attributes.get("content", "") for one in read.of("meta")
    )
    ids = [one.attributes["id"] for one in read.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    for one in read.elements:
        for name in ("src", "href", "srcset", "poster", "action"):
            if name in one.attributes:
                value = one.attributes[name]
                inner = value.startswith("#") and value[1:] in ids
                assert value.startswith("data:image/") or inner, f"{one.tag} refers to {value[:80]}"
    assert not read.of("script")
    assert not read.of("link")
    for style in read.of("style"):
        assert "url(" not in style.text
        assert "@import" not in style.text
    levels = [int(one.tag[1]) for one in read.elements if one.tag in ("h1", "h2", "h3", "h4", "h5")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), levels
    for image in read.of("img"):
        assert len(image.attributes["alt"]) > 10
    for table in read.of("table"):
        rows = [r for r in read.of("tr") if table in r.within]
        cells = [c for c in read.elements if c.tag in ("th", "td")]
        widths = {sum(row in c.within for c in cells) for row in rows}
        assert len(widths) == 1, widths
        assert any(table in c.within for c in read.of("caption"))
    for head in read.of("th"):
        assert head.attributes["scope"] in ("col", "row")
    return read
