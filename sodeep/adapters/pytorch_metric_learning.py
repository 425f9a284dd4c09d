"""Losses of sodeep as losses of pytorch-metric-learning: with its distances, reducers, regularisers and memory.

Where none of these is needed, `EmbeddingLoss` is called like one of its losses already: with embeddings, labels, and
the pairs of a miner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import describe
from sodeep._core.extras import needed

with needed("pytorch_metric_learning", "sodeep.adapters.pytorch_metric_learning"):
    from pytorch_metric_learning import distances, losses
    from pytorch_metric_learning.utils import common_functions, loss_and_miner_utils


class MetricLearningLoss(losses.BaseMetricLossFunction):  # type: ignore[misc]  # it has no types
    """Any loss on ``(scores, relevant)`` as a loss of pytorch-metric-learning, with one value an anchor.

    Its list is what it is compared with, or its pairs in what a miner gives. Anchors for which the loss is undefined
    are left out; a reducer gets the values of the others, by element. A loss that is no mean over lists
    (`HistogramLoss`) reaches it as one value.

    Args:
        loss: of this library, such as ``SmoothAPLoss()``; or any callable ``loss(scores, relevant, where=mask)``, which
            has an attribute ``mean_over_lists = True`` if it takes ``reduction="none"``.
        options: ``distance`` (default CosineSimilarity; a distance counts with a minus), ``reducer``,
            ``embedding_regularizer`` and what else all of its losses take.

    Raises:
        TypeError: a `loss` that cannot be called.

    Example:
        >>> from pytorch_metric_learning import miners, reducers
        >>> from sodeep import SmoothAPLoss
        >>> loss_fn = MetricLearningLoss(SmoothAPLoss(), reducer=reducers.AvgNonZeroReducer())
        >>> embeddings, labels = torch.eye(4).requires_grad_(), torch.tensor([0, 0, 1, 1])
        >>> loss_fn(embeddings, labels, miners.MultiSimilarityMiner()(embeddings, labels)).backward()
    """

    def __init__(self, loss: Callable[..., Any], **options: Any) -> None:
        super().__init__(**options)
        if isinstance(loss, type) or not callable(loss):
            raise TypeError(f"`loss` must be a loss on scores such as SmoothAPLoss(), got {describe(loss)}.")
        self.loss = loss

    def get_default_distance(self) -> Any:
        """Cosine similarity."""
        return distances.CosineSimilarity()

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> dict[str, Any]:
        """The values of the anchors, for the reducer."""
        if indices_tuple is None:
            common_functions.labels_required(labels)
        anchors, positives, others, negatives = loss_and_miner_utils.convert_to_pairs(indices_tuple, labels, ref_labels)
        scores = self.distance(embeddings, ref_emb)
        scores = scores if self.distance.is_inverted else -scores
        relevant = torch.zeros_like(scores, dtype=torch.bool)
        relevant[anchors, positives] = True
        where = relevant.clone()
        where[others, negatives] = True
        if not getattr(self.loss, "mean_over_lists", False):
            return _reported(self.loss(scores, relevant, where=where), None, "already_reduced")
        values = self.loss(scores, relevant, where=where, reduction="none")
        defined = (~values.isnan()).nonzero().squeeze(1)
        return _reported(values[defined], defined, "element") if len(defined) else self.zero_losses()


def _reported(values: Tensor, indices: Tensor | None, reduction: str) -> dict[str, Any]:
    return {"loss": {"losses": values, "indices": indices, "reduction_type": reduction}}


class CrossBatchMemory(losses.CrossBatchMemory):  # type: ignore[misc]  # it has no types
    """That of pytorch-metric-learning, which refuses losses by their name: this one takes a `MetricLearningLoss` too.

    Example:
        >>> from sodeep import NTXentLoss
        >>> loss_fn = CrossBatchMemory(MetricLearningLoss(NTXentLoss()), embedding_size=4, memory_size=8)
        >>> for _ in range(2):
        ...     loss = loss_fn(torch.eye(4), torch.tensor([0, 0, 1, 1]))
        >>> float(loss) > 0
        True
    """

    @staticmethod
    def supported_losses() -> list[str]:
        """Class names."""
        return [*losses.CrossBatchMemory.supported_losses(), MetricLearningLoss.__name__]
