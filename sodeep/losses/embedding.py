"""From embeddings to scores: similarities and relevance of all pairs, then any loss on scores.

A loss of this library is a function of ``(scores, relevant)``. Here are the ways there: one set of labelled rows
(`EmbeddingLoss`), two sets of paired rows (`CrossModalLoss`), past batches as further references (`EmbeddingMemory`).

Labels come as (n,) whole numbers, floats, bools or strings, in a tensor, an array or a list; a column (n, 1) counts as
(n,); multi-hot labels (n, c) make two rows relevant when they share a label. They may be on another device than the
embeddings. Two rows are a pair by their index: a row is never its own pair, but an equal row is a real one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sodeep._core.checks import (
    check_bool,
    check_choice,
    check_device,
    check_positive,
    compiling,
    describe,
    is_number,
    readable,
)
from sodeep._core.labels import as_labels, label_tensor, same_label
from sodeep._core.precision import full_precision
from sodeep.distributed import gather as gather_rows
from sodeep.losses._base import LossModule, reduce_defined
from sodeep.losses.memory import NO_ID, EmbeddingMemory, as_ids
from sodeep.losses.similarity import (
    SIMILARITIES,
    check_finite_rows,
    check_rows,
    drop_diagonal,
    relevance,
    similarities,
    similarities_to,
)


def _check_loss(loss: object) -> Callable[..., Any]:
    if isinstance(loss, type):
        raise TypeError(f"`loss` must be a loss, got the class {loss.__name__}. Build it first: {loss.__name__}().")
    if not callable(loss):
        raise TypeError(f"`loss` must be callable as loss(scores, relevant), got {describe(loss)}.")
    return loss


def _check_scale(scale: Any) -> Any:
    if scale is None or isinstance(scale, nn.Parameter):
        return scale
    if is_number(scale):
        return check_positive(scale, "scale")
    if isinstance(scale, Tensor) or not callable(scale):
        raise TypeError(
            "`scale` must be a number, an nn.Parameter, or a module or function that gives the factor when called "
            f"without arguments, got {describe(scale)}."
            + (" Wrap it: nn.Parameter(scale) learns, float(scale) stays." if isinstance(scale, Tensor) else "")
        )
    return scale


def _takes_where(loss: Callable[..., Any]) -> bool:
    """Whether `loss` can be called with ``where=``, as far as its signature tells."""
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "where" or p.kind is p.VAR_KEYWORD for p in parameters)


class _OnEmbeddings(LossModule[Any]):
    """What the losses on embeddings share: a loss on scores, and how the scores are made."""

    def __init__(self, loss: Callable[..., Any], similarity: str, gather: bool, scale: Any) -> None:
        super().__init__()
        check_choice(similarity, SIMILARITIES, "similarity")
        self.loss = _check_loss(loss)
        self.similarity = similarity
        self.gather = check_bool(gather, "gather")
        self.scale = _check_scale(scale)

    def _scaled(self, scores: Tensor) -> Tensor:
        """`scores` times the scale."""
        if self.scale is None:
            return scores
        factor = self.scale if isinstance(self.scale, (float, int, nn.Parameter)) else self.scale()
        if isinstance(factor, Tensor):
            if factor.numel() != 1:
                raise ValueError(f"`scale` must be one number, got {describe(factor)}.")
            factor = factor.reshape(())  # without axes it takes the dtype and the device of the scores
        number = factor.detach() if isinstance(factor, Tensor) else factor
        if readable(scores) and not number > 0:
            raise ValueError(
                f"`scale` must be a positive number, got {float(number):g}, which would turn the order of the scores "
                "round. Learn its logarithm: a module that gives log_scale.exp()."
            )
        return scores * factor

    def _value(self, scores: Tensor, relevant: Tensor, where: Tensor | None, options: Mapping[str, Any]) -> Any:
        """What the loss gives, without the pairs outside `where`."""
        if 0 in scores.shape:  # not by numel(), for which torch.compile of torch 2.4 makes a graph a length
            return self._nothing(scores, options)
        if where is None:
            return self.loss(scores, relevant, **options)
        if not compiling() and not _takes_where(self.loss):
            raise TypeError(
                "`loss` must take where=, a boolean tensor of the shape of the scores, to leave pairs out (masked "
                f"rows, equal ids, pairs that were not mined), got {describe(self.loss)}."
            )
        return self.loss(scores, relevant, where=where, **options)

    def _nothing(self, scores: Tensor, options: Mapping[str, Any]) -> Any:
        """The loss of rows without a pair, of which there are no scores: a zero with a graph, or NaN, and a warning."""
        given = {"reduction": getattr(self.loss, "reduction", None), **getattr(self.loss, "keywords", {}), **options}
        reduction = "none" if given["reduction"] == "none" else "mean"
        none = scores.new_zeros(len(scores))
        return reduce_defined(none, none.bool(), scores, reduction, bool(given.get("return_stats")), needs="a pair")

    def extra_repr(self) -> str:
        """The options, for repr()."""
        scale = f", scale={self.scale}" if is_number(self.scale) else ""
        return f"similarity={self.similarity!r}, gather={self.gather}{scale}"


def _check_row_mask(where: object, like: Tensor, name: str) -> Tensor:
    """A boolean tensor of one or two axes on the device of the rows `like`."""
    if not isinstance(where, Tensor) or where.dtype != torch.bool:
        got, remedy = type(where).__name__, "Make it one: torch.as_tensor(where).bool()."
        if isinstance(where, Tensor):
            got, remedy = describe(where), "Convert it: where.bool()."
        raise TypeError(f"`where` must be a boolean tensor (True = a real row or pair), got {got}. {remedy}")
    check_device(where, like, "where", name)
    return where


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
    for rows, size, of in ((a1, n, "queries"), (a2, n, "queries"), (p, m, "references"), (q, m, "references")):
        if readable(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise ValueError(
                f"`indices_tuple` must be indices of the {size} {of}, "
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
    own = as_ids(ids, "ids", len(embeddings), "embeddings", embeddings.device)
    if ref_embeddings is None or (ref_embeddings is embeddings and ref_ids is None):
        return own, None
    if ref_ids is None:
        raise ValueError("`ref_ids` must be given with `ids` and `ref_embeddings`, got None.")
    return own, as_ids(ref_ids, "ref_ids", len(ref_embeddings), "ref_embeddings", embeddings.device)


def _both(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Pairs in both masks; None leaves nothing out."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _or_all(mask: Tensor | None, like: Tensor) -> Tensor:
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask


def _without_self(
    scores: Tensor, relevant: Tensor, pairs: Tensor | None, references: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All three without self pairs, if the rows are compared with themselves."""
    if references is not None:
        return scores, relevant, pairs
    return drop_diagonal(scores), drop_diagonal(relevant), None if pairs is None else drop_diagonal(pairs)


