"""Exact retrieval metrics over a large gallery, from embeddings: scores are made and used a block of queries at a time.

The metrics of `sodeep.metrics` take all scores (Q, N) at once, 10 GB for 50,000 queries of as many items. Each of them
depends on little: for every relevant item, how many items score higher, and how many the same. That is counted here in
a block of scores that is sorted as plain values, without an order, and forgotten.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from sodeep import metrics as metrics_
from sodeep._core.checks import check_at_least, check_choice, check_device, describe
from sodeep._core.labels import as_labels, label_tensor, same_label
from sodeep._core.precision import wide_dtype, working_dtype
from sodeep._core.progress import Progress
from sodeep._core.ties import copies_of
from sodeep.distributed import check_index, drop_repeats, gather as gather_rows, gather_with_place, several_processes
from sodeep.losses.similarity import SIMILARITIES, check_embeddings, unit_rows
from sodeep.metrics._per_list import chance_of_none

METRICS = ("mAP", "mAP@R", "R-precision", "R@1", "R@10")
"""Those that are taken by default."""

BLOCK = 2**25
"""Scores of a block: 128 MB in float32."""


@overload
def retrieval_metrics(
    queries: Tensor,
    labels: Any,
    gallery: Tensor | None = ...,
    gallery_labels: Any = ...,
    *,
    metrics: Sequence[str] = ...,
    similarity: str = ...,
    own: Tensor | None = ...,
    cameras: Any = ...,
    gallery_cameras: Any = ...,
    grades: Callable[[Tensor], Tensor] | None = ...,
    gather: bool = ...,
    index: Tensor | None = ...,
    reduction: Literal["mean"] = ...,
    block_size: int | None = ...,
    progress: bool = ...,
) -> dict[str, float]: ...
@overload
def retrieval_metrics(
    queries: Tensor,
    labels: Any,
    gallery: Tensor | None = ...,
    gallery_labels: Any = ...,
    *,
    metrics: Sequence[str] = ...,
    similarity: str = ...,
    own: Tensor | None = ...,
    cameras: Any = ...,
    gallery_cameras: Any = ...,
    grades: Callable[[Tensor], Tensor] | None = ...,
    gather: bool = ...,
    index: Tensor | None = ...,
    reduction: Literal["none"],
    block_size: int | None = ...,
    progress: bool = ...,
) -> dict[str, Tensor]: ...
@torch.no_grad()
def retrieval_metrics(
    queries: Tensor,
    labels: Any,
    gallery: Tensor | None = None,
    gallery_labels: Any = None,
    *,
    metrics: Sequence[str] = METRICS,
    similarity: str = "cosine",
    own: Tensor | None = None,
    cameras: Any = None,
    gallery_cameras: Any = None,
    grades: Callable[[Tensor], Tensor] | None = None,
    gather: bool = False,
    index: Tensor | None = None,
    reduction: str = "mean",
    block_size: int | None = None,
    progress: bool = False,
) -> dict[str, float] | dict[str, Tensor]:
    """Exact metrics of queries that search a gallery, in memory for one block of scores beyond that of the embeddings.

    The values are those of the functions in `sodeep.metrics` on ``pairwise_scores(queries, labels, gallery,
    gallery_labels)``, ties included, to rounding.

    Args:
        queries: (Q, d) floating point, of any precision, not necessarily normalised.
        labels: of the queries: numbers or strings (Q,), or multi-hot (Q, c), as of `pairwise_scores`.
        gallery: (N, d), what is searched. None: the queries search each other, none itself.
        gallery_labels: of the gallery, in the form of `labels`.
        metrics: names: "mAP", "mAP@K" (`average_precision`), "mAP@R" (`map_at_r`), "R-precision", "R@K"
            (`hit_rate_at_k`), "recall@K" (`recall_at_k`), "P@K" (`precision_at_k`), "MRR" (`reciprocal_rank`), "median
            rank", "nDCG" and "nDCG@K"; with `grades` also "ASP". K is a number.
        similarity: "cosine", "dot" or "euclidean", as of `pairwise_scores`.
        own: (Q,) whole numbers, the row of the gallery that is the query itself, which is left out; -1: none.
        cameras: of the queries, (Q,) numbers or strings: items with the label and the camera of a query are left out,
            as the benchmarks of person re-identification ask for (Zheng et al., ICCV 2015).
        gallery_cameras: of the gallery; with `cameras` where there is a gallery.
        grades: rows of queries (b,) -> graded relevance of the gallery to them (b, N), 0 or more, for "nDCG" and
            semantic scores for "ASP". None: nDCG counts a relevant item as 1.
        gather: on several processes, the metrics of the rows of all of them, the same on each: every process gives its
            own rows and searches for its own queries among all. `own` are then rows of the gallery of all processes,
            in their order, and so are the columns of `grades`. With one process this does nothing.
        index: (Q,) whole numbers, which item of the data set a query is: without a `gallery`, rows of one item count
            once (a ``DistributedSampler`` repeats items).
        reduction: "mean": over the queries for which a metric is defined, the median for "median rank"; "none": one
            value a query, NaN where it is not.
        block_size: queries at a time. None: so many that their scores take 128 MB.
        progress: show how far it is, on stderr.

    Returns:
        Name -> value, in the order of `metrics`: floats, or tensors (Q,); with `gather` of all processes.

    Raises:
        TypeError: embeddings that are not floating point tensors; labels that are neither numbers nor strings; an
            `index` that is no tensor of whole numbers.
        ValueError: an unknown metric, wrong shapes, NaN or infinite embeddings, labels or cameras of one side alone.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> retrieval_metrics(embeddings, ["cat", "cat", "dog", "cat"], metrics=("mAP", "R@1"))
        {'mAP': 0.861111111111111, 'R@1': 0.6666666666666666}
    """
    check_choice(similarity, SIMILARITIES, "similarity")
    check_choice(reduction, ("mean", "none"), "reduction")
    taken = {name: _metric(name, grades is not None) for name in metrics}
    check_embeddings(queries, "queries")
    for name, value in (("gallery_labels", gallery_labels), ("gallery_cameras", gallery_cameras), ("own", own)):
        if gallery is None and value is not None:
            raise ValueError(f"`gallery` must be given with `{name}`, got None.")
    if gallery is not None:
        check_embeddings(gallery, "gallery", queries, "queries")
        if gallery_labels is None:
            raise ValueError("`gallery_labels` must be given with `gallery`, got None.")
        if (cameras is None) != (gallery_cameras is None):
            raise ValueError("`cameras` and `gallery_cameras` must be given together, got one of them.")
    if index is not None and gallery is not None:
        raise ValueError("`index` must not be given with a gallery, where queries are searched once each.")
    shared = gather and several_processes()
    if shared or index is not None:
        given = _of_all(shared, index, queries, labels, gallery, gallery_labels, own, cameras, gallery_cameras)
        queries, labels, gallery, gallery_labels, own, cameras, gallery_cameras = given
    search = _Search(queries, labels, gallery, gallery_labels, similarity, own, cameras, gallery_cameras)
    size = max(1, BLOCK // max(1, search.size)) if block_size is None else check_at_least(block_size, 1, "block_size")
    line = Progress("searching") if progress else None
    parts: dict[str, list[Tensor]] = {name: [] for name in taken}
    for start in range(0, len(queries), size):
        rows = torch.arange(start, min(start + size, len(queries)), device=queries.device)
        for name, values in search.block(rows, taken, grades).items():
            parts[name].append(values)
        if line is not None:
            line.update(min(1.0, (start + size) / len(queries)))
    if line is not None:
        line.close()
    empty = torch.empty(0, dtype=wide_dtype(queries), device=queries.device)
    found = {name: torch.cat(values).to(empty.dtype) if values else empty for name, values in parts.items()}
    if shared:
        found = {name: gather_rows(values) for name, values in found.items()}
    if reduction == "none":
        return {name: values.to(working_dtype(queries)) for name, values in found.items()}
    return {
        name: (values.nanmedian() if name == "median rank" else values.nanmean()).item()
        for name, values in found.items()
    }


def _of_all(
    shared: bool,
    index: Tensor | None,
    queries: Tensor,
    labels: Any,
    gallery: Tensor | None,
    gallery_labels: Any,
    own: Tensor | None,
    cameras: Any,
    gallery_cameras: Any,
) -> tuple[Any, ...]:
    """The arguments of a search by this process among the rows of all, each item once."""
    device = queries.device

    def everywhere(x: Tensor | None) -> Tensor | None:
        return gather_rows(x) if shared and x is not None else x

    def numbers(x: Any, name: str) -> Tensor | None:
        return None if x is None else label_tensor(x, name).to(device)

    if gallery is not None:
        theirs = (numbers(gallery_labels, "gallery_labels"), numbers(gallery_cameras, "gallery_cameras"))
        found = everywhere(gallery), everywhere(theirs[0]), own, cameras, everywhere(theirs[1])
        return queries, labels, *found
    ours = numbers(labels, "labels"), numbers(cameras, "cameras")
    rows, first = gather_with_place(queries) if shared else (queries, 0)
    row_labels, row_cameras = map(everywhere, ours)
    places = torch.arange(first, first + len(queries), device=device)
    if index is not None:
        index = check_index(index, len(queries)).to(device)
        (kept,) = drop_repeats(gather_rows(index) if shared else index, torch.arange(len(rows), device=device))
        kept = kept.sort().values  # in the order of the processes
        once = torch.isin(places, kept)
        places = torch.searchsorted(kept, places[once])
        queries = queries[once]
        rows = rows[kept]
        row_labels, row_cameras = (x if x is None else x[kept] for x in (row_labels, row_cameras))
    own_labels, own_cameras = (x if x is None else x[places] for x in (row_labels, row_cameras))
    return queries, own_labels, rows, row_labels, places, own_cameras, row_cameras


class _Found(NamedTuple):
    """Of each query, where its relevant items are: (b, P) whole numbers, in no order; padding where not `real`."""

    real: Tensor
    above: Tensor
    """Items of a higher score."""
    through: Tensor
    """Items of a higher or the same score, itself included."""
    hits_above: Tensor
    """Relevant items of a higher score."""
    hits: Tensor
    """Relevant items of a higher or the same score."""
    total: Tensor
    """Relevant items, (b,)."""
    searched: Tensor
    """Items that are searched, (b,)."""

    def chance_within(self, k: Tensor) -> Tensor:
        """The chance of each relevant item to be among the first k (b,); of padding 0."""
        tied = (self.through - self.above).clamp(min=1).to(wide_dtype(k))
        return ((k.unsqueeze(-1) - self.above) / tied).clamp(0, 1) * self.real

    def precision_sum(self, k: Tensor) -> Tensor:
        """Sum of the precision at the relevant items among the first k (b,)."""
        precision = self.hits / self.through.clamp(min=1).to(wide_dtype(k))
        return (self.chance_within(k) * precision).sum(-1)

    def first(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the first relevant item: items above it, items of its score, and relevant ones of these, (b,)."""
        above = self.above.masked_fill(~self.real, torch.iinfo(self.above.dtype).max)
        column = above.argmin(-1, keepdim=True)
        at = (x.gather(-1, column)[:, 0] for x in (self.above, self.through - self.above, self.hits - self.hits_above))
        above, tied, hits = at
        return above, tied, hits


