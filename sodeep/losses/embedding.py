"""A loss on labelled embeddings: the similarities and relevance of all pairs of a batch, then any loss on scores.

Past batches can be further references (`EmbeddingMemory`), and so can the embeddings of a second encoder (momentum
contrast) or a reference set. Two sets of rows that rank each other: `CrossModalLoss`.

Labels come as (n,) whole numbers, floats, bools or strings, in a tensor, an array or a list; a column (n, 1) counts as
(n,); multi-hot labels (n, c) make two rows relevant when they share a label. They may be on another device than the
embeddings. Two rows are a pair by their index: a row is never its own pair, but an equal row is a real one.

Sources: Wang et al., CVPR 2020 (cross-batch memory); He et al., CVPR 2020 (momentum contrast).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sodeep._core.checks import describe, in_one_read, readable, settle
from sodeep._core.labels import as_labels, label_tensor, same_label
from sodeep.distributed import gather, gather_with_place
from sodeep.losses._on_embeddings import OnEmbeddings, check_mask, zero_masked
from sodeep.losses.memory import NO_ID, EmbeddingMemory, as_ids
from sodeep.losses.similarity import check_finite_rows, check_rows, drop_diagonal, relevance, similarities_to

MASK = "Mask those rows out with where="


def _check_finite(rows: Tensor) -> None:
    check_finite_rows(rows, "embeddings", MASK)


def _other_items(ids: Tensor, ref_ids: Tensor) -> Tensor:
    """Which pairs (n, m) are not of one item."""
    return (ids[:, None] != ref_ids) | (ref_ids == NO_ID)


def _mined_pairs(indices: Any, n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Relevance and mask (n, m) of the pairs (a1, p, a2, n), or triplets (a, p, n), that a miner gives."""
    if not isinstance(indices, (tuple, list)) or len(indices) not in (3, 4):
        raise TypeError(
            "`indices_tuple` must be the pairs (a1, p, a2, n) or the triplets (a, p, n) of a miner, four or three "
            f"tensors of row indices, got {describe(indices)}."
        )
    parts = [torch.as_tensor(part, device=device) for part in indices]
    parts = [part if part.numel() else part.long() for part in parts]
    a1, p, a2, q = parts if len(parts) == 4 else (parts[0], parts[1], parts[0], parts[2])
    if any(x.ndim != 1 or x.is_floating_point() or x.dtype == torch.bool for x in parts) or (
        (a1.shape, a2.shape) != (p.shape, q.shape)
    ):
        shown = ", ".join(describe(part) for part in parts)
        raise ValueError(
            f"`indices_tuple` must hold whole numbers (k,), as many anchors as positives and as negatives, got {shown}."
        )
    for rows, size, side in ((a1, n, "queries"), (a2, n, "queries"), (p, m, "references"), (q, m, "references")):
        if readable(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise ValueError(
                f"`indices_tuple` must be indices of the {size} {side}, "
                f"got indices from {int(rows.min())} to {int(rows.max())}."
            )
    positive, negative = (torch.zeros(n, m, dtype=torch.bool, device=device) for _ in range(2))
    positive[a1.long(), p.long()] = True
    negative[a2.long(), q.long()] = True
    twice = positive & negative
    if readable(twice) and bool(twice.any()):
        first = tuple(int(i) for i in twice.nonzero()[0])
        raise ValueError(
            f"`indices_tuple` must have each pair as a positive or as a negative, got both for {int(twice.sum())} "
            f"pairs, the first {first}."
        )
    return positive, positive | negative


def _both_ids(
    ids: Any, ref_ids: Any, embeddings: Tensor, ref_embeddings: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The ids of both sides, checked; None where they are not given."""
    if ref_ids is not None:
        for other, name in ((ref_embeddings, "ref_embeddings"), (ids, "ids")):
            if other is None:
                raise ValueError(f"`{name}` must be given with `ref_ids`, got None.")
    if ids is None:
        return None, None
    query_ids = as_ids(ids, "ids", len(embeddings), "embeddings", embeddings.device)
    if ref_embeddings is None or (ref_embeddings is embeddings and ref_ids is None):
        return query_ids, None
    if ref_ids is None:
        raise ValueError("`ref_ids` must be given with `ids` and `ref_embeddings`, got None.")
    return query_ids, as_ids(ref_ids, "ref_ids", len(ref_embeddings), "ref_embeddings", embeddings.device)


def _both_masks(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Pairs in both masks; None leaves nothing out."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _or_all(mask: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


class _Rows(NamedTuple):
    """One side of the pairs, checked and converted."""

    embeddings: Tensor
    """(n, d)."""
    labels: Any
    """(n,) or (n, c); in any form, a relevance matrix included, where there is a reference set or nothing."""
    ids: Tensor | None
    real: Tensor | None
    """(n,), which rows are real; None for all."""

    def kept(self) -> tuple[Tensor, Any, Tensor | None]:
        """Embeddings, labels and ids of the real ones."""
        embeddings, labels, ids, real = self
        if real is None:
            return embeddings, labels, ids
        return embeddings[real], labels[real], None if ids is None else ids[real]

    def gathered(self) -> tuple[_Rows, int]:
        """These rows of all processes, and the place of the first one of this process."""
        rows, first = gather_with_place(self.embeddings)
        others = (x if x is None else gather_with_place(x)[0] for x in self[1:])
        return _Rows(rows, *others), first


class _Batch(NamedTuple):
    """The arguments of a call of `EmbeddingLoss`."""

    queries: _Rows
    """(n, d); with gather those of all processes, or of this one where each takes the lists of its own."""
    references: _Rows
    """(m, d), the reference set, or the queries or keys, of all processes with gather."""
    first: int
    """The place of the first query, or of its key, among the references, where they hold it."""
    themselves: bool
    """Whether the references are the queries, not their keys, so that each has a pair with itself."""
    pairs: Tensor | None
    """(n, m), which pairs are real; None for all."""


class EmbeddingLoss(OnEmbeddings):
    """Any loss on ``(scores, relevant)`` as a loss on ``(embeddings, labels)``.

    Every row is a query; its list is every other row, or the reference set. In place of a pytorch-metric-learning loss
    it takes the same call, ``loss(embeddings, labels, indices_tuple, ref_emb=..., ref_labels=...)``.

    Args:
        loss: any callable ``loss(scores (n, m), relevant (n, m))``, ours or not. When pairs are to be left out (by
            `where`, `ids` or `indices_tuple`) it is called with ``where=`` as well, as every loss of this library can.
        similarity: "cosine", "dot" or "euclidean", as in `pairwise_scores`.
        memory: past embeddings as further references. The list of a row is then the rest of the batch and the memory;
            the batch is added after its loss is taken. In eval mode the memory is neither read nor written.
        gather: the loss of the batch of all processes (see `gather`), the same on each, of which DDP ends up with the
            gradient. Each process takes the lists of its own rows against those of all, so that memory and time fall
            with the number of processes, where the loss is a mean over lists, as all of ours are but
            `histogram_loss` and `spearman_loss`; a loss of one's own says so with an attribute
            ``mean_over_lists = True`` and takes ``reduction="none"``. Any other is computed whole on every process.
            Leave the loss itself outside DDP. With one process this does nothing. What comes with the rows (`ids`,
            `where`, `keys`) is gathered too: give it on every process or on none.
        scale: what the similarities are multiplied by before the loss, on top of a temperature of its own: a positive
            number, an nn.Parameter, or a module or function that gives the factor when called without arguments. A
            parameter, or one in a module, is among the parameters of this loss: give them to the optimiser. It is the
            factor itself, 1 / temperature, where CLIP's `logit_scale` is its logarithm: see the last example. Losses on
            a fixed range of scores (AP_Q, FastAP, histogram) need none. With several processes and no `gather`
            let the model hold the parameter and give a function of it, so that DDP averages its gradient.

    The call takes, besides the embeddings (n, d), the labels and the reference set of `pairwise_scores`:

    * ``where``, boolean, True = real. (n,), rows: the others (padding, rows to ignore) are as if deleted, whatever
      they and their labels hold. (n, n) or (n, m), pairs: the others are neither relevant nor irrelevant; a memory's
      pairs all count.
    * ``ids``, whole numbers or strings (n,), which item each row is (`ref_ids` of the reference set): pairs of one item
      are left out as self pairs are. So are its past copies in a memory and, where a sampler draws with replacement,
      its duplicates in the batch.
    * ``keys`` (n, d), the same items by another encoder, row by row, for momentum contrast (He et al. 2020): each
      query's list is the keys and the memory, its own key among them, and the keys enter the memory in place of the
      queries. In self-supervised learning the labels are the ids. Detach the keys.
    * ``indices_tuple``, as pytorch-metric-learning's miners give it: pairs (a1, p, a2, n) or triplets (a, p, n) of row
      indices, the third argument or by name. A query's list then holds the pairs that it is the anchor of, relevant or
      not as the tuple says; a triplet counts as its two pairs. `labels` may be None, unless there is a memory, whose
      pairs all count.
    * anything else, such as ``return_stats=True`` or ``reduction="none"``, goes to the loss.

    Returns:
        What `loss` returns: a scalar or, without a reduction, (n,), NaN for rows that are not real or have no list. A
        batch of a single row without references has no pairs: a zero that keeps the graph (NaN without a reduction),
        and a warning.

    Raises:
        TypeError: a `loss` that cannot be called, or does not take the ``where=`` that is needed; an `indices_tuple` of
            another form; a `scale` of another type.
        ValueError: what `pairwise_scores` refuses; `ref_embeddings` together with `memory`, `keys` or `gather`; a
            relevance matrix together with one of these; an `indices_tuple` or a mask of pairs together with `gather`;
            ids of wrong kind or number; a scale that is not positive.

    Example:
        >>> def hinge(scores, relevant):  # stands for SmoothAPLoss(), MultiSimilarityLoss(), ...
        ...     return (scores[~relevant].mean() - scores[relevant].mean() + 0.5).relu()
        >>> criterion = EmbeddingLoss(hinge)
        >>> criterion(torch.eye(4), [0, 0, 1, 1])
        tensor(0.5000)

        A memory with ids, so that it may be longer than an epoch:

        >>> from sodeep.losses import NTXentLoss
        >>> criterion = EmbeddingLoss(NTXentLoss(), memory=EmbeddingMemory(size=512, dim=8))
        >>> encoder, images, labels = torch.nn.Linear(16, 8), torch.randn(6, 16), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> for epoch in range(3):
        ...     for indices in torch.arange(6).split(3):
        ...         loss = criterion(encoder(images[indices]), labels[indices], ids=indices)

        Momentum contrast without labels: the keys, not the queries, are kept.

        >>> import copy
        >>> momentum_encoder = copy.deepcopy(encoder)
        >>> criterion = EmbeddingLoss(NTXentLoss(), memory=EmbeddingMemory(size=512, dim=8))
        >>> for indices in torch.arange(6).split(3):
        ...     with torch.no_grad():
        ...         keys = momentum_encoder(images[indices] + 0.1)
        ...     loss = criterion(encoder(images[indices]), indices, keys=keys, ids=indices)
        >>> criterion.memory.get_ids()
        tensor([0, 1, 2, 3, 4, 5])

        A temperature that learns, as CLIP's:

        >>> class LogitScale(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.log = torch.nn.Parameter(torch.tensor(1 / 0.07).log())
        ...     def forward(self):
        ...         return self.log.exp().clamp(max=100)
        >>> criterion = EmbeddingLoss(NTXentLoss(temperature=1), scale=LogitScale())
        >>> [name for name, _ in criterion.named_parameters()]
        ['scale.log']
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        similarity: str = "cosine",
        *,
        memory: EmbeddingMemory | None = None,
        gather: bool = False,
        scale: float | nn.Parameter | Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(loss, similarity, gather, scale)
        if memory is not None and not isinstance(memory, EmbeddingMemory):
            raise TypeError(
                f"`memory` must be an EmbeddingMemory or None, got {describe(memory)}. Make one: "
                "sodeep.EmbeddingMemory(size, dim)."
            )
        self.memory = memory

    @in_one_read
    def forward(
        self,
        embeddings: Tensor,
        labels: Any = None,
        ref_embeddings: Any = None,
        ref_labels: Any = None,
        *,
        ref_emb: Tensor | None = None,
        keys: Tensor | None = None,
        where: Tensor | None = None,
        ids: Any = None,
        ref_ids: Any = None,
        indices_tuple: Any = None,
        **options: Any,
    ) -> Any:
        """The loss; `ref_emb` is another name of `ref_embeddings`, and a tuple in its place is an `indices_tuple`."""
        if isinstance(ref_embeddings, tuple):
            if indices_tuple is not None:
                raise ValueError("`indices_tuple` must be given once, got it as the third argument and by name.")
            ref_embeddings, indices_tuple = None, ref_embeddings
        if ref_emb is not None:
            if ref_embeddings is not None:
                raise ValueError("`ref_emb` must not be given together with `ref_embeddings`: they are the same.")
            ref_embeddings = ref_emb
        memory = self.memory if self.training else None
        self._check_sets(embeddings, ref_embeddings, ref_labels, keys, memory, indices_tuple)
        batch = self._read(embeddings, labels, ref_embeddings, keys, memory, where, ids, ref_ids, indices_tuple)
        queries, references, first, pairs = batch.queries, batch.references, batch.first, batch.pairs
        n, m, device = queries.embeddings.shape[0], references.embeddings.shape[0], queries.embeddings.device

        if indices_tuple is not None:
            relevant, mined = _mined_pairs(indices_tuple, n, m, device)
            pairs = _both_masks(pairs, mined)
        elif self._fixed_references(memory, keys):
            relevant = same_label(queries.labels, references.labels)
        else:
            relevant = relevance(queries.labels, ref_labels, n, m, ref_embeddings is not None)
        if queries.real is not None:
            columns = queries.real.new_ones(m) if references.real is None else references.real
            pairs = _both_masks(pairs, queries.real[:, None] & columns)
        if queries.ids is not None and references.ids is not None:
            others = _other_items(queries.ids, references.ids)
            if keys is not None:  # the key of the query itself stays
                places = torch.arange(m, device=device)
                others = others | (places[first : first + n, None] == places)
            pairs = _both_masks(pairs, others)

        def without_self(x: Tensor) -> Tensor:
            return drop_diagonal(x, first) if batch.themselves else x

        others_alone = batch.themselves and references.embeddings is queries.embeddings
        sets: list[Tensor | None] = [None if others_alone else references.embeddings]
        past = None if memory is None else memory.past()
        if past is not None:
            sets.append(past[0])
        check = _check_finite if self._checks_on_the_way(queries.embeddings, sets[0], memory) else None
        scores, *past_scores = similarities_to(queries.embeddings, sets, self.similarity, check)
        scores, relevant = scores if others_alone else without_self(scores), without_self(relevant)
        pairs = pairs if pairs is None else without_self(pairs)
        if memory is not None and past is not None:
            _, past_labels, past_ids = past
            past_pairs = None if queries.ids is None else _other_items(queries.ids, past_ids)
            if queries.real is not None:
                past_pairs = _both_masks(past_pairs, queries.real[:, None].expand(past_scores[0].shape))
            if pairs is not None or past_pairs is not None:
                pairs = torch.cat([_or_all(pairs, scores), _or_all(past_pairs, past_scores[0])], 1)
            scores = torch.cat([scores, *past_scores], 1)
            relevant = torch.cat([relevant, same_label(queries.labels, past_labels.to(queries.labels.dtype))], 1)
        value_of = self._shared_value if self._is_shared_out() else self._value
        value = value_of(self._scaled(scores), relevant, pairs, options)
        if memory is not None:
            settle()  # before it holds them
            memory.add_checked(*references.kept())
        return value

    def _fixed_references(self, memory: EmbeddingMemory | None, keys: Tensor | None) -> str:
        """The option that fixes the references, so that no reference set can be given; empty if there is none."""
        if self.gather:
            return "gather=True"
        return "a memory" if memory is not None else "keys" if keys is not None else ""

    def _check_sets(
        self,
        embeddings: Any,
        ref_embeddings: Any,
        ref_labels: Any,
        keys: Any,
        memory: EmbeddingMemory | None,
        indices_tuple: Any,
    ) -> None:
        """Embeddings, keys and reference set are rows of one width, and no two that exclude each other are given."""
        if memory is None:
            check_rows(embeddings, "embeddings")
        else:
            memory.check_rows(embeddings)
        if ref_embeddings is None and ref_labels is not None:
            raise ValueError("`ref_embeddings` must be given with `ref_labels`, got None.")
        if ref_embeddings is not None:
            if option := self._fixed_references(memory, keys):
                raise ValueError(f"`ref_embeddings` must not be given to a loss with {option}, which has its own.")
            check_rows(ref_embeddings, "ref_embeddings", embeddings, "embeddings")
        if keys is not None:
            check_rows(keys, "keys", embeddings, "embeddings")
            if len(keys) != len(embeddings):
                raise ValueError(
                    f"`keys` must have shape {tuple(embeddings.shape)}, the items of `embeddings` row by row, "
                    f"got shape {tuple(keys.shape)}."
                )
        if memory is not None and memory.embeddings.device != embeddings.device:
            raise ValueError(
                f"`memory` must be on the device of `embeddings` ({embeddings.device}), "
                f"got {memory.embeddings.device}. Move it: memory.to(embeddings.device)."
            )
        if self.gather and indices_tuple is not None:
            raise ValueError(
                "`indices_tuple` must not be given to a loss with gather=True: its indices are of one process. Mine "
                "and call a loss without gather on the gathered rows: sodeep.gather(embeddings), sodeep.gather(labels)."
            )

    def _read(
        self,
        embeddings: Tensor,
        labels: Any,
        ref_embeddings: Tensor | None,
        keys: Tensor | None,
        memory: EmbeddingMemory | None,
        where: Any,
        ids: Any,
        ref_ids: Any,
        indices_tuple: Any,
    ) -> _Batch:
        """The arguments of a call, checked and converted: masked rows zeroed, the rows of all processes with gather."""
        references = None if ref_embeddings is embeddings else ref_embeddings
        references = references if keys is None else keys
        n = embeddings.shape[0]
        rows, pairs = self._masks(where, n, n if references is None else references.shape[0], embeddings)
        if labels is not None or indices_tuple is None or memory is not None:
            labels = self._labels(labels, rows, embeddings, ref_embeddings, keys, memory)
            if indices_tuple is not None:  # relevance comes from it, but labels must still fit the batch
                as_labels(labels, "labels", n)
        ids, ref_ids = _both_ids(ids, ref_ids, embeddings, ref_embeddings)
        first = 0
        queries = found = _Rows(zero_masked(embeddings, rows), labels, ids, rows)
        if keys is not None:
            found = queries._replace(embeddings=zero_masked(keys, rows))
        elif references is not None:
            found = _Rows(references, None, ref_ids, None)
        if self.gather:
            everywhere, first = queries.gathered()
            found = everywhere if keys is None else everywhere._replace(embeddings=gather(found.embeddings))
            # after gather, so that every process raises and none waits for the one that did
            _check_finite(everywhere.embeddings)
            if not self._is_shared_out():
                queries, first = everywhere, 0
        elif not self._checks_on_the_way(queries.embeddings, references, memory):
            _check_finite(queries.embeddings)
        if references is not None:
            name, remedy = ("keys", MASK) if keys is not None else ("ref_embeddings", "Drop those rows")
            check_finite_rows(found.embeddings, name, remedy)
        return _Batch(queries, found, first, references is None, pairs)

    def _checks_on_the_way(self, rows: Tensor, references: Tensor | None, memory: EmbeddingMemory | None) -> bool:
        """Whether the lengths of the rows, which are taken anyway, show that they are finite."""
        alone = references is None and memory is None and not self.gather
        return alone and self.similarity == "cosine" and readable(rows)

    def _masks(self, where: Any, n: int, m: int, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """`where` as a mask of rows (n,) or of pairs (n, m)."""
        if where is None:
            return None, None
        check_mask(where, like, "embeddings")
        if where.shape == (n,):
            return where, None
        if where.shape == (n, m) and not self.gather:
            return None, where
        or_pairs = " with gather=True" if self.gather else f", or ({n}, {m}) for pairs"
        raise ValueError(f"`where` must have shape ({n},) for rows{or_pairs}, got shape {tuple(where.shape)}.")

    def _labels(
        self,
        labels: Any,
        rows: Tensor | None,
        embeddings: Tensor,
        ref_embeddings: Tensor | None,
        keys: Tensor | None,
        memory: EmbeddingMemory | None,
    ) -> Tensor:
        """Labels as a tensor, those of masked rows zeroed; checked where they cannot be a relevance matrix."""
        n = embeddings.shape[0]
        given = label_tensor(labels)
        given = given if given.device == embeddings.device else given.to(embeddings.device)
        square = given.dtype == torch.bool and given.shape == (n, n) and n > 1
        option = self._fixed_references(memory, keys)
        if square and option:
            raise ValueError(
                f"`labels` must be labels for a loss with {option}, got a relevance matrix of shape "
                f"{tuple(given.shape)}. Multi-hot labels of as many classes as rows go in as numbers: labels.int()."
            )
        if rows is not None and given.shape[:1] == (n,):
            given = zero_masked(given, rows)
            if square and ref_embeddings is None:  # still symmetric
                given = zero_masked(given.T, rows).T
        if memory is not None:
            return memory.check_labels(given, n, labels)
        return as_labels(given, "labels", n) if option else given