def _zeroed(x: Tensor, real: Tensor | None) -> Tensor:
    """`x` with 0 in the rows that are not real, whatever was there."""
    return x if real is None else x.masked_fill(~real.view(-1, *[1] * (x.ndim - 1)), 0)


class _Batch(NamedTuple):
    """What a call of `EmbeddingLoss` gives, checked and read once; of all processes with gather."""

    embeddings: Tensor
    """(n, d), the queries."""
    references: Tensor | None
    """(m, d), the keys or the reference set; None for the queries themselves."""
    labels: Any
    """(n,) or (n, c); in any form, a relevance matrix included, where there is a reference set or nothing."""
    ids: Tensor | None
    ref_ids: Tensor | None
    rows: Tensor | None
    """(n,), which rows are real; None for all."""
    pairs: Tensor | None
    """(n, m), which pairs are real; None for all."""


class EmbeddingLoss(_OnEmbeddings):
    """Any loss on ``(scores, relevant)`` as a loss on ``(embeddings, labels)``.

    Every row is a query; its list is every other row, or the reference set. In place of a pytorch-metric-learning loss
    it takes the same call, ``loss(embeddings, labels, indices_tuple, ref_emb=..., ref_labels=...)``.

    Args:
        loss: any callable ``loss(scores (n, m), relevant (n, m))``, ours or not. When pairs are to be left out (by
            `where`, `ids` or `indices_tuple`) it is called with ``where=`` as well, as every loss of this library can.
        similarity: "cosine", "dot" or "euclidean", as in `pairwise_scores`.
        memory: past embeddings as further references. The list of a row is then the rest of the batch and the memory;
            the batch is added after its loss is taken. In eval mode the memory is neither read nor written.
        gather: take the rows of all processes (see `gather`): every process computes the loss of the global batch,
            and DDP ends up with its gradient. Leave the loss itself outside DDP. With one process this does nothing.
            What comes with the rows (`ids`, `where`, `keys`) is gathered too: give it on every process or on none.
        scale: what the similarities are multiplied by before the loss, on top of a temperature of its own: a positive
            number, an nn.Parameter, or a module or function that gives the factor when called without arguments. A
            parameter, or one in a module, is among the parameters of this loss: hand them to the optimiser. It is the
            factor itself, 1 / temperature, where CLIP's `logit_scale` is its logarithm: see the last example. Losses on
            a fixed range of scores (AP_Q, FastAP, histogram) want it unscaled. With several processes and no `gather`
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
            another form; a `scale` that is none.
        ValueError: what `pairwise_scores` refuses; `ref_embeddings` together with `memory`, `keys` or `gather`; a
            relevance matrix together with one of these; an `indices_tuple` or a mask of pairs together with `gather`;
            ids of wrong kind or number; a scale that is not positive.

    Example:
        >>> def hinge(scores, relevant):  # stands for SmoothAPLoss(), MultiSimilarityLoss(), ...
        ...     return (scores[~relevant].mean() - scores[relevant].mean() + 0.5).relu()
        >>> criterion = EmbeddingLoss(hinge)
        >>> criterion(torch.eye(4), [0, 0, 1, 1])
        tensor(0.5000)

        A memory that knows its items, so that an epoch may be shorter than it:

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
            raise TypeError(f"`memory` must be an EmbeddingMemory or None, got {describe(memory)}.")
        self.memory = memory

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
        embeddings, references, labels, ids, ref_ids, rows, pairs = batch
        n, m, device = len(embeddings), len(embeddings if references is None else references), embeddings.device

        if indices_tuple is not None:
            relevant, mined = _mined_pairs(indices_tuple, n, m, device)
            pairs = _both(pairs, mined)
        elif self._has_own_references(memory, keys):
            relevant = same_label(labels, labels)
        else:
            relevant = relevance(labels, ref_labels, n, m, ref_embeddings is not None)
        if rows is not None:
            columns = rows.new_ones(m) if references is not None and keys is None else rows
            pairs = _both(pairs, rows[:, None] & columns)
        if ids is not None:
            others = _other_items(ids, ids if ref_ids is None else ref_ids)
            pairs = _both(pairs, others if keys is None else others | torch.eye(n, dtype=torch.bool, device=device))
        if memory is None:
            (scores,) = similarities_to(embeddings, [references], self.similarity)
            scores, relevant, pairs = _without_self(scores, relevant, pairs, references)
            return self._value(self._scaled(scores), relevant, pairs, options)

        past, past_labels, past_ids = memory._past()
        scores, past_scores = similarities_to(embeddings, [references, past], self.similarity)
        scores, relevant, pairs = _without_self(scores, relevant, pairs, references)
        past_pairs = None if ids is None else _other_items(ids, past_ids)
        if rows is not None:
            past_pairs = _both(past_pairs, rows[:, None].expand(past_scores.shape))
        if pairs is not None or past_pairs is not None:
            pairs = torch.cat([_or_all(pairs, scores), _or_all(past_pairs, past_scores)], 1)
        scores = torch.cat([scores, past_scores], 1)
        relevant = torch.cat([relevant, same_label(labels, past_labels.to(labels.dtype))], 1)
        value = self._value(self._scaled(scores), relevant, pairs, options)

        new = embeddings if references is None else references
        if rows is not None:
            new, labels, ids = new[rows], labels[rows], ids if ids is None else ids[rows]
        memory._add(new, labels, ids)
        return value

    def _has_own_references(self, memory: EmbeddingMemory | None, keys: Tensor | None) -> str:
        """What keeps the loss from taking a reference set, by name; nothing if it can."""
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
            if option := self._has_own_references(memory, keys):
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
        """What a call gives: checked and read once, masked rows zeroed, the rows of all processes with gather."""
        references = None if ref_embeddings is embeddings else ref_embeddings
        references = references if keys is None else keys
        n = len(embeddings)
        rows, pairs = self._masks(where, n, n if references is None else len(references), embeddings)
        if labels is not None or indices_tuple is None or memory is not None:
            labels = self._labels(labels, rows, embeddings, ref_embeddings, keys, memory)
            if indices_tuple is not None:  # which says what is relevant; the labels are the batch's all the same
                as_labels(labels, "labels", n)
        ids, ref_ids = _both_ids(ids, ref_ids, embeddings, ref_embeddings)
        embeddings = _zeroed(embeddings, rows)
        if keys is not None:
            references = _zeroed(keys, rows)
        if self.gather:
            embeddings, labels = gather_rows(embeddings), gather_rows(labels)
            references, rows, ids = (x if x is None else gather_rows(x) for x in (references, rows, ids))
        # after gather, so that every process raises and none waits for the one that did
        remedy = "Mask those rows out with where="
        check_finite_rows(embeddings, "embeddings", remedy)
        if references is not None:
            name, remedy = ("keys", remedy) if keys is not None else ("ref_embeddings", "Drop those rows")
            check_finite_rows(references, name, remedy)
        return _Batch(embeddings, references, labels, ids, ref_ids, rows, pairs)

    def _masks(self, where: Any, n: int, m: int, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """`where` as a mask of rows (n,) or of pairs (n, m)."""
        if where is None:
            return None, None
        _check_row_mask(where, like, "embeddings")
        if where.shape == (n,):
            return where, None
        if where.shape == (n, m) and not self.gather:
            return None, where
        of_pairs = " with gather=True" if self.gather else f", or ({n}, {m}) for pairs"
        raise ValueError(f"`where` must have shape ({n},) for rows{of_pairs}, got shape {tuple(where.shape)}.")

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
        n = len(embeddings)
        given = label_tensor(labels).to(embeddings.device)
        square = given.dtype == torch.bool and given.shape == (n, n) and n > 1
        option = self._has_own_references(memory, keys)
        if square and option:
            raise ValueError(
                f"`labels` must be labels for a loss with {option}, got a relevance matrix of shape "
                f"{tuple(given.shape)}. Multi-hot labels of as many classes as rows go in as numbers: labels.int()."
            )
        if rows is not None and given.shape[:1] == (n,):
            given = _zeroed(given, rows)
            if square and ref_embeddings is None:  # still symmetric
                given = _zeroed(given.T, rows).T
        if memory is not None:
            return memory.check_labels(given, n, labels)
        return as_labels(given, "labels", n) if option else given


class CrossModalLoss(_OnEmbeddings):
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
        gather: take the rows of all processes first, as in `EmbeddingLoss`; `relevant`, and a `where` of pairs, if
            given, are then those of all rows, in the order of the processes.
        scale: what the similarities are multiplied by before the loss, a parameter that learns included, as in
            `EmbeddingLoss`. CLIP is ``CrossModalLoss(NTXentLoss(temperature=1), scale=...)``.

    Returns:
        A scalar. With ``return_stats=True``: ``value, (stats of the queries, stats of the gallery rows)``. With
        ``reduction="none"``: the values of the queries (n,) and those of the gallery rows (m,), NaN where undefined.

    Raises:
        TypeError: a `loss` that cannot be called, does not give a tensor or does not take the ``where=`` that is given;
            sets that are not floating point tensors; a `scale` that is none.
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

    def forward(
        self, queries: Tensor, gallery: Tensor, relevant: Any = None, *, where: Tensor | None = None, **options: Any
    ) -> Any:
        """The mean of the losses of both directions."""
        check_rows(queries, "queries")
        check_rows(gallery, "gallery", queries, "queries")
        if where is not None:
            _check_row_mask(where, queries, "queries")
        if where is not None and where.ndim == 1 and len(where) == len(queries) == len(gallery):
            queries, gallery = _zeroed(queries, where), _zeroed(gallery, where)
            where = gather_rows(where) if self.gather else where
            where = where[:, None] & where
        if self.gather:
            queries, gallery = gather_rows(queries), gather_rows(gallery)
        n, m = len(queries), len(gallery)
        if where is not None:
            if where.shape != (n, m):
                rows = f", or ({n},) for rows of both sets" if n == m else ""
                raise ValueError(f"`where` must have shape ({n}, {m}){rows}, got shape {tuple(where.shape)}.")
            queries, gallery = _zeroed(queries, where.any(1)), _zeroed(gallery, where.any(0))
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
        scores = self._scaled(full_precision(similarities)(queries, gallery, self.similarity))
        there = self._value(scores, relevant, where, options)
        back = self._value(scores.T, relevant.T, where if where is None else where.T, options)
        if type(there) is type(back) is tuple and len(there) == 2:  # what return_stats adds
            return _mean_of_both(there[0], back[0]), (there[1], back[1])
        return _mean_of_both(there, back)


def _mean_of_both(there: Any, back: Any) -> Any:
    """The mean of two scalars; values of queries and of gallery rows stay apart."""
    for value in (there, back):
        if not isinstance(value, Tensor):
            raise TypeError(f"`loss` must give a tensor, got {type(value).__name__}.")
    return (there + back) / 2 if there.ndim == 0 else (there, back)
