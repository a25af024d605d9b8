"""Ctrl-C, kill and a closed terminal as a flag that the loop reads between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["SIGNALS", "StopSignal"]

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class StopSignal:
    """While active, the first signal of ``SIGNALS`` sets a flag; a second SIGINT acts as usual.

    A signal that is ignored, as by ``nohup``, stays so. Signals can be handled in the main thread
    alone: elsewhere the flag is never set.
    """

    def __init__(self) -> None:
        self.received = False
        self._former: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.received

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                former = signal.getsignal(number)
                # None is of a handler that was not set from Python, and could not be put back.
                if former is not None and former != signal.SIG_IGN:
                    self._former[number] = former
                    signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._former:
            number, handler = self._former.popitem()
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True
