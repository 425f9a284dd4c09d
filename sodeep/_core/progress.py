"""A progress line for long work: the fraction done and the time left."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

FIRST = 5.0
"""Seconds to the first line where there is no terminal."""

RAREST = 600.0
"""Most seconds between two such lines."""

REDRAWN = 0.2
"""Seconds between two states of the line on a terminal."""


_reported = ContextVar("_reported", default=True)


@contextlib.contextmanager
def no_progress() -> Iterator[None]:
    """In this context no progress is reported but to streams that are given."""
    token = _reported.set(False)
    try:
        yield
    finally:
        _reported.reset(token)


class Progress:
    """Report how much of the work is done and about how much time is left, by default on stderr.

    On a terminal that is one line, drawn again and again. In a file or a pipe it is a line after `FIRST` seconds, and
    then ever more rarely, each when the time so far has doubled, but at most `RAREST` seconds after the one before: a
    few lines in the first minute, a dozen in an hour. Work is never stopped by a stream that cannot be written to.

    Args:
        label: what is done.
        initial: fraction of the work that was done before.
        estimate_from: fraction of the work after which the time left is estimated, for work that takes long to begin.
        stream: where to.
        clock: seconds, from any start.

    Example:
        >>> progress = Progress("sorting", stream=sys.stdout, clock=iter([0.0, 20.0]).__next__)
        >>> progress.update(0.25)
        sorting: 25%, about 1:00 left
    """

    def __init__(
        self,
        label: str,
        initial: float = 0.0,
        estimate_from: float = 0.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.initial, self.clock = label, initial, clock
        self.estimate_from = estimate_from
        self.stream: TextIO | None = sys.stderr if stream is None and _reported.get() else stream
        self.terminal = self.stream is not None and self.stream.isatty()  # None in programs without a console
        self.start = clock()
        self.next = 0.0 if self.terminal else FIRST

    def update(self, fraction: float, status: Callable[[], str] | None = None) -> None:
        """May be called at any rate; `fraction` of the work is done, and `status` is called if a line is written."""
        if self.stream is None:
            return
        spent = self.clock() - self.start
        if spent < self.next:
            return
        self.next = spent + (REDRAWN if self.terminal else min(max(spent, FIRST), RAREST))
        line = f"{self.label}: {min(fraction, 1):.0%}"
        done = fraction - self.initial
        if done > 0 and done >= self.estimate_from:
            left = spent * max(1 - fraction, 0) / done
            line += f", about {format_seconds(left)} left"
        self._write(line + (f"; {status()}" if status is not None else ""))

    def close(self) -> None:
        """Clear the line on a terminal; the next update draws it anew."""
        if self.terminal:
            self._write("")
            self.next = 0.0

    def _write(self, line: str) -> None:
        if self.stream is None:
            return
        try:
            if self.terminal:
                self.stream.write(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}")
            else:
                self.stream.write(line + "\n")
            self.stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe or file
            self.stream = None


def format_seconds(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any.

    Example:
        >>> format_seconds(8), format_seconds(75), format_seconds(3 * 3600 + 62)
        ('0:08', '1:15', '3:01:02')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
