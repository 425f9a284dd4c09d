"""A loss between two sets of embeddings, as images and captions: each side ranks the other.

Any loss on scores becomes a symmetric loss for cross-modal retrieval: `NTXentLoss` with a learned scale that of CLIP,
`TripletLoss(mining="hard")` that of VSE++.

Sources: Faghri et al., BMVC 2018 (VSE++); Radford et al., ICML 2021 (CLIP).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sodeep._core.checks import describe, in_one_read
from sodeep._core.precision import full_precision
from sodeep.distributed import gather_with_place
from sodeep.losses._on_embeddings import OnEmbeddings, check_mask, zero_masked
from sodeep.losses.similarity import check_finite_rows, check_rows, similarities


class CrossModalLoss(OnEmbeddings):
    """Any loss on ``(scores, relevant)`` between two sets of rows, as images and captions: the mean of both directions.

    Every query ranks the gallery, and every gallery row ranks the queries: half ``loss(scores, relevant)``, half
    ``loss(scores.T, relevant.T)``. The call takes

    * queries (n, d) and the gallery (m, d). Without a row of either there are no pairs: a zero that keeps the graph,
      and a warning.
    * ``relevant`` (n, m): boolean, with any number of True in a row or column (an image with five captions); or what
      else the loss takes, such as semantic scores for an ASP loss, which go through as they are. None: query i belongs
      to gallery row i, n = m. Moved to the device of the queries if need be.
    * ``where``, boolean, True = real: (n, m), pairs, or, with n = m, (n,), rows of both sets. The others are left out;
      a row without a real pair (padding) is as if deleted, whatever it holds.
    * anything else, such as ``return_stats=True`` or ``reduction="none"``, goes to the loss.

    Args:
        loss: any callable ``loss(scores, relevant)`` of two (n, m) tensors.
        similarity: "cosine", "dot" or "euclidean", as in `pairwise_scores`.
        gather: take the rows of all processes, shared out as in `EmbeddingLoss`; `relevant`, and a `where` of pairs, if
            given, are then those of all rows, in the order of the processes.
        scale: what the similarities are multiplied by before the loss, a parameter that learns included, as in
            `EmbeddingLoss`. CLIP is ``CrossModalLoss(NTXentLoss(temperature=1), scale=...)``.

    Returns:
        A scalar. With ``return_stats=True``: ``value, (stats of the queries, stats of the gallery rows)``. With
        ``reduction="none"``: the values of the queries (n,) and those of the gallery rows (m,), NaN where undefined.

    Raises:
        TypeError: a `loss` that cannot be called, does not give a tensor or does not take the ``where=`` that is given;
            sets that are not floating point tensors; a `scale` of another type.
        ValueError: wrong shapes, NaN or infinite rows, sets on two devices, no `relevant` where n and m differ, a
            scale that is not positive.

    Example:
        >>> def hinge(scores, relevant):
        ...     return (scores[~relevant].mean() - scores[relevant].mean() + 0.5).relu()
        >>> captions = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> CrossModalLoss(hinge)(torch.eye(2), captions, torch.tensor([[True, True, False], [False, False, True]]))
        tensor(0.)
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        similarity: str = "cosine",
        *,
        gather: bool = False,
        scale: float | nn.Parameter | Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(loss, similarity, gather, scale)

    @in_one_read
    def forward(
        self, queries: Tensor, gallery: Tensor, relevant: Any = None, *, where: Tensor | None = None, **options: Any
    ) -> Any:
        """The mean of the losses of both directions."""
        check_rows(queries, "queries")
        check_rows(gallery, "gallery", queries, "queries")
        if where is not None:
            check_mask(where, queries, "queries")
        if where is not None and where.ndim == 1 and len(where) == len(queries) == len(gallery):
            queries, gallery = zero_masked(queries, where), zero_masked(gallery, where)
            where = gather_with_place(where)[0] if self.gather else where
            where = where[:, None] & where
        own_queries, own_gallery = queries, gallery
        first_query = first_row = 0
        if self.gather:
            queries, first_query = gather_with_place(queries)
            gallery, first_row = gather_with_place(gallery)
        n, m = len(queries), len(gallery)
        if where is not None:
            if where.shape != (n, m):
                rows = f", or ({n},) for rows of both sets" if n == m else ""
                raise ValueError(f"`where` must have shape ({n}, {m}){rows}, got shape {tuple(where.shape)}.")
            queries, gallery = zero_masked(queries, where.any(1)), zero_masked(gallery, where.any(0))
        # after gather, so that every process raises and none waits for the one that did
        check_finite_rows(queries, "queries", "Mask those rows out with where=")
        check_finite_rows(gallery, "gallery", "Mask those rows out with where=")
        if relevant is not None:
            relevant = torch.as_tensor(relevant, device=queries.device)
            if relevant.shape != (n, m):
                raise ValueError(
                    f"`relevant` must have shape ({n}, {m}), queries by gallery, got {describe(relevant)}."
                )
        elif n == m:
            relevant = torch.eye(n, dtype=torch.bool, device=queries.device)
        else:
            raise ValueError(
                f"`relevant` must be given when queries ({n}) and gallery ({m}) differ in number, got None. "
                f"Say which belong together in a boolean tensor of shape ({n}, {m})."
            )
        if self._is_shared_out():
            there = self._one_way(own_queries, gallery, relevant, where, first_query, options)
            other = where if where is None else where.T
            back = self._one_way(own_gallery, queries, relevant.T, other, first_row, options)
        else:
            scores = self._scaled(full_precision(similarities)(queries, gallery, self.similarity))
            there = self._value(scores, relevant, where, options)
            back = self._value(scores.T, relevant.T, where if where is None else where.T, options)
        if type(there) is type(back) is tuple and len(there) == 2:  # what return_stats adds
            return _mean_of_both(there[0], back[0]), (there[1], back[1])
        return _mean_of_both(there, back)

    def _one_way(
        self,
        own: Tensor,
        others: Tensor,
        relevant: Tensor,
        where: Tensor | None,
        first: int,
        options: Mapping[str, Any],
    ) -> Any:
        """The value of this process's rows and those of all others, as queries of `others`."""
        mine = slice(first, first + len(own))
        if where is not None:
            own, where = zero_masked(own, where[mine].any(1)), where[mine]
        scores = self._scaled(full_precision(similarities)(own, others, self.similarity))
        return self._shared_value(scores, relevant[mine], where, options)


def _mean_of_both(there: Any, back: Any) -> Any:
    """The mean of two scalars; values of queries and of gallery rows stay apart."""
    for value in (there, back):
        if not isinstance(value, Tensor):
            raise TypeError(f"`loss` must give a tensor, got {type(value).__name__}.")
    return (there + back) / 2 if there.ndim == 0 else (there, back)
