"""Work of a process that hears a Ctrl-C while it begins: as this module is imported there."""

import os
import signal

if os.environ.get("CTRL_C_OF", str(os.getpid())) != str(os.getpid()):
    os.kill(os.getpid(), signal.SIGINT)


def work():
    """What is never done."""
    return "done"