Metric = Callable[[_Found, Tensor], Tensor]
"""Of what is found and the cut k (b,); NaN or anything where a query has no relevant item."""


def _average_precision(found: _Found, k: Tensor) -> Tensor:
    return found.precision_sum(k) / torch.minimum(found.total, k)


def _hit_rate(found: _Found, k: Tensor) -> Tensor:
    above, tied, hits = found.first()
    taken = (torch.minimum(k, found.searched) - above).clamp(min=0)
    return 1 - chance_of_none(tied, hits, taken)


def _reciprocal_rank(found: _Found, k: Tensor) -> Tensor:
    above, tied, hits = (x.unsqueeze(-1).to(wide_dtype(k)) for x in found.first())
    m = torch.arange(int(tied.max()) if len(tied) else 0, device=above.device)
    left = (tied - m).clamp(min=1)
    none_yet = torch.nn.functional.pad((1 - hits / left).clamp(min=0).cumprod(-1), (1, -1), value=1.0)
    return (none_yet * hits / left * (m < tied) / (above + m + 1)).sum(-1)


def _median_rank(found: _Found, k: Tensor) -> Tensor:
    above, tied, hits = found.first()
    return above + (tied + 1) / (hits.to(wide_dtype(k)) + 1)


def _ndcg(found: _Found, k: Tensor) -> Tensor:
    """Gains of 1; items of one score share the discounts of their places."""
    most = int(found.searched.max()) if len(k) else 0
    discount = 1 / torch.arange(2, most + 2, device=k.device, dtype=wide_dtype(k)).log2()
    summed = torch.nn.functional.pad(discount.cumsum(0), (1, 0))
    cut = k.unsqueeze(-1)
    places = (x.clamp(max=most) for x in (torch.minimum(found.through, cut), torch.minimum(found.above, cut)))
    through, above = (summed[place] for place in places)
    gained = ((through - above) / (found.through - found.above).clamp(min=1) * found.real).sum(-1)
    return gained / summed[torch.minimum(found.total, k).clamp(max=most)]


