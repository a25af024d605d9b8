"""Notebooks run from top to bottom, and their outputs are those of their very source."""

import difflib
import math
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


@each
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_it_runs(path, tmp_path):
    refuse_noise(executed(path, tmp_path, small=True))
    assert not list(tmp_path.iterdir())  # nor does it leave files behind


NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def said(cell):
    """Kinds of the outputs of a cell, the words of their texts, and the numbers between them."""
    texts = [o.get("text", o.get("data", {}).get("text/plain", "")) for o in cell.outputs]
    numbers = [float(one.replace(",", "")) for one in NUMBER.findall(" ".join(texts))]
    words = re.findall(r"[^\W\d]+", " ".join(texts))
    return [o.output_type for o in cell.outputs], words, numbers


def others(kept, again):
    """What another run says otherwise, by the number of a cell: another kind of output, a tenth of
    the words, or a fifth of the numbers by more than a fifth. Times differ by more."""
    found = {}
    for k, (before, after) in enumerate(zip(code(kept), code(again), strict=True), 1):
        (kinds, words, numbers), (kinds_now, words_now, now) = said(before), said(after)
        alike = difflib.SequenceMatcher(None, words, words_now, autojunk=False).ratio()
        if kinds != kinds_now or alike < 0.9:
            found[k] = words_now
        elif not {"ms", "s", "seconds", "faster"} & {*words} and len(now) == len(numbers):
            near = [
                math.isclose(a, b, rel_tol=0.2, abs_tol=1e-3)
                for a, b in zip(numbers, now, strict=True)
            ]
            if near and sum(near) < 0.8 * len(near):
                found[k] = now
    return found


@each
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_it_says_again_what_is_kept(path, tmp_path):
    again = executed(path, tmp_path)
    assert others(nbformat.read(path, as_version=4), again) == {}


def test_another_output_is_told():
    path = NOTEBOOKS[0]
    kept, again = (nbformat.read(path, as_version=4) for _ in range(2))
    assert others(kept, again) == {}
    spoken = next(cell for cell in code(again) if said(cell)[1])
    spoken.outputs[0]["text"] = "something else"
    assert [*others(kept, again)] == [spoken.execution_count]


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
