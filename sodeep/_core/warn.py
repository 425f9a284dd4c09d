"""Warnings that point to the code that called this library, however many frames are in between."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_INSIDE = ("sodeep", "torch")
"""Packages whose frames are not a user's: this one, and torch, which calls modules."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """`warnings.warn` at the nearest caller outside `_INSIDE`."""
    frame: FrameType | None = sys._getframe(1)
    level = 2  # 1 is this function
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