_BY_NAME: dict[str, Metric] = {
    "mAP": _average_precision,
    "mAP@": _average_precision,
    "mAP@R": lambda found, k: found.precision_sum(found.total) / found.total,
    "R-precision": lambda found, k: found.chance_within(found.total).sum(-1) / found.total,
    "R@": _hit_rate,
    "recall@": lambda found, k: found.chance_within(k).sum(-1) / found.total,
    "P@": lambda found, k: found.chance_within(k).sum(-1) / k,
    "MRR": _reciprocal_rank,
    "median rank": _median_rank,
    "nDCG": _ndcg,
    "nDCG@": _ndcg,
}
"""Name, without the number after @ -> metric of relevant items."""


def _metric(name: str, graded: bool) -> tuple[str, int | None]:
    """A name without its number, and the number; None: the whole list."""
    form = re.fullmatch(r"(.*@)([1-9]\d*)", name) if isinstance(name, str) else None
    kind, k = (form[1], int(form[2])) if form else (name, None)
    known = [*_BY_NAME, *(["ASP"] if graded else [])]
    if kind not in known or (kind.endswith("@") and k is None):
        listed = ", ".join(f"{known_name}K" if known_name.endswith("@") else known_name for known_name in known)
        needs = " (ASP needs `grades`)" if name == "ASP" else ""
        raise ValueError(f"`metrics` must be names of {listed} with K a number from 1, got {name!r}{needs}.")
    return kind, k


