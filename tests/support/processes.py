"""Several processes that train together. They are forked from a server that has imported
:mod:`warm`, and not from the tests: what these did with autograd's threads before would stay."""

import multiprocessing
import os
import pickle
import sys
import tempfile
import traceback
import warnings
from multiprocessing import forkserver
from pathlib import Path

import cloudpickle
import torch
import torch.distributed as dist
from pyroccam.inference.distributed import joined
from pyroccam.inference.distributed.joining import join, leave


def failing():
    """Work in which the second process fails, and the first waits for it. It is here, where a
    process that is spawned finds it."""
    if joined().rank == 1:
        raise ValueError("a mistake of one's own")
    joined().meet()


def together(work, size, *args, wait=300):
    """What ``work(*args)`` gives in each of ``size`` processes, by rank; what it raised, as
    text, where it raised; the exit code of one that was killed. They are joined by a file."""
    context = _server()
    cloudpickle.register_pickle_by_value(sys.modules[work.__module__])
    work = cloudpickle.dumps((work, args))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        ends, children = [], []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_run,
                args=(work, rank, size, Path(folder) / "store", theirs),
            )
            process.start()
            theirs.close()
            ends.append(ours)
            children.append(process)
        found = [_received(end, wait) for end in ends]
        for process in children:
            process.join(10)
            if process.is_alive():
                process.kill()
        return [
            process.exitcode if one is None else one
            for one, process in zip(found, children, strict=True)
        ]


def _server():
    """A context whose processes begin where :mod:`warm` has ended."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["warm"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _received(end, wait):
    try:
        return pickle.loads(end.recv_bytes()) if end.poll(wait) else None
    except EOFError:  # it was killed
        return None


def _run(work, rank, size, store, end):
    torch.set_num_threads(1)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    work, args = pickle.loads(work)
    try:
        join(dist.FileStore(str(store), size), rank, size)
        found = work(*args)
    except BaseException as error:
        if os.environ.get("TRACES"):
            traceback.print_exc()
        found = f"{type(error).__name__}: {error}"
    leave()
    end.send_bytes(pickle.dumps(found))  # of whole tensors: this process will be gone
    end.close()
    os._exit(0)
