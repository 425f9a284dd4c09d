"""Similarities of all pairs of embeddings (cosine, dot product, minus distance), and which pairs are relevant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from sodeep._core.checks import (
    FIND_THE_STEP,
    ask,
    check_choice,
    check_device,
    check_finite,
    describe,
    ordinary,
    readable,
    untransformed,
)
from sodeep._core.derivatives import by_graph, first_derivative
from sodeep._core.labels import as_labels, label_tensor, same_label
from sodeep._core.precision import full_precision, wide_dtype, widened, working_dtype
from sodeep._core.ties import tie_equal_rows


def unit_rows(x: Tensor) -> Tensor:
    """Rows scaled to length 1; a zero row stays zero, with a finite gradient."""
    if not untransformed(x):
        return _scaled_to_unit(x)[0]
    unit: Tensor = _UnitRows.apply(x)  # type: ignore[no-untyped-call]
    return unit


def _unit_and_length(x: Tensor, check: Callable[[Tensor], None] | None = None) -> tuple[Tensor, Tensor]:
    """`_scaled_to_unit` without a graph, in fewer steps where that is safe and a look at the lengths costs nothing.

    `check` is called on rows whose lengths do not show that they are finite.
    """
    if x.is_cpu and x.shape[0]:
        x = x.contiguous()  # a norm along another stride rounds differently
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        shortest, longest = torch.aminmax(length)
        if float(shortest) > 1e-15 and float(longest) < 1e15:
            return x / length, length
    if check is not None:
        check(x)
    return _scaled_to_unit(x)


def _scaled_to_unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1, and the lengths (n, 1) that they had; 1 for rows of zeros."""
    # The cosine does not depend on the scale, so neither does its gradient: the largest entry may be divided out as
    # a constant, and squares of huge or tiny entries neither overflow nor vanish.
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(x.dtype).tiny
    largest = largest.masked_fill(zero, 1)
    scaled = x / largest
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(zero, 1)
    return scaled / length, length * largest


class _UnitRows(torch.autograd.Function):
    """`unit_rows` in one node: torch's graph of it takes four times as long, on batches that fit a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        unit, length = _unit_and_length(x)
        ctx.save_for_backward(x, unit, length)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        x, unit, length = ctx.saved_tensors
        if not first_derivative(grad):
            return by_graph(lambda x: _scaled_to_unit(x)[0], [x], grad)[0]
        return _by_rows(grad, unit, length)


def _by_rows(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient by rows from that by their unit rows."""
    along = (grad * unit).sum(-1, keepdim=True)
    return torch.addcmul(grad, unit, along, value=-1).div_(length)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    unit = unit_rows(x)
    return unit @ (unit if y is x else unit_rows(y)).T


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.T


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    if not untransformed(x):
        return -_distances(x, y)
    distances: Tensor = _Distances.apply(x, y)  # type: ignore[no-untyped-call]
    return distances


def _distances(x: Tensor, y: Tensor) -> Tensor:
    # |x|² + |y|² − 2xy is a matrix product, but in float32 its rounding puts equal rows at a distance of 1e-3 of their
    # length. float64 resolves 1e-7; what is below its rounding is 0, with gradient 0 where the root has none.
    wide = wide_dtype(x)
    a, b = x.to(wide), y.to(wide)
    sizes = a.square().sum(-1, keepdim=True) + b.square().sum(-1)
    squares = torch.addmm(sizes, a, b.T, alpha=-2)
    same = squares <= 16 * torch.finfo(wide).eps * sizes
    return squares.masked_fill(same, 1).sqrt().masked_fill(same, 0).to(x.dtype)


WIDE_ENTRIES = 2**17
"""Distances that are held at once in float64: what stays in a CPU's cache."""


