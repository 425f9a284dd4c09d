"""Equal scores for equal rows, which a matrix product alone does not give.

Its kernel adds up the terms of an entry in an order that depends on the place of the entry: at the edge of a block, and
everywhere when one side is a single row. So copies of one row get scores that differ in their last bit, and a ranking
metric puts one above the other.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sodeep._core.checks import readable
from sodeep._core.sort import ascending


def tie_equal_rows(scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`scores` (n, m) of rows `x` (n, d) with rows `y` (m, d), in place: equal rows get the scores of their first.

    The gradient stays that of every pair by itself. Values are read, so under torch.compile nothing is changed.
    """
    if not readable(scores):
        return scores
    repeated = None
    for axis, rows in enumerate((x, y)):
        if axis == 0 or y is not x:
            repeated = copies_of(rows.detach())
        if repeated is not None:
            copies, first = repeated
            with torch.no_grad():
                scores.index_copy_(axis, copies, scores.index_select(axis, first))
    return scores


def copies_of(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """Rows that occur more than once (k,), and for each the first row equal to it (k,); None if there are none."""
    if rows.is_cpu:  # nearly always all differ in one place already, which is seen at once
        column = rows.numpy()[:, 0]
        if column.size <= 256:
            differ = len(set(column.tolist())) == column.size
        else:
            ordered = np.sort(column)
            differ = not (ordered[1:] == ordered[:-1]).any()
        if differ:
            return None
    some = _shared(rows[:, 0])
    if len(some) == 0:
        return None
    some = some[_shared(rows[some].amax(-1))]  # exact in any order, and rarely one number for two rows
    if len(some) == 0:
        return None
    group = torch.unique(rows[some], dim=0, return_inverse=True)[1]
    first = torch.full_like(group, len(rows)).scatter_reduce(0, group, some, "amin")
    return some, first[group]


def _shared(values: Tensor) -> Tensor:
    """Indices of the values (n,) that occur more than once."""
    ordered, order = ascending(values)
    same = ordered[1:] == ordered[:-1]
    return order[pad(same, (0, 1)) | pad(same, (1, 0))]