class _Search:
    """A gallery in the order of its labels, so that what is relevant to a query stands together; and the queries."""

    def __init__(
        self,
        queries: Tensor,
        labels: Any,
        gallery: Tensor | None,
        gallery_labels: Any,
        similarity: str,
        own: Tensor | None,
        cameras: Any,
        gallery_cameras: Any,
    ) -> None:
        self.similarity = similarity
        self.queries = queries
        items = queries if gallery is None else gallery
        self.size = len(items)
        device = queries.device
        self.labels = as_labels(label_tensor(labels, "labels").to(device), "labels", len(queries), "queries")
        self.item_labels = self.labels
        if gallery_labels is not None:
            given = label_tensor(gallery_labels, "gallery_labels").to(device)
            self.item_labels = as_labels(given, "gallery_labels", self.size, "gallery")
        same_label(self.labels[:1], self.item_labels[:1])  # of one form
        self.own = torch.arange(len(queries), device=device) if gallery is None else own
        if own is not None:
            self._check_own(own)
        self.cameras = self._cameras(cameras, len(queries), "cameras")
        self.item_cameras = (
            self.cameras if gallery is None else self._cameras(gallery_cameras, self.size, "gallery_cameras")
        )
        dtype = working_dtype(queries, items)
        self.dtype = dtype
        if self.labels.ndim == 1:
            self.order = torch.argsort(self.item_labels, stable=True)
            self.item_labels = self.item_labels[self.order]
            self.place = torch.empty_like(self.order).index_copy_(0, self.order, torch.arange(self.size, device=device))
            items = items[self.order]
            if self.item_cameras is not None:
                self.item_cameras = self.item_cameras[self.order]
        else:
            self.order = self.place = torch.arange(self.size, device=device)
        items = items.to(dtype)
        self.items = unit_rows(items) if similarity == "cosine" else items
        self.copies = copies_of(self.items) if self.size else None

    def _check_own(self, own: Tensor) -> None:
        if not isinstance(own, Tensor) or own.is_floating_point() or own.shape != (len(self.queries),):
            raise ValueError(
                f"`own` must be whole numbers of shape ({len(self.queries)},), a row of the gallery for each query or "
                f"-1, got {describe(own)}."
            )
        check_device(own, self.queries, "own", "queries")
        if len(own) and not (int(own.min()) >= -1 and int(own.max()) < self.size):
            raise ValueError(
                f"`own` must be rows of the gallery, 0 to {self.size - 1}, or -1, got {int(own.min())} to "
                f"{int(own.max())}."
            )

    def _cameras(self, cameras: Any, rows: int, name: str) -> Tensor | None:
        if cameras is None:
            return None
        given = label_tensor(cameras, name).to(self.queries.device)
        if given.shape != (rows,):
            raise ValueError(f"`{name}` must have shape ({rows},), one a row, got shape {tuple(given.shape)}.")
        return given

    def block(
        self, rows: Tensor, taken: dict[str, tuple[str, int | None]], grades: Callable[[Tensor], Tensor] | None
    ) -> dict[str, Tensor]:
        """Each metric of these queries, (b,)."""
        scores = self._scores(rows)
        graded = {name for name, (kind, _) in taken.items() if grades is not None and kind in ("ASP", "nDCG", "nDCG@")}
        relevant, columns = self._relevant(rows)
        left_out = self._left_out(rows, relevant, columns)
        values = self._graded(scores, rows, left_out, {name: taken[name] for name in graded}, grades)
        counted = self._count(scores, relevant, columns, left_out)
        none = counted.total == 0
        for name, (kind, k) in taken.items():
            if name in graded:
                continue
            cut = torch.full_like(counted.total, self.size if k is None else k)
            undefined = counted.searched == 0 if kind == "P@" else none
            values[name] = _BY_NAME[kind](counted, cut).masked_fill(undefined, torch.nan)
        return values

    def _scores(self, rows: Tensor) -> Tensor:
        queries = self.queries[rows].to(self.dtype)
        if self.similarity == "cosine":
            scores = unit_rows(queries) @ self.items.T
        else:
            scores = SIMILARITIES[self.similarity](queries, self.items)
        if self.copies is not None:  # a product may give copies of one row scores that differ in the last bit
            copies, first = self.copies
            scores.index_copy_(1, copies, scores.index_select(1, first))
        return scores

    def _relevant(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Which places of (b, P) are relevant items, and which columns they are."""
        labels = self.labels[rows]
        if labels.ndim == 1:  # the columns of a label stand together
            first = torch.searchsorted(self.item_labels, labels)
            count = torch.searchsorted(self.item_labels, labels, right=True) - first
        else:
            row, column = same_label(labels, self.item_labels).nonzero().T
            count = torch.bincount(row, minlength=len(rows))
            first = count.cumsum(0) - count
        places = torch.arange(int(count.max()) if len(count) else 0, device=rows.device)
        real = places < count.unsqueeze(-1)
        columns = (first.unsqueeze(-1) + places).masked_fill(~real, 0)
        return real, columns if labels.ndim == 1 or not len(column) else column[columns]

    def _left_out(self, rows: Tensor, relevant: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs of query in the block and column that are not searched."""
        found = []
        if self.own is not None:
            own = self.own[rows]
            some = (own >= 0).nonzero()[:, 0]
            found.append((some, self.place[own[some]]))
        if self.cameras is not None and self.item_cameras is not None:
            seen = relevant & (self.item_cameras[columns] == self.cameras[rows].unsqueeze(-1))
            row, place = seen.nonzero().T
            found.append((row, columns[row, place]))
        if not found:
            return rows[:0], rows[:0]
        pairs = torch.unique(torch.stack([torch.cat(part) for part in zip(*found, strict=True)]), dim=1)
        return pairs[0], pairs[1]

    def _graded(
        self,
        scores: Tensor,
        rows: Tensor,
        left_out: tuple[Tensor, Tensor],
        taken: dict[str, tuple[str, int | None]],
        grades: Callable[[Tensor], Tensor] | None,
    ) -> dict[str, Tensor]:
        """Metrics of graded relevance, by the functions of whole lists."""
        if grades is None or not taken:
            return {}
        given = grades(rows)
        if not isinstance(given, Tensor) or given.shape != scores.shape:
            raise ValueError(
                f"`grades` must return a tensor of shape {tuple(scores.shape)} for {len(rows)} queries, got "
                f"{describe(given)}."
            )
        given = given.to(scores.device)[:, self.order]
        where = torch.ones_like(scores, dtype=torch.bool).index_put_(left_out, torch.tensor(False))
        values = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", metrics_.UndefinedMetricWarning)
            for name, (kind, k) in taken.items():
                if kind == "ASP":
                    values[name] = metrics_.asp(scores, given, where=where)
                else:
                    values[name] = metrics_.ndcg(scores, given, k=k, where=where)
        return values

    def _count(self, scores: Tensor, relevant: Tensor, columns: Tensor, left_out: tuple[Tensor, Tensor]) -> _Found:
        """How many items stand above each relevant one. Takes the scores apart."""
        lowest = torch.tensor(-torch.inf, dtype=scores.dtype, device=scores.device)
        scores.index_put_(left_out, lowest)  # below all others: what is left out counts nowhere
        searched = torch.full((len(scores),), self.size, device=scores.device)
        searched.index_add_(0, left_out[0], torch.full_like(left_out[0], -1))
        own = scores.gather(-1, columns).masked_fill(~relevant, -torch.inf)
        real = own > -torch.inf
        hits = own.sort(-1).values
        ordered = _sorted_values(scores)
        above, through = (self.size - torch.searchsorted(ordered, own, right=right) for right in (True, False))
        n = own.shape[-1]
        hits_above, hits_through = (n - torch.searchsorted(hits, own, right=right) for right in (True, False))
        return _Found(real, above, through, hits_above, hits_through, real.sum(-1), searched)


def _sorted_values(x: Tensor) -> Tensor:
    """`x` (b, n) ascending along its rows, on a CPU in place by numpy, whose sort of plain values is vectorised."""
    if x.device.type != "cpu":
        return torch.sort(x).values
    rows = x.numpy()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(lambda part: part.sort(axis=-1), np.array_split(rows, torch.get_num_threads())))
    return x
