"""Sorters as programs that run without sodeep: ``torch.export`` files (.pt2)."""

from __future__ import annotations

import copy
import io
import os
import warnings

import torch
from torch import nn

from sodeep._core.checks import check_at_least, check_writable, user_path
from sodeep._core.files import write_atomic
from sodeep.sorters.base import Sorter


def export_sorter(path: str | os.PathLike[str], sorter: Sorter, n: int | None = None) -> None:
    """Write a sorter as a ``torch.export`` program: scores (lists, n) -> ranks (lists, n), any number of lists.

    The program is read with ``torch.export.load(path).module()`` where torch is but sodeep is not, and gradients reach
    its scores. It does not check them: NaN in gives NaN out.

    Args:
        path: the .pt2 file.
        sorter: a sorter, frozen or not; its weights become constants.
        n: fix the length of the lists. None: any length from 2 on, or the one of a fixed-length sorter. The
            recurrent sorters that take any length need it: ``torch.export`` unrolls their loop.

    Raises:
        TypeError: not a sorter.
        OSError: `path` cannot be written.
        ValueError: a `path` of another kind of file; a recurrent sorter without `n`, or an `n` that is not the
            sorter's.

    Example:
        >>> import sodeep, tempfile
        >>> sorter = sodeep.build_sorter("set")
        >>> with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        ...     export_sorter(file.name, sorter)
        ...     program = torch.export.load(file.name).module()
        >>> scores = torch.randn(3, 12)
        >>> torch.allclose(program(scores), sorter(scores))
        True
    """
    if not isinstance(sorter, Sorter):
        raise TypeError(
            f"`sorter` must be a sodeep Sorter, got {type(sorter).__name__}. "
            "Export the sorter itself, not a compiled or wrapped one."
        )
    if user_path(path).suffix != ".pt2":
        raise ValueError(
            f"`path` must end in .pt2, a torch.export program, got {os.fspath(path)}. For another format write that, "
            "and convert it: torch.export.load reads it."
        )
    recurrent = any(isinstance(module, nn.RNNBase) for module in sorter.modules())
    if sorter.seq_len is not None and n not in (None, sorter.seq_len):
        raise ValueError(f"`n` must be {sorter.seq_len}, the length this {sorter.name} sorter was built for, got {n}.")
    if n is not None:
        check_at_least(n, 1, "n")
    n = sorter.seq_len if n is None else n
    if n is None and recurrent:
        raise ValueError(
            f"`n` must be given for the {sorter.name} sorter, whose loop over the list is unrolled, got None. "
            "Name the length of your lists."
        )
    check_writable(user_path(path), "path")
    shape = {0: torch.export.Dim("lists")}
    if n is None:
        shape[1] = torch.export.Dim("n", min=2)
    sorter = copy.deepcopy(sorter).freeze()  # or BatchNorm would go on taking its statistics from the batch
    scores = torch.zeros(3, n or 7, device=next(sorter.parameters()).device)
    with warnings.catch_warnings(), torch.enable_grad():
        # RNN modules keep their weights in a second, unregistered list
        warnings.filterwarnings("ignore", message=r"The tensor attributes? self\.rnn\._flat_weights")
        program = torch.export.export(sorter, (scores,), dynamic_shapes=(shape,))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_atomic(path, buffer.getvalue())
