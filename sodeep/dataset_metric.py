"""A metric over a whole data set that comes batch by batch, on one process or several."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import describe
from sodeep._core.labels import label_tensor
from sodeep.distributed import check_index, drop_repeats, gather


class DatasetMetric:
    """A metric of all items of a data set, given batch by batch.

    The mean of a metric over batches is another number: a rank correlation of 32 items says little of thousands, and a
    query finds more among 32. Here the rows of all batches are kept, in main memory and without gradient, and the
    metric is that of all of them, on several processes too: on all of them `compute` gives the same.

    Args:
        metric: any function of rows, such as `spearman_corr` of predictions and targets, (n,) each, or
            `retrieval_metrics` of embeddings (n, d) and labels (n,), for which each process searches for its own rows.
        options: of that function.

    Raises:
        TypeError: a `metric` that cannot be called.

    Example:
        >>> from sodeep import spearman_corr
        >>> rho = DatasetMetric(spearman_corr)
        >>> for prediction, target in (([0.1, 0.4], [1.0, 3.0]), ([0.3, 0.2], [0.5, 2.0])):
        ...     rho.update(torch.tensor(prediction), torch.tensor(target))
        >>> rho.compute()  # of four items; the mean over the batches is 0
        tensor(0.4000)
    """

    def __init__(self, metric: Callable[..., Any], **options: Any) -> None:
        if not callable(metric):
            raise TypeError(f"`metric` must be a function of rows, got {describe(metric)}.")
        self.metric = metric
        self.options = options
        self._rows: list[tuple[Tensor, ...]] = []
        self._index: list[Tensor] = []

    def update(self, *rows: Any, index: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            rows: what the metric takes, in its order: tensors (n, ...), or labels as it takes them (n,).
            index: (n,) whole numbers, which item of the data set a row is. Rows of one item count once: a
                ``DistributedSampler`` repeats items until all processes have equally many. With every batch or none.

        Raises:
            TypeError: an `index` that is no tensor of whole numbers.
            ValueError: no rows, of different number, or other parts than in the batches before.
        """
        batch = tuple((x if isinstance(x, Tensor) else label_tensor(x)).detach().cpu() for x in rows)
        if not batch or any(x.ndim == 0 or len(x) != len(batch[0]) for x in batch):
            shown = ", ".join(map(describe, batch)) or "none"
            raise ValueError(f"`rows` must be tensors (n, ...) of one number of rows, got {shown}.")
        if self._rows and len(batch) != len(self._rows[0]):
            raise ValueError(
                f"`rows` must be as many as in the batches before, {len(self._rows[0])}, got {len(batch)}. "
                "To begin anew, call reset()."
            )
        if self._rows and (index is None) == bool(self._index):
            raise ValueError("`index` must be given with every batch or with none. To begin anew, call reset().")
        if index is not None:
            self._index.append(check_index(index, len(batch[0])).detach().cpu())
        self._rows.append(batch)

    def compute(self) -> Any:
        """The metric of all rows so far; every process must call it.

        Raises:
            ValueError: no batch was added.
        """
        if not self._rows:
            raise ValueError(
                "`update` must be called before `compute`, got no batch. On a process without rows, add "
                "an empty batch: rows[:0]."
            )
        rows = [torch.cat(parts) for parts in zip(*self._rows, strict=True)]
        index = torch.cat(self._index) if self._index else None
        if "gather" in inspect.signature(self.metric).parameters:
            return self.metric(*rows, gather=True, index=index, **self.options)
        rows = [gather(x) for x in rows]
        if index is not None:
            rows = list(drop_repeats(gather(index), *rows))
        return self.metric(*rows, **self.options)

    def reset(self) -> None:
        """Forget all rows, as for the next epoch."""
        self._rows, self._index = [], []
