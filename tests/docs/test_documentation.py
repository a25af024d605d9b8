"""The pages: nothing public is left out, and what they say can be read and compiled."""

import ast
import configparser
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

for needed in ("sphinx", "myst_nb", "math_core"):
    pytest.importorskip(needed, reason="of the extra `docs`")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))  # the extensions of the pages are no part of the package

from _ext import arxiv, mathml, notebooks, reference, tables  # noqa: E402
from math_core import LatexError  # noqa: E402
from pyroccam.cli.commands import app  # noqa: E402
from pyroccam.cli.methods.table import METHODS  # noqa: E402
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

MODULES = list(reference.modules())
PUBLIC = [(module, name) for module in MODULES for name in reference.names(module)]
# Written by hand: the others are made when pages are built.
WRITTEN = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0][0] != "_"
                 and "generated" not in path.parts)  # fmt: skip
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(DOCS)}-{number}")
    for path in WRITTEN
    if path.name != "extending.md"  # whose blocks run as they stand
    for number, block in enumerate(FENCE.findall(path.read_text()))
]


def described(module, name):
    """What stands in a docstring of its own, or below the assignment of a name."""
    value = getattr(module, name)
    if isinstance(value, type) or inspect.isroutine(value):
        text = value.__doc__ or ""
        return "" if text.startswith(f"{value.__name__}(") else text  # as dataclasses make one
    source = ast.parse(inspect.getsource(module))
    origin = module.__name__
    for node in source.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            origin = importlib.util.resolve_name("." * node.level + node.module, module.__package__)
    documented = ModuleAnalyzer.for_module(origin).find_attr_docs()
    return " ".join(documented.get(("", name), []))


@pytest.mark.parametrize(
    ("module", "name"), [pytest.param(m, n, id=f"{m.__name__}.{n}") for m, n in PUBLIC]
)
def test_every_public_name_has_a_docstring(module, name):
    assert (described(module, name) or "").strip(), f"{module.__name__}.{name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_page_of_a_module_has_all_that_it_offers(module):
    text = reference.page(module)
    shown = re.findall(r"^\.\. auto(?:class|function|exception|data):: (\w+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted(reference.names(module))
    below = re.findall(r"^   (pyroccam\.\S+)$", text, re.MULTILINE)
    assert below == [child.__name__ for child in reference.children(module)]


def test_what_calls_give_back_is_on_the_page_of_its_room_once():
    shown = []
    for module in MODULES:
        classes = reference.given_back().get(module.__name__, [])
        listed = re.findall(
            r"^\.\. autoclass:: (pyroccam\S+)$", reference.page(module), re.MULTILINE
        )
        assert listed == [f"{cls.__module__}.{cls.__name__}" for cls in classes]
        assert all(name.startswith(f"{module.__name__}.") for name in listed)
        assert all(inspect.getdoc(cls) for cls in classes)
        shown += classes
    assert len({*map(id, shown)}) == len(shown)
    assert not {*map(id, shown)} & {id(getattr(module, name)) for module, name in PUBLIC}
    # of a call, a property, a field, a base, a docstring, and by a type checker's import
    expected = {"Khat", "Posterior", "PathPoint", "Curvature", "Report", "Streamed"}
    assert expected <= {cls.__name__ for cls in shown}


def test_every_package_is_installed_and_has_a_page_if_it_offers_something():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    installed = config["options"]["packages"].split()
    rooms = {name.split(".")[1] for name in installed}
    found = [path.parent for room in rooms for path in (ROOT / room).rglob("__init__.py")]
    names = [".".join(("pyroccam", *path.relative_to(ROOT).parts)) for path in found]
    assert sorted(names) == sorted(installed)
    paged = {name for name in installed if name.split(".")[1] in reference.ROOMS}
    paged = {name for name in paged if hasattr(importlib.import_module(name), "__all__")}
    assert len(paged) > len(reference.ROOMS)
    assert paged <= {module.__name__ for module in MODULES}


@pytest.mark.parametrize("block", BLOCKS)
def test_code_on_the_pages_compiles_and_names_what_there_is(block):
    tree = ast.parse(block)
    compile(tree, "page", "exec")
    rooms = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pyroccam":
            for alias in node.names:
                rooms[alias.name] = importlib.import_module(f"pyroccam.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node).split(".")
            value = rooms.get(path[0])
            for name in path[1:]:
                value = None if value is None else getattr(value, name)


@pytest.mark.nightly
def test_what_is_added_on_the_page_of_extensions_works(tmp_path):
    """In a process of its own, for a prior and a guide with words are known from then on."""
    blocks = FENCE.findall((DOCS / "extending.md").read_text())
    check = """
import inspect
x = digits.x_test[:5]
assert fit.predict(x).shape == small.net(x).shape == smaller.net(x).shape == (5, 10)
assert fit.evaluate("test")["accuracy"] > 0.15 and len(findings) > 3
assert "posterior" in str(draws) and "log_likelihood" in str(draws)
assert isinstance(models.priors.parse_weights("laplace:0.2"), Laplace)
assert isinstance(guides.parse("low-rank", model), LowRank)
assert isinstance(structured.guide.edge("1.x-y.structure"), NormalLogits)
for case, given in ((TestLaplace(), (Laplace(2.0),)), (TestLowRank(), ())):
    for name in dir(case):
        takes = inspect.signature(getattr(case, name)).parameters if name[:5] == "test_" else ["no"]
        if [*takes] == ["prior"] * len(given):
            getattr(case, name)(*given)
smaller_pair = inference.narrow(fit, cut=inference.Thresholds(3.0))
inference.fit(*smaller_pair, digits, **options)
assert METHODS["lasso"].options["threshold"] == 3.0
"""
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, check]))
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]