class _Distances(torch.autograd.Function):
    """Minus the distances to rows `y`, or to all other rows of `x`, some rows at a time.

    In float64 all of them at once would take eight times the memory of the result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, y)
        others = x if y is None else y
        scores = x.new_empty(len(x), len(others))
        for rows in _some_rows(scores, WIDE_ENTRIES):
            torch.neg(_distances(x[rows], others), out=scores[rows])
        return scores if y is not None else _drop_diagonal(tie_equal_rows(scores, x, x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        if not first_derivative(grad):
            return by_graph(_distances_to, [x, y], grad)  # type: ignore[return-value]
        others = x if y is None else y
        b = others.to(wide_dtype(x))
        by_x, by_y, total = torch.empty_like(x), torch.zeros_like(b), b.new_zeros(len(b), 1)
        for rows in _some_rows(grad, WIDE_ENTRIES):
            a, distances = x[rows].to(b.dtype), _distances(x[rows], others)
            slope = grad[rows] if y is not None else _put_diagonal(grad[rows], rows.start)
            weight = (slope / distances.masked_fill_(distances == 0, torch.inf)).to(b.dtype)
            by_x[rows] = weight @ b - weight.sum(1, keepdim=True) * a
            by_y.addmm_(weight.T, a)
            total += weight.sum(0).unsqueeze(1)
        by_y = by_y.sub_(total * b).to(x.dtype)
        return (by_x, by_y) if y is not None else (by_x.add_(by_y), None)


def _distances_to(x: Tensor, y: Tensor | None) -> Tensor:
    return -_distances(x, y) if y is not None else drop_diagonal(-_distances(x, x))


def _some_rows(scores: Tensor, entries: int = 2**20) -> Iterator[slice]:
    """Rows of a matrix, so many entries at a time."""
    rows = max(1, entries // max(1, scores.shape[1]))
    for start in range(0, len(scores), rows):
        yield slice(start, start + rows)


class _ProductsOfOthers(torch.autograd.Function):
    """Inner products or cosines of every row with every other row, (n, n − 1).

    In one node: torch's own graph takes longer on small batches, and several times the memory on large ones.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: bool, check: Callable[[Tensor], None] | None) -> Tensor:
        rows, length = _unit_and_length(x, check) if cosine else (x, None)
        ctx.save_for_backward(x, rows, length)
        return _drop_diagonal(tie_equal_rows(rows @ rows.T, rows, rows))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        x, rows, length = ctx.saved_tensors
        if not first_derivative(grad):
            product = _cosine if length is not None else _dot
            return by_graph(lambda x: drop_diagonal(product(x, x)), [x], grad)[0], None, None
        if _is_small(rows):
            square = _put_diagonal(grad)
            by_rows = (square + square.T) @ rows
        else:
            by_rows = torch.zeros_like(rows)
            for some in _some_rows(grad):
                block = _put_diagonal(grad[some], some.start)
                by_rows[some].addmm_(block, rows)
                by_rows.addmm_(block.T, rows[some])
        return by_rows if length is None else _by_rows(by_rows, rows, length), None, None


def _is_small(x: Tensor) -> bool:
    """Whether (n, n) is taken whole."""
    return x.shape[0] ** 2 <= 2**20


def _drop_diagonal(square: Tensor) -> Tensor:
    """Without its first entry a flattened square reads as n − 1 rows of n + 1, and the diagonal is their last column.

    A large square is overwritten. What is returned is no view, which a node must not return to be changed in place.
    """
    n = square.shape[0]
    if n < 2:
        return square.new_empty((n, 0))
    flat = square.as_strided((n - 1, n), (n + 1, 1), 1)
    if _is_small(square):
        return flat.reshape(n, n - 1) if n > 2 else flat.reshape(n, n - 1).clone()
    result = square.view(-1)[: n * (n - 1)].view(n - 1, n)
    for rows in _some_rows(result):  # each entry moves towards the front
        result[rows] = flat[rows].clone()
    return square.new_empty(0).set_(square.untyped_storage(), square.storage_offset(), (n, n - 1), (n - 1, 1))


def _put_diagonal(rows: Tensor, first: int = 0) -> Tensor:
    """The rows of a square (k, n) from `first` on, with 0 on its diagonal, from those without it (k, n − 1)."""
    k, n = rows.shape[0], rows.shape[1] + 1
    square = rows.new_zeros(k, k)
    if k > 1:
        inside = rows if k == n else rows[:, first : first + k - 1]
        square.as_strided((k - 1, k), (k + 1, 1), 1).copy_(inside.reshape(k - 1, k))
    return square if k == n else torch.cat([rows[:, :first], square, rows[:, first + k - 1 :]], 1)


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
}


def check_rows(embeddings: object, name: str, like: Tensor | None = None, like_name: str = "") -> None:
    """Rows of any values, as wide as those of `like` if given."""
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


def check_finite_rows(embeddings: Tensor, name: str, remedy: str = "Drop those rows") -> None:
    """Raise if a row holds NaN or infinity."""
    check_finite(embeddings, name=name, remedy=f"{remedy}, or {FIND_THE_STEP}")


def check_embeddings(embeddings: object, name: str, like: Tensor | None = None, like_name: str = "") -> None:
    """Rows to compare, with those of `like` if given."""
    check_rows(embeddings, name, like, like_name)
    check_finite_rows(embeddings, name)  # type: ignore[arg-type]


def similarities(x: Tensor, y: Tensor, similarity: str) -> Tensor:
    """Similarities (n, m) of checked rows, in float32 or wider; equal rows have equal ones."""
    dtype = working_dtype(x, y)
    wide = ordinary(x).to(dtype)
    other = wide if y is x else ordinary(y).to(dtype)
    return tie_equal_rows(SIMILARITIES[similarity](wide, other), wide, other)


