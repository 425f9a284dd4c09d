"""Atomic writes, a lock between processes, and removal of the temporary files that killed processes left behind."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from sodeep._core.checks import user_path


def write_atomic(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write `data` to `path` as `open_atomic` does."""
    with open_atomic(path) as file:
        file.write(data)
    return user_path(path)


@contextlib.contextmanager
def open_atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, so that at any moment what is at `path` is the old file or the new one, whole.

    It is written under a temporary name in the same folder, forced to the disk and renamed; its permissions are those
    of any new file. If that fails, the temporary file is removed and `path` is as before. What killed writers of the
    same file left is removed too.
    """
    path = user_path(path)
    target = Path(os.path.realpath(path))  # through a symbolic link, not over it
    if not target.parent.is_dir():
        raise FileNotFoundError(f"`path` must be in a folder that exists, got {path}. Make it first: {target.parent}.")
    if target.is_dir():
        raise ValueError(f"`path` must be a file, got {path}, which is a folder. Add a name: {path}/my.safetensors.")
    if target.exists() and not target.is_file():  # renaming over /dev/null, say, would be the end of it
        raise ValueError(f"`path` must be a regular file, got {path}, a device or a pipe. Choose another name.")
    sweep(target)
    temporary, file = _new_temporary(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "posix":  # while it is locked; elsewhere an open file cannot be renamed
                os.replace(temporary, target)
        if os.name != "posix":
            os.replace(temporary, target)
    except OSError as error:  # a full disk does not say of which file
        if error.errno is None or error.filename not in (None, temporary, str(temporary)):
            raise  # of what was done to get the content
        raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _new_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new file beside `target`, locked as long as it is open."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        file = path.open("xb")
        if not _lock(file, wait=True) or os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()  # swept away by another process before it was locked


def sweep(path: Path) -> None:
    """Remove what killed writers of the file `path` left beside it; of a folder, what those of all files in it left.

    A file that is being written is locked, and stays. A temporary folder cannot be: nobody may be writing one now.
    """
    path = Path(os.path.realpath(path))
    folder, temporary = path, r"\..+\.[0-9a-f]{8}\.tmp|.+-[0-9a-f]{8}\.\d+\.tmp"  # the second of older versions
    if not path.is_dir():
        folder, temporary = path.parent, rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp"
    for leftover in folder.iterdir() if folder.is_dir() else ():
        if re.fullmatch(temporary, leftover.name):
            with contextlib.suppress(OSError):  # of another user, say, or written just now
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                    continue
                with leftover.open("r+b") as file:
                    if _lock(file, wait=False):
                        leftover.unlink()


@contextlib.contextmanager
def sole_writer(lock: Path, refusal: str) -> Iterator[None]:
    """Hold the lock file `lock` in this context. The system frees the lock of a process that ends, however it ends.

    Where files cannot be locked (Windows, some network file systems), nothing is refused.

    Raises:
        FileExistsError: another process, or another part of this one, holds it; the message is `refusal`.
    """
    if os.name != "posix":
        yield
        return
    with contextlib.ExitStack() as stack:
        held = False
        while not held:
            file = stack.enter_context(lock.open("w"))
            try:
                if not _lock(file, wait=False):
                    break
            except BlockingIOError:
                raise FileExistsError(refusal) from None
            with contextlib.suppress(FileNotFoundError):  # whoever held it may have removed it meanwhile
                held = os.path.samestat(os.fstat(file.fileno()), lock.stat())
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _lock(file: IO[Any], wait: bool) -> bool:
    """Lock an open file until it is closed; False where files cannot be locked.

    Raises:
        BlockingIOError: another process has it, and we do not wait.
    """
    if os.name != "posix":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return False
    return True
