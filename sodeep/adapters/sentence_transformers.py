"""Losses for the trainer of sentence-transformers, on pairs with gold scores and on negatives in the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sodeep._core.precision import working_dtype
from sodeep.losses.embedding import EmbeddingLoss


class _OnSentences(nn.Module):
    """A loss of the embeddings that a model gives to each column of a data set."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def _embeddings(self, columns: Iterable[Mapping[str, Any]], least: int, needs: str) -> list[Tensor]:
        """(n, d) of each column."""
        found: list[Tensor] = [self.model(dict(features))["sentence_embedding"] for features in columns]
        if len(found) < least:
            raise ValueError(f"`sentence_features` must be {needs}, got {len(found)} column.")
        return found

    def get_config_dict(self) -> dict[str, Any]:
        """For the model's card."""
        return {"loss": repr(self.loss)}


class ScoredPairsLoss(_OnSentences):
    """Any loss on ``(scores, target)``, of the cosines of pairs of texts with a gold score: a batch is one list.

    As `CoSENTLoss` it asks for the order of the pairs, not for their scores: ``SpearmanLoss(laplace_rank)`` trains the
    correlation that such models are measured by (`EmbeddingSimilarityEvaluator`). Take batches of 32 pairs or more.

    Args:
        model: a SentenceTransformer.
        loss: any callable ``loss(scores (n,), target (n,))``.

    Returns:
        What `loss` returns.

    Example:
        >>> from sodeep import SpearmanLoss, laplace_rank
        >>> class Model(torch.nn.Module):  # stands for a SentenceTransformer
        ...     def forward(self, features):
        ...         return {"sentence_embedding": features["x"]}
        >>> loss_fn = ScoredPairsLoss(Model(), SpearmanLoss(laplace_rank))
        >>> one, other = torch.eye(3), torch.tensor([[1.0, 0, 0], [1.0, 1, 0], [1.0, 0, 0]])
        >>> loss_fn([{"x": one}, {"x": other}], labels=torch.tensor([1.0, 0.5, 0.0])) < 0.01
        tensor(True)
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__(model)
        self.loss = loss

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor) -> Any:
        """The loss of a batch: two columns of texts, and the score of each pair (n,)."""
        one, other, *_ = self._embeddings(sentence_features, 2, "two columns of texts")
        dtype = working_dtype(one)
        return self.loss(torch.cosine_similarity(one.to(dtype), other.to(dtype)), labels.reshape(-1))


class InBatchLoss(_OnSentences):
    """Any loss on ``(scores, relevant)`` of anchors and positives: each anchor ranks the positives of the whole batch.

    As `MultipleNegativesRankingLoss`: the positives of the others are its negatives, with further columns of texts,
    where there are any. ``SmoothAPLoss()`` or ``MAPLoss(rank_fn)`` train the mean reciprocal rank, as each has one
    positive, and ``RecallAtKLoss()`` recall. Use a batch sampler without duplicates: a text that comes twice would
    be a negative of its own anchor.

    Args:
        model: a SentenceTransformer.
        loss: of this library, or any callable ``loss(scores (n, m), relevant (n, m))``.
        similarity: "cosine", "dot" or "euclidean", as in `pairwise_scores`.
        scale: what the similarities are multiplied by, as in `EmbeddingLoss`.

    Returns:
        What `loss` returns.

    Example:
        >>> from sodeep import NTXentLoss
        >>> class Model(torch.nn.Module):  # stands for a SentenceTransformer
        ...     def forward(self, features):
        ...         return {"sentence_embedding": features["x"]}
        >>> loss_fn = InBatchLoss(Model(), NTXentLoss())
        >>> loss_fn([{"x": torch.eye(3)}, {"x": torch.eye(3)}]) < 1e-5
        tensor(True)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        similarity: str = "cosine",
        scale: float | nn.Parameter | Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(model)
        self.loss = EmbeddingLoss(loss, similarity, scale=scale)

    def forward(self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None) -> Any:
        """The loss of a batch: columns of anchors, of positives, and of any number of negatives."""
        needs = "a column of anchors and one of positives, and any number of negatives"
        anchors, *candidates = self._embeddings(sentence_features, 2, needs)
        own = torch.arange(len(anchors), device=anchors.device)
        negatives = own.new_full(((len(candidates) - 1) * len(anchors),), -1)
        return self.loss(anchors, own, torch.cat(candidates), torch.cat([own, negatives]))
