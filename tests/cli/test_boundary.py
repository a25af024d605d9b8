"""Whatever is raised becomes a message: one for the person, one for their code, one for ours."""

import importlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyroccam.cli import App, PlainConsole, boundary
from pyroccam.cli.boundary import place_in_own_code
from pyroccam.cli.commands import training
from pyroccam.cli.console import printable, styled
from pyroccam.data import PyroccamError
from pyroccam.inference import Interrupted, distributed
from pyroccam.inference.training import StopSignal
from typer.testing import CliRunner


def outcome(error):
    """Exit code and words of a command that does this."""
    app = App()

    @app.command()
    def only():
        error()

    result = CliRunner().invoke(app, [])
    return result.exit_code, " ".join(result.output.split())


def raising(error):
    def function():
        raise error

    return function


def own_code(tmp_path, body):
    """A function of a person's, in a file of theirs."""
    path = tmp_path / "theirs.py"
    path.write_text(f"def theirs():\n    {body}\n")
    found = {}
    exec(compile(path.read_text(), path, "exec"), found)
    return found["theirs"]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (PyroccamError("a", "b", "c"), 2, f"Error: {PyroccamError('a', 'b', 'c')}"),
        (OSError(28, "No space left"), 2, f"Error: {OSError(28, 'No space left')}"),
        (MemoryError(), 2, "Error: there is not enough memory for this; try: fewer rows"),
        (KeyboardInterrupt(), 130, "Stopped. What is in the folder of the run goes on with"),
        (Interrupted("Stopped after step 3"), 130, "Stopped after step 3 Go on by the same comman"),
        (ValueError("a" * 9000), 70, f"Unexpected error: ValueError: {'a' * 750} ... {'a' * 750}."),
        (AttributeError("'x' [/x] has no y"), 70, "Unexpected error: AttributeError: 'x' [/x] has"),
    ],
)
def test_what_a_person_can_mend_and_the_last_resorts(error, code, words, monkeypatch):
    """Of a defect of ours the traceback goes to a file."""
    monkeypatch.setattr("pyroccam.cli.boundary.place_in_own_code", lambda error: None)
    got, said = outcome(raising(error))
    assert got == code
    assert said.startswith(words)
    if code == 70:
        path = Path(said.split(" with ")[1].rstrip("."))
        assert str(error) in path.read_text()
        assert "Traceback" in path.read_text()
        path.unlink()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{}['x']", "KeyError: 'x' is missing"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise ValueError('[/x] odd')", "ValueError: [/x] odd"),
        ("assert False", "AssertionError"),
        ("open('/nowhere/at/all')", "FileNotFoundError: [Errno 2] No such file"),
        ("import json; json.loads('{')", "JSONDecodeError: Expecting"),
    ],
)
def test_an_error_in_a_persons_code_names_the_place(tmp_path, body, words):
    """The innermost of theirs."""
    code, said = outcome(own_code(tmp_path, body))
    assert code == 2
    assert said.startswith(f"Error: your code failed, theirs.py, line 2, in theirs: {words}")


@pytest.mark.parametrize("folder", ["venv/lib/python3/site-packages", "lib/python3/dist-packages"])
def test_no_installed_package_is_theirs(tmp_path, folder):
    """Wherever it is: folders of packages may be joined."""
    installed = tmp_path / folder
    installed.mkdir(parents=True)
    with pytest.raises(KeyError) as caught:
        own_code(installed, "raise KeyError('x')")()
    assert place_in_own_code(caught.value).startswith(Path(__file__).name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [/x] :smile:", "plain [/x] :smile:"),
        ("a\x1b[31mred\x07", "a\\x1b[31mred\\x07"),
        ("b\udcff", "b\\udcff"),
        ("Zürich 図 x\u00a0y", "Zürich 図 x y"),
        ("two\nlines", "two\nlines"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_it_is(text, shown, capsys):
    assert printable(text) == shown
    console = PlainConsole(width=200)
    console.say(text)
    console.print(text)
    console.print(styled((text, "bold")))
    assert capsys.readouterr().out == f"{shown}\n" * 3
    PlainConsole(width=20).say("Written to ", ("/a/" * 40, "bold"))  # in a pipe it is one line
    assert capsys.readouterr().out == f"Written to {'/a/' * 40}\n"


def listing_methods():
    command = [sys.executable, "-m", "pyroccam.cli.main", "methods"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


@pytest.fixture
def pressed(tmp_path, monkeypatch):
    """A maker of a module that hears Ctrl-C so often while it is imported, and then is made to its
    end."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "hears_ctrl_c.py"

    def module(times):
        lines = ["import signal", *["signal.raise_signal(signal.SIGINT)"] * times, "whole = True"]
        path.write_text("\n".join(lines))
        return path.stem

    yield module
    sys.modules.pop(path.stem, None)


@pytest.fixture
def nobodys(monkeypatch, tmp_path):
    """What is there is an installed package."""
    monkeypatch.setattr(boundary, "_NOBODYS", [*boundary._NOBODYS, tmp_path])


def imported(name):
    """A command that imports it, and then takes long: how it ends, and what it has imported."""
    found = []

    def command():
        found.append(importlib.import_module(name))
        time.sleep(60)

    begun = time.monotonic()
    code, _ = outcome(command)
    assert time.monotonic() - begun < 55
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return code, [module.whole for module in found]


@pytest.mark.usefixtures("nobodys")
@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_waits_for_the_end_of_an_import(pressed, presses):
    """As of torch, which aborted the process if it was interrupted while it was made."""
    assert imported(pressed(presses)) == (130, [True])


def test_ctrl_c_ends_a_module_of_a_persons_own(pressed):
    assert imported(pressed(1)) == (130, [])


@pytest.mark.usefixtures("nobodys")
@pytest.mark.parametrize(("presses", "code"), [(1, 0), (2, 130)])
def test_ctrl_c_while_a_fit_imports_is_the_fits(pressed, presses, code):
    """The first asks it to leave after a step; a second waits for the import, too."""
    found = []

    def command():
        with StopSignal() as stop:
            found.append(importlib.import_module(pressed(presses)).whole)
            time.sleep(3 * boundary._AGAIN if presses == 1 else 60)
            found.append(stop.received)

    assert outcome(command)[0] == code
    assert found == [True, True][: 3 - presses]


def test_a_ctrl_c_that_waits_is_heard_before_processes_are_started(monkeypatch):
    monkeypatch.setattr(distributed, "launch", lambda *_: pytest.fail("started"))

    def command():
        monkeypatch.setattr(boundary, "_waits", True)
        training._in_processes(2, {})

    assert outcome(command)[0] == 130


def test_the_timer_of_somebody_else_is_no_ctrl_c():
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        assert outcome(boundary.hear_ctrl_c)[0] == 0
        assert signal.setitimer(signal.ITIMER_REAL, 0.0)[0] > 0
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_reader_that_goes_away_ends_nothing():
    """As ``| head`` does: the run goes on, and says no more."""
    process = listing_methods()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
