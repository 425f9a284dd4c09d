"""From embeddings to scores: similarities and relevance of all pairs, then any loss on scores.

A loss of this library is a function of ``(scores, relevant)``. Here are the ways there: one set of labelled rows
(`EmbeddingLoss`), two sets of paired rows (`CrossModalLoss`), past batches as further references (`EmbeddingMemory`).

Labels come as (n,) whole numbers, floats, bools or strings, in a tensor, an array or a list; a column (n, 1) counts as
(n,); multi-hot labels (n, c) make two rows relevant when they share a label. They may be on another device than the
embeddings. Two rows are a pair by their index: a row is never its own pair, but an equal row is a real one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sodeep._checks import (
    FIND_THE_STEP,
    check_at_least,
    check_bool,
    check_choice,
    check_device,
    check_finite,
    describe,
    ordinary,
    readable,
)
from sodeep._labels import as_labels, label_tensor, same_label
from sodeep._precision import full_precision, working_dtype
from sodeep.losses._common import mean_over_defined
from sodeep.scale import gather as gather_rows


def _unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1; a zero row stays zero, with a finite gradient."""
    # The cosine does not depend on the scale, so neither does its gradient: the largest entry may be divided out as
    # a constant, and squares of huge or tiny entries neither overflow nor vanish.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(x.dtype).tiny
    scaled = x / largest.masked_fill(zero, 1)
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(zero, 1)
    return unit


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    unit = _unit(x)
    return unit @ (unit if y is x else _unit(y)).T


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.T


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    # |x|² + |y|² − 2xy is a matrix product, but in float32 its rounding puts equal rows at a distance of 1e-3 of their
    # length. float64 resolves 1e-7; what is below its rounding is 0, with gradient 0 where the root has none.
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    a, b = x.to(wide), y.to(wide)
    sizes = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
    squares = sizes - 2 * a @ b.T
    same = squares <= 16 * torch.finfo(wide).eps * sizes
    return -squares.masked_fill(same, 1).sqrt().masked_fill(same, 0).to(x.dtype)


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
}


def _check_embeddings(embeddings: object, name: str, like: Tensor | None = None, like_name: str = "") -> None:
    """Rows to compare, with those of `like` if given."""
    if not isinstance(embeddings, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor of shape (n, d), got {type(embeddings).__name__}.")
    if not embeddings.is_floating_point():
        raise TypeError(f"`{name}` must be real floating point, got {describe(embeddings)}.")
    if embeddings.ndim != 2 or embeddings.shape[1] == 0:
        raise ValueError(f"`{name}` must have shape (n, d), one row an item, got shape {tuple(embeddings.shape)}.")
    if like is not None:
        width = like.shape[1]
        if embeddings.shape[1] != width:
            raise ValueError(
                f"`{name}` must have the width of `{like_name}` ({width}), got shape {tuple(embeddings.shape)}."
            )
        check_device(embeddings, like, name, like_name)
    check_finite(embeddings, name=name, remedy=f"Drop those rows, or {FIND_THE_STEP}")


def _similarities(x: Tensor, y: Tensor, similarity: str) -> Tensor:
    """Similarities (n, m) of checked rows, in float32 or wider."""
    dtype = working_dtype(x, y)
    wide = ordinary(x).to(dtype)
    return SIMILARITIES[similarity](wide, wide if y is x else ordinary(y).to(dtype))


def _relevance(labels: Any, ref_labels: Any, n: int, m: int, two_sets: bool, device: torch.device) -> Tensor:
    """Which pairs are relevant, (n, m) bool, from labels of both sides or from a matrix given as `labels`."""
    given = label_tensor(labels).to(device)
    if ref_labels is not None:
        references = label_tensor(ref_labels, "ref_labels").to(device)
        return same_label(as_labels(given, "labels", n), as_labels(references, "ref_labels", m, "ref_embeddings"))
    if two_sets:
        if given.shape != (n, m) or given.dtype != torch.bool:
            raise ValueError(
                "`ref_labels` must be given with `ref_embeddings`, got None. Or give `labels` as a boolean relevance "
                f"matrix of shape ({n}, {m}); it is {describe(given)}."
            )
        return given
    if given.shape == (n, n) and given.dtype == torch.bool and n > 1:
        if readable(given) and not torch.equal(given, given.T):
            raise ValueError(
                f"`labels` as a boolean matrix of shape ({n}, {n}) must be symmetric: which rows are relevant to each "
                "other. Multi-hot labels of as many classes as rows go in as numbers: labels.int(). A relevance that "
                "is not symmetric goes in with ref_embeddings=embeddings."
            )
        return given
    own = as_labels(given, "labels", n)
    return same_label(own, own)


def _drop_diagonal(x: Tensor) -> Tensor:
    """(n, n) without its diagonal, as (n, n − 1).

    Without its first entry a flattened square reads as n − 1 rows of n + 1, and the diagonal is their last column.
    """
    n = len(x)
    return x.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1) if n > 1 else x[:, :0]


