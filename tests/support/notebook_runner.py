"""Runs notebooks with the interpreter that runs this, and writes them with their outputs.

python tests/support/notebook_runner.py notebooks/*.ipynb
"""

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

__all__ = ["executed", "source_of", "stamped"]

PYTHON = {"display_name": "Python 3", "language": "python", "name": "python3"}


class _Here(KernelSpecManager):
    """Knows one kernel: this interpreter, whatever is installed for the user."""

    def get_kernel_spec(self, kernel_name):
        return KernelSpec(**get_kernel_dict())


def source_of(notebook):
    """A digest of all cells as they are written, outputs apart."""
    cells = [f"{cell.cell_type}\n{cell.source}" for cell in notebook.cells]
    return hashlib.sha256("\n\n".join(cells).encode()).hexdigest()


def executed(path, folder, *, small=False, timeout=600):
    """A notebook with the outputs of a run from top to bottom.

    Arguments:
        path: of the notebook, which is left as it is.
        folder: in which the kernel runs.
        small: set ``PYROCCAM_NOTEBOOK_SMALL``, under which notebooks compute less.
        timeout: of a cell, in seconds.

    Raises:
        CellExecutionError: if a cell raises.
    """
    notebook = nbformat.read(path, as_version=4)
    env = dict(os.environ)
    env.pop("PYROCCAM_NOTEBOOK_SMALL", None)
    if small:
        env["PYROCCAM_NOTEBOOK_SMALL"] = "1"
    # A dependency asks for its progress bar's widgets, which pages have no use for.
    env["PYTHONWARNINGS"] = "ignore:IProgress not found"
    with tempfile.TemporaryDirectory() as sockets:  # rather than ports, which anyone could read
        manager = AsyncKernelManager(
            kernel_spec_manager=_Here(), transport="ipc", ip=f"{sockets}/kernel"
        )
        client = NotebookClient(
            notebook, km=manager, timeout=timeout, startup_timeout=timeout, coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        client.execute(env=env, cleanup_kc=True)
    return notebook


def stamped(notebook):
    """The notebook as it is kept: no times, no names of machines, and what it was made from."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": PYTHON,
            "language_info": {"name": "python"},
            "source_sha256": source_of(notebook),
            **({"widgets": shown} if (shown := notebook.metadata.get("widgets")) else {}),
        }
    )
    return notebook


def main(paths):
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(stamped(executed(path, folder)), path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
