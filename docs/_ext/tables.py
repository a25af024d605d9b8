"""Tables of what there is, made of the tables that the program itself reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer.cli
from pyroccam import data, guides
from pyroccam.cli.methods.table import METHODS, Method
from pyroccam.cli.signatures import said_of
from pyroccam.guides import parsing as guide_words
from pyroccam.inference import diagnostics
from pyroccam.models import priors
from pyroccam.models.priors import parsing as prior_words
from pyroccam.models.priors import structure as structure_priors
from typer.testing import CliRunner

from experiments.published import catalogue
from experiments.published import tables as result_tables

from . import arxiv
from .pages import first_paragraph, list_table, literal

__all__ = [
    "command_line",
    "data_sets",
    "depth_priors",
    "diagnostic_functions",
    "document_tables",
    "guide_table",
    "methods",
    "results",
    "structure_prior_table",
    "weight_priors",
]

Lines = Iterable[str]


def methods() -> Lines:
    """All methods in a table, and each one with its options."""
    rows = ([f"`{m.name}`_", m.title, arxiv.linked(m.reference)] for m in METHODS.values())
    yield from list_table(("method", "what it is", "source"), rows, (18, 46, 36))
    explained: dict[type, str] = {}
    for method in METHODS.values():
        yield from _method(method)
        first = explained.setdefault(type(method), method.name)
        if first != method.name:
            yield from (f"Its options are explained under `{first}`_.", "")
            continue
        said = said_of(type(method))
        options = [[literal(name), said[name]] for name in method.options]
        yield from list_table(("option", "what it is"), options, (24, 76))


def _method(method: Method) -> Lines:
    yield from (method.name, "-" * len(method.name), "")
    title = method.title[0].upper() + method.title[1:]
    yield from (f"{title}{'' if title.endswith('.') else '.'}", "")
    if method.full_batch:
        yield from ("It takes all rows in one batch.", "")
    over = {"stack": "a stack that can stop at any depth", "net": "any network",
            "graph": "a network with a graph of alternatives in it"}[method.over]  # fmt: skip
    ready = ", ".join(literal(name) for name in method.networks)
    yield f":Takes: {over}. Ready ones: {ready}."
    if method.options:
        yield f":Options: {_settings(method.options)}"
    if method.settings:
        yield f":Settings of the fit: {_settings(method.settings)}"
    yield ""


def _settings(found: Mapping[str, Any]) -> str:
    """Settings as they are written after ``--set``."""
    words = {None: "null", True: "true", False: "false"}
    shown = {k: words[v] if v is None or isinstance(v, bool) else v for k, v in found.items()}
    return ", ".join(literal(f"{name}={value}") for name, value in shown.items())


def depth_priors() -> Lines:
    """Everything among the priors that is one over depth."""
    found = [
        cls
        for cls in _classes(priors)
        if hasattr(cls, "log_probs") and cls is not priors.DepthPrior
    ]
    rows = ([_link(priors, cls), _about(cls)] for cls in found)
    yield from list_table(("prior", "what it is"), rows, (30, 70))
    yield from (_about(priors.parse).replace("A prior from words: ", "Words: "), "")


def weight_priors() -> Lines:
    """A table by the words for them."""
    rows = []
    for cls in prior_words.words().values():
        written = ", ".join(literal(one) for one in cls.words.split(", "))
        rows.append([written, _link(priors, cls), _about(cls)])
    yield from list_table(("words", "prior", "what it is"), rows, (28, 24, 48))


def structure_prior_table() -> Lines:
    """A table by the words for them."""
    rows = (
        [literal(word), _link(priors, cls), _about(cls)]
        for word, cls in structure_priors.words().items()
    )
    yield from list_table(("words", "prior", "what it is"), rows, (24, 24, 52))


def guide_table() -> Lines:
    """All guides, with the words for those that have one."""
    found: dict[str, list[str]] = {cls.__name__: [] for cls in _classes(guides)}
    for word, (kind, _) in guide_words.words().items():
        found[kind.__name__].append(literal(word))
    rows = (
        [", ".join(words), _link(guides, getattr(guides, name)),
         _about(getattr(guides, name))]
        for name, words in found.items()
    )  # fmt: skip
    yield from list_table(("words", "guide", "what it is"), rows, (28, 24, 48))


def diagnostic_functions() -> Lines:
    """Functions that there are to call."""
    found = [name for name in diagnostics.__all__ if inspect.isfunction(getattr(diagnostics, name))]
    if found:
        rows = (
            [_link(diagnostics, getattr(diagnostics, n)), _about(getattr(diagnostics, n))]
            for n in found
        )
        yield from list_table(("function", "what it asks"), rows, (32, 68))


def data_sets() -> Lines:
    """Those with a name."""
    rows = ([literal(e.name), e.task, e.origin, e.description] for e in data.available())
    yield from list_table(("name", "task", "from", "what it is"), rows, (22, 20, 18, 40))


def results(root: Path) -> dict[str, str]:
    """The tables of the result files, in Markdown, by the folder of an experiment."""
    return {
        name: _unbroken("\n".join(one.table(root / "experiments" / "results" / name)))
        for name, one in result_tables.specs().items()
    }


def document_tables(root: Path) -> dict[str, str]:
    """What each source document shows, and what became of it, in Markdown, by its name; under
    ``documents`` the conclusions."""
    kept = root / "experiments" / "results"
    found = {
        f"document_{name}": _unbroken("\n".join([
            f"**{one.title}.** {one.conclusion(kept)}", "", *catalogue.table(one, kept)
        ]))
        for name, one in catalogue.DOCUMENTS.items()
    }  # fmt: skip
    lines = [
        f"- [{one.title}](results/{one.page}.md): {one.conclusion(kept)}"
        for one in catalogue.DOCUMENTS.values()
    ]
    return {**found, "documents": "\n".join(lines)}


def _unbroken(text: str) -> str:
    """Numbers stay with their deviations, and the layers of a network (278-98-13) together."""
    text = text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    return re.sub(r"(?<=\d)-(?=\d)", "\N{NON-BREAKING HYPHEN}", text)


def command_line() -> Lines:
    """Every command with its options, in Markdown, by Typer's own command for that.

    Raises:
        RuntimeError: if that command fails.
    """
    asked = ["pyroccam.cli.commands", "utils", "docs", "--name", "pyroccam"]
    found = CliRunner().invoke(typer.cli.app, asked)
    if found.exit_code != 0:
        raise RuntimeError(f"typer {' '.join(asked)} failed: {found.output}") from found.exception
    commands = found.output[found.output.index("## `") :]
    yield re.sub(r"^\* `--help`: .*\n", "", commands, flags=re.MULTILINE)


def _classes(package: Any) -> list[type]:
    found = [getattr(package, name) for name in package.__all__]
    return [value for value in found if isinstance(value, type)]


def _about(value: object) -> str:
    return arxiv.linked(first_paragraph(value))


def _link(package: Any, value: Any) -> str:
    return f":py:obj:`~{package.__name__}.{value.__name__}`"