@full_precision
def pairwise_scores(
    embeddings: Tensor,
    labels: Any,
    ref_embeddings: Tensor | None = None,
    ref_labels: Any = None,
    similarity: str = "cosine",
) -> tuple[Tensor, Tensor]:
    """Similarity and relevance of every row to every other row, or to every row of a reference set.

    Args:
        embeddings: (n, d) floating point, not necessarily normalised: the queries.
        labels: of the n rows. Whole numbers, floats, bools or strings (n,) or (n, 1), in a tensor, an array or a list;
            or multi-hot (n, c) of 0 and 1: rows that share a label are relevant to each other, a row without any to
            none; or a boolean relevance matrix, (n, n) and symmetric, or (n, m) of any kind with `ref_embeddings` and
            no `ref_labels`. Boolean multi-hot labels with c = n would read as such a matrix: give them as numbers.
            Moved to the device of `embeddings` if need be. Floats are compared exactly.
        ref_embeddings: (m, d), the rows to search in; None for `embeddings` itself.
        ref_labels: of the m rows, in the form of `labels`.
        similarity: "cosine"; "dot"; or "euclidean", which is minus the distance. The cosine to a zero row is 0. At
            distance 0 the gradient is 0. Distances resolve 1e-7 of the rows' length: below that they are 0.

    Returns:
        ``scores``, ``relevant``: floating point and bool, (n, m). Without a reference set, or when `ref_embeddings`
        is the very tensor `embeddings`, self pairs are left out by index: (n, n - 1), row i without column i. Equal
        rows stay; they are real pairs. Scores are float32, or float64 if an input is, also under autocast.

    Raises:
        TypeError: embeddings that are not floating point tensors; labels that are neither numbers nor strings.
        ValueError: wrong shapes, NaN or infinite embeddings, NaN labels, labels of two kinds, embeddings on two
            devices, `ref_labels` without `ref_embeddings`.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    >>> scores, relevant = pairwise_scores(embeddings, ["cat", "dog", "cat"])
    >>> scores
    tensor([[0., 1.],
            [0., 0.],
            [1., 0.]])
    >>> relevant
    tensor([[False,  True],
            [False, False],
            [ True, False]])
    """
    check_choice(similarity, SIMILARITIES, "similarity")
    _check_embeddings(embeddings, "embeddings")
    if ref_embeddings is None:
        if ref_labels is not None:
            raise ValueError("`ref_embeddings` must be given with `ref_labels`, got None.")
        references = embeddings
    else:
        _check_embeddings(ref_embeddings, "ref_embeddings", embeddings, "embeddings")
        references = ref_embeddings
    relevant = _relevance(
        labels, ref_labels, len(embeddings), len(references), ref_embeddings is not None, embeddings.device
    )
    scores = _similarities(embeddings, references, similarity)
    return (_drop_diagonal(scores), _drop_diagonal(relevant)) if references is embeddings else (scores, relevant)


def _nothing(scores: Tensor) -> Tensor:
    """The loss of a batch without a pair: a zero with the graph of `scores`, of which there are none, and a warning."""
    none = scores.new_zeros(len(scores))
    value: Tensor = mean_over_defined(none, none.bool(), scores, needs="a pair")
    return value


def _check_loss(loss: object) -> Callable[..., Any]:
    if isinstance(loss, type):
        raise TypeError(f"`loss` must be a loss, got the class {loss.__name__}. Build it first: {loss.__name__}().")
    if not callable(loss):
        raise TypeError(f"`loss` must be callable as loss(scores, relevant), got {describe(loss)}.")
    return loss


