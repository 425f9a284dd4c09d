"""A progress bar that leaves the cursor as it is."""

from __future__ import annotations

from typing import Any, TextIO

import click

_HIDE_CURSOR = "\033[?25l"


class _CursorStays:
    """A stream that does not pass on what hides the cursor."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.replace(_HIDE_CURSOR, ""))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def progress_bar(file: TextIO, **options: Any) -> Any:
    """`click.progressbar`, which hides the cursor and leaves it so when the process is ended by a signal."""
    return click.progressbar(file=_CursorStays(file), **options)  # type: ignore[call-overload]
