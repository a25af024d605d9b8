"""A page is whole, safe to open, small, and readable in both lights."""

import base64
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pages import Reader, check
from PIL import Image
from pyroccam.cli.pages import html
from pyroccam.cli.pages.html import (
    BUDGET,
    Page,
    Picture,
    Remark,
    Section,
    render,
)
from pyroccam.cli.pages.inlined import inline
from pyroccam.cli.runs.tables import Cell, Table
from pyroccam.data.errors import TooLarge

SVG = '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 6 3"></svg>'


def noise(path, side=400):
    """Pixels that no packing makes small."""
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (60, 30), "#0072b2").save(tmp_path / "a.png")
    return Picture(tmp_path / "a.png", "A blue square of no meaning", "Square", "It is blue.")


def page(picture):
    table = Table("Scores", ["", "one"], [[Cell("NLL"), Cell("0.12", 0.123, best=True)]], "A note.")
    remarks = [
        Remark("ELBO", "good", "It settled.", {"steps": 3}, picture),
        *(Remark(v, v, f"It is {v}.", {}) for v in ("doubtful", "poor", "refused")),
    ]
    inner = Section("Settings", tables=[table], folded=True)
    first = Section("First", ["One sentence.", "Another."], [table], remarks, [picture])
    sections = [first, Section("Second", parts=[inner]), Section("Third")]
    return Page("Two & three", sections, ["Said first."])


def test_a_page_has_what_it_was_given(picture):
    read = check(render(page(picture)))
    assert [one.text for one in read.of("h1")] == ["Two & three"]
    assert [one.text for one in read.of("h2")] == ["First", "Second", "Third"]
    assert [one.text for one in read.of("h3")] == ["Settings"]
    assert [one.text for one in read.of("a")] == ["First", "Second", "Third"]
    assert read.numbers() == [0.123, 0.123]
    assert all(one.inside("strong") for one in read.of("data"))
    assert [one.inside("details") for one in read.of("table")] == [False, True]
    assert len(read.of("img")) == 2
    assert read.of("img")[0].attributes["alt"] == picture.alt
    remarks = [one for one in read.of("li") if "remark" in one.attributes.get("class", "")]
    said = [" ".join(one.text.split()) for one in remarks]
    for verdict, line in zip(("good", "doubtful", "poor", "not answered"), said, strict=True):
        assert verdict in line  # in a word, not by colour alone
    assert "steps3" in said[0].replace(" ", "")


def test_texts_are_escaped(picture):
    evil = '<script>alert(1)</script> & "quotes" \' </style>'
    one = Section(evil, [evil], [Table(evil, [evil, evil], [[Cell(evil), Cell(evil, 1.0)]], evil)])
    hostile = replace(picture, alt=evil, title=evil, text=evil)
    remark = Remark(evil, "good", evil, {evil: evil}, hostile)
    html = render(Page(evil, [replace(one, remarks=[remark], pictures=[hostile])], [evil]))
    assert "<script" not in html
    read = check(html)
    assert read.of("img")[0].attributes["alt"] == evil
    assert read.of("h1")[0].text == evil


# -- pictures ---------------------------------------------------------------------------------


def held(source):
    return base64.b64decode(source.partition(",")[2])


def test_pixels_keep_their_picture(picture, tmp_path):
    found = inline(picture.path)
    assert (found.width, found.height) == (60, 30)
    (tmp_path / "b.png").write_bytes(held(found.source))
    shown = Image.open(tmp_path / "b.png").convert("RGB")
    assert shown.getcolors() == [(60 * 30, (0, 0x72, 0xB2))]


def test_what_is_transparent_is_white(tmp_path):
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(held(inline(tmp_path / "a.png").source))
    assert Image.open(tmp_path / "b.png").convert("RGB").getcolors() == [(64, (255, 255, 255))]


def test_large_pixels_are_made_smaller_until_they_fit(tmp_path):
    path = noise(tmp_path / "a.png")
    whole, less = inline(path, 10**6), inline(path, 120_000)
    assert whole.width == 400
    assert 320 <= less.width < 360  # a byte for each pixel
    assert len(held(less.source)) <= 120_000
    too_large = r"a\.png of [\d,]+ bytes"
    with pytest.raises(ValueError, match=too_large):
        inline(path, 1000)


@pytest.mark.parametrize("asked", ["a.svg", "a.png"])
def test_vectors_go_as_they_are_where_they_fit(tmp_path, asked):
    (tmp_path / "a.svg").write_text(SVG)
    noise(tmp_path / "a.png", 350)
    found = inline(tmp_path / asked, 400_000)
    assert found.source.startswith("data:image/svg+xml;base64,")
    assert held(found.source).decode() == SVG
    assert found.width is None
    assert inline(tmp_path / asked, len(SVG)).width is None
    (tmp_path / "a.svg").write_text(SVG + " " * 400_000)
    assert inline(tmp_path / asked, 400_000).source.startswith("data:image/png;")


SIGNATURE = b"\x89PNG\r\n\x1a\n nothing"


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.png", None, FileNotFoundError, r"a\.png: there is no such picture"),
        ("a.pdf", None, ValueError, r"expected a \.png or \.svg"),
        ("b.png", SIGNATURE, ValueError, r"b\.png is not a whole picture"),
        ("c.svg", b"nothing", ValueError, r"c\.svg: no SVG picture"),
        ("d.svg", SVG.encode(), ValueError, r"d\.svg of \d+ bytes"),
    ],
)
def test_pictures_that_cannot_be_read(name, content, error, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        inline(tmp_path / name, 10)


def test_a_huge_picture_asks_before_it_is_decoded(tmp_path):
    Image.new("1", (13_000, 13_000)).save(tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with pytest.raises(TooLarge, match=r"a\.png"):
            inline(tmp_path / "a.png")


def test_pictures_share_the_room_of_a_page(tmp_path, monkeypatch):
    large = Picture(noise(tmp_path / "a.png"), "Nothing but noise in it", "Noise")
    for count in (1, 3):
        monkeypatch.setattr("pyroccam.cli.pages.html.BUDGET", 120_000 * count)
        html = render(Page("Many", [Section("All", pictures=[large] * count)]))
        bytes_ = [len(held(one.attributes["src"])) for one in Reader(html).of("img")]
        assert len(bytes_) == count
        assert 0.8 * 120_000 < max(bytes_) <= 120_000
    assert 4 / 3 * BUDGET < 2_900_000  # the room of a page is below 3 MB, with words to spare


# -- look -------------------------------------------------------------------------------------


def luminance(colour):
    """Relative luminance of sRGB (WCAG 2.2)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_every_text_has_contrast_in_both_lights():
    css = (Path(html.__file__).parent / "page.css").read_text()
    blocks = re.findall(r":root\s*\{([^}]*)\}", css)
    assert len(blocks) == 3  # light, dark, print
    for block in blocks:
        colours = dict(re.findall(r"--(\w+):\s*(#[0-9a-f]{6})", block))
        for paper in ("paper", "raised"):
            for ink in ("ink", "quiet", "link", "good", "doubtful", "poor"):
                one, other = sorted((luminance(colours[ink]), luminance(colours[paper])))
                assert (other + 0.05) / (one + 0.05) > 4.5, (ink, paper, block)