def _seal(seen: Any) -> Any:
    """What stands beside a count of rows that was counted, and hardly ever beside one that memory happened to hold."""
    return seen * 1_000_003 + 7_919


class EmbeddingMemory(nn.Module):
    """The last `size` embeddings and their labels: more references than a batch holds, for any loss.

    Rows are kept without graph, first in, first out, in buffers: ``.to()`` moves them, ``state_dict()`` saves them.
    Old rows come from older weights; they are good references once the embeddings move slowly, hence `warmup`.

    Give it to `EmbeddingLoss`, which adds the batch after its loss is taken, or use it by hand, in that order: once
    the batch is in the memory its rows would be their own positives. A memory longer than the data set holds past
    copies of the batch's own items; keep `size` below it.

    Args:
        size: rows to keep.
        dim: width of an embedding.
        num_classes: width of multi-hot labels; None for one label a row.
        warmup: rows to be seen before the memory gives out any.

    Shape:
        `embeddings` (size, dim) float32 and `labels` (size,) int64 or (size, num_classes) bool, of which the first
        `seen` are filled; `seal` tells that count from what memory without values holds: the memory then starts empty,
        with a warning.

    Source: Wang, Zhang, Huang, Scott, "Cross-Batch Memory for Embedding Learning", CVPR 2020. There the loss on the
    memory is added to that on the batch; here both are one list.

    >>> memory = EmbeddingMemory(size=3, dim=1)
    >>> memory.update(torch.tensor([[1.0], [2.0]]), [10, 20])
    >>> memory.update(torch.tensor([[3.0], [4.0]]), [30, 40])
    >>> embeddings, labels = memory.get()
    >>> labels
    tensor([20, 30, 40])
    """

    embeddings: Tensor
    labels: Tensor
    seen: Tensor
    seal: Tensor

    def __init__(self, size: int, dim: int, *, num_classes: int | None = None, warmup: int = 0) -> None:
        super().__init__()
        check_at_least(size, 1, "size")
        check_at_least(dim, 1, "dim")
        check_at_least(warmup, 0, "warmup")
        if num_classes is not None:
            check_at_least(num_classes, 2, "num_classes")
        self.size, self.dim, self.num_classes, self.warmup = size, dim, num_classes, warmup
        self.register_buffer("embeddings", torch.zeros(size, dim))
        empty = torch.zeros(size, dtype=torch.int64) if num_classes is None else torch.zeros(size, num_classes).bool()
        self.register_buffer("labels", empty)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seal", _seal(self.seen))

    def check_labels(self, labels: Any, rows: int) -> Tensor:
        """`labels` of `rows` rows as they would be stored; TypeError or ValueError if they cannot be."""
        checked = as_labels(label_tensor(labels).to(self.labels.device), "labels", rows)
        if checked.is_floating_point() or checked.shape[1:] != self.labels.shape[1:]:
            kind = "whole numbers or strings (n,)" if self.num_classes is None else f"multi-hot (n, {self.num_classes})"
            raise ValueError(f"`labels` must be {kind} for this memory, got {describe(labels)}.")
        return checked

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Any) -> None:
        """Add `embeddings` (n, dim) with `labels`, in order, in place of the oldest rows; of more than `size` the last.

        Labels are whole numbers or strings (n,), or multi-hot (n, num_classes).
        """
        _check_embeddings(embeddings, "embeddings")
        if embeddings.shape[1] != self.dim:
            raise ValueError(f"`embeddings` must have shape (n, {self.dim}), got shape {tuple(embeddings.shape)}.")
        labels = self.check_labels(labels, len(embeddings))
        self.seen.masked_fill_(self.seal != _seal(self.seen), 0)
        skip = max(len(embeddings) - self.size, 0)
        places = (self.seen + torch.arange(skip, len(embeddings), device=self.seen.device)) % self.size
        self.embeddings[places] = embeddings[skip:].to(self.embeddings)
        self.labels[places] = labels[skip:].to(self.labels)
        self.seen += len(embeddings)
        self.seal.copy_(_seal(self.seen))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if isinstance(seen := state_dict.get(f"{prefix}seen"), Tensor):  # an older checkpoint has no seal
            state_dict.setdefault(f"{prefix}seal", _seal(seen))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def get(self) -> tuple[Tensor, Tensor]:
        """The rows and their labels, oldest first, as copies; no rows before `warmup` rows have been seen."""
        seen, seal = torch.stack([self.seen, self.seal]).tolist()
        if seal != _seal(seen):
            warnings.warn(
                "The EmbeddingMemory is empty: its buffers came without values, as to_empty leaves them, and "
                "from_pretrained where the checkpoint has none.",
                stacklevel=2,
            )
            seen = 0
        if seen < self.warmup:
            return self.embeddings[:0], self.labels[:0]
        # copies: an update between forward and backward must not change what the graph holds
        if seen < self.size:
            return self.embeddings[:seen].clone(), self.labels[:seen].clone()
        return self.embeddings.roll(-(seen % self.size), 0), self.labels.roll(-(seen % self.size), 0)

    def extra_repr(self) -> str:
        """The options, for repr()."""
        return f"size={self.size}, dim={self.dim}, num_classes={self.num_classes}, warmup={self.warmup}"


