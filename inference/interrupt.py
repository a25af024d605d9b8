"""Ctrl-C and kill as a flag that the loop reads between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignal"]


class StopSignal:
    """While active, the first SIGINT or SIGTERM sets a flag; a second SIGINT acts as usual.

    Signals can be handled in the main thread alone: elsewhere the flag is never set.
    """

    def __init__(self) -> None:
        self.received = False
        self._former: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.received

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True
