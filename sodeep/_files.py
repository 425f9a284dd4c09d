"""Files that two processes may want at once, and files that a killed one leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp|.+-[0-9a-f]{8}\.\d+\.tmp")
"""Names that are only there while something is written: those of `sodeep.checkpoint.write_atomic`, and older ones."""


@contextlib.contextmanager
def sole_writer(lock: Path, refusal: str) -> Iterator[None]:
    """Hold the file `lock` meanwhile. The system frees the lock of a process that ends, however it ends.

    Where files cannot be locked (Windows, some network file systems), nothing is refused.

    Raises:
        FileExistsError: another process, or another part of this one, holds it; the message is `refusal`.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    with contextlib.ExitStack() as stack:
        held = False
        while not held:
            file = stack.enter_context(lock.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileExistsError(refusal) from None
            except OSError:  # a file system without locks
                break
            with contextlib.suppress(FileNotFoundError):  # whoever held it may have removed it meanwhile
                held = os.path.samestat(os.fstat(file.fileno()), lock.stat())
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what a killed process was writing in the folder. Nobody may be writing there now."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _TEMPORARY.fullmatch(path.name):
            with contextlib.suppress(OSError):  # of another user, say: it does no harm
                shutil.rmtree(path) if path.is_dir() else path.unlink()
