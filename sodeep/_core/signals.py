"""Handlers of Ctrl-C, SIGTERM and SIGHUP that let work in progress be saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def stop_signals(interrupt: bool) -> Iterator[list[int]]:
    """Record Ctrl-C, SIGTERM and SIGHUP in the list that the context manager gives, for as long as it lasts.

    With `interrupt`, each also raises KeyboardInterrupt at once; in a destructor that would be lost, hence the list.
    Otherwise the first one is only recorded, for the work to end where it can, and a second one has its usual effect.
    Only the main thread may handle signals; elsewhere they are left alone, as are those that are ignored (nohup).
    """
    received: list[int] = []
    previous: dict[int, Any] = {}

    def restore() -> None:
        while previous:
            signal.signal(*previous.popitem())

    def record(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if interrupt:
            raise KeyboardInterrupt
        restore()

    if threading.current_thread() is threading.main_thread():
        for signum in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")):  # Windows has no last
            if signum is not None and signal.getsignal(signum) != signal.SIG_IGN:
                previous[signum] = signal.signal(signum, record)
    try:
        yield received
    finally:
        restore()
