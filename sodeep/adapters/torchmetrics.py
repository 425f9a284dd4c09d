"""Metrics of sodeep as a ``torchmetrics.Metric``: in a MetricCollection, logged by Lightning, reduced over processes.

Where both libraries have a metric, on scores without ties, above 0:

==================================================  ======================================================
``RankingMetric(spearman_corr)``                    ``SpearmanCorrCoef()``
``RankingMetric(average_precision)``                ``RetrievalMAP(empty_target_action="skip")``
``RankingMetric(ndcg, gain="linear")``              ``RetrievalNormalizedDCG(empty_target_action="skip")``
``RankingMetric(reciprocal_rank)``                  ``RetrievalMRR(empty_target_action="skip")``
``RankingMetric(recall_at_k, k=5)``                 ``RetrievalRecall(empty_target_action="skip", top_k=5)``
``RankingMetric(hit_rate_at_k, k=5)``               ``RetrievalHitRate(empty_target_action="skip", top_k=5)``
==================================================  ======================================================

They differ in three things. torchmetrics counts a query without a relevant item as 0 if not told otherwise; here it is
left out. Its `RetrievalMAP` (of 1.9) takes items with a score of 0 or less for irrelevant: it does not fit cosines or
logits. And its retrieval metrics, but for nDCG, take tied items in any order; here ties do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import describe
from sodeep._core.extras import needed
from sodeep.distributed import drop_repeats

with needed("torchmetrics", "sodeep.adapters.torchmetrics"):
    from torchmetrics import Metric


class RankingMetric(Metric):
    """A metric over a data set that comes batch by batch, as a metric of torchmetrics: `DatasetMetric` in its form.

    The rows of all batches are kept. The metric is of all of them, on several processes of those of all.

    Args:
        metric: a function of two tensors: one of `sodeep.metrics`, of predictions and targets; `retrieval_metrics`, of
            embeddings and labels, which gives a dictionary; or your own.
        options: of that function. Those of ``torchmetrics.Metric`` are attributes, such as ``compute_on_cpu``.

    Raises:
        TypeError: a `metric` that cannot be called.

    Example:
        >>> from sodeep import average_precision, spearman_corr
        >>> rho = RankingMetric(spearman_corr)  # one list, of all items
        >>> for prediction, target in (([0.1, 0.4], [1.0, 3.0]), ([0.3, 0.2], [0.5, 2.0])):
        ...     rho.update(torch.tensor(prediction), torch.tensor(target))
        >>> rho.compute()
        tensor(0.4000)
        >>> mean_ap = RankingMetric(average_precision)  # a list a query, as in the retrieval metrics of torchmetrics
        >>> mean_ap(torch.tensor([0.9, 0.4, 0.3]), torch.tensor([0, 1, 1]), indexes=torch.tensor([7, 7, 8]))
        tensor(0.7500)
    """

    is_differentiable = False
    full_state_update = False

    preds: Any
    target: Any
    indexes: Any
    index: Any

    def __init__(self, metric: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        if not callable(metric):
            raise TypeError(f"`metric` must be a function of two tensors, got {describe(metric)}.")
        self.metric = metric
        self.options = options
        for state in ("preds", "target", "indexes", "index"):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor, indexes: Tensor | None = None, index: Tensor | None = None) -> None:
        """Add a batch.

        Args:
            preds: what the metric takes first: scores (n,) or (queries, items), or embeddings (n, d).
            target: what it takes next: relevance or values, of that shape, or labels (n,).
            indexes: (n,) the query that each score is of; the metric then gets it as ``group=``. None: scores (n,) of
                all batches are one list, and (queries, items) a list a row.
            index: (n,) whole numbers, which item of the data set a row is: those of one item count once, as a
                ``DistributedSampler`` repeats some.

        Raises:
            ValueError: another number of rows, or `indexes` or `index` with some batches only.
        """
        given = {"preds": preds, "target": target, "indexes": indexes, "index": index}
        for name, rows in given.items():
            if rows is not None and (not isinstance(rows, Tensor) or rows.ndim == 0 or len(rows) != len(preds)):
                raise ValueError(f"`{name}` must be a tensor with a row for each of `preds`, got {describe(rows)}.")
            if self.preds and (rows is None) == bool(getattr(self, name)):
                raise ValueError(f"`{name}` must be given with every batch or with none. To begin anew, call reset().")
        for name, rows in given.items():
            if rows is not None:
                getattr(self, name).append(rows.detach())

    def compute(self) -> Any:
        """The metric of all rows so far: its mean over the lists that have one, or a dictionary of such."""
        rows = {name: _joined(getattr(self, name)) for name in ("preds", "target", "indexes", "index")}
        if rows["preds"] is None:
            raise ValueError("`update` must be called before `compute`, got no batch.")
        index = rows.pop("index")
        kept = {name: x for name, x in rows.items() if x is not None}
        if index is not None:
            kept = dict(zip(kept, drop_repeats(index, *kept.values()), strict=True))
        group = {"group": kept["indexes"]} if "indexes" in kept else {}
        found = self.metric(kept["preds"], kept["target"], **group, **self.options)
        if isinstance(found, dict):
            return {name: _mean(value) for name, value in found.items()}
        return _mean(found)


def _joined(rows: Any) -> Tensor | None:
    """A state as one tensor: a list of batches or, once gathered, what is one already."""
    if not isinstance(rows, Tensor):
        rows = torch.cat(rows) if rows else None
    return None if rows is None or rows.numel() == 0 else rows


def _mean(found: Any) -> Tensor:
    value = torch.as_tensor(found)
    return value.nanmean() if value.ndim else value
