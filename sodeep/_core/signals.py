"""Ctrl-C and its like: noted, so that what is under way can be kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def stop_signals(interrupt: bool) -> Iterator[list[int]]:
    """Note Ctrl-C, SIGTERM and SIGHUP meanwhile in the list that is given.

    With `interrupt`, each also raises KeyboardInterrupt at once; in a destructor that would be lost, hence the list.
    Otherwise the first one only stands in the list, for the work to end where it can, and a second one does as usual.
    Only the main thread may handle signals; elsewhere they are left alone, as are those that are ignored (nohup).
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def put_back() -> None:
        while before:
            signal.signal(*before.popitem())

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if interrupt:
            raise KeyboardInterrupt
        put_back()

    if threading.current_thread() is threading.main_thread():
        for signum in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")):  # Windows has no last
            if signum is not None and signal.getsignal(signum) != signal.SIG_IGN:
                before[signum] = signal.signal(signum, note)
    try:
        yield received
    finally:
        put_back()
