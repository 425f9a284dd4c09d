"""Exact ranking metrics: one value per list.

Where each is, its formula in its docstring:

* `retrieval`: `average_precision`, `trapezoidal_ap`, `map_at_r`, `r_precision`, `precision_at_k`, `recall_at_k`,
  `hit_rate_at_k`, `median_rank`, `reciprocal_rank`, `pmrp`: an item is relevant or not.
* `graded`: `dcg`, `ndcg`, `expected_reciprocal_rank`: how relevant an item is.
* `correlation`: `spearman_corr`, `kendall_tau`, `weighted_tau`, `pairwise_accuracy`, `asp`, `rbo`: how well two orders
  agree.

What all of them share is described here once; a metric describes what is particular to it.

* ``scores`` (..., N), floating point, higher = better. The last axis is the list: a row is a query, a column an item.
* ``relevant`` (..., N), boolean or 0 and 1. Metrics of graded relevance have ``relevance`` in its place, grades of at
  least 0; metrics of an order a ``target``, or ``semantic`` scores: floating point or whole numbers.
* ``where`` (..., N), boolean, True = a real item. Masked items count as absent, whatever their score. A query that is
  in its own gallery is left out so, for example with ``where=~torch.eye(N, dtype=bool)``.
* ``group``: an id for each item, where all tensors are flat, (n,): the items of one id are a list, as in
  `sodeep.groups`. One value for each, in the order in which they first occur. All metrics but `pmrp` take it.
* ``chunk_size``: lists at a time; None picks it. Memory is a few times the size of so many rows.
* **Results** have the batch shape (...): one value a list, NaN where the metric has no meaning for it (no relevant
  item, if the metric does not say otherwise), with one `UndefinedMetricWarning` a call that counts them. The usual
  summary is `.nanmean()`. Half-precision scores are compared exactly, sums are taken in float64, results are float64
  for float64 scores and float32 otherwise. Nothing is differentiable.
* **Errors**: a TypeError for scores that are not floating point or a `where` that is not boolean; a ValueError for
  shapes or devices that differ, a real item that is NaN or infinite, a `relevant` that holds more than 0 and 1, or a
  `k` below 1.

* **Ties** never depend on the order of the items, unless ``ties="order"`` asks for it. Ranks of tied scores are
  averaged. Precision is read at a score, all items of that score included, as in scikit-learn. Where a cut at k runs
  through a group of tied items, each counts by its chance to be among the first k when their order is random (McSherry
  and Najork, ECIR 2008); gains and reciprocal ranks are the mean over their orders. So a model that gives all items one
  score has the value of a random order.
* **Items that a DistributedSampler repeats** would count as matches of themselves: `sodeep.drop_repeats` removes them.

Example:
    >>> import torch
    >>> from sodeep.metrics import average_precision, recall_at_k
    >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.3, 0.8, 0.1]])
    >>> relevant = torch.tensor([[True, False, True], [True, False, False]])
    >>> average_precision(scores, relevant)
    tensor([1.0000, 0.5000])
    >>> recall_at_k(scores, relevant, k=1).nanmean()
    tensor(0.2500)
"""

import types as _types
import typing as _typing

from sodeep.metrics._per_list import UndefinedMetricWarning as UndefinedMetricWarning
from sodeep.metrics.correlation import (
    asp as asp,
    kendall_tau as kendall_tau,
    pairwise_accuracy as pairwise_accuracy,
    rbo as rbo,
    spearman_corr as spearman_corr,
    weighted_tau as weighted_tau,
)
from sodeep.metrics.graded import (
    dcg as dcg,
    expected_reciprocal_rank as expected_reciprocal_rank,
    ndcg as ndcg,
)
from sodeep.metrics.retrieval import (
    average_precision as average_precision,
    hit_rate_at_k as hit_rate_at_k,
    map_at_r as map_at_r,
    median_rank as median_rank,
    pmrp as pmrp,
    precision_at_k as precision_at_k,
    r_precision as r_precision,
    recall_at_k as recall_at_k,
    reciprocal_rank as reciprocal_rank,
    trapezoidal_ap as trapezoidal_ap,
)

if not _typing.TYPE_CHECKING:  # which go by the imports
    __all__ = sorted(k for k, value in globals().items() if k[0] != "_" and not isinstance(value, _types.ModuleType))