class EmbeddingLoss(nn.Module):
    """Any loss on ``(scores, relevant)`` as a loss on ``(embeddings, labels)``.

    Every row is a query; its list is every other row, or the reference set. In place of a pytorch-metric-learning loss
    it takes the same call, ``loss(embeddings, labels, ref_emb=..., ref_labels=...)``.

    Args:
        loss: any callable ``loss(scores (n, m), relevant (n, m))``, ours or not.
        similarity: "cosine", "dot" or "euclidean", as in `pairwise_scores`.
        memory: past embeddings as further references. The list of a row is then the rest of the batch and the memory;
            the batch is added after its loss is taken. In eval mode the memory is neither read nor written.
        gather: take the rows of all processes (see `gather`): every process computes the loss of the global batch,
            and DDP ends up with its gradient. Leave the loss itself outside DDP. With one process this does nothing.

    Shape:
        embeddings (n, d), labels and the reference set as in `pairwise_scores`; the result is what `loss` returns. A
        batch of a single row without references has no pairs: a zero that keeps the graph, and a warning.

    Raises:
        TypeError: a `loss` that cannot be called.
        ValueError: what `pairwise_scores` refuses; `ref_embeddings` together with `memory` or `gather`; a relevance
            matrix together with either.

    >>> def hinge(scores, relevant):  # stands for SmoothAPLoss(), MultiSimilarityLoss(), ...
    ...     return (scores[~relevant].mean() - scores[relevant].mean() + 0.5).relu()
    >>> criterion = EmbeddingLoss(hinge)
    >>> criterion(torch.eye(4), [0, 0, 1, 1])
    tensor(0.5000)
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        similarity: str = "cosine",
        *,
        memory: EmbeddingMemory | None = None,
        gather: bool = False,
    ) -> None:
        super().__init__()
        check_choice(similarity, SIMILARITIES, "similarity")
        self.loss = _check_loss(loss)
        self.similarity = similarity
        if memory is not None and not isinstance(memory, EmbeddingMemory):
            raise TypeError(f"`memory` must be an EmbeddingMemory or None, got {describe(memory)}.")
        self.memory = memory
        self.gather = check_bool(gather, "gather")

    def forward(
        self,
        embeddings: Tensor,
        labels: Any,
        ref_embeddings: Tensor | None = None,
        ref_labels: Any = None,
        *,
        ref_emb: Tensor | None = None,
    ) -> Any:
        """The loss; `ref_emb` is another name of `ref_embeddings`."""
        if ref_emb is not None:
            if ref_embeddings is not None:
                raise ValueError("`ref_emb` must not be given together with `ref_embeddings`: they are the same.")
            ref_embeddings = ref_emb
        memory = self.memory if self.training else None
        if self.gather or memory is not None:
            embeddings, labels = self._plain_batch(embeddings, labels, ref_embeddings)
        if memory is not None:
            labels = memory.check_labels(labels, len(embeddings))
        scores, relevant = pairwise_scores(embeddings, labels, ref_embeddings, ref_labels, self.similarity)
        if memory is not None:
            past = pairwise_scores(embeddings, labels, *memory.get(), self.similarity)
            scores, relevant = torch.cat([scores, past[0]], 1), torch.cat([relevant, past[1]], 1)
        value = self.loss(scores, relevant) if scores.numel() else _nothing(scores)
        if memory is not None:
            memory.update(embeddings, labels)
        return value

    def _plain_batch(self, embeddings: Tensor, labels: Any, ref_embeddings: Tensor | None) -> tuple[Tensor, Any]:
        """A batch with labels of its own and no reference set, of all processes with `gather`."""
        option = "gather=True" if self.gather else "a memory"
        if ref_embeddings is not None:
            raise ValueError(f"`ref_embeddings` must not be given to a loss with {option}, which has its own.")
        _check_embeddings(embeddings, "embeddings")
        labels = label_tensor(labels).to(embeddings.device)
        if labels.dtype == torch.bool and labels.shape == (len(embeddings), len(embeddings)) and len(embeddings) > 1:
            raise ValueError(
                f"`labels` must be labels for a loss with {option}, got a relevance matrix of shape "
                f"{tuple(labels.shape)}. Multi-hot labels of as many classes as rows go in as numbers: labels.int()."
            )
        if self.gather:
            return gather_rows(embeddings), gather_rows(as_labels(labels, "labels", len(embeddings)))
        return embeddings, labels

    def extra_repr(self) -> str:
        """The options, for repr()."""
        return f"similarity={self.similarity!r}, gather={self.gather}"


class CrossModalLoss(nn.Module):
    """Any loss on ``(scores, relevant)`` between two sets of rows, as images and captions: the mean of both directions.

    Every query ranks the gallery, and every gallery row ranks the queries: half ``loss(scores, relevant)``, half
    ``loss(scores.T, relevant.T)``.

    Args:
        loss: any callable ``loss(scores, relevant)`` of two (n, m) tensors.
        similarity: "cosine", "dot" or "euclidean", as in `pairwise_scores`.
        gather: take the rows of all processes first, as in `EmbeddingLoss`; `relevant`, if given, is then that of all
            rows, in the order of the processes.

    Shape:
        queries (n, d), gallery (m, d). relevant (n, m): boolean, with any number of True in a row or column (an image
        with five captions); or what else the loss takes, such as semantic scores for an ASP loss, which go through
        as they are. None: query i belongs to gallery row i, n = m. Moved to the device of `queries` if need be.
        Without a query or a gallery row there are no pairs: a zero that keeps the graph, and a warning.

    Raises:
        TypeError: a `loss` that cannot be called or does not give a tensor, sets that are not floating point tensors.
        ValueError: wrong shapes, NaN or infinite rows, sets on two devices, no `relevant` where n and m differ.

    >>> def hinge(scores, relevant):
    ...     return (scores[~relevant].mean() - scores[relevant].mean() + 0.5).relu()
    >>> captions = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> CrossModalLoss(hinge)(torch.eye(2), captions, torch.tensor([[True, True, False], [False, False, True]]))
    tensor(0.)
    """

    def __init__(self, loss: Callable[..., Any], similarity: str = "cosine", *, gather: bool = False) -> None:
        super().__init__()
        check_choice(similarity, SIMILARITIES, "similarity")
        self.loss = _check_loss(loss)
        self.similarity = similarity
        self.gather = check_bool(gather, "gather")

    def forward(self, queries: Tensor, gallery: Tensor, relevant: Any = None) -> Any:
        """The mean of the losses of both directions."""
        _check_embeddings(queries, "queries")
        _check_embeddings(gallery, "gallery", queries, "queries")
        if self.gather:
            queries, gallery = gather_rows(queries), gather_rows(gallery)
        n, m = len(queries), len(gallery)
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
        scores = full_precision(_similarities)(queries, gallery, self.similarity)
        if not scores.numel():
            return _nothing(scores)
        values = self.loss(scores, relevant), self.loss(scores.T, relevant.T)
        if not all(isinstance(value, Tensor) for value in values):
            raise TypeError(f"`loss` must give a tensor, got {type(values[0]).__name__}. Leave return_stats off.")
        return (values[0] + values[1]) / 2

    def extra_repr(self) -> str:
        """The options, for repr()."""
        return f"similarity={self.similarity!r}, gather={self.gather}"
