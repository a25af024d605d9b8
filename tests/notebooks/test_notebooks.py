"""Notebooks run from top to bottom, and their outputs are those of their very source."""

import re
from pathlib import Path

import nbformat
import pytest
from notebook_runner import executed, source_of

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
RUN = "run `python tests/support/notebook_runner.py notebooks/{}` and keep what it writes"
MOST_BYTES = 600_000

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def streams(notebook):
    return [o for c in code(notebook) for o in c.outputs if o.output_type == "stream"]


def refuse_noise(notebook):
    """Neither errors nor warnings among the outputs."""
    kinds = {output.output_type for cell in code(notebook) for output in cell.outputs}
    assert "error" not in kinds
    for stream in streams(notebook):
        assert stream.name == "stdout", stream.text
        assert not re.search(r"\b\w*Warning\b", stream.text), stream.text


def test_there_are_notebooks():
    assert NOTEBOOKS


@each
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_it_runs(path, tmp_path):
    refuse_noise(executed(path, tmp_path, small=True))
    assert not list(tmp_path.iterdir())  # nor does it leave files behind


@each
def test_outputs_are_of_this_source(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    hint = RUN.format(path.name)
    counts = [cell.execution_count for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1)), hint
    assert notebook.metadata.get("source_sha256") == source_of(notebook), hint
    assert any(cell.outputs for cell in code(notebook)), hint
    refuse_noise(notebook)


@each
def test_a_page_of_its_own(path):
    """One title, a small file, and nothing of the machine that it was made on."""
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    assert notebook.cells[0].source.startswith("# ")
    assert path.stat().st_size < MOST_BYTES
    assert notebook.metadata.kernelspec.name == "python3"
    assert not any("execution" in cell.metadata for cell in notebook.cells)
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text())


def test_another_source_is_seen():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("a = 1")])
    before = source_of(notebook)
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text="1\n")]
    assert source_of(notebook) == before
    notebook.cells[0].source = "a = 2"
    assert source_of(notebook) != before


@pytest.mark.parametrize(
    "output",
    [
        nbformat.v4.new_output("stream", name="stderr", text="slow\n"),
        nbformat.v4.new_output("stream", text="UserWarning: odd\n"),
        nbformat.v4.new_output("error", ename="E", evalue="e", traceback=[]),
    ],
    ids=["stderr", "warning", "error"],
)
def test_noise_is_seen(output):
    cell = nbformat.v4.new_code_cell("a")
    cell.outputs = [output]
    with pytest.raises(AssertionError):
        refuse_noise(nbformat.v4.new_notebook(cells=[cell]))