def test_commands_on_the_pages_are_commands():
    commands = typer.main.get_command(app).commands
    shown = [
        command
        for path in WRITTEN
        for block in re.findall(
            r"^```console\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
        )
        for command in re.findall(r"^\$ pyroccam (\S+)", block, re.MULTILINE)
    ]
    assert len(shown) > 10
    assert set(shown) <= set(commands)


def docstrings():
    """Of modules with formulas."""
    for room in ("data", "models", "guides", "inference", "experiments", "benchmarks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text()
            if "math:" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    yield path, ast.get_docstring(node) or ""


def formulas(text):
    for found in re.findall(r":math:`([^`]+)`", text):
        yield found, False
    for found in re.findall(r"\.\. math::(.*\n?(?: *\n| {4,}.*\n?)*)", text):
        yield " ".join(found.split()), True


def test_every_formula_of_a_docstring_can_be_drawn():
    count = 0
    for path, text in docstrings():
        for latex, block in formulas(text):
            count += 1
            try:
                assert mathml.mathml(latex, block).startswith("<math")
            except LatexError as error:
                pytest.fail(f"{path.relative_to(ROOT)}: {latex}: {error}")
    assert count > 100


def test_papers_are_linked_where_they_are_text():
    link = "`arXiv:1705.08665 <https://arxiv.org/abs/1705.08665>`__"
    assert arxiv.linked("Louizos 2017, arXiv:1705.08665.") == f"Louizos 2017, {link}."
    assert arxiv.linked("``arXiv:1705.08665``") == "``arXiv:1705.08665``"
    assert arxiv.linked(link) == link


def test_every_method_has_a_row_and_a_section_with_its_options():
    lines = list(tables.methods())
    for method in METHODS.values():
        assert f"   * - `{method.name}`_" in lines
        at = lines.index("-" * len(method.name), lines.index(method.name))
        section = "\n".join(lines[at : at + 8])
        for option in method.options:
            assert f"``{option}=" in section


def test_every_command_and_option_is_on_the_page():
    text = "".join(tables.command_line())
    commands = typer.main.get_command(app).commands
    assert re.findall(r"^## `pyroccam (\S+)`$", text, re.MULTILINE) == list(commands)
    for command in commands.values():
        for name in [name for option in command.params for name in option.opts]:
            assert not name.startswith("--") or f"`{name}" in text


def test_results_are_tables_of_the_result_files():
    found = tables.results(ROOT)
    text = found["spirals"]
    spread = json.loads((ROOT / "experiments/results/spirals/ldn.json").read_text())["spread"]
    assert text.startswith("| method |")
    assert f"{spread['test']['accuracy']['mean']:.4f}\N{NO-BREAK SPACE}±" in text


def test_every_table_and_figure_has_a_place():
    pages = [ROOT / "docs" / "results.md", *(ROOT / "docs" / "results").glob("*.md")]
    page = "".join(path.read_text() for path in pages)
    for name, text in tables.results(ROOT).items():
        assert (f"generated/include/results_{name}.md" in page) == bool(text)
    for name in tables.document_tables(ROOT):
        assert f"generated/include/{name}.md" in page
    gallery = (ROOT / "docs/results/gallery.md").read_text()
    for path in (ROOT / "experiments/results").rglob("*.png"):
        assert f"(../../{path.relative_to(ROOT)})" in gallery, path


def test_badges_say_what_the_package_says_of_itself():
    about = configparser.ConfigParser()
    about.read(ROOT / "setup.cfg")
    python = about["options"]["python_requires"].removeprefix(">=")
    badges = re.findall(r"badge/(\w+)-(.+?)-\w+\)", (ROOT / "README.md").read_text())
    assert dict(badges) == {"python": f"{python}%2B", "licence": about["metadata"]["license"]}


def test_notebooks_are_copied_and_taken_away(tmp_path):
    source, target = tmp_path / "notebooks", tmp_path / "generated"
    assert notebooks.copy(source, target) == []
    assert list(notebooks.listing([])) == ["There are none yet."]
    source.mkdir()
    (source / "b.ipynb").write_text("2")
    (source / "a.ipynb").write_text("1")
    assert notebooks.copy(source, target) == ["a", "b"]
    assert "   /generated/notebooks/a" in notebooks.listing(["a"])
    (source / "a.ipynb").unlink()
    (source / "b.ipynb").write_text("3")
    assert notebooks.copy(source, target) == ["b"]
    assert [(p.name, p.read_text()) for p in target.iterdir()] == [("b.ipynb", "3")]