def relevance(given: Tensor, ref_labels: Any, n: int, m: int, two_sets: bool) -> Tensor:
    """Which pairs are relevant, (n, m) bool, from labels of both sides or from a matrix given as the first.

    The first are a tensor on the device of the embeddings, the others in any form.
    """
    if ref_labels is not None:
        references = label_tensor(ref_labels, "ref_labels").to(given.device)
        return same_label(as_labels(given, "labels", n), as_labels(references, "ref_labels", m, "ref_embeddings"))
    if two_sets:
        if given.shape != (n, m) or given.dtype != torch.bool:
            raise ValueError(
                "`ref_labels` must be given with `ref_embeddings`, got None. Or give `labels` as a boolean relevance "
                f"matrix of shape ({n}, {m}); it is {describe(given)}."
            )
        return given
    if given.shape == (n, n) and given.dtype == torch.bool and n > 1:

        def judge(symmetric: float) -> None:
            if not symmetric:
                raise ValueError(
                    f"`labels` as a boolean matrix of shape ({n}, {n}) must be symmetric: which rows are relevant to "
                    "each other. Multi-hot labels of as many classes as rows go in as numbers: labels.int(). A "
                    "relevance that is not symmetric goes in with ref_embeddings=embeddings."
                )

        if readable(given):
            ask((given == given.T).all(), judge)
        return given
    row_labels = as_labels(given, "labels", n)
    return same_label(row_labels, row_labels)


@full_precision
def similarities_to(
    x: Tensor, sets: list[Tensor | None], similarity: str, check: Callable[[Tensor], None] | None = None
) -> list[Tensor]:
    """Similarities of `x` to each of `sets`, None being the other rows of `x` itself.

    One product a set: rows of the past have no gradient, which one product of all of them would compute.

    Args:
        check: of `similarities_of_others`.
    """
    if similarity == "cosine" and len(sets) > 1:  # every row is brought to unit length once, not once a set
        dtype = working_dtype(x, *(y for y in sets if y is not None))
        x, similarity = unit_rows(x.to(dtype)), "dot"
        sets = [y if y is None else unit_rows(y.to(dtype)) for y in sets]
    return [similarities_of_others(x, similarity, check) if y is None else similarities(x, y, similarity) for y in sets]


def similarities_of_others(x: Tensor, similarity: str, check: Callable[[Tensor], None] | None = None) -> Tensor:
    """Similarities (n, n − 1) of each row to every other, as `similarities` gives them.

    Args:
        x: (n, d).
        similarity: one of `SIMILARITIES`.
        check: of the rows, for "cosine" alone; called unless it is seen on the way that all are finite.
    """
    if not untransformed(x):
        return drop_diagonal(similarities(x, x, similarity))
    x = widened(ordinary(x))
    others: Tensor
    if similarity == "euclidean":
        others = _Distances.apply(x, None)  # type: ignore[no-untyped-call]
    else:
        others = _ProductsOfOthers.apply(x, similarity == "cosine", check)  # type: ignore[no-untyped-call]
    return others


def drop_diagonal(x: Tensor, first: int = 0) -> Tensor:
    """(n, m) without the entry first + i of row i, as (n, m − 1).

    Without its first entry a flattened square reads as n − 1 rows of n + 1, and the diagonal is their last column.
    """
    n, m = x.shape
    if n == m > 1 and x.is_contiguous() and not x.requires_grad and untransformed(x):
        return x.as_strided((n - 1, n), (n + 1, 1), x.storage_offset() + 1).reshape(n, n - 1)
    if n < m:
        left, square, right = torch.split_with_sizes(
            x, [first, n, m - first - n], 1
        )  # whose gradient is put together in one piece
        return torch.cat([left, drop_diagonal(square), right], 1)
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

    Memory is that of the scores and their relevance, and of some rows more; a backward pass adds the incoming gradient.

    Returns:
        ``scores``, ``relevant``: floating point and bool, (n, m). Without a reference set, or when `ref_embeddings`
        is the very tensor `embeddings`, self pairs are left out by index: (n, n - 1), row i without column i. Equal
        rows stay; they are real pairs, with equal scores wherever they stand. Scores are float32, or float64 if an
        input is, also under autocast.

    Raises:
        TypeError: embeddings that are not floating point tensors; labels that are neither numbers nor strings.
        ValueError: wrong shapes, NaN or infinite embeddings, NaN labels, labels of two kinds, embeddings on two
            devices, `ref_labels` without `ref_embeddings`.

    Example:
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
    check_embeddings(embeddings, "embeddings")
    if ref_embeddings is None:
        if ref_labels is not None:
            raise ValueError("`ref_embeddings` must be given with `ref_labels`, got None.")
        references = embeddings
    else:
        check_embeddings(ref_embeddings, "ref_embeddings", embeddings, "embeddings")
        references = ref_embeddings
    given = label_tensor(labels).to(embeddings.device)
    relevant = relevance(given, ref_labels, len(embeddings), len(references), ref_embeddings is not None)
    if references is embeddings:
        return similarities_of_others(embeddings, similarity), drop_diagonal(relevant)
    return similarities(embeddings, references, similarity), relevant
